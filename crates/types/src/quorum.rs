//! Quorums: the number of servers that must agree on a write before the client is answered. The
//! only place that computes one; everybody else is handed a [`Quorum`].
//!
//! Swift has two rules. Writes are acknowledged by *half* of the replicas, rounded up, which for
//! an even number is no majority: two halves of a cluster may both take writes. What must not be
//! decided twice (conditional writes, the state that daemons record as settled) takes a *majority*,
//! more than half.

use crate::plant::Plant;

/// Number of parity fragments that must be stored besides the data fragments, so that an object
/// survives the loss of one fragment right after its acknowledgement. Swift asks the code for it
/// (`min_parity_fragments_needed`); of Reed-Solomon codes it is 1.
const PARITY_NEEDED_MIN: usize = 1;

/// How many of a write's servers must agree. Never more than there are, but for the majority of no
/// servers, which is never reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    size: usize,
    servers: usize,
}

impl Quorum {
    fn new(size: usize, servers: usize) -> Self {
        assert!(
            size <= servers.max(1),
            "a quorum of {size} cannot be reached by {servers} servers"
        );
        Quorum { size, servers }
    }

    /// Swift's quorum of so many replicas: half of them, rounded up. Of no replicas it is 0.
    pub fn of_replicas(replicas: usize) -> Self {
        let size = match Plant::QuorumOfOne.is_on() {
            true => replicas.min(1),
            false => replicas.div_ceil(2),
        };
        Quorum::new(size, replicas)
    }

    /// The quorum of an erasure code's fragments, each of which is stored `duplication` times. A
    /// code has one parity fragment or more.
    pub fn of_fragments(data: usize, parity: usize, duplication: usize) -> Self {
        let size = data.saturating_add(PARITY_NEEDED_MIN);
        let unique = data.saturating_add(parity);
        Quorum::new(
            size.saturating_mul(duplication),
            unique.saturating_mul(duplication),
        )
    }

    /// More than half of so many servers: two of these always have a server in common. Of no servers
    /// it is 1, so that nothing is decided by nobody.
    pub fn majority_of(servers: usize) -> Self {
        Quorum::new(servers / 2 + 1, servers)
    }

    /// Number of servers that must agree.
    pub fn size(self) -> usize {
        self.size
    }

    /// Number of servers that the write is for.
    pub fn servers(self) -> usize {
        self.servers
    }

    pub fn is_reached_by(self, agreeing: usize) -> bool {
        agreeing >= self.size
    }

    /// Number of servers that an acknowledged write may have missed.
    pub fn missing_max(self) -> usize {
        self.servers.saturating_sub(self.size)
    }

    /// The part of this quorum that is open after `agreed` of its servers have agreed.
    #[must_use]
    pub fn after(self, agreed: usize) -> Self {
        Quorum {
            size: self.size.saturating_sub(agreed),
            servers: self.servers.saturating_sub(agreed),
        }
    }

    /// As many servers as this, from among `servers` of those it was for.
    #[must_use]
    pub fn among(self, servers: usize) -> Self {
        Quorum::new(self.size, servers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_as_in_swift() {
        // `quorum_size(n)` of swift/common/utils: (n + 1) // 2.
        let sizes = [1, 2, 3, 4, 5, 6].map(|n| Quorum::of_replicas(n).size());
        assert_eq!(sizes, [1, 1, 2, 2, 3, 3]);
        assert_eq!(Quorum::of_replicas(0), Quorum::new(0, 0));
    }

    #[test]
    fn majorities_as_in_swift() {
        // `majority_size(n)` of swift/common/utils: n // 2 + 1.
        let sizes = [1, 2, 3, 4, 5, 6].map(|n| Quorum::majority_of(n).size());
        assert_eq!(sizes, [1, 2, 2, 3, 3, 4]);
        assert!(!Quorum::majority_of(0).is_reached_by(0));
    }

    #[test]
    fn fragments_as_in_swift() {
        // (ec_ndata + min_parity_fragments_needed) * ec_duplication_factor
        let size = |data, parity, copies| Quorum::of_fragments(data, parity, copies).size();
        assert_eq!([size(2, 1, 1), size(4, 2, 1), size(10, 4, 1)], [3, 5, 11]);
        assert_eq!(size(4, 2, 2), 10);
        assert_eq!(Quorum::of_fragments(4, 2, 2).servers(), 12);
    }

    #[test]
    fn one_less_than_a_quorum_is_none() {
        for quorum in [
            Quorum::of_replicas(5),
            Quorum::majority_of(4),
            Quorum::of_fragments(4, 2, 1),
        ] {
            assert!(quorum.is_reached_by(quorum.size()));
            assert!(!quorum.is_reached_by(quorum.size() - 1));
            assert_eq!(quorum.size() + quorum.missing_max(), quorum.servers());
        }
    }

    #[test]
    fn what_is_left_of_a_quorum() {
        let quorum = Quorum::majority_of(5);
        assert_eq!(quorum.after(1), Quorum::new(2, 4));
        assert_eq!(quorum.after(4), Quorum::new(0, 1));
        assert_eq!(quorum.among(3), Quorum::new(3, 3));
    }

    #[test]
    #[should_panic(expected = "cannot be reached")]
    fn no_quorum_is_larger_than_its_servers() {
        let _ = Quorum::majority_of(5).among(2);
    }
}
