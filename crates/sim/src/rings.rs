//! The rings of simulated clusters: the initial ones, and a second set that some clusters receive
//! while working, one machine after the other, as when an operator copies them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use cairn_peer::Rings;
use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, RingBuilder, Seed};
use cairn_types::{PolicyIndex, PolicySet, ServerKind};

use crate::addresses::{SERVERS, address};
use crate::policies::{FRAGMENTS_INDEX, policies};
use crate::shared::{MACHINES, NODES};

const PART_POWER: u32 = 2;
const REPLICAS: f64 = 3.0;

/// Ring files shared by all seeds.
pub(crate) struct RingSets {
    folder: PathBuf,
    /// Whether one of the containers has an erasure-coded policy.
    pub(crate) has_fragments: bool,
    pub(crate) policies: Arc<PolicySet>,
    first: Arc<Rings>,
}

const FIRST: &str = "first";
const SECOND: &str = "second";

impl RingSets {
    /// Writes the ring files into `folder`.
    pub(crate) fn make(folder: &Path, has_fragments: bool) -> Result<Self> {
        for set in [FIRST, SECOND] {
            fs::create_dir(folder.join(set))?;
        }
        for (kind, policy) in all_rings() {
            make(folder, kind, policy)?;
        }
        let policies = Arc::new(policies(has_fragments)?);
        Ok(RingSets {
            folder: folder.to_owned(),
            first: Rings::open(&folder.join(FIRST), &policies)?,
            has_fragments,
            policies,
        })
    }
}

/// The ring of each kind of server, and that of the erasure-coded policy.
fn all_rings() -> impl Iterator<Item = (ServerKind, PolicyIndex)> {
    let of_zero = SERVERS.into_iter().map(|kind| (kind, PolicyIndex(0)));
    of_zero.chain([(ServerKind::Object, FRAGMENTS_INDEX)])
}

fn file_name(kind: ServerKind, policy: PolicyIndex) -> String {
    match policy.0 {
        0 => format!("{}.ring.gz", kind.as_str()),
        index => format!("{}-{index}.ring.gz", kind.as_str()),
    }
}

/// Builds both rings: the second one has other weights, and moves at most one replica of each
/// partition.
fn make(folder: &Path, kind: ServerKind, policy: PolicyIndex) -> Result<()> {
    let mut builder = RingBuilder::new(PART_POWER, REPLICAS, 0)?;
    for node in 0..NODES {
        builder.add_dev(NewDevice {
            id: None,
            region: 1,
            zone: node as u32 + 1,
            weight: 100.0,
            ip: "127.0.0.1".into(),
            port: address(node, kind).port(),
            device: format!("d{node}"),
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        })?;
    }
    let rebalance = |builder: &mut RingBuilder, set: &str, now| -> Result<_> {
        builder.rebalance(RebalanceOptions {
            seed: Some(Seed::Number(1 + u64::from(policy.0))),
            now,
            log: None,
        })?;
        let path = folder.join(set).join(file_name(kind, policy));
        builder.ring_data().save(path, FormatVersion::V1)?;
        Ok(builder.ring()?)
    };
    let first = rebalance(&mut builder, FIRST, 0)?;
    let full = kind as u32 + policy.0;
    builder.set_dev_weight(full, 34.0)?;
    let second = rebalance(&mut builder, SECOND, 100_000)?;
    let mut moved = 0;
    for partition in 0..1 << PART_POWER {
        let devices = |ring: &cairn_ring::Ring| -> Vec<u32> {
            let primaries = ring.primaries(partition);
            primaries.iter().map(|p| p.device.id).collect()
        };
        let (before, after) = (devices(&first), devices(&second));
        let gone = before.iter().filter(|id| !after.contains(id)).count();
        ensure!(
            gone <= 1,
            "a rebalance moved {gone} replicas of a partition"
        );
        moved += gone;
    }
    ensure!(moved > 0, "a rebalance moved nothing");
    Ok(())
}

/// The rings of one cluster, separate for each machine if they change.
pub(crate) struct ClusterRings {
    machines: Vec<Arc<Rings>>,
    /// Folders of the machines' files and of the second set, if rings change.
    changing: Option<(PathBuf, PathBuf)>,
}

impl ClusterRings {
    pub(crate) fn begin(sets: &RingSets, root: &Path, may_change: bool) -> Result<Self> {
        if !may_change {
            return Ok(ClusterRings {
                machines: vec![sets.first.clone(); MACHINES],
                changing: None,
            });
        }
        let own = root.join("rings");
        let mut machines = Vec::with_capacity(MACHINES);
        for machine in 0..MACHINES {
            let folder = own.join(machine.to_string());
            fs::create_dir_all(&folder)?;
            copy(&sets.folder.join(FIRST), &folder, 1)?;
            machines.push(Rings::open(&folder, &sets.policies)?);
        }
        Ok(ClusterRings {
            machines,
            changing: Some((own, sets.folder.join(SECOND))),
        })
    }

    pub(crate) fn of(&self, machine: usize) -> &Arc<Rings> {
        &self.machines[machine]
    }

    pub(crate) fn may_change(&self) -> bool {
        self.changing.is_some()
    }

    /// Gives a machine the second rings.
    pub(crate) fn change(&self, machine: usize) -> Result<()> {
        if let Some((own, second)) = &self.changing {
            copy(second, &own.join(machine.to_string()), 2)?;
            self.machines[machine].refresh();
        }
        Ok(())
    }
}

/// Copies rings with a distinct modification time, by which a change is detected.
fn copy(from: &Path, to: &Path, day: u64) -> Result<()> {
    for (kind, policy) in all_rings() {
        let to = to.join(file_name(kind, policy));
        fs::copy(from.join(file_name(kind, policy)), &to)?;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400);
        File::options().write(true).open(&to)?.set_modified(time)?;
    }
    Ok(())
}
