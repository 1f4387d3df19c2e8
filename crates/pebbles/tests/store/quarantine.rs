//! Files in which damaged records are kept.

use super::*;

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
