//! Syncs that fail once: the kernel then counts the pages it could not write as clean, and reads and
//! later syncs succeed, though the pages are not on the disk.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use cairn_device::{Ledger, Machine, Owed};
use cairn_index::{
    ContainerDb, IndexConfig, IndexError, ListCursor, ListEntry, ListQuery, TakesRows,
};
use cairn_types::{ObjectHash, Timestamp};
use support::{Index, block_on, index_with, new_container, object};

const PAGE: usize = 4096;

/// Model of a disk's content and the page cache, for the database files synced here.
#[derive(Debug, Default)]
struct Disk {
    files: Mutex<BTreeMap<PathBuf, OnDisk>>,
    names: Mutex<BTreeMap<PathBuf, Names>>,
    fails: AtomicBool,
    reads: AtomicUsize,
}

#[derive(Debug, Default)]
struct OnDisk {
    inode: u64,
    content: Vec<u8>,
    /// Pages that were not written and count as clean, as they are read.
    lost: BTreeMap<usize, Vec<u8>>,
    /// Pages of it were lost in the sync of another file.
    owes_error: bool,
}

/// Files in a folder by their inodes, on a file system without a journal: a folder is written when
/// it has changed since it was written last, or since that failed.
#[derive(Debug, Default)]
struct Names {
    /// Time of the last change that was written, or was to be.
    written: Option<SystemTime>,
    on_disk: BTreeMap<PathBuf, u64>,
    owes_error: bool,
}

impl Names {
    fn write_back(&mut self, folder: &Path, fails: bool) -> io::Result<()> {
        let changed = fs::metadata(folder)?.modified()?;
        if self.written.replace(changed) == Some(changed) {
            return Ok(());
        }
        if fails {
            self.owes_error = true;
            // Coarse times of file systems tell the next change from this one.
            std::thread::sleep(Duration::from_millis(12));
            return Ok(());
        }
        self.on_disk.clear();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            self.on_disk.insert(entry.path(), entry.metadata()?.ino());
        }
        Ok(())
    }
}

fn with_end(file: &Path, end: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(end);
    path.into()
}

impl Machine for Disk {
    /// Syncs one file. As the kernel's: where that fails, pages of the others may be lost with its
    /// own, and the next sync of each of those fails, once.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let synced = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if synced.is_dir() {
            let fails = self.fails.swap(false, Ordering::SeqCst);
            return self.sync_names(&synced, fails);
        }
        if !synced.exists() {
            return Ok(());
        }
        let mut files = self.files.lock().unwrap();
        let fails = self.fails.swap(false, Ordering::SeqCst);
        for entry in fs::read_dir(synced.parent().unwrap())? {
            let path = entry?.path();
            let name = path.to_string_lossy();
            let is_modelled = name.ends_with(".db-wal") || name.ends_with(".pending");
            if is_modelled && (fails || path == synced) {
                let on_disk = files.entry(path.clone()).or_default();
                let inode = fs::metadata(&path)?.ino();
                if std::mem::replace(&mut on_disk.inode, inode) != inode {
                    *on_disk = OnDisk {
                        inode,
                        ..OnDisk::default()
                    };
                }
                on_disk.write_back(&fs::read(&path)?, fails);
                on_disk.owes_error |= path != synced && !on_disk.lost.is_empty();
            }
        }
        if fails {
            let mut names = self.names.lock().unwrap();
            let folder = synced.parent().unwrap();
            let names = names.entry(folder.to_owned()).or_default();
            names.write_back(folder, true)?;
        }
        let owed = files.get_mut(&synced);
        match fails || owed.is_some_and(|on_disk| std::mem::take(&mut on_disk.owes_error)) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }
}

impl Disk {
    fn sync_names(&self, folder: &Path, fails: bool) -> io::Result<()> {
        let mut names = self.names.lock().unwrap();
        let names = names.entry(folder.to_owned()).or_default();
        names.write_back(folder, fails)?;
        match std::mem::take(&mut names.owes_error) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }

    /// Whether a file that is there now is found under its name after a power cut. Databases are made
    /// before anything fails.
    fn is_named(&self, path: &Path) -> bool {
        let inode = fs::metadata(path).unwrap().ino();
        let names = self.names.lock().unwrap();
        let on_disk = names.get(path.parent().unwrap());
        let on_disk = on_disk.and_then(|names| names.on_disk.get(path));
        path.extension().is_some_and(|end| end == "db") || on_disk == Some(&inode)
    }

    fn read_from_disk(&self, path: &Path) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if let Some(on_disk) = self.files.lock().unwrap().get_mut(path) {
            on_disk.lost.clear();
            let file = fs::OpenOptions::new().write(true).open(path)?;
            file.write_all_at(&on_disk.content, 0)?;
        }
        Ok(())
    }
}

impl OnDisk {
    fn write_back(&mut self, now: &[u8], fails: bool) {
        self.content.resize(now.len(), 0);
        for (number, page) in now.chunks(PAGE).enumerate() {
            let place = number * PAGE..number * PAGE + page.len();
            if self.content[place.clone()] == *page {
                self.lost.remove(&number);
            } else if fails {
                self.lost.insert(number, page.to_vec());
            } else if self.lost.get(&number).map(Vec::as_slice) != Some(page) {
                self.lost.remove(&number);
                self.content[place].copy_from_slice(page);
            }
        }
    }
}

struct Failing {
    index: Index,
    disk: Arc<Disk>,
}

fn failing(change: impl FnOnce(&mut IndexConfig)) -> Failing {
    let disk = Arc::new(Disk::default());
    let (machine, reads) = (disk.clone(), disk.clone());
    let index = index_with(|config| {
        config.exclusive = true;
        config.idle_close = Duration::from_secs(3600);
        config.machine = Some(machine);
        config.read_from_disk = Arc::new(move |path| reads.read_from_disk(path));
        change(config);
    });
    Failing { index, disk }
}

/// All rows come at once for this clock: they go to the pending file.
fn logged(config: &mut IndexConfig) {
    config.clock = Arc::new(|| Timestamp::from_secs(1000));
}

/// Each row comes long after the last: it is a transaction.
fn apart(config: &mut IndexConfig) {
    let seconds = AtomicU64::new(1000);
    config.clock = Arc::new(move || Timestamp::from_secs(seconds.fetch_add(1, Ordering::SeqCst)));
}

fn put(db: &ContainerDb, name: &str) -> Result<(), IndexError> {
    block_on(db.merge_items(None, vec![object(name, 1, 1)]))
}

fn listed(db: &ContainerDb) -> Vec<String> {
    let query = ListQuery {
        limit: 10_000,
        ..ListQuery::default()
    };
    let page = block_on(db.list_objects(ListCursor::new(query), 10_000)).unwrap();
    let name = |entry: &ListEntry<cairn_index::ObjectEntry>| match entry {
        ListEntry::Row(entry) => entry.name.clone(),
        ListEntry::Subdir(name) => name.clone(),
    };
    page.entries.iter().map(name).collect()
}

/// The database as a power cut leaves it now.
fn after_a_power_cut(from: &Failing, db: &ContainerDb) -> Failing {
    let after = failing(|_| {});
    let to = db.key().dir(after.index.dir.path());
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(db.key().dir(from.index.dir.path())).unwrap() {
        let path = entry.unwrap().path();
        if !from.disk.is_named(&path) {
            continue;
        }
        let files = from.disk.files.lock().unwrap();
        let content = match files.get(&path) {
            Some(on_disk) => on_disk.content.clone(),
            None => fs::read(&path).unwrap(),
        };
        fs::write(to.join(path.file_name().unwrap()), content).unwrap();
    }
    after
}

#[test]
fn rows_acknowledged_after_a_failed_sync_are_on_disk() {
    for change in [logged as fn(&mut IndexConfig), apart] {
        let failing = failing(change);
        let db = failing.index.container("c");
        block_on(db.merge_items(new_container("c"), Vec::new())).unwrap();
        put(&db, "before").unwrap();
        put(&db, "early").unwrap();
        failing.disk.fails.store(true, Ordering::SeqCst);
        let refused = put(&db, "retried");
        assert!(
            matches!(refused, Err(IndexError::DriveFailed { .. })),
            "{refused:?}"
        );
        // As an updater would: it must not find its row already there.
        put(&db, "retried").unwrap();
        put(&db, "late").unwrap();
        let names = ["before", "early", "late", "retried"];
        assert_eq!(listed(&db), names);
        let after = after_a_power_cut(&failing, &db);
        assert_eq!(listed(&after.index.container("c")), names);
    }
}

/// Names of a log, or a pending file, made while the disk failed.
#[test]
fn names_made_while_syncs_failed_are_on_disk_before_rows_are_acknowledged() {
    for change in [logged as fn(&mut IndexConfig), apart] {
        let failing = failing(change);
        let db = failing.index.container("c");
        block_on(db.merge_items(new_container("c"), Vec::new())).unwrap();
        let mut refused = 0;
        while refused < 4 {
            failing.disk.fails.store(true, Ordering::SeqCst);
            refused += usize::from(put(&db, "refused").is_err());
        }
        failing.disk.fails.store(false, Ordering::SeqCst);
        let mut names = vec!["one", "two"];
        names.retain(|name| (0..8).any(|_| put(&db, name).is_ok()));
        assert_eq!(names, ["one", "two"]);
        let after = after_a_power_cut(&failing, &db);
        let listed = listed(&after.index.container("c"));
        let is_listed = |name: &&str| listed.iter().any(|row| row == name);
        assert!(names.iter().all(is_listed), "{listed:?}");
    }
}

#[test]
fn who_reads_after_a_failed_sync_sees_what_is_on_disk() {
    let failing = failing(apart);
    let db = failing.index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("there", 1, 1)])).unwrap();
    put(&db, "synced").unwrap();
    failing.disk.fails.store(true, Ordering::SeqCst);
    put(&db, "lost").unwrap_err();
    assert_eq!(listed(&db), ["synced", "there"]);
}

/// The process ends, the page cache stays.
#[test]
fn a_log_that_a_killed_process_left_is_read_from_disk() {
    let first = failing(apart);
    let db = first.index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("there", 1, 1)])).unwrap();
    put(&db, "synced").unwrap();
    first.disk.fails.store(true, Ordering::SeqCst);
    put(&db, "retried").unwrap_err();
    let (devices, disk) = (first.index.dir.path().to_owned(), first.disk.clone());
    // A close is no crash, but leaves the log as a crash would.
    first.index.pool.close_all();
    let wal = with_end(&db.key().file(&devices), "-wal");
    assert!(wal.exists(), "merged from the page cache");
    let reads = disk.clone();
    let mut config = IndexConfig::new(&devices);
    config.exclusive = true;
    apart(&mut config);
    config.machine = Some(disk.clone());
    config.read_from_disk = Arc::new(move |path| reads.read_from_disk(path));
    let pool = cairn_index::IndexPool::new(config);
    let again = pool.container_by_key(db.key().clone());
    let before = disk.reads.load(Ordering::SeqCst);
    put(&again, "retried").unwrap();
    assert!(disk.reads.load(Ordering::SeqCst) > before);
    let after = after_a_power_cut(&first, &db);
    let found = listed(&after.index.container("c"));
    assert_eq!(found, ["retried", "synced", "there"]);
}

/// Connections of one process share what they know of the log.
#[test]
fn it_is_not_opened_anew_while_somebody_reads_it() {
    let failing = failing(apart);
    let db = failing.index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("there", 1, 1)])).unwrap();
    put(&db, "synced").unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (go_on, told) = mpsc::channel::<()>();
    let reader = db.clone();
    let reading = std::thread::spawn(move || {
        block_on(reader.read(move |broker| {
            begun.send(()).unwrap();
            told.recv().unwrap();
            broker.info()
        }))
    });
    has_begun.recv().unwrap();
    failing.disk.fails.store(true, Ordering::SeqCst);
    put(&db, "retried").unwrap_err();
    let refused = put(&db, "retried");
    assert!(
        matches!(refused, Err(IndexError::DriveFailed { .. })),
        "{refused:?}"
    );
    go_on.send(()).unwrap();
    reading.join().unwrap().unwrap();
    put(&db, "retried").unwrap();
    let after = after_a_power_cut(&failing, &db);
    let found = listed(&after.index.container("c"));
    assert_eq!(found, ["retried", "synced", "there"]);
}

/// A disk that cannot be read either keeps the database refused, and nothing of it is lost.
#[test]
fn refused_until_it_can_be_read_from_disk() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let broken = is_broken.clone();
    let failing = failing(|config| {
        apart(config);
        let reads = config.read_from_disk.clone();
        config.read_from_disk = Arc::new(move |path| match broken.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => reads(path),
        });
    });
    let db = failing.index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("there", 1, 1)])).unwrap();
    put(&db, "synced").unwrap();
    failing.disk.fails.store(true, Ordering::SeqCst);
    is_broken.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let refused = put(&db, "more");
        assert!(matches!(refused, Err(IndexError::DriveFailed { .. })));
        let refused = block_on(db.read(|broker| broker.info()));
        assert!(matches!(refused, Err(IndexError::DriveFailed { .. })));
    }
    is_broken.store(false, Ordering::SeqCst);
    assert_eq!(listed(&db), ["synced", "there"]);
    put(&db, "more").unwrap();
}

/// A disk that says of some syncs that they failed.
#[derive(Debug)]
struct Lying {
    machine: Arc<dyn Machine>,
    seed: u32,
    count: AtomicUsize,
}

impl Machine for Lying {
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let number = self.count.fetch_add(1, Ordering::SeqCst) as u32;
        let synced = self.machine.sync(file);
        // All is on disk, and the error says otherwise.
        let salt = 2_654_435_761 + self.seed;
        let fails = number > 3 && number.wrapping_mul(salt) >> 29 == 0;
        match fails {
            true => Err(io::Error::from_raw_os_error(5)),
            false => synced,
        }
    }
}

/// Many rows of many writers, and one sync in a few fails.
#[test]
fn whatever_fails_what_was_acknowledged_is_on_disk() {
    for seed in 0..6_u32 {
        let failing = failing(|config| {
            config.pending_bytes = 2048;
            match seed % 3 {
                0 => logged(config),
                1 => apart(config),
                _ => {}
            }
            config.machine = config.machine.take().map(|machine| {
                let count = AtomicUsize::new(0);
                Arc::new(Lying {
                    machine,
                    seed,
                    count,
                }) as Arc<dyn Machine>
            });
        });
        let db = failing.index.container("c");
        block_on(db.merge_items(new_container("c"), Vec::new())).unwrap();
        let mut acknowledged = Vec::new();
        for n in 0..150 {
            let name = format!("o{n:04}");
            if n % 7 == 0 {
                failing.disk.fails.store(true, Ordering::SeqCst);
            }
            if put(&db, &name).is_ok() {
                acknowledged.push(name);
            }
            if n % 11 == 0 {
                let _ = block_on(db.read(|broker| broker.info()));
            }
        }
        assert!(acknowledged.len() > 50 && acknowledged.len() < 150);
        let after = after_a_power_cut(&failing, &db);
        let found = listed(&after.index.container("c"));
        let lost: Vec<_> = acknowledged
            .iter()
            .filter(|name| !found.contains(name))
            .collect();
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
    }
}

/// A row that waits in memory is owed until it is on disk: a sync that fails once settles nothing.
#[test]
fn a_debt_is_settled_by_what_is_on_disk_alone() {
    let failing = failing(apart);
    let db = failing.index.container("c");
    block_on(db.merge_items(new_container("c"), Vec::new())).unwrap();
    let ledger = Ledger::new();
    let give = |number: u64, name: &str| {
        // Opens the database, which may take what a failure has left to be told.
        let opens = || block_on(db.read(|broker| broker.info())).is_ok();
        assert!((0..8).any(|_| opens()));
        let owed = Owed {
            number,
            partition: 0,
            hash: ObjectHash([0; 16]),
            timestamp: Timestamp::from_secs(number),
        };
        let debt = ledger.owe(number, number + 1, &[owed]).remove(0);
        let given = failing
            .index
            .pool
            .take_row(db.key(), object(name, 1, 1), debt);
        assert!(given.is_ok());
    };
    let change = || {
        block_on(db.write(None, |broker| {
            broker.update_put_timestamp("0000000002.00000")
        }))
    };
    give(0, "refused");
    failing.disk.fails.store(true, Ordering::SeqCst);
    let refused = change();
    assert!(
        matches!(refused, Err(IndexError::DriveFailed { .. })),
        "{refused:?}"
    );
    assert_eq!((ledger.mark(), ledger.take_failed(9).len()), (Some(0), 1));
    give(1, "durable");
    // Shown to a reader first, which syncs nothing.
    assert!(listed(&db).contains(&"durable".to_owned()));
    assert_eq!(ledger.mark(), Some(0));
    change().unwrap();
    let of_failed = ledger.take_failed(9);
    assert_eq!(
        of_failed.len(),
        1,
        "the debt of the first was dropped again"
    );
    of_failed.into_iter().for_each(|(_, debt)| debt.settle());
    assert_eq!(ledger.mark(), None);
    let after = after_a_power_cut(&failing, &db);
    assert!(listed(&after.index.container("c")).contains(&"durable".to_owned()));
}
