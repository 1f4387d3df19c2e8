//! Relinking: for engines that store an object in a location of its partition. When a ring's
//! partitions double, each object changes its partition but not its device: it gets a second name
//! in the new partition before the ring changes, and loses the old one after.

use cairn_types::{ObjectHash, PolicyIndex};

use super::key::PartitionKey;
use crate::device_pool::Disk;
use crate::error::DiskError;

/// An object with its old and new partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub policy: PolicyIndex,
    pub hash: ObjectHash,
    pub from: u32,
    pub to: u32,
}

impl Move {
    /// The move of an object in `from` to its partition at that part power; `None` if it stays.
    pub fn to_power(policy: PolicyIndex, hash: ObjectHash, from: u32, power: u32) -> Option<Move> {
        let to = hash.partition(32_u32.saturating_sub(power));
        (to != from).then_some(Move {
            policy,
            hash,
            from,
            to,
        })
    }
}

/// Rule for different content under one name in both partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collision {
    /// The new one stays, and an error is reported.
    Refuse,
    /// The new one is quarantined, and the old one linked.
    Quarantine,
    /// The new one stays, and the old one may be removed.
    KeepNew,
}

/// Names of an object in its old partition; private to the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldNames(pub(crate) Vec<String>);

impl OldNames {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Result of linking an object's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relinked {
    /// Number of valid files.
    pub files: usize,
    pub linked: usize,
    pub errors: usize,
    /// Names to remove once the links are durable; none if a link failed.
    pub superfluous: OldNames,
}

/// Capability of giving objects a second name and removing the first. A name is removed only once
/// the other is durable: the caller syncs in between, once for many.
///
/// Errors are a device's: `Device` where it takes no work now, `Io`, `NoSpace` or `ReadOnly` where
/// its file system refuses. The errors named at a call come beside them.
/// A partition that another process keeps locked is `Io`.
pub trait Relinking: Send + Sync {
    /// Links the valid files of objects into their new partitions; one result per object.
    ///
    /// # Errors
    /// As every call of this trait; a file that cannot be linked is counted in its object's result.
    fn link(
        &self,
        disk: &Disk,
        objects: &[Move],
        collision: Collision,
    ) -> Result<Vec<Relinked>, DiskError>;

    /// Makes the links durable; to be called before [`Relinking::unlink`].
    ///
    /// # Errors
    /// The links may not be durable: no name is to be removed.
    fn sync_links(&self, disk: &Disk) -> Result<(), DiskError>;

    /// Removes old names returned by [`Relinking::link`], of objects in one partition. Returns
    /// their number.
    ///
    /// # Errors
    /// As every call of this trait; some names may have been removed.
    fn unlink(&self, disk: &Disk, objects: &[(Move, OldNames)]) -> Result<usize, DiskError>;

    /// Removes an empty partition; false if it is not empty.
    ///
    /// # Errors
    /// As every call of this trait.
    fn remove_empty(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError>;
}
