//! Table of objects with read errors, by the time of the first error.
//!
//! A read error may be transient: a cable, a controller reset, a disk busy with remapping. So an
//! object is quarantined only if it still cannot be read some time later. OpenStack Swift
//! quarantines at the first error; if the disks of all replicas fail for a moment, no copy is left
//! in place.

use std::collections::HashMap;

use cairn_types::ObjectHash;
use parking_lot::Mutex;

/// Interval after the first error in which another one confirms it, in seconds. Later it counts as
/// a first error again.
const CONFIRMED_AFTER_SECS: i64 = 10;
const CONFIRMED_UNTIL_SECS: i64 = 3600;
/// Maximum entries; more at once indicate a failing disk, not failing objects.
const OBJECTS_MAX: usize = 4096;

/// Time of each object's first read error on one device, in seconds since the epoch.
#[derive(Default)]
pub(crate) struct Unreadable {
    first: Mutex<HashMap<ObjectHash, i64>>,
}

impl Unreadable {
    /// Records a read error at `now`. True if it confirms an earlier one.
    pub(crate) fn is_confirmed(&self, object: ObjectHash, now: i64) -> bool {
        let mut first = self.first.lock();
        match first.get(&object).map(|at| now - at) {
            Some(age) if (0..CONFIRMED_AFTER_SECS).contains(&age) => return false,
            Some(age) if (CONFIRMED_AFTER_SECS..CONFIRMED_UNTIL_SECS).contains(&age) => {
                first.remove(&object);
                return true;
            }
            _ => {}
        }
        if first.len() >= OBJECTS_MAX {
            first.retain(|_, at| (0..CONFIRMED_UNTIL_SECS).contains(&(now - *at)));
        }
        if first.len() < OBJECTS_MAX {
            first.insert(object, now);
        }
        false
    }

    pub(crate) fn forget_all(&self) {
        self.first.lock().clear();
    }
}

#[cfg(test)]
mod tests {
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
    fn it_is_bounded() {
        let unreadable = Unreadable::default();
        for number in 0..2 * OBJECTS_MAX as u64 {
            let mut hash = [0; 16];
            hash[..8].copy_from_slice(&number.to_le_bytes());
            assert!(!unreadable.is_confirmed(ObjectHash(hash), 1000));
        }
        assert_eq!(unreadable.first.lock().len(), OBJECTS_MAX);
        assert!(!unreadable.is_confirmed(ObjectHash([9; 16]), 1000 + CONFIRMED_UNTIL_SECS));
        assert_eq!(unreadable.first.lock().len(), 1);
    }
}
