//! How far a pass is: so many of so many.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counted by a pass, looked at by whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    of: AtomicU64,
}

impl Progress {
    /// A pass begins that is so much work.
    pub(crate) fn begin(&self, of: usize) {
        self.done.store(0, Ordering::Relaxed);
        self.of.store(of as u64, Ordering::Relaxed);
    }

    pub(crate) fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// What is done, and of how much; 0 before that is known.
    pub fn get(&self) -> (u64, u64) {
        (
            self.done.load(Ordering::Relaxed),
            self.of.load(Ordering::Relaxed),
        )
    }
}
