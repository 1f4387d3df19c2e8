//! Block cache: blocks of objects in memory, with LRU replacement. A block belongs to an immutable
//! object (a segment) or to one version of an object (by ETag), so cached blocks never become
//! stale. Adjacent missing blocks are read by one request, whose bytes are kept together,
//! and readers of the same block share a request. A second level on a local disk
//! (`disk`), if there is one, is asked before the store.

mod buffers;
mod disk;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Shared;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use buffers::Buffers;
pub(crate) use disk::{DiskCache, DiskOptions};

use crate::content::FileSource;
use crate::extents::Span;
use crate::pieces::Pieces;
use crate::store::{ObjectName, Result, Store, StoreError, Why};

/// Maximum bytes of one request.
const REQUEST_MAX_BYTES: u64 = 4 << 20;
/// Maximum number of concurrent requests, for all files.
const REQUESTS_MAX: usize = 32;
/// Maximum bytes kept of requests that were read to their end, and that the kernel has too.
const PASSED_MAX_BYTES: u64 = 8 << 20;

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    pub(crate) name: ObjectName,
    /// ETag; `None` for an immutable object.
    pub(crate) etag: Option<Arc<str>>,
    pub(crate) bytes: u64,
}

type Key = (Arc<Version>, u64);
type Loaded = Result<Arc<Pieces>>;
/// The result of a request, which its readers share.
type Answer = Shared<oneshot::Receiver<Loaded>>;

enum Slot {
    /// Part of the completed request with this number.
    Ready(u64),
    /// Part of a pending request: its result, and the number of its first block.
    Loading { whole: Answer, first: u64 },
}

/// Bytes of one request: adjacent blocks, which are evicted together.
struct Run {
    version: Arc<Version>,
    first: u64,
    count: u64,
    pieces: Arc<Pieces>,
    turn: Turn,
}

/// Place in the order of eviction: runs that were passed on go first, then those whose last use is the
/// longest ago.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_kept: bool,
    used: u64,
}

/// Reader of blocks, who may come back to them or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The kernel, which has its own copy of what it read.
    Kernel,
    /// Programs that read past the kernel's cache, or this process.
    Program,
}

#[derive(Default)]
struct Blocks {
    slots: HashMap<Key, Slot>,
    runs: HashMap<u64, Run>,
    by_turn: BTreeMap<Turn, u64>,
    clock: u64,
    bytes: u64,
    passed_bytes: u64,
}

impl Blocks {
    /// The run that contains a block, and the number of the run's first block.
    fn ready(&mut self, key: &Key) -> Option<(Arc<Pieces>, u64)> {
        let Some(Slot::Ready(number)) = self.slots.get(key) else {
            return None;
        };
        let number = *number;
        self.move_run(number, true);
        let run = self.runs.get(&number)?;
        Some((run.pieces.clone(), run.first))
    }

    /// Moves a run to the end of the order of eviction, or of those that go first.
    fn move_run(&mut self, number: u64, is_kept: bool) {
        let Some(run) = self.runs.get_mut(&number) else {
            return;
        };
        self.clock += 1;
        self.by_turn.remove(&run.turn);
        let bytes = run.pieces.len();
        self.passed_bytes -= if run.turn.is_kept { 0 } else { bytes };
        self.passed_bytes += if is_kept { 0 } else { bytes };
        run.turn = Turn {
            is_kept,
            used: self.clock,
        };
        self.by_turn.insert(run.turn, number);
    }

    /// A block was read to its end by somebody who will not come back. Runs are read forwards: behind
    /// its last block all of a run goes.
    fn passed(&mut self, key: &Key) {
        let Some(Slot::Ready(number)) = self.slots.get(key) else {
            return;
        };
        let number = *number;
        let is_last = |run: &Run| key.1 + 1 == run.first + run.count;
        if self.runs.get(&number).is_some_and(is_last) {
            self.move_run(number, false);
        }
    }

    fn store(&mut self, version: &Arc<Version>, first: u64, count: u64, pieces: Arc<Pieces>) {
        self.clock += 1;
        let number = self.clock;
        for block in first..first + count {
            let key = (version.clone(), block);
            self.slots.insert(key, Slot::Ready(number));
        }
        self.bytes += pieces.len();
        let turn = Turn {
            is_kept: true,
            used: number,
        };
        self.by_turn.insert(turn, number);
        let run = Run {
            version: version.clone(),
            first,
            count,
            pieces,
            turn,
        };
        self.runs.insert(number, run);
    }

    fn shrink(&mut self, limit: u64) {
        while (self.bytes > limit || self.passed_bytes > PASSED_MAX_BYTES)
            && let Some((turn, oldest)) = self.by_turn.pop_first()
        {
            let Some(run) = self.runs.remove(&oldest) else {
                continue;
            };
            self.bytes -= run.pieces.len();
            if !turn.is_kept {
                self.passed_bytes -= run.pieces.len();
            }
            for block in run.first..run.first + run.count {
                let key = (run.version.clone(), block);
                if matches!(self.slots.get(&key), Some(Slot::Ready(number)) if *number == oldest) {
                    self.slots.remove(&key);
                }
            }
        }
    }
}

/// Block cache over a store.
pub(crate) struct Cache<S> {
    store: Arc<S>,
    blocks: Arc<Mutex<Blocks>>,
    requests: Arc<Semaphore>,
    buffers: Arc<Buffers>,
    block_bytes: u64,
    limit: u64,
    disk: Option<Arc<DiskCache>>,
}

/// A cached block, or a pending request for it; with the number of the request's first block.
enum Awaited {
    Ready(Arc<Pieces>, u64),
    Loading(Answer, u64),
}

impl<S: Store> Cache<S> {
    pub(crate) fn new(store: Arc<S>, block_bytes: u64, limit: u64) -> Cache<S> {
        Cache {
            store,
            blocks: Arc::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            buffers: Buffers::new(REQUEST_MAX_BYTES as usize),
            block_bytes,
            limit,
            disk: None,
        }
    }

    /// Uses a second level, which has blocks of the same size.
    pub(crate) fn with_disk(mut self, disk: Option<DiskCache>) -> Cache<S> {
        self.disk = disk.map(Arc::new);
        self
    }

    fn is_on_disk(&self, version: &Version, block: u64) -> bool {
        self.disk
            .as_ref()
            .is_some_and(|disk| disk.has(version, block))
    }

    /// Maximum number of blocks in one request.
    fn run_max(&self) -> u64 {
        (REQUEST_MAX_BYTES / self.block_bytes).max(1)
    }

    /// The blocks from `first` to `last`; requests missing ones.
    fn ask(&self, version: &Arc<Version>, first: u64, last: u64) -> Vec<Awaited> {
        let mut awaited = Vec::new();
        let mut blocks = self.blocks.lock();
        let mut index = first;
        while index <= last {
            let key = (version.clone(), index);
            if let Some((pieces, first)) = blocks.ready(&key) {
                awaited.push(Awaited::Ready(pieces, first));
                index += 1;
                continue;
            }
            if let Some(Slot::Loading { whole, first }) = blocks.slots.get(&key) {
                awaited.push(Awaited::Loading(whole.clone(), *first));
                index += 1;
                continue;
            }
            // All of a run comes from the disk, or all from the store.
            let is_on_disk = self.is_on_disk(version, index);
            let is_missing = |i: &u64| {
                !blocks.slots.contains_key(&(version.clone(), *i))
                    && self.is_on_disk(version, *i) == is_on_disk
            };
            let run = (index..=last)
                .take(self.run_max() as usize)
                .take_while(is_missing)
                .count() as u64;
            // A block that was evicted from the disk meanwhile would make the run empty.
            let run = run.max(1);
            let (sender, whole) = oneshot::channel();
            let whole = whole.shared();
            for i in index..index + run {
                let slot = Slot::Loading {
                    whole: whole.clone(),
                    first: index,
                };
                blocks.slots.insert((version.clone(), i), slot);
                awaited.push(Awaited::Loading(whole.clone(), index));
            }
            self.load(version.clone(), index, run, sender);
            index += run;
        }
        awaited
    }

    /// Reads `count` blocks from `first` on; continues if the waiting readers are gone.
    fn load(&self, version: Arc<Version>, first: u64, count: u64, sender: oneshot::Sender<Loaded>) {
        let (store, blocks, requests) = (
            self.store.clone(),
            self.blocks.clone(),
            self.requests.clone(),
        );
        let (block_bytes, limit) = (self.block_bytes, self.limit);
        let (disk, buffers) = (self.disk.clone(), self.buffers.clone());
        tokio::spawn(async move {
            let on_disk = match &disk {
                Some(disk) if disk.has(&version, first) => disk.read(&version, first, count).await,
                _ => None,
            };
            let loaded = match on_disk {
                Some(pieces) => Ok(Arc::new(pieces)),
                None => {
                    let _turn = requests.acquire().await;
                    let offset = first * block_bytes;
                    let length = (count * block_bytes).min(version.bytes - offset);
                    let etag = version.etag.as_deref();
                    let mut buffer = buffers.take(length as usize);
                    let range = (offset, length);
                    let loaded = store.read_into(&version.name, etag, range, &mut buffer);
                    let loaded = loaded.await;
                    let loaded =
                        loaded.map(|()| Arc::new(Pieces::from(vec![buffers.lend(buffer)])));
                    if let (Ok(pieces), Some(disk)) = (&loaded, &disk)
                        && pieces.len() == length
                    {
                        disk.keep(&version, first, pieces.clone());
                    }
                    loaded
                }
            };
            let mut blocks = blocks.lock();
            match &loaded {
                Ok(pieces) => {
                    blocks.store(&version, first, count, pieces.clone());
                    blocks.shrink(limit);
                }
                Err(_) => {
                    for block in first..first + count {
                        blocks.slots.remove(&(version.clone(), block));
                    }
                }
            }
            drop(blocks);
            // No reader may be left.
            let _ = sender.send(loaded);
        });
    }

    /// Starts reading missing blocks, in whole requests, without waiting.
    pub(crate) fn prefetch(&self, version: &Arc<Version>, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(version.bytes);
        // A window so large that it would evict its own first blocks is not read.
        if offset < end && length <= self.limit / 2 {
            // Sequential readers advance in small steps; requested one by one, each step would be a
            // request.
            let request_bytes = self.run_max() * self.block_bytes;
            let end = match request_bytes <= self.limit / 8 {
                true => end.next_multiple_of(request_bytes).min(version.bytes),
                false => end,
            };
            self.ask(
                version,
                offset / self.block_bytes,
                (end - 1) / self.block_bytes,
            );
        }
    }

    /// Reads bytes of an object, as pieces.
    async fn read(
        &self,
        reader: Reader,
        version: &Arc<Version>,
        (offset, length): (u64, u64),
        pieces: &mut Vec<Bytes>,
    ) -> Result<()> {
        let end = offset + length;
        if end > version.bytes {
            let message = format!("{} ends before {end}", version.name.name);
            return Err(StoreError::new(Why::Changed, message));
        }
        let (first, last) = (offset / self.block_bytes, (end - 1) / self.block_bytes);
        // Long reads are done in parts: the cache may be smaller than the read.
        let step = (REQUEST_MAX_BYTES * 4 / self.block_bytes).max(1);
        let mut from = first;
        while from <= last {
            let to = last.min(from + step - 1);
            for (index, awaited) in (from..=to).zip(self.ask(version, from, to)) {
                let (run, first) = match awaited {
                    Awaited::Ready(run, first) => (run, first),
                    Awaited::Loading(whole, first) => {
                        let gone = |_| StoreError::new(Why::Unavailable, "the mount is ending");
                        (whole.await.map_err(gone)??, first)
                    }
                };
                let start = offset.max(index * self.block_bytes);
                let length = end.min((index + 1) * self.block_bytes) - start;
                if !run.take(start - first * self.block_bytes, length, pieces) {
                    let message = format!("{}: a read came short", version.name.name);
                    return Err(StoreError::new(Why::Unavailable, message));
                }
            }
            from = to + 1;
        }
        if reader == Reader::Kernel {
            let mut blocks = self.blocks.lock();
            let read_to_the_end = match end == version.bytes {
                true => end.div_ceil(self.block_bytes),
                false => end / self.block_bytes,
            };
            for block in first..read_to_the_end {
                blocks.passed(&(version.clone(), block));
            }
        }
        Ok(())
    }

    /// The bytes of `spans`, as pieces. `own` is the file's own object.
    pub(crate) async fn gather(
        &self,
        reader: Reader,
        own: &Arc<Version>,
        spans: &[Span<FileSource>],
    ) -> Result<Vec<Bytes>> {
        let mut pieces = Vec::new();
        for span in spans {
            match &span.source {
                None | Some(FileSource::Zero) => {
                    pieces.push(Bytes::from(vec![0; span.length as usize]));
                }
                Some(source @ FileSource::Memory { .. }) => {
                    pieces.extend(source.bytes(span.length));
                }
                Some(FileSource::Own { offset }) => {
                    let range = (*offset, span.length);
                    self.read(reader, own, range, &mut pieces).await?;
                }
                Some(FileSource::Segment { segment, offset }) => {
                    let version = segment_version(segment);
                    let range = (*offset, span.length);
                    self.read(reader, &version, range, &mut pieces).await?;
                }
            }
        }
        Ok(pieces)
    }

    /// Starts reading the parts of `spans` that are on the store.
    pub(crate) fn prefetch_spans(&self, own: &Arc<Version>, spans: &[Span<FileSource>]) {
        for span in spans {
            match &span.source {
                Some(FileSource::Own { offset }) => self.prefetch(own, *offset, span.length),
                Some(FileSource::Segment { segment, offset }) => {
                    self.prefetch(&segment_version(segment), *offset, span.length);
                }
                None | Some(FileSource::Zero | FileSource::Memory { .. }) => {}
            }
        }
    }
}

fn segment_version(segment: &crate::store::Segment) -> Arc<Version> {
    Arc::new(Version {
        name: segment.name.clone(),
        etag: None,
        bytes: segment.bytes,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn version(etag: &str, bytes: u64) -> Arc<Version> {
        Arc::new(Version {
            name: ObjectName::new("c", "o"),
            etag: Some(etag.into()),
            bytes,
        })
    }

    async fn text(cache: &Cache<MemoryStore>, version: &Arc<Version>, at: u64, n: u64) -> String {
        let mut pieces = Vec::new();
        cache
            .read(Reader::Program, version, (at, n), &mut pieces)
            .await
            .unwrap();
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[tokio::test]
    async fn blocks_are_read_once_and_together() {
        let store = Arc::new(MemoryStore::default());
        store.write("o", "t", b"0123456789abcdefghij");
        let cache = Cache::new(store.clone(), 4, 1000);
        let object = version("etag0", 20);
        assert_eq!(text(&cache, &object, 5, 9).await, "56789abcd");
        assert_eq!(store.take_calls(), ["GET o"]);
        assert_eq!(text(&cache, &object, 4, 4).await, "4567");
        assert!(store.take_calls().is_empty());
        assert_eq!(text(&cache, &object, 0, 20).await, "0123456789abcdefghij");
        assert_eq!(store.take_calls(), ["GET o", "GET o"]);
        let both = tokio::join!(text(&cache, &object, 0, 3), text(&cache, &object, 1, 3));
        assert_eq!(both, ("012".into(), "123".into()));
    }

    #[tokio::test]
    async fn what_the_kernel_has_read_goes_first() {
        let store = Arc::new(MemoryStore::default());
        store.write("o", "t", b"0123456789abcdefghij");
        let cache = Cache::new(store.clone(), 4, 8);
        let object = version("etag0", 20);
        let read = async |reader, at| {
            let mut pieces = Vec::new();
            let read = cache.read(reader, &object, (at, 4), &mut pieces);
            read.await.unwrap();
            store.take_calls().len()
        };
        assert_eq!(read(Reader::Program, 0).await, 1);
        assert_eq!(read(Reader::Kernel, 4).await, 1);
        assert_eq!(read(Reader::Program, 8).await, 1, "in place of the second");
        assert_eq!(read(Reader::Program, 0).await, 0);
        assert_eq!(read(Reader::Program, 8).await, 0);
        assert_eq!(read(Reader::Kernel, 4).await, 1);
        let blocks = cache.blocks.lock();
        let passed = blocks.runs.values().filter(|run| !run.turn.is_kept);
        let passed: u64 = passed.map(|run| run.pieces.len()).sum();
        assert_eq!((blocks.passed_bytes, passed), (4, 4));
        assert_eq!(blocks.by_turn.len(), blocks.runs.len());
    }

    #[tokio::test]
    async fn it_is_bounded_and_keeps_no_failures() {
        let store = Arc::new(MemoryStore::default());
        store.write("o", "t", b"0123456789abcdefghij");
        let cache = Cache::new(store.clone(), 4, 8);
        let object = version("etag0", 20);
        text(&cache, &object, 0, 20).await;
        assert!(cache.blocks.lock().bytes <= 8);
        store.fail(|verb, _| (verb == "GET").then_some(Why::Timeout));
        let error = cache
            .read(Reader::Program, &object, (0, 4), &mut Vec::new())
            .await
            .unwrap_err();
        assert_eq!(error.why, Why::Timeout);
        store.heal();
        assert_eq!(text(&cache, &object, 0, 4).await, "0123");
        // Another version must not be returned.
        store.write("o", "t", b"other");
        let mut pieces = Vec::new();
        let old = cache.read(Reader::Program, &object, (4, 4), &mut pieces);
        let old = old.await;
        assert_eq!(old.unwrap_err().why, Why::Changed);
    }
}
