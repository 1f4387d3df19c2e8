//! Rings and policies of a `swift_dir`, and the location of a name's data by them.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_formats::swift_conf::SwiftConf;
use cairn_http::params::quote_path;
use cairn_ring::{Device, Ring};
use cairn_types::PolicyIndex;

/// Folder of swift.conf and the rings.
pub(crate) struct SwiftDir {
    path: PathBuf,
    pub(crate) conf: SwiftConf,
}

impl SwiftDir {
    pub(crate) fn open(path: &Path) -> Result<SwiftDir> {
        let file = path.join("swift.conf");
        let name = file.display().to_string();
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {name}"))?;
        Ok(SwiftDir {
            path: path.to_owned(),
            conf: SwiftConf::parse(&name, &bytes)?,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Loads a ring; `name` is `account`, `container`, `object` or `object-N`.
    pub(crate) fn ring(&self, name: &str) -> Result<Ring> {
        read_ring(&self.path.join(format!("{name}.ring.gz")))
    }
}

/// The address of a ring's host, which may be a name.
pub(crate) fn ip_of(host: &str) -> Result<IpAddr> {
    let ip = cairn_peer::look_up(host).into_iter().next();
    ip.with_context(|| format!("{host}: no such host is known"))
}

pub(crate) fn read_ring(path: &Path) -> Result<Ring> {
    let name = || path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", name()))?;
    Ring::from_bytes(&bytes).with_context(name)
}

/// An account, a container or an object; empty if only a partition is requested.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Item<'a> {
    pub(crate) account: Option<&'a str>,
    pub(crate) container: Option<&'a str>,
    pub(crate) object: Option<&'a str>,
}

impl Item<'_> {
    fn path(&self) -> String {
        // A partition alone has no name: Swift's tool then prints `None`.
        let mut path = self.account.unwrap_or("None").to_owned();
        for part in [self.container, self.object].into_iter().flatten() {
            path = path + "/" + part;
        }
        path
    }
}

/// Options of displaying an item's locations.
pub(crate) struct Places<'a> {
    pub(crate) ring: &'a Ring,
    /// Folder on each device: `accounts`, `objects-1`.
    pub(crate) datadir: &'a str,
    pub(crate) item: Item<'a>,
    /// Show this partition instead of the item's.
    pub(crate) partition: Option<u32>,
    /// Show all handoffs, instead of as many as there are primaries.
    pub(crate) all: bool,
    /// Policy for the header of object requests.
    pub(crate) policy: Option<PolicyIndex>,
}

impl Places<'_> {
    pub(crate) fn print(&self, swift: &SwiftDir, out: &mut dyn Write) -> Result<()> {
        let Item {
            account,
            container,
            object,
        } = self.item;
        let hash = match (self.partition, account) {
            (None, Some(account)) => Some(swift.conf.hash_path.hash(account, container, object)),
            _ => None,
        };
        let partition = match (self.partition, hash) {
            (Some(partition), _) => partition,
            (None, Some(hash)) => self.ring.partition(hash),
            (None, None) => 0,
        };
        let primaries = self.ring.primaries(partition);
        let most = match self.all {
            true => usize::MAX,
            false => primaries.len(),
        };
        let nodes: Vec<(Arc<Device>, bool)> = primaries
            .into_iter()
            .map(|primary| (primary.device, false))
            .chain(
                self.ring
                    .handoffs(partition)
                    .take(most)
                    .map(|handoff| (handoff.device, true)),
            )
            .collect();
        let hex = hash.map_or_else(|| "None".to_owned(), |hash| hash.hex());
        writeln!(out, "Partition\t{partition}\nHash     \t{hex}\n")?;
        for (device, handoff) in &nodes {
            let note = if *handoff { "\t [Handoff]" } else { "" };
            let Device {
                ip, port, device, ..
            } = &**device;
            writeln!(out, "Server:Port Device\t{ip}:{port} {device}{note}")?;
        }
        writeln!(out, "\n")?;
        for (device, handoff) in &nodes {
            let note = if *handoff { " # [Handoff]" } else { "" };
            writeln!(out, "{}{note}", self.curl(device, partition))?;
        }
        writeln!(
            out,
            "\n\nUse your own device location of servers:\nsuch as \"export DEVICE=/srv/node\""
        )?;
        let mut folder = format!("{}/{partition}", self.datadir);
        if let Some(hash) = hash {
            folder = format!("{folder}/{}/{}", hash.suffix(), hash.hex());
        }
        for (device, handoff) in &nodes {
            let note = if *handoff { " # [Handoff]" } else { "" };
            let Device { ip, device, .. } = &**device;
            writeln!(
                out,
                "ssh {ip} \"ls -lah ${{DEVICE:-/srv/node*}}/{device}/{folder}\"{note}"
            )?;
        }
        writeln!(
            out,
            "\nnote: `/srv/node*` is used as default value of `devices`, the real value is set in \
             the config file on each storage node."
        )?;
        Ok(())
    }

    fn curl(&self, device: &Device, partition: u32) -> String {
        let host = match device.ip.contains(':') {
            true => format!("[{}]", device.ip),
            false => device.ip.clone(),
        };
        let target = quote_path(&self.item.path());
        let policy = self.policy.map_or_else(String::new, |policy| {
            format!(" -H \"X-Backend-Storage-Policy-Index: {policy}\"")
        });
        format!(
            "curl -g -I -XHEAD \"http://{host}:{}/{}/{partition}/{target}\"{policy} --path-as-is",
            device.port, device.device
        )
    }
}
