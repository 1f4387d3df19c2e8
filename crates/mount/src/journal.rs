//! Journal of closed files on a local disk, for `--close=async`: a close is over when the file's writes
//! are in the journal, and an entry goes when they are on the store.
//!
//! An entry is one file, named by its number. Its first line is `CHECKSUM LENGTH HEAD`: the CRC-32 in
//! hexadecimal digits of everything behind it, the number of those bytes, and [`Head`] in JSON; the
//! written bytes follow. An entry is synced, and its name with it, before the close ends. One process
//! uses a directory at a time, for one container.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::Notify;

use crate::content::{Budget, Chunk, FileSource, Saved};
use crate::extents::Extents;
use crate::private_dir::{self, DirError};
use crate::store::Headers;
use crate::time::Instant;

const FORMAT: u32 = 1;
/// Names the container, and is locked while a process uses the directory.
const LOCK: &str = "container";
const SUFFIX: &str = ".close";
/// Permissions with which others could put files of theirs into the store.
const OTHERS_WRITE: u32 = 0o022;
/// Files in the journal beyond which a close waits for the store.
const FILES_MAX: usize = 4096;
/// Time from a close to the file's commit: programs set times and modes after it, or write it again.
const DELAY: Duration = Duration::from_secs(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Reasons why a directory cannot be used as a journal.
#[derive(Debug, Error)]
pub(crate) enum JournalError {
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("others may write to it (mode {mode:o}): chmod go-w it, or name another directory")]
    Open { mode: u32 },
    #[error("it is the journal of {other}; name another directory")]
    Other { other: String },
}

/// The description of a file in its entry, beside the bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    format: u32,
    pub(crate) path: String,
    /// Commits of the file that contain these writes have the number of this one or a later one.
    pub(crate) token: String,
    /// ETag of the version that was written to; `None` for a new file.
    pub(crate) etag: Option<String>,
    /// Numbers of entries whose writes are in this one too.
    replaces: Vec<u64>,
    pub(crate) headers: Headers,
    pub(crate) has_new_attributes: bool,
    base_bytes: u64,
    size: u64,
    resized: u64,
    appended: Vec<Range<u64>>,
    pieces: Vec<Piece>,
}

/// A written range, of bytes or of zeros.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Piece {
    offset: u64,
    length: u64,
    is_zero: bool,
}

/// Local writes of a file, to be put into the journal.
pub(crate) struct Record {
    pub(crate) path: String,
    pub(crate) token: String,
    pub(crate) etag: Option<String>,
    pub(crate) headers: Headers,
    pub(crate) has_new_attributes: bool,
    pub(crate) saved: Saved,
}

/// An entry that was read.
pub(crate) struct Entry {
    pub(crate) head: Head,
    bytes: Bytes,
}

impl Entry {
    /// The writes, again in memory.
    pub(crate) fn saved(&self, budget: &Arc<Budget>) -> Saved {
        let mut written = Extents::default();
        let mut at = 0;
        for piece in &self.head.pieces {
            let source = match piece.is_zero {
                true => FileSource::Zero,
                false => {
                    let bytes = self.bytes.slice(at..at + piece.length as usize);
                    at += piece.length as usize;
                    let chunk = Chunk::new(bytes, budget);
                    FileSource::Memory { chunk, offset: 0 }
                }
            };
            written.insert(piece.offset, piece.length, source);
        }
        Saved {
            base_bytes: self.head.base_bytes,
            size: self.head.size,
            resized: self.head.resized,
            appended: self.head.appended.clone(),
            written,
        }
    }

    /// Do the writes make the whole file, so that the version before is not needed?
    pub(crate) fn is_whole(&self) -> bool {
        let is_new = self.head.etag.is_none();
        let mut end = 0;
        for piece in &self.head.pieces {
            if piece.offset == end {
                end += piece.length;
            }
        }
        is_new || end == self.head.size
    }
}

/// An entry as its file has it.
pub(crate) enum Reading {
    Whole(Box<Entry>),
    /// The process or the machine ended while it was written: its close had not ended.
    Incomplete,
    Damaged,
}

/// A file with writes in the journal that are not on the store.
struct Pending {
    /// Its entries: the last one has all its writes.
    numbers: Vec<u64>,
    due: Instant,
    tries: u32,
}

#[derive(Default)]
struct Book {
    next: u64,
    /// By the node's number.
    pending: HashMap<u64, Pending>,
    /// Entries to be removed.
    done: Vec<u64>,
    /// A removal may not be on the disk.
    is_unsettled: bool,
}

pub(crate) struct Journal {
    dir: PathBuf,
    /// Locked.
    _lock: File,
    book: Mutex<Book>,
    /// Serialises removals: whoever waits for them waits for all that have begun.
    removing: Mutex<()>,
    wake: Notify,
}

fn sync_names(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(SUFFIX)?.parse().ok()
}

impl Journal {
    /// Opens a directory, which is made if it is not there, as the journal of `container`, a URL.
    /// Returns the numbers of the entries that are in it, oldest first. Blocks.
    pub(crate) fn open(dir: &Path, container: &str) -> Result<(Journal, Vec<u64>), JournalError> {
        let dir = &std::path::absolute(dir)?;
        let new = dir.ancestors().take_while(|above| !above.exists()).count();
        let mut lock = private_dir::lock(dir, LOCK)?;
        let mode = fs::metadata(dir)?.mode() & 0o7777;
        if mode & OTHERS_WRITE != 0 {
            return Err(JournalError::Open { mode });
        }
        // The names of directories that were made now, or just before the machine lost power.
        for above in dir.ancestors().skip(1).take(new.max(1)) {
            sync_names(above)?;
        }
        let mut numbers = Vec::new();
        for entry in fs::read_dir(dir)? {
            numbers.extend(entry?.file_name().to_str().and_then(number_of));
        }
        numbers.sort_unstable();
        let mut other = String::new();
        lock.read_to_string(&mut other)?;
        match other.trim_end() == container {
            true => {}
            false if numbers.is_empty() => {
                lock.set_len(0)?;
                lock.rewind()?;
                lock.write_all(format!("{container}\n").as_bytes())?;
                lock.sync_all()?;
                sync_names(dir)?;
            }
            false => {
                let other = other.trim_end().to_owned();
                return Err(JournalError::Other { other });
            }
        }
        let journal = Journal {
            dir: dir.to_owned(),
            _lock: lock,
            book: Mutex::new(Book {
                next: numbers.last().map_or(1, |last| last + 1),
                ..Book::default()
            }),
            removing: Mutex::default(),
            wake: Notify::new(),
        };
        Ok((journal, numbers))
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:016}{SUFFIX}"))
    }

    /// Has it as many files as it may?
    pub(crate) fn is_full(&self) -> bool {
        self.book.lock().pending.len() >= FILES_MAX
    }

    /// Puts the writes of a node into the journal, durably, in place of those that were there. The
    /// caller keeps others from changing the node. Blocks.
    pub(crate) fn write(&self, ino: u64, record: &Record) -> io::Result<()> {
        let (number, replaces) = {
            let mut book = self.book.lock();
            let number = book.next;
            book.next += 1;
            let pending = book.pending.get(&ino);
            (number, pending.map_or(Vec::new(), |p| p.numbers.clone()))
        };
        let path = self.path(number);
        if let Err(error) = self.write_file(&path, record, replaces) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let mut book = self.book.lock();
        let pending = book.pending.entry(ino).or_insert(Pending {
            numbers: Vec::new(),
            due: Instant::now() + DELAY,
            tries: 0,
        });
        let old = std::mem::replace(&mut pending.numbers, vec![number]);
        book.done.extend(old);
        drop(book);
        self.wake.notify_one();
        Ok(())
    }

    fn write_file(&self, path: &Path, record: &Record, replaces: Vec<u64>) -> io::Result<()> {
        let saved = &record.saved;
        let (mut pieces, mut bodies) = (Vec::new(), Vec::new());
        for (offset, length, source) in saved.written.iter() {
            let bytes = source.bytes(length);
            pieces.push(Piece {
                offset,
                length,
                is_zero: bytes.is_none(),
            });
            bodies.extend(bytes);
        }
        let head = Head {
            format: FORMAT,
            path: record.path.clone(),
            token: record.token.clone(),
            etag: record.etag.clone(),
            replaces,
            headers: record.headers.clone(),
            has_new_attributes: record.has_new_attributes,
            base_bytes: saved.base_bytes,
            size: saved.size,
            resized: saved.resized,
            appended: saved.appended.clone(),
            pieces,
        };
        let mut head = serde_json::to_vec(&head)?;
        head.push(b'\n');
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&head);
        bodies.iter().for_each(|body| hasher.update(body));
        let length = head.len() + bodies.iter().map(Bytes::len).sum::<usize>();
        let mut file = private_dir::new_file().create_new(true).open(path)?;
        let mut lead = format!("{:08x} {length} ", hasher.finalize()).into_bytes();
        lead.append(&mut head);
        file.write_all(&lead)?;
        for body in bodies {
            file.write_all(&body)?;
        }
        file.sync_all()?;
        sync_names(&self.dir)
    }

    /// Reads an entry. Blocks.
    pub(crate) fn read(&self, number: u64) -> io::Result<Reading> {
        let bytes = Bytes::from(fs::read(self.path(number))?);
        Ok(parse(&bytes))
    }

    /// The numbers without those whose writes are in a later one too. Blocks.
    pub(crate) fn latest(&self, numbers: &[u64]) -> io::Result<Vec<u64>> {
        let mut replaced = HashSet::new();
        for number in numbers {
            if let Reading::Whole(entry) = self.read(*number)? {
                replaced.extend(entry.head.replaces);
            }
        }
        let (old, latest): (Vec<u64>, Vec<u64>) =
            numbers.iter().partition(|number| replaced.contains(number));
        self.book.lock().done.extend(old);
        Ok(latest)
    }

    /// Has an entry removed that no node has: its writes are on the store.
    pub(crate) fn forget(&self, number: u64) {
        self.book.lock().done.push(number);
    }

    /// A node has the writes of an entry now.
    pub(crate) fn adopt(&self, ino: u64, number: u64) {
        let pending = Pending {
            numbers: vec![number],
            due: Instant::now() + DELAY,
            tries: 0,
        };
        self.book.lock().pending.insert(ino, pending);
        self.wake.notify_one();
    }

    /// The writes of a node are on the store, or not needed any more.
    pub(crate) fn done(&self, ino: u64) {
        let mut book = self.book.lock();
        if let Some(pending) = book.pending.remove(&ino) {
            book.done.extend(pending.numbers);
            drop(book);
            self.wake.notify_one();
        }
    }

    /// Numbers of nodes with writes in the journal.
    pub(crate) fn pending(&self) -> Vec<u64> {
        let mut nodes: Vec<u64> = self.book.lock().pending.keys().copied().collect();
        nodes.sort_unstable();
        nodes
    }

    /// Waits until nodes are due to be stored, or entries to be removed; returns those nodes.
    pub(crate) async fn due(&self) -> Vec<u64> {
        loop {
            let next = {
                let (book, now) = (self.book.lock(), Instant::now());
                let due = book.pending.iter().filter(|(_, p)| p.due <= now);
                let mut due: Vec<u64> = due.map(|(ino, _)| *ino).collect();
                if !due.is_empty() || !book.done.is_empty() {
                    due.sort_unstable();
                    return due;
                }
                book.pending.values().map(|pending| pending.due).min()
            };
            match next {
                Some(next) => {
                    let now = Instant::now();
                    let wait = if next > now {
                        next - now
                    } else {
                        Duration::ZERO
                    };
                    let _ = tokio::time::timeout(wait, self.wake.notified()).await;
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// Has a node tried again later, whose commit failed; returns the number of failures.
    pub(crate) fn again(&self, ino: u64) -> u32 {
        let mut book = self.book.lock();
        let Some(pending) = book.pending.get_mut(&ino) else {
            return 0;
        };
        pending.tries += 1;
        let delay = DELAY * 2u32.saturating_pow(pending.tries.min(16) - 1);
        pending.due = Instant::now() + delay.min(RETRY_DELAY_MAX);
        pending.tries
    }

    /// Removes entries that are not needed any more, durably. Blocks.
    pub(crate) fn remove_done(&self) -> io::Result<()> {
        let _turn = self.removing.lock();
        let (done, is_unsettled) = {
            let mut book = self.book.lock();
            let done = std::mem::take(&mut book.done);
            book.is_unsettled |= !done.is_empty();
            (done, book.is_unsettled)
        };
        if !is_unsettled {
            return Ok(());
        }
        let mut result = Ok(());
        for number in done {
            match fs::remove_file(self.path(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.book.lock().done.push(number);
                    result = Err(error);
                }
                _ => {}
            }
        }
        result?;
        sync_names(&self.dir)?;
        self.book.lock().is_unsettled = false;
        Ok(())
    }
}

fn parse(bytes: &Bytes) -> Reading {
    let mut fields = bytes.splitn(3, |byte| *byte == b' ');
    let text = |field: Option<&[u8]>| String::from_utf8(field?.to_vec()).ok();
    let checksum = text(fields.next()).and_then(|text| u32::from_str_radix(&text, 16).ok());
    let length = text(fields.next()).and_then(|text| text.parse::<usize>().ok());
    let rest = fields.next().unwrap_or_default();
    let (Some(checksum), Some(length)) = (checksum, length) else {
        return Reading::Incomplete;
    };
    if rest.len() < length {
        return Reading::Incomplete;
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(rest);
    if rest.len() > length || hasher.finalize() != checksum {
        return Reading::Damaged;
    }
    let rest = bytes.slice_ref(rest);
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        return Reading::Damaged;
    };
    let Ok(head) = serde_json::from_slice::<Head>(&rest[..end]) else {
        return Reading::Damaged;
    };
    let bytes = rest.slice(end + 1..);
    let in_file = head.pieces.iter().filter(|piece| !piece.is_zero);
    let needed = in_file.map(|piece| u128::from(piece.length)).sum::<u128>();
    match head.format == FORMAT && needed == bytes.len() as u128 {
        true => Reading::Whole(Box::new(Entry { head, bytes })),
        false => Reading::Damaged,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_are_an_entry_but_those_that_were_written(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            head in "[0-9a-f]{1,9} [0-9]{1,20} .{0,40}",
        ) {
            prop_assert!(!matches!(parse(&Bytes::from(bytes)), Reading::Whole(_)));
            prop_assert!(!matches!(parse(&Bytes::from(head.into_bytes())), Reading::Whole(_)));
        }

        #[test]
        fn an_entry_says_what_was_written(
            pieces in proptest::collection::vec((0..9u64, 1..9u64, any::<bool>()), 0..6),
            size in any::<u64>(),
            path in ".{1,20}",
        ) {
            let budget = Arc::default();
            let (mut written, mut at) = (Extents::default(), 0);
            for (gap, length, is_zero) in pieces {
                let source = match is_zero {
                    true => FileSource::Zero,
                    false => {
                        let chunk = Chunk::new(vec![at as u8; length as usize].into(), &budget);
                        FileSource::Memory { chunk, offset: 0 }
                    }
                };
                written.insert(at + gap, length, source);
                at += gap + length;
            }
            let shown = |written: &Extents<FileSource>| {
                let each = written.iter().map(|(offset, length, source)| (offset, source.bytes(length), length));
                each.collect::<Vec<_>>()
            };
            let before = shown(&written);
            let dir = tempfile::TempDir::new().unwrap();
            let (journal, _) = Journal::open(dir.path(), "c").unwrap();
            let record = Record {
                path: path.clone(),
                token: "m-1".to_owned(),
                etag: None,
                headers: Headers::new("t"),
                has_new_attributes: true,
                saved: Saved { base_bytes: 0, size, resized: 3, appended: vec![1..2, 5..6], written },
            };
            journal.write(5, &record).unwrap();
            let Reading::Whole(entry) = journal.read(1).unwrap() else {
                return Err(TestCaseError::fail("it is whole"));
            };
            let saved = entry.saved(&budget);
            prop_assert_eq!(shown(&saved.written), before);
            prop_assert_eq!((saved.size, saved.resized, saved.appended), (size, 3, vec![1..2, 5..6]));
            prop_assert_eq!(&entry.head.path, &path);
        }
    }
}
