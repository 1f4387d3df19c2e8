//! Back-off after failed logins: by address and user together, by address, and by user. A user is
//! not locked out by others guessing the password: their failures leave a single attempt to
//! addresses that are new to the user, and do not affect addresses of earlier logins.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use cairn_http::addresses::customer;
use parking_lot::{Mutex, MutexGuard};

/// Failures of one user from one address before the next attempt must wait.
const PAIR_FAILURES: u32 = 8;
/// The same for a user under attack.
const PAIR_FAILURES_UNDER_ATTACK: u32 = 1;
/// Failures of one address with all users.
const ADDRESS_FAILURES: u32 = 40;
/// Failures of one user from all addresses that count as an attack.
const USER_FAILURES: u32 = 100;
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time without a failure after which failures are forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(120);
/// Maximum entries of each table; the oldest is evicted.
const ENTRIES_MAX: usize = 4096;

/// A client's address; for IPv6 its network, of which it may use any address.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Address(IpAddr);

impl Address {
    pub fn of(address: IpAddr) -> Address {
        Address(customer(address))
    }
}

#[derive(Clone, Copy)]
struct Failed {
    count: u32,
    last: Instant,
}

impl Failed {
    /// Time that the next attempt must wait after `allowed` failures: doubled with each.
    fn wait(self, allowed: u32, now: Instant) -> Option<Duration> {
        let beyond = self.count.checked_sub(allowed)?;
        let wait = Duration::from_secs(1 << beyond.min(6)).min(WAIT_MAX);
        (self.last + wait)
            .checked_duration_since(now)
            .filter(|left| !left.is_zero())
    }
}

/// A bounded table with expiry.
struct Table<K>(HashMap<K, Failed>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Table(HashMap::new())
    }
}

impl<K: Hash + Eq + Copy> Table<K> {
    fn get(&self, key: &K, now: Instant) -> Option<Failed> {
        let failed = self.0.get(key).copied()?;
        (now.saturating_duration_since(failed.last) < FORGET_AFTER).then_some(failed)
    }

    fn add(&mut self, key: K, now: Instant) {
        let count = self.get(&key, now).map_or(0, |failed| failed.count);
        if self.0.len() >= ENTRIES_MAX && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, failed)| failed.last);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.0.remove(&oldest);
            }
        }
        let count = count.saturating_add(1);
        self.0.insert(key, Failed { count, last: now });
    }
}

/// Hash of a user's name: names may be long.
type Name = u64;

#[derive(Default)]
struct Tables {
    pairs: Table<(Address, Name)>,
    addresses: Table<Address>,
    users: Table<Name>,
    /// Addresses from which users have logged in; only the time is used.
    known: Table<(Address, Name)>,
}

#[derive(Default)]
pub(crate) struct Failures {
    tables: Mutex<Tables>,
    hasher: RandomState,
}

impl Failures {
    /// May this address attempt this user's key now? Otherwise returns the time to wait. Whether
    /// the user exists makes no difference.
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
        let is_attacked = attacked.is_some_and(|failed| failed.count >= USER_FAILURES);
        let allowed = match is_attacked && !is_known {
            true => PAIR_FAILURES_UNDER_ATTACK,
            false => PAIR_FAILURES,
        };
        let of_pair = tables.pairs.get(&pair, now);
        let of_address = tables.addresses.get(&address, now).filter(|_| !is_known);
        let waits = [
            of_pair.and_then(|failed| failed.wait(allowed, now)),
            of_address.and_then(|failed| failed.wait(ADDRESS_FAILURES, now)),
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
        for _ in 0..PAIR_FAILURES {
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
        failures.may_try(one, "a", now + FORGET_AFTER).unwrap();
    }

    #[test]
    fn one_address_with_many_names_waits() {
        let (failures, one, now) = (Failures::default(), address(1), Instant::now());
        failures.accepted(one, "friend", now);
        for name in 0..ADDRESS_FAILURES {
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
        for stranger in 0..USER_FAILURES {
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
        for name in 0..ENTRIES_MAX + 10 {
            failures.failed(address(1), &name.to_string(), now);
        }
        let tables = failures.tables();
        assert_eq!(tables.pairs.0.len(), ENTRIES_MAX);
        assert_eq!(tables.users.0.len(), ENTRIES_MAX);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let of = |text: &str| Address::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), address(1));
    }
}
