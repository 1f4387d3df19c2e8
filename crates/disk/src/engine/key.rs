//! Keys of objects and of content, independent of the engine.

use std::sync::Arc;

use cairn_types::{ObjectHash, PolicyIndex, Timestamp};

/// A partition of a storage policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionKey {
    pub policy: PolicyIndex,
    pub partition: u32,
}

impl PartitionKey {
    pub fn new(policy: PolicyIndex, partition: u32) -> Self {
        PartitionKey { policy, partition }
    }

    pub fn object(self, hash: ObjectHash) -> ObjectId {
        ObjectId { at: self, hash }
    }
}

/// An object by the hash of its name, as in inventories; the name is in its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub at: PartitionKey,
    pub hash: ObjectHash,
}

/// An object by its name, with policy and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectKey {
    pub policy: PolicyIndex,
    pub partition: u32,
    pub hash: ObjectHash,
    /// `/account/container/object`.
    pub name: Arc<str>,
}

impl ObjectKey {
    pub fn id(&self) -> ObjectId {
        PartitionKey::new(self.policy, self.partition).object(self.hash)
    }
}

/// Identity of content that was found broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// The engine's location of the content, unique while it is open: device and inode of a file,
    /// or volume and offset of a record.
    At { place: u64, number: u64 },
    /// The content, or the fragment of this index, with this timestamp.
    Data {
        timestamp: Timestamp,
        fragment: Option<u32>,
    },
}
