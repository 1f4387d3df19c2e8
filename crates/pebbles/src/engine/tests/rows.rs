//! Rows that are owed: which become async pendings, and when.

use cairn_disk::async_pending::{list_suffixes, list_updates};
use cairn_disk::owed::Debt;

use super::*;

fn put_owing(setup: &Setup, name: &str, seconds: u64) -> Debt {
    let body = Bytes::from_static(b"body");
    let metadata = metadata(seconds, &body);
    let put = setup
        .engine
        .put_small_owing(&setup.disk, &key(name), body, metadata);
    put.unwrap().finish(&setup.disk).unwrap().unwrap()
}

/// Names of objects whose rows are kept, with `-` where they are deleted.
fn kept(setup: &Setup) -> Vec<String> {
    while setup.engine.maintain(&setup.disk).unwrap() == cairn_disk::engine::NextUpkeep::Now {}
    let suffixes = list_suffixes(&setup.disk, AT.policy).unwrap().into_iter();
    let of_suffix = |suffix: String| list_updates(&setup.disk, AT.policy, &suffix).unwrap();
    let found: Vec<_> = suffixes.flat_map(of_suffix).collect();
    let mut names: Vec<_> = found
        .iter()
        .map(|file| {
            let update = file.read(&setup.disk).unwrap();
            assert_eq!((&*update.account, &*update.container), ("a", "c"));
            let is_put = update.op == "PUT";
            assert_eq!(update.header("x-size").is_some(), is_put);
            format!("{}{}", if is_put { "" } else { "-" }, update.object)
        })
        .collect();
    names.sort();
    names
}

#[test]
fn rows_that_nobody_made_durable_are_kept_after_a_crash() {
    let mut setup = Setup::new(false);
    put_owing(&setup, "settled", 1_000_000).settle();
    let owed = put_owing(&setup, "owed", 1_000_001);
    let replaced = put_owing(&setup, "replaced", 1_000_002);
    let time = Timestamp::from_secs(1_000_003);
    let (engine, disk) = (&setup.engine, &setup.disk);
    let deleted = engine.delete_owing(disk, &key("replaced"), time, None);
    let deleted = deleted.unwrap().finish(disk).unwrap().unwrap();
    assert!(kept(&setup).is_empty(), "somebody has all of them");
    let (_owed, _replaced, _deleted) = (owed, replaced, deleted);
    setup.crash();
    // Nothing is owed of the batch that was settled: the next one said so.
    assert_eq!(kept(&setup), ["-replaced", "owed"]);
    setup.restart();
    assert_eq!(kept(&setup), ["-replaced", "owed"]);
}

#[test]
fn a_row_that_is_dropped_is_kept_and_its_object_stays_until_then() {
    let setup = Setup::new(false);
    let now = setup.disk.now() as u64;
    let held = put_owing(&setup, "held", now);
    drop(put_owing(&setup, "dropped", now));
    let contents = setup.engine.contents(&setup.disk, AT).unwrap();
    let remove = || {
        let (engine, disk) = (&setup.engine, &setup.disk);
        engine
            .remove(disk, AT, &contents, None, &HashSet::new())
            .unwrap()
    };
    assert_eq!(remove(), 0, "a row is owed");
    assert_eq!(kept(&setup), ["dropped"]);
    held.settle();
    assert_eq!(remove(), 2);
    assert_eq!(kept(&setup), ["dropped"]);
}

#[test]
fn a_row_is_kept_before_its_record_goes() {
    let setup = Setup::new(false);
    drop(put_owing(&setup, "old", 1_000_000));
    let (engine, disk) = (&setup.engine, &setup.disk);
    let contents = engine.contents(disk, AT).unwrap();
    let removed = engine.remove(disk, AT, &contents, None, &HashSet::new());
    assert_eq!(removed.unwrap(), 1);
    assert_eq!(kept(&setup), ["old"]);
}
