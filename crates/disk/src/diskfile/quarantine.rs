//! Quarantine of broken objects: they are moved to `quarantined/objects[-N]/<hash>`.
//!
//! A valid object may replace a broken one between its detection and the move. So the detector
//! passes a predicate that identifies the broken state; it is evaluated under the partition's lock,
//! which covers every creation of a name, and anything else stays.

use std::os::fd::AsFd;

use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, PolicyIndex};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::open::list_entries;
use crate::device_pool::Disk;
use crate::diskfile::suffix_hashes::note_durably;
use crate::engine::{ObjectKey, Suspect};
use crate::error::{DiskError, LIST};
use crate::file_ops::unique;
use crate::layout::{FileEntry, FileKind, hash_dir, partition_dir};
use crate::partition_lock::PartitionLock;
use crate::staged_file::{move_aside, open_dir};

/// Key of a hash directory.
#[derive(Clone, Copy)]
pub(crate) struct HashDir {
    pub(crate) policy: PolicyIndex,
    pub(crate) partition: u32,
    pub(crate) hash: ObjectHash,
}

/// Extent of a quarantine.
pub(crate) enum QuarantineExtent {
    Nothing,
    Whole,
    File(String),
}

impl HashDir {
    pub(crate) fn of(key: &ObjectKey) -> Self {
        HashDir {
            policy: key.policy,
            partition: key.partition,
            hash: key.hash,
        }
    }

    /// Quarantines the extent that `look` returns, called under the partition's lock. False if
    /// nothing.
    pub(crate) fn quarantine(
        self,
        disk: &Disk,
        reason: &str,
        look: impl Fn() -> Result<QuarantineExtent, DiskError>,
    ) -> Result<bool, DiskError> {
        if Plant::NoQuarantine.is_on() {
            return Ok(true);
        }
        // Do not begin what cannot be made durable.
        disk.may_write()?;
        disk.with_room(|| self.try_quarantine(disk, reason, &look))
    }

    fn try_quarantine(
        self,
        disk: &Disk,
        reason: &str,
        look: &impl Fn() -> Result<QuarantineExtent, DiskError>,
    ) -> Result<bool, DiskError> {
        let dir = hash_dir(self.policy, self.partition, self.hash);
        let mut to = format!(
            "quarantined/{}/{}",
            self.policy.dir("objects"),
            self.hash.hex()
        );
        let partition = partition_dir(self.policy, self.partition);
        match open_dir(disk, &partition) {
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::NOTDIR) => return move_no_directory(disk, &partition, reason),
            _ => {}
        }
        let _lock = PartitionLock::acquire(disk, &partition)?;
        let suffix = format!("{partition}/{}", self.hash.suffix());
        if matches!(open_dir(disk, &suffix), Err(Errno::NOTDIR)) {
            return move_no_directory(disk, &suffix, reason);
        }
        let from = match look()? {
            QuarantineExtent::Nothing if !Plant::QuarantineUnasked.is_on() => return Ok(false),
            QuarantineExtent::Nothing | QuarantineExtent::Whole => dir,
            QuarantineExtent::File(name) => {
                to = format!("{to}-{}/{name}", unique());
                format!("{dir}/{name}")
            }
        };
        // Durable before the move: a power cut between the two would otherwise leave a hash that
        // claims the object, and other replicas would rely on it for ever.
        note_durably(disk, &partition, &[self.hash.suffix()])?;
        let to = match move_aside(disk, &from, &to) {
            Ok(to) => to,
            // A program without the lock moved it first.
            Err(DiskError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        tracing::warn!(device = disk.name(), from, to, reason, "quarantined object");
        Ok(true)
    }

    /// Extent of a quarantine for a file whose content is broken.
    pub(crate) fn with_suspect(
        self,
        disk: &Disk,
        suspect: &Suspect,
    ) -> Result<QuarantineExtent, DiskError> {
        let dir = hash_dir(self.policy, self.partition, self.hash);
        let error = |errno| DiskError::from_errno(LIST, &*dir, errno);
        let fd = match open_dir(disk, &dir) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(QuarantineExtent::Nothing),
            Err(errno) => return Err(error(errno)),
        };
        let entries = list_entries(fd.as_fd()).map_err(error)?.entries;
        let is_suspect = |entry: &&FileEntry| match suspect {
            Suspect::At { place, number } => {
                let stat = rustix::fs::statat(&fd, &*entry.name, AtFlags::SYMLINK_NOFOLLOW);
                stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (*place, *number))
            }
            Suspect::Data {
                timestamp,
                fragment,
            } => {
                is_content(entry)
                    && entry.timestamp == *timestamp
                    && fragment_of(entry) == *fragment
            }
        };
        let Some(suspect) = entries.iter().find(is_suspect) else {
            return Ok(QuarantineExtent::Nothing);
        };
        let mut others = entries.iter().filter(|entry| entry.name != suspect.name);
        Ok(match suspect.kind {
            // Other fragments are not affected.
            FileKind::Fragment { .. } if others.any(is_content) => {
                QuarantineExtent::File(suspect.name.clone())
            }
            // It is obsolete, and about to be removed.
            FileKind::Data if others.any(|other| outdates(other, suspect)) => {
                QuarantineExtent::Nothing
            }
            _ => QuarantineExtent::Whole,
        })
    }
}

/// Quarantines a file that a damaged file system has in place of a directory of many objects.
fn move_no_directory(disk: &Disk, from: &str, reason: &str) -> Result<bool, DiskError> {
    let name = from.replace('/', "-");
    let to = format!("quarantined/no-directory/{name}-{}", unique());
    let to = move_aside(disk, from, &to)?;
    tracing::warn!(
        device = disk.name(),
        from,
        to,
        reason,
        "quarantined what is no directory"
    );
    Ok(true)
}

fn is_content(entry: &FileEntry) -> bool {
    matches!(entry.kind, FileKind::Data | FileKind::Fragment { .. })
}

fn fragment_of(entry: &FileEntry) -> Option<u32> {
    match entry.kind {
        FileKind::Fragment { index, .. } => Some(index),
        _ => None,
    }
}

fn outdates(entry: &FileEntry, data: &FileEntry) -> bool {
    let replaces = is_content(entry) || entry.kind == FileKind::Tombstone;
    replaces && entry.timestamp > data.timestamp
}
