//! Pool of page-aligned memory blocks of one size: object content passes through them on its way
//! between a network and a disk.
//!
//! Blocks are aligned so that a disk can take them without another copy (`O_DIRECT`), and mapped by
//! `mmap`, so that the memory of a burst of clients goes back to the operating system when they
//! have left.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;

/// Size of a block, in bytes.
pub const SIZE: usize = 128 << 10;
/// Alignment in bytes of a block, and of the pieces of it that are written to disk by direct I/O.
pub const ALIGN: usize = 4096;
/// Free blocks that the pool keeps; further ones are unmapped.
const FREE_BLOCKS_MAX: usize = 64;

static FREE: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Number of blocks in use that hold content being read for clients.
static READ: AtomicUsize = AtomicUsize::new(0);

/// Number of blocks in use by uploads and reads together.
pub fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

/// Blocks in use above which each upload is limited to one block at a time: 32 MB for all.
const UPLOAD_CROWD_BLOCKS: usize = 256;

/// Is the pool so busy that uploads should not gather several blocks before they write?
pub fn are_crowded() -> bool {
    in_use() >= UPLOAD_CROWD_BLOCKS
}

/// Blocks in use by reads above which further content is read in small pieces: 32 MB for all.
const READ_CROWD_BLOCKS: usize = 256;
/// Bytes read at once when reads are crowded.
const SMALL_READ_BYTES: usize = 16 << 10;

/// Number of bytes to read at once for a client: `usual`, or less when reads are crowded. A client
/// that does not take its data occupies memory of the size of its last read.
pub fn read_size(usual: usize) -> usize {
    match READ.load(Ordering::Relaxed) < READ_CROWD_BLOCKS {
        true => usual,
        false => usual.min(SMALL_READ_BYTES),
    }
}

/// Does this slice begin at an address that direct I/O accepts? Its length is not checked.
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN)
}

/// A block that is filled from its start.
pub struct Block {
    memory: Option<MmapMut>,
    filled: usize,
    is_read: bool,
}

impl Block {
    /// Takes an empty block from the pool.
    ///
    /// # Errors
    /// Fails if the system has no memory left to map.
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

    /// Takes an empty block and counts it as used by a read.
    ///
    /// # Errors
    /// As [`Block::take`].
    pub fn take_to_read() -> io::Result<Self> {
        let mut block = Block::take()?;
        block.is_read = true;
        READ.fetch_add(1, Ordering::Relaxed);
        Ok(block)
    }

    /// Moves as many of `bytes` into the block as fit, and leaves the rest in `bytes`.
    pub fn fill_from(&mut self, bytes: &mut Bytes) {
        let spare = self.spare();
        let count = spare.len().min(bytes.len());
        spare[..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        *bytes = bytes.slice(count..);
    }

    /// The unfilled rest of the block, whose content is arbitrary. After writing to it, report the
    /// count to [`Block::advance`].
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

    /// The filled part as shared bytes; the block returns to the pool when the last reference is
    /// dropped.
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
        if let Some(memory) = self.memory.take().filter(|_| free.len() < FREE_BLOCKS_MAX) {
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
        let crowd: Vec<Block> = (0..READ_CROWD_BLOCKS)
            .map(|_| Block::take_to_read())
            .collect::<io::Result<_>>()?;
        assert_eq!(read_size(SIZE), SMALL_READ_BYTES);
        assert_eq!(read_size(100), 100);
        drop(crowd);
        // Uploads have a limit of their own.
        let _uploads: Vec<Block> = (0..READ_CROWD_BLOCKS)
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
