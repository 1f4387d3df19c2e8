//! Sectors that the disk does not give, for a while or for good.

use super::*;

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

/// One that it does not give for a while is lost, and with it nothing else; nor is it in the way later.
#[test]
fn a_last_batch_that_cannot_be_read_for_a_while_is_lost() {
    let setup = Setup::new();
    let store = setup.open();
    for number in 0..5 {
        put(&store, number, 10, 9000);
    }
    let slot = entry(&store, 4).unwrap().place.slot;
    setup.lose_sector_of(&store, 4);
    drop(store);
    for seconds in [0, 8] {
        setup.wait(seconds);
        assert!(setup.try_open().is_err());
    }
    setup.wait(10);
    let (store, report) = setup.try_open().unwrap();
    assert!(report.lost == 1 && report.has_unnamed, "{report:?}");
    assert!(entry(&store, 4).is_none());
    // It is written elsewhere, also what replication brings back.
    for number in 4..8 {
        put(&store, number, 10, 9000);
        assert_ne!(entry(&store, number).unwrap().place.slot, slot);
    }
    let place = entry(&store, 4).unwrap().place;
    drop(store);
    // The disk gives it in the end: what was written since counts all the same.
    setup.faults.lock().clear();
    let store = setup.open();
    for number in 0..8 {
        assert!(has(&store, number, 10, 9000), "{number}");
    }
    assert!(entry(&store, 4).unwrap().place == place);
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
