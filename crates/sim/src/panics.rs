//! Panics of a seed: lanes and servers catch them, so that a bug in one operation ends only that
//! one; here any panic makes the seed fail.

use std::cell::RefCell;
use std::panic;

thread_local! {
    /// Panics of the seed that runs on this thread.
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records all panics from now on.
pub(crate) fn watch() {
    panic::set_hook(Box::new(|info| {
        let text = format!("a panic: {info}").replace('\n', " ");
        let _ = SEEN.try_with(|seen| {
            if let Ok(mut seen) = seen.try_borrow_mut() {
                seen.push(text);
            }
        });
    }));
}

/// Takes the panics on this thread since the last call.
pub(crate) fn take() -> Vec<String> {
    SEEN.take()
}
