//! `servers_per_port` in an object server's conf; implemented by `ring_ports.rs`.

use std::net::IpAddr;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

use crate::role::Role;

/// `servers_per_port` in an object server's conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerPort {
    /// `ring_ip`, else `bind_ip`: selects this node's devices in the rings; any address of this
    /// host if it is unspecified.
    pub ring_ip: IpAddr,
    /// Interval of checks of the rings.
    pub check_interval: Duration,
}

impl PerPort {
    /// `None` unless enabled by the conf of an object server.
    pub(crate) fn read(role: Role, section: &Section) -> Result<Option<PerPort>, ConfError> {
        if role != Role::Object || section.u64_or("servers_per_port", 0)? == 0 {
            return Ok(None);
        }
        let (option, host) = match section.get("ring_ip") {
            Some(host) => ("ring_ip", host),
            None => ("bind_ip", section.str_or("bind_ip", "0.0.0.0")),
        };
        let ring_ip = cairn_peer::look_up(host.trim()).into_iter().next();
        Ok(Some(PerPort {
            ring_ip: ring_ip.ok_or_else(|| section.bad(option, "expected an address"))?,
            check_interval: section.seconds_or("ring_check_interval", 15.0)?,
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_conf_says() {
        let read = |pairs: &[(&str, &str)]| {
            PerPort::read(Role::Object, &Section::from_pairs("app", pairs)).unwrap()
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("servers_per_port", "0")]), None);
        let two = read(&[("servers_per_port", "2"), ("bind_ip", "10.0.0.1")]).unwrap();
        assert_eq!(two.ring_ip, "10.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(two.check_interval, Duration::from_secs(15));
        let one = [
            ("servers_per_port", "1"),
            ("ring_ip", "::1"),
            ("bind_ip", "::"),
        ];
        assert_eq!(
            read(&one).unwrap().ring_ip,
            "::1".parse::<IpAddr>().unwrap()
        );
        let section = Section::from_pairs("app", &[("servers_per_port", "4")]);
        assert_eq!(PerPort::read(Role::Container, &section).unwrap(), None);
    }
}
