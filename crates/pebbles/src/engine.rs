//! The engine: objects of storage policies in the volumes of each device.
//!
//! A device has a store for each policy that has this engine, in `pebbles[-N]/`. Bodies of up to a
//! mebibyte are in records. A larger one is a file, `pebbles[-N]/large/<number>`, that is durable
//! before the record that names it is written; one that no record names is removed.

mod barred;
mod caretaker;
mod daemons;
mod handover;
mod large;
mod open;
pub(crate) mod patience;
mod rows;
mod slot;
mod stores;
mod turns;
mod uploads;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::{Disk, DiskError, Engine, PartitionKey};
use cairn_types::{HashPath, PolicyIndex, PolicySet, Timestamp};

use crate::hashes::Age;
use crate::index::{Grouping, Part};
use crate::object::Rules;
use stores::Opened;
pub use stores::{StoreStatus, Stores};

/// Options of the engine, with Swift's names where it has them.
#[derive(Clone, Debug, PartialEq)]
pub struct PebblesConfig {
    /// Tombstones older than this go.
    pub reclaim_age: Duration,
    /// Fragments that are not durable are not removed sooner than this after their time.
    pub commit_window: Duration,
    /// Bytes of a volume; 0: by the size of the file system.
    pub volume_bytes: u64,
    /// A file is put in the place of a policy's folder of files, so that nobody fills that.
    pub bars_files: bool,
    /// Other processes that wait for volumes are let in between two operations, and asked to let this one in.
    pub takes_turns: bool,
}

impl Default for PebblesConfig {
    fn default() -> Self {
        PebblesConfig {
            reclaim_age: Duration::from_secs(7 * 24 * 3600),
            commit_window: Duration::from_secs(60),
            volume_bytes: 0,
            bars_files: true,
            takes_turns: true,
        }
    }
}

/// Objects in volumes. Cheap to clone.
#[derive(Clone)]
pub struct PebblesEngine {
    inner: Arc<Inner>,
    /// Content that is read whole is held against its ETag, beside its checksum.
    is_audit: bool,
    /// A store for operations that must not wait for one.
    held: Option<Arc<Opened>>,
    part_powers: Option<PartPowers>,
}

/// The part power that the ring of a policy has now; `None`: that is not known.
pub type PartPowers = Arc<dyn Fn(PolicyIndex) -> Option<u32> + Send + Sync>;

/// The part of a policy in how its stores are opened.
#[derive(Clone, Copy)]
struct OfPolicy {
    policy: PolicyIndex,
    rules: Rules,
    grouping: Grouping,
}

struct Inner {
    hash_path: HashPath,
    /// The policies, and how many different fragments an object of each has.
    policies: BTreeMap<PolicyIndex, Option<u32>>,
    config: PebblesConfig,
    stores: Arc<Stores>,
}

impl fmt::Debug for PebblesEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.inner.config;
        f.debug_struct("PebblesEngine")
            .field("config", config)
            .finish()
    }
}

impl PebblesEngine {
    /// `stores`: of all engines of a process over the same devices, for a store has one committer.
    pub fn new(
        hash_path: HashPath,
        policies: &PolicySet,
        config: PebblesConfig,
        stores: Arc<Stores>,
    ) -> Self {
        let unique = |fragments: usize| u32::try_from(fragments).unwrap_or(u32::MAX);
        let policies = policies.iter().map(|policy| {
            let fragments = policy.erasure().map(|scheme| unique(scheme.unique()));
            (policy.index, fragments)
        });
        PebblesEngine {
            inner: Arc::new(Inner {
                hash_path,
                policies: policies.collect(),
                config,
                stores,
            }),
            is_audit: false,
            held: None,
            part_powers: None,
        }
    }

    /// With the rings' part powers, by which partitions follow from hashes: objects are found whatever number
    /// of a partition they were written with. Without them each is in the partition that it was written with.
    pub fn with_part_powers(self, powers: PartPowers) -> Self {
        PebblesEngine {
            part_powers: Some(powers),
            ..self
        }
    }

    /// A partition as the ring has it now.
    fn part(&self, at: PartitionKey) -> Part {
        Part::new(at.partition, self.part_power(at.policy))
    }

    fn part_power(&self, policy: PolicyIndex) -> Option<u32> {
        self.part_powers.as_ref().and_then(|of| of(policy))
    }

    /// This engine with a store that stays open as long as it is there.
    fn holding(&self, opened: Arc<Opened>) -> Self {
        PebblesEngine {
            held: Some(opened),
            ..self.clone()
        }
    }

    /// The store that is held, if it is this one.
    fn held(&self, disk: &Disk, policy: PolicyIndex) -> Option<Arc<Opened>> {
        let is_it = |held: &&Arc<Opened>| held.device == disk.name() && held.policy == policy;
        self.held.as_ref().filter(is_it).cloned()
    }

    fn unique_fragments(&self, policy: PolicyIndex) -> Option<u32> {
        self.inner.policies.get(&policy).copied().flatten()
    }

    /// The store of a policy, made where there is none.
    fn store(&self, disk: &Disk, policy: PolicyIndex) -> Result<Arc<Opened>, DiskError> {
        if let Some(held) = self.held(disk, policy) {
            return Ok(held);
        }
        let unique_fragments = self.unique_fragments(policy);
        let grouping = match self.part_powers {
            Some(_) => Grouping::ByHash,
            None => Grouping::ByPartition,
        };
        let of_policy = OfPolicy {
            policy,
            rules: Rules { unique_fragments },
            grouping,
        };
        self.inner.stores.get(disk, of_policy, &self.inner.config)
    }

    /// The store of a policy; `None`: nothing was ever written to it.
    fn store_if_there(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
    ) -> Result<Option<Arc<Opened>>, DiskError> {
        let held = self.held(disk, policy);
        if let Some(opened) = held.or_else(|| self.inner.stores.opened(disk.name(), policy)) {
            return Ok(Some(opened));
        }
        match stores::is_there(disk, policy) {
            true => self.store(disk, policy).map(Some),
            false => Ok(None),
        }
    }

    fn age(&self, disk: &Disk) -> Age {
        Age {
            now: now(disk),
            reclaim_age: self.inner.config.reclaim_age,
        }
    }
}

fn now(disk: &Disk) -> Timestamp {
    Timestamp::from_secs(u64::try_from(disk.now()).unwrap_or(0))
}

impl Engine for PebblesEngine {
    fn name(&self) -> &'static str {
        "pebbles"
    }

    fn for_audit(&self) -> Arc<dyn Engine> {
        Arc::new(PebblesEngine {
            inner: self.inner.clone(),
            is_audit: true,
            held: None,
            part_powers: self.part_powers.clone(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
