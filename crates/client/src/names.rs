//! Addresses of hosts by their names, remembered for a short time.
//!
//! A name may have several addresses of which only one has the store (`localhost` is `::1` and
//! `127.0.0.1`); the one that took a connection is tried first from then on. A look-up of `localhost` takes
//! some 100 µs, a third of a small GET.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Validity of a look-up.
const VALIDITY: Duration = Duration::from_secs(30);
/// Maximum number of names remembered.
const NAMES_MAX: usize = 64;

struct Known {
    addresses: Vec<SocketAddr>,
    until: Instant,
}

/// A cache of look-ups.
#[derive(Default)]
pub(crate) struct Names(Mutex<HashMap<(String, u16), Known>>);

impl Names {
    /// The addresses of a host, at least one, in the order in which to try them.
    pub(crate) async fn look_up(
        &self,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let key = (host.to_owned(), port);
        if let Some(known) = self.0.lock().get(&key)
            && Instant::now() < known.until
        {
            return Ok(known.addresses.clone());
        }
        let looking = tokio::net::lookup_host((host, port));
        let found = match tokio::time::timeout(timeout, looking).await {
            Ok(found) => found.map_err(|error| error.to_string())?,
            Err(_) => return Err("the name was not resolved in time".to_owned()),
        };
        let addresses: Vec<SocketAddr> = found.collect();
        if addresses.is_empty() {
            return Err("the name has no address".to_owned());
        }
        self.remember(key, addresses.clone());
        Ok(addresses)
    }

    fn remember(&self, key: (String, u16), addresses: Vec<SocketAddr>) {
        let mut known = self.0.lock();
        if known.len() >= NAMES_MAX {
            known.clear();
        }
        let until = Instant::now() + VALIDITY;
        known.insert(key, Known { addresses, until });
    }

    /// Notes that `address` took a connection.
    pub(crate) fn prefer(&self, host: &str, port: u16, address: SocketAddr) {
        let mut known = self.0.lock();
        let Some(known) = known.get_mut(&(host.to_owned(), port)) else {
            return;
        };
        if let Some(at) = known.addresses.iter().position(|a| *a == address) {
            known.addresses[..=at].rotate_right(1);
        }
    }

    /// Forgets a name none of whose addresses took a connection.
    pub(crate) fn forget(&self, host: &str, port: u16) {
        self.0.lock().remove(&(host.to_owned(), port));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_took_a_connection_comes_first_until_the_name_is_looked_up_again() {
        let names = Names::default();
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (a, b, c) = (
            address("[::1]:80"),
            address("10.0.0.1:80"),
            address("10.0.0.2:80"),
        );
        names.remember(("store.invalid".into(), 80), vec![a, b, c]);
        names.prefer("store.invalid", 80, c);
        names.prefer("other.invalid", 80, b);
        let second = Duration::from_secs(1);
        let found = names.look_up("store.invalid", 80, second).await;
        assert_eq!(found, Ok(vec![c, a, b]));
        tokio::time::advance(VALIDITY).await;
        assert!(names.look_up("store.invalid", 80, second).await.is_err());
        let found = names.look_up("::1", 80, second).await;
        assert_eq!(found, Ok(vec![a]));
    }

    #[tokio::test]
    async fn names_are_forgotten_and_bounded() {
        let names = Names::default();
        let at = vec![SocketAddr::from(([10, 0, 0, 1], 80))];
        for n in 0..2 * NAMES_MAX {
            names.remember((format!("{n}.invalid"), 80), at.clone());
        }
        assert!(names.0.lock().len() <= NAMES_MAX);
        let last = format!("{}.invalid", 2 * NAMES_MAX - 1);
        names.forget(&last, 80);
        let found = names.look_up(&last, 80, Duration::from_secs(1)).await;
        assert!(found.is_err(), "{found:?}");
    }
}
