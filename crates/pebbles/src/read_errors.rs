//! Read errors of a store's volumes: damage only where they last.
//!
//! A place that the disk does not give is asked for again after a while, as diskfile's objects are.
//! Until then a read of it is answered with an error, and an opening or a compaction that needs it
//! waits. Bytes that do not match their checksum are damage at once.

use std::sync::atomic::{AtomicU64, Ordering};

use cairn_disk::Unreadable;
use cairn_types::Timestamp;
use cairn_types::plant::Plant;

/// Those of one store, known as long as its process runs: an opening that fails is tried again.
#[derive(Default)]
pub struct ReadErrors {
    /// By epoch of the volume, and offset in it.
    places: Unreadable<(u64, u64)>,
    count: AtomicU64,
}

impl ReadErrors {
    /// Notes that a place could not be read. True: it could not some time ago either, and is damaged.
    pub(crate) fn has_lasted(&self, epoch: u64, offset: u64, now: Timestamp) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        let now = i64::try_from(now.secs()).unwrap_or(i64::MAX);
        self.places.has_lasted((epoch, offset), now) || Plant::ReadErrorTakenForRot.is_on()
    }

    /// Number of read errors so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
