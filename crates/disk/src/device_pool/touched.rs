//! Gate for inline reads: short reads of cached objects on the calling thread instead of a device's
//! thread.
//!
//! Handing a 4 KiB read to another thread and back costs as much as the read. The kernel reports
//! whether names, inodes and contents are cached (`RESOLVE_CACHED`, `RWF_NOWAIT`), but not whether
//! a directory's entries and attributes are. So a caller reads inline only an object that this
//! process read or wrote within the last minute, only where the kernel agrees, and not for a while
//! after several slow reads. (A single one is tolerated: its thread may have been descheduled.)

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_types::ObjectHash;
use cairn_types::dilation::dilated;
use cairn_types::heuristic::Heuristic;

use super::{Device, Disk};
use crate::error::DiskError;
use crate::hot::EventTimes;

/// Capacity of the table of recent objects: half a megabyte.
const RECENT_OBJECTS_MAX: usize = 1 << 16;
/// Age limit of a recent object. Unless memory is short, the kernel caches it for longer.
const RECENT_AGE_MAX: Duration = Duration::from_secs(60);
/// Latency above which a read did not come from memory.
const SLOW_READ_LATENCY: Duration = Duration::from_millis(4);
/// Quick reads that offset one slow read.
const QUICK_READS_PER_SLOW: u32 = 50;
const SLOW_READS_MAX: u32 = 4;
const PAUSE_DURATION: Duration = Duration::from_secs(1);

/// Recently used objects, and whether inline reads currently pay off.
pub(crate) struct InlineReadGate {
    objects: EventTimes<ObjectHash>,
    started: Instant,
    /// Quick reads still needed to offset the slow ones.
    quick_reads_due: AtomicU32,
    /// End of the pause of inline reads, in milliseconds after `started`.
    paused_until: AtomicU64,
    /// Whether the kernel or the file system cannot report what is cached.
    unsupported: AtomicBool,
}

impl InlineReadGate {
    pub(crate) fn new() -> Self {
        InlineReadGate {
            objects: EventTimes::new(RECENT_OBJECTS_MAX),
            started: Instant::now(),
            quick_reads_due: AtomicU32::new(0),
            paused_until: AtomicU64::new(0),
            unsupported: AtomicBool::new(false),
        }
    }

    pub(crate) fn mark(&self, hash: &ObjectHash) {
        self.objects.insert(hash);
    }

    /// Whether a caller may try to read the object inline.
    pub(crate) fn may_read(&self, hash: &ObjectHash) -> bool {
        !self.unsupported.load(Ordering::Relaxed)
            && !Heuristic::InlineRead.is_off()
            && self.objects.is_fresh(hash, RECENT_AGE_MAX)
            && self.milliseconds() >= self.paused_until.load(Ordering::Relaxed)
    }

    /// Records the latency of an inline read.
    pub(crate) fn record_latency(&self, time: Duration) {
        let quick_reads_due = self.quick_reads_due.load(Ordering::Relaxed);
        if time <= dilated(SLOW_READ_LATENCY) {
            if quick_reads_due > 0 {
                self.quick_reads_due
                    .store(quick_reads_due - 1, Ordering::Relaxed);
            }
            return;
        }
        if quick_reads_due < QUICK_READS_PER_SLOW * (SLOW_READS_MAX - 1) {
            self.quick_reads_due
                .store(quick_reads_due + QUICK_READS_PER_SLOW, Ordering::Relaxed);
        } else {
            self.quick_reads_due.store(0, Ordering::Relaxed);
            let until = self.milliseconds() + dilated(PAUSE_DURATION).as_millis() as u64;
            self.paused_until.store(until, Ordering::Relaxed);
        }
    }

    /// Disables inline reads for good.
    pub(crate) fn disable(&self) {
        self.unsupported.store(true, Ordering::Relaxed);
    }

    fn milliseconds(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

impl Device {
    /// Runs `work` on the calling thread if the object is expected to be in memory. `None` if it is not: use
    /// [`Device::read`].
    ///
    /// # Errors
    /// Those of `work`. A device that cannot be opened gives `None`.
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
        touched.record_latency(disk.instant().saturating_duration_since(begun));
        self.noted(read)
    }

    /// Runs `work`, which never waits for the disk, on the calling thread, whatever was used lately.
    ///
    /// # Errors
    /// Those of `work`. A device that cannot be opened gives `None`.
    pub fn read_indexed<T>(
        &self,
        work: impl FnOnce(&Disk) -> Option<Result<T, DiskError>>,
    ) -> Option<Result<T, DiskError>> {
        let disk = self.state.disk().ok()?;
        self.noted(work(&disk))
    }

    fn noted<T>(&self, read: Option<Result<T, DiskError>>) -> Option<Result<T, DiskError>> {
        if let Some(Err(error)) = &read {
            self.state.note(error);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_touched_and_is_quick() {
        let touched = InlineReadGate::new();
        let (one, other) = (ObjectHash([7; 16]), ObjectHash([8; 16]));
        assert!(!touched.may_read(&one) && !touched.may_read(&ObjectHash([0; 16])));
        touched.mark(&one);
        assert!(touched.may_read(&one) && !touched.may_read(&other));
        touched.record_latency(SLOW_READ_LATENCY / 2);
        assert!(touched.may_read(&one));
        for _ in 0..20 {
            touched.record_latency(SLOW_READ_LATENCY * 2);
            (0..QUICK_READS_PER_SLOW).for_each(|_| touched.record_latency(SLOW_READ_LATENCY / 2));
        }
        assert!(touched.may_read(&one), "now and then is no sign");
        (0..SLOW_READS_MAX).for_each(|_| touched.record_latency(SLOW_READ_LATENCY * 2));
        assert!(!touched.may_read(&one));
        touched.paused_until.store(0, Ordering::Relaxed);
        touched.disable();
        assert!(!touched.may_read(&one));
    }
}
