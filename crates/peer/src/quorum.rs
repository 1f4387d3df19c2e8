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

/// The index of the answer to give: the highest status of the class that a quorum agrees on.
/// `avoid`: answers that count but may not be chosen. `None`: no quorum, the answer is 503.
pub fn best_index(statuses: &[u16], quorum: usize, avoid: &[bool]) -> Option<usize> {
    for class in CLASSES {
        let agreeing = || {
            statuses
                .iter()
                .enumerate()
                .filter(move |(_, status)| in_class(**status, class))
        };
        if agreeing().count() < quorum {
            continue;
        }
        let mut best: Option<(usize, u16)> = None;
        for (i, status) in agreeing() {
            let avoided = avoid.get(i).copied().unwrap_or(false);
            if !avoided && best.is_none_or(|(_, highest)| *status > highest) {
                best = Some((i, *status));
            }
        }
        if let Some((i, _)) = best {
            return Some(i);
        }
    }
    None
}

/// What to answer, where some statuses may stand for others when there is no quorum otherwise
/// (a DELETE's 404 counts as 204). Returns the index of the answer.
pub fn best_with_overrides(
    statuses: &[u16],
    quorum: usize,
    overrides: &[(u16, u16)],
) -> Option<usize> {
    if let Some(i) = best_index(statuses, quorum, &[]) {
        return Some(i);
    }
    if overrides.is_empty() {
        return None;
    }
    let mut avoid = vec![false; statuses.len()];
    let changed: Vec<u16> = statuses
        .iter()
        .enumerate()
        .map(
            |(i, status)| match overrides.iter().find(|(from, _)| from == status) {
                Some((_, to)) => {
                    avoid[i] = true;
                    *to
                }
                None => *status,
            },
        )
        .collect();
    best_index(&changed, quorum, &avoid)
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
        assert_eq!(best_index(&[201, 503, 202], 2, &[]), Some(2));
        assert_eq!(best_index(&[503, 404, 404], 2, &[]), Some(1));
        assert_eq!(best_index(&[503, 404, 201], 2, &[]), None);
        assert_eq!(best_index(&[503, 503, 503], 2, &[]), None);
        assert_eq!(best_index(&[], 1, &[]), None);
    }

    #[test]
    fn a_delete_that_one_of_three_knew_is_done() {
        assert_eq!(
            best_with_overrides(&[204, 404, 503], 2, &[(404, 204)]),
            Some(0)
        );
        assert_eq!(
            best_with_overrides(&[404, 404, 204], 2, &[(404, 204)]),
            Some(0)
        );
        assert_eq!(
            best_with_overrides(&[404, 503, 503], 2, &[(404, 204)]),
            None
        );
    }
}
