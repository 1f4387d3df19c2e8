//! Directories that this process created and whose names may not be durable yet.
//!
//! The creator of a directory syncs its name with that of its file. A concurrent writer that finds
//! the directory would only sync its own file's name, although the directory's is not durable yet;
//! so would every later writer if the creator failed. This table makes them sync it, too.
//!
//! Directories of other processes are not covered: if several processes serve one device, they rely
//! on the file system's journal to keep names in the order of creation.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};

/// Maximum entries. Those of failed creators stay until another writer uses the directory. Beyond
/// the limit every directory counts as not durable.
const DIRS_MAX: usize = 100_000;

/// Table of one device's directories, each with the number of its creation.
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

/// State of a directory when a file got a name in it whose own name is not durable yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Making {
    number: u64,
    /// Whether no other file got a name in it before.
    pub(crate) is_first: bool,
}

impl MadeDirs {
    /// Records a directory; to be called before it is created, so that a writer that finds the
    /// directory finds the entry.
    pub(crate) fn note(&self, dir: &str) {
        let mut noted = self.lock();
        if noted.is_full || noted.by_dir.len() >= DIRS_MAX {
            noted.is_full = true;
            return noted.by_dir.clear();
        }
        noted.last += 1;
        let number = noted.last;
        let made = Made { number, named: 0 };
        noted.by_dir.insert(dir.to_owned(), made);
    }

    /// Records that a file got a name in the directory. If `Some`, the names of the directory and
    /// of those above it must be synced.
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

    /// Removes a directory in which no file got a name. `remove` returns whether it is gone.
    pub(crate) fn remove_unused(&self, dir: &str, remove: impl FnOnce() -> bool) {
        let number = |noted: &Noted| noted.by_dir.get(dir).map(|made| made.number);
        let before = number(&self.lock());
        if remove() {
            let mut noted = self.lock();
            if number(&noted) == before {
                noted.by_dir.remove(dir);
            }
        }
    }

    /// Records that all names up to the directory's are durable, unless it was created again
    /// meanwhile.
    pub(crate) fn is_durable(&self, dir: &str, making: Making) {
        let mut noted = self.lock();
        if noted.by_dir.get(dir).map(|made| made.number) == Some(making.number) {
            noted.by_dir.remove(dir);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock()
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
        // By a writer that did not find it, just before.
        made.note("a");
        assert!(made.named_in("a").unwrap().is_first);
    }

    #[test]
    fn taken_back_unless_made_again() {
        let made = MadeDirs::default();
        made.note("a");
        made.remove_unused("a", || false);
        assert!(made.named_in("a").is_some());
        made.remove_unused("a", || {
            made.note("a");
            true
        });
        assert!(made.named_in("a").is_some());
        made.remove_unused("a", || true);
        assert_eq!(made.named_in("a"), None);
    }

    #[test]
    fn too_many_are_all_not_durable() {
        let made = MadeDirs::default();
        for number in 0..=DIRS_MAX {
            made.note(&number.to_string());
        }
        assert!(made.named_in("never made").is_some());
    }
}
