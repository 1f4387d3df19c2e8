//! Conversion of an account, container or object server's conf to the server's configuration.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_disk::{DiskFileConfig, FallocateReserve};
use cairn_formats::ini::{ConfError, Section};
use cairn_http::Clock;
use cairn_index::Reserve;
use cairn_servers::account::AccountServerConfig;
use cairn_servers::container::{ContainerServerConfig, SyncRealms};
use cairn_servers::object::ObjectServerConfig;

use crate::cluster::Cluster;
use crate::settings::ServerSettings;

pub(crate) fn account(
    section: &Section,
    settings: &ServerSettings,
    cluster: &Cluster,
    clock: Clock,
) -> Result<AccountServerConfig> {
    let defaults =
        AccountServerConfig::new(cluster.hash_path.clone(), Arc::clone(&cluster.policies));
    Ok(AccountServerConfig {
        constraints: (*cluster.constraints).clone(),
        mount_check: settings.place.mount_check,
        fallocate_reserve: index_reserve(section)?,
        clock,
        ..defaults
    })
}

pub(crate) fn container(
    section: &Section,
    settings: &ServerSettings,
    cluster: &Cluster,
) -> Result<ContainerServerConfig> {
    let defaults =
        ContainerServerConfig::new(cluster.hash_path.clone(), Arc::clone(&cluster.policies));
    Ok(ContainerServerConfig {
        constraints: (*cluster.constraints).clone(),
        mount_check: settings.place.mount_check,
        fallocate_reserve: index_reserve(section)?,
        node_timeout: section.seconds_or("node_timeout", 3.0)?,
        conn_timeout: section.seconds_or("conn_timeout", 0.5)?,
        allowed_sync_hosts: section.list_or("allowed_sync_hosts", "127.0.0.1"),
        sync_realms: sync_realms(&settings.place.swift_dir)?,
        allow_versions: section.bool_or("allow_versions", false),
        ..defaults
    })
}

pub(crate) fn object(
    section: &Section,
    settings: &ServerSettings,
    cluster: &Cluster,
    clock: Clock,
) -> Result<ObjectServerConfig> {
    let defaults = ObjectServerConfig::new(cluster.hash_path.clone(), (*cluster.policies).clone());
    let allowed_headers = match section.get("allowed_headers") {
        Some(text) => ObjectServerConfig::parse_allowed_headers(text),
        None => defaults.allowed_headers,
    };
    Ok(ObjectServerConfig {
        constraints: (*cluster.constraints).clone(),
        clock,
        node_timeout: section.seconds_or("node_timeout", 3.0)?,
        container_update_timeout: section.seconds_or("container_update_timeout", 1.0)?,
        client_timeout: settings.client_timeout,
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

/// Options of `diskfile`, for servers and daemons.
pub(crate) fn diskfile(section: &Section) -> Result<DiskFileConfig, ConfError> {
    let defaults = DiskFileConfig::default();
    let percent = section.f64_or("etag_validate_pct", defaults.etag_validate_pct)?;
    if !(0.0..=100.0).contains(&percent) {
        return Err(section.bad("etag_validate_pct", "expected 0 to 100"));
    }
    let megabytes = section.u64_or("mb_per_sync", defaults.bytes_per_sync >> 20)?;
    Ok(DiskFileConfig {
        reclaim_age: section.seconds_or("reclaim_age", defaults.reclaim_age.as_secs_f64())?,
        commit_window: section.seconds_or("commit_window", defaults.commit_window.as_secs_f64())?,
        keep_cache_size: section.u64_or("keep_cache_size", defaults.keep_cache_size)?,
        etag_validate_pct: percent,
        etag_recheck_interval: section.seconds_or(
            "etag_recheck_interval",
            defaults.etag_recheck_interval.as_secs_f64(),
        )?,
        bytes_per_sync: megabytes.saturating_mul(1 << 20),
        direct_io_from: section.u64_or("direct_io_from", defaults.direct_io_from)?,
    })
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
pub(crate) fn reserve(section: &Section) -> Result<FallocateReserve, ConfError> {
    FallocateReserve::parse(section.str_or("fallocate_reserve", "1%"))
        .ok_or_else(|| section.bad("fallocate_reserve", "expected bytes, or percent as 1%"))
}

/// `fallocate_reserve`, for databases.
fn index_reserve(section: &Section) -> Result<Option<Reserve>, ConfError> {
    Ok(Some(match reserve(section)? {
        FallocateReserve::Bytes(bytes) => Reserve::Bytes(bytes),
        FallocateReserve::Percent(percent) => Reserve::Percent(percent),
    }))
}

/// Reads `container-sync-realms.conf`, which most clusters lack.
fn sync_realms(swift_dir: &Path) -> Result<SyncRealms> {
    let path = swift_dir.join("container-sync-realms.conf");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SyncRealms::default()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    Ok(SyncRealms::parse(&path.display().to_string(), &text)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn realms() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(sync_realms(folder.path()).unwrap(), SyncRealms::default());
        let text = "[us]\nkey = k\ncluster_one = http://one/v1/\n[no]\ncluster_two = http://x\n";
        std::fs::write(folder.path().join("container-sync-realms.conf"), text).unwrap();
        let realms = sync_realms(folder.path()).unwrap();
        let one = realms.get("US").unwrap();
        assert_eq!(one.clusters["ONE"], "http://one/v1/");
    }

    #[test]
    fn reserves() {
        let read =
            |text| index_reserve(&Section::from_pairs("app", &[("fallocate_reserve", text)]));
        assert_eq!(read("2%").unwrap(), Some(Reserve::Percent(2.0)));
        assert_eq!(read("4096").unwrap(), Some(Reserve::Bytes(4096)));
        assert!(read("much").is_err());
    }
}
