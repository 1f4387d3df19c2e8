//! The generator's own ceiling: the operations per second that it performs, with full statistics,
//! against a target that does nothing. Printed with every result, so that it is not mistaken for a
//! store's limit.

use std::sync::Arc;
use std::time::Duration;

use crate::drive::{Control, Driver, Event, Pools, Share, cores, now};
use crate::plan::{Access, Names, Objects, Operation, OperationKind, Settings, Stage, Work};
use crate::record::Ceiling;
use crate::selector::Selector;
use crate::target::TargetOptions;

/// Workers per thread: enough that the cost of a worker is included.
const WORKERS_PER_THREAD: u32 = 32;

/// A typical mix: 80 % reads, 20 % writes of 64 KB, over 32 containers.
fn mixed() -> Vec<Operation> {
    let operation = |kind, ratio, low, high| Operation {
        kind,
        ratio,
        containers: Names {
            prefix: "mycontainers".into(),
            numbers: Selector::Uniform { low: 1, high: 32 },
            ..Names::default()
        },
        objects: Objects::Numbered(Names {
            prefix: "myobjects".into(),
            numbers: Selector::Uniform { low, high },
            ..Names::default()
        }),
        sizes: (kind == OperationKind::Write).then_some(Selector::Constant(64_000)),
        ..Operation::default()
    };
    vec![
        operation(OperationKind::Read, 80.0, 1, 50),
        operation(OperationKind::Write, 20.0, 51, 100),
    ]
}

/// Runs the no-op target on `threads` threads for `time`.
pub fn measure(threads: u32, time: Duration) -> Ceiling {
    let work = Work {
        name: "ceiling".into(),
        workers: threads * WORKERS_PER_THREAD,
        rampup: time / 5,
        runtime: Some(time),
        operations: mixed(),
        ..Work::default()
    };
    let stage = Stage {
        name: "ceiling".into(),
        works: vec![work],
        ..Stage::default()
    };
    let noop = Settings {
        kind: "noop".into(),
        ..Settings::default()
    };
    let driver = Driver {
        name: "ceiling".into(),
        share: Share::WHOLE,
        seed: 1,
        access: Access {
            storage: noop,
            ..Access::default()
        },
        options: TargetOptions::default(),
        threads,
        pools: Arc::new(Pools::default()),
    };
    let mut ops = 0;
    let mut seconds = time.as_secs_f64();
    driver.run_stage(
        1,
        &stage,
        now(),
        &Control::default(),
        &mut |event| match event {
            Event::Snapshot(snapshot) => {
                ops += snapshot
                    .counted
                    .iter()
                    .map(|result| result.ops)
                    .sum::<u64>();
            }
            Event::WorkDone {
                seconds: counted, ..
            } => seconds = counted,
            _ => {}
        },
    );
    Ceiling {
        ops_per_second: ops as f64 / seconds.max(f64::MIN_POSITIVE),
        threads,
        seconds,
    }
}

/// Measures all cores for a second.
pub fn of_this_machine() -> Ceiling {
    measure(cores(), Duration::from_secs(1))
}
