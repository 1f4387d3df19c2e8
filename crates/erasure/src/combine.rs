//! Linear combinations of fragments, the inner loop of coding.
//!
//! A product by a constant is a sum of repeated doublings of the other factor. So the sources whose
//! coefficients have the highest bit are added, the sum is doubled, those with the next bit are
//! added, and so on: this takes eight doublings per output block, whatever the number of sources,
//! and some additions (XOR) that are needed anyway. Blocks are small arrays, which the compiler
//! turns into the CPU's vector instructions; no tables, no unsafe code and no dispatch at run time
//! are needed.

use crate::galois::Field;

/// Bytes processed at a time, which stay in registers.
const BLOCK: usize = 64;

/// The coefficients of one output, transposed: for each bit, highest first, the sources whose
/// coefficient has it set.
#[derive(Clone, Debug)]
pub(crate) struct Combination {
    field: Field,
    sources: Vec<Vec<usize>>,
}

impl Combination {
    pub(crate) fn new(field: Field, coefficients: &[u16]) -> Combination {
        let sources = (0..field.bits())
            .rev()
            .map(|bit| {
                (0..coefficients.len())
                    .filter(|source| coefficients[*source] >> bit & 1 == 1)
                    .collect()
            })
            // Nothing needs doubling before the first source.
            .skip_while(Vec::is_empty)
            .collect();
        Combination { field, sources }
    }

    /// Appends the combination of `sources`, which have equal lengths, to `out`.
    pub(crate) fn append(&self, sources: &[&[u8]], out: &mut Vec<u8>) {
        let length = sources.first().map_or(0, |source| source.len());
        let whole = length - length % BLOCK;
        out.reserve(length);
        for at in (0..whole).step_by(BLOCK) {
            out.extend_from_slice(&self.block(|source| block_at(sources[source], at)));
        }
        if whole < length {
            let last = self.block(|source| {
                let mut padded = [0; BLOCK];
                padded[..length - whole].copy_from_slice(&sources[source][whole..]);
                padded
            });
            out.extend_from_slice(&last[..length - whole]);
        }
    }

    #[inline(always)]
    fn block(&self, load: impl Fn(usize) -> [u8; BLOCK]) -> [u8; BLOCK] {
        let mut sum = [0; BLOCK];
        for (step, sources) in self.sources.iter().enumerate() {
            if step > 0 {
                sum = match self.field {
                    Field::Gf8 => double_bytes(sum),
                    Field::Gf16 => double_words(sum),
                };
            }
            for source in sources {
                let addend = load(*source);
                for (to, byte) in sum.iter_mut().zip(addend) {
                    *to ^= byte;
                }
            }
        }
        sum
    }
}

#[inline(always)]
fn block_at(source: &[u8], at: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block.copy_from_slice(&source[at..at + BLOCK]);
    block
}

/// Multiplies each byte by 2 in GF(2^8).
#[inline(always)]
fn double_bytes(mut block: [u8; BLOCK]) -> [u8; BLOCK] {
    for byte in &mut block {
        let carried = (byte.cast_signed() >> 7).cast_unsigned();
        *byte = (*byte << 1) ^ (carried & 0x1d);
    }
    block
}

/// Multiplies each pair of bytes by 2 in GF(2^16).
#[inline(always)]
fn double_words(mut block: [u8; BLOCK]) -> [u8; BLOCK] {
    for pair in block.as_chunks_mut::<2>().0 {
        let word = u16::from_le_bytes(*pair);
        let carried = (word.cast_signed() >> 15).cast_unsigned();
        *pair = ((word << 1) ^ (carried & 0x100b)).to_le_bytes();
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation with one multiplication per element.
    fn slowly(field: Field, coefficients: &[u16], sources: &[&[u8]]) -> Vec<u8> {
        let element = |source: &[u8], at: usize| match field {
            Field::Gf8 => u16::from(source[at]),
            Field::Gf16 => u16::from_le_bytes([source[at], source[at + 1]]),
        };
        let mut out = Vec::new();
        for at in (0..sources[0].len()).step_by(field.width()) {
            let sum = coefficients
                .iter()
                .zip(sources)
                .fold(0, |sum, (c, s)| sum ^ field.multiply(*c, element(s, at)));
            out.extend_from_slice(&sum.to_le_bytes()[..field.width()]);
        }
        out
    }

    #[test]
    fn blocks_give_what_single_elements_do() {
        let sources: Vec<Vec<u8>> = (0..5u32)
            .map(|seed| {
                (0..300u32)
                    .map(|i| ((i + 7).wrapping_mul((seed + 3) * 2_654_435) >> 7) as u8)
                    .collect()
            })
            .collect();
        for (field, coefficients) in [
            (Field::Gf8, [1, 0x8e, 0, 255, 2]),
            (Field::Gf16, [0x8001, 1, 0xffff, 0, 0x1234]),
            (Field::Gf16, [1, 1, 1, 1, 1]),
            (Field::Gf8, [0, 0, 0, 0, 0]),
        ] {
            for length in [0, 2, 64, 66, 128, 300] {
                let cut: Vec<&[u8]> = sources.iter().map(|s| &s[..length]).collect();
                let mut out = Vec::new();
                Combination::new(field, &coefficients).append(&cut, &mut out);
                assert_eq!(
                    out,
                    slowly(field, &coefficients, &cut),
                    "{field:?} {length}"
                );
            }
        }
    }
}
