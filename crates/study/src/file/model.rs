//! Types of a study file, with sweeps expanded.

use std::collections::BTreeMap;

use cairn_emulate::disk::FileSystem;
use cairn_emulate::model::Medium;
use serde::{Deserialize, Deserializer, Serialize};

use super::{NODES_MAX, StudyError};

/// Medium of a device that is a folder of this host, without emulation.
pub(super) const FOLDER: &str = "folder";

/// Number of measurements of each cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Repetitions {
    pub least: u32,
    pub most: u32,
    /// Precision that is sufficient: half the 95 % interval of every figure's mean, as a fraction
    /// of the mean.
    pub until: f64,
}

impl Default for Repetitions {
    fn default() -> Self {
        Repetitions {
            least: 3,
            most: 5,
            until: 0.05,
        }
    }
}

/// Limits beyond which a cell is rejected and measured again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gate {
    /// Late time of emulated hardware as a fraction of due time.
    pub lateness: f64,
    /// Time that processes waited for a CPU as a fraction of the requests' time.
    pub cpu_wait: f64,
    /// Maximum number of measurements of a cell.
    pub attempts: u32,
}

impl Default for Gate {
    fn default() -> Self {
        Gate {
            lateness: 0.03,
            cpu_wait: 0.25,
            attempts: 3,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// This program's own servers.
    #[default]
    Cairn,
    /// An existing store at `url`.
    Existing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Proxy,
    Account,
    Container,
    Object,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Proxy => "proxy",
            Role::Account => "account",
            Role::Container => "container",
            Role::Object => "object",
        }
    }
}

/// Erasure coding of the only storage policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coding {
    pub data: u32,
    pub parity: u32,
}

/// Round-trip times between nodes by their distance; without this section they share the loopback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    pub zone_rtt_ms: f64,
    pub region_rtt_ms: f64,
    pub far_rtt_ms: f64,
    /// Link rate of each node in each direction; a class's own rate takes precedence.
    pub mb_per_s: Option<f64>,
    pub client_region: u32,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            zone_rtt_ms: 0.1,
            region_rtt_ms: 0.5,
            far_rtt_ms: 20.0,
            mb_per_s: None,
            client_region: 1,
        }
    }
}

/// Limits of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Class {
    pub cpu_cores: Option<f64>,
    /// Memory limit, page cache included.
    #[serde(deserialize_with = "maybe_bytes")]
    pub memory: Option<u64>,
    pub mb_per_s: Option<f64>,
}

/// One cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    pub name: String,
    #[serde(default)]
    pub store: Store,
    /// Address of an existing store, to which `user` and `key` log in.
    #[serde(default)]
    pub url: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub key: Option<String>,
    #[serde(default = "three")]
    pub replicas: f64,
    #[serde(default = "part_power")]
    pub part_power: u32,
    #[serde(default)]
    pub coding: Option<Coding>,
    #[serde(default)]
    pub network: Option<Network>,
    /// Options of `[app:proxy-server]`.
    #[serde(default)]
    pub proxy: BTreeMap<String, String>,
    /// Also run replicators, updaters and auditors.
    #[serde(default)]
    pub daemons: bool,
    #[serde(default)]
    pub file_system: FileSystem,
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Values of the enclosing sweeps.
    #[serde(default)]
    pub swept: BTreeMap<String, String>,
}

fn three() -> f64 {
    3.0
}

fn part_power() -> u32 {
    8
}

/// One host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    #[serde(default)]
    pub name: String,
    pub roles: Vec<Role>,
    #[serde(default = "first")]
    pub region: u32,
    #[serde(default = "first")]
    pub zone: u32,
    #[serde(default)]
    pub class: Option<String>,
    #[serde(default)]
    pub limits: Class,
    /// Options of this node's `[app:proxy-server]`.
    #[serde(default)]
    pub proxy: BTreeMap<String, String>,
    #[serde(default)]
    pub devices: Vec<Device>,
}

fn first() -> u32 {
    1
}

/// One device of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    #[serde(default)]
    pub name: String,
    /// A name in `[media]`, or `folder`.
    #[serde(default = "folder")]
    pub medium: String,
    #[serde(default)]
    pub disk: Option<Medium>,
    #[serde(default = "four_gigabytes", deserialize_with = "bytes")]
    pub size: u64,
    #[serde(default = "hundred")]
    pub weight: f64,
    /// Rings that contain the device.
    #[serde(default = "all_rings")]
    pub rings: Vec<Role>,
}

fn folder() -> String {
    FOLDER.to_owned()
}

fn four_gigabytes() -> u64 {
    4 << 30
}

fn hundred() -> f64 {
    100.0
}

fn all_rings() -> Vec<Role> {
    vec![Role::Account, Role::Container, Role::Object]
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    maybe_bytes(deserializer).map(Option::unwrap_or_default)
}

/// A number of bytes, or a text such as `4GB`.
fn maybe_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Number(u64),
        Text(String),
    }
    let text = match Option::<Size>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Size::Number(bytes)) => return Ok(Some(bytes)),
        Some(Size::Text(text)) => text,
    };
    let wrong = || serde::de::Error::custom(format!("{text:?} is no size such as \"4GB\""));
    cairn_lab::workload::bytes(&text)
        .map(Some)
        .ok_or_else(wrong)
}

/// A workload: a workload file of the lab, with parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    /// File name relative to the study file's folder.
    pub file: String,
    #[serde(default)]
    pub scale: Option<String>,
    #[serde(default, deserialize_with = "texts")]
    pub parameters: BTreeMap<String, String>,
    /// Number of driver processes; 0: the controller itself drives.
    #[serde(default)]
    pub drivers: u32,
    /// Drop the devices' content from the page cache before each stage, as if there were far more
    /// content than memory.
    #[serde(default)]
    pub cold: bool,
    /// Disks take no emulated time until the first measured stage.
    #[serde(default)]
    pub quick_preparation: bool,
    /// The nodes of this zone are killed when the first measured stage begins, and its proxies are
    /// not asked.
    #[serde(default)]
    pub lost_zone: Option<u32>,
    /// It writes files: to a mounted container.
    #[serde(default)]
    pub mount: bool,
    /// Values of the enclosing sweeps.
    #[serde(default)]
    pub swept: BTreeMap<String, String>,
}

/// Deserialises scalars as texts.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, toml::Value>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(k, v)| (k, text(v))).collect())
}

/// Deserialises lists of scalars as texts.
fn lists<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    let values = BTreeMap::<String, Vec<toml::Value>>::deserialize(deserializer)?;
    let list = |values: Vec<toml::Value>| values.into_iter().map(text).collect();
    Ok(values.into_iter().map(|(k, v)| (k, list(v))).collect())
}

fn text(value: toml::Value) -> String {
    match value {
        toml::Value::String(text) => text,
        other => other.to_string(),
    }
}

/// A figure: a metric over a swept value, with a line (or bar) for each value of another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub title: String,
    /// A swept name, of the clusters or of the workloads.
    pub x: String,
    #[serde(default)]
    pub series: Option<String>,
    /// A key of a cell's `metrics`.
    pub y: String,
    #[serde(default)]
    pub unit: String,
    /// Names swept within a cell, by its workload's stages, with their values: `{name}` in `y` is
    /// replaced by each.
    #[serde(default, deserialize_with = "lists")]
    pub over: BTreeMap<String, Vec<String>>,
    /// Selection of cells by their swept values.
    #[serde(default, deserialize_with = "texts")]
    pub only: BTreeMap<String, String>,
    /// Published values: of a point, or of the change between two.
    #[serde(default)]
    pub point: Vec<Point>,
    #[serde(default)]
    pub expect: Vec<Comparison>,
}

/// A published value of one point.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    #[serde(deserialize_with = "texts")]
    pub at: BTreeMap<String, String>,
    pub value: f64,
}

/// A published change from one point to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    pub what: String,
    #[serde(deserialize_with = "texts")]
    pub from: BTreeMap<String, String>,
    #[serde(deserialize_with = "texts")]
    pub to: BTreeMap<String, String>,
    /// Swept values common to both.
    #[serde(default, deserialize_with = "texts")]
    pub at: BTreeMap<String, String>,
    /// Relative change: 0.25 is a quarter more; 0: published as no difference. Absent: only the
    /// sign is known, as in `sign`.
    #[serde(default)]
    pub change: Option<f64>,
    #[serde(default)]
    pub sign: Option<i8>,
}

impl Cluster {
    pub(super) fn check(&self, at: &str) -> Result<(), StudyError> {
        let wrong = |found: String, expected: &str| Err(StudyError::wrong(at, found, expected));
        if self.store == Store::Existing {
            return match (&self.url, self.nodes.is_empty()) {
                (None, _) => wrong("an existing store".to_owned(), "its url"),
                (_, false) => wrong("nodes of an existing store".to_owned(), "none"),
                _ => Ok(()),
            };
        }
        if self.nodes.len() > NODES_MAX {
            return wrong(format!("{} nodes", self.nodes.len()), "at most 64");
        }
        if !(1.0..=32.0).contains(&self.replicas) {
            return wrong(format!("replicas = {}", self.replicas), "1 to 32");
        }
        if !(1..=20).contains(&self.part_power) {
            return wrong(format!("part_power = {}", self.part_power), "1 to 20");
        }
        for role in [Role::Proxy, Role::Account, Role::Container, Role::Object] {
            if !self.nodes.iter().any(|node| node.roles.contains(&role)) {
                return wrong(
                    format!("no node with the role {}", role.name()),
                    "at least one",
                );
            }
            let in_ring = |node: &Node| {
                node.roles.contains(&role) && node.devices.iter().any(|d| d.rings.contains(&role))
            };
            if role != Role::Proxy && !self.nodes.iter().any(in_ring) {
                let found = format!("no device in the ring {}", role.name());
                return wrong(found, "one on a node that has the role");
            }
        }
        for node in &self.nodes {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
            if node.name.len() > 20 || !node.name.chars().all(plain) {
                return wrong(
                    format!("a node {:?}", node.name),
                    "20 letters, digits, '-' at most",
                );
            }
        }
        Ok(())
    }

    /// Is any of its hardware emulated?
    pub fn is_emulated(&self) -> bool {
        let of_node = |node: &Node| {
            node.limits != Class::default() || node.devices.iter().any(|d| d.disk.is_some())
        };
        self.network.is_some() || self.nodes.iter().any(of_node)
    }
}
