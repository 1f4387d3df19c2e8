//! Outputs as swift-bench prints them, and lines that only resemble them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::properties::{any_number, assert_plausible, source};
use super::*;

/// A line's additional successes and failures, and its rate in tenths.
type Step = (u64, u64, u64);

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs().max(1.0)
}

proptest! {
    #[test]
    fn an_output_is_read_as_it_was_printed(
        phases in vec((select(vec!["PUTS", "GETS", "DEL"]), vec((0..500u64, 0..9u64, 0..9999u64), 1..6)), 0..4),
        noise in select(vec!["", "swift-bench 2026-11-22 INFO Auth version: 1.0\n", "a [b failures], c/s\n"]),
    ) {
        let mut text = String::new();
        let mut printed = Vec::new();
        for (title, steps) in &phases {
            let (mut complete, mut failures) = (0, 0);
            for (index, (done, failed, tenths)) in steps.iter().enumerate() {
                complete += done + failed;
                failures += failed;
                let last = if index + 1 == steps.len() { " **FINAL**" } else { "" };
                let rate = *tenths as f64 / 10.0;
                text += &format!("sb 2026-11-22 01:02:03,4 INFO {complete} {title}{last} [{failures} failures], {rate:.1}/s\n{noise}");
                printed.push((complete, failures, rate));
            }
        }
        let run = output(&source(Kind::SwiftBench, "bench.log", text)).unwrap();
        let started = (!phases.is_empty()).then(|| "2026-11-22 01:02:03,4".to_owned());
        prop_assert_eq!(&run.started, &started);
        prop_assert_eq!(run.stages.len(), phases.len());
        let mut printed = printed.into_iter();
        for ((title, steps), stage) in phases.iter().zip(&run.stages) {
            let lines: Vec<(u64, u64, f64)> = printed.by_ref().take(steps.len()).collect();
            let (complete, failures, rate) = *lines.last().unwrap();
            prop_assert_eq!(&stage.id, &title.to_lowercase());
            let [operation] = stage.operations.as_slice() else {
                panic!("{stage:?}");
            };
            prop_assert_eq!(operation.done, Some(complete - failures));
            prop_assert_eq!(operation.failed, Failures::Counted(failures));
            // The share that succeeded of the rate of all.
            let share = (complete > 0).then(|| rate * (1.0 - failures as f64 / complete as f64));
            prop_assert!(operation.rate.zip(share).is_none_or(|(a, b)| close(a, b)));
            prop_assert_eq!(operation.rate.is_some(), share.is_some());
            prop_assert_eq!(stage.seconds, (rate > 0.0).then(|| complete as f64 / rate));
            prop_assert_eq!(stage.timeline.is_empty(), steps.len() == 1);
            for (tick, step) in stage.timeline.iter().flat_map(|t| &t.ticks).zip(steps) {
                let step: &Step = step;
                prop_assert_eq!((tick.done, tick.failed), (step.0, Some(step.1)));
            }
        }
        assert_plausible(&Ok(vec![run]));
    }

    #[test]
    fn any_line_is_read_or_refused(
        lines in vec((any_number(), select(vec!["PUTS", "GETS **FINAL**", "DEL **FINAL**", "x"]), any_number(), any_number()), 0..6),
    ) {
        let line = |(complete, title, failures, rate): &(String, &str, String, String)| {
            format!("{complete} {title} [{failures} failures], {rate}/s\n")
        };
        let text: String = lines.iter().map(line).collect();
        assert_plausible(&runs(&[source(Kind::SwiftBench, "bench.log", text)]));
    }
}
