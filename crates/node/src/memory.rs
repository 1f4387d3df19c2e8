//! Memory that a thread no longer uses goes back to the others, and to the system, when the thread
//! has nothing to do: allocators keep what each thread freed, and what others freed of it, until
//! that thread asks for more. Between two floods of requests that was most of the process.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// It costs little, but not nothing.
const EVERY: Duration = Duration::from_secs(1);

static TIDY: OnceLock<fn()> = OnceLock::new();

/// How the program's allocator gives back what the calling thread does not use: said once, before
/// anything is served.
pub fn tidy_with(tidy: fn()) {
    let _ = TIDY.set(tidy);
}

/// Called by a thread that has nothing to do.
pub(crate) fn tidy() {
    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let Some(tidy) = TIDY.get() else { return };
    let now = Instant::now();
    if LAST.get().is_some_and(|last| now - last < EVERY) {
        return;
    }
    LAST.set(Some(now));
    tidy();
}
