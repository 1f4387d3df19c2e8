//! A whole emulated disk: created, used through its file system, removed. Needs root and a kernel
//! with FUSE and loop devices; otherwise it prints "skipped:".

// Tests may panic.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use cairn_emulate::disk::{Disk, DiskSpec, FileSystem};
use cairn_emulate::model::Medium;
use cairn_emulate::{check, host};

fn spec(dir: &Path, mount: bool) -> DiskSpec {
    DiskSpec {
        name: "d1".to_owned(),
        folder: dir.join("parts"),
        mount_point: mount.then(|| dir.join("mounted")),
        file_system: FileSystem::Ext4,
        size: 64 << 20,
        medium: Medium {
            fixed_us: 200.0,
            channels: 4,
            ..Medium::default()
        },
        seed: 1,
    }
}

#[test]
fn a_disk_is_used_like_any_other_and_leaves_nothing() {
    if let Some(why) = host::no_disks() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut disk = Disk::create(spec(dir.path(), true)).unwrap();
    disk.calibrate().unwrap();
    let path = dir.path().join("mounted/file");
    let content: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    let mut file = File::create(&path).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let counts = disk.counts();
    assert!(
        counts.written_bytes >= 300_000 && counts.flushes > 0,
        "{counts:?}"
    );
    // The kernel waits for replies one after the other, at the latest at the flush.
    assert!(counts.lateness.answers > 0 && counts.busy_ns >= 200_000);
    assert_eq!(counts.distances.total(), counts.reads + counts.writes);
    let mut read = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read, content);
    let device = disk.loop_device().to_owned();
    // A kernel without the throttle has no such file.
    let name = device.trim_start_matches("/dev/");
    let throttle = format!("/sys/block/{name}/queue/wbt_lat_usec");
    if let Ok(limit) = std::fs::read_to_string(throttle) {
        assert_eq!(limit.trim(), "0", "writes beside reads would wait");
    }
    drop(disk);
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&*dir.path().to_string_lossy()), "{mounts}");
    let list = host::run(
        "losetup",
        &["--list", "--noheadings", "--output", "BACK-FILE"],
    )
    .unwrap();
    assert!(
        !list.contains(&*dir.path().to_string_lossy()),
        "{device} is left: {list}"
    );
    assert!(!dir.path().join("parts/d1.content").exists());
}

/// Requests reach the model concurrently: otherwise a disk with many channels would be as slow as
/// with one.
#[test]
fn requests_are_under_way_at_the_same_time() {
    if let Some(why) = host::no_disks() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut spec = spec(dir.path(), false);
    spec.medium.fixed_us = 20_000.0;
    let mut disk = Disk::create(spec).unwrap();
    disk.calibrate().unwrap();
    let device = Path::new(disk.loop_device()).to_owned();
    let time = std::time::Duration::from_millis(600);
    // Each read takes 20 ms of service, so more than one at a time fits into the limit. A busy host
    // may not manage that at the first attempt.
    let mut reads = Vec::new();
    while reads.last().is_none_or(|reads| *reads <= 2 * 600 / 20) {
        let before = disk.counts();
        check::saturated(&device, 64 << 20, 4, time).unwrap();
        reads.push(disk.counts().since(&before).reads);
        assert!(reads.len() < 20, "{reads:?}");
    }
}
