//! `servers_per_port`: an object server that listens on every port of this node in an object ring,
//! so that each device can have a port.
//!
//! Swift runs several processes for each port. Here one process serves all ports, and devices have
//! threads of their own; the purpose of such a ring is still met: a client waits for a slow device
//! on that device's port alone, and each port has its own `max_clients`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use cairn_formats::swift_conf::SwiftConf;
use cairn_ring::Ring;

use crate::conf::ServerConf;
use crate::listen;
use crate::per_port::PerPort;
use crate::settings::ServerSettings;

impl PerPort {
    /// Ports of this node in a ring. Blocks if the ring has host names.
    pub(crate) fn ports_of(&self, ring: &Ring) -> BTreeSet<u16> {
        let is_own = |ip: IpAddr| match self.ring_ip.is_unspecified() {
            true => listen::is_own(ip),
            false => ip == self.ring_ip,
        };
        let hosts: BTreeSet<&str> = ring.devices().map(|device| device.ip.as_str()).collect();
        let own = hosts
            .into_iter()
            .filter(|host| cairn_peer::look_up(host).into_iter().any(is_own));
        let own: BTreeSet<&str> = own.collect();
        let devices = ring.devices();
        let devices = devices.filter(|device| own.contains(device.ip.as_str()));
        devices.map(|device| device.port).collect()
    }
}

/// Modification time and size, which identify a version of a file.
type Stamp = (SystemTime, u64);

/// Ports of one server by the ring files, each reread when changed.
pub(crate) struct RingPorts {
    per_port: PerPort,
    bind_ip: IpAddr,
    rings: Vec<PathBuf>,
    known: BTreeMap<PathBuf, (Stamp, BTreeSet<u16>)>,
}

impl RingPorts {
    /// `None` for a server with one port.
    pub(crate) fn of(settings: &ServerSettings) -> Result<Option<RingPorts>> {
        let Some(per_port) = settings.per_port.clone() else {
            return Ok(None);
        };
        let file = settings.folders.swift_dir.join("swift.conf");
        let name = file.display().to_string();
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {name}"))?;
        let policies = SwiftConf::parse(&name, &bytes)?.policies;
        let ring = |name: String| settings.folders.swift_dir.join(format!("{name}.ring.gz"));
        Ok(Some(RingPorts {
            per_port,
            bind_ip: settings.bind.ip(),
            rings: policies.iter().map(|p| ring(p.index.ring_name())).collect(),
            known: BTreeMap::new(),
        }))
    }

    pub(crate) fn check_interval(&self) -> Duration {
        self.per_port.check_interval
    }

    /// Addresses to listen on. For an unreadable ring the previous ports are kept. Blocks.
    pub(crate) fn wanted(&mut self) -> BTreeSet<SocketAddr> {
        for path in &self.rings {
            let stamp = std::fs::metadata(path).and_then(|m| Ok((m.modified()?, m.len())));
            let Ok(stamp) = stamp else { continue };
            if self
                .known
                .get(path)
                .is_some_and(|(known, _)| *known == stamp)
            {
                continue;
            }
            match Ring::load(path) {
                Ok(ring) => {
                    let ports = self.per_port.ports_of(&ring);
                    self.known.insert(path.clone(), (stamp, ports));
                }
                Err(error) => tracing::warn!(%error, "its ports stay as they are"),
            }
        }
        let ports = self.known.values().flat_map(|(_, ports)| ports);
        ports
            .map(|port| SocketAddr::new(self.bind_ip, *port))
            .collect()
    }
}

/// The sockets of a server: those of `inherited` still wanted, and new ones.
pub(crate) fn listen_on_all(
    conf: &ServerConf,
    settings: &ServerSettings,
    inherited: Vec<TcpListener>,
) -> Result<Vec<TcpListener>> {
    let wanted = match RingPorts::of(settings)? {
        None => BTreeSet::from([settings.bind]),
        Some(mut ports) => ports.wanted(),
    };
    if wanted.is_empty() {
        bail!(
            "{}: servers_per_port: no ring of {} names a device with an address of this node; \
             set ring_ip to the address that the rings have for it",
            conf.path.display(),
            settings.folders.swift_dir.display()
        );
    }
    let mut listeners: BTreeMap<SocketAddr, TcpListener> = inherited
        .into_iter()
        .filter_map(|listener| Some((listener.local_addr().ok()?, listener)))
        .collect();
    let take = |address: SocketAddr| match listeners.remove(&address) {
        Some(listener) => Ok(listener),
        None => listen::listen_at(conf, settings, address),
    };
    wanted.into_iter().map(take).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_ring::{NewDevice, RebalanceOptions, RingBuilder};

    use super::*;

    #[test]
    fn ports_of_this_node() {
        let mut builder = RingBuilder::new(4, 1.0, 0).unwrap();
        let devices = [
            ("10.0.0.1", 6201),
            ("10.0.0.1", 6202),
            ("10.0.0.2", 6203),
            ("localhost", 6204),
        ];
        for (ip, port) in devices {
            builder
                .add_dev(NewDevice {
                    id: None,
                    region: 1,
                    zone: 1,
                    weight: 1.0,
                    ip: ip.into(),
                    port,
                    device: "sda".into(),
                    replication_ip: None,
                    replication_port: Some(7000),
                    meta: String::new(),
                })
                .unwrap();
        }
        builder
            .rebalance(RebalanceOptions {
                seed: None,
                now: 0,
                log: None,
            })
            .unwrap();
        let ring = builder.ring().unwrap();
        let of = |ip: &str| {
            let ring_ip = ip.parse().unwrap();
            let check_interval = Duration::ZERO;
            let ports = PerPort {
                ring_ip,
                check_interval,
            }
            .ports_of(&ring);
            ports.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of("10.0.0.1"), [6201, 6202]);
        assert_eq!(of("10.0.0.2"), [6203]);
        assert!(of("10.0.0.3").is_empty());
        assert_eq!(of("127.0.0.1"), [6204]);
    }
}
