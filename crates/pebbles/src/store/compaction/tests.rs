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
        rules: Rules::default(),
        volume_bytes: 256 << 10,
        reclaim_age: Duration::from_secs(1000),
        now: Box::new(move || Timestamp::from_secs(clock.load(Ordering::Relaxed))),
        entropy: Box::new(move || epochs.fetch_add(1, Ordering::Relaxed)),
        checkpoint_bytes: 1 << 40,
        compact_below: 0.5,
        external_gone: Box::new(|_, _| {}),
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
        name: Bytes::from(format!("/a/c/{number}")),
        metadata: Bytes::new(),
        body: vec![0; 8].into(),
    })
}

/// The committer waits while they go: a look through all volumes for each of them would be long.
#[test]
fn tombstones_go_without_a_look_through_all_volumes_for_each() {
    let root = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(1_000_000));
    let store = store(root.path(), &now);
    for numbers in (0..TOMBSTONES).collect::<Vec<_>>().chunks(100) {
        let changes = numbers.iter().map(|number| tombstone(*number)).collect();
        for ended in store.commit(Class::Fresh, changes) {
            assert_eq!(ended.unwrap(), Outcome::Written);
        }
    }
    now.fetch_add(100_000, Ordering::Relaxed);
    let before = store.index.size().objects;
    store.volumes.looks.store(0, Ordering::Relaxed);
    let mut upkeep = Upkeep::new(store.clone());
    while upkeep.compact().unwrap() {}
    let gone = before - store.index.size().objects;
    assert!(gone > TOMBSTONES / 2, "{gone} of them went");
    let looks = store.volumes.looks.load(Ordering::Relaxed);
    assert!(looks < 100, "{looks} looks for {gone} tombstones");
}
