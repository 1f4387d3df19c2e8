//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators"): small, and the
//! same on every machine and in every version. Not for secrets.

/// A random generator whose whole output is determined by its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMix(u64);

impl SplitMix {
    pub const fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix;

    /// Known output for seed 1234567, from the authors' own program.
    #[test]
    fn known_numbers() {
        let mut dice = SplitMix::new(1_234_567);
        let numbers = [dice.number(), dice.number(), dice.number()];
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
