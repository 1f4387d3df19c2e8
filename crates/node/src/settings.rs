//! Settings of a server's conf about serving: address, limits, folders. Options of the servers
//! themselves are read by [`crate::servers`] and the proxy.
//!
//! Options (default): `bind_ip` (0.0.0.0), `bind_port` (none), `bind_timeout` (0: a port in use is
//! an error at once), `backlog` (4096), `workers` (auto: one thread per CPU; Swift's processes are
//! threads here, and the largest number of all confs is used), `max_clients` (1024, per worker;
//! fewer if open files or memory are short, see [`crate::limits`]), `client_timeout` (60),
//! `keepalive_timeout` (client_timeout), `swift_dir` (/etc/swift), `devices` (/srv/node),
//! `mount_check` (true), `exclusive_databases` (false: other processes read and write account and
//! container databases, too), `user` (none: Swift would switch to `swift`; here a program started
//! as root stays root by default), `log_level` (INFO), `metrics` (loopback: who may read
//! `/metrics`; off, loopback or on), `shutdown_grace` (60: seconds for requests in progress at
//! shutdown), `trusted_proxies` (none: HTTP proxies whose `X-Forwarded-For` names the client by
//! which logins are counted and which the audit log names), `servers_per_port` (0; of object servers: listen on the rings' ports, see
//! [`crate::ring_ports`]), `ring_ip` (`bind_ip`), `ring_check_interval` (15), `cert_file` and
//! `key_file` (none: no TLS; PEM, several separated by commas), `require_client_cert` (false) with
//! `client_ca_file` (none).

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use cairn_formats::ini::{ConfError, Section};
use cairn_http::serve::{MetricsAccess, NoNetwork, ServeOptions, TrustedProxies};
use cairn_http::tls::{ServerTls, TlsFiles};

use crate::conf::ServerConf;
use crate::limits;
use crate::per_port::PerPort;
use crate::role::Role;

/// Timeout of a proxy that reads nothing from a storage server's response.
const STALLED_PROXY_TIMEOUT: Duration = Duration::from_secs(600);

/// Serving settings of one server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub role: Role,
    pub bind: SocketAddr,
    /// Time for which a port in use is retried.
    pub bind_timeout: Duration,
    pub backlog: i32,
    /// Threads; `None` for one per CPU.
    pub workers: Option<usize>,
    /// Per worker.
    pub max_clients: usize,
    pub client_timeout: Duration,
    pub keepalive_timeout: Duration,
    pub folders: Folders,
    pub user: Option<String>,
    pub log_level: LogLevel,
    pub metrics: MetricsAccess,
    pub grace: Duration,
    /// Serves replication only, beside a separate server for clients.
    pub replication_only: bool,
    /// Connections begin with a line of the PROXY protocol (`require_proxy_protocol`).
    pub proxy_protocol: bool,
    /// HTTP proxies in front of us (`trusted_proxies`).
    pub trusted_proxies: TrustedProxies,
    /// Listens on this node's ports in the rings, not on `bind`'s.
    pub per_port: Option<PerPort>,
    /// TLS of connections.
    pub tls: Option<Arc<ServerTls>>,
}

/// Folders of a server or a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    pub swift_dir: PathBuf,
    /// The folder of the devices' mount points.
    pub devices: PathBuf,
    pub mount_check: bool,
    /// Whether only this process opens the account and container databases: see
    /// [`cairn_index::IndexConfig::exclusive`].
    pub exclusive_databases: bool,
}

impl Folders {
    pub fn read(section: &Section) -> Folders {
        Folders {
            swift_dir: section.str_or("swift_dir", "/etc/swift").into(),
            devices: section.str_or("devices", "/srv/node").into(),
            mount_check: section.bool_or("mount_check", true),
            exclusive_databases: section.bool_or("exclusive_databases", false),
        }
    }
}

/// Swift's levels, least to most verbose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warning,
    Info,
    Debug,
}

impl LogLevel {
    /// Name in a tracing filter.
    pub const fn directive(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warning => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

impl ServerSettings {
    /// Reads the settings of a server's conf.
    ///
    /// # Errors
    /// `bind_port` is missing, an option's value is invalid, or the certificates cannot be loaded.
    pub fn read(conf: &ServerConf) -> Result<ServerSettings> {
        let section = &conf.app;
        let client_timeout = positive(section, "client_timeout", 60.0)?;
        let per_port = PerPort::read(conf.role, section)?;
        let backlog = section.u64_or("backlog", 4096)?;
        Ok(ServerSettings {
            role: conf.role,
            bind: bind_address(section, per_port.is_some())?,
            per_port,
            bind_timeout: section.seconds_or("bind_timeout", 0.0)?,
            backlog: i32::try_from(backlog)
                .map_err(|_| section.bad("backlog", "expected at most 2147483647"))?,
            workers: workers(section)?,
            max_clients: section.usize_or("max_clients", 1024)?.clamp(1, 1 << 20),
            client_timeout,
            keepalive_timeout: section
                .seconds_or("keepalive_timeout", client_timeout.as_secs_f64())?,
            folders: Folders::read(section),
            user: user(section),
            log_level: log_level(section)?,
            metrics: metrics(section)?,
            grace: section.seconds_or("shutdown_grace", 60.0)?,
            proxy_protocol: section.bool_or("require_proxy_protocol", false),
            trusted_proxies: trusted_proxies(section)?,
            tls: tls(section)?,
            replication_only: conf.role != Role::Proxy
                && section.get("replication_server").is_some()
                && section.bool_or("replication_server", false),
        })
    }

    pub fn serve_options(&self, threads: usize) -> ServeOptions {
        // Another server keeps a pooled connection idle for at most 30 s; closing it earlier here
        // would race with its next request.
        let least = match self.role {
            Role::Proxy => Duration::from_secs(1),
            _ => Duration::from_secs(60),
        };
        // Data that a slow client does not accept is not read by its proxy from a storage server:
        // the proxy's own limit applies there.
        let stall_timeout = match self.role {
            Role::Proxy => self.client_timeout,
            _ => self.client_timeout.max(STALLED_PROXY_TIMEOUT),
        };
        let wanted = self.max_clients.saturating_mul(threads.max(1)).min(1 << 20);
        ServeOptions {
            max_connections: wanted.min(limits::connections(self.role)),
            stall_timeout,
            header_timeout: self.keepalive_timeout.max(least),
            grace: self.grace,
            metrics: self.metrics,
            proxy_protocol: self.proxy_protocol,
            trusted_proxies: self.trusted_proxies.clone(),
            tls: self.tls.clone(),
            ..ServeOptions::new(self.role.as_str())
        }
    }
}

/// The user that a program started as root switches to.
pub fn user(section: &Section) -> Option<String> {
    let user = section.get("user").filter(|user| !user.is_empty());
    user.map(str::to_owned)
}

fn positive(section: &Section, option: &str, default: f64) -> Result<Duration, ConfError> {
    let value = section.seconds_or(option, default)?;
    if value.is_zero() {
        return Err(section.bad(option, "expected more than 0 seconds"));
    }
    Ok(value)
}

/// Reads the address; with `per_port` the port is ignored.
fn bind_address(section: &Section, per_port: bool) -> Result<SocketAddr> {
    if !per_port {
        section.required("bind_port", "give the port to listen on")?;
    }
    let port = section.u64_or("bind_port", 0)?;
    let port = u16::try_from(port).map_err(|_| section.bad("bind_port", "expected 1 to 65535"))?;
    let host = section.str_or("bind_ip", "0.0.0.0").trim();
    if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let resolved = (host, port)
        .to_socket_addrs()
        .ok()
        .and_then(|mut all| all.next());
    resolved.ok_or_else(|| {
        section
            .bad(
                "bind_ip",
                "expected an address of this machine, or a name that has one",
            )
            .into()
    })
}

/// Reads `cert_file` and `key_file`, each a file or several separated by commas;
/// `require_client_cert` with `client_ca_file`.
fn tls(section: &Section) -> Result<Option<Arc<ServerTls>>> {
    let files = |option: &str| -> Vec<PathBuf> {
        section
            .list_or(option, "")
            .iter()
            .map(PathBuf::from)
            .collect()
    };
    let (certificates, keys) = (files("cert_file"), files("key_file"));
    let authorities = section
        .get("client_ca_file")
        .filter(|path| !path.is_empty());
    let is_required = section.bool_or("require_client_cert", false);
    if certificates.is_empty() && keys.is_empty() {
        if is_required {
            let remedy = "needs TLS: give cert_file and key_file";
            return Err(section.bad("require_client_cert", remedy).into());
        }
        return Ok(None);
    }
    if certificates.len() != keys.len() {
        let remedy = "expected as many files as cert_file has, each the key of its certificate";
        return Err(section.bad("key_file", remedy).into());
    }
    if is_required != authorities.is_some() {
        let remedy = "require_client_cert = true and client_ca_file, whose certificates clients \
                      must have, go together";
        return Err(section.bad("require_client_cert", remedy).into());
    }
    let files = TlsFiles {
        pairs: certificates.into_iter().zip(keys).collect(),
        client_authorities: authorities.map(PathBuf::from),
    };
    let loaded = ServerTls::load(files);
    Ok(Some(loaded.map_err(|error| {
        section.bad("cert_file", error.to_string())
    })?))
}

fn workers(section: &Section) -> Result<Option<usize>, ConfError> {
    match section.str_or("workers", "auto").trim() {
        text if text.eq_ignore_ascii_case("auto") => Ok(None),
        _ => match section.usize_or("workers", 0) {
            Ok(number) if number <= 1024 => Ok(Some(number.max(1))),
            _ => Err(section.bad("workers", "expected auto, or a number up to 1024")),
        },
    }
}

/// The option `log_level`, in syslog's words.
///
/// # Errors
/// The value is none of syslog's levels.
pub fn log_level(section: &Section) -> Result<LogLevel> {
    let text = section
        .str_or("log_level", "INFO")
        .trim()
        .to_ascii_uppercase();
    Ok(match text.as_str() {
        "CRITICAL" | "FATAL" | "ERROR" => LogLevel::Error,
        "WARNING" | "WARN" => LogLevel::Warning,
        "NOTICE" | "INFO" => LogLevel::Info,
        "DEBUG" | "NOTSET" => LogLevel::Debug,
        _ => bail!(section.bad(
            "log_level",
            "expected DEBUG, INFO, WARNING, ERROR or CRITICAL"
        )),
    })
}

fn metrics(section: &Section) -> Result<MetricsAccess, ConfError> {
    match section.str_or("metrics", "loopback").trim() {
        "off" => Ok(MetricsAccess::Nobody),
        "loopback" => Ok(MetricsAccess::Loopback),
        "on" => Ok(MetricsAccess::Everybody),
        _ => Err(section.bad("metrics", "expected off, loopback or on")),
    }
}

fn trusted_proxies(section: &Section) -> Result<TrustedProxies, ConfError> {
    let list = section.str_or("trusted_proxies", "");
    list.parse()
        .map_err(|error: NoNetwork| section.bad("trusted_proxies", error.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(options: &str) -> Result<ServerSettings> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.conf");
        let text = format!("[DEFAULT]\n{options}\n[app:main]\nuse = egg:swift#object\n");
        std::fs::write(&path, text).unwrap();
        ServerSettings::read(&ServerConf::load(&path).unwrap())
    }

    #[test]
    fn defaults_are_swifts() {
        let settings = read("bind_port = 6200").unwrap();
        assert_eq!(settings.bind, "0.0.0.0:6200".parse().unwrap());
        assert_eq!(settings.backlog, 4096);
        assert_eq!(settings.workers, None);
        assert_eq!(settings.max_clients, 1024);
        assert_eq!(settings.client_timeout, Duration::from_secs(60));
        assert_eq!(settings.folders.swift_dir, PathBuf::from("/etc/swift"));
        assert_eq!(settings.folders.devices, PathBuf::from("/srv/node"));
        assert!(settings.folders.mount_check);
        assert!(!settings.replication_only);
        assert_eq!(settings.log_level, LogLevel::Info);
        assert_eq!(settings.metrics, MetricsAccess::Loopback);
    }

    #[test]
    fn values_are_taken() {
        let text = "bind_ip = ::1\nbind_port = 7\nworkers = 3\nmax_clients = 10\nmetrics = on\n\
                    log_level = warning\nmount_check = off\nuser = swift\nclient_timeout = 0.5\n\
                    trusted_proxies = 10.0.0.1, fd00::/8";
        let settings = read(text).unwrap();
        assert_eq!(settings.bind, "[::1]:7".parse().unwrap());
        assert_eq!(settings.workers, Some(3));
        assert_eq!(settings.log_level, LogLevel::Warning);
        assert_eq!(settings.user.as_deref(), Some("swift"));
        assert_eq!(settings.serve_options(2).max_connections, 20);
        assert_eq!(
            settings.serve_options(2).header_timeout,
            Duration::from_secs(60)
        );
    }

    #[test]
    fn refusals_name_the_option() {
        for (text, part) in [
            ("", "bind_port is missing"),
            ("bind_port = 70000", "bind_port = \"70000\""),
            ("bind_port = 1\nworkers = many", "workers"),
            ("bind_port = 1\nclient_timeout = 0", "client_timeout"),
            ("bind_port = 1\nmetrics = yes", "off, loopback or on"),
            ("bind_port = 1\nlog_level = LOUD", "log_level"),
            (
                "bind_port = 1\ntrusted_proxies = 10.0.0.1, lb.example",
                "\"lb.example\" is none",
            ),
            ("bind_port = 1\ncert_file = /x", "key_file"),
            (
                "bind_port = 1\ncert_file = /no/x\nkey_file = /no/y",
                "/no/x: ",
            ),
            (
                "bind_port = 1\nrequire_client_cert = true",
                "cert_file and key_file",
            ),
            ("bind_port = 1\nbind_ip = no such host", "bind_ip"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
