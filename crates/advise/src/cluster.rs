//! Cluster description from a file: nodes with roles, processors, links and disks, and the rules of
//! its rings.

use cairn_types::Quorum;
use serde::{Deserialize, Serialize};

use crate::error::AdviseError;
use crate::quantity::Bytes;
use crate::read::{self, within};

pub const FILE: &str = "the cluster file";
const NODES_MAX: usize = 10_000;
const DEVICES_MAX: usize = 20_000;

/// A cluster. `docs/advise.md` describes the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    #[serde(default = "unnamed")]
    pub name: String,
    /// Copies of an object; with `erasure`, only of container databases.
    #[serde(default = "three")]
    pub replicas: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erasure: Option<Erasure>,
    #[serde(default = "ten")]
    pub part_power: u32,
    #[serde(default)]
    pub processes: Processes,
    #[serde(default)]
    pub network: Network,
    pub node: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Erasure {
    pub data: u32,
    pub parity: u32,
}

/// Distribution of a node's servers over processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Processes {
    /// All roles of a node in one process, which call each other without a socket.
    #[default]
    One,
    /// Proxy and storage servers in separate processes.
    Roles,
}

/// Round-trip times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    pub zone_rtt_ms: f64,
    pub region_rtt_ms: f64,
    pub between_regions_rtt_ms: f64,
    pub client_rtt_ms: f64,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            zone_rtt_ms: 0.1,
            region_rtt_ms: 0.3,
            between_regions_rtt_ms: 20.0,
            client_rtt_ms: 0.0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Proxy,
    Storage,
    /// The load generator shares this node's processors.
    Load,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub name: String,
    /// Number of such nodes.
    #[serde(default = "one")]
    pub count: u32,
    pub roles: Vec<Role>,
    #[serde(default = "one")]
    pub region: u32,
    /// Number of zones over which the `count` nodes are distributed in turn, from `zone` on.
    #[serde(default = "one")]
    pub zones: u32,
    #[serde(default = "one")]
    pub zone: u32,
    pub cores: u32,
    /// Speed of a core relative to a calibrated one.
    #[serde(default = "whole")]
    pub core_speed: f64,
    #[serde(default)]
    pub memory: Bytes,
    /// Bandwidth in bytes per second and direction; 0: unlimited.
    #[serde(default)]
    pub nic: Bytes,
    #[serde(default)]
    pub disk: Vec<DiskGroup>,
}

/// Disks of one kind in a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskGroup {
    /// A medium of the calibration.
    pub medium: String,
    #[serde(default = "one")]
    pub count: u32,
    /// Ring devices on each disk and its file system.
    #[serde(default = "one")]
    pub devices: u32,
    pub bytes: Bytes,
    #[serde(default = "hundred")]
    pub weight: f64,
    /// Rings that contain these devices.
    #[serde(default)]
    pub serves: Serves,
    /// Each device is in a zone of its own, as with `cairn up`.
    #[serde(default)]
    pub device_zones: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serves {
    #[default]
    All,
    Objects,
    Containers,
}

fn unnamed() -> String {
    "cluster".into()
}
fn one() -> u32 {
    1
}
fn three() -> u32 {
    3
}
fn ten() -> u32 {
    10
}
fn whole() -> f64 {
    1.0
}
fn hundred() -> f64 {
    100.0
}

impl Cluster {
    /// Parses a cluster.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn parse(text: &str) -> Result<Cluster, AdviseError> {
        let cluster: Cluster = read::toml(FILE, text)?;
        cluster.check()?;
        Ok(cluster)
    }

    /// Checks the ranges of fields, the roles, and that the rings have enough devices.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn check(&self) -> Result<(), AdviseError> {
        within(FILE, "replicas", self.replicas.into(), 1.0, 16.0)?;
        within(FILE, "part_power", self.part_power.into(), 1.0, 20.0)?;
        if let Some(erasure) = self.erasure {
            within(FILE, "erasure.data", erasure.data.into(), 1.0, 64.0)?;
            within(FILE, "erasure.parity", erasure.parity.into(), 1.0, 64.0)?;
        }
        for (field, rtt) in [
            ("network.zone_rtt_ms", self.network.zone_rtt_ms),
            ("network.region_rtt_ms", self.network.region_rtt_ms),
            (
                "network.between_regions_rtt_ms",
                self.network.between_regions_rtt_ms,
            ),
            ("network.client_rtt_ms", self.network.client_rtt_ms),
        ] {
            within(FILE, field, rtt, 0.0, 60_000.0)?;
        }
        self.node.iter().try_for_each(Node::check)?;
        let nodes: usize = self.node.iter().map(|n| n.count as usize).sum();
        if nodes == 0 || nodes > NODES_MAX {
            let remedy = format!("have 1 to {NODES_MAX} nodes");
            return Err(AdviseError::field(
                FILE,
                "node",
                format!("{nodes} nodes"),
                remedy,
            ));
        }
        for role in [Role::Proxy, Role::Storage] {
            if !self.node.iter().any(|node| node.roles.contains(&role)) {
                let value = format!("without the role {role:?}");
                let remedy = "give at least one node each of the roles proxy and storage";
                return Err(AdviseError::field(FILE, "node.roles", value, remedy));
            }
        }
        for (field, serves, need) in [
            ("replicas", Serves::Containers, self.replicas),
            ("erasure", Serves::Objects, self.object_rows()),
        ] {
            let have = self.devices_for(serves);
            if have < need as usize {
                let remedy =
                    format!("have at least {need} devices that serve them, there are {have}");
                return Err(AdviseError::field(FILE, field, need, remedy));
            }
        }
        let devices = self.devices_for(Serves::All);
        if devices > DEVICES_MAX {
            let remedy = format!("have at most {DEVICES_MAX}");
            return Err(AdviseError::field(FILE, "node.disk", devices, remedy));
        }
        Ok(())
    }

    pub fn to_text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Number of rows of the object ring: replicas, or fragments.
    pub fn object_rows(&self) -> u32 {
        self.erasure.map_or(self.replicas, |e| e.data + e.parity)
    }

    /// The quorum of an upload of an object.
    pub fn quorum(&self) -> Quorum {
        match self.erasure {
            Some(e) => Quorum::of_fragments(e.data as usize, e.parity as usize, 1),
            None => Quorum::of_replicas(self.replicas as usize),
        }
    }

    /// The quorum of a tombstone, of which every server gets a whole one.
    pub fn update_quorum(&self) -> Quorum {
        match self.erasure {
            Some(e) => Quorum::of_replicas((e.data + e.parity) as usize),
            None => Quorum::of_replicas(self.replicas as usize),
        }
    }

    /// Bytes on disks per byte of an object.
    pub fn overhead(&self) -> f64 {
        let coded = |e: Erasure| f64::from(e.data + e.parity) / f64::from(e.data);
        self.erasure.map_or(f64::from(self.replicas), coded)
    }

    /// Capacity in bytes of objects, if the fraction `fill` (0 to 1) of the disks is used.
    pub fn usable_bytes(&self, fill: f64) -> f64 {
        let disks = self.node.iter().flat_map(|node| {
            let serving = node.disk.iter().filter(|d| d.serves != Serves::Containers);
            serving.map(|d| f64::from(node.count * d.count) * d.bytes.0)
        });
        disks.sum::<f64>() * fill / self.overhead()
    }

    /// The policy as text, `replicas 3` or `erasure 4+2`.
    pub fn policy(&self) -> String {
        match self.erasure {
            Some(e) => format!("erasure {}+{}", e.data, e.parity),
            None => format!("replicas {}", self.replicas),
        }
    }

    pub fn storage_nodes(&self) -> u32 {
        let storage = self
            .node
            .iter()
            .filter(|n| n.roles.contains(&Role::Storage));
        storage.map(|n| n.count).sum()
    }

    fn devices_for(&self, serves: Serves) -> usize {
        let of = |group: &DiskGroup| match serves {
            Serves::All => true,
            _ => group.serves == Serves::All || group.serves == serves,
        };
        let nodes = self
            .node
            .iter()
            .filter(|n| n.roles.contains(&Role::Storage));
        let groups = nodes.flat_map(|n| n.disk.iter().filter(|d| of(d)).map(move |d| (n, d)));
        groups
            .map(|(n, d)| n.count as usize * d.count as usize * d.devices as usize)
            .sum()
    }
}

impl Node {
    fn check(&self) -> Result<(), AdviseError> {
        let field = |name: &str| format!("node {}: {name}", self.name);
        within(FILE, field("count"), self.count.into(), 1.0, 10_000.0)?;
        within(FILE, field("zones"), self.zones.into(), 1.0, 10_000.0)?;
        within(FILE, field("cores"), self.cores.into(), 1.0, 4096.0)?;
        within(FILE, field("core_speed"), self.core_speed, 0.01, 100.0)?;
        let is_storage = self.roles.contains(&Role::Storage);
        if is_storage == self.disk.is_empty() {
            let remedy = "nodes with the role storage have a [[node.disk]], others have none";
            return Err(AdviseError::field(
                FILE,
                field("disk"),
                self.disk.len(),
                remedy,
            ));
        }
        for disk in &self.disk {
            let field = |name: &str| field(&format!("disk.{name}"));
            within(FILE, field("count"), disk.count.into(), 1.0, 1000.0)?;
            within(FILE, field("devices"), disk.devices.into(), 1.0, 1000.0)?;
            within(FILE, field("bytes"), disk.bytes.0, 1e6, 1e18)?;
            within(FILE, field("weight"), disk.weight, 0.0, 1e9)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const HOST: &str = r#"
        name = "this host"
        replicas = 3
        [[node]]
        name = "host"
        roles = ["proxy", "storage", "load"]
        cores = 2
        memory = "24GB"
        [[node.disk]]
        medium = "disk"
        devices = 4
        device_zones = true
        bytes = "100GB"
    "#;

    #[test]
    fn a_file_is_read() {
        let cluster = Cluster::parse(HOST).unwrap();
        assert_eq!(cluster.policy(), "replicas 3");
        assert_eq!(cluster.usable_bytes(0.9), 30e9);
        assert_eq!(cluster.devices_for(Serves::All), 4);
        let again: Cluster = toml::from_str(&toml::to_string(&cluster).unwrap()).unwrap();
        assert_eq!(again, cluster);
    }

    #[test]
    fn bad_fields_are_named() {
        for (from, to, parts) in [
            (
                "replicas = 3",
                "replicas = 9",
                ["replicas is 9", "at least 9 devices"],
            ),
            (
                "replicas = 3",
                "replicas = 0",
                ["replicas is 0", "from 1 to 16"],
            ),
            (
                "cores = 2",
                "cores = \"two\"",
                ["line 7", "`cores = \"two\"`"],
            ),
            (
                "cores = 2",
                "cores = 0",
                ["node host: cores is 0", "from 1 to 4096"],
            ),
            ("\"proxy\", ", "", ["node.roles", "proxy and storage"]),
            ("memory", "memroy", ["memroy", "expected one of"]),
            ("\"100GB\"", "\"lots\"", ["`bytes = \"lots\"`", "64KB"]),
            (
                "replicas = 3",
                "erasure = { data = 4, parity = 2 }",
                ["erasure is 6", "there are 4"],
            ),
        ] {
            assert!(HOST.contains(from), "{from}");
            let error = Cluster::parse(&HOST.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
