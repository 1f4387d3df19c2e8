//! Comparison of `cairn ring` with swift-ring-builder, both executed.
//!
//! Set `CAIRN_SWIFT_PYTHON` to a Python that can `import swift`; without it these tests are
//! skipped.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use cairn_ring::{FormatVersion, Ring, RingBuilder};
use cairn_tools::ring_builder;

/// Runs the same command lines by both programs, each in a folder of its own.
struct Both {
    ours: tempfile::TempDir,
    theirs: tempfile::TempDir,
    python: String,
}

impl Both {
    fn run(&self, line: &str) -> [(i32, String); 2] {
        let args = |dir: &Path| -> Vec<String> {
            let words = line.split_whitespace().map(str::to_owned);
            let file = dir.join("object.builder").to_string_lossy().into_owned();
            std::iter::once(file).chain(words).collect()
        };
        let mut out = Vec::new();
        let status = ring_builder::run(&args(self.ours.path()), &mut out, &mut Vec::new());
        let theirs = Command::new(&self.python)
            .args(["-m", "swift.cli.ringbuilder"])
            .args(args(self.theirs.path()))
            .output()
            .unwrap();
        let shown = |out: Vec<u8>, dir: &Path| {
            let text = String::from_utf8(out).unwrap();
            let text = text.replace(dir.to_str().unwrap(), "DIR");
            let told = text.lines().filter(|line| !line.contains("build version"));
            told.map(|line| format!("{}\n", line.trim_end())).collect()
        };
        [
            (status, shown(out, self.ours.path())),
            (
                theirs.status.code().unwrap(),
                shown(theirs.stdout, self.theirs.path()),
            ),
        ]
    }
}

#[test]
fn commands_answer_as_swifts_do() {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON does not name a Python with OpenStack Swift");
        return;
    };
    let both = Both {
        ours: tempfile::tempdir().unwrap(),
        theirs: tempfile::tempdir().unwrap(),
        python,
    };
    // Commands whose exit code and output must agree.
    let told = [
        "create 8 3 0",
        "",
        "add r1z1-10.0.0.1:6200/sda_m 100 r1z1-10.0.0.1:6200/sdb 100",
        "add --region 1 --zone 2 --ip host.example --port 6201 --device sdc --weight 55.5",
        "add r2z1-[FE80::7]:6200R10.0.0.9:6300/nvme0n1_long 1234.5 r2z2-10.0.0.3:6200/x 0",
        "add r1z3-10.0.0.4:6200/sda 70 r2z2-10.0.0.5:6200/sda 90",
        "set_replicas 2",
        "set_overload 12.5%",
        "set_min_part_hours 0",
        "",
    ];
    // Commands of which only the exit code is compared: wording or order of listings differs.
    let status_only = [
        "rebalance --seed cli --format-version 1",
        "remove d99",
        "search d99",
        "search r1",
        "frobnicate",
        "set_replicas 0",
        "set_overload x",
        "set_weight d0",
        "set_weight d0 x",
        "rebalance --bogus",
        "add r1z1-10.0.0.1:6200/sda 1",
        "validate",
    ];
    let more = [
        "",
        "dispersion -v",
        "dispersion r1z\\d+$ -v",
        "list_parts d0",
        "list_parts r1 r2z2",
        "version",
        "set_weight d0 20.5 d2 300",
        "set_weight r2 40 --yes",
        "set_info d0 10.0.7.1:6207R10.1.7.1:6307/sdq_new",
        "set_zone d1 4",
        "set_region --device nvme0n1 3",
        "remove d3",
        "",
    ];
    let last = ["", "dispersion -v", "list_parts d0"];
    let check = |line: &str, output: bool| {
        let [ours, theirs] = both.run(line);
        assert_eq!(ours.0, theirs.0, "{line}: {} / {}", ours.1, theirs.1);
        if output {
            assert_eq!(ours.1, theirs.1, "{line}");
        }
    };
    told.iter().for_each(|line| check(line, true));
    status_only.iter().for_each(|line| check(line, false));
    more.iter().for_each(|line| check(line, true));
    check("rebalance -s again --format-version=2", true);
    last.iter().for_each(|line| check(line, true));
    let ring = |dir: &Path| Ring::load(dir.join("object.ring.gz")).unwrap();
    let (ours, theirs) = (ring(both.ours.path()), ring(both.theirs.path()));
    assert_eq!(ours.format_version(), FormatVersion::V2);
    assert!(ours.data().same_ring(theirs.data()));
}

/// A builder file created by either program and edited by both alternately equals one edited by
/// Swift alone.
#[test]
fn builder_files_can_be_shared_with_swift() {
    for ours_first in [false, true] {
        share_a_builder_file(ours_first);
    }
}

fn share_a_builder_file(ours_first: bool) {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON does not name a Python with OpenStack Swift");
        return;
    };
    let steps = [
        "create 8 3 0",
        "add r1z1-10.0.0.1:6200/sda 100 r1z2-10.0.0.2:6200/sda 80 r1z3-10.0.0.3:6200/sda 60",
        "rebalance 1 --force",
        "add r2z1-10.0.1.1:6200/sda 100 r2z1-10.0.1.1:6200/sdb 50",
        "set_overload 0.1",
        "rebalance 2 --force",
        "remove d1",
        "set_weight d0 33.3",
        "rebalance 3 --force",
        "set_replicas 2.5",
        "rebalance 4 --force",
        "prepare_increase_partition_power",
        "increase_partition_power",
        "write_ring",
        "finish_increase_partition_power",
        "rebalance 5 --force",
    ];
    let (shared, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let args = |dir: &Path, line: &str| -> Vec<String> {
        let file = dir.join("object.builder").to_string_lossy().into_owned();
        let words = line.split_whitespace().map(str::to_owned);
        std::iter::once(file).chain(words).collect()
    };
    let swift = |dir: &Path, line: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", "swift.cli.ringbuilder"]);
        let output = command.args(args(dir, line)).output().unwrap();
        assert_ne!(output.status.code().unwrap(), 2, "{line}: {output:?}");
    };
    for (i, line) in steps.into_iter().enumerate() {
        swift(theirs.path(), line);
        if (i % 2 == 0) != ours_first {
            swift(shared.path(), line);
        } else {
            let mut out = Vec::new();
            let args = args(shared.path(), line);
            let status = ring_builder::run(&args, &mut out, &mut Vec::new());
            assert_ne!(status, 2, "{line}: {}", String::from_utf8_lossy(&out));
        }
    }
    let load = |dir: &Path| RingBuilder::load(dir.join("object.builder")).unwrap();
    let (shared, theirs) = (load(shared.path()), load(theirs.path()));
    assert!(shared.ring_data().same_ring(&theirs.ring_data()));
    assert_eq!(shared.overload(), theirs.overload());
}
