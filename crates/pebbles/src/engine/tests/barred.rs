//! Files beside the volumes.

use super::*;

/// Neither a server that was started with the other engine nor a neighbour's rsync makes a second
/// place for a policy's objects.
#[test]
fn no_files_are_made_beside_volumes() {
    let setup = Setup::new(false);
    let key = key("o");
    put(&setup.engine, &setup.disk, &key, 1_000_000, b"in a volume");
    let folder = setup.root.path().join("d/objects");
    assert!(folder.is_file());
    let config = DiskFileConfig::default();
    let files = DiskFileEngine::new(hash_path(), &setup.policies, config);
    let options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    let opened = files.open(&setup.disk, &key, &options);
    assert!(matches!(opened, Err(DiskError::Io { .. })), "{opened:?}");
    let body = Bytes::from_static(b"in a file");
    let metadata = metadata(1_000_001, &body);
    let written = files.put_small(&setup.disk, &key, body, metadata, Durability::AtOnce);
    let written = written.and_then(|step| step.finish(&setup.disk));
    assert!(matches!(written, Err(DiskError::Io { .. })), "{written:?}");
    assert!(folder.is_file());
    assert_eq!(setup.open(&key).unwrap().1.unwrap(), "in a volume");
}
