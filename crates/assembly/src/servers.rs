//! Servers by their roles, and the options of their sections.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use cairn_daemons::{NotesRows, NotesWrites};
use cairn_disk::FallocateReserve;
use cairn_formats::ini::{ConfError, Section};
use cairn_http::{Handler, SwiftInfo};
use cairn_index::{Reserve, TakesRows};
use cairn_peer::Rings;
use cairn_proxy::{Proxy, ProxySettings};
use cairn_servers::account::{AccountServer, AccountServerConfig};
use cairn_servers::container::{ContainerServer, ContainerServerConfig};
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::PolicyIndex;

use crate::{Common, Parts};

/// Options of a proxy.
pub struct ProxyOptions {
    /// `[app:proxy-server]`.
    pub section: Section,
    /// `[proxy-server:policy:N]`.
    pub policy_sections: BTreeMap<PolicyIndex, Section>,
    /// Registry of what `/info` shows, of the proxy and its filters.
    pub swift_info: Arc<SwiftInfo>,
}

/// Makes a proxy, the application at the end of a pipeline.
///
/// # Errors
/// An option is invalid.
pub fn proxy(options: ProxyOptions, common: &Common, rings: Arc<Rings>) -> Result<Arc<Proxy>> {
    let settings = ProxySettings {
        section: options.section,
        policy_sections: options.policy_sections,
        constraints: common.constraints.clone(),
        policies: common.policies.clone(),
        hash_path: common.hash_path.clone(),
        rings,
        swift_info: options.swift_info,
        clock: common.clock.clone(),
    };
    Ok(Proxy::new(settings, common.backends.clone())?)
}

/// Makes an account server.
///
/// # Errors
/// An option or a part is invalid or missing.
pub fn account_server(section: &Section, parts: &mut dyn Parts) -> Result<Handler> {
    let config = account_config(section, parts.common())?;
    Ok(AccountServer::new(config, parts.databases()?))
}

/// Makes a container server; it records its writes for the updater of its process, if there is one.
///
/// # Errors
/// An option or a part is invalid or missing.
pub fn container_server(section: &Section, parts: &mut dyn Parts) -> Result<Handler> {
    let config = container_config(section, parts)?;
    let databases = parts.databases()?;
    let common = parts.common();
    let (rows, hash_path): (Arc<dyn TakesRows>, _) = (databases.clone(), common.hash_path.clone());
    let server = ContainerServer::new(config, databases, common.backends.clone());
    let Some(written) = parts.written() else {
        parts.offer_rows(rows);
        return Ok(server);
    };
    parts.offer_rows(NotesRows::around(rows, written.clone()));
    Ok(NotesWrites::around(server, hash_path, written))
}

/// Makes an object server.
///
/// # Errors
/// An option or a part is invalid or missing.
pub fn object_server(section: &Section, parts: &mut dyn Parts) -> Result<Handler> {
    let config = object_config(section, parts.common())?;
    let server = ObjectServer::new(
        config,
        parts.engines()?,
        parts.devices()?,
        parts.common().backends.clone(),
    );
    parts.offer_calls(server.clone());
    Ok(server)
}

fn account_config(section: &Section, common: &Common) -> Result<AccountServerConfig> {
    let defaults = AccountServerConfig::new(common.hash_path.clone(), common.policies.clone());
    Ok(AccountServerConfig {
        constraints: (*common.constraints).clone(),
        mount_check: mount_check(section),
        fallocate_reserve: index_reserve(section)?,
        clock: common.clock.clone(),
        ..defaults
    })
}

fn container_config(section: &Section, parts: &dyn Parts) -> Result<ContainerServerConfig> {
    let common = parts.common();
    let defaults = ContainerServerConfig::new(common.hash_path.clone(), common.policies.clone());
    Ok(ContainerServerConfig {
        constraints: (*common.constraints).clone(),
        mount_check: mount_check(section),
        fallocate_reserve: index_reserve(section)?,
        node_timeout: section.seconds_or("node_timeout", 3.0)?,
        conn_timeout: section.seconds_or("conn_timeout", 0.5)?,
        allowed_sync_hosts: section.list_or("allowed_sync_hosts", "127.0.0.1"),
        sync_realms: parts.sync_realms()?,
        allow_versions: section.bool_or("allow_versions", false),
        ..defaults
    })
}

fn object_config(section: &Section, common: &Common) -> Result<ObjectServerConfig> {
    let defaults = ObjectServerConfig::new(common.hash_path.clone(), (*common.policies).clone());
    let allowed_headers = match section.get("allowed_headers") {
        Some(text) => ObjectServerConfig::parse_allowed_headers(text),
        None => defaults.allowed_headers,
    };
    Ok(ObjectServerConfig {
        constraints: (*common.constraints).clone(),
        clock: common.clock.clone(),
        local_rows: common.local_rows.clone(),
        node_timeout: section.seconds_or("node_timeout", 3.0)?,
        container_update_timeout: section.seconds_or("container_update_timeout", 1.0)?,
        client_timeout: section.seconds_or("client_timeout", 60.0)?,
        max_upload_time: section.seconds_or("max_upload_time", 86_400.0)?,
        disk_chunk_size: chunk(section, "disk_chunk_size", defaults.disk_chunk_size)?,
        network_chunk_size: chunk(section, "network_chunk_size", defaults.network_chunk_size)?,
        allowed_headers,
        expiring_objects_container_divisor: section.u64_or(
            "expiring_objects_container_divisor",
            defaults.expiring_objects_container_divisor,
        )?,
        expiring_objects_account_name: section
            .str_or(
                "expiring_objects_account_name",
                &defaults.expiring_objects_account_name,
            )
            .to_owned(),
        replication_concurrency: section
            .usize_or("replication_concurrency", defaults.replication_concurrency)?,
        replication_concurrency_per_device: section.usize_or(
            "replication_concurrency_per_device",
            defaults.replication_concurrency_per_device,
        )?,
        replication_lock_timeout: section.seconds_or("replication_lock_timeout", 15.0)?,
        replication_failure_threshold: section.usize_or(
            "replication_failure_threshold",
            defaults.replication_failure_threshold,
        )?,
        replication_failure_ratio: section.f64_or("replication_failure_ratio", 1.0)?,
        ..defaults
    })
}

fn mount_check(section: &Section) -> bool {
    section.bool_or("mount_check", true)
}

/// A chunk size in bytes; more than 16 MiB would only cost memory.
fn chunk(section: &Section, option: &str, default: usize) -> Result<usize, ConfError> {
    let bytes = section.usize_or(option, default)?;
    if !(512..=16 << 20).contains(&bytes) {
        return Err(section.bad(option, "expected 512 to 16777216 bytes"));
    }
    Ok(bytes)
}

/// `fallocate_reserve`, for object files.
///
/// # Errors
/// It is neither bytes nor a percentage.
pub fn fallocate_reserve(section: &Section) -> Result<FallocateReserve, ConfError> {
    FallocateReserve::parse(section.str_or("fallocate_reserve", "1%"))
        .ok_or_else(|| section.bad("fallocate_reserve", "expected bytes, or percent as 1%"))
}

/// `fallocate_reserve`, for databases.
fn index_reserve(section: &Section) -> Result<Option<Reserve>, ConfError> {
    Ok(Some(match fallocate_reserve(section)? {
        FallocateReserve::Bytes(bytes) => Reserve::Bytes(bytes),
        FallocateReserve::Percent(percent) => Reserve::Percent(percent),
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reserves() {
        let read =
            |text| index_reserve(&Section::from_pairs("app", &[("fallocate_reserve", text)]));
        assert_eq!(read("2%").unwrap(), Some(Reserve::Percent(2.0)));
        assert_eq!(read("4096").unwrap(), Some(Reserve::Bytes(4096)));
        assert!(read("much").is_err());
    }
}
