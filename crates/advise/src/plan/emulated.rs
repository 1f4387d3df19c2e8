//! Cells on emulated hardware: several nodes, known disks, round trips, dilated time.
//!
//! The calibration's have two media, three replicas on three nodes, one round trip, processors without
//! a limit and closed loops. The others vary all of that.

use std::collections::BTreeMap;

use super::Planned;
use crate::cluster::{Cluster, DiskGroup, Erasure, Network, Node, Processes, Role, Serves};
use crate::emulation::Emulation;
use crate::hardware::Medium;
use crate::quantity::Bytes;
use crate::random::Dice;
use crate::workload::{Sizes, Workload};

/// Bytes that a cell writes before its measurement, at most.
const PREPARED_BYTES: f64 = 150e6;
/// Objects that are read from disks: many more than are read.
const COLD_OBJECTS: f64 = 1500.0;
const OBJECTS: f64 = 300.0;
const DISK_BYTES: f64 = 4e9;
/// Cores of a node that is not limited: the host's, as much faster as time is slower.
const HOST_CORES: u32 = 2;

/// The media that cells are emulated with unless a file names others, with the dilation at which the
/// host adds little to their times.
pub fn media() -> BTreeMap<String, (Medium, f64)> {
    let hdd = Medium {
        settle_us: 500.0,
        full_seek_us: 8000.0,
        rpm: 7200.0,
        mb_per_s: 150.0,
        queue: 32,
        write_cache_mb: 64.0,
        cached_us: 100.0,
        ..Medium::default()
    };
    let ssd = Medium {
        fixed_us: 200.0,
        mb_per_s: 400.0,
        channels: 8,
        queue: 32,
        flush_us: 200.0,
        ..Medium::default()
    };
    let slow_hdd = Medium {
        settle_us: 1000.0,
        full_seek_us: 14_000.0,
        rpm: 5400.0,
        mb_per_s: 100.0,
        ..hdd.clone()
    };
    let plain_ssd = Medium {
        fixed_us: 400.0,
        mb_per_s: 250.0,
        channels: 2,
        flush_us: 800.0,
        ..ssd.clone()
    };
    let nvme = Medium {
        fixed_us: 80.0,
        mb_per_s: 2000.0,
        channels: 16,
        flush_us: 40.0,
        ..ssd.clone()
    };
    [
        ("hdd", hdd, 3.0),
        ("ssd", ssd, 12.0),
        ("slow-hdd", slow_hdd, 3.0),
        ("plain-ssd", plain_ssd, 8.0),
        ("nvme", nvme, 25.0),
    ]
    .map(|(name, medium, dilation)| (name.to_owned(), (medium, dilation)))
    .into()
}

/// Properties of an emulated cell.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    medium: &'static str,
    nodes: u32,
    zones: u32,
    replicas: u32,
    erasure: Option<Erasure>,
    /// Round trip between zones, and of clients, in milliseconds.
    rtt_ms: f64,
    /// Cores of each node's processors; none: no limit.
    cores: Option<u32>,
    size: f64,
    /// Shares of reads, writes and deletes.
    mix: [f64; 3],
    workers: u32,
    /// Operations a second instead of workers.
    rate: Option<f64>,
    /// Reads come from the disks.
    is_cold: bool,
    lost_zone: Option<u32>,
}

const USUAL: Shape = Shape {
    medium: "ssd",
    nodes: 3,
    zones: 3,
    replicas: 3,
    erasure: None,
    rtt_ms: 1.0,
    cores: None,
    size: 16e3,
    mix: [0.0, 1.0, 0.0],
    workers: 8,
    rate: None,
    is_cold: false,
    lost_zone: None,
};

impl Shape {
    fn name(&self) -> String {
        let policy = match self.erasure {
            Some(e) => format!("ec{}-{}", e.data, e.parity),
            None => format!("r{}", self.replicas),
        };
        let [read, write, delete] = self.mix;
        let size = Bytes(self.size).to_string().replace(' ', "");
        let load = match self.rate {
            Some(rate) => format!("open{rate}"),
            None => format!("w{}", self.workers),
        };
        let mut name = format!(
            "{}-n{}-{policy}-rtt{}-{size}-g{read}p{write}d{delete}-{load}",
            self.medium, self.nodes, self.rtt_ms
        );
        if let Some(cores) = self.cores {
            name += &format!("-cpu{cores}");
        }
        if self.is_cold {
            name += "-cold";
        }
        if let Some(zone) = self.lost_zone {
            name += &format!("-lost{zone}");
        }
        name
    }

    fn planned(self, media: &BTreeMap<String, (Medium, f64)>) -> Option<Planned> {
        let (medium, dilation) = media.get(self.medium)?;
        let name = self.name();
        let (cores, core_speed) = match self.cores {
            Some(cores) => (cores, 1.0),
            None => (HOST_CORES, *dilation),
        };
        let node = Node {
            name: "n".into(),
            count: self.nodes,
            roles: vec![Role::Proxy, Role::Storage],
            region: 1,
            zones: self.zones,
            zone: 1,
            cores,
            core_speed,
            memory: Bytes(if self.is_cold { 0.0 } else { 16e9 }),
            nic: Bytes(0.0),
            disk: vec![DiskGroup {
                medium: self.medium.to_owned(),
                count: 1,
                devices: 1,
                bytes: Bytes(DISK_BYTES),
                weight: 100.0,
                serves: Serves::All,
                device_zones: false,
            }],
        };
        let cluster = Cluster {
            name: name.clone(),
            replicas: self.replicas,
            erasure: self.erasure,
            part_power: 8,
            processes: Processes::One,
            network: Network {
                zone_rtt_ms: 0.5,
                region_rtt_ms: self.rtt_ms,
                between_regions_rtt_ms: 20.0,
                client_rtt_ms: self.rtt_ms,
            },
            node: vec![node],
        };
        let most = if self.is_cold { COLD_OBJECTS } else { OBJECTS };
        let workload = Workload {
            name: name.clone(),
            sizes: Sizes::One(Bytes(self.size)),
            read: self.mix[0],
            write: self.mix[1],
            delete: self.mix[2],
            head: 0.0,
            workers: self.rate.is_none().then_some(self.workers),
            rate: self.rate,
            objects: (PREPARED_BYTES / self.size).floor().clamp(64.0, most),
            containers: 4,
            zipf: 0.0,
            limits_ms: [
                2.0, 4.0, 6.0, 9.0, 13.0, 18.0, 25.0, 35.0, 50.0, 70.0, 100.0, 150.0, 220.0, 350.0,
                500.0, 800.0, 1200.0, 2000.0, 4000.0,
            ]
            .into(),
            growth: None,
        };
        Some(Planned {
            name,
            emulation: Some(Emulation {
                dilation: *dilation,
                media: [(self.medium.to_owned(), medium.clone())].into(),
            }),
            lost_zone: self.lost_zone,
            cluster,
            workload,
        })
    }
}

/// Eight cells that determine what the store asks of disks, networks and processors.
pub fn calibration_cells() -> Vec<Planned> {
    let (reads, both) = ([1.0, 0.0, 0.0], [0.0, 1.0, 1.0]);
    let shapes = [
        Shape {
            workers: 1,
            ..USUAL
        },
        USUAL,
        Shape {
            workers: 32,
            ..USUAL
        },
        Shape {
            size: 256e3,
            ..USUAL
        },
        Shape {
            mix: reads,
            is_cold: true,
            ..USUAL
        },
        Shape {
            mix: both,
            size: 4e3,
            ..USUAL
        },
        Shape {
            medium: "hdd",
            ..USUAL
        },
        Shape {
            medium: "hdd",
            mix: reads,
            size: 64e3,
            is_cold: true,
            ..USUAL
        },
    ];
    let media = media();
    let planned = shapes.into_iter().map(|shape| shape.planned(&media));
    planned.flatten().collect()
}

/// Random cells from a seed, all different from each other and from those for calibration.
pub fn validation_cells(seed: u64, count: usize) -> Vec<Planned> {
    let (media, known) = (media(), calibration_cells());
    let mut dice = Dice::new(seed);
    let mut cells: Vec<Planned> = Vec::new();
    // There are far more possible cells than are ever requested.
    for _ in 0..count * 100 {
        if cells.len() == count {
            break;
        }
        let Some(planned) = draw(&mut dice).planned(&media) else {
            continue;
        };
        let same = |other: &Planned| other.name == planned.name;
        if !known.iter().any(same) && !cells.iter().any(same) {
            cells.push(planned);
        }
    }
    cells
}

/// Clusters of a choice.
const CLUSTERS_OF_A_CHOICE: usize = 4;

/// Random cells from a seed for choices among clusters: groups of four, each with a workload of its own,
/// all different from those for calibration.
pub fn choice_cells(seed: u64, count: usize) -> Vec<Planned> {
    let (media, known) = (media(), calibration_cells());
    let mut dice = Dice::new(seed ^ 0xc401);
    let mut cells: Vec<Planned> = Vec::new();
    for _ in 0..count.div_ceil(CLUSTERS_OF_A_CHOICE) {
        let load = draw(&mut dice);
        let before = cells.len();
        // There are a hundred clusters.
        for _ in 0..1000 {
            if cells.len() == count.min(before + CLUSTERS_OF_A_CHOICE) {
                break;
            }
            let other = draw(&mut dice);
            let shape = Shape {
                medium: other.medium,
                nodes: other.nodes,
                replicas: other.replicas,
                erasure: other.erasure,
                cores: None,
                rate: None,
                lost_zone: None,
                ..load
            };
            let is_new = |planned: &Planned| {
                let mut others = cells.iter().chain(&known);
                others.all(|other| other.name != planned.name)
            };
            cells.extend(shape.planned(&media).filter(is_new));
        }
    }
    cells
}

fn draw(dice: &mut Dice) -> Shape {
    let media = [
        "ssd",
        "ssd",
        "ssd",
        "hdd",
        "plain-ssd",
        "plain-ssd",
        "nvme",
        "nvme",
        "slow-hdd",
    ];
    let mixes = [
        [1.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
        [0.0, 1.0, 0.0],
        [0.0, 1.0, 0.0],
        [4.0, 1.0, 0.0],
        [1.0, 1.0, 0.0],
        [3.0, 2.0, 1.0],
    ];
    let sizes = [4e3, 16e3, 64e3, 256e3];
    let workers = [2, 4, 8, 16, 24];
    let trips = [1.0, 1.0, 2.0, 5.0];
    let mut pick = |count: usize| dice.below(count);
    let mut shape = Shape {
        medium: media[pick(media.len())],
        mix: mixes[pick(mixes.len())],
        size: sizes[pick(sizes.len())],
        workers: workers[pick(workers.len())],
        rtt_ms: trips[pick(trips.len())],
        nodes: [3, 3, 4, 6][pick(4)],
        replicas: [1, 2, 3, 3, 3][pick(5)],
        ..USUAL
    };
    // Whether or not it counts, so that the draws that follow do not depend on it.
    let is_cold = pick(3) > 0;
    match pick(7) {
        0 => {
            (shape.erasure, shape.replicas) = (Some(Erasure { data: 2, parity: 1 }), 3);
        }
        1 => {
            (shape.erasure, shape.replicas) = (Some(Erasure { data: 4, parity: 2 }), 3);
            shape.nodes = 6;
        }
        2 => {
            (shape.lost_zone, shape.replicas) = (Some(2), 3);
        }
        // A limit of less than a twentieth of a core of the host cannot be kept.
        3 => shape.cores = Some(if shape.medium == "nvme" { 2 } else { 1 }),
        4 => shape.rate = Some(f64::from(open_rate(&shape))),
        _ => {}
    }
    shape.is_cold = is_cold && shape.mix[0] > 0.0;
    shape
}

/// A rate of an open loop that a cluster of these disks bears.
fn open_rate(shape: &Shape) -> u32 {
    let writes = shape.mix[0] == 0.0;
    match (shape.medium, writes) {
        ("hdd" | "slow-hdd", true) => 8,
        ("hdd" | "slow-hdd", false) => 20,
        (_, true) => 100,
        (_, false) => 250,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_sound_and_a_seed_repeats_them() {
        let cells = validation_cells(7, 30);
        assert_eq!(cells.len(), 30);
        assert_eq!(cells, validation_cells(7, 30));
        assert_ne!(cells, validation_cells(8, 30));
        assert_eq!(calibration_cells().len(), 8);
        for cell in cells.iter().chain(&calibration_cells()) {
            assert_eq!(cell.cluster.check(), Ok(()), "{}", cell.name);
            assert_eq!(cell.workload.check(), Ok(()), "{}", cell.name);
            let emulation = cell.emulation.as_ref();
            assert_eq!(
                emulation.map(|e| e.check(&cell.cluster)),
                Some(Ok(())),
                "{}",
                cell.name
            );
        }
        let choices = choice_cells(7, 10);
        assert_eq!((choices.len(), &choice_cells(7, 10)), (10, &choices));
        for cell in &choices {
            assert_eq!(cell.cluster.check(), Ok(()), "{}", cell.name);
        }
        let is = |of: fn(&Planned) -> bool| cells.iter().any(of);
        assert!(is(|c| c.cluster.erasure.is_some()) && is(|c| c.lost_zone.is_some()));
        assert!(is(|c| c.workload.rate.is_some()) && is(|c| c.cluster.replicas == 1));
    }
}
