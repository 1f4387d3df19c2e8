//! The auditor's access to a disk: listing objects, the checkpoint of a walk, and auditing one
//! object.
//!
//! `objects[-N]/auditor_status_<kind>.json` is `{"partitions": ["7", "12"]}`: the partitions left.

use std::time::Duration;

use bytes::Bytes;
use cairn_types::{ObjectHash, PolicyIndex};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::os::fd::AsFd;

use crate::device_pool::Disk;
use crate::diskfile::DiskFileEngine;
use crate::diskfile::quarantine::{HashDir, QuarantineExtent};
use crate::diskfile::suffix_hashes::{invalidate, list, read_small_file};
use crate::engine::{Audited, ObjectId, ObjectState, OpenOptions};
use crate::error::DiskError;
use crate::layout::{hash_dir, partition_dir};
use crate::overflow::is_older_than;
use crate::replication::{list_hashes, list_suffixes, names_of, state_of};
use crate::staged_file::{Reserve, StagedFile, just_link, open_dir, remove_file};

fn status_name(kind: &str) -> String {
    format!("auditor_status_{kind}.json")
}

/// Partitions left for a walk of this kind: those in its checkpoint, or all.
pub(crate) fn partitions_to_do(
    disk: &Disk,
    policy: PolicyIndex,
    kind: &str,
) -> Result<Vec<u32>, DiskError> {
    let objects = policy.dir("objects");
    let names = match list(disk, &objects) {
        Err(DiskError::NotExist) => return Ok(Vec::new()),
        other => other?,
    };
    let mut all: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    all.sort_unstable();
    let status = read_small_file(disk, &format!("{objects}/{}", status_name(kind)));
    let left = status.and_then(|text| parse_status(&text));
    Ok(match left {
        Some(left) if !left.is_empty() => left,
        _ => all,
    })
}

/// Partition numbers of a checkpoint; Swift writes them as text.
fn parse_status(text: &[u8]) -> Option<Vec<u32>> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, list) = text.split_once("\"partitions\"")?;
    let list = list.split_once('[')?.1.split_once(']')?.0;
    let items = list.split(',').map(|item| item.trim().trim_matches('"'));
    Some(items.filter_map(|item| item.parse().ok()).collect())
}

/// Writes the checkpoint of partitions left; removes it when none are.
pub(crate) fn write_status(
    disk: &Disk,
    policy: PolicyIndex,
    kind: &str,
    left: &[u32],
) -> Result<(), DiskError> {
    let objects = policy.dir("objects");
    if left.is_empty() {
        let Ok(fd) = open_dir(disk, &objects) else {
            return Ok(());
        };
        let name = status_name(kind);
        return remove_file(fd.as_fd(), &name)
            .map_err(|errno| DiskError::from_errno("unlink", name, errno));
    }
    let list: Vec<String> = left.iter().map(|part| format!("\"{part}\"")).collect();
    let text = format!("{{\"partitions\": [{}]}}", list.join(", "));
    let mut staged = StagedFile::create(disk, &policy.dir("tmp"), Reserve::Ignore)?;
    staged.write(&[Bytes::from(text)])?;
    staged.publish(&objects, &status_name(kind), just_link)?;
    Ok(())
}

/// Objects of a partition.
pub(crate) fn objects(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<Vec<ObjectHash>, DiskError> {
    let mut hashes = Vec::new();
    for suffix in list_suffixes(disk, policy, partition)? {
        hashes.extend(list_hashes(disk, policy, partition, &suffix)?);
    }
    Ok(hashes)
}

/// Opens an object according to `options`, and quarantines a broken one. The suffix of a tombstone
/// older than the reclaim age is rehashed, which removes it.
pub(crate) fn audit(
    disk: &Disk,
    engine: &DiskFileEngine,
    policy: PolicyIndex,
    partition: u32,
    hash: ObjectHash,
    options: &OpenOptions,
) -> Result<Audited, DiskError> {
    match engine.open_hash(disk, policy, partition, hash, options) {
        Ok((key, open)) => Ok(Audited::Object(key, Box::new(open))),
        Err(DiskError::Quarantined(reason)) => Ok(Audited::Quarantined(reason)),
        Err(DiskError::Deleted { timestamp }) => {
            let age = engine.config().reclaim_age;
            if is_older_than(disk.now(), timestamp.secs() as i64, age) {
                invalidate(disk, &partition_dir(policy, partition), &hash.suffix())?;
            }
            Ok(Audited::Nothing)
        }
        Err(DiskError::NotExist | DiskError::Expired(_) | DiskError::StateChanged) => {
            Ok(Audited::Nothing)
        }
        Err(error) => Err(error),
    }
}

/// Quarantines an object that is in this state; false if it has changed.
pub(crate) fn quarantine_unchanged(
    disk: &Disk,
    object: ObjectId,
    state: &ObjectState,
    reason: &str,
) -> Result<bool, DiskError> {
    let place = HashDir {
        policy: object.at.policy,
        partition: object.at.partition,
        hash: object.hash,
    };
    place.quarantine(disk, reason, || {
        Ok(match object_state(disk, object)? == *state {
            true => QuarantineExtent::Whole,
            false => QuarantineExtent::Nothing,
        })
    })
}

/// State of an object: its files.
pub(crate) fn object_state(disk: &Disk, object: ObjectId) -> Result<ObjectState, DiskError> {
    let dir = hash_dir(object.at.policy, object.at.partition, object.hash);
    Ok(state_of(&names_of(disk, &dir)?))
}

/// Removes temporary files of interrupted rsync runs beside an object: `.<name>.<six letters or
/// digits>`.
pub(crate) fn remove_rsync_temporary(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
    hash: ObjectHash,
    age: Duration,
) -> Result<(), DiskError> {
    let dir = hash_dir(policy, partition, hash);
    let names = match list(disk, &dir) {
        Err(DiskError::NotExist) => return Ok(()),
        other => other?,
    };
    let mut names = names.into_iter().filter(|name| is_rsync_temporary(name));
    names.try_for_each(|name| {
        let error = |errno| DiskError::from_errno("unlink", format!("{dir}/{name}"), errno);
        let fd = match open_dir(disk, &dir) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(error(errno)),
        };
        let stat = rustix::fs::statat(&fd, &*name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| is_older_than(disk.now(), stat.st_mtime, age)) {
            remove_file(fd.as_fd(), &name).map_err(error)?;
        }
        Ok(())
    })
}

fn is_rsync_temporary(name: &str) -> bool {
    let parts = name
        .strip_prefix('.')
        .and_then(|rest| rest.rsplit_once('.'));
    parts.is_some_and(|(stem, random)| {
        let is_file = [".data", ".meta", ".ts"]
            .iter()
            .any(|end| stem.ends_with(end));
        is_file && random.len() == 6 && random.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::device_pool::{Devices, DevicesConfig};
    use crate::diskfile::DiskFileConfig;
    use crate::diskfile::suffix_hashes::{check_suffix, get_hashes, settled_hashes};
    use crate::engine::PartitionKey;
    use crate::replication::remove_unchanged;
    use cairn_types::{HashPath, PolicySet};

    /// Creates the device `d` in a folder.
    fn disk_in(root: &std::path::Path) -> Disk {
        std::fs::create_dir_all(root.join("d")).unwrap();
        let mut config = DevicesConfig::new(root);
        config.mount_check = false;
        Devices::new(config).get("d").unwrap().disk().unwrap()
    }

    #[test]
    fn rsync_temporary_files() {
        for (name, expected) in [
            (".1402444821.43589.data.a1B2c3", true),
            (".1402444821.43589.ts.a1B2c3", true),
            (".1402444821.43589.data.a1B2c", false),
            ("1402444821.43589.data", false),
            (".lock", false),
        ] {
            assert_eq!(is_rsync_temporary(name), expected, "{name}");
        }
    }

    #[test]
    fn what_has_changed_is_neither_removed_nor_moved() {
        let root = tempfile::tempdir().unwrap();
        let disk = disk_in(root.path());
        let (policy, partition) = (PolicyIndex(0), 7);
        let put = |hash: ObjectHash, name: &str| {
            let dir = root
                .path()
                .join("d")
                .join(hash_dir(policy, partition, hash));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(name), "x").unwrap();
        };
        let id = |hash| PartitionKey::new(policy, partition).object(hash);
        let of = |hash| object_state(&disk, id(hash)).unwrap();
        let remove = |hash, state: &ObjectState| remove_unchanged(&disk, id(hash), state).unwrap();
        let quarantine =
            |hash, state: &ObjectState| quarantine_unchanged(&disk, id(hash), state, "test");
        let (one, other) = (ObjectHash([1; 16]), ObjectHash([2; 16]));
        for hash in [one, other] {
            put(hash, "0000000001.00000.data");
        }
        let seen = of(one);
        put(one, "0000000002.00000.meta");
        assert!(!remove(one, &seen));
        assert!(!quarantine(one, &seen).unwrap());
        assert_ne!(of(one), seen);
        assert!(remove(one, &of(one)));
        assert!(quarantine(other, &seen).unwrap());
        let nothing = state_of(&[]);
        assert!(of(one) == nothing && of(other) == nothing);
        let aside = root.path().join("d/quarantined/objects");
        assert_eq!(std::fs::read_dir(aside).unwrap().count(), 1);
    }

    #[test]
    fn a_suffix_that_changed_unnoted_is_hashed_again() {
        let root = tempfile::tempdir().unwrap();
        let disk = disk_in(root.path());
        let engine = DiskFileEngine::new(
            HashPath::new("", "test"),
            &PolicySet::single(),
            DiskFileConfig::default(),
        );
        let (policy, hash) = (PolicyIndex(0), ObjectHash([1; 16]));
        let dir = root.path().join("d").join(hash_dir(policy, 7, hash));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("0000000001.00000.data"), "x").unwrap();
        let hashes = || get_hashes(&disk, &engine, policy, 7, &[], true).unwrap();
        let before = hashes().hashes;
        let check = || {
            let settled = settled_hashes(&disk, policy, 7).unwrap();
            let changed = settled.iter().map(|(suffix, hash)| {
                check_suffix(&disk, &engine, policy, 7, suffix, hash).unwrap()
            });
            changed.collect::<Vec<_>>()
        };
        assert_eq!(check(), [false]);
        // A power cut during a write can leave the name without the note.
        std::fs::write(dir.join("0000000002.00000.data"), "y").unwrap();
        assert_eq!(hashes().hashes, before);
        assert_eq!(check(), [true]);
        // A second check finds it noted.
        assert!(check().is_empty());
        assert_ne!(hashes().hashes, before);
        assert_eq!(check(), [false]);
    }

    #[test]
    fn a_torn_note_hides_no_suffix() {
        let root = tempfile::tempdir().unwrap();
        let disk = disk_in(root.path());
        let engine = DiskFileEngine::new(
            HashPath::new("", "test"),
            &PolicySet::single(),
            DiskFileConfig::default(),
        );
        let policy = PolicyIndex(0);
        let put = |hash, name: &str| {
            let dir = root.path().join("d").join(hash_dir(policy, 7, hash));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(name), "x").unwrap();
        };
        let (one, other) = (ObjectHash([1; 16]), ObjectHash([2; 16]));
        put(one, "0000000001.00000.data");
        put(other, "0000000001.00000.data");
        let hashes = || get_hashes(&disk, &engine, policy, 7, &[], false).unwrap();
        let invalid = root.path().join("d/objects/7/hashes.invalid");
        let mut before = get_hashes(&disk, &engine, policy, 7, &[], true)
            .unwrap()
            .hashes;
        // Only part of the first note is on disk; the second follows it.
        for (at, noted) in ["10202\n", "1", "\0\x00202\n"].iter().enumerate() {
            put(one, &format!("{:010}.00000.data", 2 + at));
            put(other, &format!("{:010}.00000.data", 2 + at));
            std::fs::write(&invalid, noted).unwrap();
            assert!(settled_hashes(&disk, policy, 7).unwrap().is_empty());
            let after = hashes().hashes;
            for (suffix, hash) in &before {
                assert_ne!(after.get(suffix), Some(hash), "{suffix} after {noted:?}");
            }
            assert_eq!(after.len(), 2);
            assert_eq!(hashes().hashed, 0, "hashed for good");
            before = after;
        }
    }

    #[test]
    fn a_walk_goes_on_where_the_last_one_ended() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("d/objects/3")).unwrap();
        std::fs::create_dir_all(root.path().join("d/objects/12")).unwrap();
        let disk = disk_in(root.path());
        let policy = PolicyIndex(0);
        let to_do = || partitions_to_do(&disk, policy, "ALL").unwrap();
        assert_eq!(to_do(), [3, 12]);
        write_status(&disk, policy, "ALL", &[12]).unwrap();
        assert_eq!(to_do(), [12]);
        assert_eq!(partitions_to_do(&disk, policy, "ZBF").unwrap(), [3, 12]);
        write_status(&disk, policy, "ALL", &[]).unwrap();
        assert_eq!(to_do(), [3, 12]);
        let path = root.path().join("d/objects/auditor_status_ALL.json");
        std::fs::write(path, "{\"partitions\": [\"12\", \"3\"]}").unwrap();
        assert_eq!(to_do(), [12, 3]);
        assert_eq!(parse_status(b"noise"), None);
    }
}
