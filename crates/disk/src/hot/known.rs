//! Cache of hot objects' directories and metadata, so that a read need not list the directory nor
//! parse the metadata again.
//!
//! The key is a directory's inode and times: adding or removing a file changes these, and a change
//! of a file's attributes those of the file; either misses the cache. Times advance in ticks of
//! some milliseconds, so recent changes are not cached: another change could fall into the same
//! tick.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_types::Timestamp;
use cairn_types::heuristic::Heuristic;
use parking_lot::{Mutex, MutexGuard};

use super::FileIdentity;
use crate::layout::FileEntry;
use crate::metadata::Metadata;

const SHARDS: usize = 16;
/// Maximum entries of a shard; a full shard is cleared.
const SHARD_ENTRIES_MAX: usize = 1024;
/// Maximum total of names and values of a cached object, in bytes; typically a tenth of that.
const METADATA_MAX_BYTES: usize = 4096;
/// Seconds without a change before an object is cached.
const SETTLED_SECS: i64 = 2;

/// A cached object with a single file.
#[derive(Debug)]
pub(crate) struct KnownObject {
    pub(crate) data: FileEntry,
    pub(crate) file: FileIdentity,
    pub(crate) metadata: Metadata,
    pub(crate) data_timestamp: Timestamp,
}

type Shard = HashMap<FileIdentity, Arc<KnownObject>>;

/// Cache for all devices, by directory.
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

    /// Adds an object; `dir` is the directory's identity before it was listed, `now` in seconds
    /// since 1970.
    pub(crate) fn insert(&self, dir: FileIdentity, object: KnownObject, now: i64) {
        let settled = |file: &FileIdentity| file.last_change() + SETTLED_SECS < now;
        let size = object.metadata.iter().map(|(n, v)| n.len() + v.len());
        if Heuristic::KnownObject.is_off() {
            return;
        }
        if !settled(&dir) || !settled(&object.file) || size.sum::<usize>() > METADATA_MAX_BYTES {
            return;
        }
        let mut shard = self.shard(&dir);
        if shard.len() >= SHARD_ENTRIES_MAX {
            shard.clear();
        }
        shard.insert(dir, Arc::new(object));
    }

    pub(crate) fn forget(&self, dir: &FileIdentity) {
        self.shard(dir).remove(dir);
    }

    fn shard(&self, dir: &FileIdentity) -> MutexGuard<'_, Shard> {
        self.shards[dir.inode() as usize % SHARDS].lock()
    }
}
