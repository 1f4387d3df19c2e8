//! Objects between two numbers of partitions, of engines that keep an object in a place of its
//! partition. When a ring gets twice as many partitions, each object's partition is another one, and
//! the device that has it the same: it gets a second name in the new partition before the ring
//! changes, and loses the old one after.

use cairn_types::{ObjectHash, PolicyIndex};

use super::key::PartitionKey;
use crate::device_pool::Disk;
use crate::error::DiskError;

/// An object in two partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub policy: PolicyIndex,
    pub hash: ObjectHash,
    pub from: u32,
    pub to: u32,
}

impl Move {
    /// The move of an object in `from` to its partition at that power; `None`: it stays.
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

/// The rule where both partitions have different content under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collision {
    /// The new one stays, and it is an error.
    Refuse,
    /// The new one is quarantined, and the old one linked.
    Quarantine,
    /// The new one stays, and the old one may go.
    KeepNew,
}

/// Names of an object in its old partition, which the engine alone understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldNames(pub(crate) Vec<String>);

impl OldNames {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The outcome of linking an object's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relinked {
    /// Those that count.
    pub files: usize,
    pub linked: usize,
    pub errors: usize,
    /// Names that may be removed once the links are durable; none where one could not be made.
    pub superfluous: OldNames,
}

/// The capability of giving objects a second name, and of taking the first one away. A name is
/// removed only when the other is durable: the caller syncs in between, once for many.
pub trait Relinking: Send + Sync {
    /// Gives what counts of objects its name in the new partition; says of each what was done.
    fn link(
        &self,
        disk: &Disk,
        objects: &[Move],
        collision: Collision,
    ) -> Result<Vec<Relinked>, DiskError>;

    /// Makes what was linked durable: to be called before [`Relinking::unlink`].
    fn sync_links(&self, disk: &Disk) -> Result<(), DiskError>;

    /// Removes old names, which [`Relinking::link`] told, of objects of one partition; how many.
    fn unlink(&self, disk: &Disk, objects: &[(Move, OldNames)]) -> Result<usize, DiskError>;

    /// Removes a partition that nothing is left in; false where something is.
    fn remove_empty(&self, disk: &Disk, at: PartitionKey) -> Result<bool, DiskError>;
}
