//! Release of idle threads' free memory to other threads and to the system: allocators keep a
//! thread's freed memory until that thread allocates again. After a burst of requests that was most
//! of the process.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Minimum interval per thread, as a release has a small cost.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

static TIDY: OnceLock<fn()> = OnceLock::new();

/// Sets the allocator's function to release the calling thread's free memory; once, before anything
/// is served.
pub fn tidy_with(tidy: fn()) {
    let _ = TIDY.set(tidy);
}

/// Releases memory; called by idle threads.
pub(crate) fn tidy() {
    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let Some(tidy) = TIDY.get() else { return };
    let now = Instant::now();
    if LAST.get().is_some_and(|last| now - last < TIDY_INTERVAL) {
        return;
    }
    LAST.set(Some(now));
    tidy();
}
