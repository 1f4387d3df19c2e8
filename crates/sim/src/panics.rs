//! Panics of a seed: lanes and servers catch them, so that a bug of one operation ends that one alone,
//! and a seed in which one happened is wrong all the same.

use std::cell::RefCell;
use std::panic;

thread_local! {
    /// Those of the seed that this thread runs.
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes all panics from now on.
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

/// The panics on this thread since they were taken last.
pub(crate) fn take() -> Vec<String> {
    SEEN.take()
}
