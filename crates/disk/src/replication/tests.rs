#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;

use cairn_types::{HashPath, PolicySet};

use super::*;
use crate::device_pool::{Devices, DevicesConfig};
use crate::diskfile::DiskFileConfig;
use crate::diskfile::suffix_hashes::get_hashes;
use crate::engine::{Durability, Handover, PartitionKey};
use crate::machine::Machine;
use crate::machine::tests::Watching;
use crate::metadata::Metadata;

const POLICY: PolicyIndex = PolicyIndex(0);

struct World {
    _root: tempfile::TempDir,
    disk: Disk,
    engine: DiskFileEngine,
}

fn world() -> World {
    world_on(None)
}

fn world_on(machine: Option<Arc<dyn Machine>>) -> World {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    config.machine = machine;
    World {
        disk: Devices::new(config).get("d").unwrap().disk().unwrap(),
        engine: DiskFileEngine::new(
            HashPath::new("", "endcap"),
            &PolicySet::single(),
            DiskFileConfig::default(),
        ),
        _root: root,
    }
}

fn ts(seconds: u64) -> Timestamp {
    Timestamp::from_secs(4_000_000_000 + seconds)
}

impl World {
    fn key(&self, object: &str) -> ObjectKey {
        ObjectKey {
            policy: POLICY,
            partition: 7,
            hash: HashPath::new("", "endcap").hash("a", Some("c"), Some(object)),
            name: format!("/a/c/{object}").into(),
        }
    }

    fn put(&self, object: &str, seconds: u64) -> ObjectHash {
        let metadata: Metadata = [
            ("X-Timestamp", ts(seconds).internal()),
            ("Content-Type", "text/plain".into()),
            ("Content-Length", "0".into()),
            ("ETag", "d41d8cd98f00b204e9800998ecf8427e".into()),
        ]
        .into_iter()
        .collect();
        let key = self.key(object);
        let step = self.engine.put_small(
            &self.disk,
            &key,
            bytes::Bytes::new(),
            metadata,
            Durability::AtOnce,
        );
        step.unwrap().finish(&self.disk).unwrap();
        key.hash
    }

    fn post(&self, object: &str, seconds: u64) {
        let metadata = [("X-Timestamp", ts(seconds).internal())]
            .into_iter()
            .collect();
        let key = self.key(object);
        let step = self
            .engine
            .write_metadata(&self.disk, &key, metadata)
            .unwrap();
        step.finish(&self.disk).unwrap();
    }

    fn delete(&self, object: &str, seconds: u64) -> ObjectHash {
        let key = self.key(object);
        let step = self
            .engine
            .delete(&self.disk, &key, ts(seconds), None)
            .unwrap();
        step.finish(&self.disk).unwrap();
        key.hash
    }

    fn contents(&self) -> Contents {
        contents(&self.disk, POLICY, 7).unwrap()
    }

    /// Removes what is still as it was of all, or of `only`, without `keep`.
    fn remove(
        &self,
        contents: &Contents,
        only: Option<&HashSet<ObjectHash>>,
        keep: &HashSet<ObjectHash>,
    ) -> usize {
        let at = PartitionKey::new(POLICY, 7);
        let removed = self.engine.remove(&self.disk, at, contents, only, keep);
        removed.unwrap()
    }
}

#[test]
fn offers_tell_what_is_there() {
    let world = world();
    let (o, p) = (world.put("o", 1), world.delete("p", 5));
    world.post("o", 3);
    let offers = |hash: ObjectHash| {
        let choice = FragmentChoice::default();
        list_offers(
            &world.disk,
            &world.engine,
            POLICY,
            7,
            &hash.suffix(),
            &choice,
        )
        .unwrap()
    };
    let [offer] = offers(o)[..] else { panic!() };
    assert_eq!((offer.hash, offer.data, offer.meta), (o, ts(1), ts(3)));
    assert_eq!(offer.content_type, ts(1));
    let [offer] = offers(p)[..] else { panic!() };
    assert_eq!((offer.data, offer.meta), (ts(5), ts(5)));
    let held = |hash| held(&world.disk, &world.engine, POLICY, 7, hash).unwrap();
    assert_eq!(held(o).unwrap().meta, Some(ts(3)));
    assert_eq!(held(p).unwrap().meta, None);
    assert_eq!(held(world.key("q").hash), None);
    let choice = FragmentChoice::default();
    let sendable = open_to_send(&world.disk, &world.engine, POLICY, 7, p, 0, choice).unwrap();
    let Sendable::Tombstone(name, time) = sendable else {
        panic!()
    };
    assert_eq!((&*name, time), ("/a/c/p", ts(5)));
}

#[test]
fn what_was_handed_over_goes_and_what_came_since_stays() {
    let world = world();
    let none = HashSet::new();
    world.put("o", 1);
    world.put("p", 1);
    let kept = world.put("q", 1);
    let contents = world.contents();
    // Meanwhile: new metadata, a new object, and one that could not be sent.
    world.post("p", 2);
    world.put("r", 1);
    let hashes = || {
        get_hashes(&world.disk, &world.engine, POLICY, 7, &[], false)
            .unwrap()
            .hashes
    };
    let before = hashes();
    let keep = HashSet::from([kept]);
    assert_eq!(world.remove(&contents, None, &keep), 1);
    assert!(!remove_partition(&world.disk, POLICY, 7).unwrap());
    assert!(before.contains_key(&world.key("o").hash.suffix()));
    assert!(
        !hashes().contains_key(&world.key("o").hash.suffix()),
        "{before:?}"
    );
    let left = world.contents();
    assert_eq!(left.len(), 3);
    let only = HashSet::from([kept]);
    assert_eq!(world.remove(&left, Some(&only), &none), 1);
    assert_eq!(world.remove(&left, None, &none), 2);
    assert!(remove_partition(&world.disk, POLICY, 7).unwrap());
    assert!(!world.disk.path().join("objects/7").exists());
    assert_eq!(list_partitions(&world.disk, POLICY).unwrap(), [0; 0]);
}

#[test]
fn locks_exclude_each_other() {
    let world = world();
    let first = try_lock_partition(&world.disk, POLICY, 7).unwrap();
    assert!(first.is_some());
    let again = || try_lock_partition(&world.disk, POLICY, 7).unwrap();
    assert!(again().is_none());
    drop(first);
    assert!(again().is_some());
    let device = || try_lock_device(&world.disk, 2).unwrap();
    let (one, two) = (device(), device());
    assert!(one.is_some() && two.is_some() && device().is_none());
}

#[test]
fn a_file_in_a_partitions_place_is_removed() {
    let world = world();
    world.put("o", 1);
    let objects = world.disk.path().join("objects");
    std::fs::write(objects.join("9"), "").unwrap();
    std::fs::write(objects.join("auditor_status_ALL.json"), "{}").unwrap();
    assert_eq!(list_partitions(&world.disk, POLICY).unwrap(), [7]);
    assert!(!objects.join("9").exists());
    assert!(objects.join("auditor_status_ALL.json").exists());
}

/// Objects are removed only after their invalidation is durable.
#[test]
fn removed_after_it_is_noted() {
    let watching = Arc::new(Watching::default());
    let world = world_on(Some(watching.clone()));
    let (o, p) = (world.put("o", 1), world.delete("p", 5));
    let root = world.disk.path().to_owned();
    let hashed = || get_hashes(&world.disk, &world.engine, POLICY, 7, &[], true).unwrap();
    let path = |hash| root.join(hash_dir(POLICY, 7, hash));
    let noted = |hash: ObjectHash| {
        *watching.path.lock().unwrap() = path(hash);
        watching.notes.lock().unwrap().clear();
    };
    hashed();

    noted(o);
    let only = HashSet::from([o]);
    let contents = world.contents();
    let removed = world.remove(&contents, Some(&only), &HashSet::new());
    assert_eq!(removed, 1);
    let line = |hash: ObjectHash| format!("{}\n", hash.suffix());
    assert_eq!(*watching.notes.lock().unwrap(), [(line(o), true)]);
    assert!(!path(o).exists());
    hashed();

    noted(p);
    let reverted = Reverted {
        hash: p,
        data: ts(5),
        meta: ts(5),
        is_durable: true,
    };
    let reverted = Purge {
        reverted: vec![reverted],
        index: None,
        is_handoff: true,
    };
    purge(&world.disk, &world.engine, POLICY, 7, &reverted).unwrap();
    assert_eq!(*watching.notes.lock().unwrap(), [(line(p), true)]);
    assert!(!path(p).exists());
}
