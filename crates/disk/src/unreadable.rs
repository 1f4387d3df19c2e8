//! Table of things with read errors, by the time of the first error: a device's objects, or places in
//! another engine's files.
//!
//! A read error may be transient: a cable, a controller reset, a disk busy with remapping. So an
//! object is quarantined only if it still cannot be read some time later. OpenStack Swift
//! quarantines at the first error; if the disks of all replicas fail for a moment, no copy is left
//! in place.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;

/// Interval after the first error in which another one confirms it, in seconds. Later it counts as
/// a first error again.
const CONFIRMED_AFTER_SECS: i64 = 10;
const CONFIRMED_UNTIL_SECS: i64 = 3600;
/// Maximum entries; more at once indicate a failing disk, not failing objects.
const ENTRIES_MAX: usize = 4096;

/// Time of the first read error of each of them, in seconds since the epoch.
pub struct Unreadable<K> {
    first: Mutex<HashMap<K, i64>>,
}

impl<K> Default for Unreadable<K> {
    fn default() -> Self {
        Unreadable {
            first: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash> Unreadable<K> {
    /// Records a read error at `now`. True if it confirms an earlier one, which counts no more then.
    pub fn is_confirmed(&self, key: K, now: i64) -> bool {
        let mut first = self.first.lock();
        let is_confirmed = first.get(&key).is_some_and(|at| is_confirmed(*at, now));
        match is_confirmed {
            true => drop(first.remove(&key)),
            false => note(&mut first, key, now),
        }
        is_confirmed
    }

    /// As `is_confirmed`, of something that may be read several times before it is decided on: the
    /// earlier error goes on to count.
    pub fn has_lasted(&self, key: K, now: i64) -> bool {
        let mut first = self.first.lock();
        let is_confirmed = first.get(&key).is_some_and(|at| is_confirmed(*at, now));
        if !is_confirmed {
            note(&mut first, key, now);
        }
        is_confirmed
    }

    pub(crate) fn forget_all(&self) {
        self.first.lock().clear();
    }
}

fn is_confirmed(first: i64, now: i64) -> bool {
    (CONFIRMED_AFTER_SECS..CONFIRMED_UNTIL_SECS).contains(&(now - first))
}

/// Notes an error that confirms none.
fn note<K: Eq + Hash>(first: &mut HashMap<K, i64>, key: K, now: i64) {
    let is_known = |at: &i64| (0..CONFIRMED_UNTIL_SECS).contains(&(now - *at));
    if first.get(&key).is_some_and(is_known) {
        return;
    }
    if first.len() >= ENTRIES_MAX {
        first.retain(|_, at| is_known(at));
    }
    if first.len() < ENTRIES_MAX {
        first.insert(key, now);
    }
}

#[cfg(test)]
mod tests {
    use cairn_types::ObjectHash;

    use super::*;

    #[test]
    fn an_error_counts_when_it_comes_again() {
        let unreadable = Unreadable::default();
        let object = ObjectHash([7; 16]);
        for (now, confirmed) in [
            (1000, false),
            (1009, false),
            (1010, true),
            // A first error again.
            (1011, false),
            (1011 + CONFIRMED_UNTIL_SECS, false),
            (1012 + CONFIRMED_UNTIL_SECS, false),
            // The clock was set back.
            (500, false),
            (510, true),
        ] {
            assert_eq!(unreadable.is_confirmed(object, now), confirmed, "{now}");
        }
    }

    #[test]
    fn one_that_lasts_counts_until_it_is_old() {
        let unreadable = Unreadable::default();
        for (now, confirmed) in [
            (1000, false),
            (1009, false),
            (1010, true),
            (1010, true),
            (999 + CONFIRMED_UNTIL_SECS, true),
            (1000 + CONFIRMED_UNTIL_SECS, false),
            (1005 + CONFIRMED_UNTIL_SECS, false),
            (1010 + CONFIRMED_UNTIL_SECS, true),
        ] {
            assert_eq!(unreadable.has_lasted(7u64, now), confirmed, "{now}");
        }
    }

    #[test]
    fn it_is_bounded() {
        let unreadable = Unreadable::default();
        for number in 0..2 * ENTRIES_MAX as u64 {
            let mut hash = [0; 16];
            hash[..8].copy_from_slice(&number.to_le_bytes());
            assert!(!unreadable.is_confirmed(ObjectHash(hash), 1000));
        }
        assert_eq!(unreadable.first.lock().len(), ENTRIES_MAX);
        assert!(!unreadable.is_confirmed(ObjectHash([9; 16]), 1000 + CONFIRMED_UNTIL_SECS));
        assert_eq!(unreadable.first.lock().len(), 1);
    }
}
