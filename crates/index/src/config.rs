//! Limits of an index (threads, queues, open databases), and its clock and random source.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_device::{Machine, Syncs};
use cairn_types::Timestamp;

use crate::metadata::MetadataLimits;
use crate::page_cache;

/// Source of the current time, replaceable by a simulator.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Drops a file's pages from the page cache, so that the next read returns the disk's content.
pub type ReadFromDisk = Arc<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;

#[derive(Clone)]
pub struct IndexConfig {
    /// Folder whose subfolders are the devices.
    pub devices: PathBuf,
    /// Read threads per device, started on demand.
    pub read_threads: usize,
    /// Write threads per device; `None` selects by `exclusive`.
    pub write_threads: Option<usize>,
    /// Maximum queued jobs per lane and device.
    pub queue_jobs_max: usize,
    /// Maximum queued updates per database.
    pub updates_max: usize,
    /// Maximum updates per transaction.
    pub batch_max: usize,
    /// Bytes of entries in a pending file that trigger a merge: about 300 rows, half of Swift's
    /// `PENDING_CAP`. An exclusive database's file is twice as large.
    pub pending_bytes: usize,
    /// Maximum open databases; each has up to nine file descriptors.
    pub open_max: usize,
    /// Idle time after which a database is closed, with its log merged into the one file that other
    /// programs read and copy.
    pub idle_close: Duration,
    /// Timeout for another process's lock on a database.
    pub lock_timeout: Duration,
    /// Whether this process alone opens these databases. They are then in SQLite's WAL mode, which
    /// locks others out while open and has the cheapest commits. Otherwise they are written as
    /// Swift's programs write them, which may read and write them concurrently.
    pub exclusive: bool,
    /// Disables syncs of commits; for speed tests alone.
    pub unsafe_no_sync: bool,
    pub metadata_limits: MetadataLimits,
    /// Called with SQLite's log before an exclusive database that has one is opened.
    pub read_from_disk: ReadFromDisk,
    /// Called with a device that is out of space: releases the space reserved for rows.
    pub make_room: Arc<dyn Fn(&Path) + Send + Sync>,
    /// Simulated machine that replaces threads and syncs. One that runs workers disables closing of
    /// idle databases.
    pub machine: Option<Arc<dyn Machine>>,
    pub clock: Clock,
    /// Returns 128 random bits per call, for database ids and names of temporary files.
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
            read_from_disk: Arc::new(page_cache::read_from_disk),
            machine: None,
            clock: Arc::new(|| {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                Timestamp::from_unix(since.unwrap_or_default())
            }),
            random: Arc::new(rand::random::<u128>),
        }
    }

    /// Write threads per device. A lock held by another program blocks a thread for up to
    /// `lock_timeout`, so shared databases get more. Exclusive ones are never locked by others, and
    /// fewer threads share more syncs.
    pub(crate) fn write_threads(&self) -> usize {
        let usual = if self.exclusive { 2 } else { 8 };
        self.write_threads.unwrap_or(usual)
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The sync functions for this configuration.
    pub(crate) fn syncs(&self) -> Syncs {
        Syncs {
            machine: self.machine.clone(),
            is_unsafe: self.unsafe_no_sync,
        }
    }

    /// Whether a simulator runs the workers.
    pub(crate) fn is_simulated(&self) -> bool {
        let machine = self.machine.as_ref();
        machine.and_then(|machine| machine.employer()).is_some()
    }

    /// A database id: a version 4 UUID, a dash, and the name of the device it was created on.
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
