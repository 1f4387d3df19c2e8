//! Model of the store: the writes requested and acknowledged, and the states that these allow.
//!
//! The newest timestamp wins, in any order of arrival. An acknowledged write has happened; one that
//! failed, or was not answered, may have happened, now or later.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_types::Timestamp;

use parking_lot::Mutex;

use crate::swaps::Swaps;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put {
        etag: String,
        size: usize,
        delete_at: Option<u64>,
    },
    Post {
        mark: String,
        delete_at: Option<u64>,
    },
    Delete,
}

impl Change {
    /// Expiry time in seconds.
    pub(crate) fn delete_at(&self) -> Option<u64> {
        match self {
            Change::Put { delete_at, .. } | Change::Post { delete_at, .. } => *delete_at,
            Change::Delete => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) at: Timestamp,
    pub(crate) change: Change,
    /// Time of its acknowledgement, by the cluster's clock.
    pub(crate) acknowledged: Option<Timestamp>,
}

impl Write {
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acknowledged.is_some()
    }
}

/// A container and an object.
pub(crate) type Name = (String, String);

/// An object's state as seen by a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) etag: String,
    pub(crate) mark: Option<String>,
    /// Expiry time in seconds.
    pub(crate) delete_at: Option<u64>,
}

/// The state at `now`: none if it has expired.
pub(crate) fn by(now: Timestamp, seen: Option<Seen>) -> Option<Seen> {
    seen.filter(|seen| seen.delete_at.is_none_or(|at| at > now.secs()))
}

/// Requested writes, by name.
#[derive(Default)]
pub(crate) struct Histories(Mutex<BTreeMap<Name, Vec<Write>>>);

impl Histories {
    /// Records a write before its request.
    pub(crate) fn begin(&self, name: &Name, at: Timestamp, change: Change) {
        let write = Write {
            at,
            change,
            acknowledged: None,
        };
        let mut all = self.0.lock();
        let writes = all.entry(name.clone()).or_default();
        let index = writes.partition_point(|w| w.at < at);
        writes.insert(index, write);
    }

    /// Records an acknowledgement at `now`.
    pub(crate) fn acknowledge(&self, name: &Name, at: Timestamp, now: Timestamp) {
        let mut all = self.0.lock();
        let writes = all.entry(name.clone()).or_default();
        if let Some(write) = writes.iter_mut().find(|w| w.at == at) {
            write.acknowledged = Some(now);
        }
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        self.0.lock().keys().cloned().collect()
    }

    pub(crate) fn writes(&self, name: &Name) -> Vec<Write> {
        self.0.lock().get(name).cloned().unwrap_or_default()
    }
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) objects: Histories,
    /// The transient container; its ETag is the mark it was created with.
    pub(crate) container: Histories,
    /// Content sent, by ETag.
    pub(crate) contents: Mutex<BTreeMap<String, Bytes>>,
    /// Serialises its creations and deletions, whose timestamps are the proxies' own.
    pub(crate) one_by_one: tokio::sync::Mutex<()>,
    /// Conditional writes.
    pub(crate) swaps: Arc<Swaps>,
}

impl Model {
    /// Whether this content was ever sent.
    pub(crate) fn knows(&self, name: &Name, etag: &str) -> bool {
        self.objects
            .writes(name)
            .iter()
            .any(|w| matches!(&w.change, Change::Put { etag: own, .. } if own == etag))
    }
}

/// States that these writes, in the order of their timestamps, allow at `now`. No object expires
/// just then, as clocks differ. `is_replaced` says whether a disk was replaced.
pub(crate) fn allowed(writes: &[Write], now: Timestamp, is_replaced: bool) -> Vec<Option<Seen>> {
    let is_whole = |w: &&Write| !matches!(w.change, Change::Post { .. });
    let certain = writes
        .iter()
        .rposition(|w| w.is_acknowledged() && is_whole(&w));
    let mut states = Vec::new();
    match certain {
        None => states.push(None),
        Some(index) => states.extend(states_from(writes, index, now, is_replaced)),
    }
    for (index, _) in writes
        .iter()
        .enumerate()
        .skip(certain.map_or(0, |c| c + 1))
        .filter(|(_, w)| is_whole(w))
    {
        states.extend(states_from(writes, index, now, is_replaced));
    }
    states
}

/// States in which the write at `index` is the newest valid one.
fn states_from(
    writes: &[Write],
    index: usize,
    now: Timestamp,
    is_replaced: bool,
) -> Vec<Option<Seen>> {
    let Change::Put { etag, .. } = &writes[index].change else {
        return vec![None];
    };
    // Metadata as of the upload, and as of each POST.
    let mut versions = vec![(index, None, writes[index].change.delete_at())];
    let mut first = 0;
    // Metadata posted to an object that was replaced since may or may not apply to the new one.
    let is_last = !writes[index + 1..]
        .iter()
        .any(|w| matches!(w.change, Change::Put { .. } | Change::Delete));
    for (number, write) in writes.iter().enumerate().skip(index + 1) {
        if let Change::Post { mark, delete_at } = &write.change {
            if write.is_acknowledged() && is_last {
                first = versions.len();
            }
            versions.push((number, Some(mark.clone()), *delete_at));
        }
    }
    let mut states: Vec<_> = versions
        .drain(first..)
        .map(|(_, mark, delete_at)| {
            let seen = Seen {
                etag: etag.clone(),
                mark,
                delete_at,
            };
            by(now, Some(seen))
        })
        .collect();
    if may_be_expired(writes, index, now, is_replaced) {
        states.push(None);
    }
    states
}

/// Whether the expirer may have deleted the version at `index` because of another write, whose
/// expiry time is the deletion's timestamp. The proxy queries the object's servers first, and a
/// responding one knows of writes acknowledged by then; but not of writes in flight, nor if a disk
/// with one of two copies was replaced and the other one cannot be reached.
fn may_be_expired(writes: &[Write], index: usize, now: Timestamp, is_replaced: bool) -> bool {
    let put = &writes[index];
    writes.iter().enumerate().any(|(number, write)| {
        let end = write.change.delete_at().map(Timestamp::from_secs);
        let Some(end) = end.filter(|end| end.secs() <= now.secs() && *end > put.at) else {
            return false;
        };
        // The write that contradicts: the upload itself, or the last POST to it.
        let posted = writes[number.max(index) + 1..].iter().rev();
        let mut posted = posted.filter(|w| matches!(w.change, Change::Post { .. }));
        let posted = posted.find_map(|w| w.acknowledged);
        let otherwise = match number < index {
            true => put.acknowledged,
            false => put.acknowledged.zip(posted).map(|(a, b)| a.max(b)),
        };
        let is_known = otherwise.is_some_and(|at| at.plus_ticks(CLOCK_SKEW_MAX_TICKS) < end);
        is_replaced || !is_known
    })
}

/// Ticks before an expiry by which a write must have been acknowledged to contradict it; clocks differ by
/// less where objects expire.
const CLOCK_SKEW_MAX_TICKS: u64 = 3 * 100_000;

/// Whether the listing must equal the object's state: only if nothing is uncertain.
pub(crate) fn is_certain(writes: &[Write]) -> bool {
    let whole = |w: &&Write| !matches!(w.change, Change::Post { .. });
    writes
        .iter()
        .rev()
        .find(whole)
        .is_none_or(|newest| newest.is_acknowledged())
}

/// Maximum of the clocks' difference and a row's time in flight, in ticks.
pub(crate) const IN_FLIGHT_MAX_TICKS: u64 = 10 * 100_000;

/// Whether accounts may list a write that no container has any more: one replica took it, updated
/// an account server, and was on the disk that was `replaced` since. Acknowledged writes, and those
/// before, exist on other replicas.
pub(crate) fn may_be_hearsay(writes: &[Write], replaced: Option<Timestamp>) -> bool {
    let until = replaced.map(|at| at.plus_ticks(IN_FLIGHT_MAX_TICKS));
    let mut unanswered = writes.iter().rev().take_while(|w| !w.is_acknowledged());
    until.is_some_and(|until| unanswered.any(|w| w.at <= until))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, change: Change, is_acknowledged: bool) -> Write {
        let at = Timestamp::from_secs(at);
        Write {
            at,
            change,
            acknowledged: is_acknowledged.then_some(at),
        }
    }

    fn put(etag: &str) -> Change {
        Change::Put {
            etag: etag.into(),
            size: 1,
            delete_at: None,
        }
    }

    fn seen(etag: &str, mark: Option<&str>) -> Option<Seen> {
        Some(Seen {
            etag: etag.into(),
            mark: mark.map(str::to_owned),
            delete_at: None,
        })
    }

    const LATER: Timestamp = Timestamp::from_secs(100);

    #[test]
    fn what_was_acknowledged_stays() {
        let mut writes = vec![write(1, put("a"), true)];
        assert_eq!(allowed(&writes, LATER, false), [seen("a", None)]);
        writes.push(write(2, put("b"), false));
        assert_eq!(
            allowed(&writes, LATER, false),
            [seen("a", None), seen("b", None)]
        );
        assert!(!is_certain(&writes));
        writes.push(write(3, Change::Delete, true));
        assert_eq!(allowed(&writes, LATER, false), [None]);
        writes.push(write(4, Change::Delete, false));
        assert_eq!(allowed(&writes, LATER, false), [None, None]);
    }

    #[test]
    fn posts_are_of_the_newest_content() {
        let post = |mark: &str| Change::Post {
            mark: mark.into(),
            delete_at: None,
        };
        let mut writes = vec![write(1, put("a"), true), write(2, post("x"), false)];
        assert_eq!(
            allowed(&writes, LATER, false),
            [seen("a", None), seen("a", Some("x"))]
        );
        writes.push(write(3, post("y"), true));
        assert_eq!(allowed(&writes, LATER, false), [seen("a", Some("y"))]);
    }

    #[test]
    fn what_only_a_replaced_disk_had_is_hearsay() {
        let mut writes = vec![write(1, put("a"), true)];
        let replaced = Some(Timestamp::from_secs(30));
        assert!(!may_be_hearsay(&writes, replaced));
        writes.push(write(20, Change::Delete, false));
        assert!(may_be_hearsay(&writes, replaced));
        assert!(!may_be_hearsay(&writes, None));
        assert!(!may_be_hearsay(&writes, Some(Timestamp::from_secs(9))));
        writes.push(write(50, put("b"), true));
        assert!(!may_be_hearsay(&writes, replaced));
        writes.push(write(60, Change::Delete, false));
        assert!(!may_be_hearsay(&writes, replaced));
    }

    #[test]
    fn objects_expire() {
        let until = |etag: &str, end| Change::Put {
            etag: etag.into(),
            size: 1,
            delete_at: Some(end),
        };
        let mut writes = vec![write(1, until("a", 50), true)];
        assert_eq!(allowed(&writes, LATER, false), [None, None]);
        let before = Timestamp::from_secs(40);
        assert!(allowed(&writes, before, false)[0].is_some());
        // Acknowledged before the other's expiry, about that time, and after it.
        writes.push(write(2, put("b"), true));
        assert_eq!(allowed(&writes, LATER, false), [seen("b", None)]);
        assert_eq!(allowed(&writes, LATER, true), [seen("b", None), None]);
        writes[1].acknowledged = Some(Timestamp::from_secs(48));
        assert_eq!(allowed(&writes, LATER, false), [seen("b", None), None]);
        writes.push(write(60, put("c"), true));
        assert_eq!(allowed(&writes, LATER, false), [seen("c", None)]);
        // A POST that extends the expiry, in time or about then.
        let post = Change::Post {
            mark: "m".into(),
            delete_at: Some(200),
        };
        let mut writes = vec![write(1, until("a", 50), true), write(20, post, true)];
        let posted = Seen {
            etag: "a".into(),
            mark: Some("m".into()),
            delete_at: Some(200),
        };
        let posted = Some(posted);
        assert_eq!(
            allowed(&writes, LATER, false),
            std::slice::from_ref(&posted)
        );
        writes[1].acknowledged = Some(Timestamp::from_secs(49));
        assert_eq!(allowed(&writes, LATER, false), [posted, None]);
    }
}
