//! The pool: durability, group commit, limits, opening and closing, damage.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cairn_index::{ContainerRow, DriveCheck, IndexError, ListCursor, ListQuery};
use cairn_types::Timestamp;
use support::{block_on, index, index_with, new_account, new_container, object};

#[test]
fn a_missing_database_is_not_found_and_not_made() {
    let index = index();
    let db = index.container("c");
    assert!(!block_on(db.exists()).unwrap());
    let read = block_on(db.read(|broker| broker.info()));
    assert!(matches!(read, Err(IndexError::NotFound { .. })));
    assert_eq!(index.pool.open_count(), 0);
    let write = block_on(db.merge_items(None, vec![object("o", 1, 1)]));
    assert!(matches!(write, Err(IndexError::NotFound { .. })));
    assert!(!index.dir.path().join("sda/containers").exists());
}

#[test]
fn made_once_with_what_is_put_into_it() {
    let index = index();
    let db = index.container("c");
    let mut made = Vec::new();
    for color in ["red", "blue"] {
        let write = db.write(new_container("c"), move |broker| {
            broker.update_metadata([("X-Container-Meta-Color", color, color)], true)?;
            Ok(broker.created())
        });
        made.push(block_on(write).unwrap());
    }
    assert_eq!(made, [true, false]);
    assert!(block_on(db.exists()).unwrap());
    let metadata = block_on(db.read(|broker| broker.metadata())).unwrap();
    assert_eq!(metadata.get("X-Container-Meta-Color"), Some(("red", "red")));
}

#[test]
fn counts_are_exact_for_any_order() {
    let index = index();
    let db = index.container("c");
    let rows = vec![
        object("a", 1, 10),
        object("b", 1, 20),
        cairn_index::ObjectRow::tombstone("a".into(), Timestamp::from_secs(2), 0),
        object("a", 1, 10),
        object("b", 3, 5),
    ];
    block_on(db.merge_items(new_container("c"), rows.clone())).unwrap();
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!((info.object_count, info.bytes_used), (1, 5));

    let other = index.container("d");
    let backwards = rows.into_iter().rev().collect();
    block_on(other.merge_items(new_container("d"), backwards)).unwrap();
    let same = block_on(other.read(|broker| broker.info())).unwrap();
    assert_eq!((same.object_count, same.bytes_used), (1, 5));
    assert_eq!(same.hash, info.hash);
}

#[test]
fn updates_of_many_callers_are_merged_together() {
    let index = index_with(|config| config.write_threads = Some(1));
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![])).unwrap();
    let callers: Vec<_> = (0..64)
        .map(|i| {
            let db = db.clone();
            std::thread::spawn(move || {
                block_on(db.merge_items(None, vec![object(&format!("o{i:02}"), 1, 1)]))
            })
        })
        .collect();
    for caller in callers {
        caller.join().unwrap().unwrap();
    }
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!((info.object_count, info.bytes_used), (64, 64));
}

#[test]
fn a_refused_update_undoes_only_itself() {
    let index = index_with(|config| config.metadata_limits.size_bytes_max = 8);
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![])).unwrap();
    let refused = block_on(db.write(None, |broker| {
        broker.update_put_timestamp("0000000009.00000")?;
        broker.update_metadata([("X-Container-Meta-A", "123456789", "1")], true)
    }));
    let Err(IndexError::Metadata(refused)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refused.to_string(), "Total metadata too large; max 8");
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!(info.put_timestamp, "0000000001.00000");
}

#[test]
fn a_full_queue_answers_at_once() {
    let index = index_with(|config| {
        config.write_threads = Some(1);
        config.updates_max = 2;
    });
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![])).unwrap();
    let (running, runs) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let blocker = {
        let db = db.clone();
        std::thread::spawn(move || {
            block_on(db.write(None, move |_| {
                running.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            }))
        })
    };
    runs.recv().unwrap();
    // These wait; each future has queued its update when it is first polled.
    let mut waiting = Vec::new();
    let answers = Arc::new(AtomicUsize::new(0));
    for i in 0..3 {
        let (db, answers) = (db.clone(), Arc::clone(&answers));
        waiting.push(std::thread::spawn(move || {
            let result = block_on(db.merge_items(None, vec![object(&format!("o{i}"), 1, 1)]));
            answers.fetch_add(1, Ordering::SeqCst);
            result
        }));
    }
    while answers.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // Readers do not wait for the transaction that is under way.
    assert_eq!(
        block_on(db.read(|broker| broker.info()))
            .unwrap()
            .object_count,
        0
    );
    go_on.send(()).unwrap();
    blocker.join().unwrap().unwrap();
    let results: Vec<_> = waiting.into_iter().map(|t| t.join().unwrap()).collect();
    let busy = |r: &Result<(), _>| matches!(r, Err(IndexError::Busy { .. }));
    assert_eq!(results.iter().filter(|r| busy(r)).count(), 1);
    assert_eq!(
        block_on(db.read(|broker| broker.info()))
            .unwrap()
            .object_count,
        2
    );
}

#[test]
fn closed_databases_are_one_whole_file() {
    let index = index_with(|config| {
        config.exclusive = true;
        config.idle_close = Duration::from_millis(40);
    });
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("o", 1, 1)])).unwrap();
    block_on(db.merge_items(None, vec![object("p", 1, 1)])).unwrap();
    let file = db.key().file(index.pool.devices());
    let log = file.with_extension("db-wal");
    assert!(log.exists());
    while log.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(index.pool.open_count(), 0);
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!(info.object_count, 2);
    index.pool.close_all();
    assert!(!log.exists());
    let closed = block_on(db.read(|broker| broker.info()));
    assert!(matches!(closed, Err(IndexError::Closed)));
}

/// Unmounted lazily: what is open keeps the file system alive.
#[test]
fn databases_of_an_unmounted_device_are_closed_though_they_are_asked_for() {
    let index = index_with(|config| {
        config.exclusive = true;
        config.idle_close = Duration::from_secs(4);
    });
    let mark = index.dir.path().join("sda/.ismount");
    std::fs::write(&mark, "").unwrap();
    let db = index.container("c").checked(DriveCheck {
        mount_check: true,
        reserve: None,
    });
    block_on(db.merge_items(new_container("c"), vec![object("o", 1, 1)])).unwrap();
    block_on(db.merge_items(None, vec![object("p", 1, 1)])).unwrap();
    let is_open = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut open = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        open.any(|path| path.starts_with(index.dir.path().join("sda")))
    };
    assert!(is_open());
    std::fs::remove_file(&mark).unwrap();
    let unmounted = Instant::now();
    let mut reads = true;
    while is_open() {
        let elapsed = unmounted.elapsed();
        assert!(elapsed < Duration::from_secs(30), "open after {elapsed:?}");
        let refused = match reads {
            true => block_on(db.read(|broker| broker.info())).map(drop),
            false => block_on(db.merge_items(None, vec![object("q", 1, 1)])),
        };
        assert!(matches!(refused, Err(IndexError::NotMounted { .. })));
        reads = !reads;
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(&mark, "").unwrap();
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!(info.object_count, 2);
}

#[test]
fn few_are_open_at_once() {
    let index = index_with(|config| config.open_max = 3);
    for i in 0..12 {
        let name = format!("c{i}");
        let db = index.container(&name);
        block_on(db.merge_items(new_container(&name), vec![object("o", 1, i)])).unwrap();
    }
    assert!(index.pool.open_count() <= 4);
    for i in 0..12 {
        let db = index.container(&format!("c{i}"));
        let info = block_on(db.read(|broker| broker.info())).unwrap();
        assert_eq!(info.bytes_used, i);
    }
}

#[test]
fn a_damaged_database_is_quarantined() {
    let index = index();
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![])).unwrap();
    index.close(db.key());
    let file = db.key().file(index.pool.devices());
    std::fs::write(&file, [7; 8192]).unwrap();
    let read = block_on(db.read(|broker| broker.info()));
    assert!(
        matches!(read, Err(IndexError::Quarantined { .. })),
        "{read:?}"
    );
    let quarantined = index.dir.path().join("sda/quarantined/containers");
    assert!(quarantined.join(db.key().hash.hex()).is_dir());
    assert!(!block_on(db.exists()).unwrap());
    // A second one goes beside the first.
    block_on(db.merge_items(new_container("c"), vec![])).unwrap();
    index.close(db.key());
    std::fs::write(&file, [7; 8192]).unwrap();
    let write = block_on(db.merge_items(None, vec![object("o", 1, 1)]));
    assert!(
        matches!(write, Err(IndexError::Quarantined { .. })),
        "{write:?}"
    );
    assert_eq!(std::fs::read_dir(quarantined).unwrap().count(), 2);
}

#[test]
fn a_database_removed_by_others_is_noticed() {
    let index = index();
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("o", 1, 1)])).unwrap();
    std::fs::remove_dir_all(db.key().dir(index.pool.devices())).unwrap();
    let write = block_on(db.merge_items(None, vec![object("p", 1, 1)]));
    assert!(matches!(write, Err(IndexError::NotFound { .. })));
    block_on(db.merge_items(new_container("c"), vec![object("q", 1, 1)])).unwrap();
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!(info.object_count, 1);
}

#[test]
fn copied_and_removed() {
    let index = index();
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("o", 1, 1)])).unwrap();
    let other = index.container("d");
    let dir = other.key().dir(index.pool.devices());
    std::fs::create_dir_all(&dir).unwrap();
    let to = other.key().file(index.pool.devices());
    index.pool.copy_db(db.key(), to).unwrap();
    block_on(other.write(None, |broker| broker.newid("from"))).unwrap();
    let (info, point) =
        block_on(other.read(|broker| Ok((broker.info()?, broker.sync_point("from", true)?))))
            .unwrap();
    assert_eq!((info.object_count, point), (1, 1));
    index.close(other.key());
    assert!(index.pool.remove_db(other.key()).unwrap());
    assert!(!dir.exists());
    assert!(block_on(db.exists()).unwrap());
}

#[test]
fn an_update_that_panics_harms_nobody_else() {
    let index = index();
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![])).unwrap();
    let panicked = block_on(db.write(None, |_| -> cairn_index::Result<()> {
        panic!("on purpose")
    }));
    assert!(matches!(panicked, Err(IndexError::Closed)));
    block_on(db.merge_items(None, vec![object("o", 1, 1)])).unwrap();
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!(info.object_count, 1);
}

#[test]
fn deleted_and_made_again() {
    let index = index();
    let db = index.container("c");
    block_on(db.write(new_container("c"), |broker| {
        broker.update_metadata([("X-Container-Meta-A", "1", "0000000001.00000")], true)
    }))
    .unwrap();
    block_on(db.write(None, |broker| broker.delete_db("0000000002.00000"))).unwrap();
    let (info, metadata) =
        block_on(db.read(|broker| Ok((broker.info()?, broker.metadata()?)))).unwrap();
    assert!(info.is_deleted());
    assert_eq!(info.status, "DELETED");
    assert_eq!(info.status_changed_at, "0000000002.00000");
    assert_eq!(
        metadata.get("X-Container-Meta-A"),
        Some(("", "0000000002.00000"))
    );
    block_on(db.write(None, |broker| {
        broker.set_storage_policy_index(1, "0000000003.00000")?;
        broker.update_put_timestamp("0000000003.00000")
    }))
    .unwrap();
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert!(!info.is_deleted());
    assert_eq!(info.storage_policy_index, 1);
    assert_eq!(info.status_changed_at, "0000000003.00000");
}

#[test]
fn accounts_count_their_containers() {
    let index = index();
    let db = index.account();
    let row = |name: &str, put: &str, delete: &str, objects: i64| ContainerRow {
        name: name.into(),
        put_timestamp: put.into(),
        delete_timestamp: delete.into(),
        object_count: objects,
        bytes_used: objects * 10,
        deleted: false,
        storage_policy_index: 0,
    };
    let rows = vec![
        row("c", "0000000001.00000", "0", 3),
        row("d", "0000000001.00000", "0", 4),
        row("d", "0000000001.00000", "0000000002.00000", 0),
        row("e", "0000000001.00000", "0000000002.00000", 5),
    ];
    block_on(db.merge_items(new_account(), rows)).unwrap();
    let (info, stats) =
        block_on(db.read(|broker| Ok((broker.info()?, broker.policy_stats()?)))).unwrap();
    assert_eq!(
        (info.container_count, info.object_count, info.bytes_used),
        (2, 8, 80)
    );
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0].container_count, 2);
    let query = ListQuery {
        limit: 10,
        ..ListQuery::default()
    };
    let page = block_on(db.list_containers(ListCursor::new(query), 100)).unwrap();
    assert_eq!(page.entries.len(), 2);
}

#[test]
fn old_tombstones_are_reclaimed() {
    let index = index();
    let db = index.container("c");
    let tombstone = |name: &str, time| {
        cairn_index::ObjectRow::tombstone(name.into(), Timestamp::from_secs(time), 0)
    };
    let rows = vec![tombstone("a", 10), tombstone("b", 20), object("c", 1, 1)];
    block_on(db.merge_items(new_container("c"), rows)).unwrap();
    let age = Timestamp::from_secs(15);
    assert_eq!(block_on(db.reclaim(age, age)).unwrap(), 1);
    let left = block_on(db.read(|broker| broker.items_since(-1, 10))).unwrap();
    let names: Vec<_> = left.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
}

#[test]
fn others_read_nothing_of_a_database() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    for exclusive in [true, false] {
        let index = index_with(|config| {
            config.exclusive = exclusive;
            config.clock = Arc::new(|| Timestamp::from_secs(1000));
        });
        let db = index.container("c");
        for name in ["a", "b", "c"] {
            block_on(db.merge_items(new_container("c"), vec![object(name, 1, 1)])).unwrap();
        }
        let sda = index.dir.path().join("sda");
        let mut folders = vec![sda.join("containers")];
        let mut seen = Vec::new();
        while let Some(folder) = folders.pop() {
            assert_eq!(
                folder.metadata().unwrap().mode() & 0o777,
                0o700,
                "{folder:?}"
            );
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => {
                        let mode = path.metadata().unwrap().mode() & 0o777;
                        assert_eq!(mode, 0o600, "{path:?}");
                        seen.push(path);
                    }
                }
            }
        }
        let has = |end: &str| {
            seen.iter()
                .any(|path| path.to_string_lossy().ends_with(end))
        };
        assert!(
            has(".db") && has(".pending") && has(".db-wal") == exclusive,
            "{seen:?}"
        );

        // One of an older release.
        index.close(db.key());
        let file = db.key().file(index.dir.path());
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        block_on(db.read(|broker| broker.info())).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    }
}

/// A file of the copy's name is somebody else's, and stays.
#[test]
fn a_copy_takes_no_file_s_place() {
    let index = index_with(|_| {});
    let container = index.container("c");
    let rows = vec![object("one", 1, 1)];
    block_on(container.merge_items(new_container("c"), rows)).unwrap();
    let db = index.pool.db_by_key(container.key().clone());
    let tmp = index.dir.path().join(&*container.key().device).join("tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    for content in ["another's", ""] {
        std::fs::write(tmp.join("taken"), content).unwrap();
        assert!(
            block_on(db.snapshot("taken".into())).is_err(),
            "{content:?}"
        );
        assert_eq!(std::fs::read_to_string(tmp.join("taken")).unwrap(), content);
    }
    block_on(db.snapshot("free".into())).unwrap();
}

/// SQLite takes the log that lies beside a database for its own.
#[test]
fn a_database_that_is_replaced_leaves_no_log_to_its_successor() {
    for is_read in [false, true] {
        let index = index_with(|config| {
            config.exclusive = true;
            let seconds = AtomicUsize::new(1000);
            config.clock = Arc::new(move || {
                Timestamp::from_secs(seconds.fetch_add(1, Ordering::SeqCst) as u64)
            });
        });
        let db = index.container("c");
        block_on(db.merge_items(new_container("c"), vec![object("first", 1, 1)])).unwrap();
        let any = index.pool.db_by_key(db.key().clone());
        block_on(any.snapshot("received".into())).unwrap();
        for n in 0..200 {
            let name = format!("o{n:04}-{}", "x".repeat(200));
            block_on(db.merge_items(None, vec![object(&name, 1, 1)])).unwrap();
        }
        let (go_on, told) = mpsc::channel::<()>();
        let reading = is_read.then(|| {
            let (reader, (begun, has_begun)) = (db.clone(), mpsc::channel());
            let reading = std::thread::spawn(move || {
                block_on(reader.read(move |broker| {
                    begun.send(()).unwrap();
                    let _ = told.recv();
                    broker.info()
                }))
            });
            has_begun.recv().unwrap();
            reading
        });
        let replaced = block_on(any.replace_by_received("received".into())).unwrap();
        assert_eq!(replaced, cairn_index::Received::Done);
        let count = || {
            block_on(db.read(|broker| broker.info()))
                .unwrap()
                .object_count
        };
        assert_eq!(count(), 201);
        block_on(db.merge_items(None, vec![object("last", 1, 1)])).unwrap();
        drop(go_on);
        if let Some(reading) = reading {
            reading.join().unwrap().unwrap();
        }
        assert_eq!(count(), 202);
        block_on(any.read(|broker| broker.audit())).unwrap();
        index.close(db.key());
        assert_eq!(count(), 202);
        block_on(any.read(|broker| broker.audit())).unwrap();
    }
}

/// Another server may send its database as the disk rotted it: ours is as good as before.
#[test]
fn a_damaged_file_received_leaves_our_database() {
    for exclusive in [false, true] {
        let index = index_with(|config| config.exclusive = exclusive);
        let container = index.container("c");
        let rows: Vec<_> = (0..100)
            .map(|n| object(&format!("o{n:03}"), 1, 1))
            .collect();
        block_on(container.merge_items(new_container("c"), rows)).unwrap();
        let db = index.pool.db_by_key(container.key().clone());
        // A header that fits and pages of nothing, and a file that is no database.
        for good_bytes in [4096, 0] {
            block_on(db.snapshot("received".into())).unwrap();
            let received = index.dir.path().join("sda/tmp/received");
            let mut bytes = std::fs::read(&received).unwrap();
            bytes[good_bytes..].fill(0xa5);
            std::fs::write(&received, bytes).unwrap();
            let refused = block_on(db.replace_by_received("received".into()));
            assert!(
                matches!(&refused, Err(IndexError::Corrupt { path, .. }) if *path == received),
                "{refused:?}"
            );
            assert!(!received.exists());
            let info = block_on(container.read(|broker| broker.info())).unwrap();
            assert_eq!(info.object_count, 100);
        }
    }
}

/// Its folder is locked while the file is put in place, and the database is open until then.
#[test]
fn a_file_is_received_beside_an_open_database() {
    for exclusive in [false, true] {
        let index = index_with(|config| config.exclusive = exclusive);
        let container = index.container("c");
        let rows = || vec![object("one", 1, 1)];
        block_on(container.merge_items(new_container("c"), rows())).unwrap();
        block_on(container.read(|broker| broker.info())).unwrap();
        let key = container.key().clone();
        let db = index.pool.db_by_key(key.clone());
        let name = || "received".to_owned();
        block_on(db.snapshot(name())).unwrap();
        let epoch = format!("{}_0000000002.00000.db", key.hash.hex());
        let received = block_on(db.take_received(name(), Some(epoch.clone()))).unwrap();
        assert_eq!(received, cairn_index::Received::Done);
        assert!(key.dir(index.dir.path()).join(epoch).exists());
        // A second one finds its place taken.
        block_on(db.snapshot(name())).unwrap();
        let received = block_on(db.take_received(name(), None)).unwrap();
        assert_eq!(received, cairn_index::Received::NotNow);
        let info = block_on(container.read(|broker| broker.info())).unwrap();
        assert_eq!((info.object_count, info.db_state), (1, "sharding"));
    }
}
