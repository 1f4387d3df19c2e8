//! Finds where more workers do not help: a stage is run again and again with more of them.

use super::{Conductor, RunError};
use crate::latencies::Latencies;
use crate::plan::{Knee, Stage};
use crate::record::{StageResult, State};

/// What one step gave.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    workers: u32,
    rate: f64,
    p99_ns: u64,
}

/// Why the search ends after a step.
fn verdict(knee: &Knee, best: Option<Step>, step: Step) -> Option<String> {
    if let Some(limit) = knee
        .p99_limit
        .filter(|limit| u128::from(step.p99_ns) > limit.as_nanos())
    {
        let (ms, limit) = (step.p99_ns as f64 / 1e6, limit.as_secs_f64() * 1e3);
        return Some(format!("p99 {ms:.1} ms passed the limit of {limit:.1} ms"));
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
    let mut latencies = Latencies::new();
    let (mut ops, mut seconds) = (0, 0.0);
    if let Some(work) = result.works.get(work) {
        seconds = work.seconds;
        for operation in &work.operations {
            ops += operation.achieved().0;
            latencies.merge(&operation.last_byte);
        }
    }
    let rate = if seconds > 0.0 {
        ops as f64 / seconds
    } else {
        0.0
    };
    Step {
        workers,
        rate,
        p99_ns: latencies.percentile(99.0),
    }
}

impl Conductor<'_> {
    /// The result of the last step; the knee itself is a note.
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
            let ended = verdict(&knee, best, step);
            let within = knee
                .p99_limit
                .is_none_or(|l| u128::from(step.p99_ns) <= l.as_nanos());
            if within && best.is_none_or(|best| step.rate > best.rate * (1.0 + knee.min_gain)) {
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
                    "knee of stage {}: {} workers, {:.1} operations/s, p99 {:.1} ms; with \
                     {workers}: {why}",
                    stage.name,
                    best.workers,
                    best.rate,
                    best.p99_ns as f64 / 1e6
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
        };
        assert_eq!(verdict(&knee, None, step(1, 10.0)), None);
        assert_eq!(verdict(&knee, Some(step(1, 10.0)), step(2, 11.0)), None);
        assert!(verdict(&knee, Some(step(1, 10.0)), step(2, 10.4)).is_some());
        let limited = Knee {
            p99_limit: Some(Duration::from_millis(4)),
            ..knee
        };
        assert!(verdict(&limited, None, step(1, 10.0)).is_some());
        assert_eq!(more(&knee, 8), Some(16));
        assert_eq!(more(&knee, 16), Some(20));
        assert_eq!(more(&knee, 20), None);
    }
}
