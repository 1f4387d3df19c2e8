//! A write of an object that needs no more than is in memory, as object servers of this process take it: by a
//! call, in place of a request whose path and headers each of them would have to parse.
//!
//! A server refuses what it does not know well enough (conditions, promises, expiry, overrides of rows), and
//! is then sent the request, which says the same in Swift's words ([`ObjectHeads`]). So a call carries
//! nothing that a request would not have, and the request alone chooses the codes of refusals.

use std::any::Any;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use http::{HeaderMap, StatusCode};

use crate::heads::ObjectHeads;
use crate::node::Node;
use crate::object_read::{ObjectRead, Reading};

/// A write, shared by its replicas.
pub struct WholeWrite {
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

/// A server's answer to a call, whole.
pub struct Called {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The answer to a call that is to come.
pub type Answering = Pin<Box<dyn Future<Output = Called> + Send>>;

/// An object server that takes requests by a call.
pub trait TakesCalls: Send + Sync {
    /// Begins to write a replica, by its number, to the node's device. The write is carried to its end even if
    /// the future is dropped. `None`: the server wants the request.
    fn write(&self, write: &Arc<WholeWrite>, replica: usize, node: &Node) -> Option<Answering>;

    /// Reads the replica of the node's device. `None`: the server wants the request.
    fn read<'a>(&'a self, read: &'a ObjectRead<'a>, node: &Node) -> Option<Reading<'a>>;
}
