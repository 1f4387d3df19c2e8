//! The lab's own TOML.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::{Options, read};
use super::{plan, refused};
use crate::plan::{
    Arrivals, Content, Division, Draw, Objects, OperationKind, Pacing, Think, WorkKind,
};
use crate::selector::Selector;

const WHOLE: &str = r#"
name = "whole"
description = "all keys"
seed = 42
auth = { type = "swauth", username = "test:tester", password = "testing" }
storage = { type = "swift", policy = "gold" }

[parameters]
time = "10m"
objects = 1_000

[defaults]
workers = 2
containers = "u(1,20)"
container_prefix = "c-"
object_prefix = "o-"
objects = "u(1,${objects})"
sizes = "64KB"

[[stage]]
name = "init"
trigger = "watch.sh(1, 2)"
[[stage.work]]
type = "init"

[[stage]]
name = "prepare"
close_delay = "1m30s"
[[stage.work]]
type = "prepare"
workers = 0x10
containers = "r(1,20)"
objects = "r(1,${objects})"

[[stage]]
name = "open"
[[stage.work]]
name = "users"
workers = 64
runtime = "${time}"
rampup = 2.5
rampdown = "200ms"
rate = 250.5
arrivals = "constant"
afr = 1000
division = "object"
interval = "1s"
driver = "two"
steady = { window = "30s", tolerance = 0.1 }
auth = { type = "none" }
[[stage.work.operation]]
type = "read"
ratio = 80
objects = "zipf(1,${objects},0.99)"
range = { length = "u(4KB,64KB)", align = "4KiB", object = "1MB" }
hashcheck = true
[[stage.work.operation]]
type = "write"
ratio = 20
name = "uploads"
size_class = "large"
sizes = "h(1|64|10,64|512|70)MB"
part_size = "8MiB"
chunked = true
content = "zero"
headers = { "X-Delete-After" = 60 }

[[stage]]
name = "pool"
[[stage.work]]
runtime = "1m"
think = "u(50ms,150ms)"
knee = { max_workers = 512, p99_limit = "200ms" }
pool = "p"
draw = "oldest"
[[stage.work.operation]]
type = "update"
[[stage.work.operation]]
type = "filewrite"
files = "/tmp"

[[stage]]
close_delay = 5
"#;

#[test]
fn keys_of_stages() {
    let plan = plan(WHOLE);
    assert_eq!((plan.seed, plan.format.as_str()), (42, "lab"));
    assert_eq!(plan.access.storage.config["policy"], "gold");
    assert_eq!(plan.access.auth.kind, "swauth");
    let names: Vec<&str> = plan
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(names, ["init", "prepare", "open", "pool", "stage5"]);
    assert_eq!(
        plan.stages[0].trigger.as_ref().unwrap().arguments,
        ["1", "2"]
    );
    assert_eq!(plan.stages[1].close_delay, Duration::from_secs(90));
    let init = &plan.stages[0].works[0];
    assert_eq!((init.kind, init.workers, init.afr), (WorkKind::Init, 2, 0));
    assert_eq!(init.division, Division::Container);
    assert_eq!(
        init.operations[0].containers.numbers,
        Selector::Range { low: 1, high: 20 }
    );
    let prepare = &plan.stages[1].works[0];
    assert_eq!(
        (prepare.workers, prepare.operations[0].kind),
        (16, OperationKind::Prepare)
    );
    assert_eq!(
        prepare.operations[0].sizes,
        Some(Selector::Constant(64_000))
    );
}

#[test]
fn keys_of_an_open_work() {
    let plan = plan(WHOLE);
    let open = &plan.stages[2].works[0];
    assert_eq!(open.runtime, Some(Duration::from_secs(600)));
    assert_eq!(
        (open.rampup, open.rampdown),
        (Duration::from_millis(2500), Duration::from_millis(200))
    );
    assert_eq!(
        open.pacing,
        Pacing::Open {
            rate: 250.5,
            arrivals: Arrivals::Constant
        }
    );
    assert_eq!(
        (open.afr, open.interval, open.division),
        (1000, Duration::from_secs(1), Division::Object)
    );
    assert_eq!(open.driver.as_deref(), Some("two"));
    let steady = open.steady.unwrap();
    assert_eq!(
        (steady.window, steady.tolerance),
        (Duration::from_secs(30), 0.1)
    );
    assert_eq!(open.access.as_ref().unwrap().auth.kind, "none");
    let [read, write] = open.operations.as_slice() else {
        panic!()
    };
    assert_eq!(
        (read.ratio, read.name.as_str(), read.hashcheck),
        (80.0, "read", true)
    );
    let Objects::Numbered(names) = &read.objects else {
        panic!()
    };
    assert_eq!(
        names.numbers,
        Selector::Zipf {
            low: 1,
            high: 1000,
            exponent: 0.99
        }
    );
    assert_eq!(names.prefix, "o-");
    let range = read.range.as_ref().unwrap();
    assert_eq!(
        range.length,
        Selector::Uniform {
            low: 4000,
            high: 64_000
        }
    );
    assert_eq!((range.align, range.object_bytes), (4096, 1_000_000));
    assert_eq!(
        (write.name.as_str(), write.size_class.as_deref()),
        ("uploads", Some("large"))
    );
    assert_eq!(
        (write.part_bytes, write.chunked, write.content),
        (Some(8 << 20), true, Content::Zero)
    );
    assert_eq!(write.headers["X-Delete-After"], "60");
    assert_eq!(write.range, None);
}

#[test]
fn keys_of_a_closed_work_over_a_pool() {
    let plan = plan(WHOLE);
    let pool = &plan.stages[3].works[0];
    let think = Think::Uniform {
        low: Duration::from_millis(50),
        high: Duration::from_millis(150),
    };
    assert_eq!(pool.pacing, Pacing::Closed { think: Some(think) });
    let knee = pool.knee.unwrap();
    assert_eq!(
        (knee.factor, knee.max_workers, knee.min_gain),
        (2.0, 512, 0.05)
    );
    assert_eq!(knee.p99_limit, Some(Duration::from_millis(200)));
    assert!(matches!(
        &pool.operations[0].objects,
        Objects::Pool { pool, draw: Draw::Oldest, .. } if pool == "p"
    ));
    assert_eq!(pool.operations[1].files.as_deref(), Some("/tmp"));
}

const SWEPT: &str = r#"
scale = "full"
[parameters]
runtime = "10m"
big = 1
[scales.full]
[scales.quick]
runtime = "2s"
[[stage]]
for.size = ["4KB", "10MB"]
for.mix = [{ name = "mixed", r = 80, w = "${big}" }, { r = 100, w = 0 }]
[[stage.stage]]
name = "prepare-${size}"
repeat = 2
[[stage.stage.work]]
type = "prepare"
containers = 1
objects = "r(1,5)"
sizes = "${size}"
[[stage.stage]]
name = "main"
for.workers = [1, 512]
[[stage.stage.work]]
workers = "${workers}"
runtime = "${runtime}"
containers = 1
objects = 1
sizes = "${size}"
operation = [{ type = "read", ratio = "${mix.r}" }, { type = "write", ratio = "${mix.w}" }]
"#;

#[test]
fn sweeps_nest_and_are_remembered() {
    let plan = plan(SWEPT);
    let names: Vec<&str> = plan
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(names.len(), 16);
    assert_eq!(
        &names[..5],
        [
            "prepare-4KB",
            "prepare-4KB-2",
            "main-mixed-4KB-1",
            "main-mixed-4KB-512",
            "prepare-4KB-3"
        ]
    );
    let swept: Vec<(&str, &str)> = plan.stages[3]
        .swept
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        swept,
        [("mix", "mixed"), ("size", "4KB"), ("workers", "512")]
    );
    assert_eq!(plan.stages[1].swept["repetition"], "2");
    assert_eq!(
        plan.stages[6].swept["mix"], "100/0",
        "without a name, its values"
    );
    let last = &plan.stages[15].works[0];
    assert_eq!(
        (last.workers, last.runtime),
        (512, Some(Duration::from_secs(600)))
    );
    assert_eq!(
        last.operations[1].sizes,
        Some(Selector::Constant(10_000_000))
    );
    assert_eq!(last.operations[1].ratio, 0.0);
}

fn at(scale: Option<&str>, parameters: &[(&str, &str)]) -> Result<Option<Duration>, String> {
    let options = Options {
        scale: scale.map(str::to_owned),
        parameters: parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        ..Options::default()
    };
    read("file", SWEPT.as_bytes(), &options)
        .map(|workload| workload.plan.stages[2].works[0].runtime)
        .map_err(|error| error.to_string())
}

#[test]
fn a_scale_changes_parameters() {
    assert_eq!(at(Some("quick"), &[]), Ok(Some(Duration::from_secs(2))));
    assert_eq!(
        at(Some("quick"), &[("runtime", "7")]),
        Ok(Some(Duration::from_secs(7)))
    );
    let error = at(Some("huge"), &[]).unwrap_err();
    assert!(error.contains("full, quick"), "{error}");
}

#[test]
fn searches_copies_and_batches_are_checked() {
    let work = "[[stage]]\n[[stage.work]]\nruntime = 1\ncontainers = 1\nobjects = 1\n";
    let with = |rest: &str| format!("{work}{rest}");
    let read = "operation = [{ type = \"read\" }]\n";
    for (text, line, column, expected) in [
        (
            with(&format!("knee = {{ max_rate = 9 }}\n{read}")),
            6,
            21,
            "'rate' at the work",
        ),
        (
            with(&format!(
                "rate = 5\nknee = {{ max_rate = 9, max_workers = 4 }}\n{read}"
            )),
            7,
            21,
            "one of both",
        ),
        (
            with("copy_suffix = \"\"\noperation = [{ type = \"copy\" }]"),
            6,
            15,
            "copy_container_suffix",
        ),
        (
            with("batch = 20_000\noperation = [{ type = \"bulk-delete\" }]"),
            6,
            9,
            "10000",
        ),
    ] {
        let error = refused(&text);
        assert_eq!((error.line, error.column), (line, column), "{error}");
        assert!(error.expected.contains(expected), "{error}\n{text}");
    }
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let work = "[[stage]]\n[[stage.work]]\nruntime = 1\ncontainers = 1\nobjects = 1\n";
    let with = |rest: &str| format!("{work}{rest}");
    let read = "operation = [{ type = \"read\" }]\n";
    for (text, line, column, expected) in [
        ("nam = 1".to_owned(), 1, 1, "name"),
        ("name = ".to_owned(), 1, 8, "TOML"),
        ("name = \"a\"\n".to_owned(), 1, 1, "[[stage]]"),
        (with("operation = 5"), 6, 13, "[[operation]]"),
        (with("operation = [{ type = \"raed\" }]"), 6, 23, "read"),
        (with("operation = [{ ratio = 5 }]"), 6, 14, "type"),
        (with("operation = [{ type = \"write\" }]"), 6, 14, "sizes"),
        (
            with("operation = [{ type = \"read\", ratio = -1 }]"),
            6,
            39,
            "from 0",
        ),
        (with(&format!("workers = 0\n{read}")), 6, 11, "from 1"),
        (
            with(&format!("workers = \"${{w}}\"\n{read}")),
            6,
            11,
            "name of",
        ),
        (
            with(&format!("rampup = \"5 weeks\"\n{read}")),
            6,
            10,
            "seconds",
        ),
        (with(&format!("rampup = inf\n{read}")), 6, 10, "seconds"),
        (
            with(&format!("think = 1\nrate = 5\n{read}")),
            6,
            9,
            "one of them",
        ),
        (with(&format!("pool = [1]\n{read}")), 6, 8, "text"),
        (
            with("operation = [{ type = \"read\", ratio = 0 }]"),
            2,
            1,
            "above 0",
        ),
        (work.to_owned(), 2, 1, "operation"),
        (
            format!("[[stage]]\n[[stage.work]]\ncontainers = 1\nobjects = 1\n{read}"),
            2,
            1,
            "runtime",
        ),
        ("[[stage]]\nname = \"x\"".to_owned(), 1, 1, "work"),
        (
            "[[stage]]\nfor.a = 5\nclose_delay = 1".to_owned(),
            2,
            9,
            "list",
        ),
        (
            "[[stage]]\nclose_delay = 1\n[[stage.stage]]\nclose_delay = 1".to_owned(),
            2,
            15,
            "stage.stage",
        ),
        (
            "scale = \"x\"\n[[stage]]\nclose_delay = 1".to_owned(),
            1,
            9,
            "no scale",
        ),
    ] {
        let error = refused(&text);
        assert_eq!(
            (error.line, error.column),
            (line, column),
            "{error}\n{text}"
        );
        assert!(error.expected.contains(expected), "{error}\n{text}");
    }
}
