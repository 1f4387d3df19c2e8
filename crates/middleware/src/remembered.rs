//! Cache of validated tokens: bounded, and keyed by a digest of the token under keys of this
//! process, so that the timing of a look-up reveals nothing about tokens, and no token is stored.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::RwLock;

/// Maximum number of cached tokens.
const TOKENS_MAX: usize = 10_000;

struct Entry<T> {
    until: u64,
    value: T,
}

/// Digest of a token under two secret keys: 128 bits of SipHash, for which collisions cannot be
/// constructed without the keys.
type Digest = (u64, u64);

pub struct Remembered<T> {
    keys: [RandomState; 2],
    entries: RwLock<HashMap<Digest, Entry<T>>>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Remembered {
            keys: [RandomState::new(), RandomState::new()],
            entries: RwLock::default(),
        }
    }
}

impl<T: Clone> Remembered<T> {
    fn digest(&self, token: &str) -> Digest {
        let [one, other] = &self.keys;
        (one.hash_one(token), other.hash_one(token))
    }

    /// The value of a token, if it is remembered and still valid.
    pub fn get(&self, token: &str, now: u64) -> Option<T> {
        let entries = self.entries.read();
        entries
            .get(&self.digest(token))
            .filter(|entry| entry.until >= now)
            .map(|entry| entry.value.clone())
    }

    /// Caches a value through the second `until`.
    pub fn add(&self, token: &str, until: u64, now: u64, value: T) {
        let mut entries = self.entries.write();
        if entries.len() >= TOKENS_MAX {
            entries.retain(|_, entry| entry.until >= now);
        }
        if entries.len() >= TOKENS_MAX {
            // All tokens are then validated once more, which is cheaper than maintaining an order
            // on every request.
            entries.clear();
        }
        entries.insert(self.digest(token), Entry { until, value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_it_ends_and_never_more_than_fit() {
        let remembered = Remembered::default();
        remembered.add("a", 10, 5, 1);
        assert_eq!(remembered.get("a", 10), Some(1));
        assert_eq!(remembered.get("a", 11), None);
        assert_eq!(remembered.get("b", 10), None);
        for number in 0..2 * TOKENS_MAX {
            remembered.add(&number.to_string(), 10, 5, number);
        }
        let entries = remembered.entries.read();
        assert!(entries.len() <= TOKENS_MAX);
    }
}
