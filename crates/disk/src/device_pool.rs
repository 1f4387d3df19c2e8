//! Devices: a directory each, with worker threads of its own behind bounded queues, so that a slow
//! disk delays only itself.
//!
//! A device has three lanes (`cairn_device`). Small durable writes share batches in the commit
//! lane. Other writers mostly wait for the disk, so the write lane has many threads; reads have a
//! lane of their own so as not to queue behind them. Threads start on demand and exit after the
//! idle time that closes a device. A full lane refuses at once.
//!
//! Background work (replication, audits) uses [`Device::background`]: the same lanes at lower
//! priority than clients, throttled by their load (`cairn_device::Share`).

mod at_hand;
mod caretaker;
mod config;
mod root;
pub mod steps;
pub(crate) mod touched;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use cairn_device::BackgroundShare;
use cairn_device::{
    Class, CommitLane, FileSystem, Host, JobLane, Kind, LaneConfig, Refused, Share, SyncSet,
};
use cairn_types::ObjectHash;
use futures_channel::oneshot;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::error::{DeviceError, DiskError};
use crate::hot::{EventTimes, FileIdentity, Verified};
use crate::machine::{self, Machine};
use crate::made_dirs::MadeDirs;
use crate::room::{self, DeviceRoom, Room};
use crate::unreadable::Unreadable;
use caretaker::Readmission;
pub use config::{DevicesConfig, FallocateReserve};
use root::{OpenRoot, Root};
use steps::Step;
use touched::InlineReadGate;

/// Capacity of the cache of verified checksums per device: two megabytes.
const VERIFIED_ENTRIES: usize = 128 << 10;
/// Maximum durable operations per batch: enough to amortise a sync, few enough that the first does
/// not wait long.
const BATCH_OPERATIONS_MAX: usize = 64;
/// Minimum interval of log lines about a device that cannot read its directories.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
const LARGE_READS_ENTRIES: usize = 4 << 10;

/// All devices under one directory, opened on first use.
pub struct Devices {
    config: Arc<DevicesConfig>,
    devices: RwLock<HashMap<String, Arc<Device>>>,
}

impl Devices {
    pub fn new(config: DevicesConfig) -> Arc<Self> {
        let devices = Arc::new(Devices {
            config: Arc::new(config),
            devices: RwLock::default(),
        });
        if !devices.config.is_simulated() {
            caretaker::start(&devices);
        }
        devices
    }

    pub fn config(&self) -> &DevicesConfig {
        &self.config
    }

    /// Returns the device of that name.
    ///
    /// # Errors
    /// `Unmounted` for a device never seen before that does not exist.
    pub fn get(&self, name: &str) -> Result<Arc<Device>, DeviceError> {
        let known = self.devices.read();
        if let Some(device) = known.get(name) {
            return Ok(device.clone());
        }
        drop(known);
        // Names come from the network: threads are created only for existing directories.
        if !is_device_name(name) || !self.config.root.join(name).is_dir() {
            return Err(DeviceError::Unmounted(name.to_owned()));
        }
        // Accesses the disk, which may hang: not under the lock. Threads start with the first job.
        let new = Arc::new(Device::new(name, self.config.clone()));
        let mut devices = self.devices.write();
        Ok(devices.entry(name.to_owned()).or_insert(new).clone())
    }

    /// Devices opened so far, by name.
    pub fn known(&self) -> Vec<Arc<Device>> {
        let known = self.devices.read();
        let mut known: Vec<_> = known.values().cloned().collect();
        known.sort_by(|a, b| a.name().cmp(b.name()));
        known
    }

    /// Directories under the root that could be devices, sorted.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.config.root) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_device_name(name))
            .collect();
        names.sort();
        names
    }

    /// Completes queued jobs, refuses others, and joins all threads.
    pub fn shutdown(&self) {
        let mut devices = self.devices.write();
        let all: Vec<_> = devices.drain().map(|(_, device)| device).collect();
        drop(devices);
        for device in all {
            device.shutdown();
        }
    }
}

/// Whether a name needs no quoting in a URL and cannot leave the directory.
fn is_device_name(name: &str) -> bool {
    !name.is_empty()
        && !name.bytes().all(|b| b == b'.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_.-~".contains(&b))
}

/// Handle of a device and its threads, for clients or for background work.
pub struct Device {
    class: Class,
    lanes: Arc<Lanes>,
    pub(crate) state: Arc<DeviceState>,
}

/// Queues and threads of one device.
struct Lanes {
    reads: Arc<JobLane>,
    writes: Arc<JobLane>,
    /// Lane of durable operations, in batches of steps.
    commits: Arc<CommitLane<CommitHost>>,
    share: Arc<Share>,
}

/// Host of the commit lane: opens the device once per batch.
struct CommitHost(Arc<DeviceState>);

impl Host for CommitHost {
    type OpenDevice = Disk;
    type Error = DeviceError;

    fn begin(&self) -> Result<Disk, DeviceError> {
        self.0.writable_disk()
    }

    fn broken(&self) -> Option<io::Error> {
        self.0.broken()
    }
}

/// State shared by a device's threads.
pub(crate) struct DeviceState {
    name: String,
    path: PathBuf,
    pub(crate) config: Arc<DevicesConfig>,
    poisoned: AtomicBool,
    /// Progress of a failed device towards readmission.
    readmission: Readmission,
    /// Time of the last log line about an error of the device.
    logged: Mutex<Option<Instant>>,
    /// The device's open directory and its identity.
    root: Mutex<Root>,
    /// Whether `O_TMPFILE` works; false once it was refused.
    pub(crate) use_tmpfile: AtomicBool,
    pub(crate) use_direct_io: AtomicBool,
    /// Locks between our own threads, acquired before a partition's lock file.
    partition_locks: [Mutex<()>; 32],
    pub(crate) verified: Verified,
    /// Files and offsets at which reads of large content began.
    pub(crate) large_reads: EventTimes<(FileIdentity, u64)>,
    pub(crate) touched: InlineReadGate,
    pub(crate) made_dirs: MadeDirs,
    pub(crate) unreadable: Unreadable<ObjectHash>,
    room: DeviceRoom,
}

impl Device {
    fn new(name: &str, config: Arc<DevicesConfig>) -> Self {
        let share = Arc::new(Share::default());
        let lane = |letter: char, threads: usize| LaneConfig {
            name: format!("{letter}-{name}"),
            threads,
            depth: config.queue_depth,
            idle_close: config.idle_close,
            batch_max: BATCH_OPERATIONS_MAX,
            machine: config.machine.clone(),
            share: Some(share.clone()),
        };
        let reads = JobLane::new(Kind::Read, lane('r', config.read_threads));
        let writes = JobLane::new(Kind::Write, lane('w', config.write_threads));
        let commits = lane('c', config.commit_threads);
        let state = Arc::new(DeviceState {
            name: name.to_owned(),
            path: config.root.join(name),
            readmission: Readmission::of(&config.root.join(name)),
            config,
            poisoned: AtomicBool::new(false),
            logged: Mutex::default(),
            root: Mutex::default(),
            use_tmpfile: AtomicBool::new(true),
            use_direct_io: AtomicBool::new(true),
            partition_locks: std::array::from_fn(|_| Mutex::new(())),
            verified: Verified::new(VERIFIED_ENTRIES),
            large_reads: EventTimes::new(LARGE_READS_ENTRIES),
            touched: InlineReadGate::new(),
            made_dirs: MadeDirs::default(),
            unreadable: Unreadable::default(),
            room: DeviceRoom::default(),
        });
        let host = CommitHost(state.clone());
        Device {
            class: Class::Client,
            lanes: Arc::new(Lanes {
                reads,
                writes,
                commits: CommitLane::new(Kind::Commit, host, commits),
                share,
            }),
            state,
        }
    }

    pub fn name(&self) -> &str {
        &self.state.name
    }

    pub fn path(&self) -> &Path {
        &self.state.path
    }

    pub fn is_poisoned(&self) -> bool {
        self.state.poisoned.load(Ordering::Acquire)
    }

    /// The same device for background work: its jobs wait while clients' jobs do, for at most a
    /// tenth of a second.
    pub fn background(&self) -> Arc<Device> {
        Arc::new(Device {
            class: Class::Background,
            lanes: self.lanes.clone(),
            state: self.state.clone(),
        })
    }

    /// The current share of background work, and its totals.
    pub fn background_share(&self) -> BackgroundShare {
        self.lanes.share.status(self.lanes.commits.now())
    }

    /// Runs `work` on a read thread. It is queued at once, not on the first poll, and completes
    /// even if the future is dropped.
    pub fn read<T, F>(&self, work: F) -> Run<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk) -> Result<T, DiskError> + Send + 'static,
    {
        self.submit(&self.lanes.reads, false, work)
    }

    /// Runs `work` on a write thread; refused if the device is poisoned.
    pub fn write<T, F>(&self, work: F) -> Run<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk) -> Result<T, DiskError> + Send + 'static,
    {
        self.submit(&self.lanes.writes, true, work)
    }

    /// The disk, checked to be mounted, for callers with threads of their own.
    ///
    /// # Errors
    /// `Unmounted` if its directory cannot be opened, or with `mount_check` is no mount point.
    pub fn disk(&self) -> Result<Disk, DeviceError> {
        self.state.disk()
    }

    /// Runs a durable operation in steps, batched with others (`steps.rs`); refused if the device
    /// is poisoned. It is queued at once, and completes even if the future is dropped.
    pub fn commit<T, F>(&self, work: F) -> Run<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk) -> Result<Step<T>, DiskError> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let operation = Box::new(steps::Run::new(work, sender));
        let refused = self.lanes.commits.push(self.class, operation).err();
        Run {
            refused: refused.map(|refused| self.refused(refused)),
            receiver,
            device: self.state.clone(),
        }
    }

    fn refused(&self, refused: Refused) -> DeviceError {
        let name = self.state.name.clone();
        match refused {
            Refused::Full => DeviceError::Busy(name),
            Refused::Closed => DeviceError::Stopped(name),
            Refused::NoThread => DeviceError::NoThread(name),
        }
    }

    fn submit<T, F>(&self, lane: &Arc<JobLane>, is_write: bool, work: F) -> Run<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk) -> Result<T, DiskError> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let (class, state) = (self.class, self.state.clone());
        let job = Box::new(move || {
            let disk = match class {
                Class::Client => state.disk(),
                Class::Background => state.disk_while_used(),
            };
            let result = disk.map_err(DiskError::from).and_then(|disk| {
                if is_write && state.poisoned.load(Ordering::Acquire) {
                    return Err(DeviceError::Poisoned(state.name.clone()).into());
                }
                work(&disk).inspect_err(|error| state.note(error))
            });
            let _ = sender.send(result);
        });
        let refused = lane.push(self.class, job).err();
        Run {
            refused: refused.map(|refused| self.refused(refused)),
            receiver,
            device: self.state.clone(),
        }
    }

    /// Completes queued jobs and joins the threads.
    pub fn shutdown(&self) {
        self.lanes.close();
    }
}

impl Lanes {
    fn close(&self) {
        self.reads.close();
        self.writes.close();
        self.commits.close();
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.close();
    }
}

/// Future of an operation on a device's thread. Beside the errors of its work it has `Busy`,
/// `NoThread` and `Stopped` of the lane, `Unmounted`, and for writes `Poisoned`.
pub struct Run<T> {
    refused: Option<DeviceError>,
    receiver: oneshot::Receiver<Result<T, DiskError>>,
    device: Arc<DeviceState>,
}

impl<T> Future for Run<T> {
    type Output = Result<T, DiskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(refused) = self.refused.take() {
            return Poll::Ready(Err(refused.into()));
        }
        let result = std::task::ready!(Pin::new(&mut self.receiver).poll(cx));
        // Cancelled: the job panicked, or was dropped with its lane.
        Poll::Ready(
            result.unwrap_or_else(|_| Err(DeviceError::Stopped(self.device.name.clone()).into())),
        )
    }
}

impl DeviceState {
    /// Poisons the device if its file system is damaged. Logs errors of the device at most once a
    /// minute, as every request may meet them.
    pub(crate) fn note(&self, error: &DiskError) {
        if error.is_damage() {
            if !self.poisoned.swap(true, Ordering::AcqRel) {
                tracing::error!(
                    device = %self.name,
                    %error,
                    "the file system is damaged; no more writes until it was repaired and mounted \
                     again, touched (.readmit) or restarted"
                );
            }
        } else if error.is_of_device() && self.is_log_due(Instant::now()) {
            tracing::error!(device = %self.name, %error, "a directory cannot be read");
        }
    }

    fn is_log_due(&self, now: Instant) -> bool {
        let mut logged = self.logged.lock();
        let is_due = logged.is_none_or(|at| now >= at + LOG_INTERVAL);
        if is_due {
            *logged = Some(now);
        }
        is_due
    }

    /// The error of a device that takes no more writes.
    pub(crate) fn broken(&self) -> Option<io::Error> {
        let error = self.may_write().err()?;
        Some(io::Error::other(error.to_string()))
    }

    fn may_write(&self) -> Result<(), DeviceError> {
        match self.poisoned.load(Ordering::Acquire) {
            true => Err(DeviceError::Poisoned(self.name.clone())),
            false => Ok(()),
        }
    }

    pub(crate) fn writable_disk(self: &Arc<Self>) -> Result<Disk, DeviceError> {
        self.may_write()?;
        self.disk()
    }
}

/// A device as seen by its threads: an open directory, and shared state. Cheap to clone.
#[derive(Clone)]
pub struct Disk {
    root: Arc<OpenRoot>,
    pub(crate) state: Arc<DeviceState>,
}

impl Disk {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.root.fd.as_fd()
    }

    /// The device's directory, for syncs of names below it.
    pub(crate) fn root(&self) -> &Arc<OwnedFd> {
        &self.root.fd
    }

    pub(crate) fn file_system(&self) -> &Arc<FileSystem> {
        &self.root.file_system
    }

    /// An empty sync set of this device.
    pub(crate) fn sync_set(&self) -> SyncSet {
        SyncSet::on(&self.root.file_system)
    }

    pub fn name(&self) -> &str {
        &self.state.name
    }

    pub fn path(&self) -> &Path {
        &self.state.path
    }

    pub fn config(&self) -> &DevicesConfig {
        &self.state.config
    }

    /// Records that an object was just read or written, and may be in memory
    /// ([`Device::read_cached`]).
    pub fn touch(&self, hash: &ObjectHash) {
        self.state.touched.mark(hash);
    }

    pub(crate) fn machine(&self) -> Option<&dyn Machine> {
        self.state.config.machine.as_deref()
    }

    /// Current time of the monotonic clock.
    fn instant(&self) -> Instant {
        self.machine()
            .map_or_else(Instant::now, |machine| machine.instant())
    }

    /// Current time in seconds since the epoch.
    pub fn now(&self) -> i64 {
        match self.machine() {
            Some(machine) => machine.now(),
            None => machine::wall_clock(),
        }
    }

    /// Fails if the device takes no writes.
    pub(crate) fn may_write(&self) -> Result<(), DeviceError> {
        self.state.may_write()
    }

    /// Refuses all further writes: after a failed fsync the disk's content is unknown.
    pub(crate) fn poison(&self, path: &str, error: &std::io::Error) {
        if !self.state.poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!(
                device = %self.state.name,
                path,
                %error,
                "fsync failed; no more writes until it was mounted again, touched (.readmit) or restarted"
            );
        }
    }

    /// Reserves room if it is not. False if there is none: writes that only add data must be
    /// refused.
    pub(crate) fn keeps_room(&self) -> Result<bool, DiskError> {
        let state = &self.state.room;
        if self.machine().is_some() || state.is_unsupported.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let kept = room::keep_in(self.fd());
        let kept = kept.map_err(|errno| DiskError::from_errno("reserve", self.name(), errno))?;
        state.note(kept);
        Ok(kept != Room::Scarce)
    }

    /// Whether the reserve has been spent; writes that only add data must stop.
    pub(crate) fn has_spent_room(&self) -> bool {
        self.state.room.is_spent.load(Ordering::Relaxed)
    }

    /// Runs work that frees space or must not be lost; if the file system is full, spends the
    /// reserve and retries once.
    pub(crate) fn with_room<T>(
        &self,
        work: impl Fn() -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        match work() {
            Err(DiskError::NoSpace) => {
                self.spend_room();
                work()
            }
            other => other,
        }
    }

    /// Spends the reserve, for work that may use it and is then retried.
    pub(crate) fn spend_room(&self) {
        if self.machine().is_none() {
            self.state.room.is_spent.store(true, Ordering::Relaxed);
            room::spend_in(self.fd());
        }
    }

    /// Mutual exclusion of our own threads on a partition.
    pub(crate) fn partition_mutex(&self, partition_dir: &str) -> MutexGuard<'_, ()> {
        let hash = partition_dir
            .bytes()
            .fold(0usize, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let locks = &self.state.partition_locks;
        locks[hash % locks.len()].lock()
    }
}

#[cfg(test)]
mod tests;
