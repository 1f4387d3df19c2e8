#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use bytes::Bytes;
use cairn_disk::engine::{Audit, Handover};
use cairn_disk::{
    Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Durability, Metadata, ObjectKey,
    OpenOptions,
};
use cairn_types::{EcType, ErasureScheme, PolicyKind, StoragePolicy, Timestamp};

use super::*;

const CODED: PolicyIndex = PolicyIndex(1);

fn policies() -> PolicySet {
    let policy = |index, name: &str, kind| StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: Vec::new(),
        is_default: index == 0,
        deprecated: false,
        kind,
    };
    let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1).unwrap();
    PolicySet::new(vec![
        policy(0, "gold", PolicyKind::Replication),
        policy(1, "deep", PolicyKind::ErasureCoding(scheme)),
    ])
    .unwrap()
}

fn hash_path() -> HashPath {
    HashPath::new("", "endcap")
}

fn ts(seconds: u64) -> Timestamp {
    Timestamp::from_secs(4_000_000_000 + seconds)
}

/// A disk, and an engine of each kind on it.
struct World {
    _root: tempfile::TempDir,
    disk: Disk,
    memory: MemoryEngine,
    files: DiskFileEngine,
}

fn world() -> World {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    World {
        disk: Devices::new(config).get("d").unwrap().disk().unwrap(),
        memory: MemoryEngine::new(hash_path(), &policies()),
        files: DiskFileEngine::new(hash_path(), &policies(), DiskFileConfig::default()),
        _root: root,
    }
}

fn key(policy: PolicyIndex, object: &str) -> ObjectKey {
    ObjectKey {
        policy,
        partition: 7,
        hash: hash_path().hash("a", Some("c"), Some(object)),
        name: format!("/a/c/{object}").into(),
    }
}

/// Writes of all kinds, one after the other.
fn write(disk: &Disk, engine: &dyn Engine) {
    let finish = |step: Result<cairn_disk::steps::Step<()>, _>| step.unwrap().finish(disk).unwrap();
    let metadata = |seconds: u64, more: &[(&str, &str)]| -> Metadata {
        let mut metadata: Metadata = [
            ("X-Timestamp", ts(seconds).internal()),
            ("Content-Length", "1".into()),
            ("ETag", "9dd4e461268c8034f5c8564e155c67a6".into()),
            ("Content-Type", "text/plain".into()),
        ]
        .into_iter()
        .collect();
        for (name, value) in more {
            metadata.set(*name, *value);
        }
        metadata
    };
    let x = || Bytes::from_static(b"x");
    let whole = |object: &str| key(PolicyIndex(0), object);
    for (object, seconds) in [("o", 1), ("o", 5), ("p", 2), ("q", 3), ("o", 4)] {
        let metadata = metadata(seconds, &[]);
        finish(engine.put_small(disk, &whole(object), x(), metadata, Durability::AtOnce));
    }
    finish(engine.delete(disk, &whole("p"), ts(6), None));
    finish(engine.delete(disk, &whole("r"), ts(7), None));
    let typed = ts(8).internal();
    for (seconds, more) in [
        (
            8,
            &[("Content-Type", "a/b"), ("Content-Type-Timestamp", &*typed)][..],
        ),
        (9, &[("X-Object-Meta-A", "b")][..]),
    ] {
        let mut posted: Metadata = more.iter().copied().collect();
        posted.set("X-Timestamp", ts(seconds).internal());
        finish(engine.write_metadata(disk, &whole("o"), posted));
    }
    let index = |index| [("X-Object-Sysmeta-Ec-Frag-Index", index)];
    for (object, seconds, fragment, durability) in [
        ("o", 1, "0", Durability::AtOnce),
        ("o", 2, "1", Durability::Later),
        ("p", 3, "2", Durability::Later),
    ] {
        let metadata = metadata(seconds, &index(fragment));
        finish(engine.put_small(disk, &key(CODED, object), x(), metadata, durability));
    }
    finish(engine.make_durable(disk, &key(CODED, "p"), ts(3), 2));
}

#[test]
fn hashes_and_metadata_are_those_of_files() {
    let world = world();
    write(&world.disk, &world.memory);
    write(&world.disk, &world.files);
    for policy in [PolicyIndex(0), CODED] {
        let at = PartitionKey::new(policy, 7);
        let hashes = |engine: &dyn Engine| engine.suffix_hashes(&world.disk, at, &[], true);
        let (ours, theirs) = (hashes(&world.memory), hashes(&world.files));
        assert_eq!(ours.unwrap().hashes, theirs.unwrap().hashes);
        for object in ["o", "p", "q", "r"] {
            let open = |engine: &dyn Engine| {
                let options = OpenOptions::metadata(ts(20));
                let opened = engine.open(&world.disk, &key(policy, object), &options);
                opened
                    .map(|open| open.info)
                    .map_err(|error| error.to_string())
            };
            let sorted = |info: cairn_disk::ObjectInfo| {
                let mut items: Vec<_> = info.metadata.iter().collect();
                items.sort();
                let items = format!("{items:?}");
                (items, info.data_timestamp, info.size, info.fragments)
            };
            let (ours, theirs) = (open(&world.memory), open(&world.files));
            assert_eq!(ours.map(sorted), theirs.map(sorted), "{object}");
        }
    }
}

#[test]
fn what_has_changed_stays() {
    let world = world();
    write(&world.disk, &world.memory);
    let engine: &dyn Engine = &world.memory;
    let at = PartitionKey::new(PolicyIndex(0), 7);
    let contents = engine.contents(&world.disk, at).unwrap();
    assert_eq!(contents.len(), 4);
    let posted = [("X-Timestamp", ts(11).internal())].into_iter().collect();
    let step = engine.write_metadata(&world.disk, &key(PolicyIndex(0), "q"), posted);
    step.unwrap().finish(&world.disk).unwrap();
    let none = HashSet::new();
    let removed = engine.remove(&world.disk, at, &contents, None, &none);
    assert_eq!(removed.unwrap(), 3);
    assert!(!engine.remove_partition(&world.disk, at).unwrap());
    let hash = key(PolicyIndex(0), "q").hash;
    assert_eq!(engine.objects(&world.disk, at).unwrap(), [hash]);
    let state = engine.state(&world.disk, at.object(hash)).unwrap();
    let unchanged = engine.remove_unchanged(&world.disk, at.object(hash), &state);
    assert!(unchanged.unwrap());
    assert!(engine.remove_partition(&world.disk, at).unwrap());
    assert_eq!(
        engine.partitions(&world.disk, PolicyIndex(0)).unwrap(),
        [0; 0]
    );
}

#[test]
fn a_walk_goes_on_where_the_last_one_ended() {
    let world = world();
    write(&world.disk, &world.memory);
    let engine = &world.memory;
    let to_do = || {
        engine
            .partitions_to_audit(&world.disk, PolicyIndex(0), "ALL")
            .unwrap()
    };
    assert_eq!(to_do(), [7]);
    let note = |left: &[u32]| engine.note_audited(&world.disk, PolicyIndex(0), "ALL", left);
    note(&[3, 9]).unwrap();
    assert_eq!(to_do(), [3, 9]);
    note(&[]).unwrap();
    assert_eq!(to_do(), [7]);
    let at = PartitionKey::new(PolicyIndex(0), 7);
    let lock = || engine.try_lock_partition(&world.disk, at).unwrap();
    let held = lock();
    assert!(held.is_some() && lock().is_none());
    drop(held);
    assert!(lock().is_some());
}

/// Every engine says of a fragment that was never written that there is none.
#[test]
fn a_fragment_that_is_missing_is_not_made_durable() {
    let world = world();
    let engines: [&dyn Engine; 2] = [&world.memory, &world.files];
    for engine in engines {
        let step = engine.make_durable(&world.disk, &key(CODED, "missing"), ts(1), 2);
        let made = step.and_then(|step| step.finish(&world.disk));
        assert!(
            matches!(made, Err(cairn_disk::DiskError::NotExist)),
            "{made:?}"
        );
    }
}
