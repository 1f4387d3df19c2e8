//! Two MD5s at once, of texts of one length: the content and its ciphertext.
//!
//! Each step of MD5 waits for the one before, and leaves most of a processor idle. Two digests
//! side by side take little longer than one.

const BLOCK: usize = 64;

/// One 32-bit word of either digest.
type Pair = [u32; 2];

#[derive(Clone)]
pub(crate) struct Md5Pair {
    state: [Pair; 4],
    /// What is not a whole block yet.
    rest: [[u8; BLOCK]; 2],
    length: u64,
}

impl Md5Pair {
    pub(crate) fn new() -> Self {
        Md5Pair {
            state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476].map(|word| [word, word]),
            rest: [[0; BLOCK]; 2],
            length: 0,
        }
    }

    /// Bytes of either so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Adds to both; as much of the longer one as the shorter has.
    pub(crate) fn update(&mut self, first: &[u8], second: &[u8]) {
        let length = first.len().min(second.len());
        let (mut first, mut second) = (&first[..length], &second[..length]);
        let held = (self.length % BLOCK as u64) as usize;
        self.length += length as u64;
        if held > 0 {
            let taken = (BLOCK - held).min(length);
            self.rest[0][held..held + taken].copy_from_slice(&first[..taken]);
            self.rest[1][held..held + taken].copy_from_slice(&second[..taken]);
            (first, second) = (&first[taken..], &second[taken..]);
            if held + taken < BLOCK {
                return;
            }
            let [one, other] = self.rest;
            compress(&mut self.state, &one, &other);
        }
        let (blocks, rest) = first.as_chunks::<BLOCK>();
        let (others, other_rest) = second.as_chunks::<BLOCK>();
        for (block, other) in blocks.iter().zip(others) {
            compress(&mut self.state, block, other);
        }
        self.rest[0][..rest.len()].copy_from_slice(rest);
        self.rest[1][..other_rest.len()].copy_from_slice(other_rest);
    }

    pub(crate) fn finish(mut self) -> [[u8; 16]; 2] {
        let bits = self.length.wrapping_mul(8).to_le_bytes();
        let held = (self.length % BLOCK as u64) as usize;
        let mut padding = [0; 2 * BLOCK];
        padding[0] = 0x80;
        let zeros = (2 * BLOCK - 8 - held) % BLOCK;
        let zeros = if zeros == 0 { BLOCK } else { zeros };
        padding[zeros..zeros + 8].copy_from_slice(&bits);
        let padding = &padding[..zeros + 8];
        self.update(padding, padding);
        std::array::from_fn(|lane| {
            let mut digest = [0; 16];
            for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
                bytes.copy_from_slice(&word[lane].to_le_bytes());
            }
            digest
        })
    }
}

/// RFC 1321: the integer part of 2^32 times the sine of each step's number.
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

fn words(first: &[u8; BLOCK], second: &[u8; BLOCK]) -> [Pair; 16] {
    let word = |block: &[u8; BLOCK], at: usize| {
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

/// Sixteen steps: `mix` of three words, and which word of the block each step takes.
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

fn compress(state: &mut [Pair; 4], first: &[u8; BLOCK], second: &[u8; BLOCK]) {
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
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)
        ) {
            let mut pair = Md5Pair::new();
            let (mut one, mut other) = (Md5::new(), Md5::new());
            for piece in &pieces {
                let flipped: Vec<u8> = piece.iter().map(|byte| byte ^ 0xa5).collect();
                pair.update(piece, &flipped);
                one.update(piece);
                other.update(&flipped);
            }
            prop_assert_eq!(pair.finish(), [one.finalize().into(), <[u8; 16]>::from(other.finalize())]);
        }
    }
}
