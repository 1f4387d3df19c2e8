//! Recon cache: files by which daemons report to monitoring, one line of JSON each under
//! `recon_cache_path`, shown by `/recon/…` and also written by Swift's daemons.
//!
//! Writers take the file's lock (flock), merge their entries into its content and replace the file.
//! The merge is Swift's: an empty dictionary removes its key; a dictionary is merged one level
//! deep, with empty dictionaries in it removing theirs; anything else replaces.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cairn_http::own_thread;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Map, Value};
use thiserror::Error;
use tracing::{debug, warn};

/// Default folder of Swift.
pub const DEFAULT_RECON_CACHE_PATH: &str = "/var/cache/swift";
pub const OBJECT_RECON_FILE: &str = "object.recon";
pub const CONTAINER_RECON_FILE: &str = "container.recon";
pub const ACCOUNT_RECON_FILE: &str = "account.recon";

const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum size of a recon file.
const FILE_MAX_BYTES: u64 = 16 << 20;

/// Reasons why a recon file was not written.
#[derive(Debug, Error)]
pub enum ReconCacheError {
    #[error("{}: locked by somebody else for {LOCK_TIMEOUT:?}", .0.display())]
    Locked(PathBuf),
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl ReconCacheError {
    fn is_not_found(&self) -> bool {
        matches!(self, ReconCacheError::Io { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}

/// One recon file. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconCache {
    path: PathBuf,
}

impl ReconCache {
    /// `folder` is the conf's `recon_cache_path`; `file` is [`OBJECT_RECON_FILE`] or the like.
    pub fn new(folder: impl AsRef<Path>, file: &str) -> Self {
        ReconCache {
            path: folder.as_ref().join(file),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file; empty if it is missing or invalid. Blocks.
    pub fn read(&self) -> Map<String, Value> {
        File::open(&self.path).map_or_else(|_| Map::new(), parse)
    }

    /// Merges `entries` into the file on a blocking thread. A failure is only logged: monitoring
    /// must not stop a daemon.
    pub async fn update(&self, entries: Map<String, Value>) {
        let cache = self.clone();
        let written = own_thread::blocking(move || cache.merge(&entries)).await;
        match written {
            // The folder does not exist, so these files are not wanted.
            Some(Err(error)) if error.is_not_found() => debug!(%error, "no recon cache"),
            Some(Err(error)) => warn!(%error, "recon cache not written"),
            Some(Ok(())) | None => {}
        }
    }

    /// As [`ReconCache::update`], on this thread. Blocks.
    ///
    /// # Errors
    /// `Locked` if another process holds the lock too long, `Io` if the file cannot be opened or
    /// replaced.
    pub fn merge(&self, entries: &Map<String, Value>) -> Result<(), ReconCacheError> {
        let io = |source| ReconCacheError::Io {
            path: self.path.clone(),
            source,
        };
        let locked = self.lock()?;
        let mut all = parse(&locked);
        for (key, value) in entries {
            merge_entry(&mut all, key, value);
        }
        let unique = format!("{}.{:?}", std::process::id(), thread::current().id());
        let staged = self.path.with_extension(format!("recon.{unique}"));
        let mut options = private();
        let created = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&staged);
        let written = created.and_then(|mut file| {
            let line = format!("{}\n", Value::Object(all));
            file.write_all(line.as_bytes())?;
            std::fs::rename(&staged, &self.path)
        });
        written.map_err(|error| {
            let _ = std::fs::remove_file(&staged);
            io(error)
        })
    }

    /// Opens and locks the file; retries if the previous holder of the lock replaced it.
    fn lock(&self) -> Result<File, ReconCacheError> {
        let io = |source| ReconCacheError::Io {
            path: self.path.clone(),
            source,
        };
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let mut options = private();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.open(&self.path).map_err(io)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let own = file.metadata().map_err(io)?;
                    let is_current = std::fs::metadata(&self.path)
                        .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
                    if is_current {
                        return Ok(file);
                    }
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(io(errno.into())),
            }
            if Instant::now() >= deadline {
                return Err(ReconCacheError::Locked(self.path.clone()));
            }
            thread::sleep(LOCK_RETRY_INTERVAL);
        }
    }
}

fn parse(file: impl Read) -> Map<String, Value> {
    let mut text = String::new();
    let read = file.take(FILE_MAX_BYTES).read_to_string(&mut text);
    let first = text.lines().next().unwrap_or("");
    match read.map(|_| serde_json::from_str(first)) {
        Ok(Ok(Value::Object(entries))) => entries,
        _ => Map::new(),
    }
}

fn merge_entry(all: &mut Map<String, Value>, key: &str, value: &Value) {
    let Value::Object(items) = value else {
        all.insert(key.to_owned(), value.clone());
        return;
    };
    if items.is_empty() {
        all.remove(key);
        return;
    }
    let entry = all.entry(key).or_insert(Value::Null);
    if !entry.is_object() {
        *entry = Value::Object(Map::new());
    }
    let Value::Object(entry) = entry else {
        return;
    };
    for (name, item) in items {
        if item.as_object().is_some_and(Map::is_empty) {
            entry.remove(name);
        } else {
            entry.insert(name.clone(), item.clone());
        }
    }
}

/// Files are made for their user alone, as Swift's daemons make them.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merge(cache: &ReconCache, entries: Value) {
        cache.merge(entries.as_object().unwrap()).unwrap();
    }

    #[test]
    fn merged_as_upstream() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ReconCache::new(folder.path(), OBJECT_RECON_FILE);
        assert!(cache.read().is_empty());
        merge(
            &cache,
            json!({"a": 1, "disks": {"sda": {"x": 1}, "sdb": {"x": 2}}}),
        );
        merge(&cache, json!({"b": [2.5], "disks": {"sda": {}, "sdc": 3}}));
        let expected = json!({"a": 1, "b": [2.5], "disks": {"sdb": {"x": 2}, "sdc": 3}});
        assert_eq!(Value::Object(cache.read()), expected);
        merge(&cache, json!({"disks": {}, "a": {"now": "nested"}}));
        let expected = json!({"a": {"now": "nested"}, "b": [2.5]});
        assert_eq!(Value::Object(cache.read()), expected);
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 1, "nothing is left beside the file");
        let mode = std::fs::metadata(cache.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    }

    #[test]
    fn noise_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ReconCache::new(folder.path(), OBJECT_RECON_FILE);
        std::fs::write(cache.path(), "not json\n").unwrap();
        merge(&cache, json!({"a": 1}));
        assert_eq!(Value::Object(cache.read()), json!({"a": 1}));
    }

    #[test]
    fn writers_do_not_lose_each_others_entries() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ReconCache::new(folder.path(), OBJECT_RECON_FILE);
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let cache = cache.clone();
                scope.spawn(move || merge(&cache, json!({ format!("w{writer}"): writer })));
            }
        });
        assert_eq!(cache.read().len(), 8);
    }
}
