//! Writing content to a new file, past the page cache where that pays.
//!
//! Copying a large upload into the page cache costs more processor time than all other work on it,
//! and evicts pages that are read. So whole blocks are written with `O_DIRECT`: straight from the
//! receive buffer if that is aligned, else through one aligned block. The tail, less than a page,
//! is written as usual, and so is everything on a file system without direct I/O.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_types::blocks::{ALIGN, Block, is_aligned};
use cairn_types::heuristic::Heuristic;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::device_pool::Disk;

/// The kernel's limit of buffers per call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Content of a file that is written sequentially.
pub(crate) struct FileContent {
    fd: Arc<OwnedFd>,
    /// Bytes accepted.
    length: u64,
    /// Bytes in the file.
    in_file: u64,
    direct: bool,
    /// Content too short for a direct write so far.
    carry: Option<Block>,
}

impl FileContent {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Self {
        FileContent {
            fd,
            length: 0,
            in_file: 0,
            direct: false,
            carry: None,
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Bypasses the page cache from here on, if the file system can. To be called before the first
    /// write.
    pub(crate) fn write_directly(&mut self, disk: &Disk) {
        let can = &disk.state.use_direct_io;
        let is_off = Heuristic::DirectWrite.is_off();
        if self.length > 0 || is_off || !can.load(Ordering::Relaxed) {
            return;
        }
        self.direct = self.set_direct(true).is_ok();
        if !self.direct {
            tracing::debug!(device = disk.name(), "no O_DIRECT here");
            can.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn append(&mut self, chunks: &[Bytes]) -> Result<(), Errno> {
        self.length += chunks.iter().map(|c| c.len() as u64).sum::<u64>();
        if !self.direct {
            return self.put(chunks.to_vec());
        }
        let mut pieces = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let mut rest = chunk.clone();
            if self.carry.is_none() && is_aligned(&rest) {
                let whole = rest.split_to(rest.len() / ALIGN * ALIGN);
                pieces.push(whole);
            }
            while !rest.is_empty() {
                let mut block = match self.carry.take() {
                    Some(block) => block,
                    None => Block::take().map_err(|_| Errno::NOMEM)?,
                };
                block.fill_from(&mut rest);
                if block.is_full() {
                    pieces.push(block.into_bytes());
                } else {
                    self.carry = Some(block);
                }
            }
        }
        self.put(pieces)
    }

    /// Writes the remaining buffered bytes.
    pub(crate) fn finish(&mut self) -> Result<(), Errno> {
        let Some(block) = self.carry.take() else {
            return Ok(());
        };
        let mut rest = block.into_bytes();
        let whole = rest.split_to(rest.len() / ALIGN * ALIGN);
        self.put(vec![whole])?;
        if !rest.is_empty() {
            self.write_as_usual()?;
            self.put(vec![rest])?;
        }
        Ok(())
    }

    fn put(&mut self, mut pieces: Vec<Bytes>) -> Result<(), Errno> {
        loop {
            pieces.retain(|piece| !piece.is_empty());
            if pieces.is_empty() {
                return Ok(());
            }
            let slices: Vec<IoSlice<'_>> = pieces
                .iter()
                .take(PIECES_MAX)
                .map(|piece| IoSlice::new(piece))
                .collect();
            match rustix::io::pwritev(&*self.fd, &slices, self.in_file) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    self.in_file += count as u64;
                    skip(&mut pieces, count);
                    if self.direct && !count.is_multiple_of(ALIGN) {
                        self.write_as_usual()?;
                    }
                }
                Err(Errno::INTR) => {}
                // Some file systems accept the flag and refuse the write.
                Err(Errno::INVAL) if self.direct => self.write_as_usual()?,
                Err(errno) => return Err(errno),
            }
        }
    }

    fn write_as_usual(&mut self) -> Result<(), Errno> {
        self.direct = false;
        self.set_direct(false)
    }

    fn set_direct(&self, direct: bool) -> Result<(), Errno> {
        let mut flags = rustix::fs::fcntl_getfl(&*self.fd)?;
        flags.set(OFlags::DIRECT, direct);
        rustix::fs::fcntl_setfl(&*self.fd, flags)
    }
}

/// Drops `count` bytes from the front.
fn skip(pieces: &mut [Bytes], mut count: usize) {
    for piece in pieces {
        let part = count.min(piece.len());
        let _ = piece.split_to(part);
        count -= part;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::device_pool::{Devices, DevicesConfig};
    use crate::staged_file::{Reserve, StagedFile, just_link};

    fn disk() -> (tempfile::TempDir, Disk) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        let disk = Devices::new(config).get("d").unwrap().disk().unwrap();
        (root, disk)
    }

    /// Bytes without two equal pages.
    fn content(len: usize) -> Bytes {
        let words =
            (0..len.div_ceil(4) as u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes());
        Bytes::from(words.take(len).collect::<Vec<u8>>())
    }

    fn aligned(mut content: Bytes) -> Vec<Bytes> {
        let mut blocks = Vec::new();
        while !content.is_empty() {
            let mut block = Block::take().unwrap();
            block.fill_from(&mut content);
            blocks.push(block.into_bytes());
        }
        blocks
    }

    fn unaligned(content: &Bytes, size: usize) -> Vec<Bytes> {
        let chunks = content.chunks(size);
        chunks.map(Bytes::copy_from_slice).collect()
    }

    #[test]
    fn the_file_is_what_was_written() {
        let (root, disk) = disk();
        let sizes = [0, 1, 4095, 4096, 4097, 131_072, 131_073, 300_000, 1 << 20];
        for len in sizes {
            let whole = content(len);
            let mut ways = vec![aligned(whole.clone())];
            for size in [1_000, 4_096, 70_000, 200_000] {
                ways.push(unaligned(&whole, size));
                // First aligned, then not.
                let (first, rest) = whole.split_at(len / 2);
                let mut mixed = aligned(Bytes::copy_from_slice(first));
                mixed.extend(unaligned(&Bytes::copy_from_slice(rest), size));
                ways.push(mixed);
            }
            for (number, chunks) in ways.iter().enumerate() {
                for together in [1, 3, usize::MAX] {
                    let mut staged =
                        StagedFile::create(&disk, "tmp", Reserve::Keep { size: None }).unwrap();
                    staged.write_directly();
                    for some in chunks.chunks(together.min(chunks.len().max(1))) {
                        staged.write(some).unwrap();
                    }
                    assert_eq!(staged.written(), len as u64);
                    staged
                        .publish("objects/1/abc/x", "f.data", just_link)
                        .unwrap();
                    let file = std::fs::read(root.path().join("d/objects/1/abc/x/f.data")).unwrap();
                    assert!(
                        file == whole,
                        "{len} bytes, way {number}, {together} together"
                    );
                }
            }
        }
    }

    #[test]
    fn a_piece_is_skipped_in_part() {
        let mut pieces = vec![Bytes::from("abc"), Bytes::from("def"), Bytes::from("g")];
        skip(&mut pieces, 4);
        assert_eq!(pieces, ["", "ef", "g"]);
    }
}
