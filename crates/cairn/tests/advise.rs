//! `cairn advise` from a host to an answer: a quick calibration on this one, then what follows from it.

#![allow(clippy::expect_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn advise(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    command
        .current_dir(folder)
        .arg("advise")
        .args(arguments.split_whitespace());
    command.output().expect("cairn starts")
}

fn told(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn done(folder: &Path, arguments: &str) -> String {
    let output = advise(folder, arguments);
    assert!(output.status.success(), "{arguments}: {}", told(&output));
    told(&output)
}

const CLUSTER: &str = "\
name = \"host\"
[[node]]
name = \"host\"
roles = [\"proxy\", \"storage\", \"load\"]
cores = 2
memory = \"8GB\"
[[node.disk]]
medium = \"disk\"
devices = 4
device_zones = true
bytes = \"10GB\"
";
const WORKLOAD: &str = "sizes = \"4KB\"\nread = 1\nwrite = 1\nworkers = 4\n";
const CATALOGUE: &str = "\
[[disk]]
name = \"d\"
medium = \"disk\"
bytes = \"4TB\"
price = 100
[[node]]
name = \"n\"
roles = [\"proxy\", \"storage\"]
price = 2000
cores = 4
memory = \"32GB\"
nic = \"1GB\"
slots = 4
disks = [\"d\"]
";
const LIMITS: &str = "capacity = \"10TB\"\nthroughput = 1\nnodes_max = 4\nsimulations = 3\n";

#[test]
fn from_a_host_to_an_answer() {
    // Beside the program: on a disk, where /tmp may be memory.
    let program = Path::new(env!("CARGO_BIN_EXE_cairn"));
    let beside = program.parent().expect("a folder");
    let folder = tempfile::tempdir_in(beside).expect("a folder");
    let at = folder.path();
    for (name, text) in [
        ("cluster.toml", CLUSTER),
        ("workload.toml", WORKLOAD),
        ("catalogue.toml", CATALOGUE),
        ("limits.toml", LIMITS),
    ] {
        fs::write(at.join(name), text).expect("a file");
    }
    let output = advise(at, "predict cluster.toml workload.toml");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told(&output).contains("calibration.toml"),
        "{}",
        told(&output)
    );

    let measured = done(at, "measure --quick --seconds 1");
    assert!(measured.contains("sync shared by 24"), "{measured}");
    assert_eq!(
        fs::read_dir(at.join("calibration-cells"))
            .expect("cells")
            .count(),
        4
    );
    let predicted = done(at, "predict cluster.toml workload.toml --lost-zone r1z2");
    for part in [
        "throughput",
        "p95",
        "limit:",
        "without r1z2",
        "no cell was held out",
    ] {
        assert!(predicted.contains(part), "{part}: {predicted}");
    }
    assert_eq!(
        predicted,
        done(at, "predict cluster.toml workload.toml --lost-zone r1z2")
    );

    let question =
        "least-cost --catalogue catalogue.toml --workload workload.toml --limits limits.toml";
    let refused = advise(at, question);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        told(&refused).contains("calls between processes"),
        "{}",
        told(&refused)
    );
    let answered = done(at, &format!("{question} --extrapolate --out advice"));
    assert!(
        answered.contains("outside of what was measured"),
        "{answered}"
    );
    let page = fs::read_to_string(at.join("advice/advice.html")).expect("a page");
    assert!(page.contains("<h1>Least cost</h1>") && page.contains("<circle"));
    done(
        at,
        "predict advice/cluster.toml workload.toml --extrapolate",
    );

    done(at, "validate predict --count 1 --seed 4");
    let run = done(
        at,
        "validate run predictions.json --seconds 1 --repetitions 1",
    );
    assert!(run.contains("/s, p50"), "{run}");
    let score = done(
        at,
        "validate score predictions.json --beside-others --update calibration.toml --out score",
    );
    assert!(score.contains("| simulation |") && at.join("score/score.json").exists());
    let predicted = done(at, "predict cluster.toml workload.toml");
    assert!(
        predicted.contains("validated on 1 real cells"),
        "{predicted}"
    );
    // No store, and nothing of one, is left.
    let left: Vec<String> = fs::read_dir(at)
        .expect("the folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.starts_with("advise-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
