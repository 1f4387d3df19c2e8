//! Merges the drivers' reports of a work into its result, and into samples of its timeline.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::drive::{Snapshot, merge, now};
use crate::latencies::Latencies;
use crate::plan::{Pacing, Steady, Work};
use crate::record::{OperationResult, OperationSample, Phase, Sample, WorkResult};

/// Minimum seconds over which a rate is meaningful.
const RATE_SECONDS_MIN: f64 = 1.5;

/// Collected state of one work in a running stage.
#[derive(Debug)]
pub(super) struct Collector {
    stage: String,
    work: Work,
    began: f64,
    totals: Vec<OperationResult>,
    /// Windows since the last live sample, and since the last sample of the timeline.
    live: Window,
    window: Window,
    phase: Phase,
    /// Progress by driver.
    progress: HashMap<usize, (f64, Option<f64>)>,
    seconds: f64,
    rates: VecDeque<(f64, f64)>,
    steady_after: Option<f64>,
    /// Time of the last report of any driver.
    reported_at: f64,
    /// The last report before the first driver was lost: its time, and the number of successes
    /// until then.
    loss: Option<(f64, u64)>,
}

#[derive(Debug)]
struct Window {
    since: f64,
    results: Vec<OperationResult>,
    drivers: BTreeSet<usize>,
}

impl Window {
    fn new(since: f64) -> Self {
        Self {
            since,
            results: Vec::new(),
            drivers: BTreeSet::new(),
        }
    }
}

impl Collector {
    pub(super) fn new(stage: &str, work: &Work, began: f64) -> Self {
        Self {
            stage: stage.to_owned(),
            work: work.clone(),
            began,
            totals: Vec::new(),
            live: Window::new(began),
            window: Window::new(began),
            phase: Phase::Counted,
            progress: HashMap::new(),
            seconds: 0.0,
            rates: VecDeque::new(),
            steady_after: None,
            reported_at: began,
            loss: None,
        }
    }

    /// Records the loss of a driver of this work.
    pub(super) fn lost_driver(&mut self) {
        let loss = (self.reported_at, self.achieved());
        self.loss.get_or_insert(loss);
    }

    fn achieved(&self) -> u64 {
        self.totals.iter().map(|result| result.achieved().0).sum()
    }

    /// Rates before and after the loss of a driver, if both periods are long enough: drivers report
    /// every second.
    pub(super) fn rates_beside_loss(&self) -> Option<String> {
        let (at, before) = self.loss?;
        let from = self.began + self.work.rampup.as_secs_f64();
        let (first, second) = (at - from, from + self.seconds - at);
        if first < RATE_SECONDS_MIN || second < RATE_SECONDS_MIN {
            return None;
        }
        let words =
            |count: u64, seconds: f64| crate::plot::Unit::PerSecond.words(count as f64 / seconds);
        Some(format!(
            "work {}: {} before that, {} after",
            self.work.name,
            words(before, first),
            words(self.achieved().saturating_sub(before), second)
        ))
    }

    pub(super) fn take(&mut self, driver: usize, snapshot: Snapshot) {
        self.reported_at = now();
        self.phase = snapshot.phase;
        self.progress
            .insert(driver, (snapshot.progress, snapshot.left));
        self.live.drivers.insert(driver);
        merge(&mut self.totals, snapshot.counted.clone());
        merge(&mut self.live.results, snapshot.counted);
        merge(&mut self.totals, ended_of(&snapshot.uncounted));
        merge(&mut self.live.results, snapshot.uncounted);
    }

    /// Records the end of a driver's part.
    pub(super) fn done(&mut self, seconds: f64) {
        self.seconds = self.seconds.max(seconds);
    }

    /// Number of drivers that have reported since the last live sample.
    pub(super) fn reported(&self) -> usize {
        self.live.drivers.len()
    }

    pub(super) fn live_age(&self, now: f64) -> f64 {
        now - self.live.since
    }

    /// The sample since the last call.
    pub(super) fn live_sample(&mut self, now: f64) -> Sample {
        let live = std::mem::replace(&mut self.live, Window::new(now));
        let sample = self.sample(&live, now);
        merge(&mut self.window.results, live.results);
        self.window.drivers.extend(live.drivers);
        sample
    }

    /// The timeline sample of an interval, when it is complete. Call after [`Self::live_sample`].
    pub(super) fn interval_sample(&mut self, now: f64, last: bool) -> Option<Sample> {
        // A tick may come slightly early.
        let due = self.work.interval.as_secs_f64() * 0.95;
        let rest = last && !self.window.results.is_empty();
        if now - self.window.since < due && !rest {
            return None;
        }
        let window = std::mem::replace(&mut self.window, Window::new(now));
        let sample = self.sample(&window, now);
        if sample.phase == Phase::Counted {
            let ops: u64 = sample
                .operations
                .iter()
                .map(|operation| operation.ops)
                .sum();
            self.rates
                .push_back((sample.seconds, ops as f64 / sample.seconds));
        }
        Some(sample)
    }

    fn sample(&self, window: &Window, now: f64) -> Sample {
        let drivers = self.progress.len().max(1) as f64;
        let progress = self
            .progress
            .values()
            .map(|(progress, _)| progress)
            .sum::<f64>()
            / drivers;
        let left = self
            .progress
            .values()
            .filter_map(|(_, left)| *left)
            .reduce(f64::max);
        Sample {
            stage: self.stage.clone(),
            work: self.work.name.clone(),
            at: now,
            seconds: (now - window.since).max(1e-3),
            phase: self.phase,
            progress,
            left,
            drivers: window.drivers.len() as u32,
            operations: operation_samples(&window.results),
        }
    }

    /// Has the rate been steady for as long as the work requires?
    pub(super) fn has_become_steady(&mut self, now: f64) -> bool {
        let Some(steady) = self.work.steady.filter(|_| self.steady_after.is_none()) else {
            return false;
        };
        if !is_steady(&self.rates, &steady) {
            return false;
        }
        self.steady_after = Some(now - self.began);
        true
    }

    pub(super) fn result(self) -> WorkResult {
        let rate = match self.work.pacing {
            Pacing::Open { rate, .. } => Some(rate),
            Pacing::Closed { .. } => None,
        };
        WorkResult {
            name: self.work.name,
            kind: self.work.kind,
            workers: self.work.workers,
            rate,
            seconds: self.seconds,
            operations: self.totals,
            steady_after: self.steady_after,
        }
    }

    /// A message if there are more failures than the work accepts.
    pub(super) fn too_many_failures(&self) -> Option<String> {
        let failed: u64 = self.totals.iter().map(OperationResult::failed).sum();
        let all = failed + self.totals.iter().map(|result| result.ops).sum::<u64>();
        let accepted = u128::from(all) * u128::from(self.work.afr);
        if u128::from(failed) * 1_000_000 <= accepted {
            return None;
        }
        let mut kinds = std::collections::BTreeMap::<String, u64>::new();
        for (kind, count) in self.totals.iter().flat_map(|result| &result.errors) {
            *kinds.entry(kind.to_string()).or_default() += count;
        }
        let kinds: Vec<String> = kinds
            .into_iter()
            .map(|(kind, count)| format!("{kind}: {count}"))
            .collect();
        let percent = f64::from(self.work.afr) / 10_000.0;
        Some(format!(
            "work {}: {failed} of {all} operations failed ({}); {percent} % are accepted",
            self.work.name,
            kinds.join(", ")
        ))
    }
}

/// Open loop requests that were due in the ramp-up and ended within the counted time: they count
/// for the achieved rate only.
fn ended_of(uncounted: &[OperationResult]) -> Vec<OperationResult> {
    uncounted
        .iter()
        .filter(|result| result.ended.is_some_and(|ended| ended > 0))
        .map(|result| OperationResult {
            index: result.index,
            name: result.name.clone(),
            kind: result.kind,
            size_class: result.size_class.clone(),
            ended: result.ended,
            ended_bytes: result.ended_bytes,
            ..OperationResult::default()
        })
        .collect()
}

/// Samples by operation, summed over size classes.
fn operation_samples(results: &[OperationResult]) -> Vec<OperationSample> {
    let mut samples: Vec<(u32, OperationSample, Latencies)> = Vec::new();
    for result in results {
        if samples
            .last()
            .is_none_or(|(index, ..)| *index != result.index)
        {
            let (name, kind) = (result.name.clone(), result.kind);
            let sample = OperationSample {
                name,
                kind,
                size_class: result.named_class().unwrap_or_default().to_owned(),
                ..OperationSample::default()
            };
            samples.push((result.index, sample, Latencies::new()));
        }
        if let Some((_, sample, latencies)) = samples.last_mut() {
            if result.named_class() != Some(sample.size_class.as_str()) {
                sample.size_class.clear();
            }
            sample.ops += result.ops;
            sample.bytes += result.bytes;
            sample.errors += result.failed();
            latencies.merge(&result.last_byte);
        }
    }
    let finish = |(_, mut sample, latencies): (u32, OperationSample, Latencies)| {
        sample.mean_ns = latencies.mean();
        sample.p50_ns = latencies.percentile(50.0);
        sample.p95_ns = latencies.percentile(95.0);
        sample.p99_ns = latencies.percentile(99.0);
        sample.max_ns = latencies.max();
        sample
    };
    samples.into_iter().map(finish).collect()
}

/// Are the rates of the last `window` within the tolerance of their mean? Needs at least two.
fn is_steady(rates: &VecDeque<(f64, f64)>, steady: &Steady) -> bool {
    let window = steady.window.as_secs_f64();
    let mut seconds = 0.0;
    let mut within = Vec::new();
    for (length, rate) in rates.iter().rev() {
        within.push(*rate);
        seconds += length;
        if seconds >= window * 0.99 {
            break;
        }
    }
    if seconds < window * 0.99 || within.len() < 2 {
        return false;
    }
    let mean = within.iter().sum::<f64>() / within.len() as f64;
    mean > 0.0
        && within
            .iter()
            .all(|rate| (rate - mean).abs() <= steady.tolerance * mean)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn operations_of_one_name_are_told_apart_by_class() {
        let result = |index, class: &str| OperationResult {
            index,
            name: "read".into(),
            size_class: class.into(),
            ops: 1,
            ..OperationResult::default()
        };
        let results = [
            result(0, "tiny"),
            result(1, "huge"),
            result(2, "<1KB"),
            result(2, "<10KB"),
        ];
        let titles: Vec<String> = operation_samples(&results)
            .iter()
            .map(OperationSample::title)
            .collect();
        assert_eq!(titles, ["read tiny", "read huge", "read"]);
    }

    #[test]
    fn steady_needs_a_whole_window() {
        let steady = Steady {
            window: Duration::from_secs(3),
            tolerance: 0.05,
        };
        let rates = |values: &[f64]| values.iter().map(|rate| (1.0, *rate)).collect();
        assert!(!is_steady(&rates(&[100.0, 100.0]), &steady));
        assert!(is_steady(&rates(&[10.0, 100.0, 102.0, 99.0]), &steady));
        assert!(!is_steady(&rates(&[100.0, 120.0, 100.0]), &steady));
        assert!(!is_steady(&rates(&[0.0, 0.0, 0.0]), &steady));
    }
}
