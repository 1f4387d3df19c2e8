//! A cluster that has lost a zone: its remaining throughput, and the duration of its repair.
//!
//! The zone's devices are removed from the real ring, which is rebalanced; this determines the
//! copies with their sources and targets. Each remaining storage host copies one object at a time
//! concurrently with the clients' load, like the replicator.

use std::collections::HashSet;

use serde::Serialize;

use crate::calibration::Calibration;
use crate::cluster::{Cluster, Role};
use crate::error::AdviseError;
use crate::placement::Placement;
use crate::random::Dice;
use crate::simulate::{Options, Outcome, run};
use crate::workload::{Operation, Workload};

/// Performance of the remaining cluster, and the repair.
#[derive(Clone, Debug, PartialEq)]
pub struct Degraded {
    pub region: u32,
    pub zone: u32,
    /// Before copying starts.
    pub without: Outcome,
    /// During copying; `None` if there is nothing to copy, or no target.
    pub rebuilding: Option<Outcome>,
    pub repair: Repair,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Bytes, bytes per second, seconds.
    Takes {
        bytes: f64,
        rate: f64,
        seconds: f64,
    },
    Impossible {
        why: String,
    },
}

/// Refuses a cluster that cannot write without the zone: fewer devices are left than its quorum.
fn check_quorum(
    cluster: &Cluster,
    workload: &Workload,
    placement: &Placement,
    (region, zone): (u32, u32),
    lost: &HashSet<usize>,
) -> Result<(), AdviseError> {
    let table = &placement.objects;
    let primaries = table.primaries(0);
    let gone = primaries.iter().filter(|d| lost.contains(d)).count();
    let stand_ins = table.handoffs(0, gone, |d| lost.contains(&d)).len();
    let (left, quorum) = (primaries.len() - gone + stand_ins, cluster.quorum().size());
    if left >= quorum || workload.share(Operation::Write) == 0.0 {
        return Ok(());
    }
    let policy = cluster.policy();
    let remedy = format!(
        "without it writes are refused, for {left} devices are left and {policy} writes {quorum}; give the \
         cluster more nodes in other zones, or the workload no writes"
    );
    let value = format!("r{region}z{zone}");
    Err(AdviseError::field(
        crate::cluster::FILE,
        "lost zone",
        value,
        remedy,
    ))
}

/// Simulates the loss of a zone.
///
/// # Errors
/// There is no such zone, nothing is left without it, or too little to write.
pub fn without_zone(
    cluster: &Cluster,
    workload: &Workload,
    calibration: &Calibration,
    placement: &Placement,
    (region, zone): (u32, u32),
    options: &Options,
) -> Result<Degraded, AdviseError> {
    let file = crate::cluster::FILE;
    let in_zone = |d: &usize| {
        let at = placement.devices[*d];
        (at.region, at.zone) == (region, zone)
    };
    let lost: HashSet<usize> = (0..placement.devices.len()).filter(in_zone).collect();
    if lost.is_empty() || lost.len() == placement.devices.len() {
        let known: Vec<String> = placement
            .zones()
            .iter()
            .map(|(r, z)| format!("r{r}z{z}"))
            .collect();
        let remedy = format!(
            "name one of at least two zones with devices: {}",
            known.join(", ")
        );
        return Err(AdviseError::field(
            file,
            "lost zone",
            format!("r{region}z{zone}"),
            remedy,
        ));
    }
    check_quorum(cluster, workload, placement, (region, zone), &lost)?;
    let mut options = Options {
        lost: lost.clone(),
        ..options.clone()
    };
    let without = run(cluster, workload, calibration, placement, &options)?;
    let mut degraded = Degraded {
        region,
        zone,
        without,
        rebuilding: None,
        repair: Repair::Impossible {
            why: "rebuilding fragments is not modelled".into(),
        },
    };
    if cluster.erasure.is_some() {
        return Ok(degraded);
    }
    let mut moves = placement.objects.moves_without(&lost);
    if moves.is_empty() {
        let why = "the devices that are left cannot hold all replicas apart";
        degraded.repair = Repair::Impossible { why: why.into() };
        return Ok(degraded);
    }
    let rows = placement.objects.partitions() as f64 * f64::from(cluster.object_rows());
    let part = moves.len() as f64 / rows;
    let bytes = part * workload.stored_bytes() * cluster.overhead();
    let mut dice = Dice::new(options.seed);
    for last in (1..moves.len()).rev() {
        moves.swap(last, dice.below(last + 1));
    }
    options.copies = moves.into_iter().map(|(_, from, to)| (from, to)).collect();
    options.copies_at_once = placement
        .hosts
        .iter()
        .enumerate()
        .filter(|(index, host)| {
            let is_storage = cluster.node[host.node].roles.contains(&Role::Storage);
            let here = |d: usize| placement.devices[d].host == *index && !lost.contains(&d);
            is_storage && (0..placement.devices.len()).any(here)
        })
        .count();
    let rebuilding = run(cluster, workload, calibration, placement, &options)?;
    if rebuilding.copied > 0.0 {
        degraded.repair = Repair::Takes {
            bytes,
            rate: rebuilding.copied,
            seconds: bytes / rebuilding.copied,
        };
    }
    degraded.rebuilding = Some(rebuilding);
    Ok(degraded)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibration::tests::example;
    use crate::workload::tests::SMALL;

    const ZONES: &str = r#"
        part_power = 7
        replicas = 3
        [[node]]
        name = "sumo"
        roles = ["proxy", "storage"]
        count = 4
        zones = 4
        cores = 4
        memory = "1GB"
        nic = "1.25GB"
        [[node.disk]]
        medium = "disk"
        count = 2
        bytes = "1TB"
    "#;

    #[test]
    fn a_zone_less_does_less_and_is_rebuilt() {
        let cluster = Cluster::parse(ZONES).unwrap();
        let mut workload = Workload::parse(SMALL).unwrap();
        workload.workers = Some(64);
        workload.objects = 1e6;
        let (calibration, placement) = (example(), Placement::new(&cluster).unwrap());
        let options = Options {
            operations: 4000,
            ..Options::default()
        };
        let whole = run(&cluster, &workload, &calibration, &placement, &options).unwrap();
        let loss = |at| without_zone(&cluster, &workload, &calibration, &placement, at, &options);
        let degraded = loss((1, 2)).unwrap();
        let ratio = degraded.without.throughput / whole.throughput;
        assert!((0.5..0.98).contains(&ratio), "{ratio}");
        let rebuilding = degraded.rebuilding.unwrap();
        // Copies join the clients' group syncs, so they cost little here.
        assert!(rebuilding.throughput < degraded.without.throughput * 1.1);
        let Repair::Takes {
            bytes,
            rate,
            seconds,
        } = degraded.repair
        else {
            panic!("{:?}", degraded.repair);
        };
        // A quarter of three copies of four billion bytes.
        assert!((bytes / 3e9 - 1.0).abs() < 0.02, "{bytes}");
        assert!((seconds * rate / bytes - 1.0).abs() < 1e-9);
        let error = loss((1, 9)).unwrap_err().to_string();
        assert!(error.contains("r1z9") && error.contains("r1z4"), "{error}");
    }

    #[test]
    fn fragments_that_have_too_few_devices_left_are_told() {
        let coded = ZONES
            .replace("replicas = 3", "erasure = { data = 2, parity = 1 }")
            .replace("count = 4", "count = 3")
            .replace("count = 2", "count = 1");
        let cluster = Cluster::parse(&coded).unwrap();
        let workload = Workload::parse(SMALL).unwrap();
        let (calibration, placement) = (example(), Placement::new(&cluster).unwrap());
        let options = Options {
            operations: 500,
            ..Options::default()
        };
        let loss = |workload| {
            let at = (1, 2);
            without_zone(&cluster, workload, &calibration, &placement, at, &options)
        };
        let error = loss(&workload).unwrap_err().to_string();
        let told = "2 devices are left and erasure 2+1 writes 3";
        assert!(error.contains("r1z2") && error.contains(told), "{error}");
        let mut reads = workload.clone();
        (reads.read, reads.write) = (1.0, 0.0);
        assert!(loss(&reads).is_ok());
    }

    #[test]
    fn three_zones_of_three_replicas_cannot_be_whole_without_one_device_each() {
        let three = ZONES
            .replace("count = 4", "count = 3")
            .replace("count = 2", "count = 1");
        let cluster = Cluster::parse(&three).unwrap();
        let workload = Workload::parse(SMALL).unwrap();
        let (calibration, placement) = (example(), Placement::new(&cluster).unwrap());
        let options = Options {
            operations: 1000,
            ..Options::default()
        };
        let it = without_zone(
            &cluster,
            &workload,
            &calibration,
            &placement,
            (1, 1),
            &options,
        );
        assert!(matches!(it.unwrap().repair, Repair::Impossible { .. }));
    }
}
