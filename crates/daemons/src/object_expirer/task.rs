//! Entries of the expirer's queue: `<seconds>-<account>/<container>/<object>` in containers named
//! by seconds too, a hundred for each day (written by `servers/object/updates.rs`).

use std::collections::{BTreeMap, VecDeque};

use cairn_types::Timestamp;
use md5::{Digest, Md5};

/// Content type of entries that are deleted at once, whatever the object's metadata.
pub(super) const ASYNC_DELETE_TYPE: &str = "application/async-deleted";

/// One object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Container of the queue.
    pub(super) queue_container: String,
    /// The entry's name.
    pub(super) entry: String,
    pub(super) delete_at: Timestamp,
    pub(super) account: String,
    pub(super) container: String,
    pub(super) object: String,
    pub(super) is_async: bool,
}

impl Task {
    /// Parses an entry; `None` if it is invalid.
    pub(super) fn parse(queue_container: &str, entry: &str, content_type: &str) -> Option<Task> {
        let (time, target) = entry.split_once('-')?;
        let mut parts = target.splitn(3, '/');
        let mut part = || parts.next().filter(|p| !p.is_empty()).map(str::to_owned);
        Some(Task {
            queue_container: queue_container.to_owned(),
            entry: entry.to_owned(),
            delete_at: Timestamp::parse(time).ok()?,
            account: part()?,
            container: part()?,
            object: part()?,
            is_async: content_type == ASYNC_DELETE_TYPE,
        })
    }

    /// Index of the process that handles it, as in Swift's expirer.
    pub(super) fn process(&self, processes: u64) -> u64 {
        let name = format!("{}/{}", self.queue_container, self.entry);
        let digest: [u8; 16] = Md5::digest(name.as_bytes()).into();
        (u128::from_be_bytes(digest) % u128::from(processes.max(1))) as u64
    }
}

/// Interleaves objects of different containers, so that deletions are spread.
#[derive(Default)]
pub(super) struct Interleaved {
    by_container: BTreeMap<(String, String), VecDeque<Task>>,
    len: usize,
}

impl Interleaved {
    pub(super) fn push(&mut self, task: Task) {
        let key = (task.account.clone(), task.container.clone());
        self.by_container.entry(key).or_default().push_back(task);
        self.len += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes all tasks.
    pub(super) fn take(&mut self) -> Vec<Task> {
        let mut tasks = Vec::with_capacity(self.len);
        while !self.by_container.is_empty() {
            self.by_container.retain(|_, of_container| {
                tasks.extend(of_container.pop_front());
                !of_container.is_empty()
            });
        }
        self.len = 0;
        tasks
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_name_objects() {
        let task = Task::parse("1700000000", "1700000001-AUTH_a/c/o/with/-slashes", "x").unwrap();
        assert_eq!(task.delete_at, Timestamp::from_secs(1_700_000_001));
        assert_eq!((&*task.account, &*task.container), ("AUTH_a", "c"));
        assert_eq!(task.object, "o/with/-slashes");
        assert!(!task.is_async);
        for entry in ["", "1700000001", "x-a/c/o", "1-a/c", "1-a//o", "1-a/c/"] {
            assert_eq!(Task::parse("1", entry, ""), None, "{entry}");
        }
        // Python's MD5 of container and entry, modulo 7 and 5.
        assert_eq!((task.process(7), task.process(5)), (6, 0));
        assert_eq!(task.process(1), 0);
    }

    #[test]
    fn containers_are_interleaved() {
        let mut tasks = Interleaved::default();
        for entry in ["1-a/x/1", "1-a/x/2", "1-a/x/3", "1-a/y/1"] {
            tasks.push(Task::parse("1", entry, "").unwrap());
        }
        assert_eq!(tasks.len(), 4);
        let names: Vec<String> = tasks
            .take()
            .iter()
            .map(|t| format!("{}{}", t.container, t.object))
            .collect();
        assert_eq!(names, ["x1", "y1", "x2", "x3"]);
        assert_eq!(tasks.len(), 0);
    }
}
