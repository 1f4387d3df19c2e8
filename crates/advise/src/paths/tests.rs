//! Counts of steps in operations' paths.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::writes::POST_QUORUM_SECONDS;
use super::*;
use crate::calibration::tests::example;
use crate::cluster::tests::HOST;
use crate::engine::demands;
use crate::workload::tests::SMALL;

/// The steps of an operation on an object of 4000 bytes.
fn steps(cluster: &str, operation: Operation, lost: &[usize]) -> Vec<Step> {
    let cluster = Cluster::parse(cluster).unwrap();
    let workload = Workload::parse(SMALL).unwrap();
    let (calibration, placement) = (example(), Placement::new(&cluster).unwrap());
    let mut engine = Engine::new(1);
    let lost = lost.iter().copied().collect();
    let world = World::new(
        &cluster,
        &workload,
        &calibration,
        &placement,
        &mut engine,
        lost,
    );
    let mut world = world.unwrap().without_spread();
    world.operation(0, operation, 4000.0, &mut Dice::new(2))
}

fn count(cluster: &str, operation: Operation, lost: &[usize]) -> (f64, usize, f64) {
    let steps = steps(cluster, operation, lost);
    let (mut syncs, mut sums) = (0.0, BTreeMap::new());
    demands(&steps, &mut syncs, &mut sums);
    let widest = |step: &Step| match step {
        Step::Fork { need, .. } => *need,
        _ => 0,
    };
    let need = steps.iter().map(widest).max().unwrap_or_default();
    (syncs, need, sums.values().sum())
}

#[test]
fn a_write_syncs_content_name_and_row_of_each_replica() {
    let (syncs, quorum, seconds) = count(HOST, Operation::Write, &[]);
    assert_eq!((syncs, quorum), (9.0, 2));
    let cost = example();
    let expected = cost.store.write_op
        + cost.load.write_op
        + 3.0 * cost.store.write_replica
        + 4000.0
            * (cost.store.write_byte + cost.load.write_byte + 3.0 * cost.store.write_replica_byte);
    assert!(
        (seconds / expected - 1.0).abs() < 1e-9,
        "{seconds} {expected}"
    );
    let one = HOST.replace("replicas = 3", "replicas = 1");
    assert_eq!(count(&one, Operation::Write, &[]).0, 3.0);
}

#[test]
fn fragments_are_written_in_two_phases_and_read_by_as_many_as_decode() {
    let coded = HOST
        .replace("replicas = 3", "erasure = { data = 4, parity = 2 }")
        .replace("devices = 4", "devices = 6");
    let (syncs, quorum, _) = count(&coded, Operation::Write, &[]);
    // Each fragment's content, its name, the name that counts; and the container's rows.
    assert_eq!((syncs, quorum), (6.0 + 6.0 + 6.0 + 3.0, 5));
    // Every server gets a whole tombstone, and half of them are enough.
    let (syncs, quorum, _) = count(&coded, Operation::Delete, &[]);
    assert_eq!((syncs, quorum), (6.0 + 6.0 + 3.0, 3));
    assert_eq!(count(&coded, Operation::Read, &[]).1, 4);
}

/// A proxy answers when a quorum has, and the others have had half a second.
#[test]
fn writes_wait_for_the_others_and_reads_do_not() {
    let lingers = |operation| {
        let steps = steps(HOST, operation, &[]);
        let lingers = steps.iter().filter_map(|step| match step {
            Step::Fork {
                linger, branches, ..
            } => Some((*linger, branches.len())),
            _ => None,
        });
        lingers.collect::<Vec<_>>()
    };
    assert_eq!(lingers(Operation::Write), [(POST_QUORUM_SECONDS, 3)]);
    assert_eq!(lingers(Operation::Delete), [(POST_QUORUM_SECONDS, 3)]);
    assert_eq!(lingers(Operation::Read), [(0.0, 1)]);
}

#[test]
fn a_handoff_stands_in_for_a_lost_device() {
    assert_eq!(count(HOST, Operation::Write, &[0]).0 as usize, 9);
    // With two of four lost there is no third device for a write.
    let (syncs, _, _) = count(HOST, Operation::Write, &[0, 1]);
    assert!(syncs < 9.0, "{syncs}");
}

#[test]
fn a_call_between_processes_costs_both_ends() {
    let apart = HOST.replace("replicas = 3", "replicas = 3\nprocesses = \"roles\"");
    let (_, _, within) = count(HOST, Operation::Read, &[]);
    let (_, _, over) = count(&apart, Operation::Read, &[]);
    let expected = example().store.call + 4000.0 * example().store.call_byte;
    assert!((over - within - expected).abs() < 1e-9, "{}", over - within);
}

#[test]
fn the_cache_curve() {
    let mut cluster = Cluster::parse(HOST).unwrap();
    let mut workload = Workload::parse(SMALL).unwrap();
    assert_eq!(hit_part(&cluster, &workload), 1.0);
    // 24 GB of which 70 % cache content, three copies of 4 KB objects: 1.4 million of them.
    workload.objects = 2.8e6;
    let uniform = hit_part(&cluster, &workload);
    assert!((uniform - 0.5).abs() < 1e-9, "{uniform}");
    workload.zipf = 1e-6;
    let alike = hit_part(&cluster, &workload);
    assert!((alike - uniform).abs() < 0.01, "{alike}");
    workload.zipf = 0.9;
    let skewed = hit_part(&cluster, &workload);
    assert!(skewed > 0.8 && skewed < 1.0, "{skewed}");
    cluster.node[0].memory = crate::Bytes(0.0);
    assert!(hit_part(&cluster, &workload) < 1e-6);
}
