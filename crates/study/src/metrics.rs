//! Conversion of a run's records and the hardware's counters into a cell's figures, in emulated
//! time.

use std::collections::BTreeMap;

use cairn_emulate::disk::DiskCounts;
use cairn_emulate::world::Counts;
use cairn_lab::latencies::Latencies;
use cairn_lab::record::StageResult;

use crate::cell::{DiskOutcome, Fidelity, OperationOutcome, StageOutcome};

const PERCENTILES: [(&str, f64); 6] = [
    ("50", 50.0),
    ("90", 90.0),
    ("95", 95.0),
    ("99", 99.0),
    ("99.9", 99.9),
    ("100", 100.0),
];
/// Minimum number of replies for a meaningful lateness.
const ANSWERS_MIN: u64 = 100;

/// Counters at the beginning and at the end of a stage.
pub struct Reading {
    before: Counts,
    after: Counts,
    spent_before: Spent,
    spent_after: Spent,
}

/// Sums over processes at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Time that threads of the store and of the load waited for a CPU.
    pub waited_ns: u64,
    /// CPU time that the store used.
    pub store_ns: u64,
}

impl Reading {
    pub fn begun(before: Counts, spent: Spent) -> Reading {
        Reading {
            after: before.clone(),
            before,
            spent_before: spent,
            spent_after: spent,
        }
    }

    pub fn end(&mut self, after: Counts, spent: Spent) {
        self.after = after;
        self.spent_after = spent;
    }

    /// CPU seconds that the store used.
    fn store_s(&self) -> f64 {
        let used = self.spent_after.store_ns;
        used.saturating_sub(self.spent_before.store_ns) as f64 / 1e9
    }

    /// Each disk's counters during the stage.
    fn disks(&self) -> impl Iterator<Item = (&str, DiskCounts)> {
        let nothing = DiskCounts::default();
        self.after.disks.iter().map(move |(name, after)| {
            let before = self.before.disks.get(name).unwrap_or(&nothing);
            (name.as_str(), after.since(before))
        })
    }
}

/// Figures of a stage.
pub fn stage(result: &StageResult, reading: Option<&Reading>, dilation: f64) -> StageOutcome {
    let real_s = result.works.iter().map(|w| w.seconds).fold(0.0, f64::max);
    let operations = result.works.iter().flat_map(|work| {
        let mut by_name: BTreeMap<&str, Sums> = BTreeMap::new();
        for operation in &work.operations {
            let sums = by_name.entry(&operation.name).or_default();
            let (done, bytes) = operation.achieved();
            sums.done += done;
            sums.bytes += bytes;
            sums.failed += operation.failed();
            sums.latency.merge(&operation.last_byte);
            for (kind, count) in &operation.errors {
                *sums.errors.entry(kind.to_string()).or_default() += count;
            }
        }
        let outcome = |(name, sums): (&str, Sums)| sums.outcome(name, work.seconds, dilation);
        by_name.into_iter().map(outcome).collect::<Vec<_>>()
    });
    StageOutcome {
        name: result.name.clone(),
        seconds: real_s / dilation,
        workers: result.works.iter().map(|w| w.workers).sum(),
        swept: result.swept.clone(),
        operations: operations.collect(),
        store_cores: reading.map_or(0.0, |r| r.store_s() * dilation)
            / (result.ended - result.started).max(1e-9),
        disks: reading
            .map(|r| disks(r, result, dilation))
            .unwrap_or_default(),
    }
}

#[derive(Default)]
struct Sums {
    done: u64,
    bytes: u64,
    failed: u64,
    latency: Latencies,
    errors: BTreeMap<String, u64>,
}

impl Sums {
    fn outcome(self, name: &str, real_s: f64, dilation: f64) -> OperationOutcome {
        let seconds = (real_s / dilation).max(1e-9);
        let ms = |ns: f64| ns / 1e6 / dilation;
        let percentile = |(words, percent): &(&str, f64)| {
            let value = ms(self.latency.percentile(*percent) as f64);
            ((*words).to_owned(), value)
        };
        OperationOutcome {
            name: name.to_owned(),
            done: self.done,
            failed: self.failed,
            per_s: self.done as f64 / seconds,
            mb_per_s: self.bytes as f64 / 1e6 / seconds,
            mean_ms: ms(self.latency.mean()),
            percentiles_ms: match self.latency.is_empty() {
                true => BTreeMap::new(),
                false => PERCENTILES.iter().map(percentile).collect(),
            },
            errors: self.errors,
        }
    }
}

/// Disks grouped by the part of their name after the node's: `d1` and `d2` are of one kind, `db` of
/// another.
fn disks(reading: &Reading, result: &StageResult, dilation: f64) -> BTreeMap<String, DiskOutcome> {
    // The counters cover the whole stage, including ramps and the wait for its last request.
    let real_s = (result.ended - result.started).max(1e-9);
    let seconds = real_s / dilation;
    let mut sums: BTreeMap<String, (u32, DiskCounts)> = BTreeMap::new();
    for (name, counts) in reading.disks() {
        let sum = sums.entry(kind(name).to_owned()).or_default();
        sum.0 += 1;
        sum.1.add(&counts);
    }
    let outcome = |(kind, (devices, counts)): (String, (u32, DiskCounts))| {
        let distances = counts.distances.total().max(1) as f64;
        let outcome = DiskOutcome {
            devices,
            reads_per_s: counts.reads as f64 / seconds,
            writes_per_s: counts.writes as f64 / seconds,
            flushes_per_s: counts.flushes as f64 / seconds,
            read_mb_per_s: counts.read_bytes as f64 / 1e6 / seconds,
            written_mb_per_s: counts.written_bytes as f64 / 1e6 / seconds,
            busy: counts.busy_ns as f64 / 1e9 / real_s / f64::from(devices.max(1)),
            beyond_125k: counts.distances.beyond_125k as f64 / distances,
            beyond_2500k: counts.distances.beyond_2500k as f64 / distances,
            distances: counts.distances.counts,
        };
        (kind, outcome)
    };
    sums.into_iter().map(outcome).collect()
}

/// A device's name without its node's name and its number.
fn kind(device: &str) -> &str {
    match device.rsplit_once('-') {
        Some((_, name)) => name.trim_end_matches(|c: char| c.is_ascii_digit()),
        None => "d",
    }
}

/// Lateness of the hardware while stages were measured, and time that threads waited for a CPU.
pub fn fidelity<'a>(readings: impl Iterator<Item = &'a Reading>, request_ns: f64) -> Fidelity {
    let mut by_device: BTreeMap<String, DiskCounts> = BTreeMap::new();
    let mut network = cairn_emulate::lateness::Lateness::default();
    let (mut dropped, mut waited) = (0, 0);
    for reading in readings {
        for (name, counts) in reading.disks() {
            by_device.entry(name.to_owned()).or_default().add(&counts);
        }
        let (before, after) = (&reading.before.network, &reading.after.network);
        network.add(&after.lateness.since(&before.lateness));
        dropped += after.dropped.saturating_sub(before.dropped);
        waited += reading
            .spent_after
            .waited_ns
            .saturating_sub(reading.spent_before.waited_ns);
    }
    let mut all = cairn_emulate::lateness::Lateness::default();
    by_device
        .values()
        .for_each(|counts| all.add(&counts.lateness));
    let enough = |counts: &DiskCounts| counts.lateness.answers >= ANSWERS_MIN;
    let of_device = by_device.iter().filter(|(_, counts)| enough(counts));
    Fidelity {
        device_lateness: of_device
            .map(|(name, counts)| (name.clone(), counts.lateness.share()))
            .collect(),
        lateness: all.share(),
        network_lateness: network.share(),
        network_dropped: dropped,
        cpu_wait: match request_ns > 0.0 {
            true => waited as f64 / request_ns,
            false => 0.0,
        },
        ..Fidelity::default()
    }
}

/// All values under flat names: `STAGE.per_s`, `STAGE.OPERATION.p99_ms`, `STAGE.disk.KIND.busy`. A
/// stage's own rate, bandwidth and failures are sums over its operations; its latencies exist only
/// if it has a single operation.
pub fn flat(stages: &[StageOutcome], fidelity: &Fidelity) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    for stage in stages {
        let name = &stage.name;
        let sum =
            |of: &dyn Fn(&OperationOutcome) -> f64| stage.operations.iter().map(of).sum::<f64>();
        metrics.insert(format!("{name}.per_s"), sum(&|o| o.per_s));
        metrics.insert(format!("{name}.mb_per_s"), sum(&|o| o.mb_per_s));
        metrics.insert(format!("{name}.failed"), sum(&|o| o.failed as f64));
        metrics.insert(format!("{name}.seconds"), stage.seconds);
        for operation in &stage.operations {
            let mut prefixes = vec![format!("{name}.{}", operation.name)];
            if stage.operations.len() == 1 {
                prefixes.push(name.clone());
            }
            for prefix in prefixes {
                metrics.insert(format!("{prefix}.per_s"), operation.per_s);
                metrics.insert(format!("{prefix}.mb_per_s"), operation.mb_per_s);
                metrics.insert(format!("{prefix}.failed"), operation.failed as f64);
                metrics.insert(format!("{prefix}.mean_ms"), operation.mean_ms);
                for (percent, ms) in &operation.percentiles_ms {
                    metrics.insert(format!("{prefix}.p{percent}_ms"), *ms);
                }
            }
        }
        for (kind, disk) in &stage.disks {
            let prefix = format!("{name}.disk.{kind}");
            metrics.insert(format!("{prefix}.reads_per_s"), disk.reads_per_s);
            metrics.insert(format!("{prefix}.writes_per_s"), disk.writes_per_s);
            metrics.insert(format!("{prefix}.flushes_per_s"), disk.flushes_per_s);
            metrics.insert(format!("{prefix}.busy"), disk.busy);
            metrics.insert(format!("{prefix}.beyond_125k"), disk.beyond_125k);
            metrics.insert(format!("{prefix}.beyond_2500k"), disk.beyond_2500k);
        }
    }
    metrics.insert("lateness".to_owned(), fidelity.lateness);
    metrics.insert("cpu_wait".to_owned(), fidelity.cpu_wait);
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_a_kind_are_told_by_their_names() {
        assert_eq!(kind("s1-db"), "db");
        assert_eq!(kind("s1-data2"), "data");
        assert_eq!(kind("s-1-data12"), "data");
        assert_eq!(kind("n1d2"), "d");
    }

    #[test]
    fn figures_are_of_emulated_time() {
        let mut latency = Latencies::new();
        latency.record(20_000_000);
        let sums = Sums {
            done: 10,
            bytes: 10_000_000,
            latency,
            ..Sums::default()
        };
        let outcome = sums.outcome("write", 10.0, 2.0);
        assert_eq!((outcome.per_s, outcome.mb_per_s), (2.0, 2.0));
        assert!((outcome.mean_ms - 10.0).abs() < 0.1);
    }
}
