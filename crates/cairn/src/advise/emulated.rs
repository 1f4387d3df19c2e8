//! Cells on emulated hardware: a planned cell becomes a study of one cluster and one workload, which
//! the crate `study` provisions, loads and judges.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cairn_advise::cell::{DiskUse, Measured};
use cairn_advise::cluster::{Cluster, Node, Role, Serves};
use cairn_advise::emulation::Emulation;
use cairn_advise::plan::Planned;
use cairn_study::cell::{self, Outcome, State};
use cairn_study::file::{self, Gate, Network, Repetitions, Study};
use cairn_study::{measure, run};

use super::load::{self, Times};

/// Waiting for processors as part of the requests' time with which a repetition is not kept: what waits
/// for others' programs is neither the disks nor the network.
const CPU_WAIT_MAX: f64 = 0.1;
const WORKLOAD: &str = "workload.toml";

/// One measurement of a planned cell.
pub(super) struct Emulated {
    pub(super) measured: Measured,
    pub(super) is_accepted: bool,
    /// Why it is not.
    pub(super) why: String,
}

/// Measures a planned cell once; `repetition` decides the requests.
pub(super) fn measure(
    program: &Path,
    planned: &Planned,
    emulation: &Emulation,
    times: Times,
    repetition: u32,
) -> Result<Emulated> {
    let scratch = run::scratch(None)?;
    let folder = scratch.path().join("cell");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // The study stretches the workload's times: cells of all dilations take as long here.
    // The lab's files have milliseconds.
    let emulated = |seconds: f64| (seconds / emulation.dilation * 1e3).round() / 1e3;
    let times = Times {
        ramp: emulated(times.ramp),
        counted: emulated(times.counted),
    };
    let text = load::workload_file(&planned.workload, times);
    fs::write(folder.join(WORKLOAD), text).context("the workload's file")?;
    let study = study(planned, emulation, &folder)?;
    let pairs = cell::pairs(&study)?;
    let of_study = cell::cell(&study, &pairs, 0, repetition)?;
    let bench = measure::Bench {
        study: &study,
        pairs: &pairs,
        program,
        binary: "advise",
        scratch: scratch.path(),
    };
    let outcome =
        measure::measure(&bench, &of_study, 1, &folder).with_context(|| planned.name.clone())?;
    if outcome.state == State::Failed {
        bail!("{}: {}", planned.name, outcome.why.join("; "));
    }
    let dilation = emulation.dilation;
    let mut measured = load::read_run(&measure::run_folder(&folder), &planned.workload, dilation)?;
    note(&outcome, &mut measured);
    Ok(Emulated {
        measured,
        is_accepted: outcome.state == State::Accepted,
        why: outcome.why.join("; "),
    })
}

/// Adds what the study knows: the store's processor time, and what the disks did.
fn note(outcome: &Outcome, measured: &mut Measured) {
    let fidelity = &outcome.fidelity;
    let late = fidelity.device_lateness.values().copied();
    measured.cpu_wait = Some(fidelity.cpu_wait);
    measured.late = Some(late.fold(fidelity.network_lateness, f64::max));
    let Some(stage) = outcome.stages.first() else {
        return;
    };
    measured.store_cpu = Some(stage.store_cores / measured.throughput);
    let mut sum = DiskUse::default();
    let mut devices = 0.0;
    for disk in stage.disks.values() {
        sum.reads += disk.reads_per_s / measured.throughput;
        sum.writes += disk.writes_per_s / measured.throughput;
        sum.flushes += disk.flushes_per_s / measured.throughput;
        sum.read_bytes += disk.read_mb_per_s * 1e6 / measured.throughput;
        sum.written_bytes += disk.written_mb_per_s * 1e6 / measured.throughput;
        sum.busy += disk.busy * f64::from(disk.devices);
        devices += f64::from(disk.devices);
    }
    sum.busy /= f64::max(devices, 1.0);
    measured.disk = Some(sum);
}

/// A study of one cell.
fn study(planned: &Planned, emulation: &Emulation, folder: &Path) -> Result<Study> {
    let workload = file::Workload {
        name: "advise".to_owned(),
        file: WORKLOAD.to_owned(),
        scale: None,
        parameters: BTreeMap::new(),
        drivers: 0,
        cold: is_cold(&planned.cluster),
        quick_preparation: true,
        lost_zone: planned.lost_zone,
        mount: false,
        swept: BTreeMap::new(),
    };
    Ok(Study {
        name: "advise".to_owned(),
        title: String::new(),
        asked: String::new(),
        seen: String::new(),
        scale: String::new(),
        dilation: emulation.dilation,
        seed: 1,
        repetitions: Repetitions::default(),
        gate: Gate {
            cpu_wait: match limits_any(&planned.cluster, emulation) {
                true => Gate::default().cpu_wait,
                false => CPU_WAIT_MAX,
            },
            ..Gate::default()
        },
        clusters: vec![cluster(&planned.cluster, emulation)?],
        workloads: vec![workload],
        figures: Vec::new(),
        notes: Vec::new(),
        folder: PathBuf::from(folder),
    })
}

/// Does a node have a limit of processors? Waiting for it counts as waiting for a processor.
fn limits_any(cluster: &Cluster, emulation: &Emulation) -> bool {
    let mut speeds = cluster.node.iter().map(|node| node.core_speed);
    speeds.any(|speed| emulation.limits_processors(speed))
}

/// A node without memory caches nothing: what is read comes from the disks.
fn is_cold(cluster: &Cluster) -> bool {
    let storage = |node: &&Node| node.roles.contains(&Role::Storage);
    cluster
        .node
        .iter()
        .filter(storage)
        .all(|node| node.memory.0 == 0.0)
}

fn cluster(of: &Cluster, emulation: &Emulation) -> Result<file::Cluster> {
    let mut nodes = Vec::new();
    for node in &of.node {
        for copy in 0..node.count {
            nodes.push(self::node(node, copy, nodes.len() + 1, emulation)?);
        }
    }
    let network = of.network;
    if network.client_rtt_ms != network.region_rtt_ms {
        bail!(
            "{}: network.client_rtt_ms {}: emulated clients are in a zone of their own, so give it \
             the value of region_rtt_ms, {}",
            of.name,
            network.client_rtt_ms,
            network.region_rtt_ms
        );
    }
    Ok(file::Cluster {
        name: "advise".to_owned(),
        store: file::Store::Cairn,
        url: None,
        user: None,
        key: None,
        replicas: f64::from(of.replicas),
        part_power: of.part_power,
        coding: of.erasure.map(|erasure| file::Coding {
            data: erasure.data,
            parity: erasure.parity,
        }),
        network: Some(Network {
            zone_rtt_ms: network.zone_rtt_ms,
            region_rtt_ms: network.region_rtt_ms,
            far_rtt_ms: network.between_regions_rtt_ms,
            mb_per_s: None,
            client_region: 1,
        }),
        proxy: BTreeMap::new(),
        daemons: false,
        file_system: Default::default(),
        nodes,
        swept: BTreeMap::new(),
    })
}

fn node(node: &Node, copy: u32, number: usize, emulation: &Emulation) -> Result<file::Node> {
    let mut roles = Vec::new();
    if node.roles.contains(&Role::Proxy) {
        roles.push(file::Role::Proxy);
    }
    let mut devices = Vec::new();
    if node.roles.contains(&Role::Storage) {
        roles.extend([
            file::Role::Account,
            file::Role::Container,
            file::Role::Object,
        ]);
        for group in &node.disk {
            if group.devices != 1 {
                bail!(
                    "node {}: devices = {}: an emulated disk is one device",
                    node.name,
                    group.devices
                );
            }
            let device = file::Device {
                name: String::new(),
                medium: group.medium.clone(),
                disk: emulation.media.get(&group.medium).cloned(),
                size: group.bytes.0 as u64,
                weight: group.weight,
                rings: match group.serves {
                    Serves::All => {
                        vec![
                            file::Role::Account,
                            file::Role::Container,
                            file::Role::Object,
                        ]
                    }
                    Serves::Objects => vec![file::Role::Object],
                    Serves::Containers => vec![file::Role::Account, file::Role::Container],
                },
            };
            devices.extend((0..group.count).map(|_| device.clone()));
        }
    }
    let is_limited = emulation.limits_processors(node.core_speed);
    Ok(file::Node {
        name: format!("n{number}"),
        roles,
        region: node.region,
        zone: node.zone + copy % node.zones,
        class: None,
        limits: file::Class {
            cpu_cores: is_limited.then(|| f64::from(node.cores) * node.core_speed),
            memory: None,
            mb_per_s: (node.nic.0 > 0.0).then(|| node.nic.0 / 1e6),
        },
        proxy: BTreeMap::new(),
        devices,
    })
}
