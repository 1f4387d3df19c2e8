//! Checkpoints, and the changes that are added to them.

use cairn_disk::owed::{Debt, Owed};

use super::*;

/// Objects of before the checkpoint, and of since.
const BEFORE: std::ops::Range<u64> = 0..200;
const SINCE: std::ops::Range<u64> = 200..220;

/// A store with a checkpoint, after which some objects were written and one deleted, which was added.
fn with_changes(setup: &Setup) -> Arc<Store> {
    let store = setup.open();
    fill(&store, BEFORE, 10);
    let mut upkeep = Upkeep::new(store.clone());
    checkpoint(&mut upkeep);
    let whole = setup.files("checkpoint");
    fill(&store, SINCE, 10);
    delete(&store, 7, 20);
    checkpoint(&mut upkeep);
    let with_changes = setup.files("checkpoint");
    assert_eq!((whole.len(), with_changes.len()), (1, 1));
    assert!(with_changes[0].starts_with(&whole[0]));
    assert!(with_changes[0].len() - whole[0].len() < 3000);
    store
}

fn has_all(store: &Store) -> bool {
    let mut numbers = BEFORE.chain(SINCE).filter(|number| *number != 7);
    let is_deleted = entry(store, 7).is_some_and(|entry| entry.kind == EntryKind::Tombstone);
    is_deleted && numbers.all(|number| entry(store, number).is_some())
}

#[test]
fn changes_are_added_and_nothing_is_replayed() {
    let setup = Setup::new();
    drop(with_changes(&setup));
    let (store, report) = setup.try_open().unwrap();
    assert_eq!(report.replayed, 0);
    assert!(has_all(&store));
    // They go on where the last ones ended.
    let mut upkeep = Upkeep::new(store.clone());
    for seconds in [10, 11] {
        put(&store, 300, seconds, 100);
        checkpoint(&mut upkeep);
    }
    drop((store, upkeep));
    let (store, report) = setup.try_open().unwrap();
    assert_eq!((report.replayed, setup.files("checkpoint").len()), (0, 1));
    assert!(has_all(&store) && has(&store, 300, 11, 100));
    // The last changes of it are all that it has.
    assert_eq!(store.index().get(PARTITION, hash(300)).len(), 1);
}

/// The log is read instead, and the next ones take their place.
#[test]
fn changes_that_are_cut_short_do_not_count() {
    let setup = Setup::new();
    drop(with_changes(&setup));
    setup.change("checkpoint-1", |bytes| *bytes.last_mut().unwrap() ^= 1);
    let (store, report) = setup.try_open().unwrap();
    assert_eq!(report.replayed, 21);
    assert!(has_all(&store));
    checkpoint(&mut Upkeep::new(store.clone()));
    drop(store);
    let (store, report) = setup.try_open().unwrap();
    assert_eq!(report.replayed, 0);
    assert!(has_all(&store));
}

/// Damaged changes are written over; what was behind them is not taken for what comes next, wherever it
/// begins.
#[test]
fn changes_of_before_are_not_taken_for_later_ones() {
    let setup = Setup::new();
    let store = with_changes(&setup);
    let old = setup.files("checkpoint").remove(0);
    put(&store, 301, 10, 100);
    let mut upkeep = Upkeep::new(store.clone());
    checkpoint(&mut upkeep);
    let first = setup.files("checkpoint").remove(0).split_off(old.len());
    put(&store, 301, 11, 100);
    checkpoint(&mut upkeep);
    setup.change("checkpoint-1", |bytes| bytes.extend(first));
    drop((store, upkeep));
    let (store, report) = setup.try_open().unwrap();
    assert_eq!(report.replayed, 0);
    assert!(has_all(&store) && has(&store, 301, 11, 100));
}

/// A checkpoint that fails may have lost what changed: the next one is of all.
#[test]
fn after_a_failure_the_next_one_is_whole() {
    let setup = Setup::new();
    let store = with_changes(&setup);
    put(&store, 302, 10, 100);
    setup.faults.lock().push(Fault::Sync {
        prefix: "checkpoint".to_owned(),
        errno: ENOSPC,
    });
    let mut upkeep = Upkeep::new(store.clone());
    assert!(upkeep.checkpoint().is_err());
    setup.faults.lock().clear();
    setup.change("checkpoint-1", |bytes| bytes.truncate(100));
    checkpoint(&mut upkeep);
    assert_eq!(setup.files("checkpoint").len(), 2);
    drop((store, upkeep));
    let (store, report) = setup.try_open().unwrap();
    assert_eq!(report.replayed, 0);
    assert!(has_all(&store) && has(&store, 302, 10, 100));
}

/// Writes an object that owes a row.
fn put_owing(store: &Store, number: u64, seconds: u64) -> Debt {
    let mut record = record(number, Kind::Data, seconds, body(number, seconds, 10));
    record.owes_row = true;
    let ended = store.commit_owing(Class::Fresh, vec![Change::Write(record)]);
    ended.into_iter().next().unwrap().1.unwrap()
}

fn numbers_of(owed: &[Owed]) -> Vec<u64> {
    let number = |of: &Owed| (0..9).find(|number| hash(*number) == of.hash);
    owed.iter().filter_map(number).collect()
}

/// A checkpoint does not wait for rows: it says which are owed, and a start finds these and the ones behind it.
#[test]
fn rows_that_are_owed_are_in_a_checkpoint() {
    let setup = Setup::new();
    let store = setup.open();
    fill(&store, 100..300, 10);
    let mut upkeep = Upkeep::new(store.clone());
    // The first is of all, the next add what changed.
    let (first, second) = (put_owing(&store, 1, 10), put_owing(&store, 2, 10));
    checkpoint(&mut upkeep);
    let third = put_owing(&store, 3, 10);
    second.settle();
    checkpoint(&mut upkeep);
    let behind = put_owing(&store, 4, 10);
    let rows = store.index().get(PARTITION, hash(1));
    drop((store, upkeep, first, third, behind));
    let (store, report) = setup.try_open().unwrap();
    assert_eq!(report.replayed, 1);
    assert_eq!(numbers_of(&report.owed), [1, 3, 4]);
    assert_eq!(report.owed[0].timestamp, rows[0].timestamp);
    assert_eq!(report.owed[0].partition, PARTITION);

    // Nobody took them: they are owed still, and said again.
    let mut upkeep = Upkeep::new(store.clone());
    checkpoint(&mut upkeep);
    drop((store, upkeep));
    let (store, report) = setup.try_open().unwrap();
    assert_eq!((report.replayed, report.owed.len()), (0, 3));

    // The last changes are damaged: those before them count.
    let mut upkeep = Upkeep::new(store.clone());
    for (_, debt) in store.take_failed_rows(9) {
        debt.settle();
    }
    put(&store, 5, 10, 10);
    checkpoint(&mut upkeep);
    assert_eq!(setup.files("checkpoint").len(), 1);
    drop((store, upkeep));
    setup.change("checkpoint-1", |bytes| *bytes.last_mut().unwrap() ^= 1);
    let (store, report) = setup.try_open().unwrap();
    assert_eq!((report.replayed, report.owed.len()), (1, 0));
    drop(store);
}

/// A row that is settled before the checkpoint ends is not in it, one of since its beginning is behind it.
#[test]
fn rows_are_those_owed_when_a_checkpoint_ends() {
    let mut setup = Setup::new();
    setup.checkpoint_bytes = 1;
    let store = setup.open();
    let before = put_owing(&store, 1, 10);
    let left = put_owing(&store, 2, 10);
    let mut upkeep = Upkeep::new(store.clone());
    assert!(upkeep.checkpoint().unwrap(), "not in one step");
    before.settle();
    let since = put_owing(&store, 3, 10);
    checkpoint(&mut upkeep);
    drop((store, upkeep, left, since));
    let (_, report) = setup.try_open().unwrap();
    assert_eq!((report.replayed, numbers_of(&report.owed)), (1, vec![2, 3]));
}
