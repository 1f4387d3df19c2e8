//! Objects written by OpenStack Swift's own diskfile are read here, and ours by it.
//!
//! Set `CAIRN_SWIFT_PYTHON` to a Python that has `swift` installed; without it the tests say so
//! and pass. They need extended attributes in the temporary directory.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{Content, Inventory};
use cairn_disk::{
    Device, Devices, DevicesConfig, DiskError, DiskFileConfig, DiskFileEngine, Durability,
    FragmentChoice, Metadata, ObjectEngine, ObjectKey, OpenOptions, PartitionKey, async_pending,
    suffix_hashes,
};
use cairn_types::{HashPath, PolicyIndex, PolicySet, Timestamp};

/// Sets Swift up on `DEVICES`, with the hash suffix `endcap` and one policy; offers a manager `m`.
const PRELUDE: &str = r#"
import os, sys, json, hashlib
from unittest import mock
from swift.common import utils
from swift.common.utils import Timestamp
utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b'', b'endcap'
utils.validate_hash_conf = lambda: None
from swift.common.storage_policy import POLICIES
from swift.obj import diskfile
import logging
logger = utils.get_logger({}, name='upstream')
conf = {'devices': os.environ['DEVICES'], 'mount_check': 'false'}
m = diskfile.DiskFileManager(conf, logger)
policy = POLICIES[0]
def df(obj='o'):
    return m.get_diskfile('d', '7', 'a', 'c', obj, policy=policy)
def put(obj, body, ts, **more):
    f = df(obj)
    with f.create() as w:
        w.write(body)
        metadata = {'X-Timestamp': Timestamp(ts).internal, 'Content-Type': 'text/plain',
                    'Content-Length': str(len(body)),
                    'ETag': hashlib.md5(body).hexdigest()}
        metadata.update({k.replace('_', '-'): v for k, v in more.items()})
        w.put(metadata)
        w.commit(Timestamp(ts))
"#;

struct World {
    root: tempfile::TempDir,
    device: Arc<Device>,
    engine: DiskFileEngine,
    hash_path: HashPath,
    python: String,
}

fn world() -> Option<World> {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON is not set");
        return None;
    };
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mut devices = DevicesConfig::new(root.path());
    devices.mount_check = false;
    let hash_path = HashPath::new("", "endcap");
    Some(World {
        device: Devices::new(devices).get("d").unwrap(),
        engine: DiskFileEngine::new(
            hash_path.clone(),
            &PolicySet::single(),
            DiskFileConfig::default(),
        ),
        hash_path,
        python,
        root,
    })
}

impl World {
    fn swift(&self, script: &str) -> String {
        let output = Command::new(&self.python)
            .arg("-c")
            .arg(format!("{PRELUDE}\n{script}"))
            .env("DEVICES", self.root.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{script}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn key(&self, object: &str) -> ObjectKey {
        ObjectKey {
            policy: PolicyIndex(0),
            partition: 7,
            hash: self.hash_path.hash("a", Some("c"), Some(object)),
            name: format!("/a/c/{object}").into(),
        }
    }

    fn open(&self, object: &str) -> Result<(Metadata, Timestamp, Bytes), DiskError> {
        let options = OpenOptions {
            now: Timestamp::from_secs(4_000_000_000),
            open_expired: true,
            inline_limit: 1 << 20,
            fragment: FragmentChoice::default(),
        };
        let disk = self.device.disk()?;
        let open = self.engine.open(&disk, &self.key(object), &options)?;
        let Content::Inline(body) = open.content else {
            panic!("small objects are read along");
        };
        Ok((open.info.metadata, open.info.data_timestamp, body))
    }

    fn put(&self, object: &str, body: &'static str, seconds: u64, more: &[(&str, &str)]) {
        use md5::{Digest, Md5};
        let etag = cairn_types::hex::encode(Md5::digest(body));
        let mut metadata: Metadata = [
            ("X-Timestamp", Timestamp::from_secs(seconds).internal()),
            ("Content-Type", "text/plain".to_owned()),
            ("Content-Length", body.len().to_string()),
            ("ETag", etag),
        ]
        .into_iter()
        .collect();
        for (name, value) in more {
            metadata.set(*name, *value);
        }
        let disk = self.device.disk().unwrap();
        self.engine
            .put_small(
                &disk,
                &self.key(object),
                Bytes::from(body),
                metadata,
                Durability::AtOnce,
            )
            .unwrap()
            .finish(&disk)
            .unwrap();
    }

    fn files(&self, object: &str) -> Vec<String> {
        let key = self.key(object);
        let dir = cairn_disk::layout::hash_dir(key.policy, key.partition, key.hash);
        let mut names: Vec<String> = std::fs::read_dir(self.device.path().join(dir))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn what_swift_wrote() {
    let Some(world) = world() else { return };
    // Header values reach Swift's diskfile as latin-1 text of their bytes.
    world.swift(
        r#"
put('o', b'content', 4000000001, X_Object_Meta_E='\u00c3\u00a9', X_Object_Sysmeta_S='s')
put('\u00e9', b'', 4000000001)
put('gone', b'x', 4000000001)
df('gone').delete(Timestamp(4000000002))
put('posted', b'x', 4000000001, X_Object_Meta_A='1', X_Object_Sysmeta_S='s')
df('posted').write_metadata({'X-Timestamp': Timestamp(4000000003).internal,
    'X-Object-Meta-B': '2', 'Content-Type': 'a/b',
    'Content-Type-Timestamp': Timestamp(4000000002).internal})
"#,
    );
    let (metadata, data_timestamp, body) = world.open("o").unwrap();
    assert_eq!(body, "content");
    assert_eq!(data_timestamp, Timestamp::from_secs(4_000_000_001));
    assert_eq!(metadata.get_str("name"), Some("/a/c/o"));
    assert_eq!(metadata.get_str("X-Object-Meta-E"), Some("\u{e9}"));
    assert_eq!(metadata.get_str("X-Object-Sysmeta-S"), Some("s"));
    assert_eq!(world.open("\u{e9}").unwrap().2, "");
    assert!(matches!(
        world.open("gone"),
        Err(DiskError::Deleted { timestamp }) if timestamp == Timestamp::from_secs(4_000_000_002)
    ));
    let (metadata, ..) = world.open("posted").unwrap();
    assert_eq!(metadata.get_str("X-Object-Meta-A"), None);
    assert_eq!(metadata.get_str("X-Object-Meta-B"), Some("2"));
    assert_eq!(metadata.get_str("X-Object-Sysmeta-S"), Some("s"));
    assert_eq!(metadata.get_str("Content-Type"), Some("a/b"));
    assert_eq!(metadata.get_str("X-Timestamp"), Some("4000000003.00000"));
}

#[test]
fn what_we_wrote() {
    let Some(world) = world() else { return };
    world.put(
        "o",
        "content",
        4_000_000_001,
        &[("X-Object-Meta-E", "\u{e9}")],
    );
    world.put("\u{e9}", "", 4_000_000_001, &[]);
    world.put("posted", "x", 4_000_000_001, &[("X-Object-Sysmeta-S", "s")]);
    let disk = world.device.disk().unwrap();
    let posted = [
        ("X-Timestamp", "4000000003.00000"),
        ("X-Object-Meta-B", "2"),
        ("Content-Type", "a/b"),
        ("Content-Type-Timestamp", "4000000002.00000"),
    ];
    world
        .engine
        .write_metadata(&disk, &world.key("posted"), posted.into_iter().collect())
        .unwrap()
        .finish(&disk)
        .unwrap();
    world.put("gone", "x", 4_000_000_001, &[]);
    world
        .engine
        .delete(
            &disk,
            &world.key("gone"),
            Timestamp::from_secs(4_000_000_002),
            None,
        )
        .unwrap()
        .finish(&disk)
        .unwrap();
    let seen = world.swift(
        r#"
def show(obj):
    f = df(obj)
    with f.open():
        metadata = dict(f.get_metadata())
        body = b''.join(f.reader())
    return sorted(metadata.items()), body.decode(), f._quarantined_dir
print(ascii(show('o')))
print(ascii(show('\u00e9')))
print(ascii(show('posted')))
try:
    df('gone').open()
except diskfile.DiskFileDeleted as e:
    print(e.timestamp.internal)
"#,
    );
    let expected = [
        "([('Content-Length', '7'), ('Content-Type', 'text/plain'), \
         ('ETag', '9a0364b9e99bb480dd25e1f0284c8555'), \
         ('X-Object-Meta-E', '\\xc3\\xa9'), ('X-Timestamp', '4000000001.00000'), \
         ('name', '/a/c/o')], 'content', None)",
        "([('Content-Length', '0'), ('Content-Type', 'text/plain'), \
         ('ETag', 'd41d8cd98f00b204e9800998ecf8427e'), ('X-Timestamp', '4000000001.00000'), \
         ('name', '/a/c/\\xe9')], '', None)",
        "([('Content-Length', '1'), ('Content-Type', 'a/b'), \
         ('Content-Type-Timestamp', '4000000002.00000'), \
         ('ETag', '9dd4e461268c8034f5c8564e155c67a6'), ('X-Object-Meta-B', '2'), \
         ('X-Object-Sysmeta-S', 's'), ('X-Timestamp', '4000000003.00000'), \
         ('name', '/a/c/posted')], 'x', None)",
        "4000000002.00000",
    ];
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_same_suffix_hashes() {
    let Some(world) = world() else { return };
    for i in 0..20 {
        world.put(&format!("o{i}"), "x", 4_000_000_001 + i, &[]);
    }
    world.swift(
        r#"
put('s1', b'x', 4000000001)
df('s1').write_metadata({'X-Timestamp': Timestamp(4000000003).internal, 'Content-Type': 'a/b',
    'Content-Type-Timestamp': Timestamp(4000000002).internal})
put('s2', b'x', 4000000001)
df('s2').delete(Timestamp(4000000002))
"#,
    );
    let disk = world.device.disk().unwrap();
    let ours = world
        .engine
        .suffix_hashes(&disk, PartitionKey::new(PolicyIndex(0), 7), &[], false)
        .unwrap()
        .hashes;
    assert!(ours.len() > 15);
    // Once from the file that we wrote, once hashed by Swift itself.
    let script = |prepare: &str| {
        format!("{prepare}\nprint(json.dumps(m.get_hashes('d', '7', [], policy), sort_keys=True))")
    };
    let ours: Vec<String> = ours
        .iter()
        .map(|(suffix, hash)| format!("\"{suffix}\": \"{}\"", hash.whole().unwrap()))
        .collect();
    let ours = format!("{{{}}}", ours.join(", "));
    assert_eq!(world.swift(&script("")), ours);
    let forget = "os.unlink(os.environ['DEVICES'] + '/d/objects/7/hashes.pkl')";
    assert_eq!(world.swift(&script(forget)), ours);
    // And what Swift wrote is believed by us.
    let read = suffix_hashes::read_hashes(&disk, "objects/7");
    assert!(read.valid && read.updated > 0.0);
}

#[test]
fn large_metadata_is_no_offence() {
    let Some(world) = world() else { return };
    let large: Vec<(String, String)> = (0..90)
        .map(|i| (format!("X-Object-Meta-{i:04}"), "v".repeat(128)))
        .collect();
    let large: Vec<(&str, &str)> = large
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    world.put("o", "content", 4_000_000_001, &large);
    let files = world.files("o");
    let seen = world.swift(
        r#"
f = df('o')
with f.open():
    body = b''.join(f.reader())
m.get_hashes('d', '7', [], policy)
print(f._quarantined_dir, body.decode())
"#,
    );
    assert_eq!(seen, "None content");
    assert_eq!(world.files("o"), files, "Swift's clean-up leaves it alone");
    let (metadata, ..) = world.open("o").unwrap();
    assert!(large.iter().all(|(n, v)| metadata.get_str(n) == Some(*v)));
    // Overwritten by Swift, it is gone.
    world.swift("put('o', b'new', 4000000009)");
    assert_eq!(world.files("o"), ["4000000009.00000.data"]);
}

#[test]
fn pending_updates() {
    let Some(world) = world() else { return };
    let disk = world.device.disk().unwrap();
    let policy = PolicyIndex(0);
    world.swift(
        r#"
from swift.common.header_key_dict import HeaderKeyDict
m.pickle_async_update('d', 'a', 'c', 'o', {'op': 'PUT', 'account': 'a', 'container': 'c',
    'obj': 'o', 'headers': HeaderKeyDict({'x-size': 7, 'x-etag': 'e'}), 'db_state': None},
    Timestamp(1), policy)
"#,
    );
    let suffix = world.key("o").hash.suffix();
    let files = async_pending::list_updates(&disk, policy, &suffix).unwrap();
    let update = files[0].read(&disk).unwrap();
    assert_eq!((update.op.as_str(), update.object.as_str()), ("PUT", "o"));
    assert_eq!(update.header("x-size"), Some(&b"7"[..]));
    files[0].rewrite(&disk, &update).unwrap();
    let seen = world.swift(&format!(
        r#"
from swift.common.utils.pickle import unpickle
path = os.environ['DEVICES'] + '/d/async_pending/{suffix}/'
[name] = os.listdir(path)
print(name, sorted(unpickle(open(path + name, 'rb').read()).items()))
"#
    ));
    let hash = world.key("o").hash.hex();
    assert_eq!(
        seen,
        format!(
            "{hash}-0000000001.00000 [('account', 'a'), ('container', 'c'), ('db_state', None), \
             ('headers', {{'X-Size': '7', 'X-Etag': 'e'}}), ('obj', 'o'), ('op', 'PUT')]"
        )
    );
    assert!(Path::new(&world.device.path().join("async_pending")).exists());
}
