//! Further proxies of the store under attack, each with filters that the first one does not have,
//! and the servers behind them: a name server, a memcached and a Keystone of our own that answer
//! like an attacker would.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cache::Memcached;
use super::hosts::Names;
use super::keystone::Keystone;
use cairn_testkit::conf::{with_option, with_option_added};
use cairn_testkit::process::{free_ports, wait_for_port};

/// Ports of further proxies, and the hostile servers that they ask.
pub(super) struct Doors {
    /// Port of the proxy with `container_sync`, `cname_lookup` and `domain_remap`.
    pub(super) hosts: u16,
    /// Port of the proxy with `require_proxy_protocol`.
    pub(super) line: u16,
    /// Port of the proxy with `cache` and `tempauth`.
    pub(super) cache: u16,
    /// Port of the proxy with `authtoken` and `keystoneauth`.
    pub(super) keystone: u16,
    pub(super) names: Names,
    pub(super) memcached: Memcached,
    pub(super) tokens: Keystone,
}

/// The realm's key (container sync).
pub(super) const REALM_KEY: &str = "of-the-realm";

const HOSTS: &str = "catch_errors gatekeeper healthcheck cache container_sync cname_lookup \
     domain_remap tempurl tempauth copy slo dlo versioned_writes symlink proxy-server";
const LINE: &str = "catch_errors gatekeeper healthcheck cache tempauth proxy-server";
const KEYSTONE: &str =
    "catch_errors gatekeeper healthcheck cache authtoken keystoneauth proxy-server";

/// A conf option: section, name and value.
type Setting = (&'static str, &'static str, String);

impl Doors {
    /// Writes the confs beside the proxy's; returns the doors and the paths of these confs.
    pub(super) fn create(conf: &Path) -> Result<(Doors, Vec<PathBuf>)> {
        let ports = free_ports(4)?;
        let names = Names::start()?;
        let memcached = Memcached::start()?;
        let tokens = Keystone::start()?;
        let etc = conf.parent().context("a conf is in a folder")?;
        let realms = format!("[realm]\nkey = {REALM_KEY}\ncluster_here = http://127.0.0.1/v1/\n");
        std::fs::write(etc.join("container-sync-realms.conf"), realms)?;
        let name_server = format!("{}:{}", Ipv4Addr::LOCALHOST, names.port);
        let hosts = [
            (
                "filter:container_sync",
                "use",
                "egg:swift#container_sync".to_owned(),
            ),
            (
                "filter:container_sync",
                "swift_dir",
                etc.display().to_string(),
            ),
            (
                "filter:cname_lookup",
                "use",
                "egg:swift#cname_lookup".to_owned(),
            ),
            ("filter:cname_lookup", "nameservers", name_server),
            (
                "filter:cname_lookup",
                "lookup_depth",
                super::hosts::DEPTH.to_string(),
            ),
        ];
        let line = [("DEFAULT", "require_proxy_protocol", "true".to_owned())];
        let cache = [
            ("filter:cache", "memcache_servers", memcached.addresses()),
            // A server that failed is avoided for a while, so each lookup tries only one.
            ("filter:cache", "tries", "1".to_owned()),
            ("filter:cache", "io_timeout", "0.5".to_owned()),
        ];
        let doors = Doors {
            hosts: ports[0],
            line: ports[1],
            cache: ports[2],
            keystone: ports[3],
            names,
            memcached,
            tokens,
        };
        let keystone = doors.tokens.settings();
        let confs = [
            (ports[0], HOSTS, &hosts[..]),
            (ports[1], LINE, &line[..]),
            (ports[2], LINE, &cache[..]),
            (ports[3], KEYSTONE, &keystone[..]),
        ];
        let text = std::fs::read_to_string(conf)?;
        let write = |(port, pipeline, settings): (u16, &str, &[Setting])| {
            let path = conf.with_file_name(format!("proxy-server-{port}.conf"));
            std::fs::write(&path, proxy(&text, port, pipeline, settings))?;
            Ok(path)
        };
        let paths: Result<Vec<PathBuf>> = confs.into_iter().map(write).collect();
        Ok((doors, paths?))
    }
}

impl Doors {
    /// Waits until all of them listen.
    pub(super) fn wait(&self) -> Result<()> {
        for port in [self.hosts, self.line, self.cache, self.keystone] {
            wait_for_port(port, &mut [])?;
        }
        Ok(())
    }
}

/// The proxy's conf with a different port and pipeline, and with these settings.
fn proxy(text: &str, port: u16, pipeline: &str, settings: &[Setting]) -> String {
    let mut text = with_option(text, "DEFAULT", "bind_port", &port.to_string());
    text = with_option(&text, "DEFAULT", "workers", "1");
    text = with_option(&text, "pipeline:main", "pipeline", pipeline);
    for (section, option, value) in settings {
        text = with_option_added(&text, section, option, value);
    }
    text
}
