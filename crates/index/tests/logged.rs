//! Rows that are acknowledged by the pending file and merged later.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_device::Machine;
use cairn_index::{ContainerDb, IndexConfig, ListCursor, ListEntry, ListQuery};
use support::{Index, block_on, index_with, new_container, object};

/// All rows come at once for this clock; nothing is closed by itself.
fn busy(exclusive: bool) -> impl FnOnce(&mut IndexConfig) {
    move |config| {
        config.exclusive = exclusive;
        config.clock = std::sync::Arc::new(|| cairn_types::Timestamp::from_secs(1000));
        config.idle_close = Duration::from_secs(3600);
    }
}

fn with_rows(index: &Index, count: usize) -> ContainerDb {
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), Vec::new())).unwrap();
    for n in 0..count {
        block_on(db.merge_items(None, vec![object(&format!("o{n:04}"), 1, 1)])).unwrap();
    }
    db
}

fn pending(index: &Index, db: &ContainerDb) -> PathBuf {
    let file = db.key().file(index.dir.path());
    file.with_extension("db.pending")
}

fn has_entries(path: &Path) -> bool {
    fs::read(path).is_ok_and(|text| text.iter().any(|byte| *byte != b':'))
}

fn listed(db: &ContainerDb) -> Vec<String> {
    let query = ListQuery {
        limit: 10_000,
        ..ListQuery::default()
    };
    let page = block_on(db.list_objects(ListCursor::new(query), 10_000)).unwrap();
    page.entries
        .iter()
        .map(|entry| match entry {
            ListEntry::Row(entry) => entry.name.clone(),
            ListEntry::Subdir(name) => name.clone(),
        })
        .collect()
}

/// The folder of a database as it is now, as another index.
fn left_by_a_kill(index: &Index, db: &ContainerDb, exclusive: bool) -> Index {
    let after = index_with(busy(exclusive));
    let (from, to) = (
        db.key().dir(index.dir.path()),
        db.key().dir(after.dir.path()),
    );
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    after
}

#[test]
fn rows_in_a_row_are_logged_and_seen() {
    for exclusive in [true, false] {
        let index = index_with(busy(exclusive));
        let db = with_rows(&index, 5);
        assert!(has_entries(&pending(&index, &db)), "exclusive: {exclusive}");
        assert_eq!(listed(&db).len(), 5);
        block_on(db.merge_items(None, vec![object("one more", 1, 1)])).unwrap();
        assert_eq!(
            block_on(db.read(|broker| broker.info()))
                .unwrap()
                .object_count,
            6
        );
    }
}

#[test]
fn a_kill_loses_no_logged_row() {
    for (before, after) in [(true, true), (false, false), (true, false), (false, true)] {
        let index = index_with(busy(before));
        let db = with_rows(&index, 20);
        // Some were shown to a reader, which syncs nothing.
        assert_eq!(listed(&db).len(), 20);
        for n in 0..20 {
            block_on(db.merge_items(None, vec![object(&format!("late{n}"), 1, 1)])).unwrap();
        }
        let killed = left_by_a_kill(&index, &db, after);
        let found = killed.container("c");
        assert_eq!(listed(&found).len(), 40, "{before} {after}");
        assert!(!has_entries(&pending(&killed, &found)));
    }
}

#[test]
fn the_log_alone_brings_back_what_readers_were_shown() {
    let index = index_with(busy(true));
    let db = with_rows(&index, 20);
    assert_eq!(listed(&db).len(), 20);
    let killed = left_by_a_kill(&index, &db, true);
    // SQLite's own log was never synced.
    let hash = db.key().hash.hex();
    fs::remove_file(
        db.key()
            .dir(killed.dir.path())
            .join(format!("{hash}.db-wal")),
    )
    .unwrap();
    // It had the one row that was not logged: none had come just before it.
    let names = listed(&killed.container("c"));
    assert_eq!(names, listed(&db)[1..]);
}

#[test]
fn a_full_log_is_merged() {
    for exclusive in [true, false] {
        let index = index_with(busy(exclusive));
        let db = with_rows(&index, 1500);
        assert!(fs::metadata(pending(&index, &db)).unwrap().len() <= 128 << 10);
        assert_eq!(listed(&db).len(), 1500);
        let many = (0..2000).map(|n| object(&format!("many{n}"), 1, 1));
        block_on(db.merge_items(None, many.collect())).unwrap();
        assert_eq!(listed(&db).len(), 3500);
    }
}

/// Rows come from all sides while halves of the log are merged, readers read and other updates are
/// made: whoever reads sees at least what was acknowledged before.
#[test]
fn rows_that_come_beside_a_merge_are_seen() {
    const WRITERS: usize = 8;
    const ROWS: usize = 400;
    for exclusive in [true, false] {
        let index = index_with(busy(exclusive));
        let db = with_rows(&index, 1);
        let acknowledged = AtomicUsize::new(1);
        std::thread::scope(|scope| {
            let (db, acknowledged) = (&db, &acknowledged);
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    for n in 0..ROWS {
                        let name = format!("w{writer}-{n}");
                        block_on(db.merge_items(None, vec![object(&name, 1, 1)])).unwrap();
                        acknowledged.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let mut since = 0;
            while since < WRITERS * ROWS {
                since = acknowledged.load(Ordering::SeqCst);
                let info = block_on(db.read(|broker| broker.info())).unwrap();
                assert!(info.object_count >= since as i64, "{info:?} after {since}");
                let time = format!("{:016.5}", 2.0 + since as f64);
                let put = move |broker: &cairn_index::ContainerBroker<'_>| {
                    broker.update_put_timestamp(&time)
                };
                if since % 5 == 0 {
                    block_on(db.write(None, put)).unwrap();
                }
            }
        });
        assert_eq!(listed(&db).len(), 1 + WRITERS * ROWS);
        let killed = left_by_a_kill(&index, &db, exclusive);
        assert_eq!(listed(&killed.container("c")).len(), 1 + WRITERS * ROWS);
    }
}

/// Whether a sync is one of SQLite's log.
fn is_of_wal(file: BorrowedFd<'_>) -> bool {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    path.to_string_lossy().ends_with("-wal")
}

fn sync(file: BorrowedFd<'_>) -> io::Result<()> {
    file.try_clone_to_owned()
        .and_then(|file| fs::File::from(file).sync_all())
}

/// Copies a database as a power cut leaves it just before SQLite's log is synced for the first time.
#[derive(Debug, Default)]
struct Cutting {
    /// Copied from and to.
    place: Mutex<Option<(PathBuf, PathBuf)>>,
    /// Bytes of the log that were synced.
    on_disk: AtomicU64,
    acknowledged: AtomicUsize,
    /// Rows acknowledged at that moment.
    found: AtomicUsize,
}

impl Machine for Cutting {
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let asked = self.place.lock().unwrap().clone();
        let Some((from, to)) = asked.filter(|_| is_of_wal(file)) else {
            return sync(file);
        };
        let log = fs::metadata(from.with_extension("db-wal")).map_or(0, |meta| meta.len());
        let kept = self.on_disk.load(Ordering::SeqCst);
        if log > kept && self.found.load(Ordering::SeqCst) == 0 {
            let seen = self.acknowledged.load(Ordering::SeqCst);
            self.found.store(seen, Ordering::SeqCst);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            for end in ["db", "db-wal", "db.pending"] {
                fs::copy(from.with_extension(end), to.with_extension(end)).unwrap();
            }
            let wal = fs::OpenOptions::new()
                .write(true)
                .open(to.with_extension("db-wal"));
            wal.unwrap().set_len(kept).unwrap();
        }
        sync(file)?;
        self.on_disk.store(log, Ordering::SeqCst);
        Ok(())
    }
}

/// As a power cut leaves it just before what was merged of the log is synced: of SQLite's own log
/// there is what was synced before.
#[test]
fn a_half_is_not_cleared_before_its_rows_are_on_disk() {
    let cut = index_with(busy(true));
    let cutting = Arc::new(Cutting::default());
    let machine = cutting.clone();
    let index = index_with(|config| {
        busy(true)(config);
        config.machine = Some(machine);
    });
    let db = with_rows(&index, 1);
    let file = |index: &Index| db.key().file(index.dir.path());
    *cutting.place.lock().unwrap() = Some((file(&index), file(&cut)));
    let acknowledged = &cutting.acknowledged;
    // One row created the database, and one was not logged.
    acknowledged.store(1, Ordering::SeqCst);
    for n in 0..1000 {
        block_on(db.merge_items(None, vec![object(&format!("n{n}"), 1, 1)])).unwrap();
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
    let least = cutting.found.load(Ordering::SeqCst);
    assert!(least > 100, "a half was merged after {least}");
    assert!(listed(&cut.container("c")).len() >= least - 1);
}

/// Panics in the first merge's sync.
#[derive(Debug, Default)]
struct Panicking {
    is_begun: AtomicBool,
    merges: AtomicUsize,
}

impl Machine for Panicking {
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let is_merge = self.is_begun.load(Ordering::SeqCst) && is_of_wal(file);
        assert!(
            !is_merge || self.merges.fetch_add(1, Ordering::SeqCst) > 0,
            "planted"
        );
        sync(file)
    }
}

/// Whatever goes wrong in a merge, what was acknowledged is in the log's file and is found there.
#[test]
fn a_panic_in_a_merge_loses_no_row() {
    let panicking = Arc::new(Panicking::default());
    let machine = panicking.clone();
    let index = index_with(|config| {
        busy(true)(config);
        config.machine = Some(machine);
    });
    let db = with_rows(&index, 1);
    panicking.is_begun.store(true, Ordering::SeqCst);
    for n in 0..1000 {
        block_on(db.merge_items(None, vec![object(&format!("n{n}"), 1, 1)])).unwrap();
    }
    assert!(
        panicking.merges.load(Ordering::SeqCst) > 1,
        "no merge after the panic"
    );
    assert_eq!(listed(&db).len(), 1 + 1000);
}

#[test]
fn other_changes_leave_no_entry_behind() {
    for exclusive in [true, false] {
        let index = index_with(busy(exclusive));
        let db = with_rows(&index, 5);
        block_on(db.write(None, |broker| {
            broker.update_put_timestamp("0000000002.00000")
        }))
        .unwrap();
        assert!(
            !has_entries(&pending(&index, &db)),
            "exclusive: {exclusive}"
        );
        assert_eq!(listed(&db).len(), 5);
    }
}

#[test]
fn closed_it_is_one_file() {
    for exclusive in [true, false] {
        let index = index_with(busy(exclusive));
        let db = with_rows(&index, 5);
        index.close(db.key());
        assert_eq!(fs::metadata(pending(&index, &db)).unwrap().len(), 0);
        assert_eq!(listed(&db).len(), 5);
    }
}

#[test]
fn an_old_log_is_closed_by_itself() {
    for exclusive in [true, false] {
        let index = index_with(|config| {
            busy(exclusive)(config);
            config.idle_close = Duration::from_millis(20);
        });
        let db = with_rows(&index, 5);
        while index.pool.open_count() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::metadata(pending(&index, &db)).unwrap().len(), 0);
        assert_eq!(listed(&db).len(), 5);
    }
}

/// As Swift's server does it.
fn appended_by_another(path: &Path, like: &[u8]) {
    let mut text = fs::read(path).unwrap_or_default();
    text.extend(like);
    fs::write(path, text).unwrap();
}

#[test]
fn what_others_append_to_a_shared_log_is_kept() {
    let other = index_with(busy(false));
    let theirs = with_rows(&other, 1);
    block_on(theirs.merge_items(None, vec![object("theirs", 9, 9)])).unwrap();
    let entries = fs::read(pending(&other, &theirs)).unwrap();

    let index = index_with(busy(false));
    let db = with_rows(&index, 3);
    let path = pending(&index, &db);
    appended_by_another(&path, &entries);
    block_on(db.merge_items(None, vec![object("ours", 1, 1)])).unwrap();
    assert_eq!(listed(&db), ["o0000", "o0001", "o0002", "ours", "theirs"]);

    // Merged by another, which then appended just as much.
    block_on(db.merge_items(None, vec![object("before", 1, 1)])).unwrap();
    let mine = fs::read(&path).unwrap();
    let mut same = entries.clone();
    same.resize(mine.len(), b':');
    fs::write(&path, &same).unwrap();
    block_on(db.merge_items(None, vec![object("after", 1, 1)])).unwrap();
    assert!(listed(&db).contains(&"theirs".to_owned()));
    assert!(listed(&db).contains(&"after".to_owned()));
}
