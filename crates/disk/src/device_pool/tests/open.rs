//! When a device is open, closed, and readmitted.

use super::*;

/// Whether this process has the device open, by its path.
fn is_open(device: &Device) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut open = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    open.any(|path| path.starts_with(device.path()))
}

/// Whether the pool has seen that the failed device is no longer mounted.
fn was_unmounted(device: &Device) -> bool {
    device
        .state
        .readmission
        .was_unmounted
        .load(Ordering::Acquire)
}

#[test]
fn an_idle_device_is_closed_and_opened_again() {
    let idle = std::time::Duration::from_millis(20);
    let (_root, devices) = devices(|config| config.idle_close = idle);
    let device = devices.get("sda1").unwrap();
    let held = device.disk().unwrap();
    std::thread::sleep(idle * 4);
    assert!(is_open(&device), "closed while it was held");
    drop(held);
    wait_until(|| !is_open(&device));
    block(device.write(|_| Ok(()))).unwrap();
    block(device.read(|_| Ok(()))).unwrap();
    wait_until(|| !is_open(&device));
}

#[test]
fn background_work_has_a_device_open_for_its_own_time() {
    let idle = std::time::Duration::from_millis(100);
    let (_root, devices) = devices(|config| config.idle_close = idle);
    let device = devices.get("sda1").unwrap();
    block(device.read(|_| Ok(()))).unwrap();
    let background = device.background();
    let begun = std::time::Instant::now();
    // As an auditor does, who is never done.
    wait_until(|| {
        block(background.write(|_| Ok(()))).unwrap();
        block(background.read(|_| Ok(()))).unwrap();
        !is_open(&device)
    });
    assert!(begun.elapsed() >= idle / 2);
    // It is not closed under one that works.
    let (go, held) = hold(&background);
    std::thread::sleep(idle);
    assert!(is_open(&device));
    drop(go);
    block(held).unwrap();
    wait_until(|| !is_open(&device));
}

#[test]
fn a_device_unmounted_lazily_is_closed_though_it_is_asked_for() {
    let (root, devices) = devices(|config| config.mount_check = true);
    let mark = root.path().join("sda1/.ismount");
    std::fs::write(&mark, "").unwrap();
    let device = devices.get("sda1").unwrap();
    block(device.read(|_| Ok(()))).unwrap();
    assert!(is_open(&device));
    std::fs::remove_file(&mark).unwrap();
    wait_until(|| {
        assert!(block(device.read(|_| Ok(()))).is_err());
        !is_open(&device)
    });
}

#[test]
fn a_failed_device_is_readmitted_when_it_is_mounted_again() {
    let (root, devices) = devices(|config| {
        config.mount_check = true;
        config.idle_close = std::time::Duration::from_millis(20);
    });
    let mark = root.path().join("sda1/.ismount");
    std::fs::write(&mark, "").unwrap();
    let device = devices.get("sda1").unwrap();
    let failed = std::io::Error::other("test");
    device.disk().unwrap().poison("x", &failed);
    wait_until(|| !is_open(&device));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(device.is_poisoned(), "it was not unmounted");
    std::fs::remove_file(&mark).unwrap();
    wait_until(|| was_unmounted(&device));
    // One that fails the check stays out.
    std::fs::create_dir(root.path().join("sda1/.cairn-check")).unwrap();
    std::fs::write(&mark, "").unwrap();
    wait_until(|| !was_unmounted(&device));
    assert!(device.is_poisoned());
    std::fs::remove_dir(root.path().join("sda1/.cairn-check")).unwrap();
    std::fs::remove_file(&mark).unwrap();
    wait_until(|| was_unmounted(&device));
    std::fs::write(&mark, "").unwrap();
    wait_until(|| !device.is_poisoned());
    block(device.write(|_| Ok(()))).unwrap();
}

/// On a file system that no other test shares.
#[test]
fn a_failed_sync_of_the_file_system_is_forgotten_when_the_device_is_readmitted() {
    use std::sync::atomic::AtomicUsize;

    let Ok(root) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no file system at /dev/shm");
        return;
    };
    let mark = root.path().join("sda1/.ismount");
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    std::fs::write(&mark, "").unwrap();
    let devices = Devices::new(DevicesConfig::new(root.path()));
    let device = devices.get("sda1").unwrap();
    let alone = Arc::new(AtomicUsize::new(0));
    let count = || alone.load(Ordering::SeqCst);
    let sync_counted = |disk: &Disk| {
        let alone = alone.clone();
        let own = move || {
            alone.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        sync(disk, own).unwrap();
    };
    let disk = device.disk().unwrap();
    sync_counted(&disk);
    if count() > 0 {
        println!("skipped: this kernel does not report errors of whole file systems");
        return;
    }
    group_sync(&disk).set_failing(true);
    sync_counted(&disk);
    group_sync(&disk).set_failing(false);
    sync_counted(&disk);
    assert_eq!(count(), 2, "what another wrote may be lost");
    disk.poison("x", &std::io::Error::other("test"));
    drop(disk);
    std::fs::remove_file(&mark).unwrap();
    wait_until(|| was_unmounted(&device));
    std::fs::write(&mark, "").unwrap();
    wait_until(|| !device.is_poisoned());
    sync_counted(&device.disk().unwrap());
    assert_eq!(count(), 2, "still file by file");
}

/// The device is no mount, and so is never seen unmounted.
#[test]
fn a_failed_device_is_tried_again_at_an_operators_word_each_time() {
    let (root, devices) = devices(|config| {
        config.idle_close = std::time::Duration::from_millis(20);
    });
    let touch = || {
        // Two touches in one tick of the file system's clock would be one.
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(root.path().join("sda1/.readmit"), "").unwrap();
    };
    let looks = || std::thread::sleep(std::time::Duration::from_millis(200));
    let writes = |device: &Device| block(device.write(|_| Ok(()))).is_ok();
    touch();
    let device = devices.get("sda1").unwrap();
    let fail = || {
        let disk = device.disk().unwrap();
        disk.poison("x", &std::io::Error::other("test"));
    };
    for _ in 0..2 {
        fail();
        looks();
        assert!(!writes(&device), "the word is older");
        let held = device.disk().unwrap();
        touch();
        looks();
        assert!(!writes(&device), "something was under way since before");
        // Another word, while there is also what was opened since the first.
        let since = device.disk().unwrap();
        touch();
        looks();
        drop(since);
        looks();
        assert!(!writes(&device), "what was first under way still is");
        drop(held);
        wait_until(|| writes(&device));
    }
    // One that fails the check stays out, until the next word.
    fail();
    let obstacle = root.path().join("sda1/.cairn-check");
    std::fs::create_dir(&obstacle).unwrap();
    touch();
    looks();
    assert!(!writes(&device));
    std::fs::remove_dir(&obstacle).unwrap();
    looks();
    assert!(!writes(&device));
    touch();
    wait_until(|| writes(&device));
    assert!(!obstacle.exists());
}

#[test]
fn room_is_set_aside_again_after_a_device_was_wiped() {
    let idle = std::time::Duration::from_millis(20);
    let (_root, devices) = devices(|config| config.idle_close = idle);
    let device = devices.get("sda1").unwrap();
    block(device.read(|_| Ok(()))).unwrap();
    let reserve = device.path().join(".cairn-reserve");
    // An empty folder may be the mount point of what was unmounted.
    std::thread::sleep(idle * 4);
    assert!(!reserve.exists());
    match crate::room::keep(device.path()).unwrap() {
        // The caretaker may be filling it.
        Room::Kept => wait_until(|| std::fs::remove_dir_all(&reserve).is_ok()),
        other => return println!("skipped: {other:?} in the temporary directory"),
    }
    std::fs::create_dir(device.path().join("objects")).unwrap();
    wait_until(|| reserve.join("space").exists());
}
