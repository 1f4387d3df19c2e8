//! Look-up of devices: from a name's hash to its partition, and from a partition to its devices.

mod handoffs;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use cairn_types::ObjectHash;

use crate::bitset::BitSet;
use crate::data::{FormatVersion, RingData};
use crate::device::Device;
use crate::error::RingError;
use crate::{read, write};

pub use handoffs::{HandoffNode, Handoffs};

/// A loaded, immutable ring, shared as `Arc<Ring>`; see [`crate::RingFile`] for reloading.
#[derive(Clone, Debug)]
pub struct Ring {
    pub(crate) data: RingData,
    /// Failure domains of each device id.
    pub(crate) domains: Vec<DomainNumbers>,
    /// Number of regions, zones, hosts and devices that hold at least one partition. A domain
    /// without partitions must not count, or the handoff walk would search for it in vain.
    pub(crate) assigned: [usize; 4],
    /// Number of distinct regions, zones and hosts over all devices.
    pub(crate) distinct: [usize; 3],
}

/// Consecutive numbers of a device's region, (region, zone) and (region, zone, ip).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DomainNumbers(pub(crate) [u32; 3]);

/// A primary of a partition.
#[derive(Clone, Debug)]
pub struct PrimaryNode {
    /// Position among the partition's primaries; for erasure coding the fragment index.
    pub index: usize,
    pub device: Arc<Device>,
}

impl Ring {
    /// Parses a `.ring.gz` file, version 1 or 2.
    ///
    /// # Errors
    /// The bytes are no gzip, no ring of version 1 or 2, cut short, damaged or too large, or the
    /// ring breaks a rule that [`Ring::from_data`] checks.
    pub fn from_bytes(bytes: &[u8]) -> Result<Ring, RingError> {
        Ok(Ring::index(read::ring_data(bytes)?))
    }

    /// Indexes a ring made in memory, for example by [`crate::RingBuilder::ring_data`].
    ///
    /// # Errors
    /// `DeviceId`, `Field`, `ShortRow` or `UnknownDevice`: the devices or the table contradict
    /// themselves.
    pub fn from_data(data: RingData) -> Result<Ring, RingError> {
        data.check()?;
        Ok(Ring::index(data))
    }

    /// The ring with the devices' replication addresses, in the same order for every partition;
    /// `None` if these are the same addresses.
    pub fn over_replication(&self) -> Option<Ring> {
        let has_own = |device: &Arc<Device>| {
            device.replication_ip != device.ip || device.replication_port != device.port
        };
        if !self.data.devices().any(has_own) {
            return None;
        }
        // Handoffs depend on failure domains, which stay those of the main addresses.
        let mut ring = self.clone();
        for device in ring.data.devs.iter_mut().flatten() {
            let device = Arc::make_mut(device);
            device.ip.clone_from(&device.replication_ip);
            device.port = device.replication_port;
        }
        Some(ring)
    }

    /// Encodes a `.ring.gz` file.
    ///
    /// # Errors
    /// `DeviceIdsTooWide` for version 1 if the ring has ids of four bytes.
    pub fn to_bytes(&self, version: FormatVersion) -> Result<Vec<u8>, RingError> {
        write::ring_bytes(&self.data, version)
    }

    fn index(data: RingData) -> Ring {
        let mut with_parts = BitSet::new(data.devs.len());
        for id in data.rows.iter().flat_map(|row| row.iter()) {
            with_parts.insert(id);
        }
        let (mut regions, mut zones, mut hosts) = (Numbers::new(), Numbers::new(), Numbers::new());
        let mut domains = vec![DomainNumbers::default(); data.devs.len()];
        for device in data.devices() {
            domains[device.id as usize] = DomainNumbers([
                regions.number(device.region),
                zones.number((device.region, device.zone)),
                hosts.number((device.region, device.zone, device.ip.clone())),
            ]);
        }
        let distinct = [regions.0.len(), zones.0.len(), hosts.0.len()];
        let mut seen = distinct.map(BitSet::new);
        let mut assigned = [0; 4];
        for device in data.devices().filter(|d| with_parts.contains(d.id)) {
            assigned[3] += 1;
            for level in 0..3 {
                if seen[level].insert(domains[device.id as usize].0[level]) {
                    assigned[level] += 1;
                }
            }
        }
        Ring {
            data,
            domains,
            assigned,
            distinct,
        }
    }

    pub fn part_power(&self) -> u32 {
        self.data.part_power
    }

    pub fn part_shift(&self) -> u32 {
        self.data.part_shift()
    }

    /// Set during a partition power increase.
    pub fn next_part_power(&self) -> Option<u32> {
        self.data.next_part_power
    }

    /// Number of partitions; zero if the ring was never balanced, and then it has no primaries
    /// either.
    pub fn partition_count(&self) -> u32 {
        let parts = self.data.rows.first().map_or(0, |row| row.len());
        u32::try_from(parts).unwrap_or(u32::MAX)
    }

    /// Number of replicas, possibly fractional: `3.25`.
    pub fn replica_count(&self) -> f64 {
        self.data.replica_count()
    }

    /// The version of the builder that wrote this ring.
    pub fn version(&self) -> Option<u64> {
        self.data.version
    }

    pub fn format_version(&self) -> FormatVersion {
        self.data.format_version
    }

    /// All devices in order of their ids, including those without weight or partitions.
    pub fn devices(&self) -> impl Iterator<Item = &Arc<Device>> {
        self.data.devices()
    }

    pub fn device(&self, id: u32) -> Option<&Arc<Device>> {
        self.data.devs.get(id as usize)?.as_ref()
    }

    pub fn device_count(&self) -> usize {
        self.devices().count()
    }

    /// Number of devices that hold at least one partition: the maximum number of nodes that
    /// primaries and handoffs can give.
    pub fn assigned_device_count(&self) -> usize {
        self.assigned[3]
    }

    pub fn weighted_device_count(&self) -> usize {
        self.devices().filter(|device| device.weight > 0.0).count()
    }

    pub fn partition(&self, hash: ObjectHash) -> u32 {
        hash.partition(self.part_shift())
    }

    /// Device ids of a partition, one per replica, including duplicates.
    pub(crate) fn assigned_ids(&self, part: u32) -> impl Iterator<Item = u32> + '_ {
        self.data
            .rows
            .iter()
            .filter_map(move |row| row.get(part as usize))
    }

    /// The primaries of a partition, in replica order. A device that holds several replicas appears
    /// once. Empty if the partition does not exist.
    pub fn primaries(&self, part: u32) -> Vec<PrimaryNode> {
        let mut nodes: Vec<PrimaryNode> = Vec::with_capacity(self.data.rows.len());
        for id in self.assigned_ids(part) {
            if nodes.iter().any(|node| node.device.id == id) {
                continue;
            }
            if let Some(device) = self.device(id) {
                nodes.push(PrimaryNode {
                    index: nodes.len(),
                    device: Arc::clone(device),
                });
            }
        }
        nodes
    }

    /// All other devices that can replace a primary, best first: other regions, then zones, then
    /// hosts, then any device. Lazy: each step walks only as far as the next node.
    pub fn handoffs(&self, part: u32) -> Handoffs<'_> {
        Handoffs::new(self, part)
    }

    pub fn data(&self) -> &RingData {
        &self.data
    }
}

/// Assigns consecutive numbers 0, 1, 2, … to distinct keys as they appear.
struct Numbers<K>(HashMap<K, u32>);

impl<K: Hash + Eq> Numbers<K> {
    fn new() -> Self {
        Numbers(HashMap::new())
    }

    fn number(&mut self, key: K) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }
}
