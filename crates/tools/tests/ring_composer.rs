//! Composite rings: combinations that are made and refused, and comparison in both directions with
//! OpenStack Swift's `swift-ring-composer`, if `CAIRN_SWIFT_PYTHON` names a Python that has it.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use cairn_ring::{CompositeBuilder, NewDevice, RebalanceOptions, Ring, RingBuilder, Seed};
use cairn_tools::ring_builder;
use serde_json::Value;
use tempfile::TempDir;

struct Desk(TempDir);

/// Output and exit code of a command.
#[derive(Debug, PartialEq)]
struct Output {
    code: i32,
    out: String,
    err: String,
}

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Splits a line into words; words that name files become paths in this folder.
    fn words(&self, line: &str) -> Vec<String> {
        let path = |word: &str| match word.contains('.') && !word.contains('-') {
            true => self.path(word).to_string_lossy().into_owned(),
            false => word.to_owned(),
        };
        line.split_whitespace().map(path).collect()
    }

    fn compose(&self, line: &str) -> Output {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = ring_builder::run_composer(&self.words(line), &mut out, &mut err);
        Output {
            code,
            out: String::from_utf8(out).unwrap(),
            err: String::from_utf8(err).unwrap(),
        }
    }

    #[track_caller]
    fn refused(&self, line: &str, because: &str) {
        let said = self.compose(line);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains(because), "{said:?}");
    }

    fn builder(&self, name: &str) -> RingBuilder {
        RingBuilder::load(self.path(name)).unwrap()
    }

    fn make(&self, name: &str, region: u32, power: u32, replicas: f64) -> RingBuilder {
        let mut builder = RingBuilder::new(power, replicas, 0).unwrap();
        builder.assign_id(|| format!("{name}-id"));
        for disk in 0..4 {
            builder.add_dev(device(region, disk)).unwrap();
        }
        rebalance(&mut builder);
        builder.save(self.path(name)).unwrap();
        builder
    }
}

fn device(region: u32, disk: u32) -> NewDevice {
    NewDevice {
        id: None,
        region,
        zone: 1 + disk % 2,
        weight: 100.0,
        ip: format!("10.0.{region}.{disk}"),
        port: 6200,
        device: "sda".into(),
        replication_ip: None,
        replication_port: None,
        meta: String::new(),
    }
}

fn rebalance(builder: &mut RingBuilder) {
    let options = RebalanceOptions {
        seed: Some(Seed::Text("7".into())),
        now: 1_700_000_000,
        log: None,
    };
    builder.rebalance(options).unwrap();
}

const COMPOSE: &str = "all.composite compose one.builder two.builder --output=OUT";

fn output(desk: &Desk) -> String {
    COMPOSE.replace("=OUT", &format!("={}", desk.path("all.ring.gz").display()))
}

#[test]
fn each_region_keeps_its_replicas() {
    let desk = Desk::new();
    let (one, two) = (
        desk.make("one.builder", 1, 6, 2.0),
        desk.make("two.builder", 2, 6, 1.0),
    );
    let said = desk.compose(&output(&desk));
    assert_eq!(said.code, 0, "{said:?}");
    let ring = Ring::load(desk.path("all.ring.gz")).unwrap();
    let (first, second) = (one.ring().unwrap(), two.ring().unwrap());
    for partition in 0..64 {
        let all: Vec<_> = ring
            .primaries(partition)
            .into_iter()
            .map(|p| p.device)
            .collect();
        let parts = [&first, &second].map(|ring| ring.primaries(partition));
        let parts: Vec<_> = parts.iter().flatten().map(|p| &p.device).collect();
        let names = |device: &cairn_ring::Device| (device.region, device.ip.clone());
        assert!(
            all.iter()
                .map(|d| names(d))
                .eq(parts.iter().map(|d| names(d)))
        );
    }
    let composite = CompositeBuilder::load(&desk.path("all.composite")).unwrap();
    assert_eq!((composite.version(), composite.components().len()), (1, 2));
    let shown: Value = serde_json::from_str(&desk.compose("all.composite show").out).unwrap();
    assert_eq!(shown["components"][1]["id"], "two.builder-id");
    assert_eq!(
        shown["component_builder_files"]["one.builder-id"],
        desk.path("one.builder").to_str().unwrap()
    );
}

#[test]
fn only_the_builders_of_the_last_time_and_changed() {
    let desk = Desk::new();
    desk.make("one.builder", 1, 6, 2.0);
    desk.make("two.builder", 2, 6, 1.0);
    let line = output(&desk);
    assert_eq!(desk.compose(&line).code, 0);
    let ring = std::fs::read(desk.path("all.ring.gz")).unwrap();
    desk.refused(&line, "has been modified");
    let swapped = line.replace("one.builder two.builder", "two.builder one.builder");
    desk.refused(&swapped, "Invalid builder change at index 0");
    desk.make("three.builder", 3, 6, 1.0);
    let more = line.replace("two.builder", "two.builder three.builder");
    desk.refused(&more, "Unexpected extra builder at index 2");
    assert_eq!(std::fs::read(desk.path("all.ring.gz")).unwrap(), ring);

    let mut two = desk.builder("two.builder");
    two.add_dev(device(2, 9)).unwrap();
    two.save(desk.path("two.builder")).unwrap();
    let same = line.replace(" one.builder two.builder", "");
    desk.refused(&same, "Builder needs rebalance to apply changes at index 1");
    rebalance(&mut two);
    two.save(desk.path("two.builder")).unwrap();
    assert_eq!(desk.compose(&same).code, 0);
    assert_ne!(std::fs::read(desk.path("all.ring.gz")).unwrap(), ring);
    assert_eq!(desk.compose(&format!("{more} --force")).code, 0);
    let composite = CompositeBuilder::load(&desk.path("all.composite")).unwrap();
    assert_eq!((composite.version(), composite.components().len()), (3, 3));
    desk.make("two.builder", 2, 6, 1.0);
    desk.refused(&more, "Older builder version");
}

#[test]
fn what_does_not_fit_together() {
    let desk = Desk::new();
    desk.make("one.builder", 1, 6, 2.0);
    let line = output(&desk);
    desk.refused(&line, "two.builder");
    desk.refused(&line.replace(" two.builder", ""), "Two or more");
    for (region, power, replicas, because) in [
        (
            2,
            7,
            1.0,
            "All builders must have same value for 'part_power'",
        ),
        (2, 6, 1.5, "Non integer replica count 1.5 found at index 1"),
        (1, 6, 1.0, "Same region found in different rings"),
        (
            1,
            6,
            1.0,
            "Duplicate ip/port/device combination 10.0.1.0/6200/sda",
        ),
    ] {
        desk.make("two.builder", region, power, replicas);
        desk.refused(&line, because);
    }
    let mut builder = RingBuilder::new(6, 1.0, 0).unwrap();
    builder.add_dev(device(2, 1)).unwrap();
    rebalance(&mut builder);
    builder.save(desk.path("two.builder")).unwrap();
    desk.refused(&line, "Problem with builder at index 1");
    desk.refused(
        &line.replace("two.builder", "one.builder"),
        "used at indexes 0, 1",
    );
    desk.refused("all.composite show", "loading the composite builder file");
    std::fs::write(desk.path("all.composite"), "{\"components\": 3}").unwrap();
    desk.refused("all.composite show", "valid composite ring data");
    desk.refused("all.composite juggle", "invalid choice");
    desk.refused("new.composite compose one.builder", "--output");
}

/// Runs a program of OpenStack Swift in the test's folder.
fn swift(desk: &Desk, module: &str, line: &str) -> Option<Output> {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON does not name a Python with OpenStack Swift");
        return None;
    };
    let code = format!(
        "import sys; sys.argv[0] = 'swift'; from swift.cli import {module} as m; sys.exit(m.main())"
    );
    let mut command = Command::new(python);
    command.arg("-c").arg(code).args(desk.words(line));
    let output = command.current_dir(desk.0.path()).output().unwrap();
    Some(Output {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    })
}

fn json(path: &Path) -> Value {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("saved_path").unwrap();
    value
}

#[test]
fn swifts_composer_and_this_one_take_turns() {
    let desk = Desk::new();
    let build = |line: &str| {
        let said = swift(&desk, "ringbuilder", line)?;
        assert!(said.code < 2, "{line}: {said:?}");
        Some(())
    };
    if build("one.builder create 6 2 0").is_none() {
        return;
    }
    build("two.builder create 6 1 0");
    for (name, region) in [("one", 1), ("two", 2)] {
        for disk in 0..4 {
            build(&format!(
                "{name}.builder add r{region}z{disk}-10.0.{region}.{disk}:6200/sda 10"
            ));
        }
        build(&format!("{name}.builder rebalance"));
    }
    let ours = format!(
        "ours.composite compose one.builder two.builder --output {}",
        "ours.ring"
    );
    let theirs = ours.replace("ours.", "theirs.");
    assert_eq!(desk.compose(&ours).code, 0);
    let said = swift(&desk, "ringcomposer", &theirs).unwrap();
    assert_eq!(said.code, 0, "{said:?}");
    let compare = || {
        assert_eq!(
            json(&desk.path("ours.composite")),
            json(&desk.path("theirs.composite"))
        );
        let [one, two] = ["ours.ring", "theirs.ring"].map(|n| Ring::load(desk.path(n)).unwrap());
        for partition in 0..64 {
            let all = |ring: &Ring| {
                let primaries = ring.primaries(partition).into_iter().map(|p| p.device);
                let handoffs = ring.handoffs(partition).map(|h| h.device);
                primaries.chain(handoffs).collect::<Vec<_>>()
            };
            assert_eq!(all(&one), all(&two));
        }
        for name in ["ours", "theirs"] {
            let line = format!("{name}.composite show");
            let theirs = swift(&desk, "ringcomposer", &line).unwrap();
            assert_eq!(desk.compose(&line).out, theirs.out);
        }
    };
    compare();
    // Each program continues with the other's files.
    build("one.builder add r1z9-10.0.1.9:6200/sda 10");
    build("one.builder pretend_min_part_hours_passed");
    build("one.builder rebalance");
    std::fs::rename(desk.path("ours.composite"), desk.path("mine.composite")).unwrap();
    std::fs::rename(desk.path("theirs.composite"), desk.path("ours.composite")).unwrap();
    std::fs::rename(desk.path("mine.composite"), desk.path("theirs.composite")).unwrap();
    let again = "theirs.composite compose --output theirs.ring";
    let said = swift(&desk, "ringcomposer", again).unwrap();
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(desk.compose(&again.replace("theirs.", "ours.")).code, 0);
    compare();
    let unchanged = swift(&desk, "ringcomposer", again).unwrap();
    assert_eq!(unchanged.code, desk.compose(again).code);
}
