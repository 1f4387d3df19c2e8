//! Disk cache: blocks of objects in files of a local directory, which outlive the mount.
//!
//! The directory is bounded in bytes and files, with LRU replacement by the files' modification
//! times. Each file has one block, its whole key and a checksum, so that a torn or foreign file is a
//! miss and never another object's bytes. Nothing is synced. A failure of the local disk is a miss
//! too: the store has every byte.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use cairn_types::hex;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::Version;
use crate::pieces::Pieces;
use crate::private_dir;
use crate::store::file_id;

/// First bytes of each file; another layout gets another number.
const MAGIC: &[u8; 8] = b"cairnbl1";
/// Magic, length of the key, length of the block, checksum of both.
const HEAD_BYTES: usize = 20;
/// Name of the file whose lock belongs to the mount that uses the directory.
const LOCK_NAME: &str = "lock";
/// Maximum number of files. It bounds the index in memory, and the scan at the start.
const FILES_MAX: usize = 200_000;
/// Unit in which file systems give space to files.
const UNIT_BYTES: u64 = 4096;
/// Requests' worth of blocks that wait for the disk. More than that is not cached.
const PENDING_MAX: usize = 8;
/// Concurrent reads.
const READS_MAX: usize = 16;
/// The modification time is renewed at a use after this time.
const USE_RESOLUTION: Duration = Duration::from_secs(600);
/// Pause of writing after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// First half of the SHA-256 of a block's key; in hex the file's name.
type Print = [u8; 16];

struct Entry {
    bytes: u64,
    used: u64,
    /// The file's modification time needs no renewal until then.
    renew_after: SystemTime,
}

/// The files that are known to be there.
#[derive(Default)]
struct Index {
    entries: HashMap<Print, Entry>,
    by_use: BTreeMap<u64, Print>,
    clock: u64,
    bytes: u64,
    paused_until: Option<Instant>,
}

impl Index {
    fn add(&mut self, print: Print, bytes: u64, modified: SystemTime) {
        self.remove(&print);
        self.clock += 1;
        self.bytes += bytes;
        self.by_use.insert(self.clock, print);
        let entry = Entry {
            bytes,
            used: self.clock,
            renew_after: modified + USE_RESOLUTION,
        };
        self.entries.insert(print, entry);
    }

    fn remove(&mut self, print: &Print) {
        if let Some(entry) = self.entries.remove(print) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    /// Records a use; returns whether the modification time is due.
    fn used(&mut self, print: &Print) -> bool {
        let Some(entry) = self.entries.get_mut(print) else {
            return false;
        };
        self.clock += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.clock;
        self.by_use.insert(self.clock, *print);
        let now = SystemTime::now();
        let is_due = entry.renew_after < now;
        if is_due {
            entry.renew_after = now + USE_RESOLUTION;
        }
        is_due
    }

    /// Takes out the least recently used entries until the rest is within `limit`.
    fn shrink(&mut self, limit: u64) -> Vec<Print> {
        let mut oldest = Vec::new();
        while (self.bytes > limit || self.entries.len() > FILES_MAX)
            && let Some((_, print)) = self.by_use.first_key_value()
        {
            let print = *print;
            self.remove(&print);
            oldest.push(print);
        }
        oldest
    }
}

/// Directory and bounds of a disk cache.
#[derive(Clone, Debug)]
pub(crate) struct DiskOptions {
    pub(crate) dir: PathBuf,
    pub(crate) limit: u64,
    /// URL of the account: a directory may be used for one container after the other.
    pub(crate) account: String,
}

/// A directory of blocks, used by one mount at a time.
pub(crate) struct DiskCache {
    options: DiskOptions,
    block_bytes: u64,
    index: Mutex<Index>,
    pending: Arc<Semaphore>,
    reads: Semaphore,
    _lock: File,
}

impl DiskCache {
    /// Opens a directory, creating it if needed, and removes what is beyond the bounds.
    ///
    /// # Errors
    /// The reason why it cannot be used, as text.
    pub(crate) fn open(options: DiskOptions, block_bytes: u64) -> Result<DiskCache, String> {
        let dir = &options.dir;
        let lock = private_dir::lock(dir, LOCK_NAME).map_err(|error| error.to_string())?;
        let mut index = scan(dir).map_err(|error| error.to_string())?;
        let old = index.shrink(options.limit);
        let cache = DiskCache {
            block_bytes,
            index: Mutex::new(index),
            pending: Arc::new(Semaphore::new(PENDING_MAX)),
            reads: Semaphore::new(READS_MAX),
            _lock: lock,
            options,
        };
        cache.unlink(&old);
        Ok(cache)
    }

    /// The key of a block; `None` if the version does not determine its bytes. A mount's segments
    /// are never rewritten, while another client may write other bytes under the name of its own.
    fn key(&self, version: &Version, block: u64) -> Option<String> {
        let name = &version.name;
        let etag = match version.etag.as_deref() {
            Some("") => return None,
            None if file_id(&name.name).is_none() => return None,
            etag => etag.unwrap_or_default(),
        };
        // No part contains a line break unencoded but the name, which has its length before it.
        Some(format!(
            "{}\n{}\n{etag}\n{}\n{}\n{block}\n{}\n{}",
            self.options.account,
            name.container,
            version.bytes,
            self.block_bytes,
            name.name.len(),
            name.name,
        ))
    }

    fn path(&self, print: &Print) -> PathBuf {
        let name = hex::encode(print);
        self.options.dir.join(&name[..2]).join(&name[2..])
    }

    pub(super) fn has(&self, version: &Version, block: u64) -> bool {
        let key = self.key(version, block);
        key.is_some_and(|key| self.index.lock().entries.contains_key(&print(&key)))
    }

    /// Reads `count` blocks from `first` on; `None` unless all are there and whole.
    pub(super) async fn read(
        self: &Arc<Self>,
        version: &Arc<Version>,
        first: u64,
        count: u64,
    ) -> Option<Pieces> {
        let _turn = self.reads.acquire().await;
        let (cache, version) = (self.clone(), version.clone());
        let read = move || {
            let blocks = (first..first + count).map(|block| cache.read_block(&version, block));
            blocks.collect::<Option<Vec<Bytes>>>().map(Pieces::from)
        };
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    fn read_block(&self, version: &Version, block: u64) -> Option<Bytes> {
        let key = self.key(version, block)?;
        let print = print(&key);
        let path = self.path(&print);
        let is_due = self.index.lock().used(&print);
        let length = self
            .block_bytes
            .min(version.bytes - block * self.block_bytes);
        match read_file(&path, &key, length) {
            Ok(bytes) => {
                if is_due {
                    let file = OpenOptions::new().write(true).open(&path);
                    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
                }
                Some(bytes)
            }
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "a block of the disk cache is dropped");
                self.index.lock().remove(&print);
                let _ = fs::remove_file(path);
                None
            }
        }
    }

    /// Writes `count` blocks from `first` on, in the background; without waiting, and not at all
    /// if the disk is behind.
    pub(super) fn keep(self: &Arc<Self>, version: &Arc<Version>, first: u64, pieces: Arc<Pieces>) {
        let is_paused = |until: Option<Instant>| until.is_some_and(|until| Instant::now() < until);
        if self.key(version, first).is_none() || is_paused(self.index.lock().paused_until) {
            return;
        }
        let Ok(turn) = self.pending.clone().try_acquire_owned() else {
            return;
        };
        let (cache, version) = (self.clone(), version.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = cache.write_blocks(&version, first, &pieces) {
                tracing::warn!(
                    dir = %cache.options.dir.display(), %error,
                    "the disk cache takes no blocks for a minute"
                );
                cache.index.lock().paused_until = Some(Instant::now() + FAILURE_PAUSE);
            }
            // Tests wait for the turn, and then open the directory again.
            drop(cache);
            drop(turn);
        });
    }

    fn write_blocks(&self, version: &Version, first: u64, pieces: &Pieces) -> std::io::Result<()> {
        let count = pieces.len().div_ceil(self.block_bytes);
        for number in 0..count {
            let Some(key) = self.key(version, first + number) else {
                continue;
            };
            let at = number * self.block_bytes;
            let mut block = Vec::new();
            let length = self.block_bytes.min(pieces.len() - at);
            if !pieces.take(at, length, &mut block) {
                continue;
            }
            let print = print(&key);
            let path = self.path(&print);
            write_file(&path, &key, &block)?;
            let old = {
                let mut index = self.index.lock();
                let bytes = (HEAD_BYTES + key.len()) as u64 + length;
                index.add(print, space(bytes), SystemTime::now());
                index.shrink(self.options.limit)
            };
            self.unlink(&old);
        }
        Ok(())
    }

    fn unlink(&self, prints: &[Print]) {
        for print in prints {
            let _ = fs::remove_file(self.path(print));
        }
    }
}

/// Space that a file of this length takes up.
fn space(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT_BYTES)
}

fn print(key: &str) -> Print {
    let mut print = [0; 16];
    print.copy_from_slice(&Sha256::digest(key)[..16]);
    print
}

fn print_of(folder: &str, name: &str) -> Option<Print> {
    let text = format!("{folder}{name}");
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if folder.len() != 2 || text.len() != 32 || !text.bytes().all(is_hex) {
        return None;
    }
    let number = u128::from_str_radix(&text, 16).ok()?;
    Some(number.to_be_bytes())
}

/// The files of a directory, the least recently used first. Whatever is not the cache's stays.
fn scan(dir: &Path) -> std::io::Result<Index> {
    let mut found: Vec<(SystemTime, Print, u64)> = Vec::new();
    for folder in fs::read_dir(dir)? {
        let folder = folder?;
        let name = folder.file_name().to_string_lossy().into_owned();
        if name.len() != 2 || !folder.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path())? {
            let file = file?;
            let file_name = file.file_name().to_string_lossy().into_owned();
            let Some(print) = print_of(&name, &file_name) else {
                continue;
            };
            let metadata = file.metadata()?;
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((modified, print, space(metadata.len())));
        }
    }
    found.sort_unstable();
    let mut index = Index::default();
    for (modified, print, bytes) in found {
        index.add(print, bytes, modified);
    }
    Ok(index)
}

fn checksum<'a>(key: &str, pieces: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    pieces.for_each(|piece| hasher.update(piece));
    hasher.finalize()
}

/// Writes a file in place: until it is whole, its checksum is wrong.
fn write_file(path: &Path, key: &str, block: &[Bytes]) -> std::io::Result<()> {
    let length: usize = block.iter().map(Bytes::len).sum();
    let too_long = |_| std::io::Error::from(ErrorKind::InvalidInput);
    let key_bytes = u32::try_from(key.len()).map_err(too_long)?;
    let block_bytes = u32::try_from(length).map_err(too_long)?;
    let sum = checksum(key, block.iter().map(|piece| &piece[..]));
    let mut head = Vec::with_capacity(HEAD_BYTES + key.len());
    head.extend_from_slice(MAGIC);
    for number in [key_bytes, block_bytes, sum] {
        head.extend_from_slice(&number.to_le_bytes());
    }
    head.extend_from_slice(key.as_bytes());
    let mut options = private_dir::new_file();
    options.create(true).truncate(true);
    let mut file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(folder)?;
            options.open(path)?
        }
        opened => opened?,
    };
    let written = file
        .write_all(&head)
        .and_then(|()| block.iter().try_for_each(|piece| file.write_all(piece)));
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

/// The block of a file, if the file has this key, this length and a correct checksum.
fn read_file(path: &Path, key: &str, length: u64) -> std::io::Result<Bytes> {
    let wrong = |what: &'static str| std::io::Error::new(ErrorKind::InvalidData, what);
    let mut file = File::open(path)?;
    let expected = HEAD_BYTES as u64 + key.len() as u64 + length;
    if file.metadata()?.len() != expected {
        return Err(wrong("another length"));
    }
    let mut all = Vec::with_capacity(expected as usize);
    file.read_to_end(&mut all)?;
    let all = Bytes::from(all);
    if all.len() as u64 != expected || !all.starts_with(MAGIC) {
        return Err(wrong("another form"));
    }
    let (head, rest) = all.split_at(HEAD_BYTES);
    let number = |at: usize| {
        head[at..at + 4]
            .iter()
            .rev()
            .fold(0, |n, b| n << 8 | u32::from(*b))
    };
    if u64::from(number(8)) != key.len() as u64 || u64::from(number(12)) != length {
        return Err(wrong("other lengths"));
    }
    let (found, block) = rest.split_at(key.len());
    if found != key.as_bytes() {
        return Err(wrong("another block"));
    }
    if number(16) != checksum(key, std::iter::once(block)) {
        return Err(wrong("a wrong checksum"));
    }
    Ok(all.slice(HEAD_BYTES + key.len()..))
}

#[cfg(test)]
mod tests;
