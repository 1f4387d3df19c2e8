//! A write of an object that needs no more than is in memory, as object servers of this process take it: by a
//! call, in place of a request whose path and headers each of them would have to parse.
//!
//! A server refuses what it does not know well enough (conditions, promises, expiry, overrides of rows), and
//! is then sent the request, which says the same in Swift's words ([`ObjectHeads`]). So a call carries
//! nothing that a request would not have, and the request alone chooses the codes of refusals.

use std::any::Any;
use std::sync::OnceLock;

use bytes::Bytes;
use cairn_types::{HashPath, ObjectHash, PolicyIndex, Timestamp};

use crate::heads::ObjectHeads;

/// A write, shared by its replicas.
pub struct WholeWrite {
    /// The proxy's, which made the hash.
    pub hash_path: HashPath,
    pub account: String,
    pub container: String,
    pub object: String,
    pub hash: ObjectHash,
    pub policy: PolicyIndex,
    pub partition: u32,
    pub timestamp: Timestamp,
    pub change: Change,
    /// The headers of the requests that this stands for.
    pub heads: ObjectHeads,
    pub prepared: Prepared,
}

/// The object after a write.
pub enum Change {
    Put { body: Bytes, md5: [u8; 16] },
    Delete,
}

/// A note of the first server about a write, for the other replicas.
#[derive(Default)]
pub struct Prepared(OnceLock<Option<Box<dyn Any + Send + Sync>>>);

impl Prepared {
    /// The note, which `make` makes once. `None` if it makes none, or the note is of another type.
    pub fn get_or_make<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> Option<T>,
    ) -> Option<&T> {
        let boxed = || make().map(|made| Box::new(made) as Box<dyn Any + Send + Sync>);
        self.0.get_or_init(boxed).as_ref()?.downcast_ref()
    }
}
