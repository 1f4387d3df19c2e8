//! A store in a folder: what it does with damage, with errors, and with a full device.
#![allow(clippy::unwrap_used)]

mod medium;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_pebbles::format::{Class, Kind, NewRecord, VolumeHeader};
use cairn_pebbles::medium::Folder;
use cairn_pebbles::object::{Entry, Rules};
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
            rules: Rules::default(),
            volume_bytes: self.volume_bytes,
            reclaim_age: Duration::from_secs(1000),
            now: Box::new(move || Timestamp::from_secs(clock.load(Ordering::Relaxed))),
            entropy: Box::new(move || epochs.fetch_add(1, Ordering::Relaxed)),
            checkpoint_bytes: self.checkpoint_bytes,
            compact_below: 0.5,
            external_gone: Box::new(|_, _| {}),
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
fn a_later_format_refuses_the_device() {
    let setup = Setup::new();
    let store = setup.open();
    put(&store, 1, 10, 100);
    let (name, _) = setup.volume_of(&store, 1);
    drop(store);
    setup.change(&name, |bytes| {
        bytes[8] = 2;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[24..32]);
        crc.update(&0u64.to_le_bytes());
        crc.update(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.finalize().to_le_bytes());
        // Its batches may look otherwise too.
        bytes[BLOCK..2 * BLOCK].fill(7);
    });
    let before = std::fs::read(setup.path(&name)).unwrap();
    let error = setup.try_open().err().unwrap().to_string();
    assert!(
        error.contains(&name) && error.contains("version 2") && error.contains("release"),
        "{error}"
    );
    assert_eq!(std::fs::read(setup.path(&name)).unwrap(), before);
}

#[test]
fn a_damaged_head_is_taken_from_elsewhere() {
    // The version alone; the header; and the first batch with it.
    for (from, to) in [(8, 9), (0, 64), (0, 2 * BLOCK)] {
        let setup = Setup::new();
        let store = setup.open();
        for number in 0..5 {
            put(&store, number, 10, 100);
        }
        let (name, _) = setup.volume_of(&store, 4);
        drop(store);
        setup.change(&name, |bytes| {
            for byte in &mut bytes[from..to] {
                *byte ^= 0x5a;
            }
        });
        for _ in 0..2 {
            let store = setup.open();
            for number in 1..5 {
                assert!(has(&store, number, 10, 100), "{number} after {from}..{to}");
            }
        }
        let store = setup.open();
        put(&store, 9, 10, 100);
        drop(store);
        assert!(has(&setup.open(), 9, 10, 100));
    }
}

/// The disk lost a write of a head or of its copy: the one of the later use counts, and the other is
/// written again.
#[test]
fn the_later_of_a_head_and_its_copy_counts() {
    for is_copy_older in [false, true] {
        let setup = Setup::new();
        let store = setup.open();
        for number in 0..5 {
            put(&store, number, 10, 100);
        }
        let (name, _) = setup.volume_of(&store, 4);
        drop(store);
        let at_end = (256 << 10) - BLOCK;
        let (older, newer) = match is_copy_older {
            true => (at_end, 0),
            false => (0, at_end),
        };
        setup.change(&name, |bytes| {
            let header = VolumeHeader::parse(bytes, 0).unwrap();
            let before = VolumeHeader {
                id: header.id - 1,
                epoch: header.epoch ^ 1,
                ..header
            };
            bytes[older..older + 64].copy_from_slice(&before.to_bytes(older as u64));
        });
        let store = setup.open();
        for number in 0..5 {
            assert!(has(&store, number, 10, 100), "{number}, {is_copy_older}");
        }
        drop(store);
        // Both are of the later use now: each is enough.
        setup.change(&name, |bytes| bytes[newer..newer + 64].fill(0x5a));
        let store = setup.open();
        for number in 0..5 {
            assert!(has(&store, number, 10, 100), "{number}, {is_copy_older}");
        }
    }
}

/// A volume that was used anew a moment ago is known by the copy of its head: what is left in it of an
/// earlier use counts no longer.
#[test]
fn an_earlier_use_does_not_come_back_with_a_damaged_head() {
    let setup = Setup::new();
    let store = setup.open();
    for number in 0..200 {
        put(&store, number, 10, 1000);
    }
    let slots: Vec<u16> = (0..200)
        .map(|number| entry(&store, number).unwrap().place.slot)
        .collect();
    let latest = store
        .volumes()
        .iter()
        .map(|volume| volume.id)
        .max()
        .unwrap();
    for number in 0..200 {
        delete(&store, number, 20);
    }
    setup.wait(100_000);
    let mut upkeep = Upkeep::new(store.clone());
    compact(&mut upkeep);
    let is_anew = |volume: &Arc<cairn_pebbles::volume::Volume>| {
        volume.id > latest && volume.used() == BLOCK as u64
    };
    let volumes = store.volumes();
    let anew: Vec<u16> = volumes
        .iter()
        .filter(|volume| is_anew(volume))
        .map(|volume| volume.slot)
        .collect();
    // No tombstone is left of these.
    let lost =
        |number: &u64| anew.contains(&slots[*number as usize]) && entry(&store, *number).is_none();
    let numbers: Vec<u64> = (0..200).filter(lost).collect();
    assert!(!numbers.is_empty(), "{anew:?} had nothing before");
    drop((upkeep, store));
    for slot in anew {
        setup.change(&format!("volume-{slot:05}"), |bytes| bytes[..64].fill(0x5a));
    }
    let store = setup.open();
    for number in numbers {
        assert!(entry(&store, number).is_none(), "{number} is back");
    }
}

#[test]
fn a_volume_that_cannot_be_read_is_kept() {
    let setup = Setup::new();
    let store = setup.open();
    put(&store, 1, 10, 100);
    let (name, _) = setup.volume_of(&store, 1);
    drop(store);
    let noise = vec![0x5a; 256 << 10];
    setup.change(&name, |bytes| *bytes = noise.clone());
    for _ in 0..2 {
        let store = setup.open();
        assert!(entry(&store, 1).is_none());
        drop(store);
        assert!(setup.files("").contains(&noise), "it was removed");
    }
    let store = setup.open();
    put(&store, 1, 10, 100);
    assert!(has(&store, 1, 10, 100));
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

#[test]
fn a_removal_moves_with_what_was_written_since() {
    let setup = Setup::new();
    let store = setup.open();
    // Most of it counts; what does not holds back removals.
    fill(&store, 0..31, 10);
    put(&store, 0, 11, 3900);
    put(&store, 1, 11, 3900);
    put(&store, 500, 10, 50_000);
    let remove = Change::Remove {
        kind: Kind::Removed,
        partition: PARTITION,
        hash: hash(500),
        fragment: None,
        expected: Expected::UpTo(Timestamp::from_secs(10)),
        name: Bytes::new(),
        reason: Bytes::new(),
    };
    put(&store, 501, 10, 200_000);
    assert_eq!(commit(&store, remove).unwrap(), Outcome::Written);
    put(&store, 501, 11, 150_000);
    put(&store, 502, 10, 200_000);
    put(&store, 500, 10, 50_000);
    put(&store, 503, 10, 200_000);
    put(&store, 501, 12, 100_000);
    let mut upkeep = Upkeep::new(store.clone());
    let below_half = |volume: &Arc<cairn_pebbles::volume::Volume>| {
        volume.live() + volume.written().removals < volume.used() / 2
    };
    assert!(store.sealed().iter().any(below_half));
    compact(&mut upkeep);
    assert!(!store.sealed().iter().any(below_half), "it is left");
    assert!(has(&store, 500, 10, 50_000));
    drop((upkeep, store));
    assert!(has(&setup.open(), 500, 10, 50_000));
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

/// Its bytes do not reach the disk, however often it is tried; what it had of the room is given back.
#[test]
fn a_checkpoint_without_room_holds_up_no_compaction() {
    let mut setup = Setup::new();
    setup.checkpoint_bytes = 0;
    let store = setup.open();
    fill(&store, 0..130, 10);
    fill(&store, 0..130, 11);
    setup.faults.lock().push(Fault::Sync {
        prefix: "checkpoint".to_owned(),
        errno: ENOSPC,
    });
    let mut upkeep = Upkeep::new(store.clone());
    let mut failed = 0;
    for _ in 0..300 {
        // It is due in each of them.
        setup.wait(1000);
        failed += u64::from(upkeep.step().is_err());
    }
    assert!(failed > 0, "no checkpoint failed");
    assert!(store.sealed().iter().all(|v| v.live() > 0));
    // The one that is under way.
    while matches!(upkeep.checkpoint(), Ok(true)) {}
    assert!(setup.files("checkpoint").is_empty());
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

/// An object whose record cannot be read is not ended before it could not for a while.
#[test]
fn a_sector_that_cannot_be_read_for_a_while_is_damage() {
    let setup = Setup::new();
    let store = setup.open();
    for number in 0..5 {
        put(&store, number, 10, 3000);
    }
    setup.lose_sector_of(&store, 2);
    let place = entry(&store, 2).unwrap().place;
    let read = || store.read(PARTITION, hash(2), place);
    for seconds in [0, 9] {
        setup.wait(seconds);
        let read = read();
        assert!(matches!(read, Err(ReadError::Unreadable(_))), "{read:?}");
    }
    assert_eq!(store.status().read_errors, 2);
    setup.wait(1);
    let read = read();
    assert!(matches!(read, Err(ReadError::Damaged(_))), "{read:?}");
    drop(store);
    // An opening waits as long.
    for seconds in [0, 8] {
        setup.wait(seconds);
        let opened = setup.try_open();
        assert!(opened.is_err(), "{:?}", opened.map(|(_, report)| report));
    }
    setup.wait(10);
    let store = setup.open();
    for number in [0, 1, 3, 4] {
        assert!(has(&store, number, 10, 3000), "{number}");
    }
    assert!(entry(&store, 2).is_none());
}

#[test]
fn a_read_error_that_passes_ends_nothing() {
    let setup = Setup::new();
    let store = setup.open();
    for number in 0..200 {
        put(&store, number, 10, 100);
    }
    setup.lose_sector_of(&store, 2);
    let place = entry(&store, 2).unwrap().place;
    store.read(PARTITION, hash(2), place).unwrap_err();
    // Compaction of its volume waits, and takes it along then.
    let mut upkeep = Upkeep::new(store.clone());
    compact(&mut upkeep);
    assert!(entry(&store, 2).is_some_and(|entry| entry.place == place));
    setup.faults.lock().clear();
    setup.wait(10);
    compact(&mut upkeep);
    assert!(entry(&store, 2).is_some_and(|entry| entry.place != place));
    assert!(has(&store, 2, 10, 100));
    // An opening, of a record that others are behind.
    for number in 300..320 {
        put(&store, number, 10, 3000);
    }
    setup.lose_sector_of(&store, 305);
    drop((upkeep, store));
    assert!(setup.try_open().is_err());
    setup.faults.lock().clear();
    let store = setup.open();
    for number in (0..200)
        .map(|number| (number, 100))
        .chain((300..320).map(|number| (number, 3000)))
    {
        assert!(has(&store, number.0, 10, number.1), "{number:?}");
    }
    assert!(setup.files("quarantined").is_empty());
}

/// A last batch that the disk does not give looks like a torn one, which an opening would overwrite.
#[test]
fn a_last_batch_that_cannot_be_read_is_not_taken_for_a_torn_one() {
    for behind_header in [0, BLOCK] {
        let setup = Setup::new();
        let store = setup.open();
        for number in 0..5 {
            put(&store, number, 10, 9000);
        }
        let (name, at) = setup.volume_of(&store, 4);
        drop(store);
        let from = (at / BLOCK * BLOCK + behind_header) as u64;
        setup.faults.lock().push(Fault::Read {
            name,
            from,
            to: from + 512,
            errno: EIO,
        });
        let opened = setup.try_open();
        assert!(opened.is_err(), "{:?}", opened.map(|(_, report)| report));
        // The disk gives it the next time.
        setup.faults.lock().clear();
        let store = setup.open();
        for number in 0..5 {
            assert!(has(&store, number, 10, 9000), "{number}");
        }
    }
}

/// The quarantine's own write may be on disk although it failed.
#[test]
fn bytes_are_kept_where_nobody_knows_whether_they_were_quarantined() {
    let setup = Setup::new();
    let store = setup.open();
    put(&store, 1, 10, 3000);
    let place = entry(&store, 1).unwrap().place;
    setup.faults.lock().push(Fault::Write {
        prefix: "volume".into(),
        errno: EIO,
    });
    store
        .quarantine(PARTITION, hash(1), place, "test")
        .unwrap_err();
    assert_eq!(setup.files("quarantined").len(), 1);
}

/// Unreadable records are not moved by compaction, and all others are.
#[test]
fn compaction_goes_past_a_sector_that_cannot_be_read() {
    let setup = Setup::new();
    let store = setup.open();
    for number in 0..200 {
        put(&store, number, 10, 100);
    }
    let slot = entry(&store, 2).unwrap().place.slot;
    setup.lose_sector_of(&store, 2);
    let mut upkeep = Upkeep::new(store.clone());
    for seconds in [0, 10, 20] {
        assert!(entry(&store, 2).is_some(), "it is ended after {seconds} s");
        setup.wait(seconds);
        compact(&mut upkeep);
    }
    for number in (0..200).filter(|number| *number != 2) {
        assert!(has(&store, number, 10, 100), "{number}");
    }
    assert!(entry(&store, 2).is_none());
    let epoch_left = store.sealed().iter().any(|v| v.slot == slot && v.id < 3);
    assert!(!epoch_left, "its volume is as it was");
}

#[test]
fn quarantine_keeps_the_bytes() {
    let setup = Setup::new();
    let store = setup.open();
    put(&store, 1, 10, 1000);
    let (name, at) = setup.volume_of(&store, 1);
    setup.change(&name, |bytes| bytes[at + 900] ^= 1);
    let place = entry(&store, 1).unwrap().place;
    let ended = store.quarantine(PARTITION, hash(1), place, "test");
    assert_eq!(ended.unwrap(), Outcome::Written);
    assert!(entry(&store, 1).is_none());
    let kept = setup.files("quarantined");
    assert_eq!(kept.len(), 1);
    let sound = &body(1, 10, 1000)[..600];
    assert!(kept[0].windows(600).any(|window| window == sound));
}

/// The file system says that there is room, and makes no file: that is asked once, and again when
/// there is more room.
#[test]
fn a_device_that_is_full_is_remembered() {
    let setup = Setup::new();
    let store = setup.open();
    setup.faults.lock().push(Fault::Create { errno: ENOSPC });
    for number in 0..20 {
        let record = record(number, Kind::Data, 10, Bytes::new());
        let ended = commit(&store, Change::Write(record));
        assert!(matches!(ended, Err(PebblesError::NoSpace)), "{ended:?}");
    }
    let created = setup.calls.creates.load(Ordering::Relaxed);
    assert!(created <= 1, "{created} attempts");
    setup.faults.lock().clear();
    setup.free.fetch_add(1, Ordering::Relaxed);
    put(&store, 1, 10, 100);
}

/// Where there is no room to move one volume's records to, there is none for another's.
#[test]
fn compaction_of_a_full_device_tries_one_volume() {
    let setup = Setup::new();
    let store = setup.open();
    fill(&store, 0..620, 10);
    setup.faults.lock().push(Fault::Full);
    // Deletions take all room there is. Each volume has something that counts no longer then.
    let tombstone = |number| record(number, Kind::Tombstone, 20, Bytes::from(vec![0; 8]));
    let mut numbers = (0..5).flat_map(|first| (first..620).step_by(5));
    let is_full = |number| {
        let ended = commit(&store, Change::Write(tombstone(number)));
        matches!(ended, Err(PebblesError::NoSpace))
    };
    assert!(numbers.any(is_full));
    assert!(store.sealed().len() > 8);
    let mut upkeep = Upkeep::new(store.clone());
    let mut attempts = 0;
    while upkeep.compact().unwrap() {
        attempts += 1;
    }
    assert_eq!(attempts, 1);
    assert!(matches!(upkeep.take_failure(), Some(PebblesError::NoSpace)));
    setup.faults.lock().clear();
    setup.wait(10);
    let before = setup.used(&store);
    compact(&mut upkeep);
    assert!(setup.used(&store) < before, "nothing is compacted");
}

/// Many damaged records of a log are ended together.
#[test]
fn an_opening_does_not_sync_for_each_damaged_record() {
    let setup = Setup::new();
    let store = setup.open();
    let mut places = Vec::new();
    for number in 0..40 {
        put(&store, number, 10, 3000);
        places.push(setup.volume_of(&store, number));
    }
    put(&store, 100, 10, 3000);
    drop(store);
    for (name, at) in places {
        setup.change(&name, |bytes| bytes[at + 2000] ^= 1);
    }
    let calls = &setup.calls;
    calls.syncs.store(0, Ordering::Relaxed);
    calls.lists.store(0, Ordering::Relaxed);
    let store = setup.open();
    assert!((0..40).all(|number| entry(&store, number).is_none()));
    assert!(has(&store, 100, 10, 3000));
    assert_eq!(setup.files("quarantined").len(), 40);
    let (syncs, lists) = (
        calls.syncs.load(Ordering::Relaxed),
        calls.lists.load(Ordering::Relaxed),
    );
    assert!(syncs < 10 && lists < 3, "{syncs} syncs, {lists} lists");
}
