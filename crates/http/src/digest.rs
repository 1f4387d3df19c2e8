//! An MD5 computed once in a process and shared with the backends in it.

use std::sync::{Arc, OnceLock};

/// Put into a request's extensions by a proxy that hashes the body itself: the server of the
/// same process takes this digest at the body's end and need not hash again. It is set before
/// the body ends well. Never sent over a socket.
#[derive(Clone, Default, Debug)]
pub struct SharedDigest(Arc<OnceLock<[u8; 16]>>);

impl SharedDigest {
    pub fn new() -> Self {
        Self::default()
    }

    /// Of a body already hashed.
    pub fn of(md5: [u8; 16]) -> Self {
        let digest = Self::default();
        digest.set(md5);
        digest
    }

    /// Set once, before the end of the body is sent; later calls change nothing.
    pub fn set(&self, md5: [u8; 16]) {
        let _ = self.0.set(md5);
    }

    pub fn get(&self) -> Option<[u8; 16]> {
        self.0.get().copied()
    }
}
