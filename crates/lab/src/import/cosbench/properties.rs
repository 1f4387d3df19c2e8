//! Results as COSBench writes them, and others that only resemble them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::properties::{any_number, assert_plausible, source};
use super::*;

const HEAD: &str = "Stage,Op-Name,Op-Type,Op-Count,Byte-Count,Avg-ResTime,…\n";

/// A table of one stage `s1-main` with these operations.
fn table(operations: &[&str]) -> Source {
    let row = |name: &&str| {
        format!("s1-main,{name},{name},9,9,1,1,10,10,10,10,10,10,1,1,100%,completed\n")
    };
    let rows: String = operations.iter().map(row).collect();
    source(Kind::CosBenchTable, "w1-a.csv", format!("{HEAD}{rows}"))
}

fn names() -> impl Strategy<Value = Vec<&'static str>> {
    // One operation may be in several works of a stage.
    vec(select(vec!["read", "write", "list"]), 1..4)
}

/// A time of day.
fn clock(second: u32) -> String {
    let second = second % 86_400;
    let (minute, second) = (second / 60, second % 60);
    format!("{:02}:{:02}:{second:02}", minute / 60, minute % 60)
}

proptest! {
    #[test]
    fn a_table_is_read_as_it_was_written(
        rows in vec((0..3u32, "[a-z]{1,9}", any::<u32>(), any::<u32>(), 0..1_000_000u32, 1..=10_000u32), 0..9),
    ) {
        let mut text = HEAD.to_owned();
        for (stage, name, count, bytes, hundredths, success) in &rows {
            let ms = f64::from(*hundredths) / 100.0;
            let ratio = f64::from(*success) / 100.0;
            text += &format!("s{stage}-a_w{stage}0,{name},{name},{count},{bytes},{ms},{ms},10,20,30,40,50,{count},{ms},{bytes},{ratio}%,completed,running @ 2014-05-07 23:59:0{stage},closing @ 2014-05-08 00:00:00\n");
        }
        let runs = runs(&[source(Kind::CosBenchTable, "w1-a.csv", text)]).unwrap();
        let stages = &runs[0].stages;
        let read = stages.iter().flat_map(|stage| stage.operations.iter().map(move |o| (stage, o)));
        let read: Vec<_> = read.collect();
        prop_assert_eq!(read.len(), rows.len());
        for ((stage, operation), row) in read.into_iter().zip(&rows) {
            let (number, name, count, bytes, hundredths, success) = row;
            prop_assert_eq!(&stage.id, &format!("s{number}-a_w{number}0"));
            prop_assert_eq!(stage.workers, (*number > 0).then_some(number * 10));
            prop_assert_eq!(stage.seconds, Some(f64::from(60 - number)));
            prop_assert_eq!(&operation.name, name);
            prop_assert_eq!(operation.done, Some(u64::from(*count)));
            prop_assert_eq!(operation.bytes, Some(u64::from(*bytes)));
            let mean = operation.latency.mean_us.unwrap();
            prop_assert!((mean - f64::from(*hundredths) * 10.0).abs() < 1e-3);
            prop_assert_eq!(operation.latency.at(1.0), Some(f64::from(*count) * 1000.0));
            prop_assert_eq!(operation.latency.at(0.9), Some(30_000.0));
            // As many of all as the ratio says have succeeded.
            let failed = operation.failed.count().unwrap();
            let all = f64::from(*count) * 10_000.0 / f64::from(*success);
            prop_assert!((failed as f64 + f64::from(*count) - all).abs() <= 0.501);
        }
        assert_plausible(&Ok(runs));
    }

    #[test]
    fn a_timeline_is_read_as_it_was_written(
        names in names(),
        start in 0..86_400u32,
        rows in vec((1..9u32, proptest::array::uniform3(any::<u32>()), prop::bool::weighted(0.2)), 1..9),
    ) {
        let per_metric = |cells: Vec<String>| cells.join(",");
        let of_all = |cell: &str| per_metric(vec![cell.to_owned(); names.len()]);
        let metrics = vec![names.join(","); TIMELINE_METRICS].join(",");
        let mut text = format!("Timestamp,Op-Count,…\n,{metrics},Min-Version,Version,Max-Version\n");
        let mut at = start;
        let mut expected = Vec::new();
        for (step, done, silent) in &rows {
            at += step;
            let silent = *silent && names.len() > 1;
            if silent {
                text += &format!("{},0,0,N/A,N/A,0,0,N/A,1,1,1\n", clock(at));
                continue;
            }
            let counts = per_metric(done.iter().take(names.len()).map(u32::to_string).collect());
            text += &format!(
                "{},{counts},{},{},{},{},{},{},1,1,1\n",
                clock(at), of_all("4"), of_all("2.5"), of_all("N/A"), of_all("7"), of_all("28"), of_all("50%")
            );
            expected.push((at - start, done));
        }
        let runs = runs(&[source(Kind::CosBenchTimeline, "dir/s1-main.csv", text)]).unwrap();
        let timelines = &runs[0].stages[0].timeline;
        let read_names: Vec<&str> = timelines.iter().map(|t| t.operation.as_str()).collect();
        prop_assert_eq!(read_names, names.clone());
        for (column, timeline) in timelines.iter().enumerate() {
            let read: Vec<_> = timeline.ticks.iter().map(|t| (t.second, t.done, t.failed)).collect();
            // The first row's interval is a guess, which moves all of them.
            let offset = read.first().zip(expected.first()).map_or(0.0, |(r, e)| r.0 - f64::from(e.0));
            let row = |(second, done): &(u32, &[u32; 3])| {
                let done = u64::from(done[column]);
                (f64::from(*second) + offset, done, Some(done))
            };
            prop_assert_eq!(read, expected.iter().map(row).collect::<Vec<_>>());
            prop_assert!(timeline.ticks.iter().all(|t| t.mean_us == Some(2500.0)));
        }
        assert_plausible(&Ok(runs));
    }

    #[test]
    fn a_histogram_is_read_as_it_was_written(
        names in names(),
        buckets in vec(proptest::array::uniform3(prop_oneof![Just(0), 0..1000u32]), 0..9),
        slow in proptest::array::uniform3(prop_oneof![Just(0), 1..9u32]),
    ) {
        let heads = names.iter().enumerate().map(|(work, name)| format!(",s1-main-w{work}-x-{name},(%)"));
        let mut text = format!("ResTime{}\n", heads.collect::<String>());
        let row = |counts: &[u32; 3]| -> String {
            counts.iter().take(names.len()).map(|count| format!(",{count},9%")).collect()
        };
        for (bucket, counts) in buckets.iter().enumerate() {
            text += &format!("{}~{}{}\n", bucket * 10, bucket * 10 + 10, row(counts));
        }
        text += &format!("500000~+INF{}\n", row(&slow));
        let histogram = source(Kind::CosBenchHistogram, "w1-a-rt-histogram.csv", text);
        let runs = runs(&[table(&names), histogram]).unwrap();
        for (work, operation) in runs[0].stages[0].operations.iter().enumerate() {
            let total: u32 = buckets.iter().chain([&slow]).map(|counts| counts[work]).sum();
            prop_assert_eq!(operation.work.clone(), Some(format!("w{work}-x")));
            if total == 0 {
                prop_assert!(operation.latency.curve.is_empty());
                continue;
            }
            let curve = &operation.latency.curve;
            let filled = buckets.iter().chain([&slow]).filter(|counts| counts[work] > 0);
            prop_assert_eq!(curve.len(), 1 + filled.count());
            let below = |us: f64| {
                let buckets = buckets.iter().enumerate();
                let ended = buckets.filter(|(bucket, _)| (*bucket * 10 + 10) as f64 * 1000.0 <= us);
                ended.map(|(_, counts)| counts[work]).sum::<u32>()
            };
            for point in &curve[1..] {
                let share = if point.us == 500_000_000.0 {
                    1.0
                } else {
                    f64::from(below(point.us)) / f64::from(total)
                };
                prop_assert!((point.quantile - share).abs() < 1e-9, "{:?}", curve);
            }
            prop_assert_eq!(curve.last().map(|point| point.quantile), Some(1.0));
        }
        assert_plausible(&Ok(runs));
    }

    #[test]
    fn any_result_is_read_or_refused(
        cells in vec(any_number(), 13),
        ratio in prop_oneof!["[0-9]{1,3}(\\.[0-9]{2})?", Just("1e-300".to_owned()), any_number()],
        ticks in vec((any_number(), any_number()), 0..4),
        buckets in vec((any_number(), any_number(), any_number()), 0..6),
    ) {
        let table = format!("{HEAD}s1-main,read,read,{},{ratio}%,completed\n", cells[1..].join(","));
        let table = source(Kind::CosBenchTable, "w1-a.csv", table);
        let mut timeline = format!("\n,{},a,b,c\n", ["read"; TIMELINE_METRICS].join(","));
        for (index, (number, other)) in ticks.iter().enumerate() {
            timeline += &format!("{},{number},{other},{number},1,{other},{number},{ratio}%,1,1,1\n", clock(index as u32));
        }
        let timeline = source(Kind::CosBenchTimeline, "s1-main.csv", timeline);
        let mut histogram = "ResTime,s1-main-w1-x-read,(%)\n".to_owned();
        for (from, to, count) in &buckets {
            histogram += &format!("{from}~{to},{count},1%\n");
        }
        let histogram = source(Kind::CosBenchHistogram, "w1-a-rt-histogram.csv", histogram);
        assert_plausible(&runs(&[table, histogram]));
        assert_plausible(&runs(&[timeline]));
    }
}
