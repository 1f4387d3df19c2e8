#![allow(clippy::unwrap_used)]

use std::sync::mpsc;
use std::thread;

use cairn_types::{HashPath, PolicySet};

use super::*;
use crate::device_pool::steps::{Completion, Step};
use crate::device_pool::{Device, Devices, DevicesConfig};
use crate::diskfile::{DiskFileConfig, DiskFileEngine};
use crate::error::{DeviceError, DiskError};
use crate::reader::block_on;

fn device() -> (tempfile::TempDir, Arc<Device>) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    let device = Devices::new(config).get("d").unwrap();
    (root, device)
}

/// A write that an engine's own thread makes durable is answered when that thread says so.
#[test]
fn a_handed_write_ends_when_its_thread_says_so() {
    let (_root, device) = device();
    let (queue, committer) = mpsc::channel::<Completion<u32>>();
    let hand = {
        let queue = queue.clone();
        move || Step::handed(move |completion| queue.send(completion).unwrap())
    };
    let hand_again = hand.clone();
    let written = device.commit(move |_| Ok(hand().map(|number| number + 1)));
    let failed = device.commit(move |_| Ok(hand_again()));
    let (first, second) = (committer.recv().unwrap(), committer.recv().unwrap());
    // Another write is not held up by those that wait.
    block_on(device.commit(|_| Ok(Step::Done(())))).unwrap();
    let ended = thread::spawn(move || {
        second.complete(Err(DiskError::NoSpace));
        first.complete(Ok(7));
    });
    ended.join().unwrap();
    let results = [block_on(written), block_on(failed)];
    assert!(results.iter().any(|result| matches!(result, Ok(7 | 8))));
    let full = |result: &Result<u32, DiskError>| matches!(result, Err(DiskError::NoSpace));
    assert!(results.iter().any(full));
}

/// A committer that ends without a word leaves nobody waiting.
#[test]
fn a_handed_write_that_is_dropped_has_failed() {
    let (_root, device) = device();
    let dropped = || Step::<()>::handed(drop);
    let has_stopped = |result: Result<(), DiskError>| {
        matches!(result, Err(DiskError::Device(DeviceError::Stopped(_))))
    };
    assert!(has_stopped(block_on(device.commit(move |_| Ok(dropped())))));
    assert!(has_stopped(dropped().finish(&device.disk().unwrap())));
    let handed = Step::handed(|completion: Completion<u32>| completion.complete(Ok(7)));
    let disk = device.disk().unwrap();
    assert_eq!(handed.map(|number| number * 2).finish(&disk).unwrap(), 14);
}

#[test]
fn an_engine_of_several_policies_counts_once() {
    let policies = PolicySet::single();
    let new = || DiskFileEngine::new(HashPath::new("", "x"), &policies, DiskFileConfig::default());
    let engines = Engines::uniform(&policies, Arc::new(new()));
    assert_eq!(engines.distinct().len(), 1);
    assert!(engines.of(PolicyIndex(1)).is_none());
    let audit = engines.for_audit();
    assert!(!Arc::ptr_eq(audit.distinct()[0], engines.distinct()[0]));
    let refused = Engines::try_new(&policies, |policy| Err(policy.name.clone()));
    assert_eq!(refused.err(), Some("Policy-0".to_owned()));
}
