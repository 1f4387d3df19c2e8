//! CPython's `random.Random`, the part that a rebalance needs: MT19937, seeding from text or a
//! number, `randint` and `shuffle`.
//!
//! The ring builder draws the same numbers as OpenStack Swift's, so the same devices, history and
//! `--seed` give the very same ring with either program. Not for secrets.

use sha2::{Digest, Sha512};

/// A seed as given by `--seed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seed {
    /// Text from the command line, which Python hashes.
    Text(String),
    Number(u64),
}

const WORDS: usize = 624;
const MIDDLE: usize = 397;

pub struct PythonRandom {
    state: [u32; WORDS],
    position: usize,
}

impl PythonRandom {
    pub fn new(seed: &Seed) -> Self {
        let key = match seed {
            Seed::Text(text) => text_key(text),
            Seed::Number(number) => vec![*number as u32, (*number >> 32) as u32],
        };
        PythonRandom::from_key(key)
    }

    /// Seeds from a large number, given as 32-bit words, least significant first.
    fn from_key(mut key: Vec<u32>) -> Self {
        while key.len() > 1 && key.last() == Some(&0) {
            key.pop();
        }
        let mut state = [0_u32; WORDS];
        state[0] = 19_650_218;
        for i in 1..WORDS {
            let previous = state[i - 1];
            state[i] = 1_812_433_253_u32
                .wrapping_mul(previous ^ (previous >> 30))
                .wrapping_add(i as u32);
        }
        let (mut i, mut j) = (1, 0);
        for _ in 0..WORDS.max(key.len()) {
            let previous = state[i - 1];
            state[i] = (state[i] ^ (previous ^ (previous >> 30)).wrapping_mul(1_664_525))
                .wrapping_add(key[j])
                .wrapping_add(j as u32);
            i = next_index(&mut state, i);
            j = (j + 1) % key.len();
        }
        for _ in 0..WORDS - 1 {
            let previous = state[i - 1];
            state[i] = (state[i] ^ (previous ^ (previous >> 30)).wrapping_mul(1_566_083_941))
                .wrapping_sub(i as u32);
            i = next_index(&mut state, i);
        }
        state[0] = 0x8000_0000;
        PythonRandom {
            state,
            position: WORDS,
        }
    }

    fn next_u32(&mut self) -> u32 {
        if self.position == WORDS {
            self.refill();
        }
        let mut word = self.state[self.position];
        self.position += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn refill(&mut self) {
        for i in 0..WORDS {
            let joined =
                (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % WORDS] & 0x7fff_ffff);
            let twist = if joined & 1 == 0 { 0 } else { 0x9908_b0df };
            self.state[i] = self.state[(i + MIDDLE) % WORDS] ^ (joined >> 1) ^ twist;
        }
        self.position = 0;
    }

    /// A random number below `bound`, which is at least 1. Bounds above 32 bits draw two words,
    /// like Python's.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bits = 64 - bound.max(1).leading_zeros();
        loop {
            let drawn = self.bits(bits);
            if drawn < bound.max(1) {
                return drawn;
            }
        }
    }

    fn bits(&mut self, bits: u32) -> u64 {
        if bits <= 32 {
            return u64::from(self.next_u32()) >> (32 - bits);
        }
        let low = u64::from(self.next_u32());
        let high = u64::from(self.next_u32()) >> (64 - bits);
        low | high << 32
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

fn next_index(state: &mut [u32; WORDS], i: usize) -> usize {
    if i + 1 < WORDS {
        return i + 1;
    }
    state[0] = state[WORDS - 1];
    1
}

/// The text and its SHA-512 as one big-endian number.
fn text_key(text: &str) -> Vec<u32> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.extend(Sha512::digest(text.as_bytes()));
    bytes.reverse();
    bytes
        .chunks(4)
        .map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(word)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected values are output of CPython 3.11.
    #[test]
    fn draws_what_python_draws() {
        let mut random = PythonRandom::new(&Seed::Text("2".into()));
        let drawn: Vec<_> = (0..4).map(|_| random.below(65536)).collect();
        assert_eq!(drawn, TEXT_2);
        let mut random = PythonRandom::new(&Seed::Number(12_345_678_901));
        let drawn: Vec<_> = (0..4).map(|_| random.below(1000)).collect();
        assert_eq!(drawn, NUMBER_BIG);
        let mut items: Vec<u32> = (0..10).collect();
        random.shuffle(&mut items);
        assert_eq!(items, SHUFFLED);
        assert_eq!(random.below((1 << 40) + 1), WIDE);
    }

    const TEXT_2: [u64; 4] = [42718, 29813, 7958, 42439];
    const NUMBER_BIG: [u64; 4] = [968, 610, 335, 888];
    const SHUFFLED: [u32; 10] = [3, 8, 0, 4, 2, 7, 9, 1, 5, 6];
    const WIDE: u64 = 779433276034;
}
