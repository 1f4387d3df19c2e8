//! Buffers of whole requests, which are filled again and again: memory that is fresh from the system
//! costs more to map and to clear than to fill with what was read.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Maximum number of buffers that wait for their next use.
const SPARE_MAX: usize = 8;

/// Buffers of one size.
pub(super) struct Buffers {
    bytes: usize,
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    pub(super) fn new(bytes: usize) -> Arc<Buffers> {
        let spare = Mutex::default();
        Arc::new(Buffers { bytes, spare })
    }

    /// An empty buffer with room for `length` bytes.
    pub(super) fn take(&self, length: usize) -> Vec<u8> {
        // A shorter request would keep a whole buffer.
        let spare = match length == self.bytes {
            true => self.spare.lock().pop(),
            false => None,
        };
        spare.unwrap_or_else(|| Vec::with_capacity(length))
    }

    /// Bytes whose buffer comes back when nobody has them any more.
    pub(super) fn lend(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        if buffer.len() != self.bytes {
            return Bytes::from(buffer);
        }
        let home = self.clone();
        Bytes::from_owner(Lent { buffer, home })
    }
}

struct Lent {
    buffer: Vec<u8>,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut spare = self.home.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_reader_is_gone() {
        let buffers = Buffers::new(4);
        let fill = |bytes: &[u8]| {
            let mut buffer = buffers.take(bytes.len());
            assert!(buffer.is_empty());
            buffer.extend_from_slice(bytes);
            buffers.lend(buffer)
        };
        let whole = fill(b"0123");
        let part = whole.slice(1..3);
        drop(whole);
        assert_eq!((&part[..], buffers.spare.lock().len()), (&b"12"[..], 0));
        drop(part);
        assert_eq!(buffers.spare.lock().len(), 1);
        drop(fill(b"45"));
        assert_eq!(buffers.spare.lock().len(), 1, "shorter ones are not kept");
        assert_eq!(&fill(b"6789")[..], b"6789");
        let many: Vec<Bytes> = (0..20).map(|_| fill(b"abcd")).collect();
        drop(many);
        assert_eq!(buffers.spare.lock().len(), SPARE_MAX);
    }
}
