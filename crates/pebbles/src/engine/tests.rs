#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::path::Path;

use bytes::Bytes;
use cairn_disk::engine::{
    Audit, Content, Handover, Inventory, Known, Purge, Reverted, Sendable, Upkeep,
};
use cairn_disk::{
    DeviceError, Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Durability,
    FragmentChoice, Metadata, ObjectEngine, ObjectKey, OpenOptions, PartitionKey,
};
use cairn_types::{EcType, ErasureScheme, ObjectHash, PolicyKind, SplitMix, StoragePolicy};
use md5::{Digest, Md5};

use super::*;

mod barred;
mod bounds;
mod failed;
mod idle;
mod large;
mod part_power;
mod rows;
mod turns;

const AT: PartitionKey = PartitionKey {
    policy: PolicyIndex(0),
    partition: 7,
};

struct Setup {
    root: tempfile::TempDir,
    policies: PolicySet,
    disk: Disk,
    engine: PebblesEngine,
}

pub(crate) fn hash_path() -> HashPath {
    HashPath::new("", "test")
}

pub(crate) fn policies(is_coded: bool) -> PolicySet {
    if !is_coded {
        return PolicySet::single();
    }
    let scheme = ErasureScheme::new(EcType::IsaLRsVand, 4, 2).unwrap();
    let policy = StoragePolicy {
        kind: PolicyKind::ErasureCoding(scheme),
        ..PolicySet::single().iter().next().unwrap().clone()
    };
    PolicySet::new(vec![policy]).unwrap()
}

fn disk_in(root: &Path) -> Disk {
    disk_with(root, |_| {})
}

fn disk_with(root: &Path, change: impl FnOnce(&mut DevicesConfig)) -> Disk {
    std::fs::create_dir_all(root.join("d")).unwrap();
    let mut config = DevicesConfig::new(root);
    config.mount_check = false;
    change(&mut config);
    config.fallocate_reserve = cairn_disk::FallocateReserve::Bytes(0);
    Devices::new(config).get("d").unwrap().disk().unwrap()
}

fn engine(policies: &PolicySet) -> PebblesEngine {
    engine_with(policies, |_| {})
}

fn engine_with(policies: &PolicySet, change: impl FnOnce(&mut PebblesConfig)) -> PebblesEngine {
    let mut config = PebblesConfig {
        volume_bytes: 16 << 20,
        ..PebblesConfig::default()
    };
    change(&mut config);
    PebblesEngine::new(hash_path(), policies, config, Arc::default())
}

impl Setup {
    fn new(is_coded: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let policies = policies(is_coded);
        Setup {
            disk: disk_in(root.path()),
            engine: engine(&policies),
            policies,
            root,
        }
    }

    /// Ends the process, as it were, and starts another.
    fn restart(&mut self) {
        self.engine.shutdown();
        self.crash();
    }

    fn crash(&mut self) {
        self.engine = engine(&self.policies);
        // The committer of the old one ends on its own thread, and unlocks the volumes then.
        for _ in 0..500 {
            match self.engine.store(&self.disk, AT.policy) {
                Err(DiskError::Io { action: "lock", .. }) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }

    fn open(&self, key: &ObjectKey) -> Result<OpenObjectOf, DiskError> {
        let mut options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
        options.inline_limit = 4096;
        let open = self.engine.open(&self.disk, key, &options)?;
        let bytes = match &open.content {
            Content::Inline(bytes) => Some(bytes.clone()),
            _ => None,
        };
        Ok((open.info, bytes))
    }
}

type OpenObjectOf = (cairn_disk::ObjectInfo, Option<Bytes>);

fn key(name: &str) -> ObjectKey {
    let hash = hash_path().hash("a", Some("c"), Some(name));
    ObjectKey {
        policy: AT.policy,
        partition: AT.partition,
        hash,
        name: format!("/a/c/{name}").into(),
    }
}

fn metadata(seconds: u64, body: &[u8]) -> Metadata {
    let md5 = ObjectHash(Md5::digest(body).into()).hex();
    [
        ("X-Timestamp", Timestamp::from_secs(seconds).internal()),
        ("Content-Type", "text/plain".to_owned()),
        ("Content-Length", body.len().to_string()),
        ("ETag", md5),
    ]
    .into_iter()
    .collect()
}

fn post(seconds: u64, content_type: Option<u64>) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("X-Timestamp", Timestamp::from_secs(seconds).internal());
    metadata.set("X-Object-Meta-Color", format!("{seconds}"));
    if let Some(time) = content_type {
        metadata.set("Content-Type", "text/html");
        let time = Timestamp::from_secs(time).internal();
        metadata.set("Content-Type-Timestamp", time);
    }
    metadata
}

fn put(engine: &dyn ObjectEngine, disk: &Disk, key: &ObjectKey, seconds: u64, body: &[u8]) {
    let (bytes, metadata) = (Bytes::copy_from_slice(body), metadata(seconds, body));
    let step = engine.put_small(disk, key, bytes, metadata, Durability::AtOnce);
    step.unwrap().finish(disk).unwrap();
}

fn put_fragment(engine: &dyn ObjectEngine, disk: &Disk, key: &ObjectKey, at: u64, index: u32) {
    let mut metadata = metadata(at, b"fragment");
    metadata.set("X-Object-Sysmeta-Ec-Frag-Index", index.to_string());
    let body = Bytes::from_static(b"fragment");
    let step = engine.put_small(disk, key, body, metadata, Durability::Later);
    step.unwrap().finish(disk).unwrap();
}

#[test]
fn an_object_from_put_to_delete() {
    let mut setup = Setup::new(false);
    let key = key("o");
    assert!(matches!(setup.open(&key), Err(DiskError::NotExist)));
    put(&setup.engine, &setup.disk, &key, 1_000_000, b"first");
    put(&setup.engine, &setup.disk, &key, 1_000_002, b"second");
    put(&setup.engine, &setup.disk, &key, 1_000_001, b"too late");
    let step = setup
        .engine
        .write_metadata(&setup.disk, &key, post(1_000_003, Some(1_000_003)));
    step.unwrap().finish(&setup.disk).unwrap();
    for _ in 0..2 {
        let (info, body) = setup.open(&key).unwrap();
        assert_eq!(body.unwrap(), "second");
        assert_eq!(
            info.metadata.get_str("X-Object-Meta-Color"),
            Some("1000003")
        );
        assert_eq!(info.metadata.get_str("Content-Type"), Some("text/html"));
        assert_eq!(info.metadata.get_str("name"), Some("/a/c/o"));
        assert_eq!(info.data_timestamp, Timestamp::from_secs(1_000_002));
        setup.restart();
    }
    let deleted = Timestamp::from_secs(1_000_004);
    let step = setup.engine.delete(&setup.disk, &key, deleted, None);
    step.unwrap().finish(&setup.disk).unwrap();
    setup.crash();
    assert!(
        matches!(setup.open(&key), Err(DiskError::Deleted { timestamp }) if timestamp == deleted)
    );
    let sent = setup
        .engine
        .open_to_send(&setup.disk, key.id(), 0, FragmentChoice::default());
    assert!(
        matches!(sent.unwrap(), Sendable::Tombstone(name, at) if &*name == "/a/c/o" && at == deleted)
    );
}

#[test]
fn a_put_is_at_hand_where_nothing_is_to_be_read_before() {
    let mut setup = Setup::new(false);
    let key = key("o");
    let known = |setup: &Setup, bytes| {
        let at_hand = setup.engine.at_hand(&setup.disk, &key, bytes);
        at_hand.map(|at_hand| at_hand.known)
    };
    assert_eq!(known(&setup, 5), None, "its volumes are not open");
    put(
        &setup.engine,
        &setup.disk,
        &self::key("other"),
        1_000_000,
        b"other",
    );
    assert_eq!(known(&setup, 5), Some(Known::Absent));
    assert_eq!(known(&setup, crate::format::BODY_MAX + 1), None);
    let first = Timestamp::from_secs(1_000_000);
    put(&setup.engine, &setup.disk, &key, 1_000_000, b"first");
    assert_eq!(known(&setup, 5), Some(Known::Lasting(first)));
    setup.restart();
    put(
        &setup.engine,
        &setup.disk,
        &self::key("other"),
        1_000_002,
        b"other",
    );
    assert_eq!(known(&setup, 5), Some(Known::Lasting(first)));
    let deleted = Timestamp::from_secs(1_000_001);
    let step = setup.engine.delete(&setup.disk, &key, deleted, None);
    step.unwrap().finish(&setup.disk).unwrap();
    assert_eq!(known(&setup, 5), Some(Known::Deleted(deleted)));
}

#[test]
fn what_expires_or_was_posted_to_has_to_be_read() {
    let setup = Setup::new(false);
    let known = |key: &ObjectKey| {
        let at_hand = setup.engine.at_hand(&setup.disk, key, 5);
        at_hand.map(|at_hand| at_hand.known)
    };
    let expires = |key: &ObjectKey, name: &str| {
        let mut metadata = metadata(1_000_000, b"body");
        metadata.set(name, "4000000000");
        let body = Bytes::from_static(b"body");
        let step = setup
            .engine
            .put_small(&setup.disk, key, body, metadata, Durability::AtOnce);
        step.unwrap().finish(&setup.disk).unwrap();
    };
    expires(&key("o"), "X-Delete-At");
    expires(&key("p"), "x-delete-at");
    assert_eq!((known(&key("o")), known(&key("p"))), (None, None));

    put(&setup.engine, &setup.disk, &key("q"), 1_000_000, b"first");
    let mut posted = Metadata::new();
    posted.set("X-Timestamp", Timestamp::from_secs(1_000_001).internal());
    posted.set("X-Delete-At", "4000000000");
    let step = setup.engine.write_metadata(&setup.disk, &key("q"), posted);
    step.unwrap().finish(&setup.disk).unwrap();
    assert_eq!(known(&key("q")), None);
}

#[test]
fn large_bodies_are_files() {
    let mut setup = Setup::new(false);
    let key = key("large");
    let body: Vec<u8> = (0..3_000_000u32).map(|n| n.wrapping_mul(n) as u8).collect();
    let large = setup.root.path().join("d/pebbles/large");
    let files = || std::fs::read_dir(&large).map_or(0, Iterator::count);
    // Its size is unknown: it becomes a file on its way.
    for seconds in [1_000_000, 1_000_001] {
        let mut writer = setup.engine.create(&setup.disk, &key, None, true).unwrap();
        for chunk in body.chunks(700_000) {
            writer.write(&[Bytes::copy_from_slice(chunk)]).unwrap();
        }
        let md5: [u8; 16] = Md5::digest(&body).into();
        assert_eq!(writer.md5(), Some(md5));
        let step = writer
            .commit(metadata(seconds, &body), Durability::AtOnce)
            .unwrap();
        step.finish(&setup.disk).unwrap();
    }
    setup.engine.maintain(&setup.disk).unwrap();
    assert_eq!(files(), 1, "the replaced body is removed");
    setup.restart();
    let mut options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    options.inline_limit = 1 << 16;
    let open = setup.engine.open(&setup.disk, &key, &options).unwrap();
    assert_eq!(open.info.size, body.len() as u64);
    assert!(matches!(open.content, Content::Stored(_)));
    // A file that a crash left is removed at the next opening, and nothing else.
    std::fs::write(large.join("00000000000000ff"), b"left").unwrap();
    assert_eq!(files(), 2);
    setup.restart();
    setup.open(&key).unwrap();
    assert_eq!(files(), 1);
    put(&setup.engine, &setup.disk, &key, 1_000_002, b"small again");
    setup.engine.maintain(&setup.disk).unwrap();
    assert_eq!(
        (files(), setup.open(&key).unwrap().1.unwrap()),
        (0, "small again".into())
    );
}

fn put_large(setup: &Setup, key: &ObjectKey, metadata: Metadata) -> Result<(), DiskError> {
    let writer = setup.engine.create(&setup.disk, key, Some(2_000_000), true);
    let mut writer = writer.unwrap();
    writer.write(&[Bytes::from(vec![7; 2_000_000])]).unwrap();
    let step = writer.commit(metadata, Durability::AtOnce)?;
    step.finish(&setup.disk)
}

/// The bodies that only an unreadable volume knows are kept with it.
#[test]
fn large_bodies_of_an_unreadable_volume_are_kept() {
    let mut setup = Setup::new(false);
    let key = key("large");
    let body = vec![7; 2_000_000];
    put_large(&setup, &key, metadata(1_000_000, &body)).unwrap();
    setup.engine.shutdown();
    let store = setup.root.path().join("d/pebbles");
    for name in ["checkpoint-0", "checkpoint-1"] {
        let _ = std::fs::remove_file(store.join(name));
    }
    for slot in 0..5 {
        let path = store.join(format!("volume-{slot:05}"));
        let bytes = std::fs::read(&path).unwrap_or_default();
        if bytes.windows(8).any(|window| window == b"/a/c/lar") {
            std::fs::write(&path, vec![0x5a; bytes.len()]).unwrap();
        }
    }
    for _ in 0..2 {
        setup.crash();
        assert!(matches!(setup.open(&key), Err(DiskError::NotExist)));
        let large = std::fs::read_dir(store.join("large")).unwrap();
        assert_eq!(large.count(), 1);
    }
}

#[test]
fn a_refused_upload_leaves_no_file() {
    let setup = Setup::new(false);
    let mut metadata = metadata(1_000_000, b"");
    metadata.set("Content-Length", "2000000");
    // Longer than a record holds: the committer refuses it, and its file is there by then.
    metadata.set("X-Object-Meta-Long", "x".repeat(2 << 20));
    put_large(&setup, &key("large"), metadata).unwrap_err();
    setup.engine.maintain(&setup.disk).unwrap();
    let large = std::fs::read_dir(setup.root.path().join("d/pebbles/large"));
    assert_eq!(large.unwrap().count(), 0);
}

#[test]
fn a_damaged_record_is_quarantined() {
    let mut setup = Setup::new(false);
    let (sound, broken) = (key("sound"), key("broken"));
    put(
        &setup.engine,
        &setup.disk,
        &sound,
        1_000_000,
        b"a sound body",
    );
    put(
        &setup.engine,
        &setup.disk,
        &broken,
        1_000_000,
        b"a broken body",
    );
    put(
        &setup.engine,
        &setup.disk,
        &sound,
        1_000_001,
        b"a sound body",
    );
    setup.engine.shutdown();
    let volumes = std::fs::read_dir(setup.root.path().join("d/pebbles")).unwrap();
    for volume in volumes
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
    {
        let mut bytes = std::fs::read(&volume).unwrap();
        let at = bytes.windows(13).position(|w| w == b"a broken body");
        if let Some(at) = at {
            bytes[at] ^= 1;
            std::fs::write(&volume, bytes).unwrap();
        }
    }
    setup.crash();
    assert!(matches!(
        setup.open(&broken),
        Err(DiskError::Quarantined(_))
    ));
    assert!(matches!(setup.open(&broken), Err(DiskError::NotExist)));
    assert_eq!(setup.open(&sound).unwrap().1.unwrap(), "a sound body");
    setup.crash();
    assert!(matches!(setup.open(&broken), Err(DiskError::NotExist)));
}

#[test]
fn fragments_in_two_phases() {
    let mut setup = Setup::new(true);
    let key = key("o");
    let at = Timestamp::from_secs(1_000_000);
    put_fragment(&setup.engine, &setup.disk, &key, 1_000_000, 3);
    assert!(matches!(setup.open(&key), Err(DiskError::NotExist)));
    setup.crash();
    let missing = setup.engine.make_durable(&setup.disk, &key, at, 2);
    assert!(
        matches!(missing, Err(DiskError::NotExist)),
        "{:?}",
        missing.err()
    );
    let step = setup.engine.make_durable(&setup.disk, &key, at, 3).unwrap();
    step.finish(&setup.disk).unwrap();
    setup.crash();
    let (info, _) = setup.open(&key).unwrap();
    let fragments = info.fragments.unwrap();
    assert_eq!((fragments.index, fragments.durable), (3, Some(at)));
    // Handed over, it goes; nothing else does.
    let purge = |data| Purge {
        reverted: vec![Reverted {
            hash: key.hash,
            data,
            meta: data,
            is_durable: true,
        }],
        index: Some(3),
        is_handoff: true,
    };
    setup
        .engine
        .purge(&setup.disk, AT, &purge(Timestamp::from_secs(5)))
        .unwrap();
    setup.open(&key).unwrap();
    setup.engine.purge(&setup.disk, AT, &purge(at)).unwrap();
    assert!(matches!(setup.open(&key), Err(DiskError::NotExist)));
    assert!(setup.engine.remove_partition(&setup.disk, AT).unwrap());
}

#[test]
fn a_partition_is_handed_over() {
    let setup = Setup::new(false);
    let (engine, disk) = (&setup.engine, &setup.disk);
    for number in 0..5 {
        put(engine, disk, &key(&format!("o{number}")), 1_000_000, b"x");
    }
    let contents = engine.contents(disk, AT).unwrap();
    assert_eq!(contents.len(), 5);
    put(engine, disk, &key("o3"), 1_000_001, b"newer");
    let keep = HashSet::from([key("o4").hash]);
    assert_eq!(engine.remove(disk, AT, &contents, None, &keep).unwrap(), 3);
    let mut left = engine.objects(disk, AT).unwrap();
    left.sort();
    let mut expected = vec![key("o3").hash, key("o4").hash];
    expected.sort();
    assert_eq!(left, expected);
    assert!(!engine.remove_partition(disk, AT).unwrap());
    let lock = engine.try_lock_partition(disk, AT).unwrap();
    assert!(lock.is_some() && engine.try_lock_partition(disk, AT).unwrap().is_none());
    drop(lock);
    assert!(engine.try_lock_partition(disk, AT).unwrap().is_some());
    assert!(engine.settled_hashes(disk, AT).unwrap().is_empty());
}

/// The same writes, in any order, make the same suffix hashes and offers as files do.
#[test]
fn hashes_and_offers_are_those_of_files() {
    for (is_coded, seed) in [(false, 1), (true, 2), (false, 3), (true, 4)] {
        let setup = Setup::new(is_coded);
        let other = tempfile::tempdir().unwrap();
        let other_disk = disk_in(other.path());
        let files = DiskFileEngine::new(hash_path(), &setup.policies, DiskFileConfig::default());
        let now = setup.disk.now() as u64;
        let mut dice = SplitMix::new(seed);
        let engines: [(&dyn ObjectEngine, &Disk); 2] =
            [(&setup.engine, &setup.disk), (&files, &other_disk)];
        for _ in 0..300 {
            let key = key(&format!("o{}", dice.number() % 40));
            let (kind, index, at) = (dice.number() % 6, dice.number() % 5, dice.number() % 500);
            let seconds = now - 1000 + at;
            let has_type = dice.number().is_multiple_of(2);
            for (engine, disk) in engines {
                let time = Timestamp::from_secs(seconds);
                let step = match kind {
                    0..=2 if is_coded => {
                        put_fragment(engine, disk, &key, seconds, index as u32);
                        match kind {
                            2 => continue,
                            _ => engine.make_durable(disk, &key, time, index as u32),
                        }
                    }
                    0..=2 => {
                        put(engine, disk, &key, seconds, b"body");
                        continue;
                    }
                    3 => engine.delete(disk, &key, time, None),
                    _ => {
                        let meta = post(seconds, has_type.then_some(seconds - 20));
                        engine.write_metadata(disk, &key, meta)
                    }
                };
                // A fragment that something newer has replaced already.
                match step.and_then(|step| step.finish(disk)) {
                    Ok(()) | Err(DiskError::NotExist) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let hashes = |engine: &dyn Inventory, disk: &Disk| {
            engine.suffix_hashes(disk, AT, &[], true).unwrap().hashes
        };
        let ours = hashes(&setup.engine, &setup.disk);
        assert_eq!(ours, hashes(&files, &other_disk), "coded: {is_coded}");
        assert!(ours.len() > 20);
        let choice = FragmentChoice::default();
        for suffix in ours.keys() {
            let offers = |engine: &dyn Inventory, disk: &Disk| {
                engine.offers(disk, AT, suffix, &choice).unwrap()
            };
            assert_eq!(
                offers(&setup.engine, &setup.disk),
                offers(&files, &other_disk)
            );
        }
    }
}
