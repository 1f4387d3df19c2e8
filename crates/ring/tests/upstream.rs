//! Comparison of Cairn's ring with OpenStack Swift's, both executed.
//!
//! Set `CAIRN_SWIFT_PYTHON` to a Python that can `import swift`; without it these tests are
//! skipped. Both builders get the same steps (add, remove, rebalance, …); each program's rings are
//! then read by the other.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use cairn_ring::{
    FormatVersion, NewDevice, RebalanceOptions, RebalanceOutcome, Ring, RingBuilder, Seed,
};
use cairn_types::HashPath;
use serde_json::{Value, json};

/// Runs the Python side; `None` without a Python.
fn swift(request: &Value) -> Option<Value> {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON does not name a Python with OpenStack Swift");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/swift_ring.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(request.to_string().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the Python side failed");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// One builder operation, for either program.
#[derive(Clone, Debug)]
enum Step {
    Create(u32, f64, u32),
    Add(NewDevice),
    Weight(u32, f64),
    Remove(u32),
    Zone(u32, u32),
    Replicas(f64),
    Overload(f64),
    Pretend,
    Rebalance(String, u64),
}

impl Step {
    fn json(&self) -> Value {
        match self {
            Step::Create(power, replicas, hours) => json!(["create", power, replicas, hours]),
            Step::Add(d) => json!(["add", {
                "region": d.region, "zone": d.zone, "ip": d.ip, "port": d.port,
                "device": d.device, "weight": d.weight, "meta": d.meta,
                "replication_ip": d.replication_ip.as_ref().unwrap_or(&d.ip),
                "replication_port": d.replication_port.unwrap_or(d.port)}]),
            Step::Weight(id, weight) => json!(["weight", id, weight]),
            Step::Remove(id) => json!(["remove", id]),
            Step::Zone(id, zone) => json!(["zone", id, zone]),
            Step::Replicas(replicas) => json!(["replicas", replicas]),
            Step::Overload(overload) => json!(["overload", overload]),
            Step::Pretend => json!(["pretend"]),
            Step::Rebalance(seed, now) => json!(["rebalance", seed, now]),
        }
    }
}

/// Result of a rebalance here: outcome, dispersion, table.
struct Balanced {
    outcome: RebalanceOutcome,
    builder: RingBuilder,
}

/// Runs the steps here, saving and loading after each as separate commands would.
fn run(steps: &[Step]) -> Vec<Balanced> {
    let mut balanced = Vec::new();
    let mut builder: Option<RingBuilder> = None;
    for step in steps {
        if let Step::Create(power, replicas, hours) = step {
            builder = Some(RingBuilder::new(*power, *replicas, *hours).unwrap());
            continue;
        }
        let before = builder.take().unwrap();
        let mut b = RingBuilder::from_bytes(&before.to_bytes()).unwrap();
        match step.clone() {
            Step::Create(..) => {}
            Step::Add(device) => drop(b.add_dev(device).unwrap()),
            Step::Weight(id, weight) => b.set_dev_weight(id, weight).unwrap(),
            Step::Remove(id) => b.remove_dev(id).unwrap(),
            Step::Zone(id, zone) => b.set_dev_zone(id, zone).unwrap(),
            Step::Replicas(replicas) => b.set_replicas(replicas).unwrap(),
            Step::Overload(overload) => b.set_overload(overload).unwrap(),
            Step::Pretend => b.pretend_min_part_hours_passed(),
            Step::Rebalance(seed, now) => {
                let options = RebalanceOptions {
                    seed: Some(Seed::Text(seed)),
                    now,
                    log: None,
                };
                let outcome = b.rebalance(options).unwrap();
                b.validate().unwrap();
                balanced.push(Balanced {
                    outcome,
                    builder: b.clone(),
                });
            }
        }
        builder = Some(b);
    }
    balanced
}

fn table(builder: &RingBuilder) -> Vec<Vec<u32>> {
    let data = builder.ring_data();
    data.rows.iter().map(|row| row.iter().collect()).collect()
}

fn device(region: u32, zone: u32, host: u32, disk: u32, weight: f64) -> NewDevice {
    NewDevice {
        id: None,
        region,
        zone,
        weight,
        ip: format!("10.{region}.{zone}.{host}"),
        port: 6200,
        device: format!("sd{disk}"),
        replication_ip: (host == 2).then(|| "fe80::1".to_owned()),
        replication_port: (host == 2).then_some(6300),
        meta: "rack \"7\" é".to_owned(),
    }
}

const START: u64 = 1_700_000_000;
const HOUR: u64 = 3600;

fn four_devices() -> Vec<Step> {
    let mut steps = vec![Step::Create(8, 3.0, 1)];
    steps.extend((1..=4).map(|zone| Step::Add(device(1, zone, 1, zone, 100.0))));
    steps.push(Step::Rebalance("four".into(), START));
    steps
}

/// Three regions with different zones, hosts and weights; one device has no weight.
fn mixed(replicas: f64, seed: &str) -> Vec<Step> {
    let mut steps = vec![Step::Create(10, replicas, 1)];
    let mut weight = 0.0;
    for (region, zones) in [(1, 3), (2, 2), (3, 1)] {
        for zone in 1..=zones {
            for host in 1..=2 {
                for disk in 0..(1 + (region + zone) % 3) {
                    weight = (weight + 37.5) % 160.0;
                    steps.push(Step::Add(device(region, zone, host, disk, weight)));
                }
            }
        }
    }
    steps.push(Step::Add(device(2, 9, 1, 0, 0.0)));
    steps.push(Step::Rebalance(seed.into(), START));
    steps
}

/// A ring large enough for the handoff walk to use strides.
fn strided() -> Vec<Step> {
    let mut steps = vec![Step::Create(17, 2.0, 1)];
    steps.extend((0..5).map(|i| Step::Add(device(1 + i / 3, i, 1, i, 10.0))));
    steps.push(Step::Rebalance("stride".into(), START));
    steps
}

/// A cluster's history: growth, failure, drains, moves, replica changes.
fn life(replicas: f64, seed: u64) -> Vec<Step> {
    let mut now = START;
    let mut steps = mixed(replicas, &format!("life {seed}"));
    let mut rebalance = |steps: &mut Vec<Step>, hours: u64| {
        now += hours * HOUR;
        steps.push(Step::Rebalance(format!("life {seed} {now}"), now));
    };
    let pick = |salt: u64| ((seed * 7 + salt * 3) % 15) as u32;
    steps.push(Step::Add(device(1, 4, 1, 0, 120.0)));
    steps.push(Step::Add(device(2, 1, 3, 0, 80.0)));
    rebalance(&mut steps, 2);
    rebalance(&mut steps, 2);
    steps.push(Step::Remove(pick(1)));
    // Within min_part_hours only replicas of failed devices may move.
    rebalance(&mut steps, 0);
    steps.push(Step::Weight((pick(1) + 1) % 15, 10.0));
    steps.push(Step::Weight((pick(1) + 2) % 15, 250.0));
    rebalance(&mut steps, 3);
    rebalance(&mut steps, 3);
    steps.push(Step::Overload(0.1));
    steps.push(Step::Weight((pick(1) + 4) % 15, 0.0));
    steps.push(Step::Zone((pick(1) + 5) % 15, 7));
    rebalance(&mut steps, 3);
    steps.push(Step::Replicas(replicas + 0.5));
    steps.push(Step::Pretend);
    rebalance(&mut steps, 0);
    steps.push(Step::Replicas((replicas - 1.0).max(1.0)));
    steps.push(Step::Add(device(4, 1, 1, 0, 100.5)));
    rebalance(&mut steps, 30);
    rebalance(&mut steps, 30);
    steps
}

fn request(steps: &[Step], saves: &[(&Path, u16)]) -> Value {
    let mut steps: Vec<Value> = steps.iter().map(Step::json).collect();
    for (path, version) in saves {
        steps.push(json!(["save", path, version]));
    }
    json!({"do": "build", "steps": steps})
}

fn names() -> Vec<(String, String, String)> {
    (0..10_000)
        .map(|i| {
            (
                format!("AUTH_{}", i % 7),
                format!("c{}", i % 113),
                format!("o é {i}"),
            )
        })
        .collect()
}

/// Compares the look-ups of both programs in the same ring file.
fn compare_look_ups(path: &Path, handoffs: usize) {
    let names = names();
    let request = json!({
        "do": "look_up", "ring": path, "names": names, "handoffs": handoffs});
    let Some(theirs) = swift(&request) else {
        return;
    };
    let ring = Ring::load(path).unwrap();
    let hashes = HashPath::new("", "endcap");
    for (name, theirs) in names.iter().zip(theirs.as_array().unwrap()) {
        let (account, container, object) = name;
        let part = ring.partition(hashes.hash(account, Some(container), Some(object)));
        let primaries: Vec<u32> = ring.primaries(part).iter().map(|n| n.device.id).collect();
        let more: Vec<u32> = ring
            .handoffs(part)
            .take(handoffs)
            .map(|node| node.device.id)
            .collect();
        assert_eq!(
            json!([part, primaries, more]),
            *theirs,
            "{name:?} in {path:?}"
        );
    }
}

#[test]
fn rings_made_here_mean_the_same_to_swift() {
    let dir = tempfile::tempdir().unwrap();
    let topologies = [
        ("four", four_devices(), 12),
        ("mixed", mixed(3.0, "mixed"), 1000),
        ("fractional", mixed(3.25, "fractional"), 12),
        ("strided", strided(), 12),
    ];
    for (name, steps, handoffs) in topologies {
        let ring = run(&steps).pop().unwrap().builder.ring().unwrap();
        for version in [FormatVersion::V1, FormatVersion::V2] {
            let path = dir.path().join(format!("{name}-{version:?}.ring.gz"));
            ring.save(&path, version).unwrap();
            compare_look_ups(&path, handoffs);
        }
    }
}

#[test]
fn rings_made_by_swift_mean_the_same_here() {
    let dir = tempfile::tempdir().unwrap();
    for (name, steps) in [
        ("four", four_devices()),
        ("mixed", mixed(3.0, "mixed")),
        ("fractional", mixed(3.25, "fractional")),
    ] {
        let v1 = dir.path().join(format!("{name}-1.ring.gz"));
        let v2 = dir.path().join(format!("{name}-2.ring.gz"));
        if swift(&request(&steps, &[(&v1, 1), (&v2, 2)])).is_none() {
            return;
        }
        compare_look_ups(&v1, 12);
        compare_look_ups(&v2, 12);
        // The same builder steps and seed give the same ring, devices included.
        let ours = run(&steps).pop().unwrap().builder.ring_data();
        for path in [v1, v2] {
            assert!(
                Ring::load(&path).unwrap().data().same_ring(&ours),
                "{path:?}"
            );
        }
    }
}

/// Dispersion, computed by this program, of a ring of either program.
fn dispersion(steps: &[Step], rebalance: usize, table: &Value) -> f64 {
    let mut data = run(steps)[rebalance].builder.ring_data();
    let rows: Vec<Vec<u32>> = serde_json::from_value(table.clone()).unwrap();
    data.rows = rows
        .iter()
        .map(|row| cairn_ring::Row::new(row, 2))
        .collect();
    let mut builder = RingBuilder::from_ring_data(&data, 1).unwrap();
    builder.update_dispersion().unwrap();
    builder.dispersion().unwrap()
}

fn moves(old: Option<&Value>, new: &Value) -> usize {
    let at = |table: Option<&Value>, replica: usize, part: usize| {
        table.and_then(|t| t.get(replica)?.get(part)?.as_u64())
    };
    let rows = new.as_array().unwrap().iter().enumerate();
    rows.map(|(replica, row)| {
        (0..row.as_array().unwrap().len())
            .filter(|part| at(old, replica, *part) != at(Some(new), replica, *part))
            .count()
    })
    .sum()
}

#[test]
fn rebalances_are_no_worse_than_swifts() {
    for replicas in [3.0, 2.0, 3.25] {
        for seed in 1..=4 {
            let steps = life(replicas, seed);
            let Some(theirs) = swift(&request(&steps, &[])) else {
                return;
            };
            let ours = run(&steps);
            assert_eq!(ours.len(), theirs.as_array().unwrap().len());
            let mut old_table: Option<&Value> = None;
            for (i, (ours, theirs)) in ours.iter().zip(theirs.as_array().unwrap()).enumerate() {
                let at = format!("replicas {replicas}, life {seed}, rebalance {i}");
                let their_moves = moves(old_table, &theirs["table"]);
                let their_balance = theirs["balance"].as_f64().unwrap();
                let overload = ours.builder.required_overload().unwrap();
                let their_overload = theirs["required_overload"].as_f64().unwrap();
                assert!((overload - their_overload).abs() < 1e-9, "{at}: {overload}");
                assert!(
                    ours.outcome.balance <= their_balance + 1e-9,
                    "{at}: balance"
                );
                assert!(
                    ours.outcome.changed_parts <= their_moves as u64,
                    "{at}: moves"
                );
                assert_eq!(
                    ours.outcome.removed_devices as u64, theirs["removed"],
                    "{at}"
                );
                assert_eq!(ours.builder.version(), theirs["version"], "{at}: version");
                let our_dispersion = ours.builder.dispersion().unwrap();
                let their_dispersion = dispersion(&steps, i, &theirs["table"]);
                assert!(
                    our_dispersion <= their_dispersion + 1e-9,
                    "{at}: dispersion"
                );
                if ours.builder.replicas().fract() == 0.0 {
                    assert_eq!(ours.outcome.changed_parts, theirs["changed"], "{at}");
                    let theirs = theirs["dispersion"].as_f64().unwrap();
                    assert!((our_dispersion - theirs).abs() < 1e-9, "{at}: dispersion");
                }
                assert_eq!(
                    json!(table(&ours.builder)),
                    theirs["table"],
                    "{at}: placement"
                );
                old_table = Some(&theirs["table"]);
            }
        }
    }
}
