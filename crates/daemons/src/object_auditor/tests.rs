use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use cairn_disk::machine::{AtOnce, Employer, Machine};
use cairn_disk::{
    DevicesConfig, DiskFileConfig, DiskFileEngine, Durability, Metadata, ObjectEngine, ObjectKey,
};
use cairn_formats::ini::Section;
use cairn_memory::MemoryEngine;
use cairn_types::{HashPath, PolicyIndex, Timestamp};

use super::*;

/// Syncs fail from some time on.
#[derive(Debug, Default)]
struct Failing(AtomicBool);

impl Machine for Failing {
    fn employer(&self) -> Option<&dyn Employer> {
        Some(&AtOnce)
    }

    fn sync(&self, _file: BorrowedFd<'_>) -> io::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(io::Error::other("a test")),
            false => Ok(()),
        }
    }

    fn now(&self) -> i64 {
        2_000_000_000
    }
}

#[tokio::test]
async fn a_device_out_of_service_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let probe = std::fs::File::create(root.path().join("probe")).unwrap();
    if rustix::fs::fsetxattr(&probe, "user.x", b"x", rustix::fs::XattrFlags::empty()).is_err() {
        println!("skipped: no user extended attributes in the temporary directory");
        return;
    }
    let machine = Arc::new(Failing::default());
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    config.machine = Some(machine.clone());
    let devices = Devices::new(config);
    let device = devices.get("d").unwrap();
    let hash_path = HashPath::new("", "endcap");
    let policies = Arc::new(PolicySet::single());
    let engine = DiskFileEngine::new(hash_path.clone(), &policies, DiskFileConfig::default());
    let put = |name: String| {
        let key = ObjectKey {
            policy: PolicyIndex(0),
            partition: 7,
            hash: hash_path.hash("a", Some("c"), Some(&name)),
            name: format!("/a/c/{name}").into(),
        };
        let time = Timestamp::from_secs(2_000_000_000);
        let metadata: Metadata = [
            ("X-Timestamp", time.internal()),
            ("name", key.name.to_string()),
            ("Content-Length", "1".into()),
            ("ETag", "9dd4e461268c8034f5c8564e155c67a6".into()),
            ("Content-Type", "text/plain".into()),
        ]
        .into_iter()
        .collect();
        let (engine, body) = (engine.clone(), Bytes::from_static(b"x"));
        device.commit(move |disk| engine.put_small(disk, &key, body, metadata, Durability::AtOnce))
    };
    for number in 0..5 {
        put(format!("o{number}")).await.unwrap();
    }
    let recon = root.path().to_str().unwrap();
    let section = Section::from_pairs("object-auditor", &[("recon_cache_path", recon)]);
    let auditor = ObjectAuditor::new(
        AuditorConfig::read(&section).unwrap(),
        AuditorParts {
            engines: Engines::uniform(&policies, Arc::new(engine.clone())),
            policies: policies.clone(),
            devices: devices.clone(),
            clock: Clock::system(),
        },
    );
    let only = PassFilter {
        zero_byte_fps: Some(1000.0),
        ..PassFilter::default()
    };
    let sound = auditor.pass(&only).await;
    assert_eq!((sound.passes, sound.errors), (5, 0));
    machine.0.store(true, Ordering::Relaxed);
    assert!(put("bad".into()).await.is_err());
    assert!(device.is_poisoned());
    let broken = auditor.pass(&only).await;
    assert_eq!(
        (broken.passes, broken.errors),
        (0, 0),
        "each object is an error"
    );
}

/// Content that rots where no file is.
#[tokio::test]
async fn what_rots_in_memory_is_quarantined() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    let devices = Devices::new(config);
    let device = devices.get("d").unwrap();
    let hash_path = HashPath::new("", "endcap");
    let policies = Arc::new(PolicySet::single());
    let engine = MemoryEngine::new(hash_path.clone(), &policies);
    let key = |name: &str| ObjectKey {
        policy: PolicyIndex(0),
        partition: 7,
        hash: hash_path.hash("a", Some("c"), Some(name)),
        name: format!("/a/c/{name}").into(),
    };
    // One that is read along, and one that is read piece by piece.
    let large = Bytes::from(vec![b'x'; 200_000]);
    for (name, body, etag) in [
        (
            "small",
            Bytes::from_static(b"x"),
            "9dd4e461268c8034f5c8564e155c67a6",
        ),
        ("large", large.clone(), "4b98146705d4b0b98b758a78ff6fb73f"),
        (
            "sound",
            Bytes::from_static(b"x"),
            "9dd4e461268c8034f5c8564e155c67a6",
        ),
    ] {
        let metadata: Metadata = [
            (
                "X-Timestamp",
                Timestamp::from_secs(2_000_000_000).internal(),
            ),
            ("Content-Length", body.len().to_string()),
            ("ETag", etag.into()),
            ("Content-Type", "text/plain".into()),
        ]
        .into_iter()
        .collect();
        let (engine, key) = (engine.clone(), key(name));
        let put = device
            .commit(move |disk| engine.put_small(disk, &key, body, metadata, Durability::AtOnce));
        put.await.unwrap();
    }
    let recon = root.path().to_str().unwrap();
    let fast = [
        ("recon_cache_path", recon),
        ("files_per_second", "0"),
        ("bytes_per_second", "0"),
    ];
    let auditor = ObjectAuditor::new(
        AuditorConfig::read(&Section::from_pairs("object-auditor", &fast)).unwrap(),
        AuditorParts {
            engines: Engines::uniform(&policies, Arc::new(engine.clone())),
            policies: policies.clone(),
            devices: devices.clone(),
            clock: Clock::system(),
        },
    );
    let sound = auditor.pass(&PassFilter::default()).await;
    assert_eq!((sound.quarantined, sound.errors), (0, 0), "{sound:?}");
    let mut rotten = large.to_vec();
    rotten[199_999] = b'y';
    assert!(engine.damage("d", key("large").id(), &rotten));
    assert!(engine.damage("d", key("small").id(), b"y"));
    let broken = auditor.pass(&PassFilter::default()).await;
    assert_eq!((broken.quarantined, broken.errors), (2, 0), "{broken:?}");
    assert_eq!(engine.content_count("d"), 1);
}
