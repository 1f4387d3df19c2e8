//! Handoff nodes in OpenStack Swift's order, so that both agree on the possible locations of a
//! stray replica.
//!
//! The walk starts at a partition derived from the MD5 of the wanted one, and advances through the
//! table in strides. It is made four times: for regions without a node yet, then zones, then hosts,
//! then any device. The stride visits about 65536 partitions whatever the ring's size, and after
//! wrapping around it does not revisit partition 0 in small rings: both match Swift and must not
//! change.

use std::sync::Arc;

use md5::{Digest, Md5};

use super::Ring;
use crate::bitset::BitSet;
use crate::device::Device;

/// A device outside the primaries, and its position in the handoff order.
#[derive(Clone, Debug)]
pub struct HandoffNode {
    pub handoff_index: usize,
    pub device: Arc<Device>,
}

/// The iterator behind [`Ring::handoffs`].
#[derive(Debug)]
pub struct Handoffs<'r> {
    ring: &'r Ring,
    used: BitSet,
    used_count: usize,
    /// Regions, zones and hosts that already have a node.
    seen: [BitSet; 3],
    seen_count: [usize; 3],
    /// Level of the search: 0 to 2 for a new region, zone or host, 3 for any device, 4 at the end.
    level: usize,
    start: usize,
    walk: Walk,
    /// The current partition, and the number of replica rows already visited.
    at: Option<(usize, usize)>,
    next_index: usize,
}

const ANY_DEVICE: usize = 3;

impl<'r> Handoffs<'r> {
    pub(super) fn new(ring: &'r Ring, part: u32) -> Self {
        let digest: [u8; 16] = Md5::digest(part.to_string().as_bytes()).into();
        let top = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        let start = top.checked_shr(ring.part_shift()).unwrap_or(0) as usize;
        let mut handoffs = Handoffs {
            ring,
            used: BitSet::new(ring.data.devs.len()),
            used_count: 0,
            seen: ring.distinct.map(BitSet::new),
            seen_count: [0; 3],
            level: 0,
            start,
            walk: Walk::new(start, ring.partition_count() as usize),
            at: None,
            next_index: 0,
        };
        for id in ring.assigned_ids(part) {
            handoffs.mark(id);
        }
        handoffs
    }

    fn mark(&mut self, id: u32) {
        if !self.used.insert(id) {
            return;
        }
        self.used_count += 1;
        for level in 0..3 {
            if self.seen[level].insert(self.ring.domains[id as usize].0[level]) {
                self.seen_count[level] += 1;
            }
        }
    }

    fn level_is_exhausted(&self) -> bool {
        let have = match self.level {
            ANY_DEVICE => self.used_count,
            level => self.seen_count[level],
        };
        have >= self.ring.assigned[self.level]
    }

    fn is_wanted(&self, id: u32) -> bool {
        !self.used.contains(id)
            && (self.level == ANY_DEVICE
                || !self.seen[self.level].contains(self.ring.domains[id as usize].0[self.level]))
    }

    fn next_level(&mut self) {
        self.level += 1;
        self.walk = Walk::new(self.start, self.ring.partition_count() as usize);
        self.at = None;
    }

    /// The next suitable device of the current partition.
    fn next_in_partition(&mut self) -> Option<u32> {
        let (part, done) = self.at?;
        let rows = &self.ring.data.rows;
        for (row, ids) in rows.iter().enumerate().skip(done) {
            if let Some(id) = ids.get(part)
                && self.is_wanted(id)
            {
                self.at = Some((part, row + 1));
                return Some(id);
            }
        }
        self.at = None;
        None
    }
}

impl Iterator for Handoffs<'_> {
    type Item = HandoffNode;

    fn next(&mut self) -> Option<HandoffNode> {
        while self.level <= ANY_DEVICE {
            if self.level_is_exhausted() {
                self.next_level();
                continue;
            }
            if let Some(id) = self.next_in_partition() {
                self.mark(id);
                let handoff_index = self.next_index;
                self.next_index += 1;
                return Some(HandoffNode {
                    handoff_index,
                    device: Arc::clone(self.ring.device(id)?),
                });
            }
            match self.walk.next() {
                Some(part) => self.at = Some((part, 0)),
                None => self.next_level(),
            }
        }
        None
    }
}

/// Partition numbers in strides from `start` to the end, then from the beginning up to `start`.
#[derive(Clone, Debug)]
struct Walk {
    next: usize,
    start: usize,
    parts: usize,
    stride: usize,
    wrapped: bool,
}

impl Walk {
    fn new(start: usize, parts: usize) -> Self {
        Walk {
            next: start,
            start,
            parts,
            stride: (parts / 65536).max(1),
            wrapped: false,
        }
    }
}

impl Iterator for Walk {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if !self.wrapped && self.next >= self.parts {
            self.wrapped = true;
            self.next = self.stride - (self.parts.saturating_sub(self.start)) % self.stride;
        }
        if self.wrapped && self.next >= self.start {
            return None;
        }
        let part = self.next;
        self.next += self.stride;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk_strides_and_wraps_as_swift() {
        // In small rings the stride is 1, and partition 0 is not revisited.
        assert_eq!(Walk::new(2, 4).collect::<Vec<_>>(), [2, 3, 1]);
        assert_eq!(Walk::new(0, 2).collect::<Vec<_>>(), [0, 1]);
        // Stride 4 over 2^18 partitions from 5: 5, 9, … 262141, then 1.
        let walk: Vec<_> = Walk::new(5, 1 << 18).collect();
        assert_eq!((walk[0], walk[1]), (5, 9));
        assert_eq!(walk.last(), Some(&1));
        assert_eq!(walk.len(), 65536);
        assert_eq!(Walk::new(0, 0).count(), 0);
    }
}
