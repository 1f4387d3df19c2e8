//! Addresses of hosts that a ring lists by name. Names are resolved where blocking is allowed: when
//! a ring is loaded, and periodically after that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use cairn_ring::Ring;
use tracing::warn;

/// Time for which a resolved name is used.
const NAME_VALIDITY: Duration = Duration::from_secs(60);

/// Resolves a host name: IPv4 addresses first, since servers listen on those by default; empty for
/// an unknown name. Blocks.
pub fn look_up(host: &str) -> Vec<IpAddr> {
    let host = host.trim_matches(['[', ']']);
    if let Ok(ip) = host.parse() {
        return vec![ip];
    }
    let found = (host, 0).to_socket_addrs();
    let mut ips: Vec<IpAddr> = found.map_or_else(
        |_| Vec::new(),
        |all| all.map(|address| address.ip()).collect(),
    );
    ips.sort_by_key(IpAddr::is_ipv6);
    ips
}

/// Resolved host names of a ring.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    /// Entries for names only; literal addresses are parsed.
    named: BTreeMap<String, Vec<IpAddr>>,
    looked_up: Instant,
}

impl Hosts {
    /// Resolves the names of a ring's devices, for clients and for replication. A name that cannot
    /// be resolved now keeps its addresses of `before`. Blocks if there are names.
    pub(crate) fn of(ring: &Ring, before: Option<&Hosts>) -> Hosts {
        Hosts::by(ring, before, look_up)
    }

    fn by(ring: &Ring, before: Option<&Hosts>, look_up: impl Fn(&str) -> Vec<IpAddr>) -> Hosts {
        let hosts = ring.devices().flat_map(|d| [&d.ip, &d.replication_ip]);
        let names: BTreeSet<&String> = hosts.filter(|h| h.parse::<IpAddr>().is_err()).collect();
        let named = names.into_iter().map(|name| {
            let mut ips = look_up(name);
            if ips.is_empty() {
                ips = before.map_or_else(Vec::new, |hosts| hosts.ips(name));
                warn!(
                    host = name,
                    known = !ips.is_empty(),
                    "no address found for a host of the ring"
                );
            }
            (name.clone(), ips)
        });
        Hosts {
            named: named.collect(),
            looked_up: Instant::now(),
        }
    }

    /// Is it time to resolve the names again?
    pub(crate) fn are_old(&self) -> bool {
        !self.named.is_empty() && self.looked_up.elapsed() >= NAME_VALIDITY
    }

    pub(crate) fn mean_the_same(&self, other: &Hosts) -> bool {
        self.named == other.named
    }

    pub(crate) fn ips(&self, host: &str) -> Vec<IpAddr> {
        match host.parse() {
            Ok(ip) => vec![ip],
            Err(_) => self.named.get(host).cloned().unwrap_or_default(),
        }
    }

    /// The address to connect to.
    pub(crate) fn ip(&self, host: &str) -> Option<IpAddr> {
        match host.parse() {
            Ok(ip) => Some(ip),
            Err(_) => self.named.get(host)?.first().copied(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use cairn_ring::{NewDevice, RebalanceOptions, RingBuilder};

    use super::*;

    /// A ring with one device for each pair of a host and its replication host.
    pub(crate) fn ring_of(hosts: &[(&str, &str)]) -> Ring {
        let mut builder = RingBuilder::new(2, 1.0, 0).unwrap();
        for (host, replication) in hosts {
            let device = NewDevice {
                id: None,
                region: 1,
                zone: 1,
                weight: 1.0,
                ip: (*host).into(),
                port: 6200,
                device: "sda".into(),
                replication_ip: Some((*replication).into()),
                replication_port: Some(6300),
                meta: String::new(),
            };
            builder.add_dev(device).unwrap();
        }
        let options = RebalanceOptions {
            seed: None,
            now: 0,
            log: None,
        };
        builder.rebalance(options).unwrap();
        builder.ring().unwrap()
    }

    #[test]
    fn names_are_looked_up_and_remembered() {
        let ring = ring_of(&[("one", "10.0.0.1"), ("10.0.0.2", "two")]);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let known = |name: &str| match name {
            "one" => vec![ip("10.0.1.1"), ip("fe80::1")],
            _ => Vec::new(),
        };
        let first = Hosts::by(&ring, None, known);
        assert_eq!(first.ips("one"), [ip("10.0.1.1"), ip("fe80::1")]);
        assert_eq!(first.ip("one"), Some(ip("10.0.1.1")));
        assert_eq!(first.ips("10.0.0.2"), [ip("10.0.0.2")]);
        assert!(first.ips("two").is_empty());
        let second = Hosts::by(&ring, Some(&first), |name| match name {
            "two" => vec![ip("10.0.1.2")],
            _ => Vec::new(),
        });
        assert_eq!(second.ip("one"), Some(ip("10.0.1.1")));
        assert_eq!(second.ip("two"), Some(ip("10.0.1.2")));
        assert!(!second.mean_the_same(&first) && !second.are_old());
    }

    #[test]
    fn this_machine_by_name() {
        assert!(look_up("localhost").iter().any(IpAddr::is_loopback));
        assert_eq!(look_up("[::1]"), ["::1".parse::<IpAddr>().unwrap()]);
        assert!(look_up("no-such-host.invalid").is_empty());
    }
}
