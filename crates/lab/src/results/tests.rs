//! A small run recorded manually, through every file it leaves.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use super::model::{Failures, State as ViewState};
use super::*;
use crate::latencies::Latencies;
use crate::open::open;
use crate::plan::{OperationKind, Plan, Stage, WorkKind};
use crate::record::{
    ErrorKind, Event, OperationResult, OperationSample, RunFolder, RunMeta, Sample, StageResult,
    State, WorkResult, WorstRequest,
};

const START: f64 = 1_795_309_323.0;

fn latencies(ms: &[u64]) -> Latencies {
    let mut latencies = Latencies::new();
    for ms in ms {
        latencies.record(ms * 1_000_000);
    }
    latencies
}

fn operation(class: &str, ms: &[u64]) -> OperationResult {
    OperationResult {
        name: "read".into(),
        kind: OperationKind::Read,
        size_class: class.into(),
        ops: ms.len() as u64,
        bytes: 1000 * ms.len() as u64,
        first_byte: latencies(&[1]),
        last_byte: latencies(ms),
        ..OperationResult::default()
    }
}

fn main_stage() -> StageResult {
    let mut small = operation("<10KB", &[1, 4, 5, 9]);
    small.errors = BTreeMap::from([(ErrorKind::Status(503), 1)]);
    small.worst.push(WorstRequest {
        at: START + 3.0,
        container: "c1".into(),
        object: "o1".into(),
        last_byte_ns: 9_000_000,
        transaction: "tx42".into(),
        ..WorstRequest::default()
    });
    StageResult {
        number: 2,
        name: "main".into(),
        state: State::Completed,
        started: START + 1.0,
        ended: START + 6.0,
        works: vec![WorkResult {
            name: "w".into(),
            kind: WorkKind::Main,
            workers: 8,
            seconds: 4.0,
            operations: vec![small, operation("<1MB", &[10, 15, 25, 600_000])],
            ..WorkResult::default()
        }],
        history: vec![
            Event {
                at: START + 1.0,
                what: "running".into(),
            },
            Event {
                at: START + 6.0,
                what: "completed".into(),
            },
        ],
        ..StageResult::default()
    }
}

fn prepare_stage() -> StageResult {
    let mut prepare = operation("", &[2]);
    prepare.name = "prepare".into();
    prepare.kind = OperationKind::Prepare;
    StageResult {
        number: 1,
        name: "s1-prepare".into(),
        state: State::Completed,
        started: START,
        ended: START + 1.0,
        works: vec![WorkResult {
            name: "p".into(),
            kind: WorkKind::Prepare,
            workers: 1,
            seconds: 1.0,
            operations: vec![prepare],
            ..WorkResult::default()
        }],
        ..StageResult::default()
    }
}

fn sample(at: f64, ops: u64) -> Sample {
    Sample {
        stage: "main".into(),
        work: "w".into(),
        at: START + at,
        seconds: 2.0,
        operations: vec![OperationSample {
            name: "read".into(),
            kind: OperationKind::Read,
            ops,
            bytes: 1000 * ops,
            errors: 1,
            mean_ns: 5e6,
            p50_ns: 5_000_000,
            p99_ns: 9_000_000,
            max_ns: 9_000_000,
            ..OperationSample::default()
        }],
        ..Sample::default()
    }
}

fn plan() -> Plan {
    let stage = |name: &str| Stage {
        name: name.into(),
        ..Stage::default()
    };
    let mut plan = Plan {
        name: "small".into(),
        stages: vec![stage("s1-prepare"), stage("main"), stage("dispose")],
        ..Plan::default()
    };
    let secret = BTreeMap::from([("password".to_owned(), "sesame".to_owned())]);
    plan.access.auth.config = secret;
    plan
}

/// A run whose second stage failed, so that the third never began.
fn record(root: &Path) -> RunWriter {
    let meta = RunMeta {
        version: 1,
        id: "20261122T010203-small".into(),
        name: "small".into(),
        started: START,
        ..RunMeta::default()
    };
    let workload = Some(("xml", &b"<workload/>"[..]));
    let mut writer = RunWriter::create(RunFolder::new(root), &meta, &plan(), workload).unwrap();
    writer.stage(prepare_stage()).unwrap();
    writer.sample(&sample(3.0, 3)).unwrap();
    writer.sample(&sample(5.0, 5)).unwrap();
    writer.stage(main_stage()).unwrap();
    let ended = RunMeta {
        state: State::Failed,
        ended: Some(START + 6.0),
        message: "main: too many failures".into(),
        ..meta
    };
    writer.meta(&ended).unwrap();
    writer
}

#[test]
fn what_is_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let run = read_folder(folder.path()).unwrap().view();
    assert_eq!(run.state, ViewState::Failed);
    assert_eq!(run.notes[0], "main: too many failures");
    let ids: Vec<_> = run
        .stages
        .iter()
        .map(|s| (s.id.as_str(), s.state))
        .collect();
    assert_eq!(
        ids,
        [
            ("s1-prepare", ViewState::Completed),
            ("s2-main", ViewState::Completed),
            ("s3-dispose", ViewState::Aborted)
        ]
    );
    let stage = &run.stages[1];
    assert_eq!(stage.workers, Some(8));
    let whole: Vec<_> = stage.whole_operations().collect();
    let [read] = whole.as_slice() else {
        panic!("{whole:?}");
    };
    assert_eq!((read.done, read.failed), (Some(8), Failures::Counted(1)));
    assert_eq!(read.rate, Some(2.0));
    // Two classes are shown below their sum.
    assert_eq!(stage.operations.len(), 3);
    assert_eq!(stage.worst[0].transaction_id.as_deref(), Some("tx42"));
    assert_eq!(stage.timeline[0].ticks[1].rate, Some(2.5));
    assert_eq!(open(folder.path()).unwrap(), [run]);
}

#[test]
fn passwords_do_not_reach_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let text = std::fs::read_to_string(folder.path().join("plan.json")).unwrap();
    assert!(!text.contains("sesame"), "{text}");
    assert!(text.contains("(hidden)"), "{text}");
}

#[test]
fn a_folder_takes_one_run() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let again = RunWriter::create(
        RunFolder::new(folder.path()),
        &RunMeta::default(),
        &plan(),
        None,
    );
    assert!(matches!(again, Err(WriteError::Occupied { .. })));
}

/// Killed within the second stage: one complete stage, samples of the next, half a line.
#[test]
fn a_killed_run_is_shown_as_far_as_it_came() {
    let folder = tempfile::tempdir().unwrap();
    let meta = RunMeta {
        version: 1,
        name: "small".into(),
        started: START - 1e6,
        ..RunMeta::default()
    };
    let root = RunFolder::new(folder.path());
    let mut writer = RunWriter::create(root.clone(), &meta, &plan(), None).unwrap();
    writer.stage(prepare_stage()).unwrap();
    let mut old = sample(3.0, 3);
    old.at = 1000.0;
    writer.sample(&old).unwrap();
    drop(writer);
    let file = std::fs::OpenOptions::new()
        .append(true)
        .open(root.timeline());
    file.unwrap().write_all(b"{\"stage\":\"ma").unwrap();

    let run = read_folder(folder.path()).unwrap().view();
    assert_eq!(run.state, ViewState::Interrupted);
    let states: Vec<_> = run.stages.iter().map(|s| s.state).collect();
    let interrupted = ViewState::Interrupted;
    assert_eq!(states, [ViewState::Completed, interrupted, interrupted]);
    assert_eq!(run.stages[1].operations[0].done, Some(3));
    assert_eq!(run.stages[1].operations[0].failed, Failures::Counted(1));
}

/// The importer reads what is written in COSBench's format.
#[test]
fn cosbench_tables_have_cosbenchs_columns() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let recorded = read_folder(folder.path()).unwrap();
    let out = tempfile::tempdir().unwrap();
    write_tables(out.path(), &recorded).unwrap();
    let read = |name: &str| std::fs::read_to_string(out.path().join(name)).unwrap();

    let table = read("w1-small.csv");
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(
        rows[1],
        "s1-prepare,prepare-write,prepare,1,1000,2,2,2,2,2,2,2,2,1,1000,100%,completed,"
    );
    let detailed = "running @ 2026-11-22 01:02:04,completed @ 2026-11-22 01:02:09";
    assert_eq!(
        rows[2],
        format!(
            "s2-main,read,read,8,8000,{},1,10,25,600222,600222,600222,600222,2,2000,88.89%,\
             completed,{detailed}",
            rows[2].split(',').nth(5).unwrap()
        )
    );
    assert_eq!(
        rows[3],
        format!(
            "dispose{},aborted,aborted @ 2026-11-22 01:02:09",
            ",N/A".repeat(15)
        )
    );

    let timeline = read("s2-main.csv");
    assert_eq!(
        timeline,
        "Timestamp,Op-Count,Byte-Count,Avg-ResTime,Avg-ProcTime,Throughput,Bandwidth,Succ-Ratio,\
         Version-Info,,\n\
         ,read,read,read,read,read,read,read,Min-Version,Version,Max-Version\n\
         01:02:06,3,3000,5,5,1.5,1500,75%,0,0,0\n\
         01:02:08,5,5000,5,5,2.5,2500,83.33%,1,1,1\n"
    );

    let histogram = read("w1-small-rt-histogram.csv");
    let rows: Vec<&str> = histogram.lines().collect();
    assert_eq!(rows.len(), 50_002);
    assert_eq!(rows[0], "ResTime,s2-main-w1-w-read,(%)");
    assert_eq!(rows[1], "0~10,4,50%");
    assert_eq!(rows[2], "10~20,2,75%");
    assert_eq!(rows[3], "20~30,1,87.5%");
    assert_eq!(rows[50_001], "500000~+INF,1,100%");

    let imported = crate::import::import(out.path()).unwrap().remove(0);
    assert_eq!(imported.stages[1].operations[0].done, Some(8));
    assert_eq!(imported.stages[1].operations[0].latency.curve.len(), 5);
    assert_eq!(imported.stages[2].state, ViewState::Aborted);
}

#[test]
fn hlog_is_read_by_hdrhistogram() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let recorded = read_folder(folder.path()).unwrap();
    write_tables(folder.path(), &recorded).unwrap();
    let log = std::fs::read(folder.path().join("latency.hlog")).unwrap();
    let mut tags = Vec::new();
    for entry in IntervalLogIterator::new(&log) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            let tag = interval.tag().map(|t| t.as_str().to_owned());
            tags.push((tag.unwrap(), interval.start_timestamp().as_secs_f64()));
        }
    }
    let expected = [
        ("s1-prepare:p:prepare:first", 0.0),
        ("s1-prepare:p:prepare:last", 0.0),
        ("s2-main:w:read:first", 1.0),
        ("s2-main:w:read:last", 1.0),
    ];
    assert_eq!(tags, expected.map(|(tag, at)| (tag.to_owned(), at)));
}

#[test]
fn own_tables_have_a_row_per_class() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let recorded = read_folder(folder.path()).unwrap();
    write_tables(folder.path(), &recorded).unwrap();
    let text = std::fs::read_to_string(folder.path().join("operations.csv")).unwrap();
    let rows = csv::rows(&text);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    let column = |name: &str| rows[0].iter().position(|h| h == name).unwrap();
    let cells = |name: &str| {
        rows[1..]
            .iter()
            .map(|r| r[column(name)].as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(cells("size_class"), ["", "", "<10KB", "<1MB", ""]);
    assert_eq!(cells("succeeded"), ["1", "8", "4", "4", ""]);
    assert_eq!(cells("last_byte_p50_ms")[2], "4.002");
    let errors = std::fs::read_to_string(folder.path().join("errors.csv")).unwrap();
    assert!(errors.contains("s2-main,w,read,,http 503,1\n"), "{errors}");
}

/// A second without completions is a row of zeros in the table, not a slope in the plot.
#[test]
fn an_empty_interval_has_a_row() {
    let empty = |at| Sample {
        operations: Vec::new(),
        ..sample(at, 0)
    };
    let timeline = vec![sample(2.0, 3), empty(3.0), empty(4.0), sample(5.0, 2)];
    let recorded = Recorded {
        stages: vec![main_stage()],
        timeline,
        ..Recorded::default()
    };
    let view = recorded.view();
    let ticks = &view.stages[0].timeline[0].ticks;
    let rows: Vec<_> = ticks.iter().map(|tick| (tick.done, tick.rate)).collect();
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert_eq!(rows[1], (0, Some(0.0)));
    assert_eq!(
        ticks[2].p99_us, None,
        "no latency where nothing was answered"
    );
    let folder = tempfile::tempdir().unwrap();
    write_run_tables(folder.path(), &view).unwrap();
    let table = std::fs::read_to_string(folder.path().join("timeline.csv")).unwrap();
    assert_eq!(table.lines().count(), 5, "{table}");
}

/// Two operations of one name, as ssbench's size classes make them.
#[test]
fn classes_of_one_name_have_a_line_each() {
    let classes = |at: f64| {
        let mut sample = sample(at, 3);
        let mut huge = sample.operations[0].clone();
        sample.operations[0].size_class = "tiny".into();
        (huge.size_class, huge.ops, huge.mean_ns) = ("huge".into(), 1, 9e6);
        sample.operations.push(huge);
        sample
    };
    let recorded = Recorded {
        stages: vec![main_stage()],
        timeline: vec![classes(2.0), classes(4.0)],
        ..Recorded::default()
    };
    let view = recorded.view();
    let lines: Vec<_> = view.stages[0]
        .timeline
        .iter()
        .map(|line| (line.operation.as_str(), line.ticks.len()))
        .collect();
    assert_eq!(lines, [("read huge", 2), ("read tiny", 2)]);
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path(), &recorded).unwrap();
    let table = std::fs::read_to_string(folder.path().join("s2-main.csv")).unwrap();
    let row = csv::rows(&table).pop().unwrap();
    // Four operations in all, of which a quarter took 9 ms and the others 5.
    assert_eq!((row[1].as_str(), row[3].as_str()), ("4", "6"), "{table}");
}

#[test]
fn names_longer_than_a_file_system_takes_are_cut() {
    let mut recorded = Recorded {
        stages: vec![main_stage()],
        ..Recorded::default()
    };
    recorded.meta.name = "ü/長".repeat(200);
    recorded.stages[0].name = "長".repeat(300);
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path(), &recorded).unwrap();
    let names = std::fs::read_dir(folder.path()).unwrap();
    let longest = names.map(|entry| entry.unwrap().file_name().len()).max();
    assert!((150..200).contains(&longest.unwrap()), "{longest:?}");
}

/// The importer reads ssbench's table of a run.
#[test]
fn ssbench_reads_its_own_table() {
    let mut recorded = Recorded {
        stages: vec![prepare_stage(), main_stage()],
        ..Recorded::default()
    };
    recorded.meta.format = "ssbench".into();
    recorded.meta.name = "small, \"mixed\"".into();
    let work = &mut recorded.stages[1].works[0];
    work.operations[0].size_class = "tiny".into();
    work.operations[1].size_class = "huge".into();
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path(), &recorded).unwrap();
    let table = folder.path().join("ssbench.csv");
    let run = crate::import::import(&table).unwrap().remove(0);
    assert_eq!(run.name, "small, \"mixed\"");
    let stage = &run.stages[0];
    assert_eq!(stage.workers, Some(8));
    let rows: Vec<_> = stage
        .operations
        .iter()
        .map(|o| (o.name.as_str(), o.size_class.as_deref(), o.done))
        .collect();
    assert_eq!(
        rows,
        [
            ("read", None, Some(8)),
            ("read", Some("tiny"), None),
            ("read", Some("huge"), None)
        ]
    );
    let read = &stage.operations[0];
    assert_eq!(read.failed, Failures::Counted(1));
    assert_eq!(read.rate, Some(2.0));
    let tiny = &stage.operations[1].latency;
    assert!((tiny.max_us.unwrap() - 9000.0).abs() < 10.0, "{tiny:?}");
    assert_eq!(stage.worst[0].transaction_id.as_deref(), Some("tx42"));

    recorded.meta.format = "cosbench".into();
    let other = tempfile::tempdir().unwrap();
    write_tables(other.path(), &recorded).unwrap();
    assert!(!other.path().join("ssbench.csv").exists());
}
