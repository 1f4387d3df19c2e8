//! Short reads of what lies in memory, done by the caller instead of a device's thread.
//!
//! Handing a read of four kilobytes to another thread and back costs as much as the read. The
//! kernel tells when names, inodes and contents are in memory (`RESOLVE_CACHED`, `RWF_NOWAIT`),
//! but not whether a directory's entries and attributes are. So a caller reads only what this
//! process wrote or read within the last minute, only where the kernel agrees, and not for a while
//! after several reads took longer than memory does. (One may: its thread was put aside.)

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_types::ObjectHash;

use crate::recent::Recent;

/// Objects that are remembered: half a megabyte.
const OBJECTS: usize = 1 << 16;
/// The kernel keeps for longer what was used so lately, unless memory is short.
const LATELY: Duration = Duration::from_secs(60);
/// A read from memory takes far less, a disk's more.
const SLOW: Duration = Duration::from_millis(4);
/// One slow read is forgiven for so many quick ones.
const QUICK_FOR_SLOW: u32 = 50;
const SLOW_MOST: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// Which objects were touched lately, and whether the caller's own reads are worth it.
pub(crate) struct Touched {
    objects: Recent<ObjectHash>,
    started: Instant,
    /// Quick reads that are still to come before the slow ones are forgiven.
    debt: AtomicU32,
    /// Until then callers read nothing: milliseconds after `started`.
    paused_until: AtomicU64,
    /// The kernel or the file system cannot tell what is in memory.
    unsupported: AtomicBool,
}

impl Touched {
    pub(crate) fn new() -> Self {
        Touched {
            objects: Recent::new(OBJECTS),
            started: Instant::now(),
            debt: AtomicU32::new(0),
            paused_until: AtomicU64::new(0),
            unsupported: AtomicBool::new(false),
        }
    }

    pub(crate) fn mark(&self, hash: &ObjectHash) {
        self.objects.insert(hash);
    }

    /// Whether a caller may try to read it.
    pub(crate) fn may_read(&self, hash: &ObjectHash) -> bool {
        !self.unsupported.load(Ordering::Relaxed)
            && self.objects.is_fresh(hash, LATELY)
            && self.milliseconds() >= self.paused_until.load(Ordering::Relaxed)
    }

    /// To be told how long a caller's read took.
    pub(crate) fn took(&self, time: Duration) {
        let debt = self.debt.load(Ordering::Relaxed);
        if time <= SLOW {
            if debt > 0 {
                self.debt.store(debt - 1, Ordering::Relaxed);
            }
            return;
        }
        if debt < QUICK_FOR_SLOW * (SLOW_MOST - 1) {
            self.debt.store(debt + QUICK_FOR_SLOW, Ordering::Relaxed);
        } else {
            self.debt.store(0, Ordering::Relaxed);
            let until = self.milliseconds() + PAUSE.as_millis() as u64;
            self.paused_until.store(until, Ordering::Relaxed);
        }
    }

    /// No caller need try again.
    pub(crate) fn give_up(&self) {
        self.unsupported.store(true, Ordering::Relaxed);
    }

    fn milliseconds(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_touched_and_is_quick() {
        let touched = Touched::new();
        let (one, other) = (ObjectHash([7; 16]), ObjectHash([8; 16]));
        assert!(!touched.may_read(&one) && !touched.may_read(&ObjectHash([0; 16])));
        touched.mark(&one);
        assert!(touched.may_read(&one) && !touched.may_read(&other));
        touched.took(SLOW / 2);
        assert!(touched.may_read(&one));
        for _ in 0..20 {
            touched.took(SLOW * 2);
            (0..QUICK_FOR_SLOW).for_each(|_| touched.took(SLOW / 2));
        }
        assert!(touched.may_read(&one), "now and then is no sign");
        (0..SLOW_MOST).for_each(|_| touched.took(SLOW * 2));
        assert!(!touched.may_read(&one));
        touched.paused_until.store(0, Ordering::Relaxed);
        touched.give_up();
        assert!(!touched.may_read(&one));
    }
}
