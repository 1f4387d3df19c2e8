//! Streaming reads of an open object's content.
//!
//! Cached content is read at once, on the caller's thread, by a call that never blocks on a disk.
//! Everything else is an operation on the device's thread; content to be verified is read and
//! hashed there, one chunk ahead of the consumer.
//!
//! Content that is not to stay in the page cache is dropped behind the reader, one window at a
//! time: each call costs the kernel a drain of its per-CPU page lists.

use std::future::Future;
use std::io::IoSliceMut;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_types::blocks;
use cairn_types::heuristic::Heuristic;
use cairn_types::plant::Plant;
use md5::{Digest, Md5};
use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::device_pool::{Device, Run};
use crate::diskfile::{read_range, read_with};
use crate::engine::{Check, ObjectEngine, ObjectKey, PageCache, Source, StoredContent};
use crate::error::DiskError;
use crate::xattr;

/// Content that leaves the page cache does so in ranges of this size; no more than that does the kernel
/// read ahead. It is not told to: that halved the rate of reads of 10 MB (`cargo xtask bench heuristics`).
const DROP_BYTES: u64 = 2 << 20;

/// Interval within which a second read keeps large content in the page cache.
const READ_AGAIN_INTERVAL: Duration = Duration::from_secs(300);

/// Streams a range of an object. Whole content is verified by its ETag, or by the CRC-32 of an
/// earlier verification (`hot/verified.rs`): on a mismatch the last chunk is withheld and an error
/// takes its place (unless the content is [`StoredContent::given_unsound`]); a mismatch of the ETag
/// also quarantines it.
pub struct ObjectReader {
    device: Arc<Device>,
    engine: Arc<dyn ObjectEngine>,
    key: ObjectKey,
    etag: String,
    content: StoredContent,
    chunk_size: u64,
    /// Next byte to request from the device, and the end.
    next: u64,
    end: u64,
    /// Start of the range up to `next` that the page cache may hold and nobody needs.
    held: u64,
    pub(crate) stays_cached: bool,
    hashing: Option<Hashing>,
    /// CRC-32 of an earlier verification, and that of the bytes read so far.
    earlier: Option<(u32, crc32fast::Hasher)>,
    ahead: Option<Run<Chunk>>,
}

struct Chunk {
    bytes: Bytes,
    hashing: Option<Hashing>,
}

/// Hashes of the bytes read so far, for verification by the ETag.
#[derive(Default)]
struct Hashing {
    md5: Md5,
    checksum: crc32fast::Hasher,
}

impl ObjectReader {
    /// Creates a reader of `range`, which must be within the content.
    pub fn new(
        device: Arc<Device>,
        engine: Arc<dyn ObjectEngine>,
        key: ObjectKey,
        etag: &str,
        content: StoredContent,
        range: Range<u64>,
        chunk_size: usize,
    ) -> Self {
        let is_whole = range == (0..content.size);
        let stays_cached = match content.page_cache {
            PageCache::Stays => true,
            PageCache::StaysIfReadAgain => content.identity.is_none_or(|file| {
                let (reads, read) = (&device.state.large_reads, (file, range.start));
                let is_again =
                    !Heuristic::ReadAgain.is_off() && reads.is_fresh(&read, READ_AGAIN_INTERVAL);
                reads.insert(&read);
                is_again
            }),
            PageCache::Leaves => false,
        };
        let mut reader = ObjectReader {
            device,
            engine,
            key,
            etag: etag.to_owned(),
            chunk_size: (chunk_size as u64).max(1),
            next: range.start,
            held: range.start,
            stays_cached,
            end: range.end.min(content.size),
            hashing: (is_whole && content.check == Check::Md5).then(Hashing::default),
            earlier: match content.check {
                Check::Crc32(known) if is_whole => Some((known, crc32fast::Hasher::new())),
                _ => None,
            },
            ahead: None,
            content,
        };
        if reader.hashing.is_some() {
            reader.ask_ahead();
        }
        reader
    }

    /// The next chunk, `None` at the end.
    ///
    /// # Errors
    /// `Quarantined` for broken content, `StateChanged` for such that was replaced meanwhile,
    /// `Unlike` at another CRC-32, `Unreadable` after a first read error; else those of the device.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, DiskError> {
        let chunk = self.read_next().await?;
        if let Some(bytes) = &chunk {
            self.compare(bytes)?;
        }
        Ok(chunk)
    }

    /// Compares the CRC-32 with that of the earlier verification at the last chunk. After a
    /// mismatch the next reader verifies by the ETag.
    fn compare(&mut self, bytes: &Bytes) -> Result<(), DiskError> {
        let Some((known, checksum)) = &mut self.earlier else {
            return Ok(());
        };
        checksum.update(bytes);
        let is_last = self.next == self.end && self.ahead.is_none();
        if !is_last || checksum.clone().finalize() == *known || Plant::RereadUnchecked.is_on() {
            return Ok(());
        }
        if let Some(file) = &self.content.identity {
            self.device.state.verified.forget(file);
        }
        match self.content.gives_unsound {
            true => Ok(()),
            false => Err(DiskError::Unlike),
        }
    }

    async fn read_next(&mut self) -> Result<Option<Bytes>, DiskError> {
        if self.ahead.is_none() {
            if let Some(bytes) = self.read_cached() {
                return Ok(Some(bytes));
            }
            self.ask_ahead();
        }
        let Some(run) = self.ahead.take() else {
            return Ok(None);
        };
        let chunk = run.await?;
        self.hashing = chunk.hashing;
        if self.hashing.is_some() {
            self.ask_ahead();
        }
        Ok(Some(chunk.bytes))
    }

    /// The cached part of the next chunk, if nothing must be hashed.
    fn read_cached(&mut self) -> Option<Bytes> {
        if self.hashing.is_some() {
            return None;
        }
        let left = self.end.saturating_sub(self.next);
        let len = (blocks::read_size(blocks::SIZE) as u64).min(left) as usize;
        if len == 0 {
            return None;
        }
        let read = match &self.content.source {
            Source::Memory(bytes) => Ok(slice(bytes, self.next, len)),
            // Zero bytes: the file was truncated; the device's thread handles that.
            Source::File { file, offset } => read_with(len, |into| {
                let mut into = [IoSliceMut::new(into)];
                let offset = offset + self.next;
                preadv2(&**file, &mut into, offset, ReadWriteFlags::NOWAIT)
            }),
        };
        let bytes = read.ok().filter(|bytes| !bytes.is_empty())?;
        self.next += bytes.len() as u64;
        Some(bytes)
    }

    fn ask_ahead(&mut self) {
        let size = blocks::read_size(self.chunk_size as usize) as u64;
        let len = size.min(self.end.saturating_sub(self.next));
        if len == 0 {
            return;
        }
        let at = self.next;
        self.next += len;
        let is_last = self.next == self.end;
        let content = self.content.clone();
        let mut hashing = self.hashing.take();
        let engine = self.engine.clone();
        let key = self.key.clone();
        let etag = if is_last && hashing.is_some() {
            std::mem::take(&mut self.etag)
        } else {
            String::new()
        };
        let passed = self.passed(at);
        self.ahead = Some(self.device.read(move |disk| {
            let broken = |reason: String| {
                match engine.quarantine(disk, &key, &content.suspect, &reason)? {
                    true => Err(DiskError::Quarantined(reason)),
                    // Replaced meanwhile by content of unknown state.
                    false => Err(DiskError::StateChanged),
                }
            };
            if let Some(passed) = passed {
                advise(&content, passed, Advice::DontNeed);
            }
            let read = match &content.source {
                Source::Memory(bytes) => Ok(slice(bytes, at, len as usize)),
                Source::File { file, offset } => {
                    read_range(file.as_fd(), offset + at, len as usize)
                }
            };
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(errno @ Errno::IO) => {
                    let reason = format!("read: {errno}");
                    return match disk.state.unreadable.is_confirmed(key.hash, disk.now()) {
                        true => broken(reason),
                        false => Err(DiskError::Unreadable(reason)),
                    };
                }
                Err(errno @ Errno::UCLEAN) => return broken(format!("read: {errno}")),
                Err(errno) => return Err(DiskError::from_errno("read", &*key.name, errno)),
            };
            if bytes.len() as u64 != len {
                return broken("the file became shorter while it was read".into());
            }
            if let Some(hashing) = &mut hashing {
                hashing.md5.update(&bytes);
                hashing.checksum.update(&bytes);
            }
            if is_last && let Some(Hashing { md5, checksum }) = hashing.take() {
                let md5 = xattr::hex(&md5.finalize().into());
                if md5 == etag || Plant::ContentUnchecked.is_on() {
                    if let Some(file) = &content.identity {
                        disk.state.verified.insert(file, checksum.finalize());
                    }
                } else {
                    let outcome = broken(format!("ETag {etag} and file's md5 {md5} do not match"));
                    let is_settled = matches!(
                        outcome,
                        Err(DiskError::Quarantined(_) | DiskError::StateChanged)
                    );
                    if !(content.gives_unsound && is_settled) {
                        return outcome;
                    }
                }
            }
            Ok(Chunk { bytes, hashing })
        }));
    }

    /// The range before `at` that can be dropped, if it is at least a window.
    fn passed(&mut self, at: u64) -> Option<Range<u64>> {
        if self.stays_cached || at - self.held < DROP_BYTES {
            return None;
        }
        let passed = self.held..at;
        self.held = at;
        Some(passed)
    }
}

impl Drop for ObjectReader {
    fn drop(&mut self) {
        // Includes what the kernel read ahead and an aborted client did not consume.
        let end = (self.next + DROP_BYTES).min(self.end);
        if self.stays_cached || self.held >= end {
            return;
        }
        let (content, held) = (self.content.clone(), self.held);
        // Not awaited, and skipped by an overloaded device.
        drop(self.device.read(move |_| {
            advise(&content, held..end, Advice::DontNeed);
            Ok(())
        }));
    }
}

/// Advises the kernel about a range of the content; errors do not matter.
fn advise(content: &StoredContent, range: Range<u64>, advice: Advice) {
    if let Source::File { file, offset } = &content.source
        && let Some(len) = NonZero::new(range.end - range.start)
    {
        let _ = rustix::fs::fadvise(&**file, offset + range.start, Some(len), advice);
    }
}

/// `len` bytes from `at`, fewer at the end.
fn slice(bytes: &Bytes, at: u64, len: usize) -> Bytes {
    let at = usize::try_from(at).map_or(bytes.len(), |at| at.min(bytes.len()));
    bytes.slice(at..at.saturating_add(len).min(bytes.len()))
}

/// Blocks the current thread on a future, for callers without a runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    use std::task::{Context, Poll, Wake, Waker};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
