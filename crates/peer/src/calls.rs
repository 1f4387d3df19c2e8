//! Calls of object servers of this process, in place of requests: what a proxy hands over, and what it gets.
//!
//! A call says what the request would. A server refuses what it does not know well enough, as what comes from a
//! proxy of another cluster in this process, and is then sent the request.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_http::Response;
use http::{HeaderMap, StatusCode};

use crate::node::Node;
use crate::object_read::ObjectRead;
use crate::whole_write::WholeWrite;

/// A server's answer to a write, whole.
pub struct Called {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The answer to a write that is to come.
pub type Answering = Pin<Box<dyn Future<Output = Called> + Send>>;

/// The answer to a read that is to come.
pub type Reading<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// An object server that takes requests by a call.
pub trait TakesCalls: Send + Sync {
    /// Begins to write a replica, by its number, to the node's device. The write is carried to its end even if
    /// the future is dropped. `None`: the server wants the request.
    fn write(&self, write: &Arc<WholeWrite>, replica: usize, node: &Node) -> Option<Answering>;

    /// Reads the replica of the node's device. `None`: the server wants the request.
    fn read<'a>(&'a self, read: &'a ObjectRead<'a>, node: &Node) -> Option<Reading<'a>>;
}
