//! In-memory cache of account and container information, which Swift keeps in memcache. It is
//! bounded. A write removes its entry at once in this process; other proxies see the change when
//! their entry expires.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use cairn_http::{AccountInfo, own_thread};
use http::HeaderMap;
use parking_lot::RwLock;
use tokio::time::Instant;

/// Maximum number of entries of one kind.
const ENTRIES_MAX: usize = 100_000;

pub(crate) struct InfoCache<K, V> {
    /// Probability, 0 to 1, that a lookup misses on purpose.
    skip: f64,
    entries: RwLock<HashMap<K, Entry<V>>>,
}

struct Entry<V> {
    value: Arc<V>,
    until: Instant,
    /// Time at which the entry was stored or last checked.
    checked: Instant,
}

impl<K: Hash + Eq + Clone, V> InfoCache<K, V> {
    pub(crate) fn new(skip: f64) -> Self {
        InfoCache {
            skip,
            entries: RwLock::default(),
        }
    }

    pub(crate) fn get<Q>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.is_skipped() {
            return None;
        }
        let entries = self.entries.read();
        let entry = entries.get(key)?;
        (entry.until > Instant::now()).then(|| entry.value.clone())
    }

    /// Does the entry need a check, since it was stored or last checked longer than `age` ago? It
    /// counts as checked from now on, so that of concurrent callers only one gets `true`.
    pub(crate) fn doubt<Q>(&self, key: &Q, age: Duration) -> bool
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = Instant::now();
        let is_due =
            |e: &Entry<V>| e.until > now && now.saturating_duration_since(e.checked) >= age;
        // Usually no check is due, so the write lock is not taken.
        let entries = self.entries.read();
        if !entries.get(key).is_some_and(is_due) {
            return false;
        }
        drop(entries);
        let mut entries = self.entries.write();
        let due = entries.get_mut(key).filter(|entry| is_due(entry));
        due.map(|entry| entry.checked = now).is_some()
    }

    fn is_skipped(&self) -> bool {
        self.skip > 0.0 && (own_thread::random() as f64) < self.skip * u64::MAX as f64
    }

    pub(crate) fn put(&self, key: K, value: Arc<V>, keep: Duration) {
        if keep.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut entries = self.entries.write();
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, entry| entry.until > now);
            if entries.len() >= ENTRIES_MAX {
                entries.clear();
            }
        }
        let entry = Entry {
            value,
            until: now + keep,
            checked: now,
        };
        entries.insert(key, entry);
    }

    pub(crate) fn remove<Q>(&self, key: &Q)
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.write().remove(key);
    }
}

/// An account's information in the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownAccount {
    pub(crate) info: Arc<AccountInfo>,
    /// A database exists; false if `account_autocreate` only makes the account appear to.
    pub(crate) stored: bool,
}

/// Response of a completely sharded root to a listing.
pub(crate) struct RootListing {
    pub(crate) headers: HeaderMap,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_for_a_while() {
        let cache: InfoCache<String, u8> = InfoCache::new(0.0);
        cache.put("a".into(), Arc::new(1), Duration::from_secs(60));
        cache.put("b".into(), Arc::new(2), Duration::ZERO);
        assert_eq!(cache.get("a").as_deref(), Some(&1));
        assert!(cache.get("b").is_none());
        cache.remove("a");
        assert!(cache.get("a").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn is_doubted_once_an_age() {
        let cache: InfoCache<String, u8> = InfoCache::new(0.0);
        let age = Duration::from_secs(6);
        assert!(!cache.doubt("a", age));
        cache.put("a".into(), Arc::new(1), Duration::from_secs(60));
        assert!(!cache.doubt("a", age));
        tokio::time::advance(age).await;
        assert!(cache.doubt("a", age));
        assert!(!cache.doubt("a", age));
        assert_eq!(cache.get("a").as_deref(), Some(&1));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!cache.doubt("a", age), "its time is up");
    }

    #[test]
    fn some_questions_are_asked_anew() {
        own_thread::take_over(Some(1));
        let found = |skip| {
            let cache: InfoCache<u8, u8> = InfoCache::new(skip);
            cache.put(1, Arc::new(1), Duration::from_secs(60));
            (0..1000).filter(|_| cache.get(&1).is_some()).count()
        };
        assert_eq!(found(0.0), 1000);
        assert_eq!(found(1.0), 0);
        let most = found(0.1);
        assert!((850..950).contains(&most), "{most}");
        own_thread::take_over(None);
    }
}
