//! What was asked for and what was acknowledged, and which states of the store that allows.
//!
//! The newest timestamp wins, in whatever order requests arrive. A write that was acknowledged has
//! happened; one that failed, or was not answered, may have happened, now or later.

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
    /// When the object is to be deleted, in seconds.
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
    /// When it was answered with success, by the cluster's time.
    pub(crate) acknowledged: Option<Timestamp>,
}

impl Write {
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acknowledged.is_some()
    }
}

/// A container and an object.
pub(crate) type Name = (String, String);

/// An object as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) etag: String,
    pub(crate) mark: Option<String>,
    /// When it is to be deleted, in seconds.
    pub(crate) delete_at: Option<u64>,
}

/// What a state is once it is `now`.
pub(crate) fn by(now: Timestamp, seen: Option<Seen>) -> Option<Seen> {
    seen.filter(|seen| seen.delete_at.is_none_or(|at| at > now.secs()))
}

/// What was asked for, by name.
#[derive(Default)]
pub(crate) struct Histories(Mutex<BTreeMap<Name, Vec<Write>>>);

impl Histories {
    /// Notes a write that is about to be asked for.
    pub(crate) fn begin(&self, name: &Name, at: Timestamp, change: Change) {
        let write = Write {
            at,
            change,
            acknowledged: None,
        };
        let mut all = self.0.lock();
        let writes = all.entry(name.clone()).or_default();
        let place = writes.partition_point(|w| w.at < at);
        writes.insert(place, write);
    }

    /// It was answered with success, `now`.
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
    /// The container that comes and goes; its ETag is the mark it was made with.
    pub(crate) container: Histories,
    /// What was sent, by its ETag.
    pub(crate) contents: Mutex<BTreeMap<String, Bytes>>,
    /// It is made and removed one after the other: its times are the proxies' own.
    pub(crate) one_by_one: tokio::sync::Mutex<()>,
    /// Conditional writes.
    pub(crate) swaps: Arc<Swaps>,
}

impl Model {
    /// Was there ever such content?
    pub(crate) fn knows(&self, name: &Name, etag: &str) -> bool {
        self.objects
            .writes(name)
            .iter()
            .any(|w| matches!(&w.change, Change::Put { etag: own, .. } if own == etag))
    }
}

/// The states that these writes, in the order of their times, allow when it is `now`. No object
/// expires just then: clocks differ. `is_replaced`: a disk was.
pub(crate) fn allowed(writes: &[Write], now: Timestamp, is_replaced: bool) -> Vec<Option<Seen>> {
    let is_whole = |w: &&Write| !matches!(w.change, Change::Post { .. });
    let certain = writes
        .iter()
        .rposition(|w| w.is_acknowledged() && is_whole(&w));
    let mut states = Vec::new();
    match certain {
        None => states.push(None),
        Some(place) => states.extend(states_from(writes, place, now, is_replaced)),
    }
    for (place, _) in writes
        .iter()
        .enumerate()
        .skip(certain.map_or(0, |c| c + 1))
        .filter(|(_, w)| is_whole(w))
    {
        states.extend(states_from(writes, place, now, is_replaced));
    }
    states
}

/// Those where the write at `place` is the newest that counts.
fn states_from(
    writes: &[Write],
    place: usize,
    now: Timestamp,
    is_replaced: bool,
) -> Vec<Option<Seen>> {
    let Change::Put { etag, .. } = &writes[place].change else {
        return vec![None];
    };
    // Metadata as of the upload, and as of each POST.
    let mut versions = vec![(place, None, writes[place].change.delete_at())];
    let mut first = 0;
    // What was posted to an object that was replaced since may be known of the new one or not.
    let is_last = !writes[place + 1..]
        .iter()
        .any(|w| matches!(w.change, Change::Put { .. } | Change::Delete));
    for (number, write) in writes.iter().enumerate().skip(place + 1) {
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
    if may_be_expired(writes, place, now, is_replaced) {
        states.push(None);
    }
    states
}

/// May the expirer have deleted what was written at `place`, on account of another write? It
/// deletes as of the time at which that was to expire. The proxy asks the object's servers before:
/// what was acknowledged by then is known to one that answers. Not so what was still under way;
/// nor where a disk with one of two copies was replaced, and the other one cannot be reached.
fn may_be_expired(writes: &[Write], place: usize, now: Timestamp, is_replaced: bool) -> bool {
    let put = &writes[place];
    writes.iter().enumerate().any(|(number, write)| {
        let end = write.change.delete_at().map(Timestamp::from_secs);
        let Some(end) = end.filter(|end| end.secs() <= now.secs() && *end > put.at) else {
            return false;
        };
        // What says otherwise: the upload itself, of what a POST to it says the last one.
        let posted = writes[number.max(place) + 1..].iter().rev();
        let mut posted = posted.filter(|w| matches!(w.change, Change::Post { .. }));
        let posted = posted.find_map(|w| w.acknowledged);
        let otherwise = match number < place {
            true => put.acknowledged,
            false => put.acknowledged.zip(posted).map(|(a, b)| a.max(b)),
        };
        let is_known = otherwise.is_some_and(|at| at.plus_ticks(CLOCKS_DIFFER) < end);
        is_replaced || !is_known
    })
}

/// By less than that, in ticks.
const CLOCKS_DIFFER: u64 = 3 * 100_000;

/// Does the listing have to show just what the object is? Only where nothing is uncertain.
pub(crate) fn is_certain(writes: &[Write]) -> bool {
    let whole = |w: &&Write| !matches!(w.change, Change::Post { .. });
    writes
        .iter()
        .rev()
        .find(whole)
        .is_none_or(|newest| newest.is_acknowledged())
}

/// Clocks differ by less, and no longer is a row on its way, in ticks.
pub(crate) const ON_ITS_WAY: u64 = 10 * 100_000;

/// May accounts know of a write that no container knows of any more? One replica took it, told an
/// account server as each does, and was on the disk that was `replaced` since. Of what was
/// acknowledged, or was written before that, others have the container too.
pub(crate) fn may_be_hearsay(writes: &[Write], replaced: Option<Timestamp>) -> bool {
    let until = replaced.map(|at| at.plus_ticks(ON_ITS_WAY));
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
        // Acknowledged before the other was to expire, about then, and written after.
        writes.push(write(2, put("b"), true));
        assert_eq!(allowed(&writes, LATER, false), [seen("b", None)]);
        assert_eq!(allowed(&writes, LATER, true), [seen("b", None), None]);
        writes[1].acknowledged = Some(Timestamp::from_secs(48));
        assert_eq!(allowed(&writes, LATER, false), [seen("b", None), None]);
        writes.push(write(60, put("c"), true));
        assert_eq!(allowed(&writes, LATER, false), [seen("c", None)]);
        // A POST says that it is not to expire yet, in time or about then.
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
