//! A disk in memory whose power may fail between any two calls, and within one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use cairn_pebbles::format::{BatchHeader, Found, VolumeHeader, records};
use cairn_pebbles::medium::{Medium, MediumFile, Space};
use cairn_types::{ObjectHash, SplitMix};
use parking_lot::Mutex;

mod faults;

const SECTOR: usize = 512;
const EIO: i32 = 5;

#[derive(Default)]
struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

/// A batch that is on the disk, and the objects of its records.
struct Extent {
    file: usize,
    offset: u64,
    len: u64,
    hashes: BTreeSet<ObjectHash>,
}

/// Sectors that the disk does not give until they are written anew.
struct Bad {
    file: usize,
    offset: u64,
    len: u64,
    /// The second in which it gives them again; `None`: never.
    until: Option<u64>,
}

/// A fault of the next durable write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An error, with any sectors written.
    Fails,
    /// Success, and nothing written, of a volume's head. Its copy makes up for that.
    LostHead,
    /// Success, and nothing written.
    Lost,
    /// Success, and written elsewhere.
    Misdirected,
}

struct Inner {
    dice: SplitMix,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes of names since the folder was synced.
    /// Each is there after a power cut as a whole, or not.
    renamed: Vec<Vec<(String, Option<usize>)>>,
    files: Vec<File>,
    extents: Vec<Extent>,
    /// The epoch in each file's head as it was last written; `None`: no head of a volume.
    epochs: BTreeMap<usize, Option<u64>>,
    countdown: Option<u64>,
    is_off: bool,
    fault: Option<Fault>,
    bad: Vec<Bad>,
    /// Batches that had bad sectors: file, offset and length. What cannot be read twice is damaged.
    was_bad: Vec<(usize, u64, u64)>,
    capacity: u64,
    /// Objects whose records were hit by a fault.
    hit: BTreeSet<ObjectHash>,
}

#[derive(Clone)]
pub(crate) struct SimDisk(Arc<Mutex<Inner>>);

struct Handle {
    disk: SimDisk,
    file: usize,
}

fn off() -> io::Error {
    io::Error::other("the power is off")
}

impl Inner {
    fn below(&mut self, n: u64) -> u64 {
        self.dice.number() % n.max(1)
    }

    /// Counts a call; true where the power fails in it.
    fn call(&mut self) -> io::Result<bool> {
        if self.is_off {
            return Err(off());
        }
        if let Some(left) = &mut self.countdown {
            if *left == 0 {
                self.countdown = None;
                self.is_off = true;
                return Ok(true);
            }
            *left -= 1;
        }
        Ok(false)
    }

    fn put(bytes: &mut Vec<u8>, at: usize, with: &[u8]) {
        if bytes.len() < at + with.len() {
            bytes.resize(at + with.len(), 0);
        }
        bytes[at..at + with.len()].copy_from_slice(with);
    }

    /// Some sectors of a write.
    fn tear(&mut self, file: usize, at: usize, bytes: &[u8]) {
        let keep_all_before = self.below(bytes.len() as u64 + 1) as usize;
        let is_prefix = self.below(2) == 0;
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            let is_kept = match is_prefix {
                true => number * SECTOR < keep_all_before,
                false => self.below(2) == 0,
            };
            if is_kept {
                Self::put(&mut self.files[file].durable, at + number * SECTOR, sector);
            }
        }
    }

    fn write_through(&mut self, file: usize, at: usize, bytes: &[u8]) {
        Self::put(&mut self.files[file].now, at, bytes);
        Self::put(&mut self.files[file].durable, at, bytes);
        self.note(file, at as u64, bytes);
    }

    /// A write gives sectors to read again.
    fn mend(&mut self, file: usize, at: usize, len: usize) {
        let (at, end) = (at as u64, (at + len) as u64);
        self.bad
            .retain(|bad| bad.file != file || bad.offset + bad.len <= at || end <= bad.offset);
    }

    fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.is_off {
            return Err(off());
        }
        let end = offset + into.len() as u64;
        let is_hit =
            |bad: &Bad| bad.file == file && bad.offset < end && offset < bad.offset + bad.len;
        if self.bad.iter().any(is_hit) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let bytes = &self.files[file].now;
        let from = (offset as usize).min(bytes.len());
        let count = into.len().min(bytes.len() - from);
        into[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn hashes_at(&self, file: usize, offset: u64, len: u64) -> BTreeSet<ObjectHash> {
        let mut hit = BTreeSet::new();
        for extent in self.extents.iter().filter(|e| e.file == file) {
            if extent.offset < offset + len && offset < extent.offset + extent.len {
                hit.extend(&extent.hashes);
            }
        }
        hit
    }

    /// File, offset and length of a batch of a volume that is there.
    fn any_batch(&mut self) -> Option<(usize, u64, u64)> {
        let names: Vec<usize> = self.names.values().copied().collect();
        let of_volumes = |e: &&Extent| names.contains(&e.file) && !e.hashes.is_empty();
        let extents = self.extents.iter().filter(of_volumes);
        let extents: Vec<_> = extents.map(|e| (e.file, e.offset, e.len)).collect();
        match extents.is_empty() {
            true => None,
            false => Some(extents[self.below(extents.len() as u64) as usize]),
        }
    }

    fn note(&mut self, file: usize, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        // A new use of the file, of which nothing before counts. A head written anew from its copy has
        // the epoch that it had.
        let head = (offset == 0).then(|| VolumeHeader::parse(bytes, 0).ok());
        let head = head.map(|head| head.map(|head| head.epoch));
        let is_new = head.is_some_and(|epoch| self.epochs.insert(file, epoch) != Some(epoch));
        self.extents
            .retain(|e| e.file != file || !(is_new || e.offset < end && offset < e.offset + e.len));
        self.extents.extend((offset > 0).then(|| Extent {
            file,
            offset,
            len: bytes.len() as u64,
            hashes: hashes_of(bytes, offset),
        }));
    }
}

fn hashes_of(bytes: &[u8], offset: u64) -> BTreeSet<ObjectHash> {
    let Ok(header) = BatchHeader::parse(bytes, offset) else {
        return BTreeSet::new();
    };
    let found = records(bytes, &header, offset);
    let hashes = found.iter().filter_map(|found| match found {
        Found::Record { header, .. } => Some(header.hash),
        _ => None,
    });
    hashes.collect()
}

impl SimDisk {
    pub(crate) fn new(seed: u64, capacity: u64) -> Self {
        SimDisk(Arc::new(Mutex::new(Inner {
            dice: SplitMix::new(seed),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            renamed: Vec::new(),
            files: Vec::new(),
            extents: Vec::new(),
            epochs: BTreeMap::new(),
            countdown: None,
            is_off: false,
            fault: None,
            bad: Vec::new(),
            was_bad: Vec::new(),
            capacity,
            hit: BTreeSet::new(),
        })))
    }

    pub(crate) fn cut_power_in(&self, calls: u64) {
        self.0.lock().countdown = Some(calls);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.0.lock().is_off
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.0.lock().fault = Some(fault);
    }

    /// Whether a fault waits for its write still; takes it back.
    pub(crate) fn take_fault(&self) -> bool {
        self.0.lock().fault.take().is_some()
    }

    /// Objects hit by faults since this was asked last.
    pub(crate) fn take_hit(&self) -> BTreeSet<ObjectHash> {
        std::mem::take(&mut self.0.lock().hit)
    }

    /// The power fails now, where it has not, and comes back: what was not durable is there in
    /// part.
    pub(crate) fn restart(&self) {
        let mut inner = self.0.lock();
        inner.countdown = None;
        inner.fault = None;
        for file in 0..inner.files.len() {
            let pending = std::mem::take(&mut inner.files[file].pending);
            for (at, bytes) in pending {
                inner.tear(file, at, &bytes);
            }
            inner.files[file].now = inner.files[file].durable.clone();
        }
        let renamed = std::mem::take(&mut inner.renamed);
        for renamed in renamed {
            if inner.below(2) != 0 {
                continue;
            }
            for (name, file) in renamed {
                match file {
                    Some(file) => inner.durable_names.insert(name, file),
                    None => inner.durable_names.remove(&name),
                };
            }
        }
        inner.names = inner.durable_names.clone();
        inner.is_off = false;
    }

    /// Removes checkpoints, as an operator would.
    pub(crate) fn remove_checkpoints(&self) {
        let mut inner = self.0.lock();
        let is_kept = |name: &String, _: &mut usize| !name.starts_with("checkpoint");
        inner.names.retain(is_kept);
        inner.durable_names.retain(is_kept);
        inner.renamed.clear();
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.lock().names.contains_key(name)
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.0.lock().fault == Some(Fault::Fails)
    }

    fn handle(&self, file: usize) -> Arc<dyn MediumFile> {
        Arc::new(Handle {
            disk: self.clone(),
            file,
        })
    }
}

impl Medium for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        let inner = self.0.lock();
        let file = inner.names.get(name).copied();
        drop(inner);
        Ok(self.handle(file.ok_or(io::ErrorKind::NotFound)?))
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn MediumFile>> {
        let mut inner = self.0.lock();
        let is_cut = inner.call()?;
        let used: u64 = inner
            .names
            .values()
            .map(|f| inner.files[*f].now.len() as u64)
            .sum();
        if size > 0 && used + size > inner.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = match inner.names.get(name) {
            // Emptied: the old content may be there after a power cut.
            Some(file) => *file,
            None => {
                inner.files.push(File::default());
                let file = inner.files.len() - 1;
                inner.names.insert(name.to_owned(), file);
                inner.renamed.push(vec![(name.to_owned(), Some(file))]);
                file
            }
        };
        inner.files[file].now = vec![0; size as usize];
        if is_cut {
            return Err(off());
        }
        drop(inner);
        Ok(self.handle(file))
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        if self.0.lock().names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.create(name, 0)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.0.lock();
        let is_cut = inner.call()?;
        inner.names.remove(name);
        inner.renamed.push(vec![(name.to_owned(), None)]);
        if is_cut { Err(off()) } else { Ok(()) }
    }

    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        let mut inner = self.0.lock();
        let is_cut = inner.call()?;
        let file = inner.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        inner.names.insert(to.to_owned(), file);
        let renamed = vec![(name.to_owned(), None), (to.to_owned(), Some(file))];
        inner.renamed.push(renamed);
        if is_cut { Err(off()) } else { Ok(()) }
    }

    /// Files of the folder `large` are there, and have no content.
    fn link(&self, name: &str, to: &str) -> io::Result<()> {
        let mut inner = self.0.lock();
        let is_cut = inner.call()?;
        let file = match inner.names.get(name) {
            Some(file) => *file,
            None if name.starts_with("large/") => {
                inner.files.push(File::default());
                inner.files.len() - 1
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        inner.names.entry(to.to_owned()).or_insert(file);
        inner.renamed.push(vec![(to.to_owned(), Some(file))]);
        if is_cut { Err(off()) } else { Ok(()) }
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.0.lock();
        if inner.call()? {
            return Err(off());
        }
        inner.renamed.clear();
        inner.durable_names = inner.names.clone();
        Ok(())
    }

    fn sync_files(&self) -> io::Result<()> {
        let mut inner = self.0.lock();
        if inner.call()? {
            return Err(off());
        }
        for file in &mut inner.files {
            file.pending.clear();
            file.durable = file.now.clone();
        }
        inner.renamed.clear();
        inner.durable_names = inner.names.clone();
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let inner = self.0.lock();
        let used: u64 = inner
            .names
            .values()
            .map(|f| inner.files[*f].now.len() as u64)
            .sum();
        Ok(Space {
            free: inner.capacity.saturating_sub(used),
            total: inner.capacity,
        })
    }
}

impl MediumFile for Handle {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().files[self.file].now.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.disk.0.lock().read(self.file, offset, into)
    }

    fn read_cached(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_at(offset, into)
    }

    fn write_durably(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(4096) && blocks.len().is_multiple_of(4096));
        let mut inner = self.disk.0.lock();
        let is_cut = inner.call()?;
        let (file, at) = (self.file, offset as usize);
        inner.mend(file, at, blocks.len());
        if is_cut {
            inner.tear(file, at, blocks);
            // All of it may be there.
            inner.note(file, offset, blocks);
            return Err(off());
        }
        let is_batch = BatchHeader::parse(blocks, offset).is_ok();
        let is_head = offset == 0 && VolumeHeader::parse(blocks, 0).is_ok();
        let is_its = |fault: &mut Fault| match fault {
            Fault::Fails => true,
            Fault::LostHead => is_head,
            Fault::Lost | Fault::Misdirected => is_batch,
        };
        match inner.fault.take_if(is_its) {
            None => {
                inner.write_through(file, at, blocks);
                Ok(())
            }
            Some(Fault::Fails) => {
                inner.tear(file, at, blocks);
                inner.note(file, offset, blocks);
                let durable = inner.files[file].durable.clone();
                inner.files[file].now = durable;
                Err(io::Error::other("a write that fails"))
            }
            Some(Fault::LostHead) => {
                inner.note(file, offset, blocks);
                Ok(())
            }
            Some(Fault::Lost) => {
                inner.hit.extend(hashes_of(blocks, offset));
                let replaced = inner.hashes_at(file, offset, blocks.len() as u64);
                inner.hit.extend(replaced);
                Ok(())
            }
            Some(Fault::Misdirected) => {
                let hit = hashes_of(blocks, offset);
                inner.hit.extend(hit);
                let others: Vec<usize> = inner
                    .names
                    .iter()
                    .filter(|(name, _)| name.starts_with("volume"))
                    .map(|(_, file)| *file)
                    .collect();
                let which = inner.below(others.len() as u64) as usize;
                let victim = others[which];
                let blocks_of = inner.files[victim].now.len() / 4096;
                let room = (blocks_of as u64).saturating_sub(2 + blocks.len() as u64 / 4096);
                let to = 4096 * (1 + inner.below(room));
                if to == offset && victim == file {
                    return Ok(());
                }
                let hit = inner.hashes_at(victim, to, blocks.len() as u64);
                inner.hit.extend(hit);
                let file = &mut inner.files[victim];
                Inner::put(&mut file.now, to as usize, blocks);
                Inner::put(&mut file.durable, to as usize, blocks);
                Ok(())
            }
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.disk.0.lock();
        let is_cut = inner.call()?;
        inner.mend(self.file, offset as usize, bytes.len());
        let file = &mut inner.files[self.file];
        Inner::put(&mut file.now, offset as usize, bytes);
        file.pending.push((offset as usize, bytes.to_vec()));
        if is_cut { Err(off()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.disk.0.lock();
        if inner.call()? {
            return Err(off());
        }
        if inner
            .fault
            .take_if(|fault| *fault == Fault::Fails)
            .is_some()
        {
            return Err(io::Error::other("a sync that fails"));
        }
        let file = &mut inner.files[self.file];
        file.pending.clear();
        file.durable = file.now.clone();
        Ok(())
    }
}
