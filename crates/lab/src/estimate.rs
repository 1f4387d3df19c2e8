//! Estimate of a plan before it is run: numbers of operations and bytes as far as the plan
//! determines them, and the minimum duration. Quantities that depend on the store (the rate of a
//! work with a fixed time, the time of one without) are described as such, with an example.

use std::time::Duration;

use crate::drive::special_totals;
use crate::plan::{Operation, OperationKind, Pacing, Plan, Stage, Work, WorkKind};
use crate::plot::Unit;
use crate::selector::Selector;

/// Parameters of the example store for works without a fixed time: time of one operation of a
/// worker, and bandwidth of all together.
const EXAMPLE_OPERATION: Duration = Duration::from_millis(5);
const EXAMPLE_BYTES_PER_SECOND: f64 = 100e6;

/// A work's estimate, over all drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Time set by the plan; `None`: depends on the store.
    pub seconds: Option<f64>,
    /// Number of operations; `None`: depends on the store.
    pub operations: Option<u64>,
    /// Bytes written by those operations; random sizes count with their mean.
    pub written: Option<f64>,
}

pub fn of_work(work: &Work) -> Estimate {
    let set = work
        .runtime
        .map(|runtime| work.rampup + runtime + work.rampdown);
    let is_special = !matches!(work.kind, WorkKind::Main | WorkKind::Delay);
    let totals = if is_special {
        special_totals(work)
    } else {
        Vec::new()
    };
    let operations = match is_special {
        true => Some(totals.iter().copied().fold(0, u64::saturating_add)),
        false => main_operations(work, set),
    };
    let written = match is_special {
        true => {
            let parts = work.operations.iter().zip(&totals);
            Some(parts.map(|(o, count)| written_by(o) * *count as f64).sum())
        }
        false => operations.map(|total| {
            let parts = work.operations.iter();
            let mean: f64 = parts.map(|o| share_of(work, o) * written_by(o)).sum();
            mean * total as f64
        }),
    };
    Estimate {
        seconds: set.map(|set| set.as_secs_f64()),
        // Emptying a pool performs as many operations as it has objects.
        operations: operations.filter(|count| *count < u64::MAX),
        written: written.filter(|bytes: &f64| bytes.is_finite() && *bytes < u64::MAX as f64),
    }
}

/// Operations of a main work: its total, or those that an open loop has due within the set time. A
/// search for the knee has other rates, and a work that ends when it is steady another time.
fn main_operations(work: &Work, set: Option<Duration>) -> Option<u64> {
    let is_set = work.knee.is_none() && work.steady.is_none() && work.total_bytes.is_none();
    let rate = match work.pacing {
        Pacing::Open { rate, .. } if is_set => Some(rate),
        _ => None,
    };
    let due = rate
        .zip(set)
        .map(|(rate, set)| (rate * set.as_secs_f64()) as u64);
    match (work.total_ops, due) {
        (Some(total), Some(due)) => Some(total.min(due)),
        (total, due) => total.or(due),
    }
}

/// The fraction of a work's operations that `operation` has; ratios may have any sum.
pub fn share_of(work: &Work, operation: &Operation) -> f64 {
    let sum: f64 = work.operations.iter().map(|o| o.ratio).sum();
    if sum > 0.0 {
        operation.ratio / sum
    } else {
        0.0
    }
}

/// Mean bytes written by one operation; 0 if it writes none.
fn written_by(operation: &Operation) -> f64 {
    let writes = matches!(
        operation.kind,
        OperationKind::Write | OperationKind::Update | OperationKind::Prepare
    );
    match &operation.sizes {
        Some(sizes) if writes => sizes.mean(),
        _ => 0.0,
    }
}

/// Formats sizes: `64 kB`, `1 kB to 16 kB (mean 8.5 kB)`.
pub fn size_words(sizes: &Selector) -> String {
    let words = |bytes: f64| Unit::Bytes.words(bytes);
    let (low, high) = sizes.bounds();
    if low == high {
        return words(low as f64);
    }
    format!(
        "{} to {} (mean {})",
        words(low as f64),
        words(high as f64),
        words(sizes.mean())
    )
}

/// Describes the operations and bytes of a stage's works, as far as known.
pub fn stage_words(stage: &Stage) -> String {
    let mut words = Vec::new();
    for work in &stage.works {
        let estimate = of_work(work);
        if let Some(count) = estimate.operations.filter(|count| *count > 0) {
            words.push(format!("{} operations", Unit::Plain.words(count as f64)));
        }
        if let Some(bytes) = estimate.written.filter(|bytes| *bytes > 0.0) {
            words.push(format!("{} written", Unit::Bytes.words(bytes)));
        }
    }
    words.join(", ")
}

/// Describes the whole plan: fixed time, known bytes, and the duration of the rest on the example
/// store.
pub fn plan_words(plan: &Plan) -> Vec<String> {
    let (mut set, mut written, mut example) = (0.0, 0.0, 0.0);
    let (mut open, mut by_time) = (0u32, 0u32);
    let mut is_unknown = false;
    for stage in &plan.stages {
        let (mut longest, mut slowest) = (0.0_f64, 0.0_f64);
        for work in &stage.works {
            let estimate = of_work(work);
            written += estimate.written.unwrap_or(0.0);
            match (estimate.seconds, estimate.operations) {
                (Some(seconds), None) => {
                    by_time += u32::from(work.kind == WorkKind::Main);
                    longest = longest.max(seconds);
                }
                (Some(seconds), Some(_)) => longest = longest.max(seconds),
                (None, Some(count)) => {
                    let workers = f64::from(work.workers.max(1));
                    let waits = count as f64 * EXAMPLE_OPERATION.as_secs_f64() / workers;
                    let bytes = estimate.written.unwrap_or(0.0) / EXAMPLE_BYTES_PER_SECOND;
                    slowest = slowest.max(waits.max(bytes));
                    open += 1;
                }
                (None, None) => {
                    is_unknown = true;
                    open += 1;
                }
            }
        }
        set += longest + stage.close_delay.as_secs_f64();
        example += slowest;
    }
    let time = |seconds: f64| crate::results::duration(seconds);
    let mut words = vec![format!("set times: {}", time(set))];
    if open > 0 {
        let example = match is_unknown {
            true => "how long cannot be told before".to_owned(),
            false => format!(
                "about {} if an operation takes {} ms and the store moves {} in all",
                time(example),
                EXAMPLE_OPERATION.as_millis(),
                Unit::BytesPerSecond.words(EXAMPLE_BYTES_PER_SECOND)
            ),
        };
        let works = if open == 1 { "work ends" } else { "works end" };
        words.push(format!("{open} {works} when all is done: {example}"));
    }
    if written > 0.0 {
        words.push(format!(
            "writes {} that are known before",
            Unit::Bytes.words(written)
        ));
    }
    if by_time > 0 {
        let works = if by_time == 1 {
            "work runs"
        } else {
            "works run"
        };
        words.push(format!(
            "{by_time} {works} for a set time: operations and bytes are the store's"
        ));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Arrivals;
    use crate::workload::{Options, read};

    fn plan(text: &str) -> Plan {
        read("w.xml", text.as_bytes(), &Options::default())
            .unwrap()
            .plan
    }

    #[test]
    fn counts_bytes_and_time_follow_from_the_plan() {
        let plan = plan(
            r#"<workload name="w"><workflow>
               <workstage name="prepare"><work type="prepare" workers="4"
                 config="containers=r(1,2);objects=r(1,50);sizes=u(1,3)MB"/></workstage>
               <workstage name="main"><work name="main" workers="8" rampup="5" runtime="30">
                 <operation type="read" ratio="80" config="containers=u(1,2);objects=u(1,50)"/>
                 <operation type="write" ratio="20"
                   config="containers=u(1,2);objects=u(51,99);sizes=c(64)KB"/>
               </work></workstage>
               <workstage name="count"><work name="main" workers="8" totalOps="1000">
                 <operation type="write" ratio="100"
                   config="containers=u(1,2);objects=u(51,99);sizes=c(64)KB"/>
               </work></workstage>
               </workflow></workload>"#,
        );
        let of = |stage: usize| of_work(&plan.stages[stage].works[0]);
        assert_eq!((of(0).operations, of(0).written), (Some(100), Some(200e6)));
        assert_eq!((of(1).seconds, of(1).operations), (Some(35.0), None));
        assert_eq!((of(2).operations, of(2).written), (Some(1000), Some(64e6)));
        assert_eq!(
            stage_words(&plan.stages[0]),
            "100 operations, 200 MB written"
        );
        let words = plan_words(&plan).join("; ");
        for part in [
            "set times: 35 s",
            "2 works end when all is done: about 3 s if",
            "writes 264 MB",
            "1 work runs for a set time",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        // An open loop's operations are those that are due, whatever the store does.
        let mut open = plan.stages[1].works[0].clone();
        open.pacing = Pacing::Open {
            rate: 100.0,
            arrivals: Arrivals::Constant,
        };
        let estimate = of_work(&open);
        let expected = (Some(35.0), Some(3500), Some(3500.0 * 0.2 * 64e3));
        let found = (estimate.seconds, estimate.operations, estimate.written);
        assert_eq!(found, expected);
        open.total_ops = Some(10);
        assert_eq!(of_work(&open).operations, Some(10));
        let sizes = plan.stages[0].works[0].operations[0].sizes.as_ref();
        assert_eq!(size_words(sizes.unwrap()), "1 MB to 3 MB (mean 2 MB)");
    }
}
