//! Search for the knee: repeats a stage with more and more workers until more do not help, or with a
//! higher and higher rate until the store cannot keep up.

use std::collections::BTreeMap;

use super::{Conductor, RunError};
use crate::latencies::Latencies;
use crate::plan::{Knee, Pacing, Stage, Work};
use crate::record::{StageResult, State, WorkResult};

/// Load of one step: workers of a closed loop, or operations per second of an open one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Level {
    Workers(u32),
    Rate(f64),
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workers(workers) => write!(f, "{workers} workers"),
            Self::Rate(rate) => write!(f, "{rate}/s"),
        }
    }
}

impl Level {
    fn first(work: &Work, knee: &Knee) -> Self {
        match (work.pacing, knee.max_rate) {
            (Pacing::Open { rate, .. }, Some(most)) => Self::Rate(rate.min(most)),
            _ => Self::Workers(work.workers.max(1)),
        }
    }

    /// The next step's; `None` if this is the last.
    fn more(self, knee: &Knee) -> Option<Self> {
        match (self, knee.max_rate) {
            (Self::Workers(workers), _) => more(knee, workers).map(Self::Workers),
            (Self::Rate(rate), Some(most)) if rate < most => {
                // Four digits are enough, and names of stages stay short.
                let next = rate * knee.factor;
                let unit = 10_f64.powf(next.log10().floor() - 3.0);
                let next = (next / unit).round() * unit;
                let next = (next * 1e6).round() / 1e6;
                Some(Self::Rate(next.max(rate).min(most)))
            }
            (Self::Rate(_), _) => None,
        }
    }

    fn apply(self, stage: &mut Stage, work: usize) {
        let (name, value) = match self {
            Self::Workers(workers) => {
                stage.works[work].workers = workers;
                (
                    format!("{}@{workers}", stage.name),
                    ("workers", workers.to_string()),
                )
            }
            Self::Rate(offered) => {
                if let Pacing::Open { rate, .. } = &mut stage.works[work].pacing {
                    *rate = offered;
                }
                (
                    format!("{}@rate-{offered}", stage.name),
                    ("rate", offered.to_string()),
                )
            }
        };
        stage.name = name;
        stage.swept.insert(value.0.into(), value.1);
    }
}

/// Result of one step.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    level: Level,
    /// Words about an open loop's rate that the store could not keep up with.
    overload: Option<String>,
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
    if let Some(overload) = &step.overload {
        return Some(overload.clone());
    }
    // An open loop's throughput is what is asked for.
    let best = best.filter(|_| matches!(step.level, Level::Workers(_)))?;
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

fn measured(result: &StageResult, work: usize, level: Level) -> Step {
    let open = result.works.get(work).and_then(WorkResult::open_loop);
    let open = open.filter(|open| open.overloaded && matches!(level, Level::Rate(_)));
    let overload = open.map(|open| crate::results::open_loop_words(&open));
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
        level,
        overload,
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
        let mut level = Level::first(&stage.works[work], &knee);
        let mut best: Option<Step> = None;
        loop {
            let mut step_stage = stage.clone();
            level.apply(&mut step_stage, work);
            let result = self.run_stage(number, &step_stage)?;
            if result.state != State::Completed {
                return Ok(result);
            }
            let step = measured(&result, work, level);
            let ended = verdict(&knee, best.as_ref(), &step);
            let within = knee
                .p99_limit
                .is_none_or(|l| u128::from(step.p99_ns) <= l.as_nanos());
            let is_better = |best: &Step| match level {
                Level::Workers(_) => step.rate > best.rate * (1.0 + knee.min_gain),
                Level::Rate(_) => true,
            };
            let keeps_up = step.overload.is_none();
            if within && keeps_up && best.as_ref().is_none_or(is_better) {
                best = Some(step);
            }
            let next = level.more(&knee);
            if let (None, Some(more)) = (&ended, next) {
                level = more;
                continue;
            }
            let why = ended.unwrap_or_else(|| match level {
                Level::Workers(_) => "max_workers was reached".into(),
                Level::Rate(_) => "max_rate was reached".into(),
            });
            let note = match best {
                Some(best) => format!(
                    "knee of stage {}: {}, {:.1} operations/s, p99 {:.1} ms of {}; with {level}: \
                     {why}",
                    stage.name,
                    best.level,
                    best.rate,
                    best.p99_ns as f64 / 1e6,
                    best.slowest
                ),
                None => format!("stage {} has no knee: with {level} {why}", stage.name),
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
            max_rate: None,
        };
        let step = |workers, rate| Step {
            level: Level::Workers(workers),
            overload: None,
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

    #[test]
    fn rates_rise_until_the_store_cannot_keep_up() {
        let knee = Knee {
            factor: 1.5,
            max_workers: 1,
            min_gain: 0.05,
            p99_limit: None,
            max_rate: Some(400.0),
        };
        let work = Work {
            pacing: Pacing::Open {
                rate: 123.4,
                arrivals: crate::plan::Arrivals::Constant,
            },
            ..Work::default()
        };
        let mut level = Some(Level::first(&work, &knee));
        let mut levels = Vec::new();
        while let Some(now) = level {
            levels.push(now.to_string());
            level = now.more(&knee);
        }
        assert_eq!(levels, ["123.4/s", "185.1/s", "277.6/s", "400/s"]);
        let step = |overload: Option<&str>| Step {
            level: Level::Rate(185.1),
            overload: overload.map(str::to_owned),
            rate: 100.0,
            p99_ns: 0,
            slowest: "read".into(),
        };
        assert_eq!(verdict(&knee, Some(&step(None)), &step(None)), None);
        let why = verdict(&knee, Some(&step(None)), &step(Some("could not keep up")));
        assert_eq!(why.as_deref(), Some("could not keep up"));
        let mut stage = Stage {
            name: "s".into(),
            works: vec![work],
            ..Stage::default()
        };
        Level::Rate(185.1).apply(&mut stage, 0);
        assert_eq!(
            (stage.name.as_str(), stage.swept["rate"].as_str()),
            ("s@rate-185.1", "185.1")
        );
        assert!(matches!(
            stage.works[0].pacing,
            Pacing::Open { rate: 185.1, .. }
        ));
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
        let step = measured(&result, 0, Level::Workers(8));
        assert_eq!((step.rate, step.slowest.as_str()), (10_000.0, "write"));
        assert!(step.p99_ns > 79_000_000, "{step:?}");
    }
}
