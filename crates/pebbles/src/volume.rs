//! Volumes: files of one size that records are appended to, and that are used anew when nothing in
//! them counts any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cairn_types::plant::Plant;
use parking_lot::{Mutex, RwLock};

use crate::error::{PebblesError, is_unreadable};
use crate::format::{BATCH_MAX, BLOCK, FIRST_BATCH, Kind, RecordHeader, VOLUME_MAX, VolumeHeader};
use crate::medium::{Medium, MediumFile};
use crate::place::{Place, SLOTS_MAX};

/// Bytes of zeros written at once to a new volume.
const ZEROS: usize = 1 << 20;

/// One use of a file as a volume.
pub struct Volume {
    pub slot: u16,
    pub id: u64,
    pub epoch: u64,
    pub size: u64,
    pub(crate) file: Arc<dyn MediumFile>,
    /// Its zeros, or earlier content, are on disk: writes change no metadata of the file system.
    is_written: AtomicBool,
    /// The end of the last batch.
    used: AtomicU64,
    /// Bytes of those records that count.
    live: AtomicU64,
    written: Mutex<Written>,
    /// Places whose records ceased to count while the volume is being emptied.
    ended: Mutex<Option<Vec<Place>>>,
}

/// The records that were ever written to a volume, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub all: u64,
    /// Records that end others.
    pub removals: u64,
    pub tombstones: u64,
    /// The latest tombstone's time, in ticks.
    pub latest_tombstone: u64,
}

impl Volume {
    pub(crate) fn new(slot: u16, header: VolumeHeader, file: Arc<dyn MediumFile>) -> Self {
        Volume {
            slot,
            id: header.id,
            epoch: header.epoch,
            size: header.size,
            file,
            is_written: AtomicBool::new(true),
            used: AtomicU64::new(FIRST_BATCH),
            live: AtomicU64::new(0),
            written: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// Notes from here on which records cease to count, or no longer.
    pub(crate) fn watch(&self, is_watched: bool) {
        *self.ended.lock() = is_watched.then(Vec::new);
    }

    /// Places whose records ceased to count since this was asked last.
    pub(crate) fn take_ended(&self) -> Vec<Place> {
        self.ended
            .lock()
            .as_mut()
            .map_or_else(Vec::new, std::mem::take)
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub fn written(&self) -> Written {
        *self.written.lock()
    }

    /// Whether a record in it counts no longer, and might count again if a newer one was not there.
    pub fn has_dead(&self) -> bool {
        let written = self.written();
        written.all > self.live() + written.removals
    }

    pub fn room(&self) -> u64 {
        self.size.saturating_sub(self.used())
    }

    /// Whether any batch but the largest has room in it.
    pub(crate) fn has_room(&self) -> bool {
        self.room() >= (BATCH_MAX as u64).min(self.size / 4)
    }

    pub(crate) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Relaxed)
    }

    /// Writes the zeros of a volume that nothing is appended to meanwhile.
    pub(crate) fn write_ahead(&self) -> io::Result<()> {
        write_zeros(&*self.file, FIRST_BATCH, self.size)?;
        self.file.sync()?;
        self.is_written.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set_used(&self, used: u64) {
        assert!(used <= self.size && used.is_multiple_of(BLOCK as u64));
        self.used.store(used, Ordering::Release);
    }

    pub(crate) fn set_written(&self, written: Written) {
        *self.written.lock() = written;
    }

    pub(crate) fn note_written(&self, header: &RecordHeader, place: Place) {
        let mut written = self.written.lock();
        let len = u64::from(place.len);
        written.all += len;
        if header.kind.is_removal() {
            written.removals += len;
        }
        if header.kind == Kind::Tombstone {
            written.tombstones += len;
            written.latest_tombstone = written.latest_tombstone.max(header.timestamp.ticks());
        }
    }

    pub(crate) fn add_live(&self, bytes: u64) {
        self.live.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub_live(&self, place: Place) {
        let bytes = u64::from(place.len);
        let was = self.live.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(was >= bytes, "less than nothing is live");
        if let Some(ended) = &mut *self.ended.lock() {
            ended.push(place);
        }
    }

    /// Reads exactly this; an error where the file is shorter.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self.file.read_at(offset, &mut bytes)? == len {
            true => Ok(bytes),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// As `read`, with zeros for blocks that the disk does not give, each of which is reported.
    pub(crate) fn read_past_damage(
        &self,
        offset: u64,
        len: usize,
        mut report: impl FnMut(u64, io::Error) -> io::Result<()>,
    ) -> io::Result<Vec<u8>> {
        let error = match self.read(offset, len) {
            Err(error) if is_unreadable(&error) => error,
            other => return other,
        };
        let end = offset + len as u64;
        let mut bytes = Vec::with_capacity(len);
        let mut at = offset;
        while at < end {
            let next = (at + 1).next_multiple_of(BLOCK as u64).min(end);
            let len = (next - at) as usize;
            match self.read(at, len) {
                Ok(block) => bytes.extend(block),
                Err(error) if is_unreadable(&error) => {
                    tracing::error!(volume = self.slot, at, %error, "a block cannot be read");
                    report(at / BLOCK as u64 * BLOCK as u64, error)?;
                    bytes.resize(bytes.len() + len, 0);
                }
                Err(error) => return Err(error),
            }
            at = next;
        }
        tracing::error!(volume = self.slot, offset, %error, "damage in a volume");
        Ok(bytes)
    }
}

/// All volumes of a folder.
pub(crate) struct Volumes {
    medium: Arc<dyn Medium>,
    size: u64,
    entropy: Box<dyn Fn() -> u64 + Send + Sync>,
    keep_free: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    slots: RwLock<BTreeMap<u16, Arc<Volume>>>,
    /// Slots that are being filled, which takes as long as a volume's zeros.
    making: Mutex<BTreeSet<u16>>,
    /// Slots of volumes that were emptied, and that entries of the index still name.
    emptied: Mutex<BTreeSet<u16>>,
    /// Bytes that were free when a volume was not made for want of room, whatever these promised: none
    /// is tried before there are more.
    full_at: Mutex<Option<u64>>,
    next_id: AtomicU64,
    /// Number of looks through all volumes.
    #[cfg(test)]
    pub(crate) looks: AtomicU64,
}

impl Volumes {
    pub(crate) fn new(
        medium: Arc<dyn Medium>,
        size: u64,
        entropy: Box<dyn Fn() -> u64 + Send + Sync>,
        keep_free: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    ) -> Self {
        assert!((3 * FIRST_BATCH..=VOLUME_MAX).contains(&size) && size.is_multiple_of(FIRST_BATCH));
        Volumes {
            medium,
            size,
            entropy,
            keep_free,
            slots: RwLock::default(),
            making: Mutex::default(),
            emptied: Mutex::default(),
            full_at: Mutex::default(),
            next_id: AtomicU64::new(1),
            #[cfg(test)]
            looks: AtomicU64::new(0),
        }
    }

    pub(crate) fn medium(&self) -> &dyn Medium {
        &*self.medium
    }

    pub(crate) fn get(&self, slot: u16) -> Option<Arc<Volume>> {
        self.slots.read().get(&slot).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Volume>> {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.slots.read().values().cloned().collect()
    }

    pub(crate) fn insert(&self, volume: Arc<Volume>) {
        self.next_id.fetch_max(volume.id + 1, Ordering::Relaxed);
        self.slots.write().insert(volume.slot, volume);
    }

    /// `size`: of its file, the last block of which is for the copy of the header.
    fn new_header(&self, size: u64) -> VolumeHeader {
        let size = size.min(VOLUME_MAX) / BLOCK as u64 * BLOCK as u64 - BLOCK as u64;
        VolumeHeader {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            epoch: (self.entropy)(),
            size,
        }
    }

    /// Makes a volume. `is_ahead`: its zeros are written, so that later writes change no metadata of
    /// the file system; otherwise its blocks are only reserved.
    pub(crate) fn make(&self, is_ahead: bool) -> Result<Arc<Volume>, PebblesError> {
        let (slot, free) = self.take_slot()?;
        let made = self.make_in(slot, is_ahead);
        *self.full_at.lock() = matches!(made, Err(PebblesError::NoSpace)).then_some(free);
        self.making.lock().remove(&slot);
        made
    }

    /// Whether there is room for so many volumes, as far as the file system says.
    pub(crate) fn has_space_for(&self, count: usize) -> Result<bool, PebblesError> {
        Ok(self.space_for(count + self.making.lock().len())?.is_some())
    }

    /// Free bytes, where they have room for so many volumes.
    fn space_for(&self, count: usize) -> Result<Option<u64>, PebblesError> {
        let space = self.medium.space();
        let space = space.map_err(|error| PebblesError::of_io("ask for space", error))?;
        let wanted = self.size.saturating_mul(count as u64);
        let is_full = self.full_at.lock().is_some_and(|at| space.free <= at)
            || space.free < wanted.saturating_add((self.keep_free)(space.total));
        Ok((!is_full).then_some(space.free))
    }

    /// A slot that nothing is in, where there is room for a volume, and the bytes that are free.
    fn take_slot(&self) -> Result<(u16, u64), PebblesError> {
        let mut making = self.making.lock();
        // Those that are being made may have no blocks yet.
        let free_bytes = self.space_for(1 + making.len())?;
        let free_bytes = free_bytes.ok_or(PebblesError::NoSpace)?;
        let slots = self.slots.read();
        let mut free = (0..SLOTS_MAX as u32).map(|slot| slot as u16);
        let emptied = self.emptied.lock();
        let is_taken = |slot: &u16| {
            slots.contains_key(slot) || making.contains(slot) || emptied.contains(slot)
        };
        let slot = free.find(|slot| !is_taken(slot));
        let slot = slot.ok_or(PebblesError::NoSpace)?;
        making.insert(slot);
        Ok((slot, free_bytes))
    }

    fn make_in(&self, slot: u16, is_ahead: bool) -> Result<Arc<Volume>, PebblesError> {
        let name = file_name(slot);
        let made = self.make_file(&name, is_ahead);
        let (header, file) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = self.medium.remove(&name);
                return Err(PebblesError::of_io("make volume", error));
            }
        };
        let volume = Arc::new(Volume::new(slot, header, file));
        volume.is_written.store(is_ahead, Ordering::Relaxed);
        self.slots.write().insert(slot, volume.clone());
        Ok(volume)
    }

    fn make_file(
        &self,
        name: &str,
        is_ahead: bool,
    ) -> io::Result<(VolumeHeader, Arc<dyn MediumFile>)> {
        let file = self.medium.create(name, self.size)?;
        if is_ahead {
            write_zeros(&*file, 0, self.size)?;
        }
        file.sync()?;
        let header = self.new_header(self.size);
        write_heads(&*file, header)?;
        self.medium.sync_dir()?;
        Ok((header, file))
    }

    /// Takes an emptied volume's file for a new one: nothing that was in it is there any more. The new
    /// one is nobody's before [`Volumes::release`].
    pub(crate) fn recycle(&self, volume: &Volume) -> Result<Arc<Volume>, PebblesError> {
        let file = volume.file.clone();
        let error = |error| PebblesError::of_io("recycle volume", error);
        let mut header = self.new_header(file.size().map_err(error)?);
        if Plant::EpochReused.is_on() {
            header.epoch = volume.epoch;
        }
        write_heads(&*file, header).map_err(error)?;
        self.take_away(volume.slot);
        Ok(Arc::new(Volume::new(volume.slot, header, file)))
    }

    /// Gives an emptied volume's room back to the file system. Its slot is free after
    /// [`Volumes::release`].
    pub(crate) fn remove_emptied(&self, volume: &Volume) -> Result<(), PebblesError> {
        self.remove_file(volume.slot)?;
        self.take_away(volume.slot);
        Ok(())
    }

    fn take_away(&self, slot: u16) {
        self.emptied.lock().insert(slot);
        self.slots.write().remove(&slot);
    }

    /// Ends an emptied volume: no entry names it any more. `volume`: its file's new use.
    pub(crate) fn release(&self, slot: u16, volume: Option<&Arc<Volume>>) {
        if let Some(volume) = volume {
            self.slots.write().insert(slot, volume.clone());
        }
        self.emptied.lock().remove(&slot);
    }

    /// Removes a volume in which nothing is.
    pub(crate) fn remove(&self, volume: &Volume) -> Result<(), PebblesError> {
        self.remove_file(volume.slot)?;
        self.slots.write().remove(&volume.slot);
        Ok(())
    }

    fn remove_file(&self, slot: u16) -> Result<(), PebblesError> {
        let removed = self.medium.remove(&file_name(slot));
        let removed = removed.and_then(|()| self.medium.sync_dir());
        removed.map_err(|error| PebblesError::of_io("remove volume", error))?;
        *self.full_at.lock() = None;
        Ok(())
    }
}

/// Writes zeros, to be synced.
fn write_zeros(file: &dyn MediumFile, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS.min((to - from) as usize)];
    for at in (from..to).step_by(ZEROS) {
        let len = (to - at).min(ZEROS as u64);
        file.write_at(at, &zeros[..len as usize])?;
    }
    Ok(())
}

/// Writes a volume's header and its copy, durably. The copy first: it is never that of an earlier use
/// than the header.
fn write_heads(file: &dyn MediumFile, header: VolumeHeader) -> io::Result<()> {
    file.write_durably(header.size, &header_block(header, header.size))?;
    file.write_durably(0, &header_block(header, 0))
}

pub(crate) fn header_block(header: VolumeHeader, offset: u64) -> Aligned {
    let mut block = Aligned::default();
    block.extend(&header.to_bytes(offset));
    block.pad(BLOCK);
    block
}

pub(crate) fn file_name(slot: u16) -> String {
    format!("volume-{slot:05}")
}

pub(crate) fn slot_of(name: &str) -> Option<u16> {
    let digits = name
        .strip_prefix("volume-")
        .filter(|digits| digits.len() == 5)?;
    digits.parse().ok()
}

/// Bytes that begin at a page's boundary, as direct writes want them.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Default for Aligned {
    fn default() -> Self {
        Aligned::with_capacity(BLOCK)
    }
}

impl Aligned {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(capacity + BLOCK);
        let start = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        bytes.resize(start, 0);
        Aligned { bytes, start }
    }

    /// Empty, with room for that many bytes: in the memory of a former one where it has it.
    pub(crate) fn reusing(former: Option<Aligned>, capacity: usize) -> Self {
        match former.filter(|former| former.bytes.capacity() >= former.start + capacity) {
            Some(mut former) => {
                former.bytes.truncate(former.start);
                former
            }
            None => Aligned::with_capacity(capacity),
        }
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes so far, to be appended to within the capacity.
    pub(crate) fn as_vec(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn pad(&mut self, to: usize) {
        let len = self.len().next_multiple_of(to);
        self.bytes.resize(self.start + len, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) {
        let at = self.start + at;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}
