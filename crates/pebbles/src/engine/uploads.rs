//! The memory of uploads that will be records: one bound for all devices of a folder.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use crate::format::BODY_MAX;

/// Bytes of bodies that are in memory until they are written.
pub(super) const UPLOAD_MEMORY_MAX: usize = 64 << 20;
/// Bytes that a body of unknown length begins with.
const FIRST: usize = 64 << 10;

/// Bytes in use.
#[derive(Default)]
pub(super) struct UploadMemory(Mutex<usize>);

impl UploadMemory {
    fn take(&self, bytes: usize) -> bool {
        let mut used = self.0.lock();
        let fits = *used + bytes <= UPLOAD_MEMORY_MAX;
        *used += if fits { bytes } else { 0 };
        fits
    }
}

/// A part of the memory, given back when dropped.
pub(super) struct Held {
    of: Arc<UploadMemory>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.of.0.lock() -= self.bytes;
    }
}

/// The bytes so far of a body that has room in a record.
pub(super) struct InMemory {
    bytes: BytesMut,
    held: Held,
}

impl InMemory {
    pub(super) fn new(of: &Arc<UploadMemory>) -> Self {
        InMemory {
            bytes: BytesMut::new(),
            held: Held {
                of: of.clone(),
                bytes: 0,
            },
        }
    }

    /// Appends; false, and nothing is appended, where there is no memory for it. `size`: of the whole
    /// body, if that is known.
    pub(super) fn append(&mut self, chunks: &[Bytes], size: Option<u64>) -> bool {
        let len = self.bytes.len() + chunks.iter().map(Bytes::len).sum::<usize>();
        if len > self.held.bytes {
            let whole = size.and_then(|size| usize::try_from(size).ok());
            let wanted = whole.unwrap_or((2 * self.held.bytes).max(FIRST));
            let wanted = wanted.clamp(len, BODY_MAX.max(len));
            if !self.held.of.take(wanted - self.held.bytes) {
                return false;
            }
            self.held.bytes = wanted;
            let mut bytes = BytesMut::with_capacity(wanted);
            bytes.extend_from_slice(&self.bytes);
            self.bytes = bytes;
        }
        for chunk in chunks {
            self.bytes.extend_from_slice(chunk);
        }
        true
    }

    /// The body, and what is to be kept as long as it is in memory.
    pub(super) fn finish(self) -> (Bytes, Held) {
        (self.bytes.freeze(), self.held)
    }
}
