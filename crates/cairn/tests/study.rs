//! `cairn study run` on devices that are folders: cells are measured, a killed study goes on with what
//! is missing, and another call measures nothing again.

// A test that cannot go on ends.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const STUDY: &str = r#"
name = "small"
[repetitions]
least = 2
most = 2
[[cluster]]
name = "r${replicas}"
for.replicas = [1, 2]
replicas = "${replicas}"
part_power = 4
[[cluster.node]]
name = "s${n}"
count = 2
roles = ["account", "container", "object"]
zone = "${n}"
[[cluster.node.device]]
[[cluster.node]]
name = "p1"
roles = ["proxy"]
[[workload]]
name = "put"
file = "put.toml"
parameters = { objects = 40 }
[[figure]]
title = "PUT"
x = "replicas"
y = "put.per_s"
unit = "PUT/s"
[[figure.expect]]
what = "two replicas over one"
from.replicas = 1
to.replicas = 2
sign = -1
"#;

const WORKLOAD: &str = r#"
name = "put"
storage = { type = "swift" }
[parameters]
objects = 1
[defaults]
containers = "u(1,2)"
container_prefix = "c-"
sizes = "1KB"
pool = "objects"
[[stage]]
name = "init"
[[stage.work]]
type = "init"
[[stage]]
name = "put"
[[stage.work]]
name = "put"
workers = 4
total_ops = "${objects}"
operation = [{ type = "write" }]
"#;

fn start(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_cairn"))
        .args(["study", "run"])
        .arg(dir.join("small.toml"))
        .arg("--out")
        .arg(dir.join("out"))
        .arg("--scratch")
        .arg(dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn cells(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir.join("out/cells"));
    let mut cells: Vec<_> = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("cell.json").is_file())
        .filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'))
        .collect();
    cells.sort();
    cells
}

fn written(cells: &[std::path::PathBuf]) -> Vec<SystemTime> {
    let time = |cell: &std::path::PathBuf| {
        std::fs::metadata(cell.join("cell.json"))
            .unwrap()
            .modified()
            .unwrap()
    };
    cells.iter().map(time).collect()
}

#[test]
fn a_killed_study_goes_on_with_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), STUDY).unwrap();
    std::fs::write(dir.path().join("put.toml"), WORKLOAD).unwrap();
    let mut child = start(dir.path());
    let deadline = Instant::now() + Duration::from_secs(300);
    while cells(dir.path()).is_empty() && Instant::now() < deadline {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before its first cell"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (before, times) = (cells(dir.path()), written(&cells(dir.path())));
    assert!(!before.is_empty());

    assert!(start(dir.path()).wait().unwrap().success());
    let after = cells(dir.path());
    assert_eq!(after.len(), 4);
    assert!(before.iter().all(|cell| after.contains(cell)));
    assert_eq!(
        written(&before),
        times,
        "a cell that was there was measured again"
    );
    let all = written(&after);
    assert!(start(dir.path()).wait().unwrap().success());
    assert_eq!(written(&cells(dir.path())), all);

    let outcome = std::fs::read_to_string(after[0].join("cell.json")).unwrap();
    for part in ["\"accepted\"", "\"put.per_s\"", "\"lateness\"", "\"seed\""] {
        assert!(outcome.contains(part), "{part}: {outcome}");
    }
    let page = std::fs::read_to_string(dir.path().join("out/report.html")).unwrap();
    assert!(page.contains("nothing emulated") && page.contains("two replicas over one"));
    let left = std::fs::read_dir(dir.path()).unwrap();
    let scratch = left.filter(|e| {
        let name = e.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("cairn-study-")
    });
    assert_eq!(scratch.count(), 0, "scratch folders are left");
}
