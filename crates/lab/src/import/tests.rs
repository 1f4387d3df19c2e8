//! Small results of every tool, made for these tests in the tools' formats.

use std::path::Path;

use super::*;
use crate::results::model::{Failures, State, Tool};

const HEAD: &str = "Stage,Op-Name,Op-Type,Op-Count,Byte-Count,Avg-ResTime,Avg-ProcTime,60%-ResTime,80%-ResTime,90%-ResTime,95%-ResTime,99%-ResTime,100%-ResTime,Throughput,Bandwidth,Succ-Ratio,Status,Detailed Status\n";

const TABLE: &str = "\
s1-prepare,prepare-write,prepare,20,80000,9.5,9.5,10,10,20,20,20,20,4,16000,100%,completed,waiting @ 2014-05-07 09:44:57,running @ 2014-05-07 09:45:00,closing @ 2014-05-07 09:45:05,completed @ 2014-05-07 09:45:05
s2-w_c1_16,read,read,300,1200000,2.75,2.7,10,10,10,20,30,280,30,120000,75%,completed,waiting @ 2014-05-07 09:44:57,running @ 2014-05-07 23:59:50,closing @ 2014-05-08 00:00:00,failed @ 2014-05-08 00:00:00,completed @ 2014-05-08 00:00:10
s2-w_c1_16,write,write,0,0,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,0,0,N/A,completed,waiting @ 2014-05-07 09:44:57
main,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,terminated,waiting @ 2014-05-07 09:44:57,terminated @ 2014-05-07 09:45:10
dispose,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,aborted,aborted @ 2014-05-07 09:45:10
";

const TIMELINE: &str = "\
Timestamp,Op-Count,,Byte-Count,,Avg-ResTime,,Avg-ProcTime,,Throughput,,Bandwidth,,Succ-Ratio,,Version-Info,,
,read,write,read,write,read,write,read,write,read,write,read,write,read,write,Min-Version,Version,Max-Version
23:59:55,100,0,400000,0,2.5,N/A,2.5,N/A,20,0,80000,0,80%,N/A,0,0,0
00:00:00,0,0,N/A,N/A,0,0,N/A,1,1,1
00:00:05,105,0,420000,0,3,N/A,3,N/A,42,0,168000,0,100%,N/A,2,2,2
";

const HISTOGRAM: &str = "\
ResTime,s2-w_c1_16-w1-main-read,(%),s2-w_c1_16-w1-main-write,(%)
0~10,270,90%,0,0%
10~20,27,99%,0,0%
20~30,0,99%,0,0%
270~280,3,100%,0,0%
500000~+INF,0,100%,0,0%
";

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn cosbench(folder: &Path) {
    write(folder, "w7-small.csv", &format!("{HEAD}{TABLE}"));
    write(folder, "s2-w_c1_16.csv", TIMELINE);
    write(folder, "s3-main.csv", "");
    write(folder, "w7-small-rt-histogram.csv", HISTOGRAM);
    write(folder, "workload-config.xml", "<workload/>");
}

#[test]
fn cosbench_whole() {
    let folder = tempfile::tempdir().unwrap();
    cosbench(folder.path());
    let runs = import(folder.path()).unwrap();
    let [run] = runs.as_slice() else {
        panic!("{runs:?}");
    };
    assert_eq!((run.name.as_str(), run.tool), ("w7-small", Tool::CosBench));
    assert_eq!(run.state, State::Terminated);
    let states: Vec<State> = run.stages.iter().map(|s| s.state).collect();
    let completed = State::Completed;
    assert_eq!(
        states,
        [completed, completed, State::Terminated, State::Aborted]
    );
    let stage = &run.stages[1];
    assert_eq!(stage.workers, Some(16));
    // Across midnight.
    assert_eq!(stage.seconds, Some(10.0));
    let read = &stage.operations[0];
    assert_eq!(read.done, Some(300));
    assert_eq!(read.failed, Failures::Estimated(100));
    assert_eq!(read.latency.at(0.95), Some(20_000.0));
    assert_eq!(read.latency.mean_us, Some(2750.0));
    assert_eq!(read.work.as_deref(), Some("w1-main"));
    let curve: Vec<(f64, f64)> = read
        .latency
        .curve
        .iter()
        .map(|q| (q.us, q.quantile))
        .collect();
    assert_eq!(
        curve,
        [
            (0.0, 0.0),
            (10_000.0, 0.9),
            (20_000.0, 0.99),
            (280_000.0, 1.0)
        ]
    );
    assert_eq!(stage.operations[1].failed, Failures::Unknown);
    assert!(run.notes.iter().any(|n| n.contains("10 ms")));
    assert!(
        run.notes
            .iter()
            .any(|n| n.contains("passed through the state failed"))
    );
}

/// The row that COSBench writes without a driver's report has other columns, and the next row's
/// rates are over too short a time.
#[test]
fn a_silent_interval_is_no_peak() {
    let folder = tempfile::tempdir().unwrap();
    cosbench(folder.path());
    let run = import(&folder.path().join("w7-small.csv"))
        .unwrap()
        .remove(0);
    let timeline = &run.stages[1].timeline[0];
    assert_eq!(timeline.operation, "read");
    let ticks: Vec<_> = timeline
        .ticks
        .iter()
        .map(|t| (t.second, t.interval, t.done, t.failed, t.rate))
        .collect();
    assert_eq!(
        ticks,
        [
            (5.0, 5.0, 100, Some(25), Some(20.0)),
            (15.0, 5.0, 105, Some(0), Some(21.0))
        ]
    );
}

#[test]
fn a_broken_table_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let broken = TABLE.replacen(",75%,", ",175%,", 1);
    write(folder.path(), "w1-x.csv", &format!("{HEAD}{broken}"));
    let error = import(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("w1-x.csv, line 3: expected a percentage"),
        "{error}"
    );
    write(
        folder.path(),
        "w1-x.csv",
        &format!("{HEAD}s1-a,read,read,1\n"),
    );
    let error = import(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("line 2: expected at least 17 columns"),
        "{error}"
    );
}

#[test]
fn a_folder_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "notes.txt", "nothing here\n");
    let error = import(folder.path()).unwrap_err().to_string();
    assert!(error.contains("neither a run folder"), "{error}");
    assert!(matches!(
        import(&folder.path().join("absent")),
        Err(ImportError::Io { .. })
    ));
}

const SSBENCH_CSV: &str = "\
INFO:SwiftStack Benchmark (ssbench version 0.3.9)
INFO:Calculating statistics...
\"scenario_name\",\"ssbench_version\",\"worker_count\",\"concurrency\",\"start_time\",\"stop_time\",\"duration\",\"delete_after\",\"total_count\",\"total_retries\",\"total_last_tiny_avg\",\"create_count\",\"create_errors\",\"create_retries\",\"create_avg_req_per_s\",\"create_first_all_avg\",\"create_last_all_min\",\"create_last_all_max\",\"create_last_all_avg\",\"create_last_all_std_dev\",\"create_last_all_95_pctile\",\"create_last_all_worst_txid\",\"create_last_tiny_avg\",\"read_count\",\"read_errors\"
\"Tiny, mixed\",\"0.3.9\",1,4,\"2026-11-21 21:08:51 UTC\",\"2026-11-21 21:08:57 UTC\",5.03,\"None\",201,2,0.06,201,1,2,42.93,\" N/A  \",0.0198,0.0995,0.0526,0.0154,0.0822,\"tx1b88\",0.0578,0,0
";

#[test]
fn ssbench_csv_and_rates() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "report.csv", SSBENCH_CSV);
    let rates = "\"Seconds Since Start\",\"Requests Completed\"\n1,44\n2,94\n";
    write(folder.path(), "rps.csv", rates);
    let run = import(folder.path()).unwrap().remove(0);
    assert_eq!(
        (run.name.as_str(), run.tool),
        ("Tiny, mixed", Tool::SsBench)
    );
    let stage = &run.stages[0];
    assert_eq!((stage.workers, stage.seconds), (Some(4), Some(5.03)));
    let create = &stage.operations[0];
    assert_eq!(
        (create.done, create.failed),
        (Some(200), Failures::Counted(1))
    );
    assert_eq!(create.latency.at(0.95), Some(82_200.0));
    assert_eq!(create.first_byte, None);
    // Operations with a count of zero are omitted; a size class is a part.
    let names: Vec<_> = stage
        .operations
        .iter()
        .map(|o| (o.name.as_str(), o.size_class.as_deref()))
        .collect();
    assert_eq!(names, [("create", None), ("create", Some("tiny"))]);
    assert_eq!(stage.worst[0].transaction_id.as_deref(), Some("tx1b88"));
    assert_eq!(stage.timeline[0].ticks[1].rate, Some(94.0));
}

const SSBENCH_REPORT: &str = "\
Small test scenario  (generated with ssbench version 0.3.9)
Worker count:   1   Concurrency:   4  Ran 2026-11-21 21:08:51 UTC to 2026-11-21 21:08:57 UTC (5s)

TOTAL
       Count:   260 (    1 error;     0 retries:  0.00%)  Average requests per second:  55.2

READ
       Count:   126 (    1 error;     0 retries:  0.00%)  Average requests per second:  26.9
                            min       max      avg      std_dev  95%-ile                   Worst latency TX ID
       First-byte latency:  0.008 -   0.055    0.027  (  0.009)    0.046  (all obj sizes)  txb422
       Last-byte  latency:  0.008 -   0.056    0.028  (  0.009)    0.047  (all obj sizes)  txb423
       Last-byte  latency:  0.009 -   0.050    0.026  (  0.008)    0.040  (    zero objs)  tx8ea0

DELETE
       Count:     0 (    0 error;     0 retries:  0.00%)  Average requests per second:   0.0
       First-byte latency:  N/A   -   N/A      N/A    (  N/A  )    N/A    (all obj sizes)  
";

#[test]
fn ssbench_report() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "report.txt", SSBENCH_REPORT);
    let run = import(folder.path()).unwrap().remove(0);
    let stage = &run.stages[0];
    assert_eq!(run.started.as_deref(), Some("2026-11-21 21:08:51 UTC"));
    assert_eq!((stage.workers, stage.seconds), (Some(4), Some(5.0)));
    let [read, zero] = stage.operations.as_slice() else {
        panic!("{stage:?}");
    };
    assert_eq!((read.done, read.failed), (Some(125), Failures::Counted(1)));
    assert_eq!(read.rate, Some(26.9));
    assert_eq!(read.latency.at(0.95), Some(47_000.0));
    assert_eq!(read.first_byte.as_ref().unwrap().max_us, Some(55_000.0));
    assert_eq!(zero.size_class.as_deref(), Some("zero"));
    assert_eq!(stage.worst[0].transaction_id.as_deref(), Some("txb423"));
}

#[test]
fn swift_bench_counts_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    let output = "\
swift-bench 2026-11-22 01:02:05,456 INFO 60 PUTS [0 failures], 30.0/s
swift-bench 2026-11-22 01:02:20,460 INFO 600 PUTS [10 failures], 30.0/s
swift-bench 2026-11-22 01:02:33,456 INFO 1000 PUTS **FINAL** [20 failures], 40.0/s
swift-bench 2026-11-22 01:02:53,456 INFO 0 DEL **FINAL** [0 failures], 0.0/s
";
    write(folder.path(), "bench.log", output);
    let run = import(folder.path()).unwrap().remove(0);
    assert_eq!(run.started.as_deref(), Some("2026-11-22 01:02:05,456"));
    let put = &run.stages[0].operations[0];
    assert_eq!((put.name.as_str(), put.done), ("write", Some(980)));
    assert_eq!(put.failed, Failures::Counted(20));
    assert_eq!(put.rate, Some(39.2));
    assert_eq!(run.stages[0].seconds, Some(25.0));
    let ticks = &run.stages[0].timeline[0].ticks;
    let counts: Vec<_> = ticks.iter().map(|t| (t.second, t.done, t.failed)).collect();
    assert_eq!(
        counts,
        [
            (2.0, 60, Some(0)),
            (20.0, 530, Some(10)),
            (25.0, 390, Some(10))
        ]
    );
    write(
        folder.path(),
        "bench.log",
        "INFO x PUTS **FINAL** [20 failures], 40.0/s\n",
    );
    let error = import(folder.path()).unwrap_err().to_string();
    assert!(error.contains("bench.log, line 1"), "{error}");
}
