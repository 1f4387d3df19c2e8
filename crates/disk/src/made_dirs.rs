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
    by_dir: HashMap<String, u64>,
    last: u64,
    is_full: bool,
}

/// A directory as it was when somebody asked whether its name is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Making(u64);

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
        noted.by_dir.insert(dir.to_owned(), number);
    }

    /// Some: its name, and those above it, have to be synced.
    pub(crate) fn not_durable(&self, dir: &str) -> Option<Making> {
        let noted = self.lock();
        match noted.is_full {
            true => Some(Making(0)),
            false => noted.by_dir.get(dir).map(|number| Making(*number)),
        }
    }

    /// All names up to the directory's are on disk, unless it was made again meanwhile.
    pub(crate) fn is_durable(&self, dir: &str, making: Making) {
        let mut noted = self.lock();
        if noted.by_dir.get(dir) == Some(&making.0) {
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
        assert_eq!(made.not_durable("a/b"), None);
        made.note("a/b");
        let first = made.not_durable("a/b").unwrap();
        made.note("a/b");
        made.is_durable("a/b", first);
        let second = made.not_durable("a/b").unwrap();
        made.is_durable("a/b", second);
        assert_eq!(made.not_durable("a/b"), None);
    }

    #[test]
    fn too_many_are_all_not_durable() {
        let made = MadeDirs::default();
        for number in 0..=NOTED_MAX {
            made.note(&number.to_string());
        }
        assert!(made.not_durable("never made").is_some());
    }
}
