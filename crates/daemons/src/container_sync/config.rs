//! `[container-sync]`; names, units and defaults are Swift's.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_http::tls::{ClientTls, TlsError, Trust};

use crate::db_replicator::{default_port, own_address};
use crate::local::OwnAddress;
use cairn_index::DbKind;

#[derive(Clone, Debug)]
pub struct ContainerSyncConfig {
    /// Interval from one pass' start to the next one's.
    pub interval: Duration,
    /// Time limit of one container per pass.
    pub container_time: Duration,
    /// Maximum rows of a container sent concurrently.
    pub row_concurrency: usize,
    /// Timeout of a connection to the other cluster.
    pub conn_timeout: Duration,
    /// TLS for clusters with `https` URLs.
    pub tls: ClientTls,
    /// Hosts allowed in plain URLs.
    pub allowed_sync_hosts: Vec<String>,
    pub realms_file: PathBuf,
    pub request_tries: u32,
    pub mount_check: bool,
    pub(crate) own: OwnAddress,
}

impl ContainerSyncConfig {
    /// Reads the section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a `sync_proxy`, a `sync_ca_file` that
    /// cannot be used, and a `bind_ip` that is no address.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let proxy = section.str_or("sync_proxy", "").trim();
        if !proxy.is_empty() {
            let remedy = "other clusters are reached without a proxy only: remove it";
            return Err(section.bad("sync_proxy", remedy));
        }
        let swift_dir = PathBuf::from(section.str_or("swift_dir", "/etc/swift"));
        let tries = section.u64_or("request_tries", 3)?;
        Ok(ContainerSyncConfig {
            interval: section.seconds_or("interval", 300.0)?,
            container_time: section.seconds_or("container_time", 60.0)?,
            row_concurrency: section.usize_or("sync_row_concurrency", 8)?.clamp(1, 1024),
            conn_timeout: section.seconds_or("conn_timeout", 5.0)?,
            tls: tls(section)?,
            allowed_sync_hosts: section.list_or("allowed_sync_hosts", "127.0.0.1"),
            realms_file: swift_dir.join("container-sync-realms.conf"),
            request_tries: u32::try_from(tries.clamp(1, 10)).unwrap_or(3),
            mount_check: section.bool_or("mount_check", true),
            own: own_address(section, default_port(DbKind::Container))?,
        })
    }
}

/// TLS from `sync_ca_file` (by default the system's authorities).
fn tls(section: &Section) -> Result<ClientTls, ConfError> {
    let file = section.get("sync_ca_file").filter(|path| !path.is_empty());
    let trust = match file {
        Some(path) => Trust::File(path.into()),
        None => Trust::System,
    };
    let wrong = |error: TlsError| section.bad("sync_ca_file", error.to_string());
    ClientTls::new(&trust, None).map_err(wrong)
}
