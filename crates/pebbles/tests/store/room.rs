//! A device without room.

use super::*;

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

/// A device without room for one volume's records has none for another's.
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

/// Room is made while there is some: before uploads are refused.
#[test]
fn compaction_begins_before_the_device_is_full() {
    let setup = Setup::new();
    let store = setup.open();
    fill(&store, 0..620, 10);
    fill(&store, 0..200, 11);
    let mut upkeep = Upkeep::new(store.clone());
    while upkeep.prepare().unwrap() {}
    compact(&mut upkeep);
    let before = setup.used(&store);
    // Four volumes more would have room, and then not quite.
    setup.free.store(4 * setup.volume_bytes, Ordering::Relaxed);
    put(&store, 0, 12, 3900);
    assert!(!upkeep.compact().unwrap());
    setup.free.fetch_sub(1, Ordering::Relaxed);
    assert!(
        !upkeep.compact().unwrap(),
        "asked though nothing was written"
    );
    put(&store, 0, 13, 3900);
    compact(&mut upkeep);
    assert!(setup.used(&store) < before, "nothing is compacted");
    assert!((1..200).all(|number| has(&store, number, 11, 3900)));
}

/// Zeros of volumes ahead cost a byte for each of the records', which large batches do not get back.
#[test]
fn zeros_are_written_ahead_of_small_batches_alone() {
    let mut setup = Setup::new();
    setup.volume_bytes = 8 << 20;
    let store = setup.open();
    let mut upkeep = Upkeep::new(store.clone());
    let zeros = |upkeep: &mut Upkeep| {
        let before = setup.calls.written.load(Ordering::Relaxed);
        while upkeep.prepare().unwrap() {}
        setup.calls.written.load(Ordering::Relaxed) - before
    };
    assert!(zeros(&mut upkeep) >= 3 * setup.volume_bytes);
    for number in 0..24 {
        put(&store, number, 10, 1 << 20);
    }
    assert_eq!(zeros(&mut upkeep), 0);
    assert_eq!(store.status().prepared, 3);
    fill(&store, 100..160, 10);
    assert!(zeros(&mut upkeep) >= 3 * (setup.volume_bytes - 8192));
}
