//! Partitions of a pass: all those on this server's devices.

use std::sync::Arc;
use std::time::Duration;

use cairn_disk::engine::{Hashed, ReplicationLock};
use cairn_disk::{Device, DiskError, Engine, PartitionKey};
use cairn_http::own_thread;
use cairn_peer::{LoadedRing, Node};
use cairn_ring::Device as RingDevice;
use cairn_types::PolicyIndex;
use tokio::time::{Instant, sleep};
use tracing::{error, warn};

use super::{PartitionWork, Pass};
use crate::local::OwnAddress;

/// Timeout for a partition that another server is just sending us.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A partition on one of our devices.
pub(crate) struct LocalPartition<S> {
    pub(crate) policy: PolicyIndex,
    pub(crate) scheme: S,
    pub(crate) ring: Arc<LoadedRing>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) device: Arc<Device>,
    pub(crate) local: Arc<RingDevice>,
    pub(crate) partition: u32,
    /// Whether this device is not a primary.
    pub(crate) is_handoff: bool,
}

impl<S> LocalPartition<S> {
    pub(crate) fn at(&self) -> PartitionKey {
        PartitionKey::new(self.policy, self.partition)
    }

    /// The partition's primaries except this device.
    pub(crate) fn other_primaries(&self) -> Vec<Node> {
        let mut nodes = self.ring.primaries(self.partition);
        nodes.retain(|node| node.device.id != self.local.id);
        nodes
    }

    /// Hashes of its suffixes; `recalculate` are hashed anew, and with `look` suffixes unknown so
    /// far are searched for.
    pub(crate) async fn hashes(
        &self,
        recalculate: Vec<String>,
        look: bool,
    ) -> Result<Hashed, DiskError> {
        let (engine, at) = (self.engine.clone(), self.at());
        let hashed = self
            .device
            .write(move |disk| engine.suffix_hashes(disk, at, &recalculate, look));
        hashed.await
    }

    /// Locks it against incoming transfers, by which both sides would remove what the other just
    /// received; `None` if another holder has it.
    pub(crate) async fn lock(&self) -> Result<Option<ReplicationLock>, DiskError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let (engine, at) = (self.engine.clone(), self.at());
            let lock = self
                .device
                .read(move |disk| engine.try_lock_partition(disk, at));
            match lock.await? {
                None if Instant::now() < deadline => sleep(LOCK_RETRY_INTERVAL).await,
                lock => return Ok(lock),
            }
        }
    }
}

impl<W: PartitionWork> Pass<W> {
    /// All partitions in random order.
    pub(super) async fn collect_partitions(&self) -> Vec<LocalPartition<W::Scheme>> {
        let mut partitions = Vec::new();
        let parts = self.parts();
        for policy in parts.policies.iter() {
            let index = policy.index;
            let (ring, engine) = (parts.rings.object(index), parts.engines.of(index));
            let (Some(scheme), true, Some(ring), Some(engine)) = (
                W::scheme(policy),
                self.only.has_policy(index.0),
                ring,
                engine,
            ) else {
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
            partitions.extend(
                self.partitions_of_policy(index, scheme, engine, &ring)
                    .await,
            );
        }
        own_thread::shuffle(&mut partitions);
        partitions
    }

    async fn partitions_of_policy(
        &self,
        policy: PolicyIndex,
        scheme: W::Scheme,
        engine: &Arc<dyn Engine>,
        ring: &Arc<LoadedRing>,
    ) -> Vec<LocalPartition<W::Scheme>> {
        let config = self.config();
        let own = own_devices(&config.ring_ip, config.port, ring).await;
        if own.is_empty() {
            error!(
                policy = policy.0,
                ip = config.ring_ip,
                port = config.port,
                "no device of the ring is this server's: nothing to {}",
                W::VERB
            );
        }
        let mut partitions = Vec::new();
        for local in own {
            if !self.only.has_device(&local.device) {
                continue;
            }
            match self.list(policy, engine, &local).await {
                Ok((device, listed)) => {
                    // One outside the ring is from before a change of its part power.
                    let count = ring.ring().partition_count();
                    let listed = listed.into_iter().filter(|partition| *partition < count);
                    let here = listed.map(|partition| LocalPartition {
                        policy,
                        scheme,
                        ring: ring.clone(),
                        engine: engine.clone(),
                        device: device.clone(),
                        local: local.clone(),
                        partition,
                        is_handoff: is_handoff(ring, &local, partition),
                    });
                    partitions.extend(here.filter(|partition| self.work.wants(partition)));
                }
                Err(error) => {
                    if self.context().logged.is_due(&local.device, &error) {
                        warn!(device = local.device, %error, "device not {}", W::PARTICIPLE);
                    }
                    self.count(|stats| W::count_failed_device(stats, ring));
                }
            }
        }
        partitions
    }

    /// The device, and the partitions of a policy on it.
    async fn list(
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
}

fn is_handoff(ring: &LoadedRing, local: &RingDevice, partition: u32) -> bool {
    let primaries = ring.primaries(partition);
    primaries.iter().all(|node| node.device.id != local.id)
}

/// The ring's devices served at this address.
async fn own_devices(ring_ip: &str, port: Option<u16>, ring: &LoadedRing) -> Vec<Arc<RingDevice>> {
    let ring_ip = ring_ip.to_owned();
    // Resolves names, which blocks.
    let own = own_thread::blocking(move || OwnAddress::of(&ring_ip, port)).await;
    own.flatten()
        .map_or_else(Vec::new, |own| own.replicated_devices(ring))
}
