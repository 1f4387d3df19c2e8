//! Has a quorum answered, and with what: pure functions over status codes.

use cairn_types::plant::Plant;

/// How many of `n` make a quorum: half of them, rounded up, as Swift has it.
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

/// Do `quorum` of these agree on a class (2xx, 3xx, 4xx)?
pub fn have_quorum(statuses: &[u16], quorum: usize) -> bool {
    CLASSES.iter().any(|class| {
        statuses
            .iter()
            .filter(|status| in_class(**status, *class))
            .count()
            >= quorum
    })
}

/// Do `quorum` of these agree on this very status?
pub fn have_quorum_of(statuses: &[u16], status: u16, quorum: usize) -> bool {
    statuses.iter().filter(|s| **s == status).count() >= quorum
}

/// The index of the answer to give: the first with the highest status of the class that a quorum
/// agrees on. `None`: no quorum, the answer is 503.
pub fn best_index(statuses: &[u16], quorum: usize) -> Option<usize> {
    CLASSES.iter().find_map(|class| {
        let agreeing = (0..statuses.len()).filter(|i| in_class(statuses[*i], *class));
        (agreeing.clone().count() >= quorum)
            .then(|| agreeing.rev().max_by_key(|i| statuses[*i]))
            .flatten()
    })
}

/// What to answer to a DELETE. A replica that had nothing keeps a tombstone all the same and says
/// 404, so that it counts with those that deleted; and where one of them had the object, it was
/// there. Swift answers by the majority: 404 for an object whose upload went to a handoff.
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
