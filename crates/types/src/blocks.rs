//! Page-aligned memory of one size that is used again: what content passes through on its way
//! from or to a disk.
//!
//! Aligned, so that a disk can take it without another copy (`O_DIRECT`). Mapped, so that what
//! many clients needed at once goes back to the system when they have left.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;

/// Bytes of a block.
pub const SIZE: usize = 128 << 10;
/// What content in a block, and the pieces of it that go to disk directly, are aligned to.
pub const ALIGN: usize = 4096;
/// Blocks kept for the next who asks; more are given back to the system.
const KEPT_MAX: usize = 64;

static FREE: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Those in use that content was read into for clients.
static READ: AtomicUsize = AtomicUsize::new(0);

/// Blocks that are somewhere between a network and a disk.
pub fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

/// With more blocks than this in use each upload has one at a time: 32 MB for all.
const CROWD: usize = 256;

/// Whether so many blocks are in use that nothing should be gathered ahead.
pub fn are_crowded() -> bool {
    in_use() >= CROWD
}

/// With more blocks than this read for clients, further content is read in small pieces: 32 MB for
/// all.
const READ_CROWD: usize = 256;
/// Bytes of such a piece.
const SMALL_READ_BYTES: usize = 16 << 10;

/// Bytes to read at once for a client: `usual`, or less in a crowd. A client that takes nothing keeps
/// as much memory as was read for it last.
pub fn read_size(usual: usize) -> usize {
    match READ.load(Ordering::Relaxed) < READ_CROWD {
        true => usual,
        false => usual.min(SMALL_READ_BYTES),
    }
}

/// Whether these bytes lie in memory as a disk wants them; their length is another matter.
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN)
}

/// A block that is being filled, from its start.
pub struct Block {
    memory: Option<MmapMut>,
    filled: usize,
    is_read: bool,
}

impl Block {
    /// An empty block. Fails where the system has no memory.
    pub fn take() -> io::Result<Self> {
        let kept = FREE.lock().pop();
        let memory = match kept {
            Some(memory) => memory,
            None => MmapMut::map_anon(SIZE)?,
        };
        IN_USE.fetch_add(1, Ordering::Relaxed);
        Ok(Block {
            memory: Some(memory),
            filled: 0,
            is_read: false,
        })
    }

    /// An empty block for content that is read for a client.
    pub fn take_to_read() -> io::Result<Self> {
        let mut block = Block::take()?;
        block.is_read = true;
        READ.fetch_add(1, Ordering::Relaxed);
        Ok(block)
    }

    /// Takes of `bytes` what fits, and leaves the rest there.
    pub fn fill_from(&mut self, bytes: &mut Bytes) {
        let spare = self.spare();
        let count = spare.len().min(bytes.len());
        spare[..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        *bytes = bytes.slice(count..);
    }

    /// The room behind what is filled, with whatever was in it; [`Block::advance`] tells how much
    /// of it is now content.
    pub fn spare(&mut self) -> &mut [u8] {
        let filled = self.filled;
        self.memory.as_mut().map_or(&mut [], |m| &mut m[filled..])
    }

    pub fn advance(&mut self, count: usize) {
        self.filled = (self.filled + count).min(SIZE);
    }

    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    pub fn is_full(&self) -> bool {
        self.filled == SIZE
    }

    /// What was filled; its last owner hands the block back.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |m| &m[..self.filled])
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        IN_USE.fetch_sub(1, Ordering::Relaxed);
        if self.is_read {
            READ.fetch_sub(1, Ordering::Relaxed);
        }
        let mut free = FREE.lock();
        if let Some(memory) = self.memory.take().filter(|_| free.len() < KEPT_MAX) {
            free.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_filled_is_shown() -> io::Result<()> {
        let mut first = Block::take()?;
        first.fill_from(&mut Bytes::from_static(b"filled"));
        let bytes = first.into_bytes();
        let mut second = Block::take()?;
        second.spare()[..2].copy_from_slice(b"no");
        second.advance(2);
        assert_eq!(bytes, "filled");
        assert!(is_aligned(&bytes));
        assert_eq!(second.into_bytes(), "no");
        Ok(())
    }

    #[test]
    fn in_a_crowd_less_is_read_at_once() -> io::Result<()> {
        let crowd: Vec<Block> = (0..READ_CROWD)
            .map(|_| Block::take_to_read())
            .collect::<io::Result<_>>()?;
        assert_eq!(read_size(SIZE), SMALL_READ_BYTES);
        assert_eq!(read_size(100), 100);
        drop(crowd);
        // Uploads have a bound of their own.
        let _uploads: Vec<Block> = (0..READ_CROWD)
            .map(|_| Block::take())
            .collect::<io::Result<_>>()?;
        assert_eq!(read_size(SIZE), SIZE);
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_left() -> io::Result<()> {
        let mut content = Bytes::from(vec![7; SIZE + 5]);
        let mut block = Block::take()?;
        block.fill_from(&mut content);
        assert!(block.is_full());
        assert_eq!(content.len(), 5);
        block.fill_from(&mut content);
        assert_eq!(content.len(), 5);
        assert_eq!(block.into_bytes().len(), SIZE);
        Ok(())
    }
}
