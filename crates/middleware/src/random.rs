//! Randomness passed as a value at start, so that tests and the simulator control it.

use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A source of random bytes. Clones share it.
#[derive(Clone)]
pub struct Random(Option<Arc<Mutex<StdRng>>>);

impl Random {
    /// The operating system's randomness, through a generator suitable for keys, one for each
    /// thread.
    pub fn system() -> Self {
        Random(None)
    }

    /// The same bytes for the same seed; never used in production.
    pub fn seeded(seed: u64) -> Self {
        Random(Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))))
    }

    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        match &self.0 {
            None => rand::rng().fill_bytes(&mut bytes),
            Some(seeded) => {
                seeded.lock().fill_bytes(&mut bytes);
            }
        }
        bytes
    }
}
