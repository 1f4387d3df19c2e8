//! Whole commands, run in a folder of their own with a given clock and given answers.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use cairn_ring::{Ring, RingBuilder};
use tempfile::TempDir;

use super::{EXIT_ERROR, EXIT_SUCCESS, EXIT_WARNING, run_with};

struct Desk {
    dir: TempDir,
    now: u64,
}

/// Output of a command.
struct Output {
    status: i32,
    out: String,
    err: String,
}

impl Desk {
    fn new() -> Desk {
        Desk {
            dir: tempfile::tempdir().unwrap(),
            now: 1_700_000_000,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `line` on `object.builder`; words are separated by blanks.
    fn run(&self, line: &str) -> Output {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.answer("object.builder", &words, "")
    }

    fn answer(&self, file: &str, words: &[&str], answer: &str) -> Output {
        let mut args = vec![self.path(file).to_string_lossy().into_owned()];
        args.extend(words.iter().map(|word| (*word).to_owned()));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = run_with(&args, &mut out, &mut err, &mut answer.as_bytes(), self.now);
        Output {
            status,
            out: String::from_utf8(out).unwrap(),
            err: String::from_utf8(err).unwrap(),
        }
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!(
            output.status, EXIT_SUCCESS,
            "{line}: {}{}",
            output.out, output.err
        );
        output.out
    }

    #[track_caller]
    fn fails(&self, line: &str, because: &str) {
        let output = self.run(line);
        assert_eq!(output.status, EXIT_ERROR, "{line}: {}", output.out);
        assert!(output.out.contains(because), "{line}: {}", output.out);
    }

    fn builder(&self) -> RingBuilder {
        RingBuilder::load(self.path("object.builder")).unwrap()
    }

    /// Four devices in four zones, balanced.
    fn balanced() -> Desk {
        let desk = Desk::new();
        desk.ok("create 6 3 1");
        for zone in 1..=4 {
            desk.ok(&format!("add r1z{zone}-10.0.0.{zone}:6200/sd{zone} 100"));
        }
        desk.ok("rebalance --seed 1");
        desk
    }
}

#[test]
fn from_nothing_to_a_ring() {
    let desk = Desk::balanced();
    let ring = Ring::load(desk.path("object.ring.gz")).unwrap();
    assert_eq!(ring.partition_count(), 64);
    assert_eq!(ring.replica_count(), 3.0);
    let listing = desk.ok("");
    assert!(
        listing.contains("64 partitions, 3.000000 replicas, 1 regions, 4 zones, 4 devices"),
        "{listing}"
    );
    assert!(
        listing.contains("0.00 balance, 0.00 dispersion"),
        "{listing}"
    );
    assert!(listing.contains("is 1 (1:00:00 remaining)"), "{listing}");
    assert!(
        listing.contains("object.ring.gz is up-to-date"),
        "{listing}"
    );
    for name in ["1700000000.object.builder", "1700000000.object.ring.gz"] {
        assert!(desk.path("backups").join(name).exists(), "{name}");
    }
    assert!(
        desk.ok("version")
            .contains("Serialization version: 1 (2-byte IDs)")
    );
    desk.ok("validate");
}

#[test]
fn adding_in_every_form() {
    let desk = Desk::new();
    desk.ok("create 4 1 1");
    let out =
        desk.ok("add r1z1-[FE80::1]:6200R10.9.9.9:6300/sda_meta 10 r2z3-10.0.0.2:6200/sdb 0.5");
    assert!(
        out.contains(
            "Device d0r1z1-[fe80::1]:6200R10.9.9.9:6300/sda_\"meta\" with 10.0 weight got id 0"
        ),
        "{out}"
    );
    desk.ok(
        "add --region 1 --zone=2 -i node7.example -p6200 --replication-port 6400 --device sdc \
         --weight 3 --meta new",
    );
    let builder = desk.builder();
    let added = &builder.device(2).unwrap().device;
    assert_eq!(
        added.to_string(),
        "d2r1z2-node7.example:6200Rnode7.example:6400/sdc_\"new\""
    );
    let output = desk.run("add z5-10.0.0.5:6200/sdx 1");
    assert!(
        output.err.contains("Defaulting to region 1"),
        "{}",
        output.err
    );

    desk.fails(
        "add r2z3-10.0.0.2:6200/sdb 1",
        "Device 1 already uses 10.0.0.2:6200/sdb.",
    );
    desk.fails("add r1z1-10.0.0.9:6200/sdq -1", "no such option: -1");
    desk.fails(
        "add r1z1-10.0.0.9:6200/sdq much",
        "Invalid weight value: \"much\"",
    );
    desk.fails("add r1z1-10.0.0.9/sdq 1", "Invalid port");
    desk.fails("add --region 1 --zone 1", "Required argument -i/--ip");
    assert_eq!(
        desk.builder().devices().count(),
        4,
        "failed commands change nothing"
    );
}

#[test]
fn changing_devices() {
    let desk = Desk::balanced();
    assert!(desk.ok("set_weight d0 50").contains("weight set to 50.0"));
    desk.ok("set_zone --ip 10.0.0.2 9");
    desk.ok("set_region d3 2");
    let out = desk.ok("set_info d1 10.0.1.2:6201R10.1.1.2:6301/nvme1_moved");
    assert!(
        out.contains("is now d1r1z9-10.0.1.2:6201R10.1.1.2:6301/nvme1_\"moved\""),
        "{out}"
    );
    desk.ok("set_info --id 1 --change-meta again");
    assert_eq!(desk.builder().device(1).unwrap().device.meta, "again");
    desk.fails("set_info d1 10.0.0.1:6200/sd1", "Device 0 already uses");
    desk.fails("set_weight d9 1", "matched 0 devices");
    assert!(desk.ok("").contains("object.ring.gz is obsolete"));
    desk.ok("write_ring --format-version 2");
    assert!(desk.ok("version").contains("version: 2"));
    assert!(desk.ok("").contains("up-to-date"));
}

#[test]
fn several_matches_need_a_yes() {
    let desk = Desk::balanced();
    let asked = desk.answer("object.builder", &["set_weight", "r1", "7"], "n\n");
    assert_eq!(asked.status, EXIT_ERROR);
    assert!(
        asked.out.contains("Matched more than one device:"),
        "{}",
        asked.out
    );
    assert!(
        asked.out.contains("Aborting device modifications"),
        "{}",
        asked.out
    );
    assert_eq!(desk.builder().device(0).unwrap().device.weight, 100.0);
    let asked = desk.answer("object.builder", &["set_weight", "r1", "7"], "y\n");
    assert_eq!(asked.status, EXIT_SUCCESS);
    assert_eq!(desk.builder().device(0).unwrap().device.weight, 7.0);
    desk.ok("set_weight r1 8 --yes");
    desk.fails("remove --yes", "would match every device");
}

#[test]
fn removing_and_rebalancing() {
    let desk = Desk::balanced();
    desk.fails("remove d9", "matched 0 devices");
    assert!(desk.ok("remove d3").contains("marked for removal"));
    assert!(desk.ok("").contains("DEL"));
    desk.fails("set_weight d3 5", "marked for removal");
    desk.ok("rebalance 5");
    assert_eq!(desk.builder().devices().count(), 3);
    // No partition needs to move, which is a warning.
    let output = desk.run("rebalance");
    assert_eq!(output.status, EXIT_WARNING);
    assert!(
        output.out.contains("No partitions could be reassigned."),
        "{}",
        output.out
    );
    desk.ok("remove d0");
    desk.fails("rebalance", "requires more than 2 devices");
    assert_eq!(desk.builder().devices().count(), 3);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let ring = |seed: &str| {
        let desk = Desk::new();
        desk.ok("create 7 2 1");
        for zone in 1..=5 {
            desk.ok(&format!("add r1z{zone}-10.0.0.{zone}:6200/sd{zone} 100"));
        }
        let output = desk.run(&format!("rebalance --seed {seed} --debug"));
        assert!(
            output.out.contains("DEBUG: Gathered 256 parts"),
            "{}",
            output.out
        );
        fs::read(desk.path("object.ring.gz")).unwrap()
    };
    assert_eq!(ring("a"), ring("a"));
    assert_ne!(ring("a"), ring("b"));
}

#[test]
fn settings() {
    let desk = Desk::balanced();
    desk.ok("set_min_part_hours 5");
    desk.ok("set_replicas 3.25");
    assert!(
        desk.ok("set_overload 10%")
            .contains("now 10.00% (0.100000)")
    );
    assert_eq!(desk.run("set_overload 10").status, EXIT_WARNING);
    desk.fails("set_overload lots", "not a valid number");
    desk.fails("set_overload -1", "non-negative");
    desk.fails("set_replicas 0.5", "at least 1");
    desk.fails("set_replicas nan", "replicas is NaN");
    desk.fails("set_min_part_hours soon", "whole number of hours");
    desk.fails("create 33 3 1", "at most 32");
    desk.ok("pretend_min_part_hours_passed");
    let builder = desk.builder();
    assert_eq!((builder.min_part_hours(), builder.replicas()), (5, 3.25));
    // Fractional replicas: the fourth replica exists for sixteen partitions.
    desk.run("rebalance --seed 2 --force");
    let ring = Ring::load(desk.path("object.ring.gz")).unwrap();
    assert_eq!(ring.replica_count(), 3.25);
    assert_eq!(ring.primaries(15).len(), 4);
    assert_eq!(ring.primaries(16).len(), 3);
}

#[test]
fn reports() {
    let desk = Desk::new();
    desk.ok("create 4 3 1");
    desk.fails("dispersion", "is not rebalanced yet");
    desk.fails("list_parts d0", "is not rebalanced yet");
    desk.ok("add r1z1-10.0.0.1:6200/a 1 r1z1-10.0.0.1:6200/b 1 r1z2-10.0.0.2:6200/c 9");
    desk.run("rebalance --seed 3");
    let output = desk.run("dispersion r1z\\d$ -v");
    assert!(output.out.contains("\nTier  "), "{}", output.out);
    assert!(output.out.contains("\nr1z1 "), "{}", output.out);
    assert!(!output.out.contains("r1z1-10.0.0.1"), "{}", output.out);
    desk.fails("dispersion [ -v", "no regular expression");
    let parts = desk.ok("list_parts d2");
    assert_eq!(parts.lines().count(), 17);
    assert!(parts.contains("\n        0         1\n"), "{parts}");
    assert!(desk.ok("search /c").contains("10.0.0.2:6200"));
    desk.fails("search d99", "No matching devices found");
    desk.fails("frobnicate", "Unknown command: frobnicate");
    assert!(desk.ok("remove --help").contains("search value is"));
}

#[test]
fn recovering_a_lost_builder() {
    let desk = Desk::balanced();
    let before = desk.builder();
    let refused = desk.answer("object.ring.gz", &["write_builder"], "");
    assert_eq!(refused.status, EXIT_ERROR);
    fs::write(desk.path("object.builder"), b"\x80\x02}q\x00.").unwrap();
    let pickled = desk.run("");
    assert_eq!(pickled.status, EXIT_ERROR);
    assert!(pickled.out.contains("written by Python"), "{}", pickled.out);
    assert!(
        pickled.out.contains("write_builder <min_part_hours>"),
        "{}",
        pickled.out
    );
    fs::remove_file(desk.path("object.builder")).unwrap();
    let output = desk.answer("object.ring.gz", &["write_builder", "7"], "");
    assert_eq!(output.status, EXIT_SUCCESS, "{}", output.out);
    let after = desk.builder();
    assert_eq!(after.min_part_hours(), 7);
    assert!(after.ring_data().same_ring(&before.ring_data()));
    after.validate().unwrap();
    desk.ok("add r1z5-10.0.0.5:6200/sd5 100");
    desk.ok("rebalance --seed 4");
}

#[test]
fn partition_power_increase() {
    let desk = Desk::balanced();
    desk.fails("increase_partition_power", "cannot be increased");
    desk.ok("prepare_increase_partition_power");
    desk.fails("prepare_increase_partition_power", "already prepared");
    desk.fails(
        "add r1z5-10.0.0.5:6200/sd5 1",
        "Partition power increase in progress",
    );
    desk.fails("rebalance", "finish the increase first");
    desk.ok("write_ring");
    let ring = Ring::load(desk.path("object.ring.gz")).unwrap();
    assert_eq!((ring.part_power(), ring.next_part_power()), (6, Some(7)));
    let before: Vec<u32> = ring.primaries(5).iter().map(|n| n.device.id).collect();
    desk.ok("increase_partition_power");
    assert!(desk.ok("").contains("First run"));
    desk.ok("write_ring");
    let ring = Ring::load(desk.path("object.ring.gz")).unwrap();
    assert_eq!((ring.part_power(), ring.next_part_power()), (7, Some(7)));
    for part in [10, 11] {
        let after: Vec<u32> = ring.primaries(part).iter().map(|n| n.device.id).collect();
        assert_eq!(after, before);
    }
    desk.ok("finish_increase_partition_power");
    desk.fails("finish_increase_partition_power", "cannot be finished");
    desk.ok("validate");
    desk.ok("prepare_increase_partition_power");
    desk.ok("cancel_increase_partition_power");
    desk.ok("finish_increase_partition_power");
    let other = Desk::new();
    other.answer("account.builder", &["create", "4", "1", "1"], "");
    let output = other.answer("account.builder", &["prepare_increase_partition_power"], "");
    assert!(output.out.contains("only supported for object rings"));
}

#[test]
fn broken_files_are_refused() {
    let desk = Desk::new();
    desk.fails("", "does not exist");
    fs::write(desk.path("object.builder"), b"{\"format\": 7}").unwrap();
    desk.fails("", "Ring Builder file is invalid");
    desk.fails("version", "cannot read");
    let desk = Desk::balanced();
    let good = include_str!("../../../../golden/rings/json.builder");
    for (from, to) in [
        ("\"parts\":64", "\"parts\":63"),
        ("\"id\":3", "\"id\":9"),
        ("\"weight\":100.0", "\"weight\":-1.0"),
        ("\"replicas\":3.0", "\"replicas\":0.1"),
        ("\"part_power\":6", "\"part_power\":2"),
        ("\"format_version\":1", "\"format_version\":2"),
        ("\"assignments\":[[", "\"assignments\":[[77,"),
    ] {
        assert!(good.contains(from), "{from}");
        fs::write(desk.path("object.builder"), good.replacen(from, to, 1)).unwrap();
        desk.fails("", "Ring Builder file is invalid");
    }
}

#[test]
fn create_keeps_the_builder_it_replaces() {
    let desk = Desk::balanced();
    let old = fs::read(desk.path("object.builder")).unwrap();
    let output = desk.run("create 6 3 1");
    assert_eq!(output.status, EXIT_SUCCESS);
    assert!(
        output.err.contains("existed and is replaced"),
        "{}",
        output.err
    );
    let kept = desk.path("backups/1700000000.replaced.object.builder");
    assert_eq!(fs::read(kept).unwrap(), old);
}

#[test]
fn the_overview_names_every_verb() {
    let mut out = Vec::new();
    let status = run_with(&[], &mut out, &mut Vec::new(), &mut &b""[..], 0);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(status, EXIT_SUCCESS);
    for verb in super::usage::verbs() {
        assert!(text.contains(verb), "{verb}");
    }
}
