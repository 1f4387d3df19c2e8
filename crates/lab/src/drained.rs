//! Works that ended before their time, or before their number of operations, because their pools had
//! nothing left to draw. What was asked for was not measured to its end, and rates are of less time.

use crate::plan::{Objects, Work, WorkKind};
use crate::record::WorkResult;

/// Part of the runtime that a work must have measured.
const PART_MIN: f64 = 0.95;

/// A note that a work had nothing left to draw. `None` if it did what it was asked to.
pub fn words(work: &Work, result: &WorkResult) -> Option<String> {
    let pools = work
        .operations
        .iter()
        .filter_map(|operation| match &operation.objects {
            Objects::Pool { pool, .. } => Some(pool.as_str()),
            Objects::Numbered(_) => None,
        });
    let mut pools: Vec<&str> = pools.collect();
    pools.dedup();
    if work.kind != WorkKind::Main || pools.is_empty() {
        return None;
    }
    let requests: u64 = result.operations.iter().map(|o| o.ops + o.failed()).sum();
    let ended = match (work.runtime, work.total_ops, work.total_bytes) {
        (None, Some(total), None) if requests < total => {
            format!("ended after {requests} of {total} operations")
        }
        (Some(runtime), None, None)
            if work.steady.is_none() && result.seconds < PART_MIN * runtime.as_secs_f64() =>
        {
            let seconds = result.seconds;
            format!("ended after {seconds:.1} of {:.1} s", runtime.as_secs_f64())
        }
        _ => return None,
    };
    Some(format!(
        "{ended}: nothing was left in the pool {}; prepare more objects, or write to it too",
        pools.join(", ")
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Draw, Names, Operation};
    use crate::record::OperationResult;

    fn work() -> Work {
        let objects = Objects::Pool {
            pool: "all".to_owned(),
            names: Names::default(),
            draw: Draw::Random,
        };
        Work {
            kind: WorkKind::Main,
            operations: vec![Operation {
                objects,
                ..Operation::default()
            }],
            ..Work::default()
        }
    }

    fn result(requests: u64, seconds: f64) -> WorkResult {
        let operation = OperationResult {
            ops: requests,
            ..OperationResult::default()
        };
        WorkResult {
            operations: vec![operation],
            seconds,
            ..WorkResult::default()
        }
    }

    #[test]
    fn less_than_was_asked_for_is_told() {
        let by_number = Work {
            total_ops: Some(6),
            runtime: None,
            ..work()
        };
        let told = words(&by_number, &result(4, 2.0)).unwrap();
        assert!(
            told.starts_with("ended after 4 of 6 operations: "),
            "{told}"
        );
        assert!(told.contains("the pool all"), "{told}");
        assert_eq!(words(&by_number, &result(6, 2.0)), None);
        let by_time = Work {
            runtime: Some(Duration::from_secs(10)),
            ..work()
        };
        let told = words(&by_time, &result(4, 2.5)).unwrap();
        assert!(told.starts_with("ended after 2.5 of 10.0 s: "), "{told}");
        assert_eq!(words(&by_time, &result(4, 10.0)), None);
        let numbered = Work {
            operations: vec![Operation::default()],
            ..by_number
        };
        assert_eq!(words(&numbered, &result(4, 2.0)), None);
    }
}
