//! The daemons' part of the seam for `diskfile`, over the modules that know its files. The
//! requests' part is in `diskfile.rs`.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ssync::{Held, Offer};
use cairn_types::{ObjectHash, PolicyIndex};

use crate::device_pool::{Device, Disk};
use crate::diskfile::DiskFileEngine;
use crate::diskfile::suffix_hashes;
use crate::engine::{
    Audit, Audited, Collision, Contents, Engine, Handover, Hashed, Inventory, Move, ObjectId,
    ObjectState, OldNames, OpenOptions, PartitionKey, Purge, Relinked, Relinking, ReplicationLock,
    Rsync, Sendable, SuffixHash, Upkeep,
};
use crate::error::DiskError;
use crate::layout::{FragmentChoice, partition_dir};
use crate::{audit, relink, replication};

impl Engine for DiskFileEngine {
    fn name(&self) -> &'static str {
        "diskfile"
    }

    fn for_audit(&self) -> Arc<dyn Engine> {
        Arc::new(self.verifying_all())
    }

    fn relinking(&self) -> Option<&dyn Relinking> {
        Some(self)
    }

    fn rsync(&self) -> Option<&dyn Rsync> {
        Some(self)
    }
}

impl Inventory for DiskFileEngine {
    /// Creates the policy's directory, into which rsync writes, and removes files in place of
    /// partitions.
    fn partitions(&self, disk: &Disk, policy: PolicyIndex) -> Result<Vec<u32>, DiskError> {
        replication::list_partitions(disk, policy)
    }

    fn objects(&self, disk: &Disk, at: PartitionKey) -> Result<Vec<ObjectHash>, DiskError> {
        audit::objects(disk, at.policy, at.partition)
    }

    fn suffix_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
        recalculate: &[String],
        look: bool,
    ) -> Result<Hashed, DiskError> {
        suffix_hashes::get_hashes(disk, self, at.policy, at.partition, recalculate, look)
    }

    fn invalidate(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffixes: &[String],
    ) -> Result<(), DiskError> {
        let dir = partition_dir(at.policy, at.partition);
        suffix_hashes::invalidate_durably(disk, &dir, suffixes)
    }

    fn offers(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffix: &str,
        fragment: &FragmentChoice,
    ) -> Result<Vec<Offer>, DiskError> {
        replication::list_offers(disk, self, at.policy, at.partition, suffix, fragment)
    }

    fn held(
        &self,
        disk: &Disk,
        at: PartitionKey,
        offer: &Offer,
        fragment: Option<u32>,
    ) -> Result<Option<Held>, DiskError> {
        let PartitionKey { policy, partition } = at;
        match self.unique_fragments(policy) {
            Some(_) => replication::held_fragment(disk, self, policy, partition, offer, fragment),
            None => replication::held(disk, self, policy, partition, offer.hash),
        }
    }

    fn open_to_send(
        &self,
        disk: &Disk,
        object: ObjectId,
        inline_limit: u64,
        fragment: FragmentChoice,
    ) -> Result<Sendable, DiskError> {
        let PartitionKey { policy, partition } = object.at;
        let hash = object.hash;
        replication::open_to_send(disk, self, policy, partition, hash, inline_limit, fragment)
    }
}

impl Handover for DiskFileEngine {
    fn try_lock_partition(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<Option<ReplicationLock>, DiskError> {
        replication::try_lock_partition(disk, at.policy, at.partition)
    }

    fn contents(&self, disk: &Disk, at: PartitionKey) -> Result<Contents, DiskError> {
        replication::contents(disk, at.policy, at.partition)
    }

    fn remove(
        &self,
        disk: &Disk,
        at: PartitionKey,
        contents: &Contents,
        only: Option<&HashSet<ObjectHash>>,
        keep: &HashSet<ObjectHash>,
    ) -> Result<usize, DiskError> {
        let chosen: Vec<_> = contents.chosen(only, keep).collect();
        replication::remove_contents(disk, at.policy, at.partition, &chosen)
    }

    fn remove_partition(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError> {
        replication::remove_partition(disk, at.policy, at.partition)
    }

    fn purge(&self, disk: &Disk, at: PartitionKey, purge: &Purge) -> Result<(), DiskError> {
        replication::purge(disk, self, at.policy, at.partition, purge)
    }

    fn state(&self, disk: &Disk, object: ObjectId) -> Result<ObjectState, DiskError> {
        audit::object_state(disk, object)
    }

    fn remove_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, DiskError> {
        replication::remove_unchanged(disk, object, state)
    }

    fn remove_own(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, DiskError> {
        let unique = self.unique_fragments(object.at.policy);
        replication::remove_own(disk, unique, object, state)
    }

    fn quarantine_unchanged(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
        reason: &str,
    ) -> Result<bool, DiskError> {
        audit::quarantine_unchanged(disk, object, state, reason)
    }
}

impl Audit for DiskFileEngine {
    fn partitions_to_audit(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
    ) -> Result<Vec<u32>, DiskError> {
        audit::partitions_to_do(disk, policy, walk)
    }

    fn note_audited(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        walk: &str,
        left: &[u32],
    ) -> Result<(), DiskError> {
        audit::write_status(disk, policy, walk, left)
    }

    fn audit(
        &self,
        disk: &Disk,
        object: ObjectId,
        options: &OpenOptions,
    ) -> Result<Audited, DiskError> {
        let PartitionKey { policy, partition } = object.at;
        audit::audit(disk, self, policy, partition, object.hash, options)
    }

    fn settled_hashes(
        &self,
        disk: &Disk,
        at: PartitionKey,
    ) -> Result<BTreeMap<String, SuffixHash>, DiskError> {
        suffix_hashes::settled_hashes(disk, at.policy, at.partition)
    }

    fn check_suffix(
        &self,
        disk: &Disk,
        at: PartitionKey,
        suffix: &str,
        settled: &SuffixHash,
    ) -> Result<bool, DiskError> {
        suffix_hashes::check_suffix(disk, self, at.policy, at.partition, suffix, settled)
    }
}

impl Upkeep for DiskFileEngine {
    /// Temporary files of ended uploads in the policy's `tmp`.
    fn clear_leftovers(&self, disk: &Disk, policy: PolicyIndex) -> Result<(), DiskError> {
        replication::remove_old_temporary(disk, policy, self.config().reclaim_age)
    }
}

impl Relinking for DiskFileEngine {
    fn link(
        &self,
        disk: &Disk,
        objects: &[Move],
        collision: Collision,
    ) -> Result<Vec<Relinked>, DiskError> {
        relink::link(disk, self, objects, collision)
    }

    fn sync_links(&self, disk: &Disk) -> Result<(), DiskError> {
        relink::sync(disk)
    }

    fn unlink(&self, disk: &Disk, objects: &[(Move, OldNames)]) -> Result<usize, DiskError> {
        relink::unlink(disk, objects)
    }

    fn remove_empty(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError> {
        relink::remove_empty(disk, at.policy, at.partition)
    }
}

impl Rsync for DiskFileEngine {
    fn sources(&self, device: &Device, at: PartitionKey, suffixes: &[String]) -> Vec<PathBuf> {
        let partition = device.path().join(partition_dir(at.policy, at.partition));
        let folders = suffixes.iter().map(|suffix| partition.join(suffix));
        folders.filter(|folder| folder.is_dir()).collect()
    }

    fn target(&self, at: PartitionKey) -> String {
        partition_dir(at.policy, at.partition)
    }

    fn remove_temporary(
        &self,
        disk: &Disk,
        object: ObjectId,
        age: Duration,
    ) -> Result<(), DiskError> {
        let PartitionKey { policy, partition } = object.at;
        audit::remove_rsync_temporary(disk, policy, partition, object.hash, age)
    }
}
