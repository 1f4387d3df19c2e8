//! The engine on a temporary directory. Needs user extended attributes there; says so and
//! passes where the file system has none.
#![allow(clippy::unwrap_used)]

mod overflow;
mod quarantine;

use std::os::fd::AsFd;
use std::path::PathBuf;

use bytes::Bytes;

use super::*;
use crate::device_pool::{Device, Devices, DevicesConfig};
use crate::diskfile::suffix_hashes::{get_hashes, read_hashes};
use crate::engine::Content;
use crate::hot::FileIdentity;
use crate::layout::partition_dir;
use crate::reader::{ObjectReader, block_on};

struct World {
    root: tempfile::TempDir,
    device: Arc<Device>,
    disk: Disk,
    engine: DiskFileEngine,
    key: ObjectKey,
}

fn world_with(config: DiskFileConfig) -> Option<World> {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let probe = std::fs::File::create(root.path().join("probe")).unwrap();
    if rustix::fs::fsetxattr(&probe, "user.x", b"x", rustix::fs::XattrFlags::empty()).is_err() {
        println!("skipped: no user extended attributes in the temporary directory");
        return None;
    }
    let mut devices = DevicesConfig::new(root.path());
    devices.mount_check = false;
    let device = Devices::new(devices).get("d").unwrap();
    let hash_path = HashPath::new("", "endcap");
    let hash = hash_path.hash("a", Some("c"), Some("o"));
    Some(World {
        disk: device.disk().unwrap(),
        device,
        engine: DiskFileEngine::new(hash_path, &PolicySet::single(), config),
        key: ObjectKey {
            policy: PolicyIndex(0),
            partition: 7,
            hash,
            name: "/a/c/o".into(),
        },
        root,
    })
}

fn world() -> Option<World> {
    world_with(DiskFileConfig::default())
}

/// Moments that no tombstone of today is reclaimed at.
fn ts(seconds: u64) -> Timestamp {
    Timestamp::from_secs(4_000_000_000 + seconds)
}

fn etag(body: &[u8]) -> String {
    crate::xattr::hex(&crate::xattr::md5(body))
}

fn metadata(time: Timestamp, body: &[u8]) -> Metadata {
    [
        ("X-Timestamp", time.internal()),
        ("Content-Type", "text/plain".into()),
        ("Content-Length", body.len().to_string()),
        ("ETag", etag(body)),
    ]
    .into_iter()
    .collect()
}

impl World {
    fn dir(&self) -> PathBuf {
        let dir = hash_dir(self.key.policy, self.key.partition, self.key.hash);
        self.device.path().join(dir)
    }

    /// Result of an inline read.
    fn cached(&self) -> Option<Result<OpenObject, DiskError>> {
        let options = OpenOptions {
            inline_limit: 64 << 10,
            ..OpenOptions::metadata(ts(100))
        };
        let open = |disk: &Disk| self.engine.open_cached(disk, &self.key, &options);
        self.device.read_cached(&self.key.hash, open)
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir()) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn put(&self, time: Timestamp, body: impl Into<Bytes>) {
        self.put_with(time, body, &[]);
    }

    fn put_with(&self, time: Timestamp, body: impl Into<Bytes>, more: &[(&str, &str)]) {
        let body = body.into();
        let mut metadata = metadata(time, &body);
        for (name, value) in more {
            metadata.set(*name, *value);
        }
        self.engine
            .put_small(&self.disk, &self.key, body, metadata, Durability::AtOnce)
            .unwrap()
            .finish(&self.disk)
            .unwrap();
    }

    fn post(&self, time: Timestamp, items: &[(&str, &str)]) {
        let mut metadata = Metadata::new();
        metadata.set("X-Timestamp", time.internal());
        for (name, value) in items {
            metadata.set(*name, *value);
        }
        self.engine
            .write_metadata(&self.disk, &self.key, metadata)
            .unwrap()
            .finish(&self.disk)
            .unwrap();
    }

    fn delete(&self, time: Timestamp) {
        let deleted = self
            .engine
            .delete(&self.disk, &self.key, time, None)
            .unwrap();
        deleted.finish(&self.disk).unwrap();
    }

    fn open(&self) -> Result<OpenObject, DiskError> {
        let options = OpenOptions {
            now: ts(1000),
            open_expired: false,
            inline_limit: 65536,
            fragment: FragmentChoice::default(),
        };
        self.engine.open(&self.disk, &self.key, &options)
    }

    fn body(&self) -> Bytes {
        match self.open().unwrap().content {
            Content::Inline(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// Reader of an object too large to be inline.
    fn reader(&self, range: std::ops::Range<u64>) -> ObjectReader {
        let open = self.open().unwrap();
        let Content::Stored(file) = open.content else {
            panic!("too large to be inline");
        };
        let engine: Arc<dyn ObjectEngine> = Arc::new(self.engine.clone());
        let (device, key, etag) = (self.device.clone(), self.key.clone(), open.info.etag());
        ObjectReader::new(device, engine, key, etag, file, range, 65536)
    }

    /// All of the object, as a client would get it.
    fn read(&self) -> Result<Vec<u8>, DiskError> {
        let open = self.open()?;
        let size = open.info.size;
        if let Content::Inline(bytes) = open.content {
            return Ok(bytes.to_vec());
        }
        let mut reader = self.reader(0..size);
        let mut read = Vec::new();
        while let Some(bytes) = block_on(reader.next_chunk())? {
            read.extend_from_slice(&bytes);
        }
        Ok(read)
    }

    fn quarantined(&self) -> usize {
        let dir = self.device.path().join("quarantined/objects");
        std::fs::read_dir(dir).map_or(0, Iterator::count)
    }
}

/// A file of content with a byte changed, its size and attributes as they were.
fn spoil(path: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(b"#", 0).unwrap();
}

#[test]
fn put_overwrite_delete() {
    let Some(world) = world() else { return };
    assert!(matches!(world.open(), Err(DiskError::NotExist)));
    world.put(ts(1), "one");
    assert_eq!(world.body(), "one");
    world.put(ts(2), "two");
    let open = world.open().unwrap();
    assert_eq!(open.info.data_timestamp, ts(2));
    assert_eq!(open.info.etag(), etag(b"two"));
    assert_eq!(open.info.metadata.get_str("name"), Some("/a/c/o"));
    assert_eq!(world.files(), [format!("{}.data", ts(2))]);
    // Late news change nothing.
    world.put(ts(1), "one");
    assert_eq!(world.body(), "two");
    world.delete(ts(3));
    assert!(matches!(
        world.open(),
        Err(DiskError::Deleted { timestamp }) if timestamp == ts(3)
    ));
    assert_eq!(world.files(), [format!("{}.ts", ts(3))]);
    world.put(ts(4), "");
    assert_eq!(world.body(), "");
    drop(world.root);
}

#[test]
fn what_is_read_again_stays_in_the_page_cache() {
    let Some(mut world) = world() else { return };
    world.put(ts(1), vec![1; 300_000]);
    assert!(world.reader(0..300_000).stays_cached);
    let mut keep = |size| {
        let config = DiskFileConfig {
            keep_cache_size: size,
            ..world.engine.config().clone()
        };
        world.engine.config = Arc::new(config);
        [0, 0, 5].map(|from| world.reader(from..300_000).stays_cached)
    };
    assert_eq!(keep(299_999), [false, true, false]);
    assert_eq!(keep(0), [false; 3]);
    world.put(ts(2), vec![2; 300_000]);
    assert!(!world.reader(0..300_000).stays_cached);
}

#[test]
fn content_of_another_length_than_its_metadata_is_not_published() {
    let Some(world) = world() else { return };
    let writer = world
        .engine
        .create(&world.disk, &world.key, Some(3), true)
        .and_then(|mut writer| writer.write(&[Bytes::from_static(b"two")]).map(|()| writer));
    let written = writer
        .unwrap()
        .commit(metadata(ts(1), b"three"), Durability::AtOnce);
    assert!(matches!(written, Err(DiskError::Io { .. })));
    assert!(world.files().is_empty());
}

#[test]
fn an_upload_in_pieces() {
    let Some(world) = world() else { return };
    let body = Bytes::from(vec![7; 300_000]);
    let mut writer = world
        .engine
        .create(&world.disk, &world.key, Some(300_000), true)
        .unwrap();
    for chunk in [body.slice(..100_000), body.slice(100_000..)] {
        writer.write(&[chunk]).unwrap();
    }
    assert_eq!(writer.written(), 300_000);
    assert_eq!(writer.md5(), Some(crate::xattr::md5(&body)));
    assert!(world.files().is_empty());
    let step = writer
        .commit(metadata(ts(1), &body), Durability::AtOnce)
        .unwrap();
    step.finish(&world.disk).unwrap();
    let read = |range: std::ops::Range<u64>| {
        let mut reader = world.reader(range);
        let mut all = Vec::new();
        block_on(async {
            while let Some(chunk) = reader.next_chunk().await? {
                all.extend_from_slice(&chunk);
            }
            Ok::<_, DiskError>(all)
        })
    };
    assert_eq!(read(0..300_000).unwrap(), body);
    assert_eq!(read(10..20).unwrap().len(), 10);
    assert_eq!(read(0..0).unwrap().len(), 0);
    // Damage of the right length is found at the end of a whole read.
    let path = world.dir().join(&world.files()[0]);
    let mut damaged = body.to_vec();
    damaged[299_999] ^= 1;
    std::fs::write(path, damaged).unwrap();
    assert_eq!(read(0..10).unwrap().len(), 10);
    assert!(matches!(read(0..300_000), Err(DiskError::Quarantined(_))));
    assert!(matches!(world.open(), Err(DiskError::NotExist)));
    assert_eq!(world.quarantined(), 1);
}

#[test]
fn post_replaces_user_metadata() {
    let Some(world) = world() else { return };
    let sysmeta = ("X-Object-Sysmeta-S", "s");
    world.put_with(ts(1), "x", &[("X-Object-Meta-A", "1"), sysmeta]);
    world.post(ts(2), &[("X-Object-Meta-B", "2")]);
    let info = world.open().unwrap().info;
    assert_eq!(info.metadata.get_str("X-Object-Meta-B"), Some("2"));
    assert_eq!(info.metadata.get_str("X-Object-Meta-A"), None);
    assert_eq!(info.metadata.get_str("X-Object-Sysmeta-S"), Some("s"));
    assert_eq!(info.metadata.get_str("Content-Type"), Some("text/plain"));
    assert_eq!((info.timestamp(), info.data_timestamp), (ts(2), ts(1)));
    assert_eq!(info.content_type_timestamp(), ts(1));
    // A content type of its own time, then newer metadata with an older content type.
    let time = ts(3).internal();
    world.post(
        ts(3),
        &[("Content-Type", "a/b"), ("Content-Type-Timestamp", &time)],
    );
    world.post(ts(4), &[("X-Object-Meta-C", "3")]);
    let info = world.open().unwrap().info;
    assert_eq!(info.metadata.get_str("Content-Type"), Some("a/b"));
    assert_eq!(info.content_type_timestamp(), ts(3));
    assert_eq!(info.metadata.get_str("X-Object-Meta-C"), Some("3"));
    assert_eq!(
        info.datafile_metadata().get_str("X-Object-Meta-A"),
        Some("1")
    );
    assert_eq!(world.files().len(), 3);
    world.put(ts(5), "y");
    assert_eq!(world.files().len(), 1);
}

#[test]
fn expired() {
    let Some(world) = world() else { return };
    let at = ts(500).secs().to_string();
    world.put_with(ts(1), "x", &[("X-Delete-At", &at)]);
    let Err(DiskError::Expired(info)) = world.open() else {
        panic!("it has expired");
    };
    assert_eq!(info.metadata.get_str("X-Delete-At"), Some(at.as_str()));
    let mut options = OpenOptions::metadata(ts(499));
    world
        .engine
        .open(&world.disk, &world.key, &options)
        .unwrap();
    options.now = ts(1000);
    options.open_expired = true;
    world
        .engine
        .open(&world.disk, &world.key, &options)
        .unwrap();
}

#[test]
fn broken_objects_are_quarantined() {
    type Damage = fn(&std::path::Path);
    let damages: [(&str, Damage); 4] = [
        ("other content", |path| std::fs::write(path, "eno").unwrap()),
        ("shorter", |path| std::fs::write(path, "on").unwrap()),
        ("no metadata", |path| {
            let file = std::fs::File::open(path).unwrap();
            rustix::fs::fremovexattr(&file, "user.swift.metadata").unwrap();
        }),
        ("no directory", |path| {
            let dir = path.parent().unwrap();
            std::fs::remove_dir_all(dir).unwrap();
            std::fs::write(dir, "").unwrap();
        }),
    ];
    for (what, damage) in damages {
        let Some(world) = world() else { return };
        world.put(ts(1), "one");
        damage(&world.dir().join(&world.files()[0]));
        assert!(
            matches!(world.open(), Err(DiskError::Quarantined(_))),
            "{what}"
        );
        assert!(matches!(world.open(), Err(DiskError::NotExist)), "{what}");
        assert_eq!(world.quarantined(), 1, "{what}");
        world.put(ts(2), "two");
        assert_eq!(world.body(), "two");
    }
}

#[test]
fn unchanged_content_is_compared_not_hashed() {
    let Some(world) = world() else { return };
    let interval = world.engine.config().etag_recheck_interval;
    let verified = &world.disk.state.verified;
    for size in [3, 200 << 10] {
        let body = vec![b'x'; size];
        world.put(ts(size as u64), body.clone());
        let path = world.dir().join(world.files().concat());
        let stat = || FileIdentity::of(&rustix::fs::stat(&path).unwrap());
        let checksum = crc32fast::hash(&body);
        assert_eq!(verified.checksum(&stat(), interval), Some(checksum));
        // An entry that is wrong (it would be another file's) harms nobody: the ETag decides.
        verified.insert(&stat(), checksum ^ 1);
        let mut tries = vec![world.read(), world.read()];
        if size > 65536 {
            let first = tries.remove(0);
            assert!(matches!(first, Err(DiskError::Unlike)), "{first:?}");
        }
        for read in tries {
            assert_eq!(read.unwrap(), body);
        }
        assert_eq!(verified.checksum(&stat(), interval), Some(checksum));
        // Rot: the file has other content, and nothing else of it has changed.
        spoil(&path);
        verified.insert(&stat(), checksum);
        if size > 65536 {
            assert!(matches!(world.read(), Err(DiskError::Unlike)));
        }
        assert!(matches!(world.read(), Err(DiskError::Quarantined(_))));
    }
}

#[test]
fn content_that_chance_spares_is_not_called_checked() {
    for (etag_validate_pct, is_checked) in [(100.0, true), (0.0, false)] {
        let config = DiskFileConfig {
            etag_validate_pct,
            etag_recheck_interval: Duration::ZERO,
            ..DiskFileConfig::default()
        };
        let Some(world) = world_with(config) else {
            return;
        };
        world.put(ts(1), "one");
        assert_eq!(world.open().unwrap().is_checked, is_checked);
    }
}

#[test]
fn what_lies_in_memory_is_read_in_place() {
    let Some(world) = world() else { return };
    let cached = || world.cached();
    assert!(cached().is_none(), "nobody touched it yet");
    world.put(ts(1), "content");
    let Some(open) = cached() else {
        // The file system cannot tell what is in memory.
        return;
    };
    let open = open.unwrap();
    assert_eq!(open.info, world.open().unwrap().info);
    assert!(matches!(open.content, Content::Inline(bytes) if bytes == "content"));
    world.put(ts(2), "changed");
    let open = cached().unwrap().unwrap();
    assert!(matches!(open.content, Content::Inline(bytes) if bytes == "changed"));
    world.post(ts(3), &[("X-Object-Meta-Color", "red")]);
    assert!(cached().is_none(), "several files are for a thread");
    world.delete(ts(4));
    let gone = cached().unwrap();
    assert!(matches!(gone, Err(DiskError::Deleted { timestamp }) if timestamp == ts(4)));
}

#[test]
fn a_hot_object_is_known_until_something_changes() {
    let Some(world) = world() else { return };
    let cached = || world.cached();
    let stat = || FileIdentity::of(&rustix::fs::stat(world.dir()).unwrap());
    let is_known = || world.engine.known.get(&stat()).is_some();
    // Twice, so that what was known of the first is in the way of the second.
    for time in [1, 2] {
        world.put(ts(time), "content");
        if cached().is_none() {
            // The file system cannot tell what is in memory.
            return;
        }
        assert!(!is_known(), "it may change in the same moment");
        std::thread::sleep(Duration::from_millis(3100));
        for _ in 0..2 {
            let open = cached().unwrap().unwrap();
            assert!(is_known());
            assert_eq!(open.info, world.open().unwrap().info);
            assert!(matches!(open.content, Content::Inline(bytes) if bytes == "content"));
        }
    }
    let data = world.dir().join(&world.files()[0]);
    let data = std::fs::File::open(&data).unwrap();
    crate::xattr::write_metadata(data.as_fd(), &metadata(ts(2), b"another")).unwrap();
    assert!(cached().is_none(), "its attributes have changed");
    assert!(!is_known());
    world.delete(ts(3));
    assert!(matches!(cached().unwrap(), Err(DiskError::Deleted { .. })));
}

#[test]
fn another_name_is_a_collision() {
    let Some(mut world) = world() else { return };
    world.put(ts(1), "one");
    world.key.name = "/a/c/other".into();
    assert!(matches!(world.open(), Err(DiskError::Collision { .. })));
    assert_eq!(world.quarantined(), 0);
    let open = |hash| {
        let options = OpenOptions::metadata(ts(1));
        world
            .engine
            .open_hash(&world.disk, world.key.policy, 7, hash, &options)
    };
    assert_eq!(&*open(world.key.hash).unwrap().0.name, "/a/c/o");
}

#[test]
fn old_tombstones_are_reclaimed() {
    let Some(world) = world_with(DiskFileConfig {
        reclaim_age: Duration::from_secs(3600),
        ..DiskFileConfig::default()
    }) else {
        return;
    };
    world.put(Timestamp::from_secs(1), "one");
    world.delete(Timestamp::from_secs(2));
    assert!(!world.dir().exists());
}

#[test]
fn suffix_hashes_follow_changes() {
    let Some(world) = world() else { return };
    let partition = partition_dir(world.key.policy, 7);
    let hashes = || {
        let policy = world.key.policy;
        let found = get_hashes(&world.disk, &world.engine, policy, 7, &[], false);
        found.unwrap().hashes
    };
    assert!(hashes().is_empty());
    world.put(ts(1), "one");
    let invalid = world.device.path().join(&partition).join("hashes.invalid");
    assert_eq!(std::fs::read_to_string(&invalid).unwrap(), "a83\n");
    let first = hashes();
    // MD5 of the one name that counts.
    let expected = etag(format!("{}.data", ts(1)).as_bytes());
    assert_eq!(first["a83"].whole(), Some(&*expected));
    assert!(read_hashes(&world.disk, &partition).valid);
    assert_eq!(std::fs::read_to_string(&invalid).unwrap(), "");
    assert_eq!(hashes(), first);
    world.post(ts(2), &[]);
    let second = hashes();
    assert_ne!(second, first);
    world.delete(ts(3));
    // Noted, and nothing else yet.
    assert_eq!(std::fs::read_to_string(&invalid).unwrap(), "a83\n");
    let kept = read_hashes(&world.disk, &partition);
    assert_eq!(kept.suffixes.get("a83"), Some(&second.get("a83").cloned()));
    let expected = etag(format!("{}.ts", ts(3)).as_bytes());
    assert_eq!(hashes()["a83"].whole(), Some(&*expected));
    world.put(ts(4), "x");
    let suspect = Suspect::Data {
        timestamp: ts(4),
        fragment: None,
    };
    let quarantined = world
        .engine
        .quarantine(&world.disk, &world.key, &suspect, "a test");
    assert!(quarantined.unwrap());
    assert!(hashes().is_empty());
}
