//! Quorum decisions: pure functions over status codes.

use cairn_types::plant::Plant;

/// Size of a quorum of `n`: half of them, rounded up, as in Swift.
pub fn quorum_size(n: usize) -> usize {
    if Plant::QuorumOfOne.is_on() {
        return 1;
    }
    n.div_ceil(2)
}

const CLASSES: [u16; 3] = [200, 300, 400];

fn in_class(status: u16, class: u16) -> bool {
    (class..class + 100).contains(&status)
}

/// Do `quorum` of these have the same class (2xx, 3xx, 4xx)?
pub fn have_quorum(statuses: &[u16], quorum: usize) -> bool {
    CLASSES.iter().any(|class| {
        statuses
            .iter()
            .filter(|status| in_class(**status, *class))
            .count()
            >= quorum
    })
}

/// Do `quorum` of these have exactly this status?
pub fn have_quorum_of(statuses: &[u16], status: u16, quorum: usize) -> bool {
    statuses.iter().filter(|s| **s == status).count() >= quorum
}

/// Index of the response to return: the first with the highest status of the class that a quorum
/// agrees on. `None` without a quorum, which means 503.
pub fn best_index(statuses: &[u16], quorum: usize) -> Option<usize> {
    CLASSES.iter().find_map(|class| {
        let agreeing = (0..statuses.len()).filter(|i| in_class(statuses[*i], *class));
        (agreeing.clone().count() >= quorum)
            .then(|| agreeing.rev().max_by_key(|i| statuses[*i]))
            .flatten()
    })
}

/// Index of the response to return for a DELETE. A replica without the object stores a tombstone
/// all the same and responds 404, so it counts together with those that deleted; and if any of them
/// had the object, the deletion succeeded. Swift instead takes the majority, which is 404 for an
/// object that was uploaded to a handoff.
pub fn best_of_delete(statuses: &[u16]) -> Option<usize> {
    let quorum = quorum_size(statuses.len());
    let done = |status: &u16| in_class(*status, 200);
    let best = best_index(statuses, quorum).filter(|i| statuses[*i] != 404);
    let told = statuses.iter().filter(|s| done(s) || **s == 404).count();
    let deleted = statuses.iter().position(done).filter(|_| told >= quorum);
    best.or(deleted).or_else(|| best_index(statuses, quorum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!([1, 2, 3, 4, 5].map(quorum_size), [1, 1, 2, 2, 3]);
    }

    #[test]
    fn classes_and_choice() {
        assert!(have_quorum(&[201, 503, 202], 2));
        assert!(!have_quorum(&[201, 503, 404], 2));
        assert_eq!(best_index(&[201, 503, 202], 2), Some(2));
        assert_eq!(best_index(&[503, 404, 404], 2), Some(1));
        assert_eq!(best_index(&[503, 404, 201], 2), None);
        assert_eq!(best_index(&[503, 503, 503], 2), None);
        assert_eq!(best_index(&[], 1), None);
    }

    #[test]
    fn a_delete_that_one_of_three_knew_is_done() {
        assert_eq!(best_of_delete(&[204, 404, 503]), Some(0));
        assert_eq!(best_of_delete(&[404, 404, 204]), Some(2));
        assert_eq!(best_of_delete(&[404, 503, 404]), Some(0));
        assert_eq!(best_of_delete(&[404, 503, 503]), None);
        assert_eq!(best_of_delete(&[204, 503, 503]), None);
        assert_eq!(best_of_delete(&[204, 409, 404]), Some(1));
    }
}
