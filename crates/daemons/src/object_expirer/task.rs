//! Entries of the expirer's queue: `<seconds>-<account>/<container>/<object>` in containers named
//! by seconds too, a hundred of them for each day (`servers/object/updates.rs` puts them there).

use std::collections::{BTreeMap, VecDeque};

use cairn_types::Timestamp;
use md5::{Digest, Md5};

/// The content type of entries that are to be deleted at once, whatever the object says.
pub(super) const ASYNC_DELETE_TYPE: &str = "application/async-deleted";

/// One object to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Of the queue.
    pub(super) queue_container: String,
    /// The entry's own name.
    pub(super) entry: String,
    pub(super) delete_at: Timestamp,
    pub(super) account: String,
    pub(super) container: String,
    pub(super) object: String,
    pub(super) is_async: bool,
}

impl Task {
    /// `None`: no entry of this queue looks like that.
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

    /// Which of so many processes is to do it: the same in Swift's expirer.
    pub(super) fn process(&self, processes: u64) -> u64 {
        let name = format!("{}/{}", self.queue_container, self.entry);
        let digest: [u8; 16] = Md5::digest(name.as_bytes()).into();
        (u128::from_be_bytes(digest) % u128::from(processes.max(1))) as u64
    }
}

/// Takes the containers of objects in turn, so that none of them gets all deletes at once.
#[derive(Default)]
pub(super) struct InTurn {
    by_container: BTreeMap<(String, String), VecDeque<Task>>,
    len: usize,
}

impl InTurn {
    pub(super) fn push(&mut self, task: Task) {
        let key = (task.account.clone(), task.container.clone());
        self.by_container.entry(key).or_default().push_back(task);
        self.len += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// All of them, and none is left.
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
        // The MD5 of container and entry as Python has it, modulo 7 and 5.
        assert_eq!((task.process(7), task.process(5)), (6, 0));
        assert_eq!(task.process(1), 0);
    }

    #[test]
    fn containers_take_turns() {
        let mut turns = InTurn::default();
        for entry in ["1-a/x/1", "1-a/x/2", "1-a/x/3", "1-a/y/1"] {
            turns.push(Task::parse("1", entry, "").unwrap());
        }
        assert_eq!(turns.len(), 4);
        let names: Vec<String> = turns
            .take()
            .iter()
            .map(|t| format!("{}{}", t.container, t.object))
            .collect();
        assert_eq!(names, ["x1", "y1", "x2", "x3"]);
        assert_eq!(turns.len(), 0);
    }
}
