//! Known answers of the statistics, and verdicts on made-up repetitions.

use super::statistics::repetitions_needed;
use super::*;
use crate::results::model::{Failures, Operation, Quantile, Run, Stage, State, Tool};

fn close(found: f64, expected: f64, within: f64) {
    assert!(
        (found - expected).abs() <= within,
        "{found} is not {expected}"
    );
}

#[test]
fn students_quantiles_as_printed_in_tables() {
    for (freedom, expected) in [
        (1.0, 12.706_205),
        (2.0, 4.302_653),
        (5.0, 2.570_582),
        (10.0, 2.228_139),
        (30.0, 2.042_272),
        (1e6, 1.959_966),
    ] {
        close(student_quantile(0.975, freedom), expected, 2e-6);
    }
    close(student_quantile(0.8, 4.0), 0.940_965, 2e-6);
}

/// Two samples of unequal spread, worked out by hand.
#[test]
fn welchs_interval() {
    let a = [
        27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4,
    ];
    let b = [
        27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 20.6,
    ];
    let interval = welch(&a, &b).unwrap();
    // The standard error is 1.011656, and t at 27.98 degrees of freedom 2.04848.
    close((interval.low + interval.high) / 2.0, 2.58, 1e-9);
    assert!(interval.excludes_zero());
    close(interval.low, 0.5077, 2e-4);
    assert_eq!(welch(&a[..1], &b), None);
}

#[test]
fn a_bootstrap_repeats_itself_and_needs_some_values() {
    let a = [10.0, 11.0, 10.5, 10.2, 10.8];
    let b = [13.0, 12.5, 13.5, 12.8, 13.1];
    let interval = bootstrap(&a, &b).unwrap();
    assert_eq!(bootstrap(&a, &b).unwrap(), interval);
    assert!(interval.low > 1.4 && interval.high < 3.3, "{interval:?}");
    assert_eq!(bootstrap(&a[..3], &b), None);
}

#[test]
fn repetitions_to_come() {
    // A difference of one deviation: 17 of each, as tables of power have it.
    let a = [-1.0, 0.0, 1.0];
    let b = [0.0, 1.0, 2.0];
    let needed = repetitions_needed(&a, &b).unwrap();
    assert!((16..=18).contains(&needed), "{needed}");
    assert_eq!(repetitions_needed(&a, &a), None);
}

fn side(name: &str, rates: &[f64]) -> Repetitions {
    let runs = rates.iter().map(|rate| {
        let mut operation = Operation::new("read", "read");
        operation.rate = Some(*rate);
        operation.done = Some(1000);
        operation.failed = Failures::Counted(0);
        operation.latency.mean_us = Some(1e6 / rate);
        operation.latency.quantiles.push(Quantile {
            quantile: 0.99,
            us: 3e6 / rate,
        });
        let mut stage = Stage::new("s2-main", State::Completed);
        stage.operations.push(operation);
        Run {
            name: name.to_owned(),
            tool: Tool::Lab,
            tool_version: None,
            target: None,
            started: None,
            state: State::Completed,
            facts: Vec::new(),
            notes: Vec::new(),
            stages: vec![stage],
        }
    });
    Repetitions {
        name: name.to_owned(),
        runs: runs.collect(),
    }
}

fn verdict_of(comparison: &Comparison, measure: &str) -> Verdict {
    let row = comparison.rows.iter().find(|r| r.measure.name == measure);
    row.unwrap().verdict
}

#[test]
fn a_verdict_only_where_there_is_one() {
    let a = side("a", &[100.0, 101.0, 99.0, 100.5, 99.5]);
    let b = side("b", &[120.0, 121.0, 119.5, 120.5, 119.0]);
    let clear = compare(&a, &b).unwrap();
    assert_eq!(clear.better(), Some(true));
    assert_eq!(verdict_of(&clear, "throughput"), Verdict::Better);
    assert_eq!(verdict_of(&clear, "mean"), Verdict::Better);
    assert_eq!(verdict_of(&clear, "p99"), Verdict::Better);
    assert_eq!(compare(&b, &a).unwrap().better(), Some(false));

    let noisy = side("noisy", &[70.0, 150.0, 95.0, 130.0, 80.0]);
    let open = compare(&a, &noisy).unwrap();
    assert_eq!(open.better(), None);
    let Verdict::Open {
        repetitions: Some(needed),
    } = verdict_of(&open, "throughput")
    else {
        panic!("{open:?}");
    };
    assert!(needed > 100, "{needed}");
    assert!(text(&open).contains("more repetitions may tell"));
}

#[test]
fn one_repetition_says_nothing() {
    let single = compare(&side("a", &[100.0]), &side("b", &[200.0])).unwrap();
    assert_eq!(single.better(), None);
    assert_eq!(
        verdict_of(&single, "throughput"),
        Verdict::TooFew { least: 2 }
    );
    assert_eq!(verdict_of(&single, "p99"), Verdict::TooFew { least: 4 });
    assert!(markdown(&single).contains("+100.0%"));
}

#[test]
fn different_operations_cannot_be_compared() {
    let a = side("a", &[1.0]);
    let mut b = side("b", &[1.0]);
    b.runs[0].stages[0].operations[0].name = "write".to_owned();
    let error = compare(&a, &b).unwrap_err().to_string();
    assert!(
        error.contains("main/read") && error.contains("main/write"),
        "{error}"
    );
}

#[test]
fn pairs_turn_round() {
    let order: String = alternate(4).map(|(side, _)| side.letter()).collect();
    assert_eq!(order, "abbaabba");
}

/// `side`, in an open loop of 5,000/s.
fn open_side(name: &str, rates: &[f64], overloaded: bool) -> Repetitions {
    let mut side = side(name, rates);
    for run in &mut side.runs {
        let operation = &mut run.stages[0].operations[0];
        operation.is_open_loop = true;
        operation.open_loop = Some(crate::record::OpenLoop {
            offered: 5000.0,
            achieved: operation.rate.unwrap(),
            overloaded,
            ..Default::default()
        });
    }
    side
}

#[test]
fn an_offered_rate_ranks_nobody() {
    let rates = [5000.0, 5001.0, 4999.0, 5000.5];
    let kept = open_side("kept", &rates, false);
    let faster = open_side("faster", &rates.map(|rate| rate + 50.0), false);
    let both = compare(&kept, &faster).unwrap();
    assert_eq!(both.better(), None);
    assert_eq!(
        verdict_of(&both, "throughput"),
        Verdict::NotRanked(NotRanked::Offered)
    );
    assert_eq!(verdict_of(&both, "p99"), Verdict::Better);

    let overloaded = open_side("overloaded", &rates.map(|rate| rate - 1800.0), true);
    let one = compare(&kept, &overloaded).unwrap();
    assert_eq!(one.better(), Some(false), "what was achieved is told");
    assert_eq!(
        verdict_of(&one, "p99"),
        Verdict::NotRanked(NotRanked::Overloaded)
    );
    assert!(text(&one).contains("overloaded: 4 of 4 runs could not keep up"));

    let mut old = open_side("old", &rates, false);
    for run in &mut old.runs {
        run.stages[0].operations[0].open_loop = None;
    }
    let older = compare(&old, &faster).unwrap();
    assert_eq!(
        verdict_of(&older, "throughput"),
        Verdict::NotRanked(NotRanked::NotRecorded)
    );
}
