//! How many threads, queues and open databases an index may have; and its clock and dice.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_device::{Machine, Syncs};
use cairn_types::Timestamp;

use crate::held;
use crate::metadata::MetadataLimits;

/// Where "now" comes from: handed in, so that a simulator can own it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Has whoever reads a file next get what is on the disk, and not what the page cache has.
pub type ReadFromDisk = Arc<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;

#[derive(Clone)]
pub struct IndexConfig {
    /// The folder whose sub-folders are devices.
    pub devices: PathBuf,
    /// Threads that read, on each device. They start when there is work.
    pub read_threads: usize,
    /// Threads that write, on each device. `None`: as many as suit who shares the databases.
    pub write_threads: Option<usize>,
    /// Jobs that may wait for each of the two, on each device.
    pub queue_jobs_max: usize,
    /// Updates that may wait for one database.
    pub updates_max: usize,
    /// Updates merged by one transaction.
    pub batch_max: usize,
    /// Bytes of entries in a pending file before they are merged: some 300 rows, half of what
    /// Swift's servers leave pending (`PENDING_CAP`). That of an exclusive database has twice the
    /// room.
    pub pending_bytes: usize,
    /// Databases kept open; each holds up to nine file descriptors.
    pub open_max: usize,
    /// A database nobody used for this long is closed, its log merged into the one file that
    /// other programs read and copy.
    pub idle_close: Duration,
    /// How long to wait for another process's lock on a database.
    pub lock_timeout: Duration,
    /// No other process opens these databases: they may be written in SQLite's WAL mode, which
    /// shuts others out while one is open here, and gives the quickest commits. Without it they
    /// are written as Swift's programs write them, which may read and write them all the while.
    pub exclusive: bool,
    /// Commits are not synced: for tests of speed alone.
    pub unsafe_no_sync: bool,
    pub metadata_limits: MetadataLimits,
    /// Asked for SQLite's log before an exclusive database that has one is opened.
    pub read_from_disk: ReadFromDisk,
    /// Called with a device that has no space left for rows: gives up what was set aside for them.
    pub make_room: Arc<dyn Fn(&Path) + Send + Sync>,
    /// A simulated machine, in place of threads and syncs. One that runs workers closes nothing idle.
    pub machine: Option<Arc<dyn Machine>>,
    pub clock: Clock,
    /// 128 random bits each call: the ids of databases and the names of temporary files.
    pub random: Arc<dyn Fn() -> u128 + Send + Sync>,
}

impl IndexConfig {
    pub fn new(devices: impl Into<PathBuf>) -> Self {
        IndexConfig {
            devices: devices.into(),
            read_threads: 4,
            write_threads: None,
            queue_jobs_max: 1024,
            updates_max: 4096,
            batch_max: 1000,
            pending_bytes: 64 << 10,
            open_max: 128,
            idle_close: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(25),
            exclusive: false,
            unsafe_no_sync: false,
            metadata_limits: MetadataLimits::default(),
            make_room: Arc::new(|_| {}),
            read_from_disk: Arc::new(held::read_from_disk),
            machine: None,
            clock: Arc::new(|| {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                Timestamp::from_unix(since.unwrap_or_default())
            }),
            random: Arc::new(rand::random::<u128>),
        }
    }

    /// Threads that write, on each device. A shared database that another program has locked holds
    /// one up for `lock_timeout`, and others are to go on meanwhile. Nobody locks exclusive ones:
    /// few threads share more syncs.
    pub(crate) fn write_threads(&self) -> usize {
        let usual = if self.exclusive { 2 } else { 8 };
        self.write_threads.unwrap_or(usual)
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// How files are synced here.
    pub(crate) fn syncs(&self) -> Syncs {
        Syncs {
            machine: self.machine.clone(),
            is_unsafe: self.unsafe_no_sync,
        }
    }

    /// Workers are run by a simulator.
    pub(crate) fn is_simulated(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.and_then(|machine| machine.employer()).is_some()
    }

    /// A database's id: a version 4 UUID, a dash, and the device it was made on.
    pub(crate) fn new_db_id(&self, device: &str) -> String {
        let bits = (self.random)() & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        format!(
            "{}-{}-{}-{}-{}-{device}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_version_4_uuids() {
        let mut config = IndexConfig::new("/");
        config.random = Arc::new(|| u128::MAX);
        assert_eq!(
            config.new_db_id("sda"),
            "ffffffff-ffff-4fff-bfff-ffffffffffff-sda"
        );
    }
}
