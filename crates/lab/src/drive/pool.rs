//! Pools of existing objects: those that a run has written and not deleted.
//!
//! An object being read or updated is leased, and cannot be drawn for deletion meanwhile, so that a
//! 404 is always the store's fault.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::plan::Draw;
use crate::record::{SavedPool, SavedPools};
use crate::rng::Rng;

/// An object, identified by the numbers in its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) container: u64,
    pub(crate) object: u64,
}

#[derive(Debug, Default)]
struct Inner {
    live: VecDeque<Member>,
    leases: HashMap<Member, u32>,
    /// Lower bound of the next new number.
    next: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
}

/// Number of random draws of a deletion before it searches sequentially.
const RANDOM_DRAWS_MAX: u32 = 8;

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// A number that no object of this pool has had, at least `low`, from this driver's share.
    pub(crate) fn new_number(&self, low: u64, driver: u32, drivers: u32) -> u64 {
        let mut inner = self.lock();
        inner.next = inner.next.max(low);
        let (driver, drivers) = (u64::from(driver), u64::from(drivers.max(1)));
        let number = inner.next + (driver + drivers - inner.next % drivers) % drivers;
        inner.next = number + 1;
        number
    }

    /// Marks numbers up to `high` as used by a prepare work.
    pub(crate) fn reserve(&self, high: u64) {
        let mut inner = self.lock();
        inner.next = inner.next.max(high.saturating_add(1));
    }

    pub(crate) fn add(&self, member: Member) {
        self.lock().live.push_back(member);
    }

    /// Draws an existing object, leased until [`Self::release`].
    pub(crate) fn lease(&self, draw: Draw, rng: &mut Rng) -> Option<Member> {
        let mut inner = self.lock();
        let length = inner.live.len() as u64;
        let member = match draw {
            Draw::Random => *inner.live.get(rng.below(length) as usize)?,
            Draw::Oldest => {
                let member = inner.live.pop_front()?;
                inner.live.push_back(member);
                member
            }
        };
        *inner.leases.entry(member).or_default() += 1;
        Some(member)
    }

    pub(crate) fn release(&self, member: Member) {
        let mut inner = self.lock();
        if let Some(leases) = inner.leases.get_mut(&member) {
            *leases -= 1;
            if *leases == 0 {
                inner.leases.remove(&member);
            }
        }
    }

    /// Draws an existing object that is not leased, and removes it.
    pub(crate) fn take(&self, draw: Draw, rng: &mut Rng) -> Option<Member> {
        let mut inner = self.lock();
        let Inner { live, leases, .. } = &mut *inner;
        let free = |at: usize, live: &VecDeque<Member>| !leases.contains_key(&live[at]);
        if draw == Draw::Random {
            for _ in 0..RANDOM_DRAWS_MAX.min(live.len() as u32) {
                let at = rng.below(live.len() as u64) as usize;
                if free(at, live) {
                    return live.swap_remove_back(at);
                }
            }
        }
        let at = (0..live.len()).find(|&at| free(at, live))?;
        live.remove(at)
    }
}

/// Maximum number of objects of all pools that are saved: some 20 MB.
const SAVED_MAX: usize = 1_000_000;

/// The pools of a run, by name.
#[derive(Debug, Default)]
pub struct Pools {
    pools: Mutex<HashMap<String, Arc<Pool>>>,
}

impl Pools {
    pub(crate) fn get(&self, name: &str) -> Arc<Pool> {
        let mut pools = self.pools.lock();
        pools.entry(name.to_owned()).or_default().clone()
    }

    /// Their content between two stages; `None` if that is too large to be kept.
    pub fn save(&self, stage: u32) -> Option<SavedPools> {
        let pools = self.pools.lock();
        let count: usize = pools.values().map(|pool| pool.lock().live.len()).sum();
        if count > SAVED_MAX {
            return None;
        }
        let saved = pools.iter().map(|(name, pool)| {
            let inner = pool.lock();
            let live = inner.live.iter();
            let pool = SavedPool {
                next: inner.next,
                live: live.map(|m| (m.container, m.object)).collect(),
            };
            (name.clone(), pool)
        });
        Some(SavedPools {
            stage,
            pools: saved.collect(),
        })
    }

    /// Pools as they were saved.
    pub fn restored(saved: &SavedPools) -> Self {
        let pools = Self::default();
        for (name, saved) in &saved.pools {
            let pool = pools.get(name);
            let mut inner = pool.lock();
            inner.next = saved.next;
            let live = saved.live.iter();
            inner.live = live
                .map(|&(container, object)| Member { container, object })
                .collect();
        }
        pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leased_object_is_not_deleted() {
        let pool = Pool::default();
        let mut rng = Rng::new(1);
        let member = Member {
            container: 1,
            object: 2,
        };
        pool.add(member);
        assert_eq!(pool.lease(Draw::Random, &mut rng), Some(member));
        assert_eq!(pool.take(Draw::Random, &mut rng), None);
        pool.release(member);
        assert_eq!(pool.take(Draw::Oldest, &mut rng), Some(member));
        assert_eq!(pool.lease(Draw::Oldest, &mut rng), None);
    }

    #[test]
    fn pools_are_as_they_were_saved() {
        let pools = Pools::default();
        let pool = pools.get("p");
        pool.reserve(9);
        for object in [3, 1, 2] {
            pool.add(Member {
                container: 7,
                object,
            });
        }
        let saved = pools.save(4).unwrap();
        let text = serde_json::to_string(&saved).unwrap();
        let again = Pools::restored(&serde_json::from_str(&text).unwrap());
        assert_eq!(again.save(4), Some(saved));
        let mut rng = Rng::new(1);
        let first = again.get("p").take(Draw::Oldest, &mut rng).unwrap();
        assert_eq!((first.container, first.object), (7, 3));
        assert_eq!(again.get("p").new_number(1, 0, 1), 10);
    }

    #[test]
    fn numbers_of_drivers_differ() {
        let pool = Pool::default();
        pool.reserve(10);
        let numbers: Vec<u64> = (0..3).map(|_| pool.new_number(1, 1, 3)).collect();
        assert!(
            numbers.iter().all(|number| number % 3 == 1 && *number > 10),
            "{numbers:?}"
        );
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
