//! Directories that this process made and whose names may not be on disk yet.
//!
//! Whoever makes a directory for a file syncs its name with the file's. Another writer that finds it
//! there meanwhile would sync its own file's name in it and be done, before the directory's name is
//! durable; and so would everybody after a maker that failed. They are told here that it is not.
//!
//! What another process made is not known here: servers of one device that are several processes
//! rely on the file system's journal to keep names in the order in which they were made.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Those of makers that failed stay until somebody else writes there. With more than these no
/// directory is trusted any more.
const NOTED_MAX: usize = 100_000;

/// Those of one device, each with the number of its making.
#[derive(Default)]
pub(crate) struct MadeDirs(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    by_dir: HashMap<String, Made>,
    last: u64,
    is_full: bool,
}

struct Made {
    number: u64,
    /// Files that got a name in it since.
    named: u64,
}

/// A directory as it was when a file got a name in it that is not on disk yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Making {
    number: u64,
    /// No other file got a name in it before.
    pub(crate) is_first: bool,
}

impl MadeDirs {
    /// To be called before the directory is made: nobody finds it, and does not find it here.
    pub(crate) fn note(&self, dir: &str) {
        let mut noted = self.lock();
        if noted.is_full || noted.by_dir.len() >= NOTED_MAX {
            noted.is_full = true;
            return noted.by_dir.clear();
        }
        noted.last += 1;
        let number = noted.last;
        let made = Made { number, named: 0 };
        noted.by_dir.insert(dir.to_owned(), made);
    }

    /// A file has got a name in the directory. Some: the directory's own name, and those above it,
    /// have to be synced.
    pub(crate) fn named_in(&self, dir: &str) -> Option<Making> {
        let mut noted = self.lock();
        if noted.is_full {
            let (number, is_first) = (0, false);
            return Some(Making { number, is_first });
        }
        let made = noted.by_dir.get_mut(dir)?;
        made.named += 1;
        Some(Making {
            number: made.number,
            is_first: made.named == 1,
        })
    }

    /// Takes back a directory in which no file got a name. `remove` tells whether it is gone.
    pub(crate) fn take_back(&self, dir: &str, remove: impl FnOnce() -> bool) {
        let number = |noted: &Noted| noted.by_dir.get(dir).map(|made| made.number);
        let before = number(&self.lock());
        if remove() {
            let mut noted = self.lock();
            if number(&noted) == before {
                noted.by_dir.remove(dir);
            }
        }
    }

    /// All names up to the directory's are on disk, unless it was made again meanwhile.
    pub(crate) fn is_durable(&self, dir: &str, making: Making) {
        let mut noted = self.lock();
        if noted.by_dir.get(dir).map(|made| made.number) == Some(making.number) {
            noted.by_dir.remove(dir);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn made_again_it_is_not_durable() {
        let made = MadeDirs::default();
        assert_eq!(made.named_in("a/b"), None);
        made.note("a/b");
        let first = made.named_in("a/b").unwrap();
        made.note("a/b");
        made.is_durable("a/b", first);
        let second = made.named_in("a/b").unwrap();
        made.is_durable("a/b", second);
        assert_eq!(made.named_in("a/b"), None);
    }

    #[test]
    fn only_the_first_name_is_alone() {
        let made = MadeDirs::default();
        made.note("a");
        assert!(made.named_in("a").unwrap().is_first);
        assert!(!made.named_in("a").unwrap().is_first);
        // By somebody who did not find it, just before.
        made.note("a");
        assert!(made.named_in("a").unwrap().is_first);
    }

    #[test]
    fn taken_back_unless_made_again() {
        let made = MadeDirs::default();
        made.note("a");
        made.take_back("a", || false);
        assert!(made.named_in("a").is_some());
        made.take_back("a", || {
            made.note("a");
            true
        });
        assert!(made.named_in("a").is_some());
        made.take_back("a", || true);
        assert_eq!(made.named_in("a"), None);
    }

    #[test]
    fn too_many_are_all_not_durable() {
        let made = MadeDirs::default();
        for number in 0..=NOTED_MAX {
            made.note(&number.to_string());
        }
        assert!(made.named_in("never made").is_some());
    }
}
