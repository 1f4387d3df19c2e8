//! Stores of which a write failed.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn the_next_write_opens_it_anew_and_not_too_often() {
    let setup = Setup::new(false);
    let poison = || {
        let opened = setup.engine.inner.stores.opened("d", AT.policy).unwrap();
        opened.store().poison();
        assert!(setup.engine.at_hand(&setup.disk, &key("new"), 5).is_none());
    };
    let try_put = |name: &str| {
        let (body, metadata) = (Bytes::from_static(b"bytes"), metadata(1_000_000, b"bytes"));
        let step =
            setup
                .engine
                .put_small(&setup.disk, &key(name), body, metadata, Durability::AtOnce);
        step.and_then(|step| step.finish(&setup.disk))
    };
    try_put("one").unwrap();
    poison();
    try_put("two").unwrap();
    let second = Instant::now();
    poison();
    // The disk fails again: the others of its requests are refused at once, for a second.
    if second.elapsed() < Duration::from_millis(500) {
        let refused = try_put("three");
        assert!(
            matches!(refused, Err(DiskError::Device(DeviceError::Poisoned(_)))),
            "{refused:?}"
        );
    }
    while try_put("three").is_err() {
        let waited = second.elapsed();
        assert!(waited < Duration::from_secs(10), "still refused");
        std::thread::sleep(Duration::from_millis(50));
    }
    for name in ["one", "two", "three"] {
        assert_eq!(setup.open(&key(name)).unwrap().1.unwrap(), "bytes");
    }
}
