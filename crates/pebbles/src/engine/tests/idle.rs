//! Descriptors of a device's volumes: closed when nobody uses them, and when it is gone.

use std::time::{Duration, Instant};

use super::*;

const IDLE: Duration = Duration::from_millis(40);

fn idle_setup() -> Setup {
    let mut setup = Setup::new(false);
    setup.disk = disk_with(setup.root.path(), |config| config.idle_close = IDLE);
    setup
}

/// Files of a folder that this process has open.
fn open_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    open.filter(|path| path.starts_with(folder)).collect()
}

fn wait_until_closed(folder: &Path) {
    let begun = Instant::now();
    while !open_files(folder).is_empty() {
        let open = open_files(folder);
        assert!(begun.elapsed() < Duration::from_secs(10), "open: {open:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn make_ready(setup: &Setup) {
    while setup.engine.maintain(&setup.disk).unwrap() == cairn_disk::engine::NextUpkeep::Now {}
}

#[test]
fn an_idle_device_is_let_go_of_and_used_again() {
    let setup = idle_setup();
    let folder = setup.root.path().join("d/pebbles");
    put(&setup.engine, &setup.disk, &key("o"), 1_000_000, b"first");
    make_ready(&setup);
    // One that somebody has is not closed.
    let opened = Arc::downgrade(&setup.engine.store(&setup.disk, AT.policy).unwrap());
    assert!(!open_files(&folder).is_empty());
    wait_until_closed(&folder);
    // Upkeep that has nothing to do opens nothing.
    for _ in 0..3 {
        setup.engine.maintain(&setup.disk).unwrap();
        assert_eq!(open_files(&folder), Vec::<std::path::PathBuf>::new());
    }
    assert_eq!(setup.open(&key("o")).unwrap().1.unwrap(), "first");
    wait_until_closed(&folder);
    put(&setup.engine, &setup.disk, &key("o"), 1_000_001, b"second");
    wait_until_closed(&folder);
    assert_eq!(setup.open(&key("o")).unwrap().1.unwrap(), "second");
    // The index was in memory all the time.
    let again = setup.engine.store(&setup.disk, AT.policy).unwrap();
    assert!(std::sync::Weak::ptr_eq(&opened, &Arc::downgrade(&again)));
}

/// An auditor is never done; it has a device open while it reads.
#[test]
fn audits_keep_no_device_open() {
    let setup = idle_setup();
    let folder = setup.root.path().join("d/pebbles");
    put(&setup.engine, &setup.disk, &key("o"), 1_000_000, b"first");
    make_ready(&setup);
    let audit = setup.engine.for_audit();
    let options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    let begun = Instant::now();
    while !open_files(&folder).is_empty() {
        audit.audit(&setup.disk, key("o").id(), &options).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(begun.elapsed() < Duration::from_secs(10), "it stays open");
    }
}

/// As with files, which are opened by their names: nobody waits until the caretaker has noticed.
#[test]
fn a_device_that_is_gone_answers_nothing() {
    let mut setup = Setup::new(false);
    let idle_close = Duration::from_secs(100);
    setup.disk = disk_with(setup.root.path(), |config| config.idle_close = idle_close);
    let (device, gone) = (setup.root.path().join("d"), setup.root.path().join("gone"));
    for turn in 0..3 {
        put(
            &setup.engine,
            &setup.disk,
            &key("o"),
            1_000_000 + turn,
            b"first",
        );
        std::fs::rename(&device, &gone).unwrap();
        std::thread::sleep(Duration::from_millis(6));
        let mut options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
        options.inline_limit = 4096;
        let cached = setup.engine.open_cached(&setup.disk, &key("o"), &options);
        assert!(cached.is_none(), "it was read");
        assert!(setup.open(&key("o")).is_err());
        assert!(setup.engine.at_hand(&setup.disk, &key("n"), 5).is_none());
        std::fs::rename(&gone, &device).unwrap();
        assert_eq!(setup.open(&key("o")).unwrap().1.unwrap(), "first");
    }
}

/// The index has all names: no thread of the device is needed to find that there is no object.
#[test]
fn absent_names_are_known_from_memory() {
    let setup = Setup::new(false);
    put(&setup.engine, &setup.disk, &key("o"), 1_000_000, b"first");
    let options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    assert!(setup.engine.has_index());
    let absent = setup
        .engine
        .open_cached(&setup.disk, &key("absent"), &options);
    assert!(matches!(absent, Some(Err(DiskError::NotExist))));
}

/// A lazy unmount takes the folder away while its files are open.
#[test]
fn a_device_that_is_gone_is_closed_though_it_is_asked_for() {
    let setup = idle_setup();
    let device = setup.root.path().join("d");
    put(&setup.engine, &setup.disk, &key("o"), 1_000_000, b"first");
    let opened = setup.engine.store(&setup.disk, AT.policy).unwrap();
    let gone = setup.root.path().join("gone");
    std::fs::rename(&device, &gone).unwrap();
    let begun = Instant::now();
    while !open_files(&gone.join("pebbles")).is_empty() {
        opened.touch();
        let _ = setup.open(&key("o"));
        assert!(begun.elapsed() < Duration::from_secs(10), "it stays open");
        std::thread::sleep(Duration::from_millis(1));
    }
    // One that still has the store does no harm.
    let late = opened.store().read(AT.partition, key("o").hash, {
        let entries = opened.store().index().get(AT.partition, key("o").hash);
        entries[0].place
    });
    assert!(late.is_err(), "{late:?}");
    assert_eq!(
        open_files(&gone.join("pebbles")),
        Vec::<std::path::PathBuf>::new()
    );
    // Another disk is mounted in its place.
    std::fs::create_dir(&device).unwrap();
    let disk = disk_in(setup.root.path());
    let options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    let there = setup.engine.open(&disk, &key("o"), &options);
    assert!(
        matches!(there, Err(DiskError::NotExist)),
        "{:?}",
        there.err()
    );
    put(&setup.engine, &disk, &key("n"), 1_000_001, b"new");
    setup.engine.open(&disk, &key("n"), &options).unwrap();
}

/// The index of a process that had closed its files is not to be believed when another one has written.
#[test]
fn volumes_that_another_process_had_are_read_anew() {
    let setup = idle_setup();
    let folder = setup.root.path().join("d/pebbles");
    put(&setup.engine, &setup.disk, &key("o"), 1_000_000, b"first");
    wait_until_closed(&folder);
    let other = engine(&setup.policies);
    let disk = disk_in(setup.root.path());
    put(&other, &disk, &key("p"), 1_000_001, b"other");
    assert_eq!(setup.open(&key("p")).unwrap().1.unwrap(), "other");
    put(&setup.engine, &setup.disk, &key("o"), 1_000_002, b"second");
    assert_eq!(setup.open(&key("o")).unwrap().1.unwrap(), "second");
}

/// Nothing is made below a device that has to be mounted and is not.
#[test]
fn nothing_is_made_where_no_device_is_mounted() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mark = root.path().join("d/.ismount");
    std::fs::write(&mark, "").unwrap();
    let disk = disk_with(root.path(), |config| config.mount_check = true);
    std::fs::remove_file(mark).unwrap();
    let engine = engine(&policies(false));
    let refused = engine.store(&disk, AT.policy).err();
    assert!(
        matches!(
            refused,
            Some(DiskError::Device(cairn_disk::DeviceError::Unmounted(_)))
        ),
        "{refused:?}"
    );
    assert!(!root.path().join("d/pebbles").exists());
}
