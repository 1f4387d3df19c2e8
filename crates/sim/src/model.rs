//! What was asked for and what was acknowledged, and which states of the store that allows.
//!
//! The newest timestamp wins, in whatever order requests arrive. A write that was acknowledged has
//! happened; one that failed, or was not answered, may have happened, now or later.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cairn_types::Timestamp;

use crate::shared::lock;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put { etag: String, size: usize },
    Post { mark: String },
    Delete,
}

#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) at: Timestamp,
    pub(crate) change: Change,
    pub(crate) is_acknowledged: bool,
}

/// A container and an object.
pub(crate) type Name = (String, String);

/// An object as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) etag: String,
    pub(crate) mark: Option<String>,
}

#[derive(Default)]
pub(crate) struct Model {
    objects: Mutex<BTreeMap<Name, Vec<Write>>>,
}

impl Model {
    /// Notes a write that is about to be asked for.
    pub(crate) fn begin(&self, name: &Name, at: Timestamp, change: Change) {
        let write = Write {
            at,
            change,
            is_acknowledged: false,
        };
        let mut objects = lock(&self.objects);
        let writes = objects.entry(name.clone()).or_default();
        let place = writes.partition_point(|w| w.at < at);
        writes.insert(place, write);
    }

    /// It was answered with success.
    pub(crate) fn acknowledge(&self, name: &Name, at: Timestamp) {
        let mut objects = lock(&self.objects);
        let writes = objects.entry(name.clone()).or_default();
        if let Some(write) = writes.iter_mut().find(|w| w.at == at) {
            write.is_acknowledged = true;
        }
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        lock(&self.objects).keys().cloned().collect()
    }

    pub(crate) fn writes(&self, name: &Name) -> Vec<Write> {
        lock(&self.objects).get(name).cloned().unwrap_or_default()
    }

    /// Was there ever such content?
    pub(crate) fn knows(&self, name: &Name, etag: &str) -> bool {
        self.writes(name)
            .iter()
            .any(|w| matches!(&w.change, Change::Put { etag: own, .. } if own == etag))
    }
}

/// The states that these writes, in the order of their times, allow.
pub(crate) fn allowed(writes: &[Write]) -> Vec<Option<Seen>> {
    let is_whole = |w: &&Write| !matches!(w.change, Change::Post { .. });
    let certain = writes
        .iter()
        .rposition(|w| w.is_acknowledged && is_whole(&w));
    let mut states = Vec::new();
    match certain {
        None => states.push(None),
        Some(place) => states.extend(states_from(writes, place)),
    }
    for (place, _) in writes
        .iter()
        .enumerate()
        .skip(certain.map_or(0, |c| c + 1))
        .filter(|(_, w)| is_whole(w))
    {
        states.extend(states_from(writes, place));
    }
    states
}

/// Those where the write at `place` is the newest that counts.
fn states_from(writes: &[Write], place: usize) -> Vec<Option<Seen>> {
    let Change::Put { etag, .. } = &writes[place].change else {
        return vec![None];
    };
    let posts: Vec<(&str, bool)> = writes[place + 1..]
        .iter()
        .filter_map(|w| match &w.change {
            Change::Post { mark } => Some((mark.as_str(), w.is_acknowledged)),
            _ => None,
        })
        .collect();
    let certain = posts.iter().rposition(|(_, acknowledged)| *acknowledged);
    // What was posted to an object that was replaced since may be known of the new one or not.
    let is_last = !writes[place + 1..]
        .iter()
        .any(|w| matches!(w.change, Change::Put { .. } | Change::Delete));
    let first = certain.filter(|_| is_last);
    let mut marks: Vec<Option<&str>> = Vec::new();
    if first.is_none() {
        marks.push(None);
    }
    marks.extend(
        posts[first.unwrap_or(0)..]
            .iter()
            .map(|(mark, _)| Some(*mark)),
    );
    marks
        .into_iter()
        .map(|mark| {
            Some(Seen {
                etag: etag.clone(),
                mark: mark.map(str::to_owned),
            })
        })
        .collect()
}

/// Does the listing have to show just what the object is? Only where nothing is uncertain.
pub(crate) fn is_certain(writes: &[Write]) -> bool {
    let whole = |w: &&Write| !matches!(w.change, Change::Post { .. });
    writes
        .iter()
        .rev()
        .find(whole)
        .is_none_or(|newest| newest.is_acknowledged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, change: Change, is_acknowledged: bool) -> Write {
        Write {
            at: Timestamp::from_secs(at),
            change,
            is_acknowledged,
        }
    }

    fn put(etag: &str) -> Change {
        Change::Put {
            etag: etag.into(),
            size: 1,
        }
    }

    fn seen(etag: &str, mark: Option<&str>) -> Option<Seen> {
        Some(Seen {
            etag: etag.into(),
            mark: mark.map(str::to_owned),
        })
    }

    #[test]
    fn what_was_acknowledged_stays() {
        let mut writes = vec![write(1, put("a"), true)];
        assert_eq!(allowed(&writes), [seen("a", None)]);
        writes.push(write(2, put("b"), false));
        assert_eq!(allowed(&writes), [seen("a", None), seen("b", None)]);
        assert!(!is_certain(&writes));
        writes.push(write(3, Change::Delete, true));
        assert_eq!(allowed(&writes), [None]);
        writes.push(write(4, Change::Delete, false));
        assert_eq!(allowed(&writes), [None, None]);
    }

    #[test]
    fn posts_are_of_the_newest_content() {
        let post = |mark: &str| Change::Post { mark: mark.into() };
        let mut writes = vec![write(1, put("a"), true), write(2, post("x"), false)];
        assert_eq!(allowed(&writes), [seen("a", None), seen("a", Some("x"))]);
        writes.push(write(3, post("y"), true));
        assert_eq!(allowed(&writes), [seen("a", Some("y"))]);
    }
}
