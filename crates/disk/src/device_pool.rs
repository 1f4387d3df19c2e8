//! Devices: a directory each, with worker threads of its own and bounded queues before them, so
//! that a slow disk slows only itself.
//!
//! A device has three lanes (`cairn_device`). Small durable writes go through the commit lane, many at a
//! time. Other writers wait for the disk most of their time, so there are many write
//! threads; they must not keep readers waiting, so reads have their own. Threads start when there
//! is work for them and end when there was none for as long as it takes to close an idle device. A
//! full lane refuses at once.
//!
//! Background work (replication, audits) asks for [`Device::background`] and then works on the same
//! lanes behind clients, with as much of the device as they leave (`cairn_device::Share`).

mod caretaker;
mod config;
mod root;
pub(crate) mod touched;

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use cairn_device::BackgroundShare;
use cairn_device::{
    Class, CommitLane, FileSystem, Host, JobLane, Kind, LaneConfig, Refused, Share, SyncSet,
};
use cairn_types::ObjectHash;
use futures_channel::oneshot;

use crate::error::{DeviceError, DiskError};
use crate::machine::{self, Machine};
use crate::made_dirs::MadeDirs;
use crate::recent::{FileIdentity, Recent};
use crate::room::{self, DeviceRoom, Room};
use crate::steps::{self, Step};
use crate::unreadable::Unreadable;
use crate::verified::Verified;
use caretaker::Readmission;
pub use config::{DevicesConfig, FallocateReserve};
use root::{OpenRoot, Root};
use touched::Touched;

/// Files of a device known to match their checksums: a megabyte.
const VERIFIED_ENTRIES: usize = 128 << 10;
/// Durable operations taken at once: enough to make a sync cheap, not so many that the first waits long.
const BATCH_OPERATIONS: usize = 64;
/// From one line about a device that cannot read its directories to the next.
const LOG_EVERY: Duration = Duration::from_secs(60);
const LARGE_READS_ENTRIES: usize = 4 << 10;

/// All devices under one directory; each is opened when it is first asked for.
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

    /// The device of that name. One that was never seen and is not there is `Unmounted`.
    pub fn get(&self, name: &str) -> Result<Arc<Device>, DeviceError> {
        let known = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = known.get(name) {
            return Ok(device.clone());
        }
        drop(known);
        // Names come from the network: threads are only made for a directory that is there.
        if !is_device_name(name) || !self.config.root.join(name).is_dir() {
            return Err(DeviceError::Unmounted(name.to_owned()));
        }
        // It looks at the disk, which may hang: not under the lock. Threads start with the first work.
        let new = Arc::new(Device::new(name, self.config.clone()));
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        Ok(devices.entry(name.to_owned()).or_insert(new).clone())
    }

    /// Those that have been asked for, by name.
    pub fn known(&self) -> Vec<Arc<Device>> {
        let known = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        let mut known: Vec<_> = known.values().cloned().collect();
        known.sort_by(|a, b| a.name().cmp(b.name()));
        known
    }

    /// The directories under the root that could be devices, sorted.
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

    /// Finishes what is queued, refuses the rest, and joins all threads.
    pub fn shutdown(&self) {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = devices.drain().map(|(_, device)| device).collect();
        drop(devices);
        for device in all {
            device.shutdown();
        }
    }
}

/// Names that need no quoting in a URL, and are no way out of the directory.
fn is_device_name(name: &str) -> bool {
    !name.is_empty()
        && !name.bytes().all(|b| b == b'.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_.-~".contains(&b))
}

/// One device and its threads, as clients' work or background work has it.
pub struct Device {
    class: Class,
    lanes: Arc<Lanes>,
    pub(crate) state: Arc<DeviceState>,
}

/// The queues and threads of one device.
struct Lanes {
    reads: Arc<JobLane>,
    writes: Arc<JobLane>,
    /// Durable operations in steps, many at a time.
    commits: Arc<CommitLane<CommitHost>>,
    share: Arc<Share>,
}

/// The device as its commit lane opens it, once for each batch.
struct CommitHost(Arc<DeviceState>);

impl Host for CommitHost {
    type Ground = Disk;
    type Error = DeviceError;

    fn begin(&self) -> Result<Disk, DeviceError> {
        self.0.writable_disk()
    }
}

/// What the threads of a device share.
pub(crate) struct DeviceState {
    name: String,
    path: PathBuf,
    pub(crate) config: Arc<DevicesConfig>,
    poisoned: AtomicBool,
    /// How near it is to be taken into service again after it failed.
    readmission: Readmission,
    /// When an error of the device was logged last.
    logged: Mutex<Option<Instant>>,
    /// The device's directory, opened, and which one it was.
    root: Mutex<Root>,
    /// `O_TMPFILE` works here; false after it was refused once.
    pub(crate) use_tmpfile: AtomicBool,
    pub(crate) use_direct_io: AtomicBool,
    /// Locks among our own threads, taken before a partition's lock file.
    partition_locks: [Mutex<()>; 32],
    pub(crate) verified: Verified,
    /// Where in large content somebody began to read.
    pub(crate) large_reads: Recent<(FileIdentity, u64)>,
    pub(crate) touched: Touched,
    pub(crate) made_dirs: MadeDirs,
    pub(crate) unreadable: Unreadable,
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
            batch_max: BATCH_OPERATIONS,
            machine: config.machine.clone(),
            share: share.clone(),
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
            large_reads: Recent::new(LARGE_READS_ENTRIES),
            touched: Touched::new(),
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

    /// The same device for background work: what is asked of it there waits until clients' work
    /// does not, a tenth of a second at most.
    pub fn background(&self) -> Arc<Device> {
        Arc::new(Device {
            class: Class::Background,
            lanes: self.lanes.clone(),
            state: self.state.clone(),
        })
    }

    /// What background work may take of the device now, and has done.
    pub fn background_share(&self) -> BackgroundShare {
        self.lanes.share.status(self.lanes.commits.now())
    }

    /// Runs `work` on a read thread. It is queued at once, not when the future is polled, and
    /// runs to its end even where the future is dropped.
    pub fn read<T, F>(&self, work: F) -> Run<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk) -> Result<T, DiskError> + Send + 'static,
    {
        self.submit(&self.lanes.reads, false, work)
    }

    /// Runs `work` here and now, for an object of which all that is to be read may be expected in
    /// memory (`touched.rs`). `None` where it is not: ask [`Device::read`].
    pub fn read_cached<T>(
        &self,
        hash: &ObjectHash,
        work: impl FnOnce(&Disk) -> Option<Result<T, DiskError>>,
    ) -> Option<Result<T, DiskError>> {
        let touched = &self.state.touched;
        if !touched.may_read(hash) {
            return None;
        }
        let disk = self.state.disk().ok()?;
        let begun = disk.instant();
        let read = work(&disk);
        touched.took(disk.instant().saturating_duration_since(begun));
        if let Some(Err(error)) = &read {
            self.state.note(error);
        }
        read
    }

    /// Runs `work` on a write thread; refused where the device is poisoned.
    pub fn write<T, F>(&self, work: F) -> Run<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk) -> Result<T, DiskError> + Send + 'static,
    {
        self.submit(&self.lanes.writes, true, work)
    }

    /// The disk itself, for callers on a thread of their own; checked to be mounted.
    pub fn disk(&self) -> Result<Disk, DeviceError> {
        self.state.disk()
    }

    /// Runs a durable operation in steps, together with those of others (`steps.rs`); refused where
    /// the device is poisoned. It is queued at once and runs to its end even where the future is
    /// dropped.
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
                Class::Background => state.disk_for_now(),
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

    /// Finishes what is queued and joins the threads.
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

/// The result of an operation on its way from a device's thread.
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
    /// Takes the device out of service where its file system is damaged, and logs errors of the
    /// device: once, or once a minute, as every request may meet them.
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
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged.is_none_or(|at| now >= at + LOG_EVERY);
        if is_due {
            *logged = Some(now);
        }
        is_due
    }

    pub(crate) fn writable_disk(self: &Arc<Self>) -> Result<Disk, DeviceError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(DeviceError::Poisoned(self.name.clone()));
        }
        self.disk()
    }
}

/// A device as its threads see it: an open directory, and what they share. Cheap to clone.
#[derive(Clone)]
pub struct Disk {
    root: Arc<OpenRoot>,
    pub(crate) state: Arc<DeviceState>,
}

impl Disk {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.root.fd.as_fd()
    }

    /// The device's directory, for a sync of names in it and below it.
    pub(crate) fn root(&self) -> &Arc<OwnedFd> {
        &self.root.fd
    }

    pub(crate) fn file_system(&self) -> &Arc<FileSystem> {
        &self.root.file_system
    }

    /// An empty set of things to be synced on this device.
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

    /// Notes that an object's bytes were just read or written, and so may be in memory
    /// ([`Device::read_cached`]).
    pub fn touch(&self, hash: &ObjectHash) {
        self.state.touched.mark(hash);
    }

    pub(crate) fn machine(&self) -> Option<&dyn Machine> {
        self.state.config.machine.as_deref()
    }

    /// This moment, by the clock that durations are measured by.
    fn instant(&self) -> Instant {
        self.machine()
            .map_or_else(Instant::now, |machine| machine.instant())
    }

    /// Seconds since the epoch.
    pub fn now(&self) -> i64 {
        match self.machine() {
            Some(machine) => machine.now(),
            None => machine::wall_clock(),
        }
    }

    /// Refused where the device takes no more writes.
    pub(crate) fn may_write(&self) -> Result<(), DeviceError> {
        match self.state.poisoned.load(Ordering::Acquire) {
            true => Err(DeviceError::Poisoned(self.name().to_owned())),
            false => Ok(()),
        }
    }

    /// Refuses all further writes: after a failed fsync nobody knows what is on the disk.
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

    /// Sees to it that room is set aside. False: there is none, and what only adds is to be refused.
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

    /// Room was given up here: what only adds must stop.
    pub(crate) fn has_spent_room(&self) -> bool {
        self.state.room.is_spent.load(Ordering::Relaxed)
    }

    /// Runs what frees space or must not be lost: once more with the room set aside, where the file
    /// system is full.
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

    /// Gives up the room set aside, for something that may use it and is then tried once more.
    pub(crate) fn spend_room(&self) {
        if self.machine().is_none() {
            self.state.room.is_spent.store(true, Ordering::Relaxed);
            room::spend_in(self.fd());
        }
    }

    /// Serializes our own threads on a partition.
    pub(crate) fn partition_mutex(&self, partition_dir: &str) -> MutexGuard<'_, ()> {
        let hash = partition_dir
            .bytes()
            .fold(0usize, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let locks = &self.state.partition_locks;
        locks[hash % locks.len()]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
