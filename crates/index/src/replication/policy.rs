//! Resolution of a container's storage policy between replicas.
//!
//! If neither replica was deleted and recreated, the earliest policy wins; otherwise the latest
//! recreation; a deleted replica yields to a live one.

use std::cmp::Ordering;

use cairn_types::Timestamp;

use super::{RemoteInfo, RemotePolicy, ReplicationInfo};
use crate::broker::timestamp;

/// A replica's evidence for its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyClaim {
    pub put: Timestamp,
    pub delete: Timestamp,
    pub status_changed: Timestamp,
    /// Number of its objects.
    pub count: i64,
}

impl PolicyClaim {
    /// Ranks two claims; `Less` if this replica's policy wins.
    pub fn rank(&self, other: &PolicyClaim) -> Ordering {
        compare(self, other)
    }

    fn is_deleted(&self) -> bool {
        self.delete > self.put && self.count == 0
    }

    fn is_recreated(&self) -> bool {
        self.put > self.delete && !self.delete.is_zero()
    }
}

pub(super) fn is_remote_better(
    info: &ReplicationInfo,
    remote: &RemoteInfo,
    policy: &RemotePolicy,
) -> bool {
    let ours = PolicyClaim {
        put: timestamp(&info.put_timestamp),
        delete: timestamp(&info.delete_timestamp),
        status_changed: timestamp(&info.status_changed_at),
        count: info.count,
    };
    let theirs = PolicyClaim {
        put: timestamp(&remote.put_timestamp),
        delete: timestamp(&remote.delete_timestamp),
        status_changed: timestamp(&policy.status_changed_at),
        count: policy.count,
    };
    compare(&ours, &theirs) == Ordering::Greater
}

/// Compares two claims; `Greater` if theirs wins.
fn compare(ours: &PolicyClaim, theirs: &PolicyClaim) -> Ordering {
    match (ours.is_deleted(), theirs.is_deleted()) {
        (false, true) => return Ordering::Less,
        (true, false) => return Ordering::Greater,
        (true, true) => return theirs.status_changed.cmp(&ours.status_changed),
        (false, false) => {}
    }
    match (ours.is_recreated(), theirs.is_recreated()) {
        (false, true) => return Ordering::Greater,
        (true, false) => return Ordering::Less,
        (true, true) => {
            let last_delete = ours.delete.max(theirs.delete);
            if ours.put < last_delete {
                return Ordering::Greater;
            }
            if theirs.put < last_delete {
                return Ordering::Less;
            }
        }
        (false, false) => {}
    }
    ours.status_changed.cmp(&theirs.status_changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(put: u64, delete: u64, status_changed: u64) -> PolicyClaim {
        PolicyClaim {
            put: Timestamp::from_secs(put),
            delete: Timestamp::from_secs(delete),
            status_changed: Timestamp::from_secs(status_changed),
            count: 0,
        }
    }

    #[test]
    fn who_knows_the_policy() {
        let live = side(5, 0, 5);
        let older = side(4, 0, 4);
        let deleted = side(5, 6, 6);
        let deleted_later = side(5, 7, 7);
        let again = side(8, 6, 8);
        let again_later = side(9, 8, 9);
        for (better, worse) in [
            (&older, &live),
            (&live, &deleted),
            (&deleted_later, &deleted),
            (&again, &live),
            (&again, &deleted),
        ] {
            assert_eq!(compare(worse, better), Ordering::Greater);
            assert_eq!(compare(better, worse), Ordering::Less);
        }
        // Recreated before the other was deleted: it does not win.
        let stale = side(7, 6, 7);
        assert_eq!(compare(&stale, &again_later), Ordering::Greater);
        assert_eq!(compare(&again_later, &stale), Ordering::Less);
    }
}
