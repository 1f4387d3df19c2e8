//! Buffers that are used again: filling one costs no more than the copy into it.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Bytes of a buffer.
pub(crate) const SIZE: usize = 128 << 10;
/// Buffers kept for the next reader; more are given back to the allocator.
const KEPT_MAX: usize = 64;

static FREE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

/// A buffer of [`SIZE`] bytes, with whatever was in it.
pub(crate) struct Buffer(Option<Box<[u8]>>);

impl Buffer {
    pub(crate) fn take() -> Self {
        let kept = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer(Some(kept.unwrap_or_else(|| vec![0; SIZE].into())))
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }

    /// The first `len` bytes, which hand the buffer back when they are dropped.
    pub(crate) fn into_bytes(self, len: usize) -> Bytes {
        let len = len.min(SIZE);
        Bytes::from_owner(Filled { buffer: self, len })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = self.0.take().filter(|_| free.len() < KEPT_MAX) {
            free.push(buffer);
        }
    }
}

struct Filled {
    buffer: Buffer,
    len: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        self.buffer.0.as_deref().map_or(&[], |all| &all[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_filled_is_shown() {
        let mut first = Buffer::take();
        first.as_mut()[..4].copy_from_slice(b"full");
        let bytes = first.into_bytes(4);
        let mut second = Buffer::take();
        second.as_mut()[..2].copy_from_slice(b"no");
        assert_eq!(bytes, "full");
        assert_eq!(second.into_bytes(2), "no");
    }
}
