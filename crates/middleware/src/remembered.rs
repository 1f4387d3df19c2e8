//! What valid tokens stand for, remembered for a while: bounded, and keyed by a digest of the token
//! under keys of this process's own, so that a look-up tells nothing of the token by its time, and
//! no token is kept.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::RwLock;

/// Tokens remembered at once.
const MOST: usize = 10_000;

struct Entry<T> {
    until: u64,
    value: T,
}

/// A token under two secret keys: 128 bits of SipHash, which nobody without the keys can aim at.
type Digest = (u64, u64);

pub(crate) struct Remembered<T> {
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

    pub(crate) fn get(&self, token: &str, now: u64) -> Option<T> {
        let entries = self.entries.read();
        entries
            .get(&self.digest(token))
            .filter(|entry| entry.until >= now)
            .map(|entry| entry.value.clone())
    }

    /// Keeps it through the second `until`.
    pub(crate) fn add(&self, token: &str, until: u64, now: u64, value: T) {
        let mut entries = self.entries.write();
        if entries.len() >= MOST {
            entries.retain(|_, entry| entry.until >= now);
        }
        if entries.len() >= MOST {
            // All are looked at once more: cheaper than keeping an order on every request.
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
        for number in 0..2 * MOST {
            remembered.add(&number.to_string(), 10, 5, number);
        }
        let entries = remembered.entries.read();
        assert!(entries.len() <= MOST);
    }
}
