//! Jobs of a pass: each partition on each of our devices, and in it each fragment index.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_disk::engine::SuffixHash;
use cairn_disk::{Device, DiskError, Engine, PartitionKey};
use cairn_http::own_thread;
use cairn_peer::{LoadedRing, Node};
use cairn_ring::Device as RingDevice;
use cairn_types::{ErasureScheme, PolicyIndex};
use tracing::{error, warn};

use super::pass::Pass;
use crate::object_replicator::jobs::own_devices;

/// A partition on one of our devices.
pub(super) struct Part {
    pub(super) policy: PolicyIndex,
    pub(super) scheme: ErasureScheme,
    pub(super) ring: Arc<LoadedRing>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) device: Arc<Device>,
    pub(super) local: Arc<RingDevice>,
    pub(super) partition: u32,
}

/// The hashes of a partition's suffixes.
pub(super) type Hashes = BTreeMap<String, SuffixHash>;

/// A job for the fragments of one index.
pub(super) struct Job {
    pub(super) part: Arc<Part>,
    pub(super) kind: Kind,
    /// `None` for tombstones only.
    pub(super) index: Option<u32>,
    pub(super) suffixes: Vec<String>,
    pub(super) nodes: Vec<Node>,
    /// Index that belongs on this device, if any.
    pub(super) primary: Option<u32>,
}

pub(super) enum Kind {
    /// They belong here: sync with other servers.
    Sync(Hashes),
    /// They belong on these nodes.
    Revert,
}

impl Part {
    pub(super) fn at(&self) -> PartitionKey {
        PartitionKey::new(self.policy, self.partition)
    }

    pub(super) fn fragment_of(&self, node: &Node) -> u32 {
        self.scheme.fragment_of_node(node.index) as u32
    }

    fn is_primary(&self) -> bool {
        let primaries = self.ring.primaries(self.partition);
        primaries.iter().any(|node| node.device.id == self.local.id)
    }

    pub(super) async fn hashes(
        &self,
        recalculate: Vec<String>,
        look: bool,
    ) -> Result<Hashes, DiskError> {
        let (engine, at) = (self.engine.clone(), self.at());
        let hashed = self
            .device
            .write(move |disk| engine.suffix_hashes(disk, at, &recalculate, look));
        Ok(hashed.await?.hashes)
    }
}

impl Pass {
    /// All partitions in random order.
    pub(super) async fn collect_parts(&self) -> Vec<Arc<Part>> {
        let mut parts = Vec::new();
        let only = &self.only;
        for policy in self.parts().policies.iter() {
            let index = policy.index;
            let is_wanted = only.has_policy(index.0);
            let (ring, engine) = (
                self.parts().rings.object(index),
                self.parts().engines.of(index),
            );
            let (Some(scheme), true, Some(ring), Some(engine)) =
                (policy.erasure(), is_wanted, ring, engine)
            else {
                continue;
            };
            if ring.ring().next_part_power().is_some() {
                // Every object has two names now, and would be sent twice.
                warn!(
                    policy = policy.name,
                    "next_part_power is set: policy skipped"
                );
                continue;
            }
            parts.extend(self.parts_of_policy(index, *scheme, engine, &ring).await);
        }
        own_thread::shuffle(&mut parts);
        parts
    }

    async fn parts_of_policy(
        &self,
        policy: PolicyIndex,
        scheme: ErasureScheme,
        engine: &Arc<dyn Engine>,
        ring: &Arc<LoadedRing>,
    ) -> Vec<Arc<Part>> {
        let config = &self.reconstructor.config;
        let own = own_devices(&config.ring_ip, config.port, ring).await;
        if own.is_empty() {
            error!(
                policy = policy.0,
                ip = config.ring_ip,
                port = config.port,
                "no device of the ring is this server's: nothing to reconstruct"
            );
        }
        let mut parts = Vec::new();
        for local in own {
            if !self.only.has_device(&local.device) {
                continue;
            }
            match self.partitions(policy, engine, &local).await {
                Ok((device, partitions)) => {
                    let here = partitions.into_iter().map(|partition| Part {
                        policy,
                        scheme,
                        ring: ring.clone(),
                        engine: engine.clone(),
                        device: device.clone(),
                        local: local.clone(),
                        partition,
                    });
                    // A partition outside the ring is from before a change of its part power.
                    let here = here.filter(|part| {
                        part.partition < ring.ring().partition_count()
                            && !(config.handoffs_only && part.is_primary())
                    });
                    parts.extend(here.map(Arc::new));
                }
                Err(error) => {
                    if self.reconstructor.logged.is_due(&local.device, &error) {
                        warn!(device = local.device, %error, "device not reconstructed");
                    }
                    self.count(|stats| stats.failures += 1);
                }
            }
        }
        parts
    }

    async fn partitions(
        &self,
        policy: PolicyIndex,
        engine: &Arc<dyn Engine>,
        local: &RingDevice,
    ) -> Result<(Arc<Device>, Vec<u32>), DiskError> {
        let device = self.parts().devices.get(&local.device)?.background();
        let engine = engine.clone();
        let listed = device.write(move |disk| {
            engine.clear_leftovers(disk, policy)?;
            engine.partitions(disk, policy)
        });
        let mut partitions = listed.await?;
        partitions.retain(|partition| self.only.has_partition(*partition));
        Ok((device, partitions))
    }

    /// Jobs of a partition. None if it is misplaced and empty.
    pub(super) async fn jobs(&self, part: &Arc<Part>) -> Result<Vec<Job>, DiskError> {
        let hashes = part.hashes(Vec::new(), true).await?;
        let (mut by_index, bare) = suffixes_by_index(&hashes);
        let primaries = part.ring.primaries(part.partition);
        let own = primaries
            .iter()
            .position(|node| node.device.id == part.local.id);
        let primary = own.map(|at| part.fragment_of(&primaries[at]));
        let job = |kind, index, suffixes, nodes| Job {
            part: part.clone(),
            kind,
            index,
            suffixes,
            nodes,
            primary,
        };
        let mut jobs = Vec::new();
        if let Some(at) = own {
            let suffixes = primary.and_then(|index| by_index.remove(&index));
            let nodes = partners(at, &primaries);
            let suffixes = suffixes.unwrap_or_default();
            jobs.push(job(Kind::Sync(hashes), primary, suffixes, nodes));
        }
        let mut rest: Vec<(u32, Vec<String>)> = by_index.into_iter().collect();
        rest.sort_by_key(|(index, suffixes)| (suffixes.len(), *index));
        for (index, suffixes) in rest {
            let belongs = |node: &&Node| part.fragment_of(node) == index;
            let nodes: Vec<Node> = primaries.iter().filter(belongs).cloned().collect();
            if nodes.len() < part.scheme.duplication() {
                warn!(
                    partition = part.partition,
                    index, "a fragment's place is not in the ring"
                );
                continue;
            }
            jobs.push(job(Kind::Revert, Some(index), suffixes, nodes));
        }
        match jobs.first_mut() {
            Some(first) => first.suffixes.extend(bare),
            None if bare.is_empty() => {}
            // Tombstones have no index. They are sent to enough servers that the rest could not
            // restore the object.
            None => {
                let enough = part.scheme.replicas() - part.scheme.data() + 1;
                let mut nodes = primaries.clone();
                own_thread::shuffle(&mut nodes);
                nodes.truncate(enough);
                jobs.push(job(Kind::Revert, None, bare, nodes));
            }
        }
        Ok(jobs)
    }
}

/// Suffixes by fragment index, and those without fragments.
fn suffixes_by_index(hashes: &Hashes) -> (BTreeMap<u32, Vec<String>>, Vec<String>) {
    let mut by_index: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut bare = Vec::new();
    for (suffix, hash) in hashes {
        let Some(hashes) = hash.fragments().filter(|hashes| !hashes.is_empty()) else {
            continue;
        };
        let mut indices = hashes.keys().flatten().peekable();
        if indices.peek().is_none() {
            bare.push(suffix.clone());
        }
        for index in indices {
            by_index.entry(*index).or_default().push(suffix.clone());
        }
    }
    (by_index, bare)
}

/// The nodes before, after and opposite `at`, each once.
fn partners(at: usize, primaries: &[Node]) -> Vec<Node> {
    let count = primaries.len();
    let mut found: Vec<Node> = Vec::new();
    for step in [count - 1, 1, count / 2] {
        let node = &primaries[(at + step) % count];
        let is_new = found.iter().all(|other| other.device.id != node.device.id);
        if is_new && node.device.id != primaries[at].device.id {
            found.push(node.clone());
        }
    }
    found
}
