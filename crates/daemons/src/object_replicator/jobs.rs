//! Jobs of a pass: each partition on each of our devices, with the other nodes that should have it.

use std::sync::Arc;

use cairn_disk::{Device, DiskError, Engine, PartitionKey};
use cairn_http::own_thread;
use cairn_peer::{LoadedRing, Node};
use cairn_ring::Device as RingDevice;
use cairn_types::{PolicyIndex, PolicyKind};
use tracing::{error, warn};

use super::pass::Pass;
use crate::local::OwnAddress;

/// One partition on one device.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) policy: PolicyIndex,
    pub(super) ring: Arc<LoadedRing>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) device: Arc<Device>,
    pub(super) local: Arc<RingDevice>,
    pub(super) partition: u32,
    /// The partition's primaries except this device.
    pub(super) nodes: Vec<Node>,
    /// Whether this device is not a primary.
    pub(super) is_handoff: bool,
}

impl Job {
    pub(super) fn at(&self) -> PartitionKey {
        PartitionKey::new(self.policy, self.partition)
    }

    /// Whether this partition is searched for unknown suffixes in this cycle.
    pub(super) fn is_looked_into(&self, cycle: u32) -> bool {
        self.partition
            .wrapping_add(cycle)
            .is_multiple_of(super::SEARCH_CYCLE_PASSES)
    }
}

impl Pass {
    /// All jobs in random order.
    pub(super) async fn collect_jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        let only = &self.only;
        for policy in self.replicator.parts.policies.iter() {
            let index = policy.index;
            let is_wanted = only.has_policy(index.0);
            let parts = &self.replicator.parts;
            let (ring, engine) = (parts.rings.object(index), parts.engines.of(index));
            let (PolicyKind::Replication, true, Some(ring), Some(engine)) =
                (policy.kind, is_wanted, ring, engine)
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
            jobs.extend(self.jobs_of_policy(index, engine, &ring).await);
        }
        own_thread::shuffle(&mut jobs);
        jobs
    }

    async fn jobs_of_policy(
        &self,
        policy: PolicyIndex,
        engine: &Arc<dyn Engine>,
        ring: &Arc<LoadedRing>,
    ) -> Vec<Job> {
        let mut jobs = Vec::new();
        let config = &self.replicator.config;
        let own = own_devices(&config.ring_ip, config.port, ring).await;
        if own.is_empty() {
            error!(
                policy = policy.0,
                ip = config.ring_ip,
                port = config.port,
                "no device of the ring is this server's: nothing to replicate"
            );
        }
        for local in own {
            if !self.only.has_device(&local.device) {
                continue;
            }
            match self.partitions(policy, engine, &local).await {
                Ok((device, partitions)) => {
                    let jobs_here = partitions.into_iter().filter_map(|partition| {
                        job(policy, engine, ring, &device, &local, partition)
                    });
                    jobs.extend(jobs_here);
                }
                Err(error) => {
                    if self.replicator.logged.is_due(&local.device, &error) {
                        warn!(device = local.device, %error, "device not replicated");
                    }
                    self.count(&local.device, |stats| {
                        for device in ring.ring().devices() {
                            stats.add_failure(&device.replication_ip, &device.device);
                        }
                    });
                }
            }
        }
        jobs
    }

    async fn partitions(
        &self,
        policy: PolicyIndex,
        engine: &Arc<dyn Engine>,
        local: &RingDevice,
    ) -> Result<(Arc<Device>, Vec<u32>), DiskError> {
        let parts = &self.replicator.parts;
        let device = parts.devices.get(&local.device)?.background();
        let engine = engine.clone();
        let listed = device.write(move |disk| {
            engine.clear_leftovers(disk, policy)?;
            engine.partitions(disk, policy)
        });
        let mut partitions = listed.await?;
        partitions.retain(|partition| self.only.has_partition(*partition));
        Ok((device, partitions))
    }
}

/// The ring's devices served at this address.
pub(crate) async fn own_devices(
    ring_ip: &str,
    port: Option<u16>,
    ring: &LoadedRing,
) -> Vec<Arc<RingDevice>> {
    let ring_ip = ring_ip.to_owned();
    // Resolves names, which blocks.
    let own = own_thread::blocking(move || OwnAddress::of(&ring_ip, port)).await;
    own.flatten()
        .map_or_else(Vec::new, |own| own.replicated_devices(ring))
}

fn job(
    policy: PolicyIndex,
    engine: &Arc<dyn Engine>,
    ring: &Arc<LoadedRing>,
    device: &Arc<Device>,
    local: &Arc<RingDevice>,
    partition: u32,
) -> Option<Job> {
    // Outside this ring: from before a change of its part power.
    if partition >= ring.ring().partition_count() {
        return None;
    }
    let mut nodes = ring.primaries(partition);
    let before = nodes.len();
    nodes.retain(|node| node.device.id != local.id);
    Some(Job {
        policy,
        ring: ring.clone(),
        engine: engine.clone(),
        device: device.clone(),
        local: local.clone(),
        partition,
        is_handoff: nodes.len() == before,
        nodes,
    })
}
