//! Counts of steps in operations' paths.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::writes::POST_QUORUM_SECONDS;
use super::*;
use crate::cache::hit_part;
use crate::calibration::tests::example;
use crate::cluster::tests::HOST;
use crate::engine::demands;
use crate::workload::tests::SMALL;

/// The steps of an operation on an object of 4000 bytes.
fn steps(cluster: &str, operation: Operation, lost: &[usize]) -> Vec<Step> {
    let cluster = Cluster::parse(cluster).unwrap();
    let workload = Workload::parse(SMALL).unwrap();
    let lost = (lost.iter().copied().collect(), None);
    in_world(&cluster, &workload, &example(), lost, |world| {
        world.operation(0, operation, 4000.0, &mut Dice::new(2))
    })
}

/// The outcome of `what` in a world without spread; `lost`: devices, and the dilation of an emulated one.
fn in_world<T>(
    cluster: &Cluster,
    workload: &Workload,
    calibration: &Calibration,
    lost: (HashSet<usize>, Option<f64>),
    what: impl FnOnce(&mut World<'_>) -> T,
) -> T {
    let placement = Placement::new(cluster).unwrap();
    let mut engine = Engine::new(1);
    let world = World::new(
        cluster,
        workload,
        calibration,
        &placement,
        &mut engine,
        lost,
    );
    what(&mut world.unwrap().without_spread())
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

/// A cluster of disks of known hardware, without memory, and the steps of an operation.
fn on_known_disks(
    operation: Operation,
    size: f64,
    times: &[f64],
    dilation: Option<f64>,
) -> Vec<Vec<Step>> {
    let mut cluster = Cluster::parse(HOST).unwrap();
    let mut workload = Workload::parse(SMALL).unwrap();
    let mut calibration = example();
    cluster.node[0].memory = crate::Bytes(0.0);
    workload.objects = 1.0;
    for medium in calibration.medium.values_mut() {
        medium.hardware = Some(Hardware {
            fixed_us: 200.0,
            ..Hardware::default()
        });
    }
    let lost = (HashSet::new(), dilation);
    in_world(&cluster, &workload, &calibration, lost, |world| {
        let mut dice = Dice::new(2);
        let mut at = |now: &f64| {
            world.now = *now;
            world.operation(0, operation, size, &mut dice)
        };
        times.iter().map(&mut at).collect()
    })
}

/// Requests to disks for reading content, and blocks of lists that are read, in these steps.
fn reads(steps: &[Step]) -> (Vec<f64>, usize) {
    let (mut content, mut lists) = (Vec::new(), 0);
    for step in steps {
        match step {
            Step::Io { requests, .. } => content.extend(requests.iter().map(|io| match io {
                Io::Read { bytes, .. } => *bytes,
                _ => 0.0,
            })),
            Step::Join { writes, .. } => {
                let is_list =
                    |w: &&crate::engine::Written| matches!(w, crate::engine::Written::Unread(_));
                lists += writes.iter().filter(is_list).count();
            }
            Step::Fork { branches, .. } => {
                for branch in branches {
                    let (more, unread) = reads(branch);
                    content.extend(more);
                    lists += unread;
                }
            }
            _ => (),
        }
    }
    (content, lists)
}

/// The piece that the kernel reads ahead comes before the rest.
#[test]
fn content_is_read_in_pieces_one_after_the_other() {
    let steps = on_known_disks(Operation::Read, 300e3, &[0.0], None);
    let (bytes, _) = reads(&steps[0]);
    assert_eq!(
        bytes,
        [
            READ_AHEAD_BYTES,
            READ_AHEAD_BYTES,
            300e3 - 2.0 * READ_AHEAD_BYTES
        ]
    );
}

/// A write adds to the list of its partition's changes, on each of its devices.
#[test]
fn a_write_reads_the_list_that_it_adds_to() {
    let unread = |times: &[f64], dilation| {
        let steps = on_known_disks(Operation::Write, 4e3, times, dilation);
        steps.iter().map(|steps| reads(steps).1).collect::<Vec<_>>()
    };
    assert_eq!(unread(&[0.0, 0.01], None), [3, 3]);
    // The emulator forgets it once a second of the host: every tenth second of the cluster.
    assert_eq!(unread(&[0.0, 0.09, 0.11], Some(10.0)), [3, 0, 3]);
    let read = on_known_disks(Operation::Read, 4e3, &[0.0, 0.09, 0.11], Some(10.0));
    let counts: Vec<usize> = read.iter().map(|steps| reads(steps).0.len()).collect();
    assert_eq!((counts[0], counts[2]), (1, 1));
}

/// Two replicas on four nodes: both rings pair the same nodes. The rows of a write stay on their hosts
/// where the proxy happens to ask its object's servers in the order of the container's ring.
#[test]
fn rows_stay_on_their_hosts_by_chance_alone() {
    const TRIP: f64 = 0.005;
    fn waits(steps: &[Step]) -> f64 {
        let of = |step: &Step| match step {
            Step::Wait { seconds } => *seconds,
            Step::Fork { branches, .. } => branches.iter().map(|b| waits(b)).fold(0.0, f64::max),
            _ => 0.0,
        };
        steps.iter().map(of).sum()
    }
    let four = HOST
        .replace(
            "replicas = 3",
            "replicas = 2\n[network]\nregion_rtt_ms = 5\nclient_rtt_ms = 0",
        )
        .replace("cores = 2", "cores = 2\ncount = 4\nzones = 4")
        .replace("devices = 4", "devices = 1")
        .replace("device_zones = true", "device_zones = false");
    let cluster = Cluster::parse(&four).unwrap();
    let mut workload = Workload::parse(SMALL).unwrap();
    (workload.objects, workload.containers) = (1000.0, 64);
    let lost = (HashSet::new(), None);
    let near = in_world(&cluster, &workload, &example(), lost, |world| {
        let mut dice = Dice::new(2);
        let mut is_near = |worker| {
            let steps = world.operation(worker, Operation::Write, 4000.0, &mut dice);
            waits(&steps) < 1.5 * TRIP
        };
        (0..2000).filter(|worker| is_near(*worker)).count()
    });
    assert!((400..600).contains(&near), "{near} of 2000");
}

/// An object's server does not wait for its container's for longer than its time-out, and keeps the row.
#[test]
fn a_late_row_is_kept() {
    fn kept(steps: &[Step]) -> usize {
        let of = |step: &Step| match step {
            Step::Fork { branches, .. } => branches
                .iter()
                .map(|branch| match branch.contains(&Step::UnlessOver) {
                    true => 1,
                    false => kept(branch),
                })
                .sum(),
            _ => 0,
        };
        steps.iter().map(of).sum()
    }
    let steps = on_known_disks(Operation::Write, 4e3, &[0.0], None);
    assert_eq!(kept(&steps[0]), 3);
}

/// Limits of an emulated node's processors stop it, and do not slow it.
#[test]
fn a_limited_processor_is_as_quick_as_the_host_until_it_stops() {
    let cluster = Cluster::parse(HOST).unwrap();
    let node = &cluster.node[0];
    assert_eq!(burst_speed(node, None), 1.0);
    assert_eq!(burst_speed(node, Some(10.0)), 10.0);
    let ends = |dilation| {
        let mut engine = Engine::new(1);
        let station = add_processor(node, dilation, &mut engine);
        let seconds = 0.01 / burst_speed(node, dilation);
        engine.start(vec![Step::Serve { station, seconds }], 1);
        while engine.advance().is_some() {}
        engine.now()
    };
    assert!((ends(None) - 0.01).abs() < 1e-9);
    // 10 ms of the host, a tenth of the time in the cluster; of each 2 ms two cores have 0.4.
    let limited = ends(Some(10.0));
    assert!((limited - 0.0042).abs() < 1e-6, "{limited}");
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
