//! Durable operations whose first step the caller takes.

use std::thread::{self, ThreadId};

use super::*;

/// An operation that tells which thread took its first step, and is ended by another one.
fn handed(disk: &Disk, _: Option<()>) -> Result<Step<ThreadId>, DiskError> {
    assert_eq!(disk.name(), "sda1");
    let first = thread::current().id();
    Ok(Step::handed(move |completion| {
        thread::spawn(move || completion.complete(Ok(first)));
    }))
}

#[test]
fn one_at_hand_is_begun_by_the_caller() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    let here = thread::current().id();
    let begun = block(device.commit_at_hand(|_| Some(()), handed)).unwrap();
    assert_eq!(begun, here);
    let begun = block(device.commit_at_hand(|_| None::<()>, handed)).unwrap();
    assert_ne!(begun, here);
    // Background work has its turns, and shares them.
    let background = device.background();
    let begun = block(background.commit_at_hand(|_| Some(()), handed)).unwrap();
    assert_ne!(begun, here);
}

#[test]
fn its_client_counts_for_background_work_until_it_is_durable() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    let share = device.lanes.share.clone();
    assert!(!share.has_clients(Instant::now()));
    let (go, wait_go) = mpsc::channel::<()>();
    let run = device.commit_at_hand(
        |_| Some(()),
        move |_, _| {
            Ok(Step::handed(move |completion| {
                thread::spawn(move || {
                    wait_go.recv().unwrap();
                    completion.complete(Ok(()));
                });
            }))
        },
    );
    assert!(!share.has_clients(Instant::now()));
    go.send(()).unwrap();
    block(run).unwrap();
    assert!(share.has_clients(Instant::now()));
}

#[test]
fn what_it_leaves_to_sync_goes_to_the_lane() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    let here = thread::current().id();
    let work = move |disk: &Disk, _| {
        assert_eq!(thread::current().id(), here);
        let next = |_: &Disk| Ok(Step::Done(thread::current().id()));
        Ok(Step::sync(disk.sync_set(), next))
    };
    assert_ne!(
        block(device.commit_at_hand(|_| Some(()), work)).unwrap(),
        here
    );
}

#[test]
fn where_nothing_may_be_written_it_is_refused() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    let failed = device.commit_at_hand(|_| Some(()), |_, _| Err::<Step<()>, _>(DiskError::NoSpace));
    assert!(matches!(block(failed), Err(DiskError::NoSpace)));
    let error = std::io::Error::other("test");
    device.disk().unwrap().poison("x", &error);
    assert!(matches!(
        block(device.commit_at_hand(|_| Some(()), handed)),
        Err(DiskError::Device(DeviceError::Poisoned(_)))
    ));
    devices.shutdown();
    assert!(matches!(
        block(device.commit_at_hand(|_| Some(()), handed)),
        Err(DiskError::Device(DeviceError::Stopped(_)))
    ));
}
