//! Relinking of Swift's layout when a ring's partitions double: each object changes its partition
//! but not its device, so its files get a second name (a hard link) in the new partition before the
//! ring changes, and lose the old one after.
//!
//! A name is removed only once the other is durable: the caller syncs in between, once for many.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use cairn_device::sync_all;
use cairn_types::PolicyIndex;
use rustix::io::Errno;

use crate::device_pool::Disk;
use crate::diskfile::DiskFileEngine;
use crate::diskfile::suffix_hashes::{invalidating_durably, note_durably};
use crate::engine::{Collision, Move, OldNames, Relinked};
use crate::error::DiskError;
use crate::layout::{FileEntry, choose_files, hash_dir, partition_dir};
use crate::partition_lock::PartitionLock;
use crate::replication::{OBJECTS_PER_LOCK_MAX, list_suffixes, names_of};
use crate::staged_file::{self, Linked, move_aside, open_dir, remove_dir, remove_file};

/// Files of a partition that are not objects'; the locks last.
const PARTITION_FILES: [&str; 4] = ["hashes.pkl", "hashes.invalid", ".lock", ".lock-replication"];

fn old_dir(object: &Move) -> String {
    hash_dir(object.policy, object.from, object.hash)
}

fn new_dir(object: &Move) -> String {
    hash_dir(object.policy, object.to, object.hash)
}

/// Links the valid files of objects into their new partitions; one result per object.
pub(crate) fn link(
    disk: &Disk,
    engine: &DiskFileEngine,
    objects: &[Move],
    collision: Collision,
) -> Result<Vec<Relinked>, DiskError> {
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, object) in objects.iter().enumerate() {
        // New partition first, so that the old one is never the cleaner of the two.
        engine.clean_up(disk, object.policy, object.to, object.hash)?;
        engine.clean_up(disk, object.policy, object.from, object.hash)?;
        if !names_of(disk, &old_dir(object))?.is_empty() {
            let place = partition_dir(object.policy, object.to);
            places.entry(place).or_default().push(number);
        }
    }
    let mut done = vec![Relinked::default(); objects.len()];
    for (place, numbers) in places {
        for numbers in numbers.chunks(OBJECTS_PER_LOCK_MAX) {
            let here: Vec<&Move> = numbers.iter().map(|n| &objects[*n]).collect();
            let linked = link_into(disk, &place, &here, collision)?;
            for (number, linked) in numbers.iter().zip(linked) {
                done[*number] = linked;
            }
        }
    }
    for (object, done) in objects.iter().zip(&done) {
        if done.linked > 0 {
            engine.clean_up(disk, object.policy, object.to, object.hash)?;
        }
    }
    Ok(done)
}

/// Links objects of one new partition. Suffixes are invalidated durably first: a link that outlives
/// a power cut without its note would never be hashed, nor linked again.
fn link_into(
    disk: &Disk,
    partition: &str,
    objects: &[&Move],
    collision: Collision,
) -> Result<Vec<Relinked>, DiskError> {
    let _lock = PartitionLock::acquire(disk, partition)?;
    let mut counting = Vec::new();
    let mut suffixes = Vec::new();
    for object in objects {
        let old = names_of(disk, &old_dir(object))?;
        let new = names_of(disk, &new_dir(object))?;
        let names = valid_names(&old, &new);
        if names.iter().any(|name| !new.contains(name)) {
            suffixes.push(object.hash.suffix());
        }
        counting.push((old, names));
    }
    note_durably(disk, partition, &suffixes)?;
    let linked = objects.iter().zip(counting);
    let linked = linked.map(|(object, (old, names))| {
        let mut done = link_files(disk, object, &names, collision);
        if done.errors == 0 {
            done.superfluous = OldNames(old);
        }
        done
    });
    Ok(linked.collect())
}

/// Old names that are valid beside the new ones.
fn valid_names(old: &[String], new: &[String]) -> Vec<String> {
    let all: BTreeSet<&String> = old.iter().chain(new).collect();
    let files = choose_files(all.iter().filter_map(|name| FileEntry::parse(name)));
    let obsolete: BTreeSet<&str> = files.obsolete.iter().map(|e| e.name.as_str()).collect();
    let counting = old.iter().filter(|name| !obsolete.contains(name.as_str()));
    counting.cloned().collect()
}

fn link_files(disk: &Disk, object: &Move, names: &[String], collision: Collision) -> Relinked {
    let mut done = Relinked::default();
    for name in names {
        done.files += 1;
        match link_file(disk, object, name, collision) {
            Ok(Linked::Made) => done.linked += 1,
            Ok(_) => {}
            Err(error) => {
                done.errors += 1;
                let (from, to) = (old_dir(object), new_dir(object));
                tracing::error!(device = disk.name(), from, to, name, %error, "not relinked");
            }
        }
    }
    done
}

fn link_file(
    disk: &Disk,
    object: &Move,
    name: &str,
    collision: Collision,
) -> Result<Linked, DiskError> {
    let (from, to) = (old_dir(object), new_dir(object));
    let linked = staged_file::link_file(disk, &from, &to, name)?;
    // Tombstones with one timestamp are equivalent.
    if linked != Linked::Other || name.ends_with(".ts") || collision == Collision::KeepNew {
        return Ok(linked);
    }
    let different = || DiskError::from_errno("link", format!("{to}/{name}"), Errno::EXIST);
    if collision == Collision::Refuse {
        return Err(different());
    }
    let aside = format!(
        "quarantined/{}/{}",
        object.policy.dir("objects"),
        object.hash.hex()
    );
    let aside = move_aside(disk, &to, &aside)?;
    tracing::warn!(
        device = disk.name(),
        to,
        aside,
        "quarantined in an old object's way"
    );
    match staged_file::link_file(disk, &from, &to, name)? {
        Linked::Other => Err(different()),
        linked => Ok(linked),
    }
}

/// Makes the links durable; to be called before [`unlink`].
pub(crate) fn sync(disk: &Disk) -> Result<(), DiskError> {
    if disk.config().unsafe_no_fsync {
        return Ok(());
    }
    // One syncfs is not enough: without a journal ext4 writes the names after flushing the disk.
    sync_all(disk.fd()).map_err(|errno| DiskError::from_errno("sync", "", errno))
}

/// Removes old names returned by [`link`], of objects in one partition. Returns their number.
pub(crate) fn unlink(disk: &Disk, objects: &[(Move, OldNames)]) -> Result<usize, DiskError> {
    let mut removed = 0;
    for together in objects.chunks(OBJECTS_PER_LOCK_MAX) {
        let Some((first, _)) = together.first() else {
            break;
        };
        let partition = partition_dir(first.policy, first.from);
        let suffixes = together.iter().map(|(object, _)| object.hash.suffix());
        let suffixes: Vec<String> = suffixes.collect();
        let _lock = invalidating_durably(disk, &partition, &suffixes)?;
        for ((object, names), suffix) in together.iter().zip(&suffixes) {
            removed += unlink_one(disk, object, &names.0)?;
            remove_dir(disk, &format!("{partition}/{suffix}"));
        }
    }
    Ok(removed)
}

fn unlink_one(disk: &Disk, object: &Move, names: &[String]) -> Result<usize, DiskError> {
    let dir = old_dir(object);
    let fd = match open_dir(disk, &dir) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(DiskError::from_errno("open", dir, errno)),
    };
    for name in names {
        remove_file(fd.as_fd(), name)
            .map_err(|errno| DiskError::from_errno("unlink", format!("{dir}/{name}"), errno))?;
    }
    remove_dir(disk, &dir);
    Ok(names.len())
}

/// Removes an empty partition; false if it is not empty.
pub(crate) fn remove_empty(
    disk: &Disk,
    policy: PolicyIndex,
    partition: u32,
) -> Result<bool, DiskError> {
    if !list_suffixes(disk, policy, partition)?.is_empty() {
        return Ok(false);
    }
    let dir = partition_dir(policy, partition);
    let Ok(fd) = open_dir(disk, &dir) else {
        return Ok(true);
    };
    let _lock = PartitionLock::acquire(disk, &dir)?;
    for name in PARTITION_FILES {
        remove_file(fd.as_fd(), name)
            .map_err(|errno| DiskError::from_errno("unlink", format!("{dir}/{name}"), errno))?;
    }
    Ok(remove_dir(disk, &dir))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use cairn_types::{HashPath, ObjectHash, PolicySet};

    use super::*;
    use crate::device_pool::{Devices, DevicesConfig};
    use crate::diskfile::DiskFileConfig;
    use crate::machine::Machine;
    use crate::machine::tests::Watching;

    const POLICY: PolicyIndex = PolicyIndex(0);

    fn setup() -> (tempfile::TempDir, Disk, DiskFileEngine) {
        setup_on(None)
    }

    fn setup_on(machine: Option<Arc<dyn Machine>>) -> (tempfile::TempDir, Disk, DiskFileEngine) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        config.machine = machine;
        let disk = Devices::new(config).get("d").unwrap().disk().unwrap();
        let engine = DiskFileEngine::new(
            HashPath::new("", "x"),
            &PolicySet::single(),
            DiskFileConfig::default(),
        );
        (root, disk, engine)
    }

    fn path(root: &Path, object: &Move, partition: u32, name: &str) -> PathBuf {
        let dir = hash_dir(object.policy, partition, object.hash);
        let folder = root.join("d").join(dir);
        fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    fn object() -> Move {
        let hash = ObjectHash([0x81; 16]);
        let from = hash.partition(32 - 4);
        Move::to_power(POLICY, hash, from, 5).unwrap()
    }

    fn one(disk: &Disk, engine: &DiskFileEngine, object: &Move, or: Collision) -> Relinked {
        link(disk, engine, &[*object], or).unwrap().remove(0)
    }

    const DATA: &str = "0000000005.00000.data";
    const META: &str = "0000000007.00000.meta";
    const OLD: &str = "0000000003.00000.data";

    #[test]
    fn linked_then_unlinked() {
        let (root, disk, engine) = setup();
        let object = object();
        assert_eq!((object.from, object.to), (8, 16));
        assert_eq!(Move::to_power(POLICY, object.hash, 16, 5), None);
        for name in [DATA, META] {
            fs::write(path(root.path(), &object, 8, name), name).unwrap();
        }
        let done = one(&disk, &engine, &object, Collision::Refuse);
        assert_eq!((done.files, done.linked, done.errors), (2, 2, 0));
        let done = one(&disk, &engine, &object, Collision::Refuse);
        assert_eq!((done.files, done.linked), (2, 0));
        assert!(!remove_empty(&disk, POLICY, 8).unwrap());
        sync(&disk).unwrap();
        assert_eq!(unlink(&disk, &[(object, done.superfluous)]).unwrap(), 2);
        assert!(remove_empty(&disk, POLICY, 8).unwrap());
        assert!(!root.path().join("d/objects/8").exists());
        let new = path(root.path(), &object, 16, META);
        assert_eq!(fs::read_to_string(new).unwrap(), META);
    }

    /// For links and removals alike: the note survives a power cut in between.
    #[test]
    fn noted_before_anything_moves() {
        let watching = Arc::new(Watching::default());
        let (root, disk, engine) = setup_on(Some(watching.clone()));
        let object = object();
        let (old, new) = (
            path(root.path(), &object, 8, DATA),
            path(root.path(), &object, 16, DATA),
        );
        fs::write(&old, DATA).unwrap();
        *watching.path.lock().unwrap() = new.clone();
        let done = one(&disk, &engine, &object, Collision::Refuse);
        let line = format!("{}\n", object.hash.suffix());
        assert_eq!(*watching.notes.lock().unwrap(), [(line.clone(), false)]);
        assert!(new.exists());
        // Nothing to link, nothing to note.
        one(&disk, &engine, &object, Collision::Refuse);
        assert_eq!(watching.notes.lock().unwrap().len(), 1);
        *watching.path.lock().unwrap() = old.clone();
        unlink(&disk, &[(object, done.superfluous)]).unwrap();
        assert_eq!(watching.notes.lock().unwrap()[1], (line, true));
        assert!(!old.exists());
    }

    #[test]
    fn what_is_newer_in_the_new_partition_counts() {
        let (root, disk, engine) = setup();
        let object = object();
        fs::write(path(root.path(), &object, 8, OLD), "old").unwrap();
        fs::write(path(root.path(), &object, 16, DATA), "new").unwrap();
        let done = one(&disk, &engine, &object, Collision::Refuse);
        assert_eq!((done.files, done.linked), (0, 0));
        assert_eq!(done.superfluous.0, [OLD]);
    }

    #[test]
    fn collisions() {
        let (root, disk, engine) = setup();
        let object = object();
        fs::write(path(root.path(), &object, 8, DATA), "old").unwrap();
        fs::write(path(root.path(), &object, 16, DATA), "new").unwrap();
        let done = one(&disk, &engine, &object, Collision::Refuse);
        assert_eq!((done.errors, done.superfluous.0.len()), (1, 0));
        let done = one(&disk, &engine, &object, Collision::KeepNew);
        assert_eq!((done.errors, done.superfluous.0.len()), (0, 1));
        let done = one(&disk, &engine, &object, Collision::Quarantine);
        assert_eq!((done.errors, done.linked), (0, 1));
        let new = path(root.path(), &object, 16, DATA);
        assert_eq!(fs::read_to_string(new).unwrap(), "old");
        assert!(root.path().join("d/quarantined/objects").exists());
    }
}
