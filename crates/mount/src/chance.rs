//! Random numbers, which a simulation chooses by its seed.

/// 128 random bits.
pub(crate) fn bits() -> u128 {
    #[cfg(test)]
    if let Some(number) = crate::simulated::number() {
        return number;
    }
    rand::random()
}

/// A number from zero to one.
pub(crate) fn part() -> f64 {
    (bits() >> 64) as u64 as f64 / u64::MAX as f64
}
