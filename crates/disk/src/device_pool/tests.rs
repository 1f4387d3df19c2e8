#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use futures_util::FutureExt;

use super::*;

fn devices(change: impl FnOnce(&mut DevicesConfig)) -> (tempfile::TempDir, Arc<Devices>) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    change(&mut config);
    let devices = Devices::new(config);
    (root, devices)
}

fn block<T>(run: Run<T>) -> Result<T, DiskError> {
    crate::reader::block_on(run)
}

#[test]
fn runs_and_joins() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    let name = device.read(|disk| Ok(disk.name().to_owned()));
    assert_eq!(block(name).unwrap(), "sda1");
    let panicked: Run<()> = device.write(|_| panic!("a job that panics"));
    assert!(block(panicked).is_err());
    assert_eq!(
        block(device.write(|_| Ok(1))).unwrap(),
        1,
        "the lane lives on"
    );
    devices.shutdown();
    assert!(matches!(
        block(device.read(|_| Ok(()))),
        Err(DiskError::Device(DeviceError::Stopped(_)))
    ));
}

#[test]
fn a_full_queue_refuses_at_once() {
    let (_root, devices) = devices(|config| {
        config.write_threads = 1;
        config.queue_depth = 2;
    });
    let device = devices.get("sda1").unwrap();
    let (started, wait_started) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let first = device.write(move |_| {
        started.send(()).unwrap();
        wait_go.recv().unwrap();
        Ok(())
    });
    wait_started.recv().unwrap();
    let queued: Vec<_> = (0..2).map(|_| device.write(|_| Ok(()))).collect();
    let refused = device.write(|_| Ok(())).now_or_never();
    assert!(matches!(
        refused,
        Some(Err(DiskError::Device(DeviceError::Busy(_))))
    ));
    go.send(()).unwrap();
    block(first).unwrap();
    for run in queued {
        block(run).unwrap();
    }
}

#[test]
fn missing_and_unmounted() {
    let (root, devices) = devices(|_| {});
    for name in ["sdb1", "", ".", "..", "a/b", "sda1%2f"] {
        assert!(
            matches!(devices.get(name), Err(DeviceError::Unmounted(_))),
            "{name:?}"
        );
    }
    let device = devices.get("sda1").unwrap();
    std::fs::remove_dir(root.path().join("sda1")).unwrap();
    assert!(matches!(
        block(device.read(|_| Ok(()))),
        Err(DiskError::Device(DeviceError::Unmounted(_)))
    ));
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    block(device.read(|_| Ok(()))).unwrap();
}

#[test]
fn mount_check() {
    let (root, devices) = devices(|config| config.mount_check = true);
    let device = devices.get("sda1").unwrap();
    assert!(block(device.read(|_| Ok(()))).is_err());
    std::fs::write(root.path().join("sda1/.ismount"), "").unwrap();
    block(device.read(|_| Ok(()))).unwrap();
}

#[test]
fn a_poisoned_device_reads_but_does_not_write() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    device
        .disk()
        .unwrap()
        .poison("x", &std::io::Error::other("test"));
    block(device.read(|_| Ok(()))).unwrap();
    assert!(matches!(
        block(device.write(|_| Ok(()))),
        Err(DiskError::Device(DeviceError::Poisoned(_)))
    ));
}

#[test]
fn reserves() {
    use FallocateReserve::{Bytes, Percent};
    assert_eq!(FallocateReserve::parse("1%"), Some(Percent(1.0)));
    assert_eq!(FallocateReserve::parse(" 2.5 % "), Some(Percent(2.5)));
    assert_eq!(FallocateReserve::parse("1000"), Some(Bytes(1000)));
    assert_eq!(FallocateReserve::parse("101%"), None);
    assert_eq!(FallocateReserve::parse("x"), None);
}
