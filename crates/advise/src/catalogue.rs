//! Catalogue: kinds of nodes and disks that can be bought, with prices and power consumption.

use serde::{Deserialize, Serialize};

use crate::cluster::Role;
use crate::error::AdviseError;
use crate::quantity::Bytes;
use crate::read::{self, within};

pub const FILE: &str = "the catalogue";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    #[serde(default = "euro")]
    pub currency: String,
    pub disk: Vec<DiskType>,
    pub node: Vec<NodeType>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskType {
    pub name: String,
    /// A medium of the calibration.
    pub medium: String,
    pub bytes: Bytes,
    pub price: f64,
    #[serde(default)]
    pub watts: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeType {
    pub name: String,
    pub roles: Vec<Role>,
    /// Price without disks.
    pub price: f64,
    #[serde(default)]
    pub watts: f64,
    pub cores: u32,
    #[serde(default = "whole")]
    pub core_speed: f64,
    pub memory: Bytes,
    /// Network bandwidth in bytes per second.
    pub nic: Bytes,
    /// Number of disks that fit.
    #[serde(default)]
    pub slots: u32,
    /// Names of compatible disks.
    #[serde(default)]
    pub disks: Vec<String>,
}

fn euro() -> String {
    "EUR".into()
}
fn whole() -> f64 {
    1.0
}

impl Catalogue {
    /// Parses a catalogue.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn parse(text: &str) -> Result<Catalogue, AdviseError> {
        let catalogue: Catalogue = read::toml(FILE, text)?;
        catalogue.check()?;
        Ok(catalogue)
    }

    fn check(&self) -> Result<(), AdviseError> {
        for disk in &self.disk {
            let field = |field: &str| format!("disk {}: {field}", disk.name);
            within(FILE, field("bytes"), disk.bytes.0, 1e6, 1e18)?;
            within(FILE, field("price"), disk.price, 0.0, 1e9)?;
            within(FILE, field("watts"), disk.watts, 0.0, 1e6)?;
        }
        for node in &self.node {
            let field = |field: &str| format!("node {}: {field}", node.name);
            within(FILE, field("price"), node.price, 0.0, 1e9)?;
            within(FILE, field("watts"), node.watts, 0.0, 1e6)?;
            within(FILE, field("cores"), node.cores.into(), 1.0, 4096.0)?;
            within(FILE, field("core_speed"), node.core_speed, 0.01, 100.0)?;
            within(FILE, field("nic"), node.nic.0, 0.0, 1e13)?;
            within(FILE, field("slots"), node.slots.into(), 0.0, 1000.0)?;
            for name in &node.disks {
                if !self.disk.iter().any(|disk| disk.name == *name) {
                    let known: Vec<&str> = self.disk.iter().map(|d| d.name.as_str()).collect();
                    let remedy = format!("name a [[disk]] of the catalogue: {}", known.join(", "));
                    return Err(AdviseError::field(FILE, field("disks"), name, remedy));
                }
            }
            let is_storage = node.roles.contains(&Role::Storage);
            if is_storage && (node.slots == 0 || node.disks.is_empty()) {
                let remedy = "a node with the role storage has slots, and disks that fit";
                return Err(AdviseError::field(FILE, field("slots"), node.slots, remedy));
            }
        }
        for role in [Role::Proxy, Role::Storage] {
            if !self.node.iter().any(|node| node.roles.contains(&role)) {
                let value = format!("without the role {role:?}");
                let remedy = "have at least one kind of node of the roles proxy and storage each";
                return Err(AdviseError::field(FILE, "node", value, remedy));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const CATALOGUE: &str = r#"
        [[disk]]
        name = "small"
        medium = "disk"
        bytes = "4TB"
        price = 150
        watts = 6
        [[disk]]
        name = "large"
        medium = "disk"
        bytes = "16TB"
        price = 320
        watts = 8
        [[node]]
        name = "sumo"
        roles = ["proxy", "storage"]
        price = 3000
        watts = 250
        cores = 8
        memory = "64GB"
        nic = "1.25GB"
        slots = 4
        disks = ["small", "large"]
        [[node]]
        name = "store"
        roles = ["storage"]
        price = 2000
        watts = 180
        cores = 4
        memory = "32GB"
        nic = "1.25GB"
        slots = 8
        disks = ["large"]
        [[node]]
        name = "front"
        roles = ["proxy"]
        price = 1500
        watts = 150
        cores = 8
        memory = "32GB"
        nic = "2.5GB"
    "#;

    #[test]
    fn bad_fields_are_named() {
        assert_eq!(Catalogue::parse(CATALOGUE).unwrap().node.len(), 3);
        for (from, to, parts) in [
            (
                "price = 150",
                "price = -1",
                ["disk small: price is -1", "from 0"],
            ),
            (
                "[\"large\"]",
                "[\"huge\"]",
                ["node store: disks is huge", "small, large"],
            ),
            (
                "slots = 8",
                "slots = 0",
                ["node store: slots is 0", "disks that fit"],
            ),
            ("cores = 4", "core = 4", ["`core = 4`", "unknown field"]),
            ("\"4TB\"", "\"4\"", ["disk small: bytes is 4", "from"]),
        ] {
            assert!(CATALOGUE.contains(from), "{from}");
            let error = Catalogue::parse(&CATALOGUE.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        let only = "disk = []\n[[node]]\nname = \"a\"\nroles = [\"proxy\"]\nprice = 1\ncores = 1\n\
                    memory = 1\nnic = 1\n";
        let error = Catalogue::parse(only).unwrap_err().to_string();
        assert!(error.contains("without the role Storage"), "{error}");
    }
}
