//! A GET or HEAD of an object, as object servers of this process take it: by a call, in place of a request that a
//! proxy would have to write, and they to parse.
//!
//! It says what the request would (`calls.rs`).

use std::sync::Arc;

use cairn_types::{HashPath, ObjectHash, PolicyIndex, Timestamp};
use http::HeaderMap;

/// A read of a replica.
pub struct ObjectRead<'a> {
    /// The proxy's, which made the hash.
    pub hash_path: &'a HashPath,
    pub account: &'a str,
    pub container: &'a str,
    pub object: &'a str,
    /// `/account/container/object`.
    pub path: Arc<str>,
    pub hash: ObjectHash,
    pub policy: PolicyIndex,
    pub partition: u32,
    pub is_head: bool,
    pub timestamp: Timestamp,
    /// The client's: conditions, ranges, and what filters ask for.
    pub headers: &'a HeaderMap,
}
