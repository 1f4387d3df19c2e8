//! Emulation of a cell: a cluster on hardware that the host does not have, with disks whose service
//! times are known and with time dilated. `cairn advise measure --emulated` runs such cells on the
//! emulator of `cairn study`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::error::AdviseError;
use crate::hardware::Medium;
use crate::read::within;

const FILE: &str = "the cell file";

/// How a cell's hardware is emulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulation {
    /// A second of the cluster lasts so many seconds of the host.
    pub dilation: f64,
    /// The cluster's media, by name.
    pub media: BTreeMap<String, Medium>,
}

impl Emulation {
    /// Checks the dilation and the media, and that the cluster's are among them.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn check(&self, cluster: &Cluster) -> Result<(), AdviseError> {
        within(FILE, "emulation.dilation", self.dilation, 1.0, 100.0)?;
        for (name, medium) in &self.media {
            medium.check().map_err(|words| {
                let field = format!("emulation.media.{name}");
                AdviseError::field(
                    FILE,
                    field,
                    words,
                    "describe a disk as docs/studies.md does",
                )
            })?;
        }
        let mut groups = cluster.node.iter().flat_map(|node| &node.disk);
        let Some(group) = groups.find(|group| !self.media.contains_key(&group.medium)) else {
            return Ok(());
        };
        let known: Vec<&str> = self.media.keys().map(String::as_str).collect();
        let remedy = format!(
            "describe it in emulation.media, which has {}",
            known.join(", ")
        );
        let (field, value) = ("node.disk.medium", &group.medium);
        Err(AdviseError::field(FILE, field, value, remedy))
    }

    /// Does this node have fewer or slower cores than the host gives without a limit? Without one its
    /// cores are as much faster as time is slower.
    pub fn limits_processors(&self, core_speed: f64) -> bool {
        core_speed < self.dilation
    }
}
