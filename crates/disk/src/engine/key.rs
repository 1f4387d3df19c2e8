//! Names of objects and of their content, none of which says how an engine keeps them.

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

/// An object by the hash of its name, as inventories list it: its name is with its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub at: PartitionKey,
    pub hash: ObjectHash,
}

/// An object by its name, and where it belongs.
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

/// Content that was found broken, by what it is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// The engine's own location of it, which nothing else has while it is open: device and inode of
    /// a file, volume and offset of a record.
    At { place: u64, number: u64 },
    /// The content, or the fragment of this index, of one time.
    Data {
        timestamp: Timestamp,
        fragment: Option<u32>,
    },
}
