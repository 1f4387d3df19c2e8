//! Options of a pass, in `[object-replicator]` and `[object-reconstructor]` alike; names, units and
//! defaults are Swift's.

use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

/// Default concurrent partitions per device. Swift's default is 1; a partition mostly waits for
/// other servers, and clients have priority whatever the number.
const DEFAULT_CONCURRENCY: usize = 8;

/// Options of a pass, with defaults from `[DEFAULT]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PassConfig {
    /// `ring_ip`, else `bind_ip`: selects our devices in the ring; all addresses of this host if it
    /// is unspecified.
    pub ring_ip: String,
    /// `bind_port`; `None` with `servers_per_port`: the address alone selects our devices.
    pub port: Option<u16>,
    /// Interval between two passes.
    pub interval: Duration,
    /// Maximum concurrent partitions per device.
    pub concurrency: usize,
    /// Interval of log lines about a pass's progress.
    pub stats_interval: Duration,
    /// Interval of checks of the rings' files during a pass.
    pub ring_check_interval: Duration,
    /// Timeout for sending a request's head or a chunk of SSYNC.
    pub node_timeout: Duration,
    /// Timeout of a response that requires work.
    pub http_timeout: Duration,
    /// Time without progress after which a pass is aborted (`lockup_timeout`).
    pub lockup_timeout: Duration,
}

impl PassConfig {
    pub(crate) fn read(section: &Section) -> Result<Self, ConfError> {
        let seconds = |option: &str, default: f64| section.seconds_or(option, default);
        let interval = match section.get("interval").filter(|text| !text.is_empty()) {
            Some(_) => "interval",
            None => "run_pause",
        };
        Ok(PassConfig {
            ring_ip: section
                .get("ring_ip")
                .unwrap_or_else(|| section.str_or("bind_ip", "0.0.0.0"))
                .trim()
                .to_owned(),
            port: port(section)?,
            interval: seconds(interval, 30.0)?,
            concurrency: concurrency(section)?,
            stats_interval: seconds("stats_interval", 300.0)?,
            ring_check_interval: seconds("ring_check_interval", 15.0)?,
            node_timeout: seconds("node_timeout", 10.0)?,
            http_timeout: seconds("http_timeout", 60.0)?,
            lockup_timeout: seconds("lockup_timeout", 1800.0)?,
        })
    }
}

fn port(section: &Section) -> Result<Option<u16>, ConfError> {
    if section.u64_or("servers_per_port", 0)? > 0 {
        return Ok(None);
    }
    let port = section.u64_or("bind_port", 6200)?;
    let port = u16::try_from(port).map_err(|_| section.bad("bind_port", "expected 1 to 65535"))?;
    Ok(Some(port))
}

fn concurrency(section: &Section) -> Result<usize, ConfError> {
    match section.usize_or("concurrency", DEFAULT_CONCURRENCY)? {
        number @ 1..=256 => Ok(number),
        _ => Err(section.bad("concurrency", "expected 1 to 256")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<PassConfig, ConfError> {
        PassConfig::read(&Section::from_pairs("object-replicator", pairs))
    }

    #[test]
    fn defaults_are_swifts() {
        let config = read(&[]).unwrap();
        assert_eq!(config.interval, Duration::from_secs(30));
        assert_eq!(config.concurrency, DEFAULT_CONCURRENCY);
        assert_eq!(config.port, Some(6200));
        assert_eq!(config.ring_ip, "0.0.0.0");
    }

    #[test]
    fn values_are_taken() {
        let config = read(&[
            ("run_pause", "7"),
            ("bind_ip", "10.0.0.1"),
            ("servers_per_port", "3"),
        ]);
        let config = config.unwrap();
        assert_eq!(config.interval, Duration::from_secs(7));
        assert_eq!(config.ring_ip, "10.0.0.1");
        assert_eq!(config.port, None);
        let both = read(&[("run_pause", "7"), ("interval", "8")]).unwrap();
        assert_eq!(both.interval, Duration::from_secs(8));
        let error = read(&[("concurrency", "0")]).unwrap_err().to_string();
        assert!(error.contains("concurrency"), "{error}");
    }
}
