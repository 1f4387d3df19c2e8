//! Blocks of objects in memory, least recently used ones dropped first. A block is of an object that
//! never changes (a segment) or of one version of it (by ETag), so nothing here is ever out of date.
//! Blocks that lie beside each other and are missing are read with one request, and readers of the
//! same block wait for the same request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::content::FileSource;
use crate::extents::Span;
use crate::store::{ObjectName, Result, Store, StoreError, Why};

/// The most that one request reads.
const REQUEST_BYTES: u64 = 4 << 20;
/// Requests under way at once, for all files.
const REQUESTS_MAX: usize = 32;

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    pub(crate) name: ObjectName,
    /// None of an object that never changes.
    pub(crate) etag: Option<Arc<str>>,
    pub(crate) bytes: u64,
}

type Key = (Arc<Version>, u64);
type Loaded = Option<Result<Bytes>>;

enum Slot {
    Ready {
        bytes: Bytes,
        used: u64,
    },
    /// Part of a request: its bytes, and the number of its first block.
    Loading {
        whole: watch::Receiver<Loaded>,
        first: u64,
    },
}

#[derive(Default)]
struct Blocks {
    slots: HashMap<Key, Slot>,
    by_use: BTreeMap<u64, Key>,
    clock: u64,
    bytes: u64,
}

impl Blocks {
    fn ready(&mut self, key: &Key) -> Option<Bytes> {
        let Some(Slot::Ready { bytes, used }) = self.slots.get_mut(key) else {
            return None;
        };
        self.clock += 1;
        self.by_use.remove(used);
        *used = self.clock;
        self.by_use.insert(self.clock, key.clone());
        Some(bytes.clone())
    }

    fn store(&mut self, key: Key, bytes: Bytes, limit: u64) {
        self.clock += 1;
        self.bytes += bytes.len() as u64;
        self.by_use.insert(self.clock, key.clone());
        let used = self.clock;
        if let Some(Slot::Ready { bytes, used }) =
            self.slots.insert(key, Slot::Ready { bytes, used })
        {
            self.bytes -= bytes.len() as u64;
            self.by_use.remove(&used);
        }
        while self.bytes > limit
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            if let Some(Slot::Ready { bytes, .. }) = self.slots.remove(&oldest) {
                self.bytes -= bytes.len() as u64;
            }
        }
    }
}

/// A cache of what the store has.
pub(crate) struct Cache<S> {
    store: Arc<S>,
    blocks: Arc<Mutex<Blocks>>,
    requests: Arc<Semaphore>,
    block_bytes: u64,
    limit: u64,
}

/// Either a block, or how it will come.
enum Awaited {
    Ready(Bytes),
    Loading(watch::Receiver<Loaded>, u64),
}

impl<S: Store> Cache<S> {
    pub(crate) fn new(store: Arc<S>, block_bytes: u64, limit: u64) -> Cache<S> {
        Cache {
            store,
            blocks: Arc::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            block_bytes,
            limit,
        }
    }

    /// The blocks from `first` to `last`; those that nobody has asked for yet are.
    fn ask(&self, version: &Arc<Version>, first: u64, last: u64) -> Vec<Awaited> {
        let mut awaited = Vec::new();
        let mut blocks = self.blocks.lock();
        let mut index = first;
        while index <= last {
            let key = (version.clone(), index);
            if let Some(bytes) = blocks.ready(&key) {
                awaited.push(Awaited::Ready(bytes));
                index += 1;
                continue;
            }
            if let Some(Slot::Loading { whole, first }) = blocks.slots.get(&key) {
                awaited.push(Awaited::Loading(whole.clone(), *first));
                index += 1;
                continue;
            }
            let run_max = (REQUEST_BYTES / self.block_bytes).max(1);
            let is_missing = |i: &u64| !blocks.slots.contains_key(&(version.clone(), *i));
            let run = (index..=last)
                .take(run_max as usize)
                .take_while(is_missing)
                .count() as u64;
            let (sender, whole) = watch::channel(None);
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

    /// Reads `count` blocks from `first` on; goes on when those who wait have left.
    fn load(&self, version: Arc<Version>, first: u64, count: u64, sender: watch::Sender<Loaded>) {
        let (store, blocks, requests) = (
            self.store.clone(),
            self.blocks.clone(),
            self.requests.clone(),
        );
        let (block_bytes, limit) = (self.block_bytes, self.limit);
        tokio::spawn(async move {
            let _turn = requests.acquire().await;
            let offset = first * block_bytes;
            let length = (count * block_bytes).min(version.bytes - offset);
            let etag = version.etag.as_deref();
            let loaded = store.read(&version.name, etag, offset, length).await;
            let mut blocks = blocks.lock();
            for i in 0..count {
                let key = (version.clone(), first + i);
                blocks.slots.remove(&key);
                if let Ok(bytes) = &loaded {
                    let start = (i * block_bytes).min(length);
                    let end = ((i + 1) * block_bytes).min(length);
                    // Copied where it is a part: a block must not keep the others alive.
                    let block = match count {
                        1 => bytes.clone(),
                        _ => Bytes::copy_from_slice(&bytes[start as usize..end as usize]),
                    };
                    blocks.store(key, block, limit);
                }
            }
            drop(blocks);
            sender.send_replace(Some(loaded));
        });
    }

    /// Starts to read what is not here yet, and waits for nothing.
    pub(crate) fn prefetch(&self, version: &Arc<Version>, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(version.bytes);
        // A window that would drop its own first blocks is not worth reading.
        if offset < end && length <= self.limit / 2 {
            self.ask(
                version,
                offset / self.block_bytes,
                (end - 1) / self.block_bytes,
            );
        }
    }

    /// Bytes of an object, in pieces.
    async fn read(
        &self,
        version: &Arc<Version>,
        offset: u64,
        length: u64,
        pieces: &mut Vec<Bytes>,
    ) -> Result<()> {
        let end = offset + length;
        if end > version.bytes {
            let message = format!("{} ends before {end}", version.name.name);
            return Err(StoreError::new(Why::Changed, message));
        }
        let (first, last) = (offset / self.block_bytes, (end - 1) / self.block_bytes);
        // Long reads are done a part at a time: the cache may hold less than they are.
        let step = (REQUEST_BYTES * 4 / self.block_bytes).max(1);
        let mut from = first;
        while from <= last {
            let to = last.min(from + step - 1);
            for (index, awaited) in (from..=to).zip(self.ask(version, from, to)) {
                let (bytes, start_of) = match awaited {
                    Awaited::Ready(bytes) => (bytes, index * self.block_bytes),
                    Awaited::Loading(mut whole, first) => {
                        let gone = |_| StoreError::new(Why::Unavailable, "the mount is ending");
                        let loaded = whole.wait_for(Option::is_some).await.map_err(gone)?;
                        let bytes = match &*loaded {
                            Some(Ok(bytes)) => bytes.clone(),
                            Some(Err(error)) => return Err(error.clone()),
                            None => return Err(gone_early()),
                        };
                        (bytes, first * self.block_bytes)
                    }
                };
                let start = offset.max(index * self.block_bytes) - start_of;
                let stop = end.min((index + 1) * self.block_bytes) - start_of;
                if stop > bytes.len() as u64 {
                    let message = format!("{}: a read came short", version.name.name);
                    return Err(StoreError::new(Why::Unavailable, message));
                }
                pieces.push(bytes.slice(start as usize..stop as usize));
            }
            from = to + 1;
        }
        Ok(())
    }

    /// The bytes of `spans`, in pieces. `own`: the file's own object.
    pub(crate) async fn gather(
        &self,
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
                    self.read(own, *offset, span.length, &mut pieces).await?;
                }
                Some(FileSource::Segment { segment, offset }) => {
                    let version = segment_version(segment);
                    self.read(&version, *offset, span.length, &mut pieces)
                        .await?;
                }
            }
        }
        Ok(pieces)
    }

    /// Starts to read what `spans` need from the store.
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

fn gone_early() -> StoreError {
    StoreError::new(Why::Unavailable, "a read ended without an answer")
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
        cache.read(version, at, n, &mut pieces).await.unwrap();
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
    async fn it_is_bounded_and_keeps_no_failures() {
        let store = Arc::new(MemoryStore::default());
        store.write("o", "t", b"0123456789abcdefghij");
        let cache = Cache::new(store.clone(), 4, 8);
        let object = version("etag0", 20);
        text(&cache, &object, 0, 20).await;
        assert!(cache.blocks.lock().bytes <= 8);
        store.fail(|verb, _| (verb == "GET").then_some(Why::Timeout));
        let error = cache
            .read(&object, 0, 4, &mut Vec::new())
            .await
            .unwrap_err();
        assert_eq!(error.why, Why::Timeout);
        store.heal();
        assert_eq!(text(&cache, &object, 0, 4).await, "0123");
        // Another version is not what was asked for.
        store.write("o", "t", b"other");
        let old = cache.read(&object, 4, 4, &mut Vec::new()).await;
        assert_eq!(old.unwrap_err().why, Why::Changed);
    }
}
