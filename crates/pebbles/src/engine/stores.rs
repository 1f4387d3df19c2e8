//! The open stores of a process: one for each device and policy, opened when it is first asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use cairn_disk::{DeviceError, Disk, DiskError, FallocateReserve, PartitionKey};
use cairn_types::{PolicyIndex, Timestamp};
use parking_lot::Mutex;

use super::barred::bar_files;
use super::large::clear_large;
use super::slot::Slot;
use super::uploads::UploadMemory;
use super::{OfPolicy, PebblesConfig, caretaker};
use crate::committer::Committer;
use crate::error::{PebblesError, ReadError};
use crate::format::{VOLUME_MAX, VOLUME_MIN};
use crate::medium::{Folder, Medium};
use crate::store::quarantine::{LARGE, large_name};
use crate::store::{Change, Config, Outcome, Status, Store};
use crate::upkeep::Upkeep;

/// A volume is this part of its file system, within bounds.
const VOLUMES_OF_FILE_SYSTEM: u64 = 1024;
const CHECKPOINT_BYTES: u64 = 32 << 20;
const COMPACT_BELOW: f64 = 0.5;
/// From one step of upkeep to the next, of a store that is idle.
const IDLE_UPKEEP_INTERVAL: Duration = Duration::from_secs(60);
/// A device that was there is taken to be there still.
const SEEN_MICROS: u64 = 5_000;
const RETIRE_INTERVAL: Duration = Duration::from_millis(100);
/// Memory of an index from which on the log says so.
const MEMORY_WARNED: u64 = 4 << 30;
/// Random numbers of a second from which numbers of files begin.
const NUMBERS_OF_SECOND: u32 = 18;

/// A place for each device and policy.
type Slots = BTreeMap<(String, PolicyIndex), Arc<Slot<Opened>>>;

/// The stores of a process over one folder of devices.
#[derive(Default)]
pub struct Stores {
    pub(super) open: Mutex<Slots>,
    /// Memory of uploads to all of them.
    pub(super) uploads: Arc<UploadMemory>,
    /// A thread closes what is idle, and what is gone.
    has_caretaker: AtomicBool,
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
    pub(super) policy: PolicyIndex,
    path: PathBuf,
    /// The folder when it was opened: another one there means another device.
    identity: (u64, u64),
    next_number: AtomicU64,
    garbage: Arc<Mutex<Vec<u64>>>,
    is_memory_warned: Mutex<bool>,
    pub(super) folder: Arc<Folder>,
    pub(super) began: Instant,
    /// The time that opening it took.
    pub(super) opening: Duration,
    /// Another process waits for it: no upkeep begins.
    pub(super) is_wanted: AtomicBool,
    pub(super) takes_turns: bool,
    /// Milliseconds from then to clients' last work here, and to the last upkeep.
    used: AtomicU64,
    maintained: AtomicU64,
    /// Microseconds from then to the last look whether its device is there.
    seen: AtomicU64,
    /// Its descriptors are closed when it was not used for so long.
    idle_close: Duration,
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

/// Whether the device is mounted still, where it has to be: a folder below it is not to be made on
/// another file system.
fn is_mounted(disk: &Disk) -> bool {
    use std::os::unix::fs::MetadataExt;
    let stat = |path: &Path| std::fs::metadata(path);
    let (Ok(device), Ok(root)) = (stat(disk.path()), stat(&disk.config().root)) else {
        return false;
    };
    !disk.config().mount_check
        || device.dev() != root.dev()
        || device.ino() == root.ino()
        || disk.path().join(".ismount").is_file()
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
        self: &Arc<Self>,
        disk: &Disk,
        of_policy: OfPolicy,
        config: &PebblesConfig,
    ) -> Result<Arc<Opened>, DiskError> {
        let policy = of_policy.policy;
        let key = (disk.name().to_owned(), policy);
        let slot = self.open.lock().entry(key).or_default().clone();
        // Whoever comes while it is being opened waits here.
        let mut open = slot.opened.lock();
        if let Some(failed) = open.take_if(|opened| {
            opened.store().is_poisoned() && slot.reopening.lock().is_due(Instant::now())
        }) {
            let device = disk.name();
            tracing::warn!(device, %policy, "a write failed: volumes are closed, and opened anew");
            failed.committer.close();
            part_with(failed);
        }
        if let Some(gone) = open.take_if(|opened| !opened.is_seen()) {
            part_with(gone);
        }
        if let Some(opened) = &*open {
            let folder = &opened.folder;
            let woken = match folder.wake() {
                // It was at rest, and another process took it.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    let patience = &slot.patience;
                    patience.wait(&**folder, config.takes_turns, || folder.wake())
                }
                woken => woken,
            };
            match woken {
                Ok(()) => return Ok(opened.clone()),
                Err(source) if !opened.folder.is_gone() => {
                    return Err(io_error("lock", &opened.path, source));
                }
                Err(_) => open.take().into_iter().for_each(part_with),
            }
        }
        let refused = slot.check(disk.now());
        refused.map_err(|error| io_error("open", &folder(disk, policy), error))?;
        let opened = Opened::open(disk, of_policy, config, &slot)?;
        // In the simulator of a cluster nothing is idle.
        if disk.config().machine.is_none() && !self.has_caretaker.swap(true, Ordering::AcqRel) {
            caretaker::start(self, disk.config().idle_close);
        }
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
        let is_usable = |opened: &Arc<Opened>| opened.folder.is_open() && opened.is_seen();
        opened.clone().filter(is_usable)
    }

    /// Closes the descriptors of stores that are idle, and the stores whose devices are gone.
    pub(super) fn close_unused(&self) {
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        for slot in all {
            let Some(mut open) = slot.opened.try_lock() else {
                continue;
            };
            if let Some(opened) = open.take_if(|opened| !opened.is_there()) {
                let device = &opened.device;
                tracing::warn!(
                    device,
                    "volumes are closed: their device is not there any more"
                );
                drop(open);
                part_with(opened);
            } else if let Some(opened) = &*open
                && opened.is_idle()
                // Nobody is between two reads.
                && Arc::strong_count(opened) == 1
            {
                opened.folder.rest();
            }
        }
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
            part_with(opened);
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
        of_policy: OfPolicy,
        config: &PebblesConfig,
        slot: &Slot<Opened>,
    ) -> Result<Self, DiskError> {
        let policy = of_policy.policy;
        let path = folder(disk, policy);
        if !is_mounted(disk) {
            return Err(DeviceError::Unmounted(disk.name().to_owned()).into());
        }
        let error = |action| {
            let path = path.clone();
            move |source| io_error(action, &path, source)
        };
        if config.bars_files {
            bar_files(disk, policy)?;
        }
        let no_sync = disk.config().unsafe_no_fsync;
        let medium = Folder::open(&path, no_sync).map_err(error("open"))?;
        let medium = Arc::new(medium);
        let random = || RandomState::new().hash_one(0u64);
        let lock = || medium.lock([random(), random()]);
        let locked = match disk.config().machine {
            None => slot.patience.wait(&*medium, config.takes_turns, lock),
            Some(_) => lock(),
        };
        locked.map_err(error("lock"))?;
        let folder = medium.clone();
        let space = medium.space().map_err(error("statvfs"))?;
        let garbage = Arc::new(Mutex::new(Vec::new()));
        let store_config = Config {
            rules: of_policy.rules,
            grouping: of_policy.grouping,
            volume_bytes: volume_bytes(config.volume_bytes, space.total),
            reclaim_age: config.reclaim_age,
            now: clock(disk),
            entropy: Box::new(random),
            checkpoint_bytes: CHECKPOINT_BYTES,
            keep_free: keep_free(disk),
            compact_below: COMPACT_BELOW,
            external_gone: {
                let garbage = garbage.clone();
                Box::new(move |number| garbage.lock().push(number))
            },
            read_errors: slot.read_errors.clone(),
        };
        let device = disk.name();
        let began = std::time::Instant::now();
        let (store, report) = Store::open(medium, store_config).map_err(|error| {
            slot.refuse(disk.now(), &error);
            disk_error(device, &path, error)
        })?;
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
        let last = clear_large(&store, &folder, &report).map_err(error("clear"))?;
        let second = u64::try_from(disk.now()).unwrap_or(0);
        let committer = Committer::start(store.clone(), device);
        Ok(Opened {
            committer: committer.map_err(error("start a thread for"))?,
            upkeep: Mutex::new(Upkeep::new(store)),
            device: device.to_owned(),
            policy,
            identity: identity(&path).map_err(error("stat"))?,
            path,
            next_number: AtomicU64::new((last + 1).max(second << NUMBERS_OF_SECOND)),
            garbage,
            is_memory_warned: Mutex::new(false),
            folder,
            began,
            opening: began.elapsed(),
            is_wanted: AtomicBool::new(false),
            takes_turns: config.takes_turns,
            used: AtomicU64::new(began.elapsed().as_millis() as u64),
            maintained: AtomicU64::new(0),
            seen: AtomicU64::new(began.elapsed().as_micros() as u64),
            idle_close: disk.config().idle_close,
        })
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        self.committer.store()
    }

    /// Carries out what waits, and writes a checkpoint where the last one does not say all.
    pub(super) fn end(&self, device: &str, policy: PolicyIndex) {
        self.committer.close();
        let mut upkeep = self.upkeep.lock();
        if !upkeep.has_written() {
            return;
        }
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

    /// Whether it is still what is on the device, and open.
    pub(super) fn is_current(&self) -> bool {
        self.is_there() && !self.folder.is_gone()
    }

    /// Whether it is still what is on the device.
    fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|now| now == self.identity)
    }

    /// As `is_there`, for each operation: its last answer holds for a moment.
    fn is_seen(&self) -> bool {
        let now = self.began.elapsed().as_micros() as u64;
        if now.saturating_sub(self.seen.load(Ordering::Relaxed)) < SEEN_MICROS {
            return true;
        }
        let is_there = self.is_there();
        if is_there {
            self.seen.store(now, Ordering::Relaxed);
        }
        is_there
    }

    /// Notes a client's work.
    pub(super) fn touch(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        self.used.store(now, Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        let used = Duration::from_millis(self.used.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(used) >= self.idle_close
    }

    /// Whether upkeep is due: of a store that is idle now and then, as it would open its files.
    pub(super) fn is_upkeep_due(&self) -> bool {
        let now = self.began.elapsed();
        let last = Duration::from_millis(self.maintained.load(Ordering::Relaxed));
        let is_due = self.folder.is_open() || now.saturating_sub(last) >= IDLE_UPKEEP_INTERVAL;
        if is_due {
            let now = now.as_millis() as u64;
            self.maintained.store(now, Ordering::Relaxed);
        }
        is_due
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The folder of large bodies, from the device on.
    pub(super) fn large_dir(policy: PolicyIndex) -> String {
        format!("{}/{LARGE}", policy.dir("pebbles"))
    }

    /// Leaves a large body to be removed.
    pub(super) fn discard(&self, number: u64) {
        self.garbage.lock().push(number);
    }

    pub(super) fn large_path(&self, number: u64) -> PathBuf {
        self.path.join(LARGE).join(large_name(number))
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
            let reply = Box::new(move |ended, _debt| _ = sender.send(ended));
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

/// Ends a store whose files nobody may use any more, so that its device can be unmounted, and another
/// one opened in its place.
fn part_with(opened: Arc<Opened>) {
    if opened.folder.retire() {
        return;
    }
    // An operation of a dead disk takes its time.
    let thread = std::thread::Builder::new().name(format!("gone-{}", opened.device));
    let spawned = thread.spawn(move || {
        while !opened.folder.retire() {
            std::thread::sleep(RETIRE_INTERVAL);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread to close volumes");
    }
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

/// The disk's clock, without the disk, which has its device open.
fn clock(disk: &Disk) -> Box<dyn Fn() -> Timestamp + Send + Sync> {
    let machine = disk.config().machine.clone();
    Box::new(move || {
        let seconds = match &machine {
            Some(machine) => u64::try_from(machine.now()).unwrap_or(0),
            None => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                since.map_or(0, |since| since.as_secs())
            }
        };
        Timestamp::from_secs(seconds)
    })
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
