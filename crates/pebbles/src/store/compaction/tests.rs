#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::format::Kind;
use crate::medium::Folder;
use crate::object::Rules;
use crate::store::{Config, Outcome};
use crate::upkeep::Upkeep;

const TOMBSTONES: u64 = 2000;

fn store(root: &std::path::Path, now: &Arc<AtomicU64>) -> Arc<Store> {
    let (clock, epochs) = (now.clone(), AtomicU64::new(1));
    let config = Config {
        grouping: crate::index::Grouping::ByHash,
        rules: Rules::default(),
        volume_bytes: 256 << 10,
        reclaim_age: Duration::from_secs(1000),
        now: Box::new(move || Timestamp::from_secs(clock.load(Ordering::Relaxed))),
        entropy: Box::new(move || epochs.fetch_add(1, Ordering::Relaxed)),
        checkpoint_bytes: 1 << 40,
        compact_below: 0.5,
        external_gone: Box::new(|_| {}),
        keep_free: Box::new(|_| 0),
        read_errors: Arc::default(),
    };
    let medium = Folder::open(&root.join("store"), true).unwrap();
    Store::open(Arc::new(medium), config).unwrap().0
}

fn tombstone(number: u64) -> Change {
    Change::Write(NewRecord {
        kind: Kind::Tombstone,
        partition: 3,
        hash: ObjectHash(u128::from(number).to_be_bytes()),
        timestamp: Timestamp::from_secs(10),
        fragment: None,
        is_durable: false,
        is_external: false,
        owes_row: false,
        is_lasting: false,
        name: Bytes::from(format!("/a/c/{number}")),
        metadata: Bytes::new(),
        body: vec![0; 8].into(),
    })
}

fn filled(root: &std::path::Path, now: &Arc<AtomicU64>) -> Arc<Store> {
    let store = store(root, now);
    for numbers in (0..TOMBSTONES).collect::<Vec<_>>().chunks(100) {
        let changes = numbers.iter().map(|number| tombstone(*number)).collect();
        for ended in store.commit(Class::Fresh, changes) {
            assert_eq!(ended.unwrap(), Outcome::Written);
        }
    }
    now.fetch_add(100_000, Ordering::Relaxed);
    store
}

/// As many as a volume of a real store has are millions.
#[test]
fn tombstones_go_in_steps() {
    let root = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(1_000_000));
    let store = filled(root.path(), &now);
    let mut upkeep = Upkeep::new(store.clone());
    let (first, mut most) = (store.index.size().objects, 0);
    loop {
        let before = store.index.size().objects;
        let is_more = upkeep.compact().unwrap();
        most = most.max(before - store.index.size().objects);
        if !is_more {
            break;
        }
    }
    let gone = first - store.index.size().objects;
    assert!(gone > 1200, "{gone} of them went");
    assert!(most <= STEP_ENTRIES as u64, "{most} in one step");
    assert!(
        store
            .volumes
            .all()
            .iter()
            .all(|volume| volume.take_ended().is_empty())
    );
}

/// An object that is written while its tombstone is about to go is there afterwards.
#[test]
fn what_is_written_while_tombstones_go_stays() {
    let root = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(1_000_000));
    let store = filled(root.path(), &now);
    let mut upkeep = Upkeep::new(store.clone());
    let (mut number, mut written) = (0, Vec::new());
    loop {
        let is_more = upkeep.compact().unwrap();
        let mut again = tombstone(number);
        let Change::Write(record) = &mut again else {
            return;
        };
        // A newer one, as a PUT of the object would be.
        record.timestamp = Timestamp::from_secs((now.load(Ordering::Relaxed)) + number);
        let ended = store.commit(Class::Fresh, vec![again]).pop().unwrap();
        assert_eq!(ended.unwrap(), Outcome::Written);
        written.push(number);
        number += 1;
        if !is_more && number > 20 {
            break;
        }
    }
    for number in written {
        let hash = ObjectHash(u128::from(number).to_be_bytes());
        let entries = store.index.get(3, hash);
        assert_eq!(entries.len(), 1, "{number}");
        assert!(store.read(3, hash, entries[0].place).is_ok(), "{number}");
    }
}

/// The committer waits while they go: a look through all volumes for each of them would be long.
#[test]
fn tombstones_go_without_a_look_through_all_volumes_for_each() {
    let root = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(1_000_000));
    let store = filled(root.path(), &now);
    let before = store.index.size().objects;
    store.volumes.looks.store(0, Ordering::Relaxed);
    let mut upkeep = Upkeep::new(store.clone());
    while upkeep.compact().unwrap() {}
    let gone = before - store.index.size().objects;
    assert!(gone > TOMBSTONES / 2, "{gone} of them went");
    let looks = store.volumes.looks.load(Ordering::Relaxed);
    assert!(looks < 100, "{looks} looks for {gone} tombstones");
}
