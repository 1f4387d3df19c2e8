//! Two MD5s computed in parallel: of content and of its ciphertext, which may be somewhat longer.
//!
//! Each step of MD5 depends on the one before and leaves most of a CPU idle, so two digests side by
//! side take little longer than one.

const BLOCK_BYTES: usize = 64;

/// One 32-bit word of each digest.
type Pair = [u32; 2];

#[derive(Clone)]
pub(crate) struct Md5Pair {
    state: [Pair; 4],
    /// Bytes of each input that do not fill a block yet.
    rest: [[u8; BLOCK_BYTES]; 2],
    lengths: [u64; 2],
}

impl Md5Pair {
    pub(crate) fn new() -> Self {
        Md5Pair {
            state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476].map(|word| [word, word]),
            rest: [[0; BLOCK_BYTES]; 2],
            lengths: [0; 2],
        }
    }

    /// Number of bytes of each input so far.
    pub(crate) fn lengths(&self) -> [u64; 2] {
        self.lengths
    }

    /// Adds data to both. Parallel as far as both have whole blocks.
    pub(crate) fn update(&mut self, first: &[u8], second: &[u8]) {
        let (first, first_filled) = self.fill(0, first);
        let (second, second_filled) = self.fill(1, second);
        let [one, other] = self.rest;
        match (first_filled, second_filled) {
            (true, true) => compress(&mut self.state, &one, &other),
            (true, false) => self.compress_lane(0, &one),
            (false, true) => self.compress_lane(1, &other),
            (false, false) => {}
        }
        let (blocks, rest) = first.as_chunks::<BLOCK_BYTES>();
        let (others, other_rest) = second.as_chunks::<BLOCK_BYTES>();
        for (block, other) in blocks.iter().zip(others) {
            compress(&mut self.state, block, other);
        }
        let paired = blocks.len().min(others.len());
        for block in &blocks[paired..] {
            self.compress_lane(0, block);
        }
        for block in &others[paired..] {
            self.compress_lane(1, block);
        }
        self.keep(0, rest);
        self.keep(1, other_rest);
    }

    /// Completes a lane's partial block; returns the remaining bytes, and whether the block is
    /// complete.
    fn fill<'a>(&mut self, lane: usize, bytes: &'a [u8]) -> (&'a [u8], bool) {
        let held = self.held(lane);
        self.lengths[lane] += bytes.len() as u64;
        if held == 0 {
            return (bytes, false);
        }
        let (taken, left) = bytes.split_at(bytes.len().min(BLOCK_BYTES - held));
        self.rest[lane][held..held + taken.len()].copy_from_slice(taken);
        (left, held + taken.len() == BLOCK_BYTES)
    }

    /// Number of bytes in a lane's partial block.
    fn held(&self, lane: usize) -> usize {
        (self.lengths[lane] % BLOCK_BYTES as u64) as usize
    }

    /// Starts a lane's next block; if `rest` is empty, keeps the partial one.
    fn keep(&mut self, lane: usize, rest: &[u8]) {
        self.rest[lane][..rest.len()].copy_from_slice(rest);
    }

    /// Compresses a block of one lane while the other has none.
    fn compress_lane(&mut self, lane: usize, block: &[u8; BLOCK_BYTES]) {
        let mut both = self.state;
        compress(&mut both, block, block);
        for (word, new) in self.state.iter_mut().zip(both) {
            word[lane] = new[lane];
        }
    }

    /// MD5 padding of a lane: a bit, zeros, and its length in bits.
    fn padding(&self, lane: usize) -> ([u8; 2 * BLOCK_BYTES], usize) {
        let mut padding = [0; 2 * BLOCK_BYTES];
        padding[0] = 0x80;
        let zeros = (2 * BLOCK_BYTES - 8 - self.held(lane)) % BLOCK_BYTES;
        let zeros = if zeros == 0 { BLOCK_BYTES } else { zeros };
        let bits = self.lengths[lane].wrapping_mul(8).to_le_bytes();
        padding[zeros..zeros + 8].copy_from_slice(&bits);
        (padding, zeros + 8)
    }

    pub(crate) fn finish(mut self) -> [[u8; 16]; 2] {
        let (first, first_length) = self.padding(0);
        let (second, second_length) = self.padding(1);
        self.update(&first[..first_length], &second[..second_length]);
        std::array::from_fn(|lane| {
            let mut digest = [0; 16];
            for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
                bytes.copy_from_slice(&word[lane].to_le_bytes());
            }
            digest
        })
    }
}

/// Constants of RFC 1321: the integer part of 2^32 times the sine of each step's number.
const SINES: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
];

fn words(first: &[u8; BLOCK_BYTES], second: &[u8; BLOCK_BYTES]) -> [Pair; 16] {
    let word = |block: &[u8; BLOCK_BYTES], at: usize| {
        u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
    };
    std::array::from_fn(|i| [word(first, 4 * i), word(second, 4 * i)])
}

#[inline(always)]
fn step(mixed: Pair, a: Pair, b: Pair, word: Pair, sine: u32, turn: u32) -> Pair {
    std::array::from_fn(|lane| {
        a[lane]
            .wrapping_add(mixed[lane])
            .wrapping_add(word[lane])
            .wrapping_add(sine)
            .rotate_left(turn)
            .wrapping_add(b[lane])
    })
}

/// Sixteen steps: `mix` combines three words, and `word` chooses the block's word for each step.
#[inline(always)]
fn round(
    [mut a, mut b, mut c, mut d]: [Pair; 4],
    block: &[Pair; 16],
    sines: &[u32],
    turns: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
    at: impl Fn(usize) -> usize,
) -> [Pair; 4] {
    let mixed = |x: Pair, y: Pair, z: Pair| -> Pair {
        std::array::from_fn(|lane| mix(x[lane], y[lane], z[lane]))
    };
    for i in (0..16).step_by(4) {
        let word = |n: usize| block[at(i + n) % 16];
        a = step(mixed(b, c, d), a, b, word(0), sines[i], turns[0]);
        d = step(mixed(a, b, c), d, a, word(1), sines[i + 1], turns[1]);
        c = step(mixed(d, a, b), c, d, word(2), sines[i + 2], turns[2]);
        b = step(mixed(c, d, a), b, c, word(3), sines[i + 3], turns[3]);
    }
    [a, b, c, d]
}

fn compress(state: &mut [Pair; 4], first: &[u8; BLOCK_BYTES], second: &[u8; BLOCK_BYTES]) {
    let block = words(first, second);
    let choose = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let swapped = |x: u32, y: u32, z: u32| y ^ (z & (x ^ y));
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let other = |x: u32, y: u32, z: u32| y ^ (x | !z);
    let s = &SINES;
    let mut now = *state;
    now = round(now, &block, &s[..16], [7, 12, 17, 22], choose, |i| i);
    now = round(now, &block, &s[16..32], [5, 9, 14, 20], swapped, |i| {
        5 * i + 1
    });
    now = round(now, &block, &s[32..48], [4, 11, 16, 23], parity, |i| {
        3 * i + 5
    });
    now = round(now, &block, &s[48..], [6, 10, 15, 21], other, |i| 7 * i);
    for (sum, word) in state.iter_mut().zip(now) {
        for (sum, word) in sum.iter_mut().zip(word) {
            *sum = sum.wrapping_add(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use md5::{Digest, Md5};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_are_md5(
            pieces in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(any::<u8>(), 0..200)),
                0..8,
            )
        ) {
            let mut pair = Md5Pair::new();
            let (mut one, mut other) = (Md5::new(), Md5::new());
            for (piece, longer_or_shorter) in &pieces {
                pair.update(piece, longer_or_shorter);
                one.update(piece);
                other.update(longer_or_shorter);
            }
            prop_assert_eq!(pair.finish(), [one.finalize().into(), <[u8; 16]>::from(other.finalize())]);
        }
    }
}
