//! The seam: traits between engines, which store objects on a device, and the servers and daemons
//! that use them.
//!
//! An engine stores the objects of storage policies. `diskfile`, Swift's layout with a file per
//! object, is one; others may keep many objects in one file, or none on disk. No detail of storage
//! passes through here: an object is identified by its key, its hash or an [`ObjectState`], never
//! by a path.
//!
//! | trait | is for |
//! | --- | --- |
//! | [`ObjectEngine`] | requests: read, write, delete, fragments in two phases |
//! | [`Inventory`] | REPLICATE and SSYNC: partitions, suffix hashes, offers and wants |
//! | [`Handover`] | removal of objects that other nodes have received |
//! | [`Audit`] | reading everything again |
//! | [`Upkeep`] | opening, recovery and maintenance of a device |
//! | [`Relinking`], [`Rsync`] | capabilities that an engine may lack |
//!
//! All calls are synchronous: make them in a closure passed to [`crate::Device::read`],
//! [`crate::Device::write`] or [`crate::Device::commit`], the whole operation in one. Any call may
//! be an engine's first on a device.

mod audit;
mod content;
mod handover;
mod inventory;
mod key;
mod object;
mod relinking;
mod rsync;
mod suffix_hash;
mod upkeep;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use cairn_types::{PolicyIndex, PolicySet, StoragePolicy};

pub use crate::object_info::{FragmentInfo, InfoError, ObjectInfo, OpenOptions};
pub use audit::{Audit, Audited};
pub(crate) use content::{Check, PageCache, Source};
pub use content::{Content, StoredContent};
pub use handover::{Contents, Handover, ObjectState, Purge, ReplicationLock, Reverted};
pub use inventory::{Inventory, Sendable};
pub use key::{ObjectId, ObjectKey, PartitionKey, Suspect};
pub use object::{AtHand, Durability, Known, ObjectEngine, ObjectWriter, OpenObject, Seen};
pub use relinking::{Collision, Move, OldNames, Relinked, Relinking};
pub use rsync::Rsync;
pub use suffix_hash::{Counted, FragmentHashes, Hashed, SuffixHash, SuffixHasher};
pub use upkeep::{Figure, NextUpkeep, Upkeep};

/// The full interface of an engine.
pub trait Engine:
    ObjectEngine + Inventory + Handover + Audit + Upkeep + Debug + Send + Sync
{
    /// The engine's name in logs and errors.
    fn name(&self) -> &'static str;

    /// The same engine for an auditor: verifies all content it reads, and leaves none in a cache.
    fn for_audit(&self) -> Arc<dyn Engine>;

    /// The relinking capability; `None` if objects need no second name while their ring's
    /// partitions double.
    fn relinking(&self) -> Option<&dyn Relinking> {
        None
    }

    /// The rsync capability; `None` if objects are not files that `rsync` could send, so that SSYNC
    /// is used.
    fn rsync(&self) -> Option<&dyn Rsync> {
        None
    }
}

/// The engine of each storage policy of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engines(Arc<BTreeMap<PolicyIndex, Arc<dyn Engine>>>);

impl Engines {
    /// Assigns each policy the engine that `engine` returns.
    ///
    /// # Errors
    /// The first error of `engine`.
    pub fn try_new<E>(
        policies: &PolicySet,
        mut engine: impl FnMut(&StoragePolicy) -> Result<Arc<dyn Engine>, E>,
    ) -> Result<Self, E> {
        let each = policies.iter();
        let each = each.map(|policy| Ok((policy.index, engine(policy)?)));
        Ok(Engines(Arc::new(each.collect::<Result<_, E>>()?)))
    }

    /// Assigns one engine to all policies.
    pub fn uniform(policies: &PolicySet, engine: Arc<dyn Engine>) -> Self {
        let each = policies.iter().map(|policy| (policy.index, engine.clone()));
        Engines(Arc::new(each.collect()))
    }

    /// The engine of a policy; `None` for an unknown one.
    pub fn of(&self, policy: PolicyIndex) -> Option<&Arc<dyn Engine>> {
        self.0.get(&policy)
    }

    /// Each engine once, in the order of the policies.
    pub fn distinct(&self) -> Vec<&Arc<dyn Engine>> {
        let mut distinct: Vec<&Arc<dyn Engine>> = Vec::new();
        for engine in self.0.values() {
            if distinct.iter().all(|other| !Arc::ptr_eq(other, engine)) {
                distinct.push(engine);
            }
        }
        distinct
    }

    /// All engines in the form of [`Engine::for_audit`].
    pub fn for_audit(&self) -> Self {
        let each = self.0.iter();
        let each = each.map(|(policy, engine)| (*policy, engine.for_audit()));
        Engines(Arc::new(each.collect()))
    }
}

#[cfg(test)]
mod tests;
