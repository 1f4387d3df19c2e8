//! Rows that wait in memory, and that a log of objects owes until they are durable.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cairn_device::{Debt, Ledger, Owed};
use cairn_index::{ContainerDb, IndexConfig, ListCursor, ListEntry, ListQuery, TakesRows};
use cairn_types::{ObjectHash, Timestamp};
use support::{Index, block_on, index_with, new_container, object};

/// Nothing is closed by itself, and rows are merged when they are old.
fn alone(config: &mut IndexConfig) {
    config.exclusive = true;
    config.idle_close = Duration::from_secs(3600);
}

struct Log {
    ledger: Arc<Ledger>,
    next: u64,
}

impl Log {
    fn new() -> Self {
        Log {
            ledger: Ledger::new(),
            next: 0,
        }
    }

    fn owe(&mut self) -> Debt {
        let number = self.next;
        self.next += 1;
        let owed = Owed {
            number,
            partition: 0,
            hash: ObjectHash([0; 16]),
            timestamp: Timestamp::from_secs(number),
        };
        self.ledger.owe(number, number + 1, &[owed]).pop().unwrap()
    }

    /// Waits until no row is owed, which is soon.
    fn wait(&self) {
        let began = Instant::now();
        while self.ledger.mark().is_some() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "a row is owed still"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn failed(&self) -> usize {
        self.ledger.take_failed(usize::MAX).len()
    }
}

fn opened(change: impl FnOnce(&mut IndexConfig)) -> (Index, ContainerDb, Log) {
    let index = index_with(change);
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("first", 1, 1)])).unwrap();
    listed(&db);
    (index, db, Log::new())
}

fn give(index: &Index, db: &ContainerDb, name: &str, debt: Debt) -> bool {
    index
        .pool
        .take_row(db.key(), object(name, 2, 1), debt)
        .map_err(|(_, debt)| debt.settle())
        .is_ok()
}

fn listed(db: &ContainerDb) -> Vec<String> {
    let query = ListQuery {
        limit: 10_000,
        ..ListQuery::default()
    };
    let page = block_on(db.list_objects(ListCursor::new(query), 10_000)).unwrap();
    let name = |entry: &ListEntry<_>| match entry {
        ListEntry::Row(entry) => cairn_index::ObjectEntry::clone(entry).name,
        ListEntry::Subdir(name) => name.clone(),
    };
    page.entries.iter().map(name).collect()
}

#[test]
fn a_row_is_seen_at_once_and_owed_until_it_is_durable() {
    let (index, db, mut log) = opened(|config| {
        alone(config);
        // Nothing is merged because of its age.
        config.idle_close = Duration::from_secs(100_000);
    });
    assert!(give(&index, &db, "row", log.owe()));
    assert_eq!(log.ledger.mark(), Some(0));
    assert_eq!(listed(&db), ["first", "row"]);
    assert!(give(&index, &db, "another", log.owe()));
    log.wait();
    assert_eq!(listed(&db), ["another", "first", "row"]);
    assert_eq!(log.failed(), 0);
}

#[test]
fn any_other_change_finds_the_rows() {
    let (index, db, mut log) = opened(alone);
    assert!(give(&index, &db, "row", log.owe()));
    let count = block_on(db.write(None, |broker| Ok(broker.info()?.object_count)));
    assert_eq!(count.unwrap(), 2);
    assert_eq!(log.ledger.mark(), None, "merged, and not settled");
}

#[test]
fn many_rows_from_many_sides_are_all_there() {
    let (index, db, log) = opened(alone);
    let log = parking_lot::Mutex::new(log);
    thread::scope(|scope| {
        for writer in 0..4 {
            let (index, db, log) = (&index, &db, &log);
            scope.spawn(move || {
                for number in 0..1500 {
                    let debt = log.lock().owe();
                    let name = format!("w{writer}-{number}");
                    if !give(index, db, &name, debt) {
                        block_on(db.merge_items(None, vec![object(&name, 2, 1)])).unwrap();
                    }
                }
            });
        }
        for _ in 0..20 {
            listed(&db);
        }
    });
    let log = log.into_inner();
    log.wait();
    assert_eq!(log.failed(), 0);
    assert_eq!(listed(&db).len(), 6001);
}

#[test]
fn a_database_that_closes_settles_its_rows() {
    let (index, db, mut log) = opened(alone);
    assert!(give(&index, &db, "row", log.owe()));
    index.close(db.key());
    assert_eq!((log.ledger.mark(), log.failed()), (None, 0));
    assert!(!give(&index, &db, "late", log.owe()), "it is not open");
    assert_eq!(listed(&db), ["first", "row"]);
    assert!(give(&index, &db, "last", log.owe()));
    index.pool.close_all();
    assert_eq!((log.ledger.mark(), log.failed()), (None, 0));
}

#[test]
fn rows_of_a_database_that_is_gone_are_owed_still() {
    let (index, db, mut log) = opened(alone);
    assert!(give(&index, &db, "row", log.owe()));
    std::fs::remove_dir_all(db.key().dir(index.dir.path())).unwrap();
    let began = Instant::now();
    let mut failed = 0;
    while failed == 0 && began.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(10));
        failed = log.failed();
    }
    assert_eq!(failed, 1);
}

#[test]
fn others_may_write_a_database_that_is_shared() {
    let (index, db, mut log) = opened(|config| config.exclusive = false);
    assert!(!give(&index, &db, "row", log.owe()));
    assert_eq!(listed(&db), ["first"]);
}

#[test]
fn no_more_databases_stay_open_for_rows_than_may_be_open() {
    let (index, first, mut log) = opened(|config| {
        alone(config);
        config.open_max = 1;
    });
    assert!(give(&index, &first, "row", log.owe()));
    let second = index.container("d");
    block_on(second.merge_items(new_container("d"), vec![object("first", 1, 1)])).unwrap();
    listed(&second);
    assert_eq!(index.pool.open_count(), 2, "the first owes a row");
    assert!(!give(&index, &second, "row", log.owe()));
    log.wait();
    listed(&index.container("c"));
    assert!(index.pool.open_count() <= 2);
}
