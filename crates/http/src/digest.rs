//! MD5 of a body, computed once in a process and shared with its backends.

use std::sync::{Arc, OnceLock};

/// A digest slot in a request's extensions, set by a proxy that hashes the body itself: a server of
/// the same process takes the digest at the body's end instead of hashing again. It is set before
/// the body ends successfully, and never sent over a socket.
#[derive(Clone, Default, Debug)]
pub struct SharedDigest(Arc<OnceLock<[u8; 16]>>);

impl SharedDigest {
    pub fn new() -> Self {
        Self::default()
    }

    /// The digest of a body that is hashed already.
    pub fn of(md5: [u8; 16]) -> Self {
        let digest = Self::default();
        digest.set(md5);
        digest
    }

    /// Sets the digest, before the end of the body is sent; later calls have no effect.
    pub fn set(&self, md5: [u8; 16]) {
        let _ = self.0.set(md5);
    }

    pub fn get(&self) -> Option<[u8; 16]> {
        self.0.get().copied()
    }
}
