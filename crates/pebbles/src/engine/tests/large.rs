//! Large bodies whose objects are quarantined, or whose records are damaged.

use cairn_disk::Suspect;

use super::*;

fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// The power may fail as soon as the record that ends the object is written: the body has its other
/// name by then.
#[test]
fn a_quarantined_body_is_kept_through_a_power_cut() {
    let mut setup = Setup::new(false);
    let key = key("large");
    let body = vec![7; 2_000_000];
    put_large(&setup, &key, metadata(1_000_000, &body)).unwrap();
    let store = setup.root.path().join("d/pebbles");
    let suspect = Suspect::Data {
        timestamp: Timestamp::from_secs(1_000_000),
        fragment: None,
    };
    let engine = setup.engine.clone();
    assert!(
        engine
            .quarantine(&setup.disk, &key, &suspect, "test")
            .unwrap()
    );
    drop(engine);
    let kept = || {
        let kept = names(&store, "quarantined-").into_iter();
        // The others are of records.
        let kept = kept.filter(|name| name.len() == "quarantined-".len() + 16);
        let sizes = kept.map(|name| std::fs::metadata(store.join(name)).unwrap().len());
        sizes.collect::<Vec<_>>()
    };
    assert_eq!(kept(), [2_000_000]);
    setup.crash();
    assert!(matches!(setup.open(&key), Err(DiskError::NotExist)));
    assert_eq!(kept(), [2_000_000]);
    assert!(names(&store.join("large"), "").is_empty());
}

/// A record whose body is damaged no longer says which file is its object's: it is not removed when
/// nobody sees the damage any more.
#[test]
fn bodies_that_a_damaged_record_may_have_named_are_kept() {
    let mut setup = Setup::new(false);
    let key = key("large");
    let body = vec![7; 2_000_000];
    put_large(&setup, &key, metadata(1_000_000, &body)).unwrap();
    put(
        &setup.engine,
        &setup.disk,
        &self::key("behind"),
        1_000_000,
        b"x",
    );
    let store = setup.root.path().join("d/pebbles");
    let number = u64::from_str_radix(&names(&store.join("large"), "")[0], 16).unwrap();
    setup.engine.shutdown();
    for name in names(&store, "checkpoint-") {
        std::fs::remove_file(store.join(name)).unwrap();
    }
    for name in names(&store, "volume-") {
        let mut bytes = std::fs::read(store.join(&name)).unwrap();
        let at = bytes
            .windows(8)
            .position(|bytes| bytes == number.to_le_bytes());
        if let Some(at) = at {
            bytes[at] ^= 1;
            std::fs::write(store.join(&name), bytes).unwrap();
        }
    }
    for _ in 0..3 {
        setup.crash();
        assert!(matches!(setup.open(&key), Err(DiskError::NotExist)));
        assert_eq!(
            names(&store, &format!("quarantined-{number:016x}")).len(),
            1
        );
        // With a checkpoint.
        setup.engine.shutdown();
    }
    assert!(names(&store.join("large"), "").is_empty());
}
