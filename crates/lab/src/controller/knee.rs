//! Search for the knee: repeats a stage with more and more workers until more do not help.

use std::collections::BTreeMap;

use super::{Conductor, RunError};
use crate::latencies::Latencies;
use crate::plan::{Knee, Stage};
use crate::record::{StageResult, State};

/// Result of one step.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    workers: u32,
    rate: f64,
    /// The longest p99 of any operation: over all operations together a few slow ones would not
    /// count.
    p99_ns: u64,
    slowest: String,
}

/// The reason to end the search after a step; `None` to continue.
fn verdict(knee: &Knee, best: Option<&Step>, step: &Step) -> Option<String> {
    if let Some(limit) = knee
        .p99_limit
        .filter(|limit| u128::from(step.p99_ns) > limit.as_nanos())
    {
        let (ms, limit) = (step.p99_ns as f64 / 1e6, limit.as_secs_f64() * 1e3);
        return Some(format!(
            "p99 {ms:.1} ms of {} passed the limit of {limit:.1} ms",
            step.slowest
        ));
    }
    let best = best?;
    let gain = step.rate / best.rate.max(f64::MIN_POSITIVE) - 1.0;
    (gain < knee.min_gain).then(|| format!("throughput changed by {:+.1} %", gain * 100.0))
}

fn more(knee: &Knee, workers: u32) -> Option<u32> {
    let next = (f64::from(workers) * knee.factor).round();
    let next = if next >= f64::from(knee.max_workers) {
        knee.max_workers
    } else {
        next as u32
    };
    let next = next.max(workers.saturating_add(1)).min(knee.max_workers);
    (next > workers).then_some(next)
}

fn measured(result: &StageResult, work: usize, workers: u32) -> Step {
    let mut latencies = BTreeMap::<(u32, &str), Latencies>::new();
    let (mut ops, mut seconds) = (0, 0.0);
    if let Some(work) = result.works.get(work) {
        seconds = work.seconds;
        for operation in &work.operations {
            ops += operation.achieved().0;
            let of = (operation.index, operation.name.as_str());
            let of = latencies.entry(of).or_default();
            of.merge(&operation.last_byte);
        }
    }
    let p99 = latencies
        .iter()
        .map(|((_, name), latencies)| (latencies.percentile(99.0), *name));
    let (p99_ns, slowest) = p99.max().unwrap_or_default();
    let rate = if seconds > 0.0 {
        ops as f64 / seconds
    } else {
        0.0
    };
    Step {
        workers,
        rate,
        p99_ns,
        slowest: slowest.to_owned(),
    }
}

impl Conductor<'_> {
    /// Returns the result of the last step; the knee itself is recorded as a note.
    pub(super) fn find_knee(
        &mut self,
        number: u32,
        stage: &Stage,
        work: usize,
    ) -> Result<StageResult, RunError> {
        let Some(knee) = stage.works[work].knee else {
            return self.run_stage(number, stage);
        };
        let mut workers = stage.works[work].workers.max(1);
        let mut best: Option<Step> = None;
        loop {
            let mut step_stage = stage.clone();
            step_stage.name = format!("{}@{workers}", stage.name);
            step_stage
                .swept
                .insert("workers".into(), workers.to_string());
            step_stage.works[work].workers = workers;
            let result = self.run_stage(number, &step_stage)?;
            if result.state != State::Completed {
                return Ok(result);
            }
            let step = measured(&result, work, workers);
            let ended = verdict(&knee, best.as_ref(), &step);
            let within = knee
                .p99_limit
                .is_none_or(|l| u128::from(step.p99_ns) <= l.as_nanos());
            let is_better = |best: &Step| step.rate > best.rate * (1.0 + knee.min_gain);
            if within && best.as_ref().is_none_or(is_better) {
                best = Some(step);
            }
            let next = more(&knee, workers);
            if let (None, Some(more)) = (&ended, next) {
                workers = more;
                continue;
            }
            let why = ended.unwrap_or_else(|| "max_workers was reached".into());
            let note = match best {
                Some(best) => format!(
                    "knee of stage {}: {} workers, {:.1} operations/s, p99 {:.1} ms of {}; with \
                     {workers}: {why}",
                    stage.name,
                    best.workers,
                    best.rate,
                    best.p99_ns as f64 / 1e6,
                    best.slowest
                ),
                None => format!(
                    "stage {} has no knee: with {workers} workers {why}",
                    stage.name
                ),
            };
            self.add_note(note)?;
            return Ok(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ends_where_more_do_not_help() {
        let knee = Knee {
            factor: 2.0,
            max_workers: 20,
            min_gain: 0.05,
            p99_limit: None,
        };
        let step = |workers, rate| Step {
            workers,
            rate,
            p99_ns: 5_000_000,
            slowest: "read".into(),
        };
        assert_eq!(verdict(&knee, None, &step(1, 10.0)), None);
        assert_eq!(verdict(&knee, Some(&step(1, 10.0)), &step(2, 11.0)), None);
        assert!(verdict(&knee, Some(&step(1, 10.0)), &step(2, 10.4)).is_some());
        let limited = Knee {
            p99_limit: Some(Duration::from_millis(4)),
            ..knee
        };
        assert!(verdict(&limited, None, &step(1, 10.0)).is_some());
        assert_eq!(more(&knee, 8), Some(16));
        assert_eq!(more(&knee, 16), Some(20));
        assert_eq!(more(&knee, 20), None);
    }
    /// A few slow writes among many reads are within the p99 of all requests, but not within their
    /// own.
    #[test]
    fn the_limit_is_of_every_operation() {
        use crate::record::{OperationResult, WorkResult};
        let operation = |index, name: &str, count, ns| {
            let mut result = OperationResult {
                index,
                name: name.into(),
                ops: count,
                ..OperationResult::default()
            };
            (0..count).for_each(|_| result.last_byte.record(ns));
            result
        };
        let work = WorkResult {
            seconds: 1.0,
            operations: vec![
                operation(0, "read", 9_990, 1_000_000),
                operation(1, "write", 10, 80_000_000),
            ],
            ..WorkResult::default()
        };
        let result = StageResult {
            works: vec![work],
            ..StageResult::default()
        };
        let step = measured(&result, 0, 8);
        assert_eq!((step.rate, step.slowest.as_str()), (10_000.0, "write"));
        assert!(step.p99_ns > 79_000_000, "{step:?}");
    }
}
