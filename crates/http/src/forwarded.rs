//! Requests that an HTTP proxy forwards, by the headers it adds; and the clients that proxies named
//! in the conf report.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use http::HeaderMap;

/// Headers that proxies add; one is enough.
const PROXY_HEADERS: [&str; 9] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
    "x-cluster-client-ip",
];

/// Was this request forwarded by a proxy? The connection's address is then not the client's.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    PROXY_HEADERS.iter().any(|name| headers.contains_key(*name))
}

/// Addresses of HTTP proxies in front of us, whose `X-Forwarded-For` is believed: each appends the
/// address that it was asked from.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Arc<[Network]>);

#[derive(Clone, Copy, Debug)]
struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

/// A part of the list is not an address or network.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected addresses and networks, separated by commas, such as 10.0.0.5, 10.1.0.0/16, \
     fd00::/8; {0:?} is none"
)]
pub struct NoNetwork(String);

impl FromStr for TrustedProxies {
    type Err = NoNetwork;

    fn from_str(list: &str) -> Result<Self, NoNetwork> {
        let parts = list.split(',').map(str::trim).filter(|p| !p.is_empty());
        let networks = parts.map(|part| network(part).ok_or_else(|| NoNetwork(part.to_owned())));
        networks.collect::<Result<_, _>>().map(TrustedProxies)
    }
}

fn network(text: &str) -> Option<Network> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    let prefix_bits = match prefix {
        Some(prefix) => prefix.parse().ok().filter(|bits| *bits <= bits_max)?,
        None => bits_max,
    };
    Some(Network {
        address,
        prefix_bits,
    })
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let differing = ours.to_bits() ^ theirs.to_bits();
                differing.checked_shr(32 - self.prefix_bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let differing = ours.to_bits() ^ theirs.to_bits();
                differing.checked_shr(128 - self.prefix_bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl TrustedProxies {
    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// The client that a trusted proxy reports: the last address in its headers that is not a
    /// trusted proxy itself, or the first if all are. `None` if the peer is not trusted, or
    /// reports nothing.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        if self.0.is_empty() || !self.contains(peer) {
            return None;
        }
        let mut client = None;
        for line in headers.get_all("x-forwarded-for").iter().rev() {
            // Beyond something unreadable nothing is known.
            let Ok(line) = line.to_str() else {
                return client;
            };
            for entry in line.rsplit(',') {
                let Some(address) = address_of(entry.trim()) else {
                    return client;
                };
                client = Some(address);
                if !self.contains(address) {
                    return client;
                }
            }
        }
        client
    }
}

/// An address, which some proxies write with its port or in brackets.
fn address_of(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|e| e.strip_suffix(']'));
    let address = bare.unwrap_or(entry).parse();
    let address = address.or_else(|_| entry.parse().map(|s: SocketAddr| s.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn client(trusted: &str, peer: &str, lines: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("x-forwarded-for", line.parse().unwrap());
        }
        let trusted: TrustedProxies = trusted.parse().unwrap();
        let client = trusted.client(peer.parse().unwrap(), &headers);
        client.map(|client| client.to_string())
    }

    #[test]
    fn the_last_address_that_is_no_proxy_s_is_the_client_s() {
        let trusted = "10.0.0.5, 10.1.0.0/16,fd00::/8";
        for (peer, lines, expected) in [
            ("10.0.0.5", &["192.0.2.7"][..], Some("192.0.2.7")),
            ("::ffff:10.0.0.5", &["192.0.2.7"], Some("192.0.2.7")),
            ("fd12::1", &["2001:db8::7"], Some("2001:db8::7")),
            // Addresses that the client itself sent stand before those that proxies append.
            ("10.0.0.5", &["6.6.6.6, 192.0.2.7"], Some("192.0.2.7")),
            ("10.0.0.5", &["6.6.6.6", "192.0.2.7"], Some("192.0.2.7")),
            (
                "10.0.0.5",
                &["6.6.6.6, 192.0.2.7, 10.1.9.9"],
                Some("192.0.2.7"),
            ),
            ("10.0.0.5", &["nonsense, 192.0.2.7"], Some("192.0.2.7")),
            (
                "10.0.0.5",
                &["6.6.6.6, nonsense, 10.1.9.9"],
                Some("10.1.9.9"),
            ),
            ("10.0.0.5", &["10.1.0.1, 10.1.0.2"], Some("10.1.0.1")),
            ("10.0.0.5", &["192.0.2.7:4711"], Some("192.0.2.7")),
            ("10.0.0.5", &["[2001:db8::7]:4711"], Some("2001:db8::7")),
            ("10.0.0.5", &["[2001:db8::7]"], Some("2001:db8::7")),
            ("10.0.0.5", &[], None),
            ("10.0.0.5", &[""], None),
            ("10.0.0.5", &["unknown"], None),
            // Not from a trusted proxy.
            ("10.0.0.6", &["192.0.2.7"], None),
            ("10.2.0.1", &["192.0.2.7"], None),
            ("fe00::1", &["192.0.2.7"], None),
        ] {
            let got = client(trusted, peer, lines);
            assert_eq!(got.as_deref(), expected, "{peer} {lines:?}");
        }
        assert_eq!(client("", "10.0.0.5", &["192.0.2.7"]), None);
        let all = client("0.0.0.0/0", "10.0.0.5", &["192.0.2.7, 192.0.2.8"]);
        assert_eq!(all.as_deref(), Some("192.0.2.7"));
    }

    #[test]
    fn a_list_of_something_else_is_refused() {
        for list in [
            "10.0.0.0/33",
            "proxy.example",
            "10.0.0",
            "::/129",
            "1.2.3.4/x",
        ] {
            let error = TrustedProxies::from_str(&format!("10.0.0.1, {list}")).unwrap_err();
            assert_eq!(error, NoNetwork(list.into()));
            assert!(error.to_string().contains(list));
        }
    }
}
