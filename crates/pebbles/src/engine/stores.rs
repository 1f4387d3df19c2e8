//! The open stores of a process: one for each device and policy, opened when it is first asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use cairn_disk::{DeviceError, Disk, DiskError, FallocateReserve, PartitionKey};
use cairn_types::{PolicyIndex, Timestamp};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::PebblesConfig;
use crate::committer::Committer;
use crate::error::{PebblesError, ReadError};
use crate::format::{VOLUME_MAX, VOLUME_MIN};
use crate::medium::{Folder, Medium};
use crate::object::Rules;
use crate::read_errors::ReadErrors;
use crate::store::recovery::Recovery;
use crate::store::{Change, Config, Outcome, Status, Store};
use crate::upkeep::Upkeep;

/// A volume is this part of its file system, within bounds.
const VOLUMES_OF_FILE_SYSTEM: u64 = 1024;
const CHECKPOINT_BYTES: u64 = 256 << 20;
const COMPACT_BELOW: f64 = 0.5;
/// Memory of an index from which on the log says so.
const MEMORY_WARNED: u64 = 4 << 30;
/// The folder of bodies that are files.
const LARGE: &str = "large";
/// Random numbers of a second from which numbers of files begin.
const NUMBERS_OF_SECOND: u32 = 18;

/// The store of a device, once it is open. Locked while it is opened.
#[derive(Default)]
struct Slot {
    opened: Mutex<Option<Arc<Opened>>>,
    read_errors: Arc<ReadErrors>,
}

/// The stores of a process over one folder of devices.
#[derive(Default)]
pub struct Stores {
    open: Mutex<BTreeMap<(String, PolicyIndex), Arc<Slot>>>,
    /// Partitions that are brought up to date or handed over (`ReplicationLock`).
    pub(super) locked: Mutex<BTreeSet<(String, PartitionKey)>>,
    /// Partitions left of auditors' walks, by device, policy and walk.
    pub(super) walks: Mutex<HashMap<(String, PolicyIndex, String), Vec<u32>>>,
}

/// An open store.
pub(super) struct Opened {
    pub(super) committer: Committer,
    pub(super) upkeep: Mutex<Upkeep>,
    pub(super) device: String,
    path: PathBuf,
    /// The folder when it was opened: another one there means another device.
    identity: (u64, u64),
    next_number: AtomicU64,
    garbage: Arc<Mutex<Vec<u64>>>,
    is_memory_warned: Mutex<bool>,
    /// Held as long as it is open.
    _lock: File,
}

/// A store in numbers, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    pub device: String,
    pub policy: PolicyIndex,
    pub status: Status,
    pub waiting: u64,
}

fn folder(disk: &Disk, policy: PolicyIndex) -> PathBuf {
    disk.path().join(policy.dir("pebbles"))
}

/// Whether a policy has a store on a device.
pub(super) fn is_there(disk: &Disk, policy: PolicyIndex) -> bool {
    folder(disk, policy).is_dir()
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> DiskError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskError::NoSpace,
        io::ErrorKind::ReadOnlyFilesystem => DiskError::ReadOnly,
        _ => DiskError::Io {
            action,
            path: path.display().to_string(),
            source,
        },
    }
}

impl Stores {
    pub(super) fn get(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        unique_fragments: Option<u32>,
        config: &PebblesConfig,
    ) -> Result<Arc<Opened>, DiskError> {
        let key = (disk.name().to_owned(), policy);
        let slot = self.open.lock().entry(key).or_default().clone();
        // Whoever comes while it is being opened waits here.
        let mut open = slot.opened.lock();
        if let Some(opened) = &*open {
            return Ok(opened.clone());
        }
        let read_errors = slot.read_errors.clone();
        let opened = Opened::open(disk, policy, unique_fragments, config, read_errors)?;
        Ok(open.insert(Arc::new(opened)).clone())
    }

    /// A store that is open, without waiting for one that is being opened.
    pub(super) fn opened(&self, device: &str, policy: PolicyIndex) -> Option<Arc<Opened>> {
        let slot = self
            .open
            .lock()
            .get(&(device.to_owned(), policy))
            .cloned()?;
        let opened = slot.opened.try_lock()?;
        opened.clone()
    }

    /// Those of a device that are open.
    pub(super) fn of_device(&self, device: &str) -> Vec<(PolicyIndex, Arc<Opened>)> {
        let open = self.open.lock();
        let of_it = open.iter().filter(|((name, _), _)| name == device);
        let opened = of_it.filter_map(|((_, policy), slot)| {
            // One that is being opened needs no upkeep.
            let opened = slot.opened.try_lock()?.clone()?;
            Some((*policy, opened))
        });
        opened.collect()
    }

    /// Closes a store, to be opened anew when it is asked for.
    pub(super) fn close(&self, device: &str, policy: PolicyIndex) {
        let slot = self.open.lock().get(&(device.to_owned(), policy)).cloned();
        if let Some(opened) = slot.and_then(|slot| slot.opened.lock().take()) {
            opened.committer.close();
        }
    }

    /// Ends all stores, each with a checkpoint.
    pub fn shutdown(&self) {
        let all = std::mem::take(&mut *self.open.lock());
        for ((device, policy), slot) in all {
            if let Some(opened) = slot.opened.lock().take() {
                opened.end(&device, policy);
            }
        }
    }

    /// Ends the stores that nothing uses, each with a checkpoint: another process may open them.
    pub(super) fn let_go(&self) {
        let open = self.open.lock();
        let all: Vec<_> = open
            .iter()
            .map(|(key, slot)| (key.clone(), slot.clone()))
            .collect();
        drop(open);
        for ((device, policy), slot) in all {
            // Whoever comes meanwhile waits, and opens it anew.
            let Some(mut open) = slot.opened.try_lock() else {
                continue;
            };
            // All users got it under this lock.
            if let Some(opened) = open.take_if(|opened| Arc::strong_count(opened) == 1) {
                opened.end(&device, policy);
                tracing::info!(device, %policy, "volumes are let go of");
            }
        }
    }

    /// All open stores in numbers.
    pub fn statuses(&self) -> Vec<StoreStatus> {
        let open = self.open.lock();
        let statuses = open.iter().filter_map(|((device, policy), slot)| {
            let opened = slot.opened.try_lock()?.clone()?;
            Some(StoreStatus {
                device: device.clone(),
                policy: *policy,
                status: opened.store().status(),
                waiting: opened.committer.waiting() as u64,
            })
        });
        statuses.collect()
    }
}

impl Opened {
    fn open(
        disk: &Disk,
        policy: PolicyIndex,
        unique_fragments: Option<u32>,
        config: &PebblesConfig,
        read_errors: Arc<ReadErrors>,
    ) -> Result<Self, DiskError> {
        let path = folder(disk, policy);
        let error = |action| {
            let path = path.clone();
            move |source| io_error(action, &path, source)
        };
        let no_sync = disk.config().unsafe_no_fsync;
        let medium = Folder::open(&path, no_sync).map_err(error("open"))?;
        let medium = Arc::new(medium);
        let lock = lock(&path).map_err(error("lock"))?;
        let space = medium.space().map_err(error("statvfs"))?;
        let garbage = Arc::new(Mutex::new(Vec::new()));
        let store_config = Config {
            rules: Rules { unique_fragments },
            volume_bytes: volume_bytes(config.volume_bytes, space.total),
            reclaim_age: config.reclaim_age,
            now: clock(disk),
            entropy: Box::new(|| RandomState::new().hash_one(0u64)),
            checkpoint_bytes: CHECKPOINT_BYTES,
            keep_free: keep_free(disk),
            compact_below: COMPACT_BELOW,
            external_gone: {
                let (garbage, medium) = (garbage.clone(), medium.clone());
                Box::new(move |number, is_quarantined| match is_quarantined {
                    true => quarantine_large(&medium, number),
                    false => garbage.lock().push(number),
                })
            },
            read_errors,
        };
        let device = disk.name();
        let began = std::time::Instant::now();
        let (store, report) =
            Store::open(medium, store_config).map_err(|error| disk_error(device, &path, error))?;
        tracing::info!(
            device,
            %policy,
            objects = store.status().objects,
            replayed = report.replayed,
            damaged = report.damaged.len(),
            lost = report.lost,
            milliseconds = began.elapsed().as_millis() as u64,
            "volumes opened"
        );
        if report.unreadable > 0 {
            tracing::error!(
                device,
                %policy,
                files = report.unreadable,
                "volumes could not be read: they are kept as unreadable-*, and with them all large \
                 bodies; remove them when replication is done"
            );
        }
        let last = clear_large(&store, &path.join(LARGE), &report).map_err(error("clear"))?;
        let second = u64::try_from(disk.now()).unwrap_or(0);
        let committer = Committer::start(store.clone(), device);
        Ok(Opened {
            committer: committer.map_err(error("start a thread for"))?,
            upkeep: Mutex::new(Upkeep::new(store)),
            device: device.to_owned(),
            identity: identity(&path).map_err(error("stat"))?,
            path,
            next_number: AtomicU64::new((last + 1).max(second << NUMBERS_OF_SECOND)),
            garbage,
            is_memory_warned: Mutex::new(false),
            _lock: lock,
        })
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        self.committer.store()
    }

    /// Carries out what waits, and writes a checkpoint.
    fn end(&self, device: &str, policy: PolicyIndex) {
        self.committer.close();
        let mut upkeep = self.upkeep.lock();
        loop {
            match upkeep.checkpoint() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(device, %policy, %error, "no checkpoint at the end");
                    return;
                }
            }
        }
    }

    /// Whether it is still what is on the device, and takes writes.
    pub(super) fn is_current(&self) -> bool {
        let is_same = identity(&self.path).is_ok_and(|now| now == self.identity);
        is_same && !self.store().is_poisoned()
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The folder of large bodies, from the device on.
    pub(super) fn large_dir(policy: PolicyIndex) -> String {
        format!("{}/{LARGE}", policy.dir("pebbles"))
    }

    pub(super) fn large_name(number: u64) -> String {
        format!("{number:016x}")
    }

    /// Leaves a large body to be removed.
    pub(super) fn discard(&self, number: u64) {
        self.garbage.lock().push(number);
    }

    pub(super) fn large_path(&self, number: u64) -> PathBuf {
        self.path.join(LARGE).join(Self::large_name(number))
    }

    /// Removes files that no record names any more. A crash leaves them for the next opening.
    pub(super) fn collect_garbage(&self) {
        let garbage = std::mem::take(&mut *self.garbage.lock());
        for number in garbage {
            if let Err(error) = std::fs::remove_file(self.large_path(number))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(device = self.device, number, %error, "content not removed");
            }
        }
    }

    /// Carries out a write, and waits for it.
    pub(super) fn run(&self, change: Change) -> Result<Outcome, DiskError> {
        match self.run_all(vec![change])? {
            0 => Ok(Outcome::Obsolete),
            _ => Ok(Outcome::Written),
        }
    }

    /// Carries out writes together, and waits for them; gives how many records they made.
    pub(super) fn run_all(&self, changes: Vec<Change>) -> Result<usize, DiskError> {
        let (sender, receiver) = mpsc::sync_channel(changes.len());
        let count = changes.len();
        for change in changes {
            let sender = sender.clone();
            let reply = Box::new(move |ended| _ = sender.send(ended));
            self.committer.submit(change, reply);
        }
        let mut written = 0;
        for _ in 0..count {
            let ended = receiver.recv().unwrap_or(Err(PebblesError::Closed));
            let outcome = ended.map_err(|error| self.disk_error(error))?;
            written += usize::from(outcome == Outcome::Written);
        }
        Ok(written)
    }

    pub(super) fn disk_error(&self, error: PebblesError) -> DiskError {
        disk_error(&self.device, &self.path, error)
    }

    pub(super) fn read_error(&self, error: ReadError) -> DiskError {
        match error {
            ReadError::Gone | ReadError::Damaged(_) => DiskError::StateChanged,
            ReadError::Unreadable(source) => DiskError::Unreadable(format!("read: {source}")),
            ReadError::Io(source) => io_error("read", &self.path, source),
        }
    }

    /// Says once that the index is large.
    pub(super) fn watch_memory(&self) {
        let status = self.store().status();
        let is_large = status.memory_bytes > MEMORY_WARNED;
        let mut is_warned = self.is_memory_warned.lock();
        if is_large && !*is_warned {
            tracing::warn!(
                device = self.device,
                objects = status.objects,
                bytes = status.memory_bytes,
                "the index of a device takes much memory: spread its objects over more devices"
            );
        }
        *is_warned = is_large;
    }
}

/// A second process must not append to the same volumes.
fn lock(path: &Path) -> io::Result<File> {
    let file = File::create(path.join(".lock"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(io::Error::other(
            "another process serves these volumes: run the daemons of this policy in the object \
             server's process",
        )),
        Err(errno) => Err(errno.into()),
    }
}

/// Keeps a large body whose object was quarantined.
fn quarantine_large(medium: &Folder, number: u64) {
    let name = Opened::large_name(number);
    let moved = medium.rename(&format!("{LARGE}/{name}"), &format!("quarantined-{name}"));
    if let Err(error) = moved.and_then(|()| medium.sync_dir()) {
        tracing::warn!(number, %error, "quarantined content is not kept");
    }
}

/// Removes large bodies that no record names, where all records were read; gives the highest number
/// there is.
fn clear_large(store: &Store, large: &Path, report: &Recovery) -> io::Result<u64> {
    let is_known = report.unreadable == 0 && report.lost == 0 && !report.has_unnamed;
    let entries = match std::fs::read_dir(large) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut named = BTreeSet::new();
    for partition in store.index().partitions() {
        for (_, entries) in store.index().objects(partition) {
            named.extend(entries.iter().filter_map(|entry| entry.external));
        }
    }
    let mut last = named.last().copied().unwrap_or(0);
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| u64::from_str_radix(name, 16).ok());
        last = last.max(number.unwrap_or(0));
        if is_known && number.is_none_or(|number| !named.contains(&number)) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(last)
}

fn volume_bytes(given: u64, total: u64) -> u64 {
    let bytes = match given {
        0 => total / VOLUMES_OF_FILE_SYSTEM,
        given => given,
    };
    let bytes = bytes.clamp(VOLUME_MIN, VOLUME_MAX);
    // A power of two, not above.
    1 << bytes.ilog2()
}

fn keep_free(disk: &Disk) -> Box<dyn Fn(u64) -> u64 + Send + Sync> {
    let reserve = disk.config().fallocate_reserve;
    Box::new(move |total| match reserve {
        FallocateReserve::Bytes(bytes) => bytes,
        FallocateReserve::Percent(percent) => (total as f64 * percent / 100.0) as u64,
    })
}

fn clock(disk: &Disk) -> Box<dyn Fn() -> Timestamp + Send + Sync> {
    let disk = disk.clone();
    Box::new(move || super::now(&disk))
}

fn disk_error(device: &str, path: &Path, error: PebblesError) -> DiskError {
    let device = device.to_owned();
    match error {
        PebblesError::NoSpace => DiskError::NoSpace,
        PebblesError::Poisoned => DeviceError::Poisoned(device).into(),
        PebblesError::Closed => DeviceError::Stopped(device).into(),
        PebblesError::Busy => DeviceError::Busy(device).into(),
        PebblesError::TooLarge => io_error("write", path, io::ErrorKind::InvalidInput.into()),
        PebblesError::Format { .. } => {
            let source = io::Error::new(io::ErrorKind::InvalidData, error);
            io_error("open", path, source)
        }
        PebblesError::Io { action, source } => io_error(action, path, source),
    }
}
