//! A run that is cancelled or killed goes on with the stages it lacks.

// Tests may panic.
#![allow(clippy::unwrap_used)]

mod store;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use cairn_lab::controller::{Conductor, LocalLink, Progress, Report};
use cairn_lab::drive::{Driver, Pools, Share};
use cairn_lab::plan::Plan;
use cairn_lab::record::{RunFolder, RunMeta, StageResult, State};
use cairn_lab::results::{RunWriter, read_folder};
use cairn_lab::resume::{Resume, ResumeError};
use cairn_lab::workload::{Options, Target, read};
use store::Store;

const WORKLOAD: &str = r#"
[defaults]
containers = "c(1)"
container_prefix = "c"
object_prefix = "o"
pool = "all"
[[stage]]
name = "prepare"
[[stage.work]]
type = "prepare"
objects = "r(1,20)"
sizes = "1KB"
[[stage]]
name = "read"
[[stage.work]]
total_ops = 30
operation = [{ type = "read" }]
[[stage]]
name = "long"
[[stage.work]]
runtime = "60s"
interval = "100ms"
operation = [{ type = "read" }]
[[stage]]
name = "bulk"
[[stage.work]]
total_ops = 5
operation = [{ type = "bulk-delete", batch = 10 }]
"#;

fn target(store: &Store) -> Target {
    Target {
        url: Some(store.auth_url()),
        user: Some("test:tester".to_owned()),
        key: Some("testing".to_owned()),
        ..Target::default()
    }
}

fn plan(store: &Store, text: &str) -> Plan {
    let mut plan = read("w.toml", text.as_bytes(), &Options::default())
        .unwrap()
        .plan;
    target(store).apply(&mut plan).unwrap();
    plan
}

/// Part of a run, up to some time in the stage `until`, where it is cancelled.
struct Part<'a> {
    plan: &'a Plan,
    meta: RunMeta,
    writer: RunWriter,
    finished: usize,
    pools: Pools,
    until: Option<&'a str>,
}

impl Part<'_> {
    fn run(self) -> RunMeta {
        let (report, reports) = mpsc::channel::<Report>();
        let driver = Driver {
            name: "driver1".into(),
            share: Share::WHOLE,
            seed: self.plan.seed,
            access: self.plan.access.clone(),
            options: Default::default(),
            threads: 1,
            pools: Arc::new(self.pools),
        };
        let link = LocalLink::new(driver, 0, report, None, Vec::new());
        let cancel = Arc::new(AtomicBool::new(false));
        let (ends, until) = (cancel.clone(), self.until);
        let conductor = Conductor {
            plan: self.plan.clone(),
            meta: self.meta,
            writer: self.writer,
            links: vec![Box::new(link)],
            reports,
            cancel,
            allow_programs: false,
            observer: &mut |progress| match progress {
                Progress::Sample(sample) if Some(&*sample.stage) == until => {
                    ends.store(true, Ordering::Relaxed);
                }
                _ => {}
            },
            finished: self.finished,
            reached: false,
            unusable: None,
        };
        conductor.run().unwrap()
    }
}

fn begun(plan: &Plan, folder: &Path, until: Option<&str>) -> RunMeta {
    let meta = RunMeta {
        version: 1,
        id: "test".into(),
        format: "lab".into(),
        started: cairn_lab::drive::now(),
        plan_digest: cairn_lab::compare::plan_digest(plan),
        ..RunMeta::default()
    };
    let writer = RunWriter::create(RunFolder::new(folder), &meta, plan, None).unwrap();
    Part {
        plan,
        meta,
        writer,
        finished: 0,
        pools: Pools::default(),
        until,
    }
    .run()
}

fn resumed(store: &Store, folder: &Path, until: Option<&str>) -> RunMeta {
    let mut resume = Resume::open(folder, vec!["resume".into()]).unwrap();
    let login = Target {
        url: None,
        ..target(store)
    };
    resume.sign_in(&login).unwrap();
    let (plan, meta, finished) = (resume.plan.clone(), resume.meta.clone(), resume.finished);
    let pools = resume.pools.as_ref().map(Pools::restored);
    let writer = resume.start(&meta).unwrap();
    Part {
        plan: &plan,
        meta,
        writer,
        finished,
        pools: pools.unwrap_or_default(),
        until,
    }
    .run()
}

fn by_name<'a>(stages: &'a [StageResult], name: &str) -> &'a StageResult {
    let mut found = stages.iter().filter(|stage| stage.name == name);
    let stage = found.next().unwrap();
    assert!(found.next().is_none(), "{name} is there twice");
    stage
}

fn short(folder: &Path) {
    // The long stage has a minute; whoever resumes does not wait for it.
    let plan = RunFolder::new(folder).plan();
    let text = std::fs::read_to_string(&plan).unwrap();
    let short = text.replace("\"runtime\": 60.0", "\"runtime\": 0.5");
    assert_ne!(text, short);
    std::fs::write(&plan, short).unwrap();
    let mut meta: serde_json::Value =
        serde_json::from_slice(&std::fs::read(RunFolder::new(folder).run()).unwrap()).unwrap();
    meta["plan_digest"] = "".into();
    std::fs::write(RunFolder::new(folder).run(), meta.to_string()).unwrap();
}

#[test]
fn a_cancelled_run_goes_on_with_what_it_lacks() {
    let store = Store::start(Box::new(|_, _| Duration::from_millis(1)));
    let plan = plan(&store, WORKLOAD);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("run");
    let meta = begun(&plan, &folder, Some("long"));
    assert_eq!(meta.state, State::Cancelled);
    let before = read_folder(&folder).unwrap();
    assert_eq!(by_name(&before.stages, "long").state, State::Cancelled);
    assert!(before.timeline.iter().any(|s| s.stage == "long"));
    let cut = before.timeline.iter().filter(|s| s.stage == "long");
    let cut: Vec<f64> = cut.map(|sample| sample.at).collect();
    store.take_seen();
    short(&folder);

    let meta = resumed(&store, &folder, None);
    assert_eq!((meta.state, meta.message.as_str()), (State::Completed, ""));
    let after = read_folder(&folder).unwrap();
    let json = |stage: &StageResult| serde_json::to_string(stage).unwrap();
    for name in ["prepare", "read"] {
        let [before, after] = [&before, &after].map(|run| json(by_name(&run.stages, name)));
        assert_eq!(before, after, "{name} stays as it was");
    }
    let long = by_name(&after.stages, "long");
    assert_eq!((long.state, long.number), (State::Completed, 3));
    let lines = after.timeline.iter().filter(|s| s.stage == "long");
    let lines: Vec<f64> = lines.map(|sample| sample.at).collect();
    assert!(!lines.is_empty() && lines.iter().all(|at| !cut.contains(at)));
    assert!(after.timeline.iter().any(|sample| sample.stage == "read"));
    // The pool of the stage that was not run again is known: all are deleted, none was missing.
    let seen = store.take_seen();
    assert!(seen.iter().all(|seen| seen.method != "PUT"));
    let deleted: usize = seen.iter().map(|seen| seen.lines.len()).sum();
    assert_eq!(deleted, 20);
    // Said in the record and on the page.
    let part = &meta.resumed[0];
    assert_eq!((part.before, &*part.stage), (State::Cancelled, "long"));
    let told = after.view().notes.join("\n");
    assert!(
        told.contains("was cancelled at ") && told.contains("with stage long; results of stages"),
        "{told}"
    );
    assert!(meta.seconds() < meta.ended.unwrap() - meta.started);
    let refused = Resume::open(&folder, Vec::new()).unwrap_err();
    assert!(
        matches!(
            refused,
            ResumeError::Ended {
                state: "completed",
                ..
            }
        ),
        "{refused}"
    );
}

/// Objects that a cancelled preparation had made are made again, and are in its pool once.
#[test]
fn a_preparation_that_was_cancelled_is_done_again() {
    let slow = |at: u64| if at < 24 { 100 } else { 1 };
    let store = Store::start(Box::new(move |at, _| Duration::from_millis(slow(at))));
    let first = WORKLOAD.replace("name = \"prepare\"", "name = \"first\"");
    let first = first.replace("r(1,20)", "r(101,105)");
    let (head, rest) = WORKLOAD.split_once("[[stage]]").unwrap();
    let (_, first) = first.split_once("[[stage]]").unwrap();
    let (first, _) = first.split_once("[[stage]]").unwrap();
    let text = format!("{head}[[stage]]{first}[[stage]]{rest}");
    let plan = plan(&store, &text.replace("60s", "500ms"));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("run");
    let meta = begun(&plan, &folder, Some("prepare"));
    assert_eq!(meta.state, State::Cancelled);
    // The request that was dropped is answered still.
    std::thread::sleep(Duration::from_millis(300));
    let made = store.take_seen().len();
    assert!((6..25).contains(&made), "{made}");
    let meta = resumed(&store, &folder, None);
    assert_eq!((meta.state, meta.message.as_str()), (State::Completed, ""));
    let seen = store.take_seen();
    assert_eq!(seen.iter().filter(|seen| seen.method == "PUT").count(), 20);
    let deleted: usize = seen.iter().map(|seen| seen.lines.len()).sum();
    assert_eq!(deleted, 25);
}

/// Steps of a search that had not come to its end are searched again.
#[test]
fn a_search_for_the_knee_begins_anew() {
    let store = Store::start(Box::new(|_, _| Duration::from_millis(1)));
    let text = WORKLOAD.replace("60s\"", "1s\"\nknee = { max_workers = 4, min_gain = 0.0 }");
    let plan = plan(&store, &text);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("run");
    begun(&plan, &folder, Some("long@4"));
    kill(&folder);
    let names = |folder: &Path| -> Vec<String> {
        let stages = read_folder(folder).unwrap().stages;
        stages.into_iter().map(|stage| stage.name).collect()
    };
    let steps = ["prepare", "read", "long@1", "long@2"];
    assert_eq!(names(&folder), steps);
    let meta = resumed(&store, &folder, None);
    assert_eq!(meta.resumed[0].stage, "long");
    assert_eq!(names(&folder), [&steps[..], &["long@4", "bulk"]].concat());
}

/// A killed process leaves the state `running`, and half a line.
fn kill(folder: &Path) {
    let folder = RunFolder::new(folder);
    let text = std::fs::read_to_string(folder.run()).unwrap();
    let mut meta: RunMeta = serde_json::from_str(&text).unwrap();
    meta.state = State::Running;
    meta.ended = None;
    std::fs::write(folder.run(), serde_json::to_vec(&meta).unwrap()).unwrap();
    let mut stages: Vec<StageResult> =
        serde_json::from_slice(&std::fs::read(folder.stages()).unwrap()).unwrap();
    stages.retain(|stage| stage.state == State::Completed);
    std::fs::write(folder.stages(), serde_json::to_vec(&stages).unwrap()).unwrap();
    let mut timeline = std::fs::read_to_string(folder.timeline()).unwrap();
    timeline.push_str(r#"{"stage": "lo"#);
    std::fs::write(folder.timeline(), timeline).unwrap();
    let mut saved: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.pools()).unwrap()).unwrap();
    saved["stage"] = stages.last().unwrap().number.into();
    std::fs::write(folder.pools(), saved.to_string()).unwrap();
}

#[test]
fn a_killed_run_goes_on_unless_its_pools_are_unknown() {
    let store = Store::start(Box::new(|_, _| Duration::from_millis(1)));
    let plan = plan(&store, WORKLOAD);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("run");
    begun(&plan, &folder, Some("long"));
    kill(&folder);
    short(&folder);
    let meta = resumed(&store, &folder, Some("long"));
    assert_eq!(meta.state, State::Cancelled);
    assert!(
        meta.notes[0].contains("the run was killed at "),
        "{:?}",
        meta.notes
    );
    // Again, as often as it takes.
    kill(&folder);
    let meta = resumed(&store, &folder, None);
    assert_eq!((meta.state, meta.resumed.len()), (State::Completed, 2));
    let lines = read_folder(&folder).unwrap().timeline;
    assert!(lines.iter().all(|sample| sample.stage != "lo"));
}

#[test]
fn what_cannot_go_on_says_why() {
    let store = Store::start(Box::new(|_, _| Duration::from_millis(1)));
    let plan = plan(&store, WORKLOAD);
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("run");
    let refused = |what: &str| {
        let told = Resume::open(&folder, Vec::new()).unwrap_err().to_string();
        assert!(told.contains(what), "{told}");
    };
    refused("run.json");
    begun(&plan, &folder, Some("long"));

    // Its process holds it.
    let meta = read_folder(&folder).unwrap().meta;
    let held = Resume::open(&folder, Vec::new()).unwrap();
    refused("still under way");
    drop(held);

    // Nobody tells the password.
    let mut resume = Resume::open(&folder, Vec::new()).unwrap();
    let told = resume.sign_in(&Target::default()).unwrap_err().to_string();
    assert!(told.contains("the store's password is not kept"), "{told}");
    drop(resume);

    // Which objects a killed stage had deleted is not known.
    let files = RunFolder::new(&folder);
    let stages = std::fs::read_to_string(files.stages()).unwrap();
    let pools = std::fs::read_to_string(files.pools()).unwrap();
    kill(&folder);
    let mut done: Vec<StageResult> = serde_json::from_str(&stages).unwrap();
    done[2].state = State::Completed;
    std::fs::write(files.stages(), serde_json::to_vec(&done).unwrap()).unwrap();
    std::fs::write(files.pools(), &pools).unwrap();
    refused("which of them it had deleted when it was killed is not known");

    // Pools that were elsewhere.
    std::fs::remove_file(files.pools()).unwrap();
    refused("was kept by drivers that are gone");
    std::fs::write(files.pools(), &pools).unwrap();

    // Another plan in the folder.
    let of_run = std::fs::read_to_string(files.plan()).unwrap();
    std::fs::write(files.plan(), of_run.replace("60.0", "61.0")).unwrap();
    refused("plan.json is not the plan that was run");
    std::fs::write(files.plan(), &of_run).unwrap();

    // A clean-up behind a preparation that failed.
    done[0].state = State::Failed;
    std::fs::write(files.stages(), serde_json::to_vec(&done).unwrap()).unwrap();
    refused("may be cleaned up");

    RunWriter::amend(
        &files,
        &RunMeta {
            state: State::Failed,
            ..meta
        },
    )
    .unwrap();
    refused("the run has ended (failed); run its workload anew: cairn lab run ");
}
