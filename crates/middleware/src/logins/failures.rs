//! Back-off after failed logins: by address and user together, by address, and by user. A user
//! whom strangers guess at is not locked out by them: their failures only take from addresses
//! that are new to the user all but the first try, and nothing from an address of earlier logins.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Failures of one user from one address before the next must wait.
const OF_PAIR: u32 = 8;
/// The same, for a user at whom many guess.
const OF_PAIR_UNDER_ATTACK: u32 = 1;
/// Failures of one address with all users.
const OF_ADDRESS: u32 = 40;
/// Failures of one user from all addresses before that is an attack.
const OF_USER: u32 = 100;
const LONGEST: Duration = Duration::from_secs(60);
/// Failures are forgotten when none was added for so long.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// Entries of each table; the oldest makes room.
const ENTRIES: usize = 4096;

/// An IPv6 client has a network of its own, of which it may take any address.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Address(IpAddr);

impl Address {
    pub(crate) fn of(address: IpAddr) -> Address {
        Address(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(network))
            }
            v4 => v4,
        })
    }
}

#[derive(Clone, Copy)]
struct Failed {
    count: u32,
    last: Instant,
}

impl Failed {
    /// How long the next try must wait after `allowed` failures: twice as long each time.
    fn wait(self, allowed: u32, now: Instant) -> Option<Duration> {
        let beyond = self.count.checked_sub(allowed)?;
        let wait = Duration::from_secs(1 << beyond.min(6)).min(LONGEST);
        (self.last + wait)
            .checked_duration_since(now)
            .filter(|left| !left.is_zero())
    }
}

/// A bounded table that forgets.
struct Table<K>(HashMap<K, Failed>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Table(HashMap::new())
    }
}

impl<K: Hash + Eq + Copy> Table<K> {
    fn get(&self, key: &K, now: Instant) -> Option<Failed> {
        let failed = self.0.get(key).copied()?;
        (now.saturating_duration_since(failed.last) < FORGOTTEN).then_some(failed)
    }

    fn add(&mut self, key: K, now: Instant) {
        let count = self.get(&key, now).map_or(0, |failed| failed.count);
        if self.0.len() >= ENTRIES && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, failed)| failed.last);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.0.remove(&oldest);
            }
        }
        let count = count.saturating_add(1);
        self.0.insert(key, Failed { count, last: now });
    }
}

/// A user's name as typed, hashed: names may be long.
type Name = u64;

#[derive(Default)]
struct Tables {
    pairs: Table<(Address, Name)>,
    addresses: Table<Address>,
    users: Table<Name>,
    /// Where users have logged in from; the time alone counts.
    known: Table<(Address, Name)>,
}

#[derive(Default)]
pub(crate) struct Failures {
    tables: Mutex<Tables>,
    hasher: RandomState,
}

impl Failures {
    /// May this address try this user's key now? Else after how long. Whether there is such a
    /// user makes no difference.
    pub(crate) fn may_try(
        &self,
        address: Address,
        user: &str,
        now: Instant,
    ) -> Result<(), Duration> {
        let name = self.hasher.hash_one(user);
        let pair = (address, name);
        let tables = self.tables();
        let is_known = tables.known.0.contains_key(&pair);
        let attacked = tables.users.get(&name, now);
        let is_attacked = attacked.is_some_and(|failed| failed.count >= OF_USER);
        let allowed = match is_attacked && !is_known {
            true => OF_PAIR_UNDER_ATTACK,
            false => OF_PAIR,
        };
        let of_pair = tables.pairs.get(&pair, now);
        let of_address = tables.addresses.get(&address, now).filter(|_| !is_known);
        let waits = [
            of_pair.and_then(|failed| failed.wait(allowed, now)),
            of_address.and_then(|failed| failed.wait(OF_ADDRESS, now)),
        ];
        waits.into_iter().flatten().max().map_or(Ok(()), Err)
    }

    pub(crate) fn failed(&self, address: Address, user: &str, now: Instant) {
        let name = self.hasher.hash_one(user);
        let mut tables = self.tables();
        tables.pairs.add((address, name), now);
        tables.addresses.add(address, now);
        tables.users.add(name, now);
    }

    pub(crate) fn accepted(&self, address: Address, user: &str, now: Instant) {
        let pair = (address, self.hasher.hash_one(user));
        let mut tables = self.tables();
        tables.pairs.0.remove(&pair);
        tables.known.add(pair, now);
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: u8) -> Address {
        Address::of([10, 0, 0, last].into())
    }

    #[test]
    fn guesses_wait_longer_each_time_and_are_forgotten() {
        let (failures, one) = (Failures::default(), address(1));
        let mut now = Instant::now();
        for _ in 0..OF_PAIR {
            failures.may_try(one, "a", now).unwrap();
            failures.failed(one, "a", now);
        }
        let first = failures.may_try(one, "a", now).unwrap_err();
        now += first;
        failures.may_try(one, "a", now).unwrap();
        failures.failed(one, "a", now);
        assert!(failures.may_try(one, "a", now).unwrap_err() > first);
        // Neither another user from there nor the user from elsewhere.
        failures.may_try(one, "b", now).unwrap();
        failures.may_try(address(2), "a", now).unwrap();
        failures.may_try(one, "a", now + FORGOTTEN).unwrap();
    }

    #[test]
    fn one_address_with_many_names_waits() {
        let (failures, one, now) = (Failures::default(), address(1), Instant::now());
        failures.accepted(one, "friend", now);
        for name in 0..OF_ADDRESS {
            failures.failed(one, &name.to_string(), now);
        }
        assert!(failures.may_try(one, "another", now).is_err());
        failures.may_try(one, "friend", now).unwrap();
        failures.may_try(address(2), "another", now).unwrap();
    }

    #[test]
    fn strangers_lock_nobody_out_but_guess_once_each() {
        let (failures, home, now) = (Failures::default(), address(250), Instant::now());
        failures.accepted(home, "a", now);
        for stranger in 0..OF_USER {
            failures.failed(address(stranger as u8), "a", now);
        }
        let new = address(200);
        failures.may_try(new, "a", now).unwrap();
        failures.failed(new, "a", now);
        assert!(failures.may_try(new, "a", now).is_err());
        failures.failed(home, "a", now);
        failures.may_try(home, "a", now).unwrap();
    }

    #[test]
    fn tables_are_bounded() {
        let (failures, now) = (Failures::default(), Instant::now());
        for name in 0..ENTRIES + 10 {
            failures.failed(address(1), &name.to_string(), now);
        }
        let tables = failures.tables();
        assert_eq!(tables.pairs.0.len(), ENTRIES);
        assert_eq!(tables.users.0.len(), ENTRIES);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let of = |text: &str| Address::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), address(1));
    }
}
