//! Results as ssbench writes them, and others that only resemble them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::properties::{any_number, assert_plausible, source};
use super::*;

/// Count, errors, and hundredths of a millisecond: minimum, 95th percentile, maximum.
type Numbers = (u32, u32, [u32; 3]);

fn numbers() -> impl Strategy<Value = Vec<Numbers>> {
    let times = proptest::array::uniform3(0..100_000u32);
    let one = (0..9u32, 0..9u32, times)
        .prop_map(|(count, errors, times)| (count, errors.min(count), times));
    vec(one, 4)
}

fn close(a: Option<f64>, b: f64) -> bool {
    a.is_some_and(|a| (a - b).abs() < 1e-3)
}

/// Asserts that a stage has these operations, without those of no request.
fn assert_is_of(stage: &Stage, numbers: &[Numbers], microseconds: f64) {
    let expected = OPERATIONS.iter().zip(numbers);
    let expected: Vec<_> = expected.filter(|(_, (count, ..))| *count > 0).collect();
    assert_eq!(stage.operations.len(), expected.len());
    for (operation, (name, (count, errors, times))) in stage.operations.iter().zip(expected) {
        assert_eq!(operation.name, *name);
        assert_eq!(operation.done, Some(u64::from(count - errors)));
        assert_eq!(operation.failed, Failures::Counted((*errors).into()));
        for (quantile, time) in [0.0, 0.95, 1.0].into_iter().zip(times) {
            let us = f64::from(*time) * microseconds;
            assert!(close(operation.latency.at(quantile), us), "{operation:?}");
        }
        let first = operation.first_byte.as_ref().unwrap();
        assert!(close(first.max_us, f64::from(times[0]) * microseconds));
    }
}

proptest! {
    #[test]
    fn a_csv_is_read_as_it_was_written(
        numbers in numbers(),
        workers in 0..1000u32,
        name in "[a-zA-Z, \"]{0,12}[a-z]",
        turn in 0..99usize,
        before in select(vec!["", "INFO:start\n", "INFO:a\nINFO:\"b\"\n"]),
        after in select(vec!["", "INFO:end\n"]),
    ) {
        let mut columns = vec![("concurrency".to_owned(), workers.to_string())];
        for (name, (count, errors, times)) in OPERATIONS.iter().zip(&numbers) {
            let [min, p95, max] = times.map(|time| format!("{}", f64::from(time) / 1e5));
            columns.extend([
                (format!("{name}_count"), count.to_string()),
                (format!("{name}_errors"), errors.to_string()),
                (format!("{name}_last_all_min"), min.clone()),
                (format!("{name}_last_all_95_pctile"), p95),
                (format!("{name}_last_all_max"), max),
                (format!("{name}_last_all_avg"), " N/A ".to_owned()),
                (format!("{name}_first_all_max"), min),
            ]);
        }
        // Columns may be in any order behind the first.
        let turn = turn % columns.len();
        columns.rotate_left(turn);
        columns.insert(0, ("scenario_name".to_owned(), name.clone()));
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let head: Vec<String> = columns.iter().map(|(head, _)| quoted(head)).collect();
        let row: Vec<String> = columns.iter().map(|(_, value)| quoted(value)).collect();
        let text = format!("{before}{}\n{}\n{after}", head.join(","), row.join(","));
        let runs = runs(&[source(Kind::SsBenchCsv, "report.csv", text)]).unwrap();
        prop_assert_eq!(runs.len(), 1);
        prop_assert_eq!(&runs[0].name, name.trim());
        prop_assert_eq!(runs[0].stages[0].workers, Some(workers));
        assert_is_of(&runs[0].stages[0], &numbers, 10.0);
        assert_plausible(&Ok(runs));
    }

    #[test]
    fn a_report_is_read_as_it_was_written(numbers in numbers(), workers in 0..1000u32, seconds in 0..9999u32) {
        let mut text = format!(
            "Small test  (generated with ssbench version 0.3.9)\n\
             Worker count:   1   Concurrency: {workers:3}  Ran A to B ({seconds}s)\n\nTOTAL\n       Count:     9 (    9 error;     0 retries:  0.00%)\n\n"
        );
        for (name, (count, errors, times)) in OPERATIONS.iter().zip(&numbers) {
            let [min, p95, max] = times.map(|time| format!("{:7.3}", f64::from(time) / 1e3));
            text += &format!(
                "{}\n       Count: {count:5} ({errors:5} error;     0 retries:  0.00%)  Average requests per second:  26.9\n\
                 \x20                           min       max      avg      std_dev  95%-ile                   Worst latency TX ID\n\
                 \x20      First-byte latency: {min} - {min}  {min}  ({min})  {min}  (all obj sizes)  tx1\n\
                 \x20      Last-byte  latency: {min} - {max}  {min}  ({min})  {p95}  (all obj sizes)  tx2\n\n",
                name.to_uppercase()
            );
        }
        let runs = runs(&[source(Kind::SsBenchReport, "report.txt", text)]).unwrap();
        let [run] = runs.as_slice() else {
            panic!("{runs:?}");
        };
        prop_assert_eq!((run.name.as_str(), run.started.as_deref()), ("Small test", Some("A")));
        let stage = &run.stages[0];
        prop_assert_eq!((stage.workers, stage.seconds), (Some(workers), Some(f64::from(seconds))));
        assert_is_of(stage, &numbers, 1000.0);
        assert_plausible(&Ok(runs));
    }

    #[test]
    fn rates_are_read_as_they_were_written(done in vec(any::<u32>(), 0..9)) {
        let lines = done.iter().enumerate().map(|(second, done)| format!("{second},{done}\n"));
        let text = format!("\"Seconds Since Start\",\"Requests Completed\"\n{}", lines.collect::<String>());
        let timeline = request_rates(&source(Kind::SsBenchRates, "rps.csv", text)).unwrap();
        let read: Vec<(f64, u64)> = timeline.ticks.iter().map(|t| (t.second, t.done)).collect();
        let expected = done.iter().enumerate().map(|(second, done)| (second as f64, u64::from(*done)));
        prop_assert_eq!(read, expected.collect::<Vec<_>>());
    }

    #[test]
    fn any_result_is_read_or_refused(
        cells in vec((select(vec![
            "concurrency", "duration", "read_count", "read_errors", "read_retries",
            "read_avg_req_per_s", "read_last_all_max", "read_last_all_avg", "read_last_tiny_avg",
            "total_last_tiny_avg", "total_last__avg",
        ]), any_number()), 0..9),
        lines in vec((0..6usize, any_number(), any_number()), 0..9),
        rates in vec((any_number(), any_number()), 0..3),
    ) {
        let head: String = cells.iter().map(|(name, _)| format!(",{name}")).collect();
        let row: String = cells.iter().map(|(_, cell)| format!(",{cell}")).collect();
        let table = source(Kind::SsBenchCsv, "a.csv", format!("\"scenario_name\"{head}\na{row}\n"));
        let line = |(form, a, b): &(usize, String, String)| match form {
            0 => "READ\n".to_owned(),
            1 => format!("Count: {a} ( {b} error; x: {b}\n"),
            2 => format!("Last-byte latency: {a} - {b} {a} ({b}) {a} (all obj sizes) tx\n"),
            3 => format!("First-byte latency: {a} - {b} {b} ({b}) {a} ({a} objs) tx\n"),
            4 => format!("Worker count: {a} Concurrency: {b} Ran {b} to {a} ({b}s)\n"),
            _ => format!("{a} {b}\n"),
        };
        let text: String = lines.iter().map(line).collect();
        let report = source(Kind::SsBenchReport, "a.txt", format!("READ\n{text}"));
        let lines = rates.iter().map(|(second, done)| format!("{second},{done}\n"));
        let rates = source(Kind::SsBenchRates, "b.csv", format!("\n{}", lines.collect::<String>()));
        for chosen in [vec![table], vec![report, rates]] {
            assert_plausible(&runs(&chosen));
        }
    }
}
