#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::device_pool::{Devices, DevicesConfig};
use crate::machine::{AtOnce, Employer, Machine};

fn disk(change: impl FnOnce(&mut DevicesConfig)) -> (tempfile::TempDir, Disk) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    change(&mut config);
    let disk = Devices::new(config).get("d").unwrap().disk().unwrap();
    (root, disk)
}

fn keep() -> Reserve {
    Reserve::Keep { size: None }
}

#[test]
fn published_with_its_directories() {
    for use_tmpfile in [true, false] {
        let (root, disk) = disk(|_| {});
        disk.state.use_tmpfile.store(use_tmpfile, Ordering::Relaxed);
        for content in ["one", "two"] {
            let mut staged = StagedFile::create(&disk, "tmp", keep()).unwrap();
            staged.write(&[Bytes::from(content)]).unwrap();
            assert_eq!(staged.written(), 3);
            let published = staged
                .publish("objects/1/abc/x", "f.data", just_link)
                .unwrap();
            assert_eq!(published.is_new_dir, content == "one");
            let path = root.path().join("d/objects/1/abc/x/f.data");
            assert_eq!(std::fs::read_to_string(path).unwrap(), content);
        }
        let dir = root.path().join("d/objects/1/abc/x");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        let ours = ["d/objects", "d/objects/1/abc/x", "d/objects/1/abc/x/f.data"];
        for (path, mode) in ours.iter().zip([0o700, 0o700, 0o600]) {
            let meta = std::fs::metadata(root.path().join(path)).unwrap();
            assert_eq!(meta.mode() & 0o777, mode, "{path}");
        }
        assert_eq!(
            std::fs::read_dir(root.path().join("d/tmp"))
                .unwrap()
                .count(),
            0
        );
    }
}

#[test]
fn dropped_it_is_gone() {
    let (root, disk) = disk(|_| {});
    disk.state.use_tmpfile.store(false, Ordering::Relaxed);
    let staged = StagedFile::create(&disk, "tmp-1", keep()).unwrap();
    let tmp = root.path().join("d/tmp-1");
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 1);
    drop(staged);
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
}

#[test]
fn a_directory_made_for_a_file_goes_with_it() {
    let (root, disk) = disk(|_| {});
    let dir = "objects/1/abc/x";
    let create = || StagedFile::create_in(&disk, "tmp", dir, keep()).unwrap();
    let publish = |staged: StagedFile, name: &str| {
        let published = staged.publish(dir, name, just_link).unwrap();
        published.is_new_dir
    };
    let (first, second) = (create(), create());
    assert!(root.path().join("d").join(dir).exists());
    drop(first);
    assert!(!root.path().join("d").join(dir).exists());
    // Created again.
    assert!(publish(second, "1.data"));

    let dir = "objects/1/abc/y";
    let create = || StagedFile::create_in(&disk, "tmp", dir, keep()).unwrap();
    let publish = |staged: StagedFile, name: &str| {
        let published = staged.publish(dir, name, just_link).unwrap();
        published.is_new_dir
    };
    let (first, second) = (create(), create());
    assert!(!publish(second, "2.data"), "made for another");
    assert!(!publish(first, "1.data"), "another was faster");
}

#[test]
fn a_directory_removed_in_between_is_made_again() {
    let (root, disk) = disk(|_| {});
    let staged = StagedFile::create(&disk, "tmp", keep()).unwrap();
    let dir = root.path().join("d/objects/1");
    let (removing, removed) = (dir.clone(), std::cell::Cell::new(false));
    let around = move |_: &Disk, link: &mut dyn FnMut() -> Result<(), Errno>| {
        if !removed.replace(true) {
            std::fs::remove_dir(&removing).unwrap();
        }
        Ok(link())
    };
    staged.publish("objects/1", "f", around).unwrap();
    assert!(dir.join("f").exists());
}

#[test]
fn a_directory_moved_away_in_between_is_made_again() {
    let (root, disk) = disk(|_| {});
    let staged = StagedFile::create(&disk, "tmp", keep()).unwrap();
    let (dir, aside) = (root.path().join("d/objects/1"), root.path().join("aside"));
    let (from, to) = (dir.clone(), aside.clone());
    let moved = std::cell::Cell::new(false);
    let around = move |_: &Disk, link: &mut dyn FnMut() -> Result<(), Errno>| {
        if !moved.replace(true) {
            std::fs::rename(&from, &to).unwrap();
        }
        Ok(link())
    };
    staged.publish("objects/1", "f", around).unwrap();
    assert!(dir.join("f").exists() && !aside.join("f").exists());
}

/// Records the names of synced files.
#[derive(Debug, Default)]
struct Noting(std::sync::Mutex<Vec<String>>);

impl Machine for Noting {
    fn employer(&self) -> Option<&dyn Employer> {
        Some(&AtOnce)
    }

    fn sync(&self, file: BorrowedFd<'_>) -> std::io::Result<()> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.0.lock().unwrap().push(name.into_owned());
        Ok(())
    }
}

#[test]
fn whoever_finds_a_directory_that_is_not_durable_syncs_its_name() {
    let noting = Arc::new(Noting::default());
    let machine = noting.clone();
    let (_root, disk) = disk(|c| c.machine = Some(machine));
    let begin = |name: &str| {
        let staged = StagedFile::create(&disk, "tmp", keep()).unwrap();
        let step = staged.publish_steps("async_pending/abc", name, just_link);
        let Step::Sync { set, next } = step.unwrap() else {
            panic!("nothing to sync")
        };
        disk.sync(&set).unwrap();
        next(&disk).unwrap()
    };
    let end = |step: Step<Published>| {
        noting.0.lock().unwrap().clear();
        step.finish(&disk).unwrap();
        noting.0.lock().unwrap().clone()
    };
    let all = ["abc", "async_pending", "d"];
    let first = begin("1");
    // The first writer has created the directory, and not synced it yet.
    assert_eq!(end(begin("2")), all);
    assert_eq!(end(first), all);
    assert_eq!(end(begin("3")), ["abc"]);
}

#[test]
fn the_reserve_is_kept() {
    let (_root, disk) = disk(|c| c.fallocate_reserve = FallocateReserve::Percent(100.0));
    for size in [None, Some(0), Some(10 << 20)] {
        assert!(matches!(
            StagedFile::create(&disk, "tmp", Reserve::Keep { size }),
            Err(DiskError::NoSpace)
        ));
    }
    StagedFile::create(&disk, "tmp", Reserve::Ignore).unwrap();
}

#[test]
fn moved_aside_under_another_name() {
    let (root, disk) = disk(|_| {});
    for _ in 0..2 {
        make_dirs(&disk, "objects/1/abc/x").unwrap();
        std::fs::write(root.path().join("d/objects/1/abc/x/f"), "").unwrap();
        move_aside(&disk, "objects/1/abc/x", "quarantined/objects/x").unwrap();
    }
    let aside = root.path().join("d/quarantined/objects");
    assert_eq!(std::fs::read_dir(aside).unwrap().count(), 2);
}
