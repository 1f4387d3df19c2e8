//! Waiting for another process that is about to let go of a device's volumes, as at a reload.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A process that ends lets go of volumes within about a second of its last request, and one that has
/// nothing to do after `idle_close`, five seconds.
const WAIT_MAX: Duration = Duration::from_secs(7);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// After a wait in vain nobody waits for so long: the other process means to keep them.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// Whether it makes sense to wait.
#[derive(Default)]
pub(super) struct Patience(Mutex<Option<Instant>>);

impl Patience {
    /// Calls `lock` until another process no longer has it, or for [`WAIT_MAX`].
    pub(super) fn wait(&self, lock: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let begun = Instant::now();
        let has_given_up = self.0.lock().is_some_and(|at| at.elapsed() < GIVEN_UP);
        loop {
            match lock() {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    if has_given_up {
                        return Err(error);
                    }
                    if begun.elapsed() >= WAIT_MAX {
                        *self.0.lock() = Some(Instant::now());
                        return Err(error);
                    }
                }
                ended => {
                    *self.0.lock() = None;
                    return ended;
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn busy() -> io::Result<()> {
        Err(ErrorKind::ResourceBusy.into())
    }

    #[test]
    fn what_is_let_go_of_is_waited_for() {
        let (patience, calls) = (Patience::default(), Cell::new(0));
        let lock = || {
            calls.set(calls.get() + 1);
            match calls.get() {
                ..4 => busy(),
                _ => Ok(()),
            }
        };
        patience.wait(lock).unwrap();
        assert_eq!(calls.get(), 4);
    }

    #[test]
    fn what_is_kept_is_waited_for_once() {
        let (patience, calls) = (Patience::default(), Cell::new(0));
        let lock = || {
            calls.set(calls.get() + 1);
            busy()
        };
        patience.wait(lock).unwrap_err();
        assert!(calls.replace(0) > 1);
        patience.wait(lock).unwrap_err();
        assert_eq!(calls.get(), 1);
        // It was let go of in the end: the next process may be a passing one.
        patience.wait(|| Ok(())).unwrap();
        assert!(patience.0.lock().is_none());
    }

    #[test]
    fn other_errors_are_not_waited_for() {
        let denied = || Err(ErrorKind::PermissionDenied.into());
        let error = Patience::default().wait(denied).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}
