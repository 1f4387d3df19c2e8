//! Decisions by statuses: whether a [`Quorum`] agrees, and which response the client gets. Pure
//! functions; how large a quorum is says the policy (`types/quorum.rs`).

use cairn_types::Quorum;

const CLASSES: [u16; 3] = [200, 300, 400];

fn in_class(status: u16, class: u16) -> bool {
    (class..class + 100).contains(&status)
}

fn count(statuses: &[u16], is: impl Fn(u16) -> bool) -> usize {
    statuses.iter().filter(|status| is(**status)).count()
}

/// Has a quorum the same class (2xx, 3xx, 4xx)?
pub fn have_quorum(statuses: &[u16], quorum: Quorum) -> bool {
    CLASSES
        .iter()
        .any(|class| quorum.is_reached_by(count(statuses, |status| in_class(status, *class))))
}

/// Has a quorum exactly this status?
pub fn have_quorum_of(statuses: &[u16], status: u16, quorum: Quorum) -> bool {
    quorum.is_reached_by(count(statuses, |own| own == status))
}

/// Index of the response to return: the first with the highest status of the class that a quorum
/// agrees on. `None` without a quorum, which means 503.
pub fn best_index(statuses: &[u16], quorum: Quorum) -> Option<usize> {
    CLASSES.iter().find_map(|class| {
        let agreeing = (0..statuses.len()).filter(|i| in_class(statuses[*i], *class));
        quorum
            .is_reached_by(agreeing.clone().count())
            .then(|| agreeing.rev().max_by_key(|i| statuses[*i]))
            .flatten()
    })
}

/// Index of the response to return for a DELETE. A replica without the object stores a tombstone
/// all the same and responds 404, so it counts together with those that deleted; and if any of them
/// had the object, the deletion succeeded. Swift instead takes what a quorum says, which is 404 for
/// an object that was uploaded to a handoff.
pub fn best_of_delete(statuses: &[u16], quorum: Quorum) -> Option<usize> {
    let done = |status: &u16| in_class(*status, 200);
    let best = best_index(statuses, quorum).filter(|i| statuses[*i] != 404);
    let told = count(statuses, |status| done(&status) || status == 404);
    let deleted = statuses.iter().position(done);
    let deleted = deleted.filter(|_| quorum.is_reached_by(told));
    best.or(deleted).or_else(|| best_index(statuses, quorum))
}

/// Panics unless a quorum has acknowledged the write that is about to be acknowledged with `chosen`:
/// as the last look at it, independent of how it was decided. A DELETE is acknowledged by 404, too.
pub fn assert_acknowledged(statuses: &[u16], quorum: Quorum, chosen: u16) {
    let acknowledges = |status| in_class(status, 200) || status == 404;
    assert!(
        !in_class(chosen, 200) || quorum.is_reached_by(count(statuses, acknowledges)),
        "{chosen} is not the answer of a quorum: {statuses:?}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(servers: usize) -> Quorum {
        Quorum::of_replicas(servers)
    }

    #[test]
    fn classes_and_choice() {
        assert!(have_quorum(&[201, 503, 202], of(3)));
        assert!(!have_quorum(&[201, 503, 404], of(3)));
        assert_eq!(best_index(&[201, 503, 202], of(3)), Some(2));
        assert_eq!(best_index(&[503, 404, 404], of(3)), Some(1));
        assert_eq!(best_index(&[503, 404, 201], of(3)), None);
        assert_eq!(best_index(&[503, 503, 503], of(3)), None);
        assert_eq!(best_index(&[], of(1)), None);
        assert_eq!(best_index(&[], of(0)), None);
    }

    #[test]
    fn half_of_an_even_number_decides() {
        assert_eq!(best_index(&[201, 503], of(2)), Some(0));
        assert_eq!(best_index(&[404, 201], of(2)), Some(1), "the better class");
        assert_eq!(best_index(&[201, 201, 503, 503], of(4)), Some(0));
        assert_eq!(best_index(&[201, 503, 503, 503], of(4)), None);
    }

    #[test]
    fn a_delete_that_one_of_three_knew_is_done() {
        let best = |statuses: &[u16]| best_of_delete(statuses, of(statuses.len()));
        assert_eq!(best(&[204, 404, 503]), Some(0));
        assert_eq!(best(&[404, 404, 204]), Some(2));
        assert_eq!(best(&[404, 503, 404]), Some(0));
        assert_eq!(best(&[404, 503, 503]), None);
        assert_eq!(best(&[204, 503, 503]), None);
        assert_eq!(best(&[204, 409, 404]), Some(1));
    }

    #[test]
    fn what_a_quorum_has_acknowledged_may_be() {
        assert_acknowledged(&[201, 503, 201], of(3), 201);
        assert_acknowledged(&[204, 404, 503], of(3), 204);
        assert_acknowledged(&[503, 503, 404], of(3), 404);
    }

    #[test]
    #[should_panic(expected = "not the answer of a quorum")]
    fn what_one_of_three_has_acknowledged_may_not() {
        assert_acknowledged(&[201, 503, 409], of(3), 201);
    }
}
