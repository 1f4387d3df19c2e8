//! Bounds: the memory of uploads, and attempts to open a store that cannot be opened.

use std::sync::atomic::{AtomicI64, Ordering};

use cairn_disk::machine::Machine;

use super::*;
use crate::engine::uploads::UPLOAD_MEMORY_MAX;

/// Uploads for which there is no memory are files, as larger ones are, and no upload is refused.
#[test]
fn uploads_have_a_bound_in_memory() {
    let setup = Setup::new(false);
    let (engine, disk) = (&setup.engine, &setup.disk);
    let large = setup.root.path().join("d/pebbles/large");
    let files = || std::fs::read_dir(&large).map_or(0, Iterator::count);
    let body = vec![7; 1 << 20];
    let many = UPLOAD_MEMORY_MAX / body.len() + 3;
    let mut uploads: Vec<_> = (0..many)
        .map(|number| {
            let size = (number % 2 == 0).then_some(body.len() as u64);
            let key = key(&format!("o{number}"));
            (key.clone(), engine.create(disk, &key, size, true).unwrap())
        })
        .collect();
    for (_, upload) in &mut uploads {
        for chunk in body.chunks(300_000) {
            upload.write(&[Bytes::copy_from_slice(chunk)]).unwrap();
        }
    }
    let mut options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    options.inline_limit = 4096;
    for (key, upload) in uploads {
        let step = upload.commit(metadata(1_000_000, &body), Durability::AtOnce);
        step.unwrap().finish(disk).unwrap();
        let open = engine.open(disk, &key, &options).unwrap();
        assert_eq!(open.info.size, body.len() as u64);
    }
    assert_eq!(files(), 3);
    // It is given back when they are written.
    for seconds in [1_000_001, 1_000_002] {
        let mut upload = engine.create(disk, &key("o0"), None, true).unwrap();
        upload.write(&[Bytes::from(body.clone())]).unwrap();
        let step = upload.commit(metadata(seconds, &body), Durability::AtOnce);
        step.unwrap().finish(disk).unwrap();
    }
    assert_eq!(files(), 3);
}

#[derive(Debug)]
struct Clock(Arc<AtomicI64>);

impl Machine for Clock {
    fn now(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_store_that_cannot_be_opened_is_not_tried_by_everybody() {
    let setup = Setup::new(false);
    let now = Arc::new(AtomicI64::new(2_000_000_000));
    let clock = Arc::new(Clock(now.clone()));
    let disk = disk_with(setup.root.path(), |config| config.machine = Some(clock));
    put(&setup.engine, &disk, &key("o"), 1_000_000, b"first");
    setup.engine.shutdown();
    let path = setup.root.path().join("d/pebbles/volume-00000");
    let sound = std::fs::read(&path).unwrap();
    // A later format's volume.
    let mut later = sound.clone();
    later[8] = 9;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&later[24..32]);
    crc.update(&0u64.to_le_bytes());
    crc.update(&later[..60]);
    later[60..64].copy_from_slice(&crc.finalize().to_le_bytes());
    std::fs::write(&path, later).unwrap();
    let engine = engine(&setup.policies);
    let mut options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    options.inline_limit = 4096;
    let open = || engine.open(&disk, &key("o"), &options);
    let first = open().err().unwrap().to_string();
    assert!(first.contains("version"), "{first}");
    std::fs::write(&path, sound).unwrap();
    now.fetch_add(2, Ordering::Relaxed);
    assert_eq!(
        open().err().unwrap().to_string(),
        first,
        "it was tried again"
    );
    now.fetch_add(1, Ordering::Relaxed);
    open().unwrap();
}
