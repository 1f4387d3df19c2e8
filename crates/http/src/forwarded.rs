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
    // IPv4 in the form of IPv6 is what peers are compared in: IPv4.
    match address.to_canonical() {
        canonical @ IpAddr::V4(_) if address.is_ipv6() && prefix_bits >= MAPPED_PREFIX_BITS => {
            Some(Network {
                address: canonical,
                prefix_bits: prefix_bits - MAPPED_PREFIX_BITS,
            })
        }
        _ => Some(Network {
            address,
            prefix_bits,
        }),
    }
}

/// Bits of `::ffff:0:0`, before those of an IPv4 address.
const MAPPED_PREFIX_BITS: u32 = 96;

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
        // Written as IPv6 has IPv4, of a peer in either form.
        for trusted in ["::ffff:10.0.0.5", "::ffff:10.0.0.0/104", "::ffff:a00:5/128"] {
            for peer in ["10.0.0.5", "::ffff:10.0.0.5"] {
                let got = client(trusted, peer, &["192.0.2.7"]);
                assert_eq!(got.as_deref(), Some("192.0.2.7"), "{trusted} {peer}");
            }
            assert_eq!(client(trusted, "11.0.0.5", &["192.0.2.7"]), None);
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const PEER: &str = "10.0.0.5";

    /// An address of few, so that networks have some of them.
    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = (any::<[bool; 2]>(), 0..8u8)
            .prop_map(|([a, b], c)| IpAddr::from([10 | u8::from(a) << 7, u8::from(b), 0, c]));
        let v6 = any::<[bool; 2]>()
            .prop_map(|[a, b]| IpAddr::from([0xfd00, u16::from(a) << 15, 0, 0, 0, 0, 0, b.into()]));
        prop_oneof![3 => v4, 1 => v6]
    }

    fn bits(address: IpAddr) -> String {
        match address {
            IpAddr::V4(address) => format!("4{:032b}", address.to_bits()),
            IpAddr::V6(address) => format!("6{:0128b}", address.to_bits()),
        }
    }

    proptest! {
        /// A network has the addresses whose first bits are its own.
        #[test]
        fn the_client_is_the_first_from_behind_in_no_network(
            networks in vec((address(), prop_oneof![0..=32u8, 28..=32u8]), 0..3),
            reported in vec(vec((address(), 0..4u8), 0..4), 0..3),
        ) {
            let listed = networks.iter().map(|(address, prefix)| format!("{address}/{prefix}"));
            let listed: Vec<String> = listed.collect();
            let trusted: TrustedProxies = format!("{PEER}, {}", listed.join(" ,")).parse().unwrap();
            let is_proxy = |address: &IpAddr| {
                address.to_string() == PEER || networks.iter().any(|(network, prefix)| {
                    bits(*address).starts_with(&bits(*network)[..1 + usize::from(*prefix)])
                })
            };
            let mut headers = HeaderMap::new();
            for line in &reported {
                let entry = |(address, form): &(IpAddr, u8)| match (address, form) {
                    (_, 0) => SocketAddr::new(*address, 80).to_string(),
                    (IpAddr::V4(v4), 1) => format!(" {}", v4.to_ipv6_mapped()),
                    (IpAddr::V6(_), 1) => format!("[{address}]"),
                    _ => format!("{address} "),
                };
                let line: Vec<String> = line.iter().map(entry).collect();
                if !line.is_empty() {
                    headers.append("x-forwarded-for", line.join(",").parse().unwrap());
                }
            }
            let all: Vec<IpAddr> = reported.iter().flatten().map(|(address, _)| *address).collect();
            let client = all.iter().rev().find(|address| !is_proxy(address)).or(all.first());
            prop_assert_eq!(trusted.client(PEER.parse().unwrap(), &headers), client.copied());
        }

        #[test]
        fn any_header_has_a_client_or_none(
            list in select(vec!["10.0.0.0/8", "0.0.0.0/0,::/0", "10.0.0.5"]),
            lines in vec("([0-9.]{7,9}|10\\.0\\.0\\.[0-9]|[\\[\\]:0-9a-f]{2,9}|[ -~]{0,4})(,[0-9. ]{0,9}){0,3}", 0..4),
        ) {
            let trusted: TrustedProxies = list.parse().unwrap();
            let mut headers = HeaderMap::new();
            for line in &lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            let client = trusted.client(PEER.parse().unwrap(), &headers);
            // It is one that is written there, and nothing behind it is unreadable.
            if let Some(client) = client {
                let entries = lines.iter().flat_map(|line| line.split(',')).map(str::trim);
                let behind = entries.rev().map_while(address_of);
                prop_assert!(behind.collect::<Vec<_>>().contains(&client), "{}", client);
            }
            prop_assert_eq!(trusted.client("192.0.2.1".parse().unwrap(), &headers).is_some(), client.is_some() && list.starts_with('0'));
        }

        #[test]
        fn any_list_is_of_networks_or_refused(list in "((10\\.0\\.0\\.[0-9]|fd00::[0-9])(/[0-9]{1,3})?, ?){0,3}|[0-9a-f:/, ]{0,20}|.{0,20}") {
            if let Ok(trusted) = list.parse::<TrustedProxies>() {
                let parts = list.split(',').filter(|part| !part.trim().is_empty());
                prop_assert_eq!(trusted.0.len(), parts.count());
                for network in trusted.0.iter() {
                    let bits_max = bits(network.address).len() - 1;
                    prop_assert!(network.prefix_bits as usize <= bits_max);
                    prop_assert!(network.contains(network.address) || network.address.to_canonical() != network.address);
                }
            }
        }
    }
}
