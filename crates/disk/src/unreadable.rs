//! Objects that the disk could not read, by when it failed first.
//!
//! An error of one read may pass: a cable, a controller that resets, a disk that is busy with
//! remapping. So an object is moved to quarantine only when it cannot be read some time later
//! either. OpenStack Swift moves it at the first error; where the disks of all its replicas err for
//! a moment, nothing of it is left in its place.

use std::collections::HashMap;

use cairn_types::ObjectHash;
use parking_lot::Mutex;

/// From the first error to one that counts, and no longer: later it is a new first one. In seconds.
const CONFIRMED_AFTER: i64 = 10;
const CONFIRMED_UNTIL: i64 = 3600;
/// Objects that are remembered; more at once are the disk's trouble, not the objects'.
const OBJECTS_MAX: usize = 4096;

/// Objects of one device and when each could not be read first, in seconds since the epoch.
#[derive(Default)]
pub(crate) struct Unreadable {
    first: Mutex<HashMap<ObjectHash, i64>>,
}

impl Unreadable {
    /// Notes that an object cannot be read at `now`. True: it could not some time ago either.
    pub(crate) fn is_confirmed(&self, object: ObjectHash, now: i64) -> bool {
        let mut first = self.first.lock();
        match first.get(&object).map(|at| now - at) {
            Some(age) if (0..CONFIRMED_AFTER).contains(&age) => return false,
            Some(age) if (CONFIRMED_AFTER..CONFIRMED_UNTIL).contains(&age) => {
                first.remove(&object);
                return true;
            }
            _ => {}
        }
        if first.len() >= OBJECTS_MAX {
            first.retain(|_, at| (0..CONFIRMED_UNTIL).contains(&(now - *at)));
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
            // Anew.
            (1011, false),
            (1011 + CONFIRMED_UNTIL, false),
            (1012 + CONFIRMED_UNTIL, false),
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
        assert!(!unreadable.is_confirmed(ObjectHash([9; 16]), 1000 + CONFIRMED_UNTIL));
        assert_eq!(unreadable.first.lock().len(), 1);
    }
}
