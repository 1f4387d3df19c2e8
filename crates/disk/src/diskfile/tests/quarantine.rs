//! Objects that go to quarantine, and those that must not.

use super::*;

#[test]
fn a_newer_object_is_not_quarantined_for_an_older_one() {
    let Some(world) = world() else { return };
    let body = vec![b'x'; 200 << 10];
    // Written while the old one is read; then with the old one still beside it.
    for is_beside in [false, true] {
        world.put(ts(1), body.clone());
        let old = world.dir().join(world.files().concat());
        spoil(&old);
        let mut options = OpenOptions::metadata(ts(100));
        options.inline_limit = 1;
        let open = world
            .engine
            .open(&world.disk, &world.key, &options)
            .unwrap();
        let Content::Stored(content) = open.content else {
            panic!("not a file")
        };
        let size = open.info.size;
        let engine: Arc<dyn ObjectEngine> = Arc::new(world.engine.clone());
        let mut reader = ObjectReader::new(
            world.device.clone(),
            engine,
            world.key.clone(),
            open.info.etag(),
            content,
            0..size,
            64 << 10,
        );
        block_on(reader.next_chunk()).unwrap();
        let kept = world.root.path().join("kept");
        std::fs::hard_link(&old, &kept).unwrap();
        world.put(ts(2), body.clone());
        if is_beside {
            std::fs::rename(&kept, &old).unwrap();
        }
        let read = loop {
            match block_on(reader.next_chunk()) {
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert!(matches!(read, Err(DiskError::StateChanged)), "{read:?}");
        let newer = format!("{}.data", ts(2).internal());
        assert!(world.files().contains(&newer), "{:?}", world.files());
        assert!(!world.device.path().join("quarantined").exists());
        std::fs::remove_dir_all(world.dir()).unwrap();
        let _ = std::fs::remove_file(&kept);
    }
}

#[test]
fn a_broken_object_found_by_opening_is_looked_at_again_before_it_goes() {
    let Some(world) = world() else { return };
    world.put(ts(1), "old");
    let place = HashDir::of(&world.key);
    let suspect = Suspect::Data {
        timestamp: ts(1),
        fragment: None,
    };
    world.put(ts(2), "new");
    let quarantined = place.quarantine(&world.disk, "a test", || {
        place.with_suspect(&world.disk, &suspect)
    });
    assert!(!quarantined.unwrap());
    assert_eq!(world.files(), [format!("{}.data", ts(2).internal())]);
}

/// A damaged file system may have swapped two directories.
#[test]
fn a_tombstone_of_another_object_deletes_nothing() {
    let Some(world) = world() else { return };
    world.put(ts(1), "content");
    world.delete(ts(2));
    let other = world.engine.hash_path.hash("a", Some("c"), Some("other"));
    let key = ObjectKey {
        hash: other,
        name: "/a/c/other".into(),
        ..world.key.clone()
    };
    let theirs = hash_dir(key.policy, key.partition, key.hash);
    let theirs = world.device.path().join(theirs);
    std::fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    std::fs::rename(world.dir(), &theirs).unwrap();
    let options = OpenOptions::metadata(ts(100));
    let opened = world.engine.open(&world.disk, &key, &options);
    assert!(matches!(opened, Err(DiskError::Quarantined(_))));
    assert!(!theirs.exists());
    assert!(matches!(world.open(), Err(DiskError::NotExist)));
}

#[test]
fn a_file_in_the_place_of_a_directory_of_objects_goes() {
    let Some(world) = world() else { return };
    let suffix = world.dir().parent().unwrap().to_owned();
    for spoiled in [suffix.parent().unwrap().to_owned(), suffix] {
        std::fs::create_dir_all(spoiled.parent().unwrap()).unwrap();
        let _ = std::fs::remove_dir_all(&spoiled);
        std::fs::write(&spoiled, "no directory").unwrap();
        assert!(matches!(world.open(), Err(DiskError::Quarantined(_))));
        assert!(!spoiled.exists());
        world.put(ts(1), "content");
        assert_eq!(world.body(), "content");
    }
    let kept = world.device.path().join("quarantined/no-directory");
    assert_eq!(std::fs::read_dir(kept).unwrap().count(), 2);
}

#[test]
fn a_file_linked_into_a_quarantined_directory_is_in_the_new_one() {
    let Some(world) = world() else { return };
    world.put(ts(1), "old");
    let key = world.key.clone();
    // Staged in the directory, which goes before the file gets its name.
    let writer = world.engine.create(&world.disk, &key, Some(3), true);
    let mut writer = writer.unwrap();
    writer.write(&[Bytes::from_static(b"new")]).unwrap();
    let suspect = Suspect::Data {
        timestamp: ts(1),
        fragment: None,
    };
    let gone = world
        .engine
        .quarantine(&world.disk, &key, &suspect, "a test");
    assert!(gone.unwrap());
    let step = writer.commit(metadata(ts(2), b"new"), Durability::AtOnce);
    step.unwrap().finish(&world.disk).unwrap();
    assert_eq!(world.files(), [format!("{}.data", ts(2).internal())]);

    // A tombstone, by the directory in which the object was seen.
    let open = OpenOptions::metadata(ts(100));
    let seen = world.engine.open(&world.disk, &key, &open).unwrap().seen;
    assert!(seen.is_some());
    let suspect = Suspect::Data {
        timestamp: ts(2),
        fragment: None,
    };
    let gone = world
        .engine
        .quarantine(&world.disk, &key, &suspect, "a test");
    assert!(gone.unwrap());
    let step = world.engine.delete(&world.disk, &key, ts(3), seen);
    step.unwrap().finish(&world.disk).unwrap();
    assert_eq!(world.files(), [format!("{}.ts", ts(3).internal())]);
}

#[test]
fn a_fragment_goes_without_the_sound_ones_beside_it() {
    use cairn_types::{EcType, ErasureScheme, PolicyKind, StoragePolicy};
    let Some(mut world) = world() else { return };
    let policy = |index, name: &str, kind| StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: Vec::new(),
        is_default: index == 0,
        deprecated: false,
        kind,
    };
    let scheme = ErasureScheme::new(EcType::IsaLRsVand, 4, 2).unwrap();
    let policies = PolicySet::new(vec![
        policy(0, "replicas", PolicyKind::Replication),
        policy(1, "fragments", PolicyKind::ErasureCoding(scheme)),
    ]);
    let hash_path = HashPath::new("", "endcap");
    let config = DiskFileConfig::default();
    world.engine = DiskFileEngine::new(hash_path, &policies.unwrap(), config);
    world.key.policy = PolicyIndex(1);
    world.put_with(ts(1), "one", &[(crate::metadata::FRAGMENT_INDEX, "3")]);
    let old = world.dir().join(world.files().concat());
    // An upload that is not committed yet.
    let new = format!("{}#4.data", ts(2).internal());
    std::fs::write(world.dir().join(&new), "two").unwrap();
    spoil(&old);
    assert!(matches!(world.open(), Err(DiskError::Quarantined(_))));
    assert_eq!(world.files(), [new]);
}
