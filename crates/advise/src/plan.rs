//! Planned cells: a few for calibration, and others, drawn from a seed, for validating predictions.

pub mod emulated;

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, DiskGroup, Erasure, Network, Node, Processes, Role, Serves};
use crate::emulation::Emulation;
use crate::quantity::Bytes;
use crate::random::Dice;
use crate::workload::{Sizes, Workload};

/// A cell before its measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    pub name: String,
    /// How its hardware is emulated; none: `cairn up` on this host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
    /// A zone whose devices are lost before anything is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_zone: Option<u32>,
    pub cluster: Cluster,
    pub workload: Workload,
}

/// Properties of a cell on one host.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    size: f64,
    /// Shares of reads, writes and deletes.
    mix: [f64; 3],
    workers: u32,
    replicas: u32,
    devices: u32,
    erasure: Option<Erasure>,
    processes: Processes,
    lost_zone: Option<u32>,
}

/// Maximum bytes that a cell writes before its measurement.
const PREPARED_BYTES: f64 = 48e6;
const PREPARED_OBJECTS: f64 = 400.0;
const CODED: Erasure = Erasure { data: 4, parity: 2 };
const USUAL: Shape = Shape {
    size: 4e3,
    mix: [0.0, 1.0, 0.0],
    workers: 16,
    replicas: 3,
    devices: 4,
    erasure: None,
    processes: Processes::One,
    lost_zone: None,
};

impl Shape {
    fn planned(self, medium: &str, cores: u32) -> Planned {
        let policy = match self.erasure {
            Some(e) => format!("ec{}-{}", e.data, e.parity),
            None => format!("r{}", self.replicas),
        };
        let apart = match self.processes {
            Processes::One => "",
            Processes::Roles => "-apart",
        };
        let lost = self
            .lost_zone
            .map_or(String::new(), |zone| format!("-lost{zone}"));
        let [read, write, delete] = self.mix;
        let size = Bytes(self.size).to_string().replace(' ', "");
        let name = format!(
            "{size}-g{read}p{write}d{delete}-w{}-{policy}-d{}{apart}{lost}",
            self.workers, self.devices
        );
        let disk = DiskGroup {
            medium: medium.to_owned(),
            count: 1,
            devices: self.devices,
            bytes: Bytes(100e9),
            weight: 100.0,
            serves: Serves::All,
            device_zones: true,
        };
        let node = Node {
            name: "host".into(),
            count: 1,
            roles: vec![Role::Proxy, Role::Storage, Role::Load],
            region: 1,
            zones: 1,
            zone: 1,
            cores,
            core_speed: 1.0,
            memory: Bytes(16e9),
            nic: Bytes(0.0),
            disk: vec![disk],
        };
        let cluster = Cluster {
            name: name.clone(),
            replicas: self.replicas,
            erasure: self.erasure,
            part_power: 10,
            processes: self.processes,
            network: Network::default(),
            node: vec![node],
        };
        let objects = (PREPARED_BYTES / self.size)
            .floor()
            .clamp(16.0, PREPARED_OBJECTS);
        let workload = Workload {
            name: name.clone(),
            sizes: Sizes::One(Bytes(self.size)),
            read,
            write,
            delete,
            head: 0.0,
            workers: Some(self.workers),
            rate: None,
            objects,
            containers: 4,
            zipf: 0.0,
            limits_ms: [
                1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0, 80.0, 120.0, 200.0, 500.0,
            ]
            .into(),
            growth: None,
        };
        Planned {
            name,
            emulation: None,
            lost_zone: self.lost_zone,
            cluster,
            workload,
        }
    }
}

/// Eight cells that determine all demands of one host.
pub fn calibration_cells(medium: &str, cores: u32) -> Vec<Planned> {
    let (reads, writes) = ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]);
    let both = [1.0, 1.0, 0.0];
    let shapes = [
        Shape {
            size: 4e3,
            mix: writes,
            workers: 16,
            ..USUAL
        },
        Shape {
            size: 4e3,
            mix: writes,
            workers: 1,
            replicas: 1,
            ..USUAL
        },
        Shape {
            size: 1e6,
            mix: writes,
            workers: 8,
            ..USUAL
        },
        Shape {
            size: 1e6,
            mix: writes,
            workers: 4,
            replicas: 1,
            ..USUAL
        },
        Shape {
            size: 4e3,
            mix: reads,
            workers: 16,
            ..USUAL
        },
        Shape {
            size: 1e6,
            mix: reads,
            workers: 4,
            ..USUAL
        },
        Shape {
            size: 256e3,
            mix: both,
            workers: 8,
            devices: 6,
            erasure: Some(CODED),
            ..USUAL
        },
        Shape {
            size: 16e3,
            mix: both,
            workers: 8,
            processes: Processes::Roles,
            ..USUAL
        },
    ];
    shapes
        .into_iter()
        .map(|shape| shape.planned(medium, cores))
        .collect()
}

/// The shortest calibration: reads and writes of two sizes.
pub fn quick_cells(medium: &str, cores: u32) -> Vec<Planned> {
    let mut cells = calibration_cells(medium, cores);
    let quick = [0, 2, 4, 5].map(|index| cells[index].clone());
    cells.clear();
    quick.to_vec()
}

/// Random cells from a seed, all different from each other and from those for calibration.
pub fn validation_cells(medium: &str, cores: u32, seed: u64, count: usize) -> Vec<Planned> {
    let known = calibration_cells(medium, cores);
    let mut dice = Dice::new(seed);
    let mut cells: Vec<Planned> = Vec::new();
    // There are far more possible cells than are ever requested.
    for _ in 0..count * 100 {
        if cells.len() == count {
            break;
        }
        let planned = draw(&mut dice).planned(medium, cores);
        let same = |other: &Planned| other.name == planned.name;
        if !known.iter().any(same) && !cells.iter().any(same) {
            cells.push(planned);
        }
    }
    cells
}

fn draw(dice: &mut Dice) -> Shape {
    let sizes = [1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 2e6];
    let mixes = [
        [1.0, 0.0, 0.0],
        [0.0, 1.0, 0.0],
        [4.0, 1.0, 0.0],
        [1.0, 1.0, 0.0],
        [3.0, 1.0, 1.0],
    ];
    let workers = [1, 2, 4, 8, 16, 32];
    let mut pick = |count: usize| dice.below(count);
    let mut shape = Shape {
        size: sizes[pick(sizes.len())],
        mix: mixes[pick(mixes.len())],
        workers: workers[pick(workers.len())],
        replicas: [1, 2, 3, 3][pick(4)],
        devices: [3, 4, 6, 8][pick(4)],
        erasure: None,
        processes: Processes::One,
        lost_zone: None,
    };
    match pick(7) {
        0 => {
            let schemes = [CODED, Erasure { data: 2, parity: 1 }];
            let scheme = schemes[pick(2)];
            shape.erasure = Some(scheme);
            shape.replicas = 3;
            shape.devices = shape.devices.max(scheme.data + scheme.parity);
        }
        1 => shape.processes = Processes::Roles,
        2 => shape.lost_zone = Some(2),
        _ => {}
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_sound_and_a_seed_repeats_them() {
        let cells = validation_cells("disk", 2, 7, 30);
        assert_eq!(cells.len(), 30);
        assert_eq!(cells, validation_cells("disk", 2, 7, 30));
        assert_ne!(cells, validation_cells("disk", 2, 8, 30));
        for cell in cells.iter().chain(&calibration_cells("disk", 2)) {
            assert_eq!(cell.cluster.check(), Ok(()), "{}", cell.name);
            assert_eq!(cell.workload.check(), Ok(()), "{}", cell.name);
        }
        let mut names: Vec<&str> = cells.iter().map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 30);
        assert_eq!(quick_cells("disk", 2).len(), 4);
    }
}
