//! A file system without a free block: reads need none.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_index::{ContainerDb, IndexConfig, IndexError, IndexPool, NewDb};
use cairn_types::{HashPath, Timestamp};
use support::{block_on, new_container, object};

/// A small file system, where this process may mount one; `CAIRN_TEST_FULL` names another.
struct Small {
    path: PathBuf,
    mounted: Option<tempfile::TempDir>,
}

impl Small {
    fn new() -> Option<Self> {
        if let Some(path) = std::env::var_os("CAIRN_TEST_FULL") {
            return Some(Small {
                path: path.into(),
                mounted: None,
            });
        }
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m", "none"])
            .arg(folder.path())
            .output();
        if !mount.is_ok_and(|done| done.status.success()) {
            println!("skipped: nothing may be mounted here");
            return None;
        }
        Some(Small {
            path: folder.path().to_owned(),
            mounted: Some(folder),
        })
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.path.join("full")).unwrap();
        for size in [65_536, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
        let _ = file.sync_all();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if self.mounted.is_some() {
            let _ = Command::new("umount").arg("-l").arg(&self.path).output();
        }
    }
}

fn pool(devices: &Path, exclusive: bool, is_busy: bool, is_room: bool) -> Arc<IndexPool> {
    let mut config = IndexConfig::new(devices);
    config.exclusive = exclusive;
    config.idle_close = Duration::from_secs(3600);
    config.lock_timeout = Duration::from_secs(1);
    let seconds = AtomicU64::new(1000);
    config.clock = Arc::new(move || {
        let step = if is_busy { 0 } else { 1 };
        Timestamp::from_secs(seconds.fetch_add(step, Ordering::SeqCst))
    });
    if is_room {
        config.make_room = Arc::new(|device| {
            let _ = fs::remove_file(device.join("set-aside"));
        });
    }
    IndexPool::new(config)
}

fn container(pool: &Arc<IndexPool>) -> ContainerDb {
    pool.container(&HashPath::new("", "endcap"), "sda", "7", "a", "c")
}

fn count(db: &ContainerDb) -> Result<i64, IndexError> {
    block_on(db.read(|broker| broker.info())).map(|info| info.object_count)
}

fn put(db: &ContainerDb, name: &str, new: Option<NewDb>) -> Result<(), IndexError> {
    block_on(db.merge_items(new, vec![object(name, 1, 1)]))
}

fn each(test: impl Fn(&Small, bool, bool)) {
    for exclusive in [true, false] {
        for is_busy in [true, false] {
            let Some(small) = Small::new() else { return };
            fs::create_dir_all(small.path.join("sda")).unwrap();
            test(&small, exclusive, is_busy);
            let _ = fs::remove_dir_all(small.path.join("sda"));
            let _ = fs::remove_file(small.path.join("full"));
        }
    }
}

/// Pending rows may be missing then, but neither the database nor what was merged.
#[test]
fn a_full_disk_can_be_read() {
    each(|small, exclusive, is_busy| {
        let place = format!("exclusive: {exclusive}, busy: {is_busy}");
        let first = pool(&small.path, exclusive, is_busy, false);
        let db = container(&first);
        put(&db, "first", new_container("c")).unwrap();
        assert_eq!(count(&db).unwrap(), 1);
        for n in 0..20 {
            put(&db, &format!("o{n}"), None).unwrap();
        }
        small.fill();
        let shown = count(&db).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert!((1..=21).contains(&shown), "{place}: {shown}");
        let mut taken = 21;
        for n in 0..200 {
            if put(&db, &format!("more{n}-{}", "x".repeat(200)), None).is_ok() {
                taken += 1;
            }
            if n % 20 == 0 {
                let shown = count(&db).unwrap_or_else(|error| panic!("{place}, {n}: {error}"));
                assert!((1..=taken).contains(&shown), "{place}, {n}: {shown}");
            }
        }
        first.close_all();
        drop(db);
        let second = pool(&small.path, exclusive, is_busy, false);
        let db = container(&second);
        let shown = count(&db).unwrap_or_else(|error| panic!("{place}, again: {error}"));
        assert!((1..=taken).contains(&shown), "{place}: {shown}");
        // With space again nothing is missing.
        fs::remove_file(small.path.join("full")).unwrap();
        put(&db, "last", None).unwrap();
        assert_eq!(count(&db).unwrap(), taken + 1, "{place}");
    });
}

#[test]
fn rows_may_use_what_was_set_aside() {
    each(|small, exclusive, is_busy| {
        let place = format!("exclusive: {exclusive}, busy: {is_busy}");
        let first = pool(&small.path, exclusive, is_busy, true);
        let db = container(&first);
        put(&db, "first", new_container("c")).unwrap();
        fs::write(small.path.join("sda/set-aside"), vec![1; 1 << 20]).unwrap();
        for n in 0..20 {
            put(&db, &format!("o{n}"), None).unwrap();
        }
        assert!(!small.path.join("full").exists());
        fs::write(small.path.join("sda/set-aside"), vec![1; 1 << 20]).unwrap();
        small.fill();
        let gone = cairn_index::ObjectRow::tombstone("first".into(), Timestamp::from_secs(2), 0);
        let removed = block_on(db.merge_items(None, vec![gone]));
        removed.unwrap_or_else(|error| panic!("{place}: {error}"));
        put(&db, "row", None).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(count(&db).unwrap(), 21, "{place}");
    });
}
