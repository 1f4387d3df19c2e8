//! Content of written objects: a stream of bytes that follows from the object's name, so that any
//! driver can check any part of any object without having written it.
//!
//! Block n of 4096 bytes is the first 4096 bytes of the random stream `fork(hash(name), n)`.

use crate::plan::Content;
use crate::rng::Rng;

/// Bytes of one independent stream.
const BLOCK: usize = 4096;

/// The key of an object's content.
pub fn key(container: &str, object: &str) -> u64 {
    let mut hash = 0x51_7c_c1_b7_27_22_0a_95u64;
    for part in [container, "/", object] {
        for &byte in part.as_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// Fills `out` with the bytes from `offset` on.
pub fn fill(content: Content, key: u64, offset: u64, out: &mut [u8]) {
    if content == Content::Zero {
        out.fill(0);
        return;
    }
    let mut offset = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let within = (offset % BLOCK as u64) as usize;
        let take = rest.len().min(BLOCK - within);
        let (part, later) = rest.split_at_mut(take);
        fill_block(key, offset / BLOCK as u64, within, part);
        rest = later;
        offset += take as u64;
    }
}

fn fill_block(key: u64, block: u64, skip: usize, out: &mut [u8]) {
    let mut rng = Rng::fork(key, block);
    for _ in 0..skip / 8 {
        rng.next_u64();
    }
    let mut out = out;
    if !skip.is_multiple_of(8) {
        let word = rng.next_u64().to_le_bytes();
        let lead = &word[skip % 8..];
        let take = lead.len().min(out.len());
        let (part, rest) = out.split_at_mut(take);
        part.copy_from_slice(&lead[..take]);
        out = rest;
    }
    let mut words = out.chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    let rest = words.into_remainder();
    let last = rng.next_u64().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Compares what arrives, piece by piece, with what was written.
#[derive(Debug)]
pub struct Checker {
    key: u64,
    content: Content,
    offset: u64,
    right: bool,
}

impl Checker {
    pub fn new(content: Content, key: u64, offset: u64) -> Self {
        Self {
            key,
            content,
            offset,
            right: true,
        }
    }

    pub fn take(&mut self, mut bytes: &[u8]) {
        let mut expected = [0u8; BLOCK];
        while self.right && !bytes.is_empty() {
            let part = bytes
                .len()
                .min(BLOCK - (self.offset % BLOCK as u64) as usize);
            fill(self.content, self.key, self.offset, &mut expected[..part]);
            self.right = expected[..part] == bytes[..part];
            self.offset += part as u64;
            bytes = &bytes[part..];
        }
    }

    pub fn is_right(&self) -> bool {
        self.right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_the_same() {
        let key = key("c", "o");
        let mut whole = vec![0; 10_000];
        fill(Content::Random, key, 0, &mut whole);
        for (offset, length) in [(0, 1), (3, 9), (4090, 20), (4095, 5000), (8191, 1809)] {
            let mut part = vec![0; length];
            fill(Content::Random, key, offset as u64, &mut part);
            assert_eq!(part, whole[offset..offset + length], "{offset}");
        }
    }

    #[test]
    fn a_wrong_byte_is_seen() {
        let key = key("c", "o");
        let mut whole = vec![0; 9000];
        fill(Content::Random, key, 0, &mut whole);
        let check = |bytes: &[u8]| {
            let mut checker = Checker::new(Content::Random, key, 0);
            bytes.chunks(1000).for_each(|chunk| checker.take(chunk));
            checker.is_right()
        };
        assert!(check(&whole));
        whole[8999] ^= 1;
        assert!(!check(&whole));
    }
}
