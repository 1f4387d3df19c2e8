//! A store in a folder: what it does with damage, with errors, and with a full device.
#![allow(clippy::unwrap_used)]

mod checkpoints;
mod heads;
mod medium;
mod quarantine;
mod room;
mod unreadable;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_pebbles::format::{Class, Kind, NewRecord, VolumeHeader};
use cairn_pebbles::index::Grouping;
use cairn_pebbles::medium::Folder;
use cairn_pebbles::object::{Entry, EntryKind, Rules};
use cairn_pebbles::{
    Change, Config, Expected, Outcome, PebblesError, ReadError, ReadErrors, Recovery, Store, Upkeep,
};
use cairn_types::{ObjectHash, SplitMix, Timestamp};
use medium::{Calls, Fault, Faults, Faulty};

const EIO: i32 = 5;
const EACCES: i32 = 13;
const ENOSPC: i32 = 28;
const BLOCK: usize = 4096;
const PARTITION: u32 = 3;

struct Setup {
    root: tempfile::TempDir,
    clock: Arc<AtomicU64>,
    faults: Faults,
    read_errors: Arc<ReadErrors>,
    calls: Arc<Calls>,
    free: Arc<AtomicU64>,
    volume_bytes: u64,
    checkpoint_bytes: u64,
}

fn hash(number: u64) -> ObjectHash {
    let mut dice = SplitMix::new(number);
    let half = |dice: &mut SplitMix| u128::from(dice.number());
    ObjectHash(((half(&mut dice) << 64) | half(&mut dice)).to_be_bytes())
}

fn record(number: u64, kind: Kind, seconds: u64, body: Bytes) -> NewRecord {
    NewRecord {
        kind,
        partition: PARTITION,
        hash: hash(number),
        timestamp: Timestamp::from_secs(seconds),
        fragment: None,
        is_durable: false,
        is_external: false,
        owes_row: false,
        is_lasting: false,
        name: Bytes::from(format!("/a/c/{number}")),
        metadata: Bytes::from_static(b"metadata"),
        body,
    }
}

fn body(number: u64, seconds: u64, len: usize) -> Bytes {
    let mut dice = SplitMix::new(number * 1000 + seconds);
    (0..len).map(|_| dice.number() as u8).collect()
}

fn commit(store: &Store, change: Change) -> Result<Outcome, PebblesError> {
    store.commit(Class::Fresh, vec![change]).pop().unwrap()
}

/// Writes an object, in a batch of its own.
fn put(store: &Store, number: u64, seconds: u64, len: usize) {
    let record = record(number, Kind::Data, seconds, body(number, seconds, len));
    let ended = commit(store, Change::Write(record));
    assert_eq!(ended.unwrap(), Outcome::Written);
}

fn delete(store: &Store, number: u64, seconds: u64) {
    let record = record(number, Kind::Tombstone, seconds, Bytes::from(vec![0; 8]));
    let ended = commit(store, Change::Write(record));
    assert_eq!(ended.unwrap(), Outcome::Written);
}

fn entry(store: &Store, number: u64) -> Option<Entry> {
    let entries = store.index().get(PARTITION, hash(number));
    entries.into_iter().next_back()
}

/// Whether an object of this time is there, and what it should be.
fn has(store: &Store, number: u64, seconds: u64, len: usize) -> bool {
    let Some(entry) = entry(store, number) else {
        return false;
    };
    let stored = store.read(PARTITION, hash(number), entry.place);
    let is_right = |stored: &cairn_pebbles::store::Stored| {
        entry.timestamp == Timestamp::from_secs(seconds)
            && stored.body == body(number, seconds, len)
    };
    stored.as_ref().is_ok_and(is_right)
}

impl Setup {
    fn new() -> Self {
        Setup {
            root: tempfile::tempdir().unwrap(),
            clock: Arc::new(AtomicU64::new(1_000_000)),
            faults: Faults::default(),
            read_errors: Arc::default(),
            calls: Arc::default(),
            free: Arc::new(AtomicU64::new(1 << 39)),
            volume_bytes: 256 << 10,
            checkpoint_bytes: 1 << 40,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("store").join(name)
    }

    fn try_open(&self) -> Result<(Arc<Store>, Recovery), PebblesError> {
        let clock = self.clock.clone();
        let epochs = AtomicU64::new(clock.fetch_add(1, Ordering::Relaxed) << 20);
        let config = Config {
            grouping: Grouping::ByPartition,
            rules: Rules::default(),
            volume_bytes: self.volume_bytes,
            reclaim_age: Duration::from_secs(1000),
            now: Box::new(move || Timestamp::from_secs(clock.load(Ordering::Relaxed))),
            entropy: Box::new(move || epochs.fetch_add(1, Ordering::Relaxed)),
            checkpoint_bytes: self.checkpoint_bytes,
            compact_below: 0.5,
            external_gone: Box::new(|_| {}),
            read_errors: self.read_errors.clone(),
            keep_free: Box::new(|_| 0),
        };
        let medium = Faulty {
            folder: Folder::open(&self.path(""), true).unwrap(),
            faults: self.faults.clone(),
            calls: self.calls.clone(),
            free: self.free.clone(),
        };
        Store::open(Arc::new(medium), config)
    }

    fn open(&self) -> Arc<Store> {
        self.try_open().unwrap().0
    }

    fn wait(&self, seconds: u64) {
        self.clock.fetch_add(seconds, Ordering::Relaxed);
    }

    /// A sector of an object's record that the disk does not give.
    fn lose_sector_of(&self, store: &Store, number: u64) {
        let (name, at) = self.volume_of(store, number);
        let from = (at / BLOCK * BLOCK) as u64;
        self.faults.lock().push(Fault::Read {
            name,
            from,
            to: from + 512,
            errno: EIO,
        });
    }

    /// The file of the volume that has an object.
    fn volume_of(&self, store: &Store, number: u64) -> (String, usize) {
        let place = entry(store, number).unwrap().place;
        (format!("volume-{:05}", place.slot), place.offset as usize)
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.path(name)).unwrap();
        change(&mut bytes);
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// Files whose names begin with this.
    fn files(&self, prefix: &str) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(self.path("")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(prefix)
        };
        paths
            .filter(is_it)
            .map(|path| std::fs::read(path).unwrap())
            .collect()
    }

    fn used(&self, store: &Store) -> u64 {
        store.sealed().iter().map(|volume| volume.used()).sum()
    }
}

/// Compacts until nothing is worth it; errors are for later rounds.
fn compact(upkeep: &mut Upkeep) {
    for _ in 0..300 {
        if matches!(upkeep.compact(), Ok(false)) {
            return;
        }
    }
}

fn checkpoint(upkeep: &mut Upkeep) {
    while upkeep.checkpoint().unwrap() {}
}

#[test]
fn a_record_written_again_outlives_its_damaged_first_one() {
    let setup = Setup::new();
    let store = setup.open();
    put(&store, 1, 10, 1000);
    let (name, at) = setup.volume_of(&store, 1);
    put(&store, 2, 10, 100);
    setup.change(&name, |bytes| bytes[at + 500] ^= 1);
    put(&store, 1, 10, 1000);
    put(&store, 3, 10, 100);
    drop(store);
    for _ in 0..2 {
        assert!(has(&setup.open(), 1, 10, 1000));
    }
}

#[test]
fn small_batches_are_packed() {
    let setup = Setup::new();
    let store = setup.open();
    for number in 0..300 {
        put(&store, number, 10, 100);
    }
    let before = setup.used(&store);
    let mut upkeep = Upkeep::new(store.clone());
    compact(&mut upkeep);
    let after = setup.used(&store);
    assert!(after < before / 4, "{before} bytes became {after}");
    for number in 0..300 {
        assert!(has(&store, number, 10, 100));
    }
    drop((upkeep, store));
    let store = setup.open();
    for number in 0..300 {
        assert!(has(&store, number, 10, 100));
    }
}

/// Fills volumes with objects of which later ones make most count no longer.
fn fill(store: &Store, numbers: std::ops::Range<u64>, seconds: u64) {
    for number in numbers {
        put(store, number, seconds, 3900);
    }
}

/// Takes an object of second ten out of the index.
fn removal(n: u64) -> Change {
    Change::Remove {
        kind: Kind::Removed,
        partition: PARTITION,
        hash: hash(n),
        fragment: None,
        expected: Expected::UpTo(Timestamp::from_secs(10)),
        name: Bytes::new(),
        reason: Bytes::new(),
    }
}

/// Whether a volume is to be compacted.
fn below_half(volume: &Arc<cairn_pebbles::volume::Volume>) -> bool {
    volume.live() + volume.written().removals < volume.used() / 2
}

#[test]
fn a_removal_moves_with_what_was_written_since() {
    let setup = Setup::new();
    let store = setup.open();
    // Most of it counts; what does not holds back removals.
    fill(&store, 0..31, 10);
    put(&store, 0, 11, 3900);
    put(&store, 1, 11, 3900);
    put(&store, 500, 10, 50_000);
    let remove = removal(500);
    put(&store, 501, 10, 200_000);
    assert_eq!(commit(&store, remove).unwrap(), Outcome::Written);
    put(&store, 501, 11, 150_000);
    put(&store, 502, 10, 200_000);
    put(&store, 500, 10, 50_000);
    put(&store, 503, 10, 200_000);
    put(&store, 501, 12, 100_000);
    let mut upkeep = Upkeep::new(store.clone());
    assert!(store.sealed().iter().any(below_half));
    compact(&mut upkeep);
    assert!(!store.sealed().iter().any(below_half), "it is left");
    assert!(has(&store, 500, 10, 50_000));
    drop((upkeep, store));
    assert!(has(&setup.open(), 500, 10, 50_000));
}

/// Objects written since have no room in a batch beside the removal: they move in batches of their own.
#[test]
fn a_removal_moves_with_more_than_a_batch_holds() {
    let setup = Setup::new();
    let store = setup.open();
    fill(&store, 0..31, 10);
    put(&store, 0, 11, 3900);
    put(&store, 1, 11, 3900);
    put(&store, 500, 10, 150_000);
    let remove = removal(500);
    put(&store, 501, 10, 40_000);
    assert_eq!(commit(&store, remove).unwrap(), Outcome::Written);
    put(&store, 501, 11, 150_000);
    put(&store, 502, 10, 200_000);
    // More than half a volume.
    put(&store, 500, 10, 150_000);
    put(&store, 503, 10, 200_000);
    put(&store, 501, 12, 100_000);
    let mut upkeep = Upkeep::new(store.clone());
    assert!(store.sealed().iter().any(below_half));
    for _ in 0..300 {
        if matches!(upkeep.compact(), Ok(false)) {
            break;
        }
        let failure = upkeep.take_failure();
        assert!(failure.is_none(), "{failure:?}");
        assert!(has(&store, 500, 10, 150_000));
    }
    assert!(!store.sealed().iter().any(below_half), "it is left");
    drop((upkeep, store));
    for _ in 0..2 {
        assert!(has(&setup.open(), 500, 10, 150_000));
    }
}

#[test]
fn a_volume_that_cannot_be_compacted_holds_up_no_other() {
    let setup = Setup::new();
    let store = setup.open();
    fill(&store, 0..260, 10);
    let (name, _) = setup.volume_of(&store, 5);
    let slot = entry(&store, 5).unwrap().place.slot;
    fill(&store, 0..260, 11);
    assert!(store.sealed().len() > 4);
    setup.faults.lock().push(Fault::Read {
        name,
        from: 0,
        to: u64::MAX,
        errno: EACCES,
    });
    let mut upkeep = Upkeep::new(store.clone());
    for _ in 0..300 {
        let _ = upkeep.compact();
    }
    let dead: Vec<u16> = store
        .sealed()
        .iter()
        .filter(|v| v.live() == 0)
        .map(|v| v.slot)
        .collect();
    assert_eq!(dead, [slot]);
}

/// Tombstones in volumes that are full, and nothing that they could hold back.
fn expired_tombstones(setup: &Setup) -> Arc<Store> {
    let store = setup.open();
    for number in 0..80 {
        delete(&store, number, 10);
    }
    fill(&store, 100..140, 10);
    setup.clock.fetch_add(100_000, Ordering::Relaxed);
    store
}

#[test]
fn a_tombstone_that_went_swallows_no_write() {
    let setup = Setup::new();
    let store = expired_tombstones(&setup);
    let mut upkeep = Upkeep::new(store.clone());
    checkpoint(&mut upkeep);
    compact(&mut upkeep);
    assert!(entry(&store, 1).is_none(), "it is to go by age");
    put(&store, 1, 9, 100);
    drop((upkeep, store));
    assert!(has(&setup.open(), 1, 9, 100));
}

#[test]
fn a_tombstone_that_goes_swallows_no_write() {
    let setup = Setup::new();
    let store = expired_tombstones(&setup);
    let mut upkeep = Upkeep::new(store.clone());
    checkpoint(&mut upkeep);
    for _ in 0..200 {
        upkeep.compact().unwrap();
        let number = 50;
        let record = record(number, Kind::Data, 9, body(number, 9, 100));
        if commit(&store, Change::Write(record)).unwrap() == Outcome::Written {
            // The power fails now.
            drop((upkeep, store));
            assert!(has(&setup.open(), number, 9, 100));
            return;
        }
    }
    panic!("the tombstone did not go");
}
