//! What the directories and attributes of hot objects said when they were read last, so that a hot
//! object's directory is not listed and its metadata not parsed again on every read.
//!
//! A directory is known by its inode and its times: a file that comes to it or goes from it moves
//! them, and so asks for a new look; so does a change of the file's attributes move the file's.
//! Times move in ticks of some milliseconds: what changed just now is not noted, as it may change
//! once more in the same tick.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairn_types::Timestamp;

use crate::layout::FileEntry;
use crate::metadata::Metadata;
use crate::recent::FileIdentity;

const SHARDS: usize = 16;
/// Entries of one shard; a full shard starts anew.
const SHARD_ENTRIES: usize = 1024;
/// Names and values of an object that is noted, in bytes. Mostly it is a tenth of that.
const METADATA_MAX: usize = 4096;
/// Seconds without a change.
const SETTLED_SECS: i64 = 2;

/// An object with one file, as it was.
#[derive(Debug)]
pub(crate) struct KnownObject {
    pub(crate) data: FileEntry,
    pub(crate) file: FileIdentity,
    pub(crate) metadata: Metadata,
    pub(crate) data_timestamp: Timestamp,
}

type Shard = HashMap<FileIdentity, Arc<KnownObject>>;

/// Those of all devices, by directory.
#[derive(Debug)]
pub(crate) struct KnownObjects {
    shards: [Mutex<Shard>; SHARDS],
}

impl KnownObjects {
    pub(crate) fn new() -> Self {
        KnownObjects {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    pub(crate) fn get(&self, dir: &FileIdentity) -> Option<Arc<KnownObject>> {
        self.shard(dir).get(dir).cloned()
    }

    /// `dir`: as it was before it was listed. `now` in seconds since 1970.
    pub(crate) fn insert(&self, dir: FileIdentity, object: KnownObject, now: i64) {
        let settled = |file: &FileIdentity| file.last_change() + SETTLED_SECS < now;
        let size = object.metadata.iter().map(|(n, v)| n.len() + v.len());
        if !settled(&dir) || !settled(&object.file) || size.sum::<usize>() > METADATA_MAX {
            return;
        }
        let mut shard = self.shard(&dir);
        if shard.len() >= SHARD_ENTRIES {
            shard.clear();
        }
        shard.insert(dir, Arc::new(object));
    }

    pub(crate) fn forget(&self, dir: &FileIdentity) {
        self.shard(dir).remove(dir);
    }

    fn shard(&self, dir: &FileIdentity) -> MutexGuard<'_, Shard> {
        let shard = self.shards[dir.inode() as usize % SHARDS].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }
}
