//! Random number generator of runs: xoshiro256++, seeded by SplitMix64, as its authors publish
//! them.
//!
//! Implemented here instead of using a crate, so that a seed gives the same run with every later
//! version. Not for secrets.

use cairn_types::SplitMix;

/// A stream of random numbers, determined by its seed.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix::new(seed);
        Self {
            state: [(); 4].map(|()| seeds.number()),
        }
    }

    /// An independent stream for part `index` of what `seed` identifies (a work, a worker).
    pub fn fork(seed: u64, index: u64) -> Self {
        let mixed = seed ^ index.wrapping_mul(0xd134_2543_de82_ef95);
        Self::new(SplitMix::new(mixed).number())
    }

    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift: the bias is below 2^-64 times the bound, far below what a run can show.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Exponential with mean 1: gaps of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_stream() {
        let take = |seed, index| {
            let mut rng = Rng::fork(seed, index);
            [rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(take(1, 2), take(1, 2));
        assert_ne!(take(1, 2), take(1, 3));
        assert_ne!(take(1, 2), take(2, 2));
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(7);
        for _ in 0..1000 {
            assert!(rng.below(3) < 3);
            assert!((0.0..1.0).contains(&rng.unit()));
            assert!(rng.exponential() >= 0.0);
        }
        assert_eq!(rng.below(0), 0);
    }
}
