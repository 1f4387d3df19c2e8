//! `cairn pebbles` over the volumes of a device that an engine has written.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{Content, Upkeep};
use cairn_disk::{
    Devices, DevicesConfig, Disk, DiskFileConfig, DiskFileEngine, Durability, FallocateReserve,
    Metadata, ObjectEngine, ObjectKey, OpenOptions,
};
use cairn_node::lock::FolderLock;
use cairn_pebbles::{PebblesConfig, PebblesEngine};
use cairn_ring::{FormatVersion, NewDevice, RingBuilder};
use cairn_tools::pebbles::{PebblesCommand, run};
use cairn_types::{HashPath, ObjectHash, PolicyIndex, PolicySet, Timestamp};
use clap::Parser;
use md5::{Digest, Md5};

const LARGE: usize = 2_000_000;
const PART_POWER: u32 = 5;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: PebblesCommand,
}

/// The output of a command, and whether all is sound.
fn call(words: &[&str]) -> anyhow::Result<(bool, String)> {
    let words = std::iter::once("pebbles").chain(words.iter().copied());
    let command = Arguments::try_parse_from(words)?.command;
    let mut out = Vec::new();
    let is_sound = run(command, &mut out)?;
    Ok((is_sound, String::from_utf8_lossy(&out).into_owned()))
}

fn hash_path() -> HashPath {
    HashPath::new("", "test")
}

fn disk_in(root: &Path) -> Disk {
    std::fs::create_dir_all(root.join("d")).unwrap();
    let mut config = DevicesConfig::new(root);
    config.mount_check = false;
    config.fallocate_reserve = FallocateReserve::Bytes(0);
    Devices::new(config).get("d").unwrap().disk().unwrap()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        policy: PolicyIndex(0),
        partition: 7,
        hash: hash_path().hash("a", Some("c"), Some(name)),
        name: format!("/a/c/{name}").into(),
    }
}

fn put(engine: &dyn ObjectEngine, disk: &Disk, name: &str, body: &[u8]) {
    let metadata: Metadata = [
        ("X-Timestamp", Timestamp::from_secs(1_000_000).internal()),
        ("Content-Length", body.len().to_string()),
        ("ETag", ObjectHash(Md5::digest(body).into()).hex()),
    ]
    .into_iter()
    .collect();
    let body = Bytes::copy_from_slice(body);
    let step = engine.put_small(disk, &key(name), body, metadata, Durability::AtOnce);
    step.unwrap().finish(disk).unwrap();
}

#[test]
fn volumes_are_listed_checked_and_read() {
    let root = tempfile::tempdir().unwrap();
    let disk = disk_in(root.path());
    let config = PebblesConfig {
        volume_bytes: 16 << 20,
        ..PebblesConfig::default()
    };
    let engine = PebblesEngine::new(hash_path(), &PolicySet::single(), config, Arc::default());
    put(&engine, &disk, "small/one", b"a small body");
    put(&engine, &disk, "large", &vec![7; LARGE]);
    put(&engine, &disk, "gone", b"x");
    let deleted = Timestamp::from_secs(1_000_001);
    let step = engine.delete(&disk, &key("gone"), deleted, None);
    step.unwrap().finish(&disk).unwrap();
    let device = root.path().join("d");
    let device = device.to_str().unwrap();
    // A server has them open.
    for words in [["ls", device, "--json"], ["check", device, device]] {
        let refused = format!("{:#}", call(&words).unwrap_err());
        assert!(
            refused.contains("a process serves these volumes"),
            "{refused}"
        );
    }
    engine.shutdown();

    let (_, listed) = call(&["ls", device]).unwrap();
    let mut lines: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    lines.sort_by_key(|line| line[4]);
    let parts = |line: &Vec<&str>| line[..3].join(" ") + " " + line[4];
    assert_eq!(
        lines.iter().map(parts).collect::<Vec<_>>(),
        [
            "tombstone 0001000001.00000 0 /a/c/gone",
            "data 0001000000.00000 2000000 /a/c/large",
            "data 0001000000.00000 12 /a/c/small/one",
        ]
    );
    assert!(lines.iter().all(|line| line[3].split_once(':').is_some()));
    let (_, listed) = call(&["ls", "--json", device]).unwrap();
    let values: Vec<serde_json::Value> = listed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let one = values
        .iter()
        .find(|value| value["object"] == "small/one")
        .unwrap();
    assert_eq!(
        (&one["account"], &one["container"]),
        (&"a".into(), &"c".into())
    );
    assert_eq!((&one["bytes"], &one["kind"]), (&12.into(), &"data".into()));

    let (is_sound, text) = call(&["check", device]).unwrap();
    assert!(is_sound, "{text}");
    assert_eq!(
        call(&["cat", device, "/a/c/small/one"]).unwrap().1,
        "a small body"
    );
    let hash = key("large").hash.hex();
    assert_eq!(call(&["cat", device, &hash]).unwrap().1.len(), LARGE);
    for object in ["/a/c/gone", "/a/c/never"] {
        let missing = call(&["cat", device, object]).unwrap_err().to_string();
        assert!(missing.contains("no content of"), "{missing}");
    }
    let unclear = call(&["cat", device, "one"]).unwrap_err().to_string();
    assert!(
        unclear.contains("OBJECT") && unclear.contains("\"one\""),
        "{unclear}"
    );
    let none = call(&["ls", root.path().to_str().unwrap()]).unwrap_err();
    assert!(none.to_string().contains("no folder pebbles"), "{none}");
    damage_is_found(Path::new(device));
}

fn damage_is_found(device: &Path) {
    let store = device.join("pebbles");
    let large = std::fs::read_dir(store.join("large"))
        .unwrap()
        .next()
        .unwrap();
    let large = large.unwrap().path();
    let mut bytes = std::fs::read(&large).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&large, &bytes).unwrap();
    let device = device.to_str().unwrap();
    let (is_sound, text) = call(&["check", device]).unwrap();
    assert!(!is_sound && text.contains("do not match"), "{text}");
    bytes[1000] ^= 1;
    std::fs::write(&large, &bytes).unwrap();
    assert!(call(&["check", device]).unwrap().0);
    for slot in 0..5 {
        let path = store.join(format!("volume-{slot:05}"));
        let Ok(mut bytes) = std::fs::read(&path) else {
            continue;
        };
        let at = bytes.windows(12).position(|bytes| bytes == b"a small body");
        let Some(at) = at else {
            continue;
        };
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let (is_sound, text) = call(&["check", device]).unwrap();
    assert!(!is_sound && text.contains("1 damaged"), "{text}");
    let unread = format!(
        "{:#}",
        call(&["cat", device, "/a/c/small/one"]).unwrap_err()
    );
    assert!(unread.contains("does not match"), "{unread}");
}

#[test]
fn a_device_is_imported_and_exported() {
    let root = tempfile::tempdir().unwrap();
    let disk = disk_in(root.path());
    let config = DiskFileConfig::default();
    let engine = DiskFileEngine::new(hash_path(), &PolicySet::single(), config);
    put(&engine, &disk, "small/one", b"a small body");
    put(&engine, &disk, "large", &vec![7; LARGE]);
    let conf = |module: &str| {
        let text = format!(
            "[swift-hash]\nswift_hash_path_suffix = test\n[storage-policy:0]\nname = gold\n\
             default = yes\ndiskfile_module = {module}\n"
        );
        std::fs::write(root.path().join("swift.conf"), text).unwrap();
    };
    let (device, etc) = (root.path().join("d"), root.path().to_str().unwrap());
    let device = device.to_str().unwrap();
    let volume_bytes = "--volume-bytes";
    let options = ["--stopped", "--swift-dir", etc, volume_bytes, "16777216"];
    let migrate =
        |direction, more: &[&str]| call(&[&[direction, device][..], &options, more].concat());
    const ANYWHERE: &[&str] = &["--skip-mount-check"];

    conf("egg:swift#replication.fs");
    let refused = migrate("import", ANYWHERE).unwrap_err().to_string();
    assert!(refused.contains("diskfile_module"), "{refused}");
    conf("egg:cairn#pebbles");
    let refused = migrate("import", &["--skip-mount-check", "--policy", "silver"]);
    assert!(refused.unwrap_err().to_string().contains("silver"));
    let refused = format!("{:#}", migrate("import", &[]).unwrap_err());
    assert!(refused.contains("mount"), "{refused}");
    refuses_what_may_be_in_use(root.path(), || migrate("import", ANYWHERE));
    let unsaid = call(&["import", device, "--swift-dir", etc]).unwrap_err();
    assert!(unsaid.to_string().contains("--stopped"), "{unsaid}");
    let (is_all, said) = migrate("import", ANYWHERE).unwrap();
    assert!(
        is_all && said.contains("policy gold: 2 moved, 0 left"),
        "{said}"
    );
    let (_, listed) = call(&["ls", device]).unwrap();
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let (_, body) = call(&["cat", device, "/a/c/small/one"]).unwrap();
    assert_eq!(body, "a small body");

    let refused = migrate("export", ANYWHERE).unwrap_err().to_string();
    assert!(refused.contains("diskfile_module"), "{refused}");
    conf("replication.fs");
    let refused = format!("{:#}", migrate("export", ANYWHERE).unwrap_err());
    assert!(refused.contains("a ring says"), "{refused}");
    write_rings(root.path());
    let (is_all, said) = migrate("export", &["--skip-mount-check", "--policy", "0"]).unwrap();
    assert!(is_all && said.contains("2 moved, 0 left"), "{said}");
    assert_eq!(call(&["ls", device]).unwrap().1, "");
    let mut options = OpenOptions::metadata(Timestamp::from_secs(1_000_001));
    options.inline_limit = 100;
    let mut key = key("small/one");
    key.partition = key.hash.partition(32 - PART_POWER);
    let open = engine.open(&disk, &key, &options).unwrap();
    assert!(matches!(open.content, Content::Inline(body) if body == "a small body"));
}

/// Rings of one device each.
fn write_rings(etc: &Path) {
    let device = NewDevice::at("d", ([127, 0, 0, 1], 6200).into());
    let ring = RingBuilder::balanced(PART_POWER, 1.0, [device]).unwrap();
    for name in ["account", "container", "object"] {
        let path = etc.join(format!("{name}.ring.gz"));
        ring.save(path, FormatVersion::V1).unwrap();
    }
}

/// A device whose folder a server of files, or a daemon, has; one of another user.
fn refuses_what_may_be_in_use(root: &Path, import: impl Fn() -> anyhow::Result<(bool, String)>) {
    let refusal = || format!("{:#}", import().unwrap_err());
    for role in ["object", "object-replicator"] {
        let _server = FolderLock::devices(root, role).unwrap();
        let refused = refusal();
        assert!(
            refused.contains(&format!("served by the {role} process")),
            "{refused}"
        );
    }
    let device = root.join("d");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&device, Some(1), None).unwrap();
        let refused = refusal();
        assert!(refused.contains("is of user 1"), "{refused}");
        std::os::unix::fs::chown(&device, Some(0), None).unwrap();
    }
    assert!(!device.join("pebbles").exists());
}
