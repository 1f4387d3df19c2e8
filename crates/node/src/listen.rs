//! Ports: all are bound before anything is served; and the addresses by which rings refer to this
//! process's servers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cairn_http::serve::bind;
use cairn_peer::{LoadedRing, Rings};

use crate::conf::ServerConf;
use crate::settings::ServerSettings;

/// Refuses two confs with one address: the second would fail later, and less clearly.
pub(crate) fn check_addresses(servers: &[(ServerConf, ServerSettings)]) -> Result<()> {
    let mut seen: BTreeMap<SocketAddr, &ServerConf> = BTreeMap::new();
    for (conf, settings) in servers.iter().filter(|(_, s)| s.per_port.is_none()) {
        if let Some(other) = seen.insert(settings.bind, conf) {
            bail!(
                "{} and {} both listen on {}: give one another bind_port",
                other.path.display(),
                conf.path.display(),
                settings.bind
            );
        }
    }
    Ok(())
}

/// Binds a port for a server; retries a port in use for `bind_timeout`.
pub(crate) fn listen_at(
    conf: &ServerConf,
    settings: &ServerSettings,
    address: SocketAddr,
) -> Result<TcpListener> {
    let deadline = Instant::now() + settings.bind_timeout;
    loop {
        let error = match bind(address, settings.backlog) {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        let in_use = error.source.kind() == std::io::ErrorKind::AddrInUse;
        if !in_use || Instant::now() >= deadline {
            // The error's own text has the cause.
            let remedy = match error.source.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "; only root opens ports below 1024, and a server that serves already is root's \
                     no more: stop it and start it again, or take a port from 1024 on"
                }
                std::io::ErrorKind::AddrInUse => {
                    "; a server that swift-init does not know of is listed by swift-orphans -a 0"
                }
                _ => "",
            };
            bail!("{} of {}: {error}{remedy}", conf.role, conf.path.display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Addresses that reach a server bound to `bind`: the address itself, or, if it is unspecified,
/// loopback and this host's addresses with its port in a ring.
pub(crate) fn known_as<'a>(
    bind: SocketAddr,
    rings: impl IntoIterator<Item = &'a Rings>,
    policies: impl IntoIterator<Item = cairn_types::PolicyIndex> + Clone,
) -> Vec<SocketAddr> {
    if !bind.ip().is_unspecified() {
        return vec![bind];
    }
    let mut ips = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    if bind.is_ipv6() {
        ips.push(IpAddr::V6(Ipv6Addr::LOCALHOST));
    }
    for rings in rings {
        let objects = policies
            .clone()
            .into_iter()
            .filter_map(|policy| rings.object(policy));
        for ring in [rings.account(), rings.container()]
            .into_iter()
            .chain(objects)
        {
            ips.extend(ring_ips(&ring, bind.port()));
        }
    }
    ips.sort();
    ips.dedup();
    ips.retain(|ip| is_own(*ip));
    ips.into_iter()
        .map(|ip| SocketAddr::new(ip, bind.port()))
        .collect()
}

/// Addresses of devices served on this port, for clients or for replication.
fn ring_ips(ring: &LoadedRing, port: u16) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    for device in ring.ring().devices() {
        for (host, of) in [
            (&device.ip, device.port),
            (&device.replication_ip, device.replication_port),
        ] {
            if of == port {
                ips.extend(ring.ips(host));
            }
        }
    }
    ips
}

/// Whether a socket can be bound to the address, so that it is this host's.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// An address to connect to if the server listens on all.
pub(crate) fn reachable(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bind.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_loopback_too() {
        let known = |text: &str| known_as(text.parse().expect("an address"), [], []);
        assert_eq!(
            known("127.0.0.1:7"),
            ["127.0.0.1:7".parse().expect("an address")]
        );
        assert!(known("0.0.0.0:7").contains(&"127.0.0.1:7".parse().expect("an address")));
        // A documentation address, which no host has.
        assert!(!is_own("192.0.2.1".parse().expect("an address")));
    }

    #[test]
    fn an_address_of_all_is_reached_locally() {
        assert_eq!(
            reachable(SocketAddr::from(([0, 0, 0, 0], 5))),
            SocketAddr::from(([127, 0, 0, 1], 5))
        );
    }
}
