//! Known results of the statistics, and verdicts on artificial repetitions.

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

/// Two samples of unequal variance, computed by hand.
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
    // A difference of one standard deviation needs 17 repetitions of each, as in tables of
    // statistical power.
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
            broken: Vec::new(),
            plan: None,
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
    let clear = compare(&a, &b, MARGIN).unwrap();
    assert_eq!(clear.better(), Some(true));
    assert_eq!(verdict_of(&clear, "throughput"), Verdict::Better);
    assert_eq!(verdict_of(&clear, "mean"), Verdict::Better);
    assert_eq!(verdict_of(&clear, "p99"), Verdict::Better);
    assert_eq!(compare(&b, &a, MARGIN).unwrap().better(), Some(false));

    let noisy = side("noisy", &[70.0, 150.0, 95.0, 130.0, 80.0]);
    let open = compare(&a, &noisy, MARGIN).unwrap();
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
    let single = compare(&side("a", &[100.0]), &side("b", &[200.0]), MARGIN).unwrap();
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
    let error = compare(&a, &b, MARGIN).unwrap_err().to_string();
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

/// A side like `side`, in an open loop of 5,000/s.
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
    let both = compare(&kept, &faster, MARGIN).unwrap();
    assert_eq!(both.better(), None);
    assert_eq!(
        verdict_of(&both, "throughput"),
        Verdict::NotRanked(NotRanked::Offered)
    );
    assert_eq!(verdict_of(&both, "p99"), Verdict::Better);

    let overloaded = open_side("overloaded", &rates.map(|rate| rate - 1800.0), true);
    let one = compare(&kept, &overloaded, MARGIN).unwrap();
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
    let older = compare(&old, &faster, MARGIN).unwrap();
    assert_eq!(
        verdict_of(&older, "throughput"),
        Verdict::NotRanked(NotRanked::NotRecorded)
    );
}

/// A side like `side`, with one run for each number of workers in its plan.
fn planned(name: &str, workers: &[u32]) -> Repetitions {
    let mut side = side(name, &vec![100.0; workers.len()]);
    for (index, (run, workers)) in side.runs.iter_mut().zip(workers).enumerate() {
        let work = crate::plan::Work {
            name: "main".into(),
            workers: *workers,
            ..Default::default()
        };
        let stage = crate::plan::Stage {
            name: "main".into(),
            works: vec![work],
            ..Default::default()
        };
        run.plan = Some(Box::new(crate::plan::Plan {
            name: format!("{name} {index}"),
            seed: index as u64,
            stages: vec![stage],
            ..Default::default()
        }));
    }
    side
}

#[test]
fn repetitions_are_of_one_plan_whatever_their_names() {
    let digest = |side: &Repetitions, at: usize| plan_digest(side.runs[at].plan.as_ref().unwrap());
    let same = planned("same", &[8, 8]);
    assert_eq!(digest(&same, 0), digest(&same, 1));
    let mixed = planned("mixed", &[8, 8, 16]);
    assert_ne!(digest(&mixed, 0), digest(&mixed, 2));
    let error = compare(&mixed, &same, MARGIN).unwrap_err().to_string();
    assert!(
        error.contains("mixed") && error.contains("number 3") && error.contains("8 against 16"),
        "{error}"
    );
    let compared = compare(&same, &planned("twice", &[16, 16]), MARGIN).unwrap();
    assert_eq!(
        compared.warnings,
        [
            "The plans differ, A against B: stage main, work main, workers: 8 against 16. A \
             difference in the results may come from that."
        ]
    );
    let words = text(&compared);
    assert!(
        words.find("WARNING: The plans differ") < words.find("verdict"),
        "{words}"
    );
    let alike = compare(&same, &planned("other name", &[8, 8]), MARGIN).unwrap();
    assert!(alike.warnings.is_empty(), "{:?}", alike.warnings);
}

#[test]
fn equivalence_is_shown_not_assumed() {
    let a = side("a", &[100.0, 101.0, 99.0, 100.5, 99.5]);
    let b = side("b", &[100.2, 101.1, 99.2, 100.4, 99.8]);
    let same = compare(&a, &b, MARGIN).unwrap();
    assert_eq!(verdict_of(&same, "throughput"), Verdict::Equivalent);
    assert!(same.is_equivalent());
    let words = text(&same);
    assert!(words.contains("equivalent, within ±5 %"), "{words}");
    // A margin too narrow for the variance.
    let narrow = compare(&a, &b, 0.005).unwrap();
    assert!(!narrow.is_equivalent());
    assert!(matches!(
        verdict_of(&narrow, "throughput"),
        Verdict::Open { .. }
    ));
    // A significant difference that is too small to matter.
    let less = side("less", &[98.0, 98.2, 97.9, 98.1, 98.0]);
    let worse = compare(&a, &less, MARGIN).unwrap();
    assert_eq!(verdict_of(&worse, "throughput"), Verdict::Worse);
    assert!(text(&worse).contains("By throughput B is worse, by less than 5 %."));
}

#[test]
fn gates_hold_on_what_is_beyond_doubt() {
    let a = side("a", &[100.0, 101.0, 99.0, 100.5, 99.5]);
    let b = side("b", &[80.0, 81.0, 79.5, 80.5, 79.0]);
    let holds = |gate: &str, from: &Repetitions, to: &Repetitions| {
        let compared = compare(from, to, MARGIN).unwrap();
        gate.parse::<Gate>().unwrap().broken(&compared)
    };
    assert_eq!(holds("worse", &a, &b).len(), 1);
    assert_eq!(holds("worse", &b, &a), Vec::<String>::new());
    assert_eq!(holds("not-equivalent", &b, &a).len(), 1);
    assert_eq!(holds("not-equivalent", &a, &a), Vec::<String>::new());
    assert_eq!(holds("throughput<-10%", &a, &b).len(), 1);
    assert_eq!(holds("throughput<-30%", &a, &b), Vec::<String>::new());
    assert_eq!(holds("main/read p99>10%", &a, &b).len(), 1);
    assert_eq!(holds("p99>10%", &b, &a), Vec::<String>::new());
    assert_eq!(holds("failed>1%", &a, &b), Vec::<String>::new());
    assert_eq!(holds("write p99>10%", &a, &b).len(), 1, "no such operation");
    let one = side("one", &[100.0]);
    assert_eq!(holds("worse", &one, &one).len(), 1, "too few");
    let planned = [planned("a", &[8, 8]), planned("b", &[16, 16])];
    assert_eq!(holds("plans-differ", &planned[0], &planned[1]).len(), 1);
    for wrong in ["better", "p99>10ms", "p98>1%", "p99"] {
        assert!(wrong.parse::<Gate>().is_err(), "{wrong}");
    }
}

#[test]
fn the_page_begins_with_the_verdict() {
    let a = side("a", &[100.0, 101.0, 99.0]);
    let b = side("b", &[120.0, 121.0, 119.5]);
    let compared = compare(&a, &b, MARGIN).unwrap();
    let out = tempfile::tempdir().unwrap();
    let runs: Vec<Run> = a.runs.iter().chain(&b.runs).cloned().collect();
    crate::report::write_report(&runs, Some(&section(&compared)), out.path(), false).unwrap();
    let page = std::fs::read_to_string(out.path().join("report.html")).unwrap();
    let verdict = page.find("By throughput B is better.");
    assert!(verdict.is_some() && verdict < page.find("<h2>Runs</h2>"));
    assert!(page.contains("<td>B is better</td>"));
}
