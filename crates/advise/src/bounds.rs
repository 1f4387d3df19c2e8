//! Fast estimates without simulation: bounds, and load-dependent mean value analysis (MVA).
//!
//! They are used for pruning: a candidate whose bound is below the required throughput is not
//! simulated. They are also compared with the simulation when it is scored.

use std::collections::{BTreeMap, HashSet};

use crate::calibration::Calibration;
use crate::cluster::Cluster;
use crate::engine::{Engine, demands};
use crate::error::AdviseError;
use crate::paths::World;
use crate::placement::Placement;
use crate::random::Dice;
use crate::simulate::{Busy, Options, run};
use crate::workload::{Operation, Workload};

/// Number of operations over which demands are averaged.
const SAMPLED_OPERATIONS: usize = 2000;
/// Maximum number of workers for MVA, whose time grows with their square.
const WORKERS_MAX: usize = 1024;
/// Operations, one at a time, that tell how much of a known disk each uses.
const LONE_OPERATIONS: u64 = 400;

/// Mean demands of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Demands {
    /// Seconds at each service station, by its number.
    pub stations: BTreeMap<usize, f64>,
    pub servers: BTreeMap<usize, f64>,
    pub names: BTreeMap<usize, (&'static str, String)>,
    /// Group sync memberships per operation.
    pub syncs: f64,
    /// Bytes written per membership.
    pub sync_bytes: f64,
    /// Number of rows of the object ring.
    pub rows: f64,
    disks: f64,
}

impl Demands {
    /// Averages the demands of sampled operations.
    ///
    /// # Errors
    /// A medium that the calibration lacks.
    pub fn new(
        cluster: &Cluster,
        workload: &Workload,
        calibration: &Calibration,
        placement: &Placement,
    ) -> Result<Demands, AdviseError> {
        let mut engine = Engine::new(1);
        let none = (HashSet::new(), None);
        let world = World::new(cluster, workload, calibration, placement, &mut engine, none)?;
        let mut world = world.without_spread();
        let mut dice = Dice::new(1);
        let (mut stations, mut syncs) = (BTreeMap::new(), 0.0);
        let (mix, classes) = (workload.mix(), workload.classes());
        for number in 0..SAMPLED_OPERATIONS as u64 {
            let operation = mix[dice.weighted(mix.iter().map(|(_, share)| *share))].0;
            let class = classes[dice.weighted(classes.iter().map(|c| c.share))];
            let steps = world.operation(number, operation, class.bytes.0, &mut dice);
            demands(&steps, &mut syncs, &mut stations);
        }
        stations
            .values_mut()
            .for_each(|sum| *sum /= SAMPLED_OPERATIONS as f64);
        syncs /= SAMPLED_OPERATIONS as f64;
        let mut servers = BTreeMap::new();
        for (host, at) in placement.hosts.iter().zip(&world.hosts) {
            servers.insert(at.processor, f64::from(cluster.node[host.node].cores));
        }
        for (disk, at) in placement.disks.iter().zip(&world.disks) {
            let channels = calibration.medium(&disk.medium)?.channels;
            servers.insert(at.channel, f64::from(channels));
        }
        let names = world
            .names
            .iter()
            .map(|n| (n.station, (n.kind, n.of.clone())));
        let written = workload.share(Operation::Write) * workload.mean_size() * cluster.overhead();
        Ok(Demands {
            names: names.collect(),
            stations,
            servers,
            sync_bytes: if syncs > 0.0 { written / syncs } else { 0.0 },
            syncs,
            rows: f64::from(cluster.object_rows()),
            disks: placement.disks.len() as f64,
        })
    }

    /// Upper bound of the throughput in operations per second: 1 / Dmax, with unlimited sharing of
    /// group syncs.
    pub fn throughput_at_most(&self, calibration: &Calibration, placement: &Placement) -> f64 {
        let of = |(station, seconds): (&usize, &f64)| {
            self.servers.get(station).copied().unwrap_or(1.0) / seconds
        };
        let served = self.stations.iter().map(of).fold(f64::INFINITY, f64::min);
        let media = placement
            .disks
            .iter()
            .filter_map(|d| calibration.medium.get(&d.medium));
        let member = media.map(|m| m.sync_member + m.sync_byte * self.sync_bytes);
        let least = member.fold(f64::INFINITY, f64::min);
        let synced = match self.syncs * least > 0.0 {
            true => self.disks / (self.syncs * least),
            false => f64::INFINITY,
        };
        served.min(synced)
    }
}

/// Throughput and mean latency of a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Means {
    pub throughput: f64,
    pub latency: f64,
}

/// A station of MVA: its demand, and its speed-up as a function of the number of jobs.
pub struct MvaStation<'a> {
    pub demand: f64,
    pub speed: Box<dyn Fn(usize) -> f64 + 'a>,
}

/// Exact MVA of a closed network with load-dependent stations (Reiser and Lavenberg); `delay` is
/// time spent elsewhere.
pub fn mva(stations: &[MvaStation<'_>], delay: f64, workers: usize) -> Means {
    let workers = workers.clamp(1, WORKERS_MAX);
    // Marginal probabilities of the number of jobs at each station.
    let mut chances: Vec<Vec<f64>> = stations.iter().map(|_| vec![1.0]).collect();
    let mut means = Means {
        throughput: 0.0,
        latency: 0.0,
    };
    for n in 1..=workers {
        let residence: Vec<f64> = stations
            .iter()
            .zip(&chances)
            .map(|(station, chances)| {
                let of = |j: usize| j as f64 / (station.speed)(j) * chances[j - 1];
                station.demand * (1..=n).map(of).sum::<f64>()
            })
            .collect();
        let latency = delay + residence.iter().sum::<f64>();
        means = Means {
            throughput: n as f64 / latency,
            latency,
        };
        for (station, chances) in stations.iter().zip(&mut chances) {
            let factor = |j: usize| station.demand * means.throughput / (station.speed)(j);
            let mut next: Vec<f64> = vec![0.0; n + 1];
            for j in 1..=n {
                next[j] = factor(j) * chances[j - 1];
            }
            next[0] = (1.0 - next[1..].iter().sum::<f64>()).max(0.0);
            *chances = next;
        }
    }
    means
}

/// MVA of a workload on a cluster: processors and disks as stations, group syncs as a station whose
/// speed grows with the number of jobs. An open loop is treated as the closed loop with the same
/// rate.
///
/// # Errors
/// A medium that the calibration lacks.
pub fn by_mva(
    cluster: &Cluster,
    workload: &Workload,
    calibration: &Calibration,
    placement: &Placement,
) -> Result<Means, AdviseError> {
    if calibration.is_known(placement) {
        let (station, delay) = most_used_disk(cluster, workload, calibration, placement)?;
        return Ok(of_load(&[station], delay, workload));
    }
    let demands = Demands::new(cluster, workload, calibration, placement)?;
    let mut stations: Vec<MvaStation<'_>> = Vec::new();
    for (station, seconds) in &demands.stations {
        let servers = demands.servers.get(station).copied().unwrap_or(1.0);
        stations.push(MvaStation {
            demand: *seconds,
            speed: Box::new(move |jobs| servers.min(jobs as f64)),
        });
    }
    let medium = placement
        .disks
        .first()
        .map(|d| calibration.medium(&d.medium));
    if let Some(medium) = medium.transpose()?.filter(|_| demands.syncs > 0.0) {
        let (rows, bytes) = (demands.rows, demands.sync_bytes);
        let group = move |jobs: usize| {
            let members = (rows * jobs as f64).round() as usize;
            medium.sync(members, bytes * members as f64)
        };
        let alone = group(1);
        stations.push(MvaStation {
            demand: demands.syncs / rows * alone / demands.disks.max(1.0),
            speed: Box::new(move |jobs| jobs as f64 * alone / group(jobs)),
        });
    }
    let delay = calibration.store.hand_over * 3.0 + cluster.network.client_rtt_ms / 1000.0;
    Ok(of_load(&stations, delay, workload))
}

/// The most used disk of known hardware by operations that are alone, and the time that each of them
/// spends elsewhere: MVA knows neither forks nor shared syncs.
fn most_used_disk(
    cluster: &Cluster,
    workload: &Workload,
    calibration: &Calibration,
    placement: &Placement,
) -> Result<(MvaStation<'static>, f64), AdviseError> {
    let alone = Workload {
        workers: Some(1),
        rate: None,
        ..workload.clone()
    };
    let options = Options {
        operations: LONE_OPERATIONS,
        warm_up: LONE_OPERATIONS / 8,
        ..Options::default()
    };
    let outcome = run(cluster, &alone, calibration, placement, &options)?;
    let channels = |b: &&Busy| b.kind == "disk";
    let used = outcome.busy.iter().filter(channels).map(|b| b.utilisation);
    let servers = match placement.disks.first() {
        Some(disk) => f64::from(calibration.medium(&disk.medium)?.channels),
        None => 1.0,
    };
    let demand = used.fold(0.0, f64::max) * servers / outcome.throughput;
    let station = MvaStation {
        demand,
        speed: Box::new(move |jobs| servers.min(jobs as f64)),
    };
    Ok((station, (outcome.mean() - demand).max(0.0)))
}

/// The closed loop, or the one that has an open loop's rate.
fn of_load(stations: &[MvaStation<'_>], delay: f64, workload: &Workload) -> Means {
    let Some(rate) = workload.rate else {
        return mva(stations, delay, workload.workers.unwrap_or(1) as usize);
    };
    let mut best = mva(stations, delay, 1);
    let mut workers = 1;
    while best.throughput < rate && workers < WORKERS_MAX {
        workers = (workers * 5 / 4).max(workers + 1);
        best = mva(stations, delay, workers);
    }
    Means {
        throughput: best.throughput.min(rate),
        ..best
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibration::tests::example;
    use crate::cluster::tests::HOST;
    use crate::simulate::{Options, run};
    use crate::workload::tests::SMALL;

    fn fixed(demand: f64, servers: f64) -> MvaStation<'static> {
        MvaStation {
            demand,
            speed: Box::new(move |jobs| servers.min(jobs as f64)),
        }
    }

    /// Two identical stations: X(N) = N / (D (N + 1)).
    #[test]
    fn balanced_network() {
        for n in [1usize, 2, 10, 50] {
            let means = mva(&[fixed(2.0, 1.0), fixed(2.0, 1.0)], 0.0, n);
            let expected = n as f64 / (2.0 * (n as f64 + 1.0));
            assert!((means.throughput / expected - 1.0).abs() < 1e-9, "{n}");
        }
    }

    /// Machine repairman model: one server, exponential times, delay Z; by the birth-death chain.
    #[test]
    fn many_servers_and_a_delay() {
        let (n, servers, demand, delay) = (12usize, 3usize, 1.0, 2.0);
        let mut weights = vec![1.0];
        for j in 1..=n {
            let rate_in = (n - j + 1) as f64 / delay;
            let rate_out = servers.min(j) as f64 / demand;
            weights.push(weights[j - 1] * rate_in / rate_out);
        }
        let all: f64 = weights.iter().sum();
        let busy = |j: usize| servers.min(j) as f64 * weights[j] / all;
        let expected: f64 = (0..=n).map(busy).sum::<f64>() / demand;
        let means = mva(&[fixed(demand, servers as f64)], delay, n);
        assert!(
            (means.throughput / expected - 1.0).abs() < 1e-9,
            "{} {expected}",
            means.throughput
        );
    }

    /// The simulation stays below the bound, and approaches it if processors are the bottleneck.
    #[test]
    fn the_bound_holds() {
        let cluster = Cluster::parse(HOST).unwrap();
        let mut workload = Workload::parse(SMALL).unwrap();
        workload.workers = Some(64);
        let (calibration, placement) = (example(), Placement::new(&cluster).unwrap());
        let demands = Demands::new(&cluster, &workload, &calibration, &placement).unwrap();
        let bound = demands.throughput_at_most(&calibration, &placement);
        let options = Options {
            operations: 5000,
            ..Options::default()
        };
        let it = run(&cluster, &workload, &calibration, &placement, &options).unwrap();
        assert!(it.throughput < bound * 1.02, "{} {bound}", it.throughput);
        assert!(it.throughput > bound * 0.5, "{} {bound}", it.throughput);
        let means = by_mva(&cluster, &workload, &calibration, &placement).unwrap();
        assert!(
            (means.throughput / it.throughput - 1.0).abs() < 0.5,
            "{means:?}"
        );
    }
}
