//! ssbench scenarios.

use std::time::Duration;

use super::{plan, refused, workload};
use crate::plan::{Draw, Objects, OperationKind, WorkKind};
use crate::selector::Selector;

const SCENARIO: &str = r##"# published so
{
  "name": "Some # sizes", # a name may hold one
  "sizes": [{
    "name": "tiny", "size_min": 0, "size_max": 0, "crud_profile": [60, 15, 20, 5]
  }, {
    "name": "small", "size_min": 100, "size_max": 200
  }, { "name": "unused", "size_min": 1, "size_max": 2 }],
  "initial_files": { "tiny": 30, "small": 10 },  # shares: 3 to 1
  "operation_count": 500,
  "crud_profile": [1, 0, 2, 1],
  "user_count": 4,
  "container_base": "base", "container_count": 20, "container_concurrency": 7,
  "policy": "gold", "delete_after": 60, "extra": true
}"##;

#[test]
fn a_scenario_becomes_four_stages() {
    let read = workload(SCENARIO);
    assert!(
        read.notes.iter().any(|note| note.contains("extra")),
        "{:?}",
        read.notes
    );
    let plan = read.plan;
    assert_eq!(
        (plan.name.as_str(), plan.format.as_str()),
        ("Some # sizes", "ssbench")
    );
    let stages: Vec<&str> = plan
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(stages, ["init", "population", "run", "cleanup"]);
    assert_eq!(plan.access.storage.config["policy"], "gold");
    let init = &plan.stages[0].works[0];
    assert_eq!((init.kind, init.workers), (WorkKind::Init, 7));
    let mut name = String::new();
    init.operations[0].containers.write(3, &mut name);
    assert_eq!(name, "base_000003_gold");
    assert_eq!(
        init.operations[0].containers.numbers,
        Selector::Range { low: 0, high: 19 }
    );
}

#[test]
fn classes_are_filled_exactly() {
    let plan = plan(SCENARIO);
    let work = &plan.stages[1].works[0];
    assert_eq!((work.kind, work.workers), (WorkKind::Prepare, 4));
    let spans: Vec<(String, u64)> = work
        .operations
        .iter()
        .map(|operation| match &operation.objects {
            Objects::Pool { pool, names, .. } => (pool.clone(), names.numbers.span()),
            Objects::Numbered(_) => panic!("no pool"),
        })
        .collect();
    assert_eq!(spans, [("tiny".to_owned(), 30), ("small".to_owned(), 10)]);
    assert!(matches!(
        work.operations[0].containers.numbers,
        Selector::Sequential { low: 0, high: 19 }
    ));
}

#[test]
fn shares_multiply() {
    let plan = plan(SCENARIO);
    let run = &plan.stages[2].works[0];
    assert_eq!(
        (run.workers, run.total_ops, run.runtime),
        (4, Some(500), None)
    );
    let shares: Vec<(&str, OperationKind, f64)> = run
        .operations
        .iter()
        .map(|o| {
            (
                o.size_class.as_deref().unwrap(),
                o.kind,
                (o.ratio * 1e6).round() / 1e6,
            )
        })
        .collect();
    assert_eq!(
        shares,
        [
            ("tiny", OperationKind::Write, 0.45),
            ("tiny", OperationKind::Read, 0.1125),
            ("tiny", OperationKind::Update, 0.15),
            ("tiny", OperationKind::Delete, 0.0375),
            ("small", OperationKind::Write, 0.0625),
            ("small", OperationKind::Update, 0.125),
            ("small", OperationKind::Delete, 0.0625),
        ]
    );
    let write = &run.operations[0];
    assert_eq!(write.headers["X-Delete-After"], "60");
    assert_eq!(write.sizes, Some(Selector::Constant(0)));
    assert!(run.operations[1].headers.is_empty() && run.operations[1].sizes.is_none());
    assert_eq!(
        run.operations[4].sizes,
        Some(Selector::Uniform {
            low: 100,
            high: 200
        })
    );
    let Objects::Pool { names, draw, .. } = &write.objects else {
        panic!()
    };
    assert_eq!((names.numbers.bounds().0, *draw), (31, Draw::Oldest));
    let mut name = String::new();
    names.write(31, &mut name);
    assert_eq!(name, "tiny_000031");
}

#[test]
fn defaults_and_seconds() {
    let text = r#"{"name": "x", "sizes": [{"name": "a", "size_min": 1, "size_max": 1}],
        "initial_files": {"a": 1}, "run_seconds": 90, "operation_count": 7,
        "crud_profile": [0, 1, 0, 0], "user_count": 1}"#;
    let plan = plan(text);
    let run = &plan.stages[2].works[0];
    assert_eq!(
        (run.runtime, run.total_ops),
        (Some(Duration::from_secs(90)), None)
    );
    let init = &plan.stages[0].works[0];
    assert_eq!(init.workers, 10);
    let mut name = String::new();
    init.operations[0].containers.write(99, &mut name);
    assert_eq!(name, "ssbench_000099_default_policy");
    assert_eq!(init.operations[0].containers.numbers.span(), 100);
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let swap = |from: &str, to: &str| {
        assert!(SCENARIO.contains(from), "{from}");
        refused(&SCENARIO.replace(from, to))
    };
    let error = swap("\"user_count\": 4,", "\"user_count\": 4");
    assert_eq!((error.line, error.column), (13, 3), "{error}");
    let error = swap("\"size_min\": 100", "\"size_min\": 300");
    assert_eq!((error.line, error.column), (7, 22), "{error}");
    let error = swap("\"user_count\": 4,", "\"user_count\": 0,");
    assert_eq!((error.line, error.column), (12, 3), "{error}");
    assert!(error.expected.contains("from 1"), "{error}");
    let error = swap("\"user_count\": 4,", "");
    assert!(error.found.contains("user_count"), "{error}");
    let error = swap("\"operation_count\": 500,", "");
    assert!(error.expected.contains("run_seconds"), "{error}");
    let error = swap("\"small\": 10", "\"large\": 10");
    assert!(error.found.contains("large") && error.line == 9, "{error}");
    let error = swap("[1, 0, 2, 1]", "[0, 0, 0, 0]");
    assert_eq!(error.line, 11, "{error}");
    assert!(
        error.expected.contains("create, read, update, delete"),
        "{error}"
    );
    let error = swap("[1, 0, 2, 1]", "[1, 0, 2]");
    assert_eq!(error.line, 11, "{error}");
    let error = swap("\"size_max\": 200", "\"size_max\": 99999999999999999999");
    assert_eq!(error.line, 7, "{error}");
}
