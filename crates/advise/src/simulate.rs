//! A run of the simulation: a workload on a placed cluster, and its results.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::calibration::Calibration;
use crate::cell::DiskUse;
use crate::cluster::Cluster;
use crate::engine::{Engine, Happened, Step};
use crate::error::AdviseError;
use crate::paths::World;
use crate::placement::Placement;
use crate::random::{Dice, between};
use crate::workload::{Operation, SizeClass, Workload};

/// First token of a repair's copies; lower ones are operations.
const COPY_TOKENS: u64 = 1 << 48;
/// First token of other programs' work on a host, and of its next start.
const OTHERS_TOKENS: u64 = 1 << 56;
const OTHERS_NEXT: u64 = 1 << 57;
/// Duration of other programs' CPU bursts, in seconds.
const OTHERS_SECONDS: f64 = 1e-3;
/// Token of an open loop's next arrival.
const ARRIVAL: u64 = u64::MAX;
/// Number of operations in progress above which an open loop's rate is beyond the cluster's
/// capacity.
const IN_PROGRESS_MAX: u64 = 20_000;

/// Options of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Number of operations counted.
    pub operations: u64,
    /// Number of operations before counting.
    pub warm_up: u64,
    pub seed: u64,
    /// Lost devices.
    pub lost: HashSet<usize>,
    /// Concurrent copies: sources and targets, drawn in turn.
    pub copies: Vec<(usize, usize)>,
    pub copies_at_once: usize,
    /// Fraction of each host's processors used by other programs.
    pub others: f64,
    /// The dilation of a cluster that is emulated.
    pub dilation: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            operations: 12_000,
            warm_up: 1_500,
            seed: 1,
            lost: HashSet::new(),
            copies: Vec::new(),
            copies_at_once: 0,
            others: 0.0,
            dilation: None,
        }
    }
}

/// Utilisation of a station.
#[derive(Clone, Debug, PartialEq)]
pub struct Busy {
    pub kind: &'static str,
    pub of: String,
    pub utilisation: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Operations per second.
    pub throughput: f64,
    /// Latencies in seconds, ascending.
    pub latencies: Vec<f64>,
    pub by_operation: BTreeMap<Operation, Vec<f64>>,
    pub busy: Vec<Busy>,
    /// Group syncs per operation.
    pub groups: f64,
    /// Mean number of members in a group.
    pub members: f64,
    /// Requests to known disks for one operation.
    pub disk: DiskUse,
    /// An open loop's rate was achieved.
    pub kept_up: bool,
    /// Bytes per second copied by a repair.
    pub copied: f64,
}

impl Outcome {
    /// Latency not exceeded by this fraction (0 to 1) of the operations.
    pub fn quantile(&self, part: f64) -> f64 {
        between(&self.latencies, part)
    }

    pub fn mean(&self) -> f64 {
        self.latencies.iter().sum::<f64>() / self.latencies.len().max(1) as f64
    }

    /// Fraction of operations within a latency.
    pub fn within(&self, seconds: f64) -> f64 {
        let count = self.latencies.partition_point(|l| *l <= seconds);
        count as f64 / self.latencies.len().max(1) as f64
    }

    /// The station with the highest utilisation.
    pub fn busiest(&self) -> Option<&Busy> {
        let by_use = |a: &&Busy, b: &&Busy| a.utilisation.total_cmp(&b.utilisation);
        self.busy.iter().max_by(by_use)
    }
}

struct Run<'a> {
    world: World<'a>,
    engine: Engine,
    workload: &'a Workload,
    classes: Vec<SizeClass>,
    options: &'a Options,
    dice: Dice,
    /// When each operation under way began, and whose it is.
    began: HashMap<u64, (f64, Operation, u64)>,
    next_token: u64,
    next_copy: usize,
    copied_bytes: f64,
}

/// Runs the workload until enough operations have ended.
///
/// # Errors
/// A medium that the calibration lacks.
pub fn run(
    cluster: &Cluster,
    workload: &Workload,
    calibration: &Calibration,
    placement: &Placement,
    options: &Options,
) -> Result<Outcome, AdviseError> {
    let mut engine = Engine::new(options.seed);
    let circumstances = (options.lost.clone(), options.dilation);
    let world = World::new(
        cluster,
        workload,
        calibration,
        placement,
        &mut engine,
        circumstances,
    )?;
    let run = Run {
        world,
        engine,
        workload,
        classes: workload.classes(),
        options,
        dice: Dice::new(options.seed ^ 0x5eed),
        began: HashMap::new(),
        next_token: 0,
        next_copy: 0,
        copied_bytes: 0.0,
    };
    Ok(run.finish())
}

impl Run<'_> {
    fn finish(mut self) -> Outcome {
        match self.workload.rate {
            Some(_) => self.engine.set_alarm(0.0, ARRIVAL),
            None => {
                let workers = u64::from(self.workload.workers.unwrap_or(1));
                (0..workers).for_each(|worker| self.begin(worker));
            }
        }
        (0..self.options.copies_at_once).for_each(|_| self.copy());
        if self.options.others > 0.0 {
            let hosts = self.world.hosts.len() as u64;
            (0..hosts).for_each(|host| self.engine.set_alarm(0.0, OTHERS_NEXT + host));
        }
        let mut ended = 0;
        let mut kept_up = true;
        let mut latencies: BTreeMap<Operation, Vec<f64>> = BTreeMap::new();
        while ended < self.options.warm_up + self.options.operations {
            match self.engine.advance() {
                Some(Happened::Alarm { token: ARRIVAL }) => self.arrive(),
                Some(Happened::Alarm { token }) => self.others(token),
                Some(Happened::Ended { token }) if token >= OTHERS_TOKENS => {}
                Some(Happened::Ended { token }) if token >= COPY_TOKENS => {
                    self.copied_bytes += self.workload.mean_size();
                    self.copy();
                }
                Some(Happened::Ended { token }) => {
                    let Some((began, operation, worker)) = self.began.remove(&token) else {
                        continue;
                    };
                    ended += 1;
                    if ended == self.options.warm_up {
                        self.engine.reset_counts();
                        self.copied_bytes = 0.0;
                    } else if ended > self.options.warm_up {
                        let took = self.engine.now() - began;
                        latencies.entry(operation).or_default().push(took);
                    }
                    if self.workload.rate.is_none() {
                        self.begin(worker);
                    }
                }
                None => break,
            }
            if self.began.len() as u64 > IN_PROGRESS_MAX {
                kept_up = false;
                break;
            }
        }
        self.outcome(latencies, kept_up)
    }

    fn outcome(
        mut self,
        mut by_operation: BTreeMap<Operation, Vec<f64>>,
        kept_up: bool,
    ) -> Outcome {
        let seconds = self.engine.seconds_counted().max(1e-9);
        let mut latencies: Vec<f64> = Vec::new();
        for of_one in by_operation.values_mut() {
            of_one.sort_by(f64::total_cmp);
            latencies.extend(of_one.iter());
        }
        latencies.sort_by(f64::total_cmp);
        let mut disk = self.engine.disk_use();
        let mut groups = self.engine.group_counts();
        let gathered = self.engine.gather_counts();
        groups.groups += gathered.runs;
        groups.members += gathered.members;
        let operations = latencies.len().max(1) as f64;
        let busy = self.world.names.iter().map(|name| Busy {
            kind: name.kind,
            of: name.of.clone(),
            utilisation: self.engine.utilisation(name.station),
        });
        let mut busy: Vec<Busy> = busy.collect();
        for (number, at) in self.world.disks.iter().enumerate() {
            if let Some(known) = at.known {
                busy.push(Busy {
                    kind: "disk",
                    of: self.world.disk_name(number),
                    utilisation: self.engine.disk_utilisation(known.disk),
                });
            }
            busy.push(Busy {
                kind: "syncs",
                of: self.world.disk_name(number),
                utilisation: self.engine.group_utilisation(at.group),
            });
        }
        for sum in [
            &mut disk.reads,
            &mut disk.writes,
            &mut disk.flushes,
            &mut disk.read_bytes,
            &mut disk.written_bytes,
        ] {
            *sum /= operations;
        }
        Outcome {
            disk,
            throughput: latencies.len() as f64 / seconds,
            busy,
            groups: groups.groups as f64 / operations,
            members: groups.members as f64 / groups.groups.max(1) as f64,
            kept_up,
            copied: self.copied_bytes / seconds,
            latencies,
            by_operation,
        }
    }

    fn begin(&mut self, worker: u64) {
        let mix = self.workload.mix();
        let drawn = self.dice.weighted(mix.iter().map(|(_, share)| *share));
        let operation = mix[drawn].0;
        let size = self.size();
        self.world.now = self.engine.now();
        let steps = self
            .world
            .operation(worker, operation, size, &mut self.dice);
        let token = self.next_token;
        self.next_token += 1;
        self.began
            .insert(token, (self.engine.now(), operation, worker));
        self.engine.start(steps, token);
    }

    fn size(&mut self) -> f64 {
        let drawn = self.dice.weighted(self.classes.iter().map(|c| c.share));
        self.classes[drawn].bytes.0
    }

    fn arrive(&mut self) {
        // Whichever worker is idle.
        self.begin(self.next_token);
        let mean = 1.0 / self.workload.rate.unwrap_or(1.0);
        let seconds = self.dice.exponential(mean);
        self.engine.set_alarm(seconds, ARRIVAL);
    }

    /// Starts a burst of other programs' work on a host, and schedules the next.
    fn others(&mut self, token: u64) {
        let host = (token - OTHERS_NEXT) as usize;
        let station = self.world.hosts[host].processor;
        let seconds = OTHERS_SECONDS;
        self.engine
            .start(vec![Step::Serve { station, seconds }], OTHERS_TOKENS);
        let busy = self.options.others.min(0.95) * self.world.cores(host);
        let until = self.dice.exponential(seconds / busy);
        self.engine.set_alarm(until, token);
    }

    fn copy(&mut self) {
        let copies = &self.options.copies;
        if copies.is_empty() {
            return;
        }
        let (source, target) = copies[self.next_copy % copies.len()];
        let size = self.size();
        let steps = self.world.copy(source, target, size, &mut self.dice);
        self.engine
            .start(steps, COPY_TOKENS + self.next_copy as u64);
        self.next_copy += 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibration::tests::example;
    use crate::cluster::tests::HOST;
    use crate::workload::tests::SMALL;

    fn outcome(change: impl FnOnce(&mut Cluster, &mut Workload, &mut Options)) -> Outcome {
        let mut cluster = Cluster::parse(HOST).unwrap();
        let mut workload = Workload::parse(SMALL).unwrap();
        let mut options = Options {
            operations: 4000,
            warm_up: 500,
            ..Options::default()
        };
        change(&mut cluster, &mut workload, &mut options);
        let placement = Placement::new(&cluster).unwrap();
        run(&cluster, &workload, &example(), &placement, &options).unwrap()
    }

    #[test]
    fn a_seed_repeats_itself_and_another_is_near() {
        let one = outcome(|_, _, _| ());
        assert_eq!(one, outcome(|_, _, _| ()));
        let other = outcome(|_, _, options| options.seed = 9);
        assert_ne!(one, other);
        assert!((one.throughput / other.throughput - 1.0).abs() < 0.05);
        assert_eq!(one.latencies.len(), 4000);
        assert_eq!(one.by_operation.len(), 2);
    }

    /// Little's law for the closed loop: workers = throughput times mean latency.
    #[test]
    fn workers_are_throughput_times_latency() {
        for workers in [1, 16, 64] {
            let it = outcome(|_, workload, _| workload.workers = Some(workers));
            let little = it.throughput * it.mean();
            assert!((little / f64::from(workers) - 1.0).abs() < 0.02, "{little}");
        }
    }

    /// Syncs per write decrease as more writers share them.
    #[test]
    fn groups_grow_with_the_load() {
        let writes = |workers| {
            outcome(|_, workload, _| {
                (workload.read, workload.write) = (0.0, 1.0);
                workload.workers = Some(workers);
            })
        };
        let (one, many) = (writes(1), writes(32));
        assert!(
            one.members < 3.1 && many.members > 6.0,
            "{} {}",
            one.members,
            many.members
        );
        assert!(
            one.groups > 2.0 * many.groups,
            "{} {}",
            one.groups,
            many.groups
        );
        assert!(many.throughput > 3.0 * one.throughput);
    }

    #[test]
    fn an_open_loop_keeps_up_or_says_that_it_does_not() {
        let easy = outcome(|_, workload, _| {
            (workload.workers, workload.rate) = (None, Some(200.0));
        });
        assert!(easy.kept_up && (easy.throughput / 200.0 - 1.0).abs() < 0.05);
        let hard = outcome(|_, workload, options| {
            (workload.workers, workload.rate) = (None, Some(50_000.0));
            options.operations = 100_000;
        });
        assert!(!hard.kept_up && hard.throughput < 10_000.0);
        assert_eq!(hard.busiest().map(|b| b.kind), Some("processors"));
    }

    #[test]
    fn others_take_their_part_of_the_processors() {
        let busy = |others| {
            let it = outcome(|_, workload, options| {
                (workload.workers, workload.rate) = (None, Some(300.0));
                options.others = others;
            });
            it.busy[0].utilisation
        };
        let (alone, beside) = (busy(0.0), busy(0.4));
        assert!((beside - alone - 0.4).abs() < 0.03, "{alone} {beside}");
    }

    #[test]
    fn copies_beside_take_their_time() {
        let alone = outcome(|_, _, _| ());
        let beside = outcome(|_, _, options| {
            options.copies = vec![(0, 1), (2, 3)];
            options.copies_at_once = 4;
        });
        assert!(beside.copied > 0.0 && alone.copied == 0.0);
        assert!(beside.throughput < alone.throughput);
    }
}
