#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cairn_disk::{Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, FallocateReserve};
use cairn_types::{PolicyIndex, SplitMix};

use super::*;
use crate::engine::tests::{hash_path, policies};
use crate::{PebblesConfig, PebblesEngine};

const POLICY: PolicyIndex = PolicyIndex(0);
const LARGE: usize = 2_500_000;
/// The folder that the test's own program migrates, started once more as another process.
const CHILD: &str = "CAIRN_TEST_MIGRATION";

struct Setup {
    device: Arc<Device>,
    files: Arc<dyn Engine>,
    volumes: Arc<dyn Engine>,
}

impl Setup {
    fn new(root: &Path, is_coded: bool) -> Setup {
        std::fs::create_dir_all(root.join("d")).unwrap();
        let mut config = DevicesConfig::new(root);
        config.mount_check = false;
        config.idle_close = IDLE_CLOSE;
        config.fallocate_reserve = FallocateReserve::Bytes(0);
        let policies = policies(is_coded);
        let age = Duration::from_secs(1 << 32);
        let of_files = DiskFileConfig {
            reclaim_age: age,
            ..DiskFileConfig::default()
        };
        let files = DiskFileEngine::new(hash_path(), &policies, of_files);
        Setup {
            device: Devices::new(config).get("d").unwrap(),
            files: Arc::new(files),
            volumes: Arc::new(volumes_of(is_coded)),
        }
    }

    fn disk(&self) -> Disk {
        self.device.disk().unwrap()
    }

    fn import(&self) -> Result<Migrated, MigrationError> {
        self.migrate(&self.files, &self.volumes)
    }

    fn export(&self) -> Result<Migrated, MigrationError> {
        self.migrate(&self.volumes, &self.files)
    }

    fn migrate(
        &self,
        from: &Arc<dyn Engine>,
        to: &Arc<dyn Engine>,
    ) -> Result<Migrated, MigrationError> {
        let migration = Migration {
            device: self.device.clone(),
            policy: POLICY,
            from: from.clone(),
            to: to.clone(),
        };
        migration.run()
    }

    /// All that replicas compare: the suffix hashes of all partitions.
    fn hashes(&self, engine: &Arc<dyn Engine>) -> Vec<String> {
        let disk = self.disk();
        let mut all = Vec::new();
        for partition in engine.partitions(&disk, POLICY).unwrap() {
            let at = PartitionKey::new(POLICY, partition);
            let hashed = engine.suffix_hashes(&disk, at, &[], true).unwrap();
            let hashes = hashed.hashes.iter();
            all.extend(hashes.map(|(suffix, hash)| format!("{partition} {suffix} {hash:?}")));
        }
        all
    }
}

fn volumes_of(is_coded: bool) -> PebblesEngine {
    let config = PebblesConfig {
        reclaim_age: Duration::from_secs(1 << 32),
        volume_bytes: 16 << 20,
        bars_files: false,
        takes_turns: false,
        ..PebblesConfig::default()
    };
    PebblesEngine::new(hash_path(), &policies(is_coded), config, Arc::default())
}

fn key(name: &str) -> ObjectKey {
    let hash = hash_path().hash("a", Some("c"), Some(name));
    ObjectKey {
        policy: POLICY,
        partition: u32::from(hash.0[0] >> 6),
        hash,
        name: format!("/a/c/{name}").into(),
    }
}

/// The folder of an object's files.
fn folder_of(root: &Path, name: &str) -> std::path::PathBuf {
    let key = key(name);
    let dir = cairn_disk::layout::hash_dir(POLICY, key.partition, key.hash);
    root.join("d").join(dir)
}

fn body(name: &str, len: usize) -> Bytes {
    let text = format!("content of {name} ").into_bytes();
    text.into_iter()
        .cycle()
        .take(len)
        .collect::<Vec<u8>>()
        .into()
}

/// A PUT; of a fragment where there is an index.
fn put(
    setup: &Setup,
    engine: &Arc<dyn Engine>,
    (name, at): (&str, u64),
    len: usize,
    fragment: Option<(u32, Durability)>,
) {
    let disk = setup.disk();
    let body = body(&format!("{name} {fragment:?}"), len);
    let mut metadata: Metadata = [
        ("X-Timestamp", Timestamp::from_secs(at).internal()),
        ("Content-Type", "text/plain".to_owned()),
        ("Content-Length", len.to_string()),
        ("X-Object-Meta-Name", name.to_owned()),
        ("X-Delete-At", "1000001".to_owned()),
        ("ETag", ObjectHash(Md5::digest(&body).into()).hex()),
    ]
    .into_iter()
    .collect();
    let durability = match fragment {
        None => Durability::AtOnce,
        Some((index, durability)) => {
            metadata.set("X-Object-Sysmeta-Ec-Frag-Index", index.to_string());
            durability
        }
    };
    let step = engine.put_small(&disk, &key(name), body, metadata, durability);
    step.unwrap().finish(&disk).unwrap();
}

fn post(setup: &Setup, engine: &Arc<dyn Engine>, name: &str, at: u64, content_type: Option<u64>) {
    let mut metadata = Metadata::new();
    metadata.set("X-Timestamp", Timestamp::from_secs(at).internal());
    metadata.set("X-Object-Meta-Color", at.to_string());
    if let Some(at) = content_type {
        metadata.set("Content-Type", "text/html");
        let at = Timestamp::from_secs(at).internal();
        metadata.set("Content-Type-Timestamp", at);
    }
    let step = engine.write_metadata(&setup.disk(), &key(name), metadata);
    step.unwrap().finish(&setup.disk()).unwrap();
}

fn delete(setup: &Setup, engine: &Arc<dyn Engine>, name: &str, at: u64) {
    let at = Timestamp::from_secs(at);
    let step = engine.delete(&setup.disk(), &key(name), at, None);
    step.unwrap().finish(&setup.disk()).unwrap();
}

fn sent(setup: &Setup, engine: &Arc<dyn Engine>, name: &str) -> Option<(ObjectInfo, [u8; 16])> {
    let newest = FragmentChoice::even_not_durable(None);
    let migration = Migration {
        device: setup.device.clone(),
        policy: POLICY,
        from: engine.clone(),
        to: engine.clone(),
    };
    let sent = engine.open_to_send(&setup.disk(), key(name).id(), 1 << 20, newest);
    match sent.unwrap() {
        Sendable::Object(key, open) => {
            assert_eq!(&*key.name, format!("/a/c/{name}"));
            let OpenObject { info, content, .. } = *open;
            let md5 = migration.read(engine, &key, &info, content, |_| Ok(()));
            Some((sorted(info), md5.unwrap()))
        }
        _ => None,
    }
}

/// With its metadata in one order, which differs between engines.
fn sorted(info: ObjectInfo) -> ObjectInfo {
    let sort = |metadata: Metadata| {
        let items: BTreeMap<String, Vec<u8>> = metadata
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect();
        let text = |value| String::from_utf8(value).unwrap();
        items
            .into_iter()
            .map(|(name, value)| (name, text(value)))
            .collect()
    };
    ObjectInfo {
        metadata: sort(info.metadata),
        datafile_metadata: info.datafile_metadata.map(sort),
        metafile_metadata: info.metafile_metadata.map(sort),
        ..info
    }
}

/// Objects that were written before a ring's partitions were doubled go to the partitions that it has now.
#[test]
fn files_go_to_the_partitions_of_the_ring() {
    let root = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(root.path(), false);
    let doubled = volumes_of(false).with_part_powers(Arc::new(|_| Some(3)));
    setup.volumes = Arc::new(doubled);
    let names: Vec<String> = (0..40).map(|number| format!("o{number}")).collect();
    for name in &names {
        // By a number of a ring of part power 2.
        put(&setup, &setup.volumes, (name, 1_000_000), 100, None);
    }
    let migrated = setup.export().unwrap();
    assert_eq!((migrated.moved, migrated.left), (40, 0));
    for name in &names {
        let hash = key(name).hash;
        let dir = cairn_disk::layout::hash_dir(POLICY, u32::from(hash.0[0] >> 5), hash);
        assert!(root.path().join("d").join(dir).is_dir(), "{name}");
    }
}

#[test]
fn objects_move_to_volumes_and_back() {
    let root = tempfile::tempdir().unwrap();
    let setup = Setup::new(root.path(), false);
    let files = &setup.files;
    put(&setup, files, ("small", 1_000_000), 11, None);
    put(&setup, files, ("empty", 1_000_000), 0, None);
    put(&setup, files, ("large", 1_000_000), LARGE, None);
    put(&setup, files, ("posted", 1_000_000), 4096, None);
    post(&setup, files, "posted", 1_000_002, Some(1_000_002));
    post(&setup, files, "posted", 1_000_003, None);
    put(&setup, files, ("gone", 1_000_000), 5, None);
    delete(&setup, files, "gone", 1_000_004);
    let before = setup.hashes(files);
    let names = ["small", "empty", "large", "posted"];
    let objects = names.map(|name| sent(&setup, files, name));
    assert!(objects.iter().all(Option::is_some));

    let moved = setup.import().unwrap();
    assert_eq!((moved.moved, moved.left), (5, 0), "{moved:?}");
    assert_eq!(setup.hashes(&setup.volumes), before);
    assert_eq!(
        names.map(|name| sent(&setup, &setup.volumes, name)),
        objects
    );
    assert_eq!(setup.hashes(files), Vec::<String>::new());
    assert_eq!(setup.import().unwrap(), Migrated::default());

    let moved = setup.export().unwrap();
    assert_eq!((moved.moved, moved.left), (5, 0), "{moved:?}");
    assert_eq!(setup.hashes(files), before);
    assert_eq!(names.map(|name| sent(&setup, files, name)), objects);
    assert_eq!(setup.hashes(&setup.volumes), Vec::<String>::new());
}

#[test]
fn fragments_move_with_what_is_not_durable_yet() {
    let root = tempfile::tempdir().unwrap();
    let setup = Setup::new(root.path(), true);
    let files = &setup.files;
    let (durable, later) = (Durability::AtOnce, Durability::Later);
    // A durable object with a POST, and a newer one that waits.
    put(&setup, files, ("both", 1_000_000), 900, Some((1, durable)));
    put(&setup, files, ("both", 1_000_000), 900, Some((3, durable)));
    post(&setup, files, "both", 1_000_001, None);
    put(&setup, files, ("both", 1_000_002), 800, Some((1, later)));
    put(&setup, files, ("waits", 1_000_000), 700, Some((0, later)));
    // Deleted, and put anew by a PUT that did not end.
    delete(&setup, files, "again", 1_000_000);
    put(&setup, files, ("again", 1_000_001), 600, Some((2, later)));
    put(
        &setup,
        files,
        ("large", 1_000_000),
        LARGE,
        Some((2, durable)),
    );
    let before = setup.hashes(files);
    let names = ["both", "waits", "again", "large"];
    let objects = names.map(|name| sent(&setup, files, name));
    assert!(objects.iter().all(Option::is_some));
    for (engine, other) in [(&setup.volumes, files), (files, &setup.volumes)] {
        let moved = setup.migrate(other, engine).unwrap();
        assert_eq!((moved.moved, moved.left), (4, 0), "{moved:?}");
        assert_eq!(setup.hashes(engine), before);
        assert_eq!(names.map(|name| sent(&setup, engine, name)), objects);
        assert_eq!(setup.hashes(other), Vec::<String>::new());
    }
}

#[test]
fn what_is_newer_at_the_new_place_stays() {
    let root = tempfile::tempdir().unwrap();
    let setup = Setup::new(root.path(), false);
    for name in ["put", "deleted"] {
        put(&setup, &setup.files, (name, 1_000_000), 5, None);
    }
    put(&setup, &setup.volumes, ("put", 1_000_005), 7, None);
    delete(&setup, &setup.volumes, "deleted", 1_000_005);
    let newer = setup.hashes(&setup.volumes);
    assert_eq!(setup.import().unwrap().moved, 2);
    assert_eq!(setup.hashes(&setup.volumes), newer);
    assert_eq!(setup.hashes(&setup.files), Vec::<String>::new());
}

#[test]
fn volumes_that_a_server_has_open_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (setup, server) = (
        Setup::new(root.path(), false),
        Setup::new(root.path(), false),
    );
    put(&setup, &setup.files, ("o", 1_000_000), 5, None);
    put(&server, &server.volumes, ("other", 1_000_000), 5, None);
    for refused in [setup.import(), setup.export()] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("serves these volumes"), "{refused}");
    }
    assert!(sent(&setup, &setup.files, "o").is_some());
}

/// A run that is killed while it removes an object's files may leave any of them, or their folder.
#[test]
fn what_a_killed_removal_left_goes() {
    let root = tempfile::tempdir().unwrap();
    let setup = Setup::new(root.path(), false);
    let files = &setup.files;
    for engine in [files, &setup.volumes] {
        put(&setup, engine, ("posted", 1_000_000), 5, None);
        post(&setup, engine, "posted", 1_000_002, None);
        put(&setup, engine, ("removed", 1_000_000), 5, None);
    }
    // A POST that is newer than what is at the new place has to be kept.
    put(&setup, &setup.volumes, ("newer", 1_000_000), 5, None);
    put(&setup, files, ("newer", 1_000_000), 5, None);
    post(&setup, files, "newer", 1_000_003, None);
    for name in ["posted", "removed", "newer"] {
        let data = format!("{}.data", Timestamp::from_secs(1_000_000).internal());
        std::fs::remove_file(folder_of(root.path(), name).join(data)).unwrap();
    }
    let migrated = setup.import().unwrap();
    assert_eq!((migrated.moved, migrated.left), (0, 1), "{migrated:?}");
    assert_eq!(migrated.named[0].1, key("newer").hash);
}

/// Names of files that a policy does not have, in an object's folder, are not seen when it is opened.
#[test]
fn what_is_not_of_the_policy_stays() {
    let foreign = |is_coded| match is_coded {
        false => ["notes.txt", "0001000000.00000#1#d.data"],
        true => ["0001000000.00000.data", "0001000000.00000#6#d.data"],
    };
    for is_coded in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let setup = Setup::new(root.path(), is_coded);
        let fragment = is_coded.then_some((1, Durability::AtOnce));
        put(&setup, &setup.files, ("o", 1_000_000), 5, fragment);
        post(&setup, &setup.files, "o", 1_000_001, None);
        let object = sent(&setup, &setup.files, "o");
        let folder = folder_of(root.path(), "o");
        for name in foreign(is_coded) {
            std::fs::write(folder.join(name), name).unwrap();
        }
        for reason in ["at its new place", "no version that counts"] {
            let migrated = setup.import().unwrap();
            assert_eq!((migrated.moved, migrated.left), (0, 1), "{migrated:?}");
            assert!(migrated.named[0].2.contains(reason), "{migrated:?}");
            assert_eq!(sent(&setup, &setup.volumes, "o"), object);
            let entries = std::fs::read_dir(&folder).unwrap();
            assert_eq!(entries.count(), 2, "{migrated:?}");
            for name in foreign(is_coded) {
                assert_eq!(std::fs::read(folder.join(name)).unwrap(), name.as_bytes());
            }
        }
    }
}

/// A removal that is cut short leaves a version that was there: its content can be read still.
#[test]
fn metadata_goes_before_its_content() {
    let root = tempfile::tempdir().unwrap();
    let setup = Setup::new(root.path(), false);
    put(&setup, &setup.files, ("o", 1_000_000), 5, None);
    let folder = folder_of(root.path(), "o");
    let name = |at, extension| format!("{}.{extension}", Timestamp::from_secs(at).internal());
    for extension in ["meta", "overflow"] {
        std::fs::write(folder.join(name(1_000_001, extension)), "").unwrap();
    }
    // Neither can be removed as a file is: the removal ends there.
    let data = folder.join(name(1_000_000, "data"));
    std::fs::remove_file(&data).unwrap();
    std::fs::create_dir_all(data.join("d")).unwrap();
    let (disk, id) = (setup.disk(), key("o").id());
    let state = setup.files.state(&disk, id).unwrap();
    let meta = folder.join(name(1_000_001, "meta"));
    setup.files.remove_own(&disk, id, &state).unwrap_err();
    assert!(!meta.exists());
    std::fs::write(&meta, "").unwrap();
    setup.files.remove_unchanged(&disk, id, &state).unwrap_err();
    assert!(!meta.exists());
    assert!(folder.join(name(1_000_001, "overflow")).exists());
}

#[test]
fn a_device_that_lets_go_of_volumes_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(root.path(), false);
    put(&setup, &setup.files, ("o", 1_000_000), 5, None);
    let mut config = setup.disk().config().clone();
    config.idle_close = Duration::from_secs(5);
    setup.device = Devices::new(config).get("d").unwrap();
    let refused = setup.import().unwrap_err();
    assert!(
        matches!(refused, MigrationError::WouldLetGo(_)),
        "{refused}"
    );
    assert!(sent(&setup, &setup.files, "o").is_some());
}

/// The child of the next test: without its folder it does nothing.
#[test]
fn migration_of_a_child() {
    let Some(root) = std::env::var_os(CHILD) else {
        return;
    };
    let setup = Setup::new(Path::new(&root), false);
    let ended = match std::env::var_os("CAIRN_TEST_EXPORT") {
        None => setup.import(),
        Some(_) => setup.export(),
    };
    ended.unwrap();
    setup.volumes.shutdown();
}

#[test]
fn a_killed_run_goes_on() {
    const OBJECTS: usize = 600;
    let root = tempfile::tempdir().unwrap();
    let setup = Setup::new(root.path(), false);
    for number in 0..OBJECTS {
        let name = format!("o{number}");
        let len = [100, 5000, 40_000][number % 3];
        match number % 7 {
            0 => delete(&setup, &setup.files, &name, 1_000_000),
            _ => put(&setup, &setup.files, (&name, 1_000_000), len, None),
        }
        if number % 7 == 1 {
            post(&setup, &setup.files, &name, 1_000_001, None);
        }
    }
    let before = setup.hashes(&setup.files);
    let mut random = SplitMix::new(u64::from(std::process::id()));
    for is_export in [false, true] {
        let mut killed = 0;
        for round in 0..40 {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "migration::tests::migration_of_a_child"]);
            child
                .env(CHILD, root.path())
                .stdout(std::process::Stdio::null());
            if is_export {
                child.env("CAIRN_TEST_EXPORT", "1");
            }
            let mut child = child.spawn().unwrap();
            // Later kills come later: each run gets further than the one before.
            let moment = 20 + random.number() % (60 + 20 * round);
            std::thread::sleep(Duration::from_millis(moment));
            let ended = child.try_wait().unwrap();
            if let Some(status) = ended {
                assert!(status.success());
                break;
            }
            child.kill().unwrap();
            killed += usize::from(!child.wait().unwrap().success());
        }
        assert!(killed > 0, "no run was killed");
        let setup = Setup::new(root.path(), false);
        let last = match is_export {
            false => setup.import().unwrap(),
            true => setup.export().unwrap(),
        };
        assert_eq!(last.left, 0, "{last:?}");
        let (to, from) = match is_export {
            false => (&setup.volumes, &setup.files),
            true => (&setup.files, &setup.volumes),
        };
        assert_eq!(setup.hashes(to), before);
        assert_eq!(setup.hashes(from), Vec::<String>::new());
        for number in (0..OBJECTS).filter(|number| number % 7 > 0) {
            let name = format!("o{number}");
            let (info, md5) = sent(&setup, to, &name).unwrap();
            assert_eq!(info.etag(), ObjectHash(md5).hex(), "{name}");
        }
        setup.volumes.shutdown();
    }
}
