//! Where container sync may send a container's objects: the check of `X-Container-Sync-To`.
//!
//! `//realm/cluster/account/container` by `container-sync-realms.conf`, or a plain URL on one of
//! the allowed hosts.

use std::collections::HashMap;

use http::HeaderMap;

use super::ContainerServer;
use crate::index_server::status::Refused;
use crate::index_server::text;

/// `container-sync-realms.conf`: realms by upper-case name, each with its clusters' endpoints.
/// Only what the check needs; the keys stay with those who sign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncRealms {
    /// Realm to clusters (upper case) to endpoint, of realms that have a key.
    pub clusters: HashMap<String, HashMap<String, String>>,
}

impl ContainerServer {
    pub(super) fn check_sync_to(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let Some(value) = text(headers, "x-container-sync-to") else {
            return Ok(());
        };
        let hosts = &self.config.allowed_sync_hosts;
        check(value, hosts, &self.config.sync_realms).map_err(Refused::BadRequest)
    }
}

fn check(value: &str, hosts: &[String], realms: &SyncRealms) -> Result<(), String> {
    let trimmed = value.trim_end_matches('/');
    if trimmed.is_empty() {
        return Ok(());
    }
    if let Some(realm_path) = trimmed.strip_prefix("//") {
        let parts: Vec<&str> = realm_path.split('/').collect();
        let [realm, cluster, _account, _container] = parts[..] else {
            return Err(format!("Invalid X-Container-Sync-To format '{value}'"));
        };
        let clusters = realms.clusters.get(&realm.to_uppercase());
        let clusters = clusters.ok_or_else(|| format!("No realm key for '{realm}'"))?;
        return match clusters.get(&cluster.to_uppercase()) {
            Some(_) => Ok(()),
            None => Err(format!("No cluster endpoint for '{realm}' '{cluster}'")),
        };
    }
    let (scheme, rest) = trimmed.split_once("://").unwrap_or(("", trimmed));
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
        return Err(format!(
            "Invalid scheme '{scheme}' in X-Container-Sync-To, must be \"//\", \"http\", or \"https\"."
        ));
    }
    let Some((authority, path)) = rest.split_once('/') else {
        return Err("Path required in X-Container-Sync-To".into());
    };
    if path.contains(['?', '#', ';']) {
        return Err("Params, queries, and fragments not allowed in X-Container-Sync-To".into());
    }
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => host.split(':').next().unwrap_or(host),
    };
    let host = host.to_lowercase();
    if hosts.contains(&host) {
        Ok(())
    } else {
        Err(format!("Invalid host '{host}' in X-Container-Sync-To"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_synced_to() {
        let hosts = ["127.0.0.1".to_owned()];
        let us = [(
            "US".to_owned(),
            HashMap::from([("DFW".to_owned(), "http://x/v1/".to_owned())]),
        )];
        let realms = SyncRealms {
            clusters: HashMap::from(us),
        };
        let ok = |value: &str| check(value, &hosts, &realms).is_ok();
        assert!(ok(""));
        assert!(ok("http://127.0.0.1:8080/v1/a/c"));
        assert!(ok("//us/dfw/a/c"));
        for value in [
            "//us/dfw/a",
            "//uk/dfw/a/c",
            "//us/lon/a/c",
            "ftp://127.0.0.1/v1/a/c",
            "http://127.0.0.1",
            "http://127.0.0.1/v1/a/c?x",
            "http://10.0.0.1/v1/a/c",
        ] {
            assert!(!ok(value), "{value}");
        }
    }
}
