//! Calls on open files: open, read, write, fsync and close, with their commits and uploads.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::tree::Node;
use super::{LOADS_MAX, Overwrite, Vfs};
use crate::attributes::Kind;
use crate::cache::{Reader, Version};
use crate::content::{Chunk, FileSource};
use crate::error::{FsError, FsResult};
use crate::extents::{Source, Span};
use crate::store::{Store, StoreError, Why};
use crate::time::Time;

/// The relevant flags of `open`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenMode {
    pub(crate) is_writer: bool,
    /// Writes go to the end of the file, wherever that is.
    pub(crate) is_append: bool,
    pub(crate) truncates: bool,
}

/// An open file.
pub(crate) struct Handle {
    node: Arc<Node>,
    mode: OpenMode,
    ahead: Mutex<ReadAhead>,
}

/// Read-ahead window: zero for random reads, doubled by each read that continues where others
/// ended.
#[derive(Default)]
struct ReadAhead {
    next: u64,
    window: u64,
    /// End of what was asked for ahead.
    asked: u64,
}

const WINDOW_MIN_BYTES: u64 = 1 << 20;
const WINDOW_MAX_BYTES: u64 = 16 << 20;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
/// Without this bit the set-group-id bit means mandatory locking.
const GROUP_EXECUTES: u32 = 0o010;
/// Maximum reordering of sequential reads: the kernel sends several requests concurrently.
const DISORDER_BYTES: u64 = 2 << 20;

impl ReadAhead {
    /// Takes a read, and returns what to ask for ahead of the next ones: its offset and length.
    fn take(&mut self, offset: u64, length: u64) -> (u64, u64) {
        let end = offset + length;
        let goes_on = offset.abs_diff(self.next) <= DISORDER_BYTES;
        if !goes_on {
            *self = ReadAhead {
                next: end,
                ..ReadAhead::default()
            };
            return (end, 0);
        }
        self.window = (self.window * 2).clamp(WINDOW_MIN_BYTES, WINDOW_MAX_BYTES);
        self.next = self.next.max(end);
        let from = self.asked.max(end);
        self.asked = self.asked.max(end + self.window);
        (from, self.asked - from)
    }
}

impl<S: Store> Vfs<S> {
    pub(super) fn add_handle(&self, node: &Arc<Node>, mode: OpenMode) -> u64 {
        let mut state = node.state.lock();
        state.opens += 1;
        state.writers += u32::from(mode.is_writer);
        drop(state);
        self.number_handle(node, mode)
    }

    fn number_handle(&self, node: &Arc<Node>, mode: OpenMode) -> u64 {
        let number = self.new_handle();
        let handle = Handle {
            node: node.clone(),
            mode,
            ahead: Mutex::default(),
        };
        self.handles.lock().insert(number, Arc::new(handle));
        number
    }

    fn handle(&self, number: u64) -> FsResult<Arc<Handle>> {
        self.handles
            .lock()
            .get(&number)
            .cloned()
            .ok_or(FsError::BadHandle)
    }

    /// Opens a file: returns a handle, and whether the kernel may keep its cached pages. The file
    /// shows the content of the last close before, on any host.
    pub(crate) async fn open(&self, ino: u64, mode: OpenMode) -> FsResult<(u64, bool)> {
        if mode.is_writer || mode.truncates {
            self.writable()?;
        }
        let node = self.node(ino)?;
        match node.state.lock().attributes.kind {
            Kind::File => {}
            Kind::Directory => return Err(FsError::IsADirectory),
            _ => return Err(FsError::Invalid("it is no file")),
        }
        self.look_for_closes(&node).await?;
        self.load(&node).await?;
        self.flatten_later(&node);
        if mode.truncates {
            self.empty(&node).await?;
        }
        let keeps_pages = {
            let mut state = node.state.lock();
            if state.is_unlinked && state.opens == 0 {
                // Its bytes went with its name, while it was looked at.
                return Err(FsError::Stale);
            }
            state.opens += 1;
            state.writers += u32::from(mode.is_writer);
            let version = state.etag.clone().filter(|_| !state.is_local());
            let keeps = version.is_some() && state.kernel_has == version;
            state.kernel_has = version;
            keeps
        };
        Ok((self.number_handle(&node, mode), keeps_pages))
    }

    /// Finds what other hosts have closed until now. Local writes are put over it.
    async fn look_for_closes(&self, node: &Arc<Node>) -> FsResult<()> {
        for _ in 0..LOADS_MAX {
            if !node.state.lock().is_local() {
                return match self.look_again(&self.path(node.ino)?).await {
                    Ok(now) if Arc::ptr_eq(&now, node) => Ok(()),
                    // The kernel looks up the name again, and creates the file if requested.
                    Ok(_) | Err(FsError::NotFound) => Err(FsError::Stale),
                    Err(error) => Err(error),
                };
            }
            let Some(path) = self.tree.lock().path(node.ino) else {
                return Ok(());
            };
            let own = {
                let state = node.state.lock();
                if state.etag.is_none() || !self.store.decides() {
                    return Ok(());
                }
                self.own_version(&path, &state)
            };
            match self.store.head(&path).await {
                Ok(stat) if own.etag.as_deref() == Some(&*stat.etag) => return Ok(()),
                Ok(_) => {}
                // It is there again with the next commit.
                Err(error) if error.why == Why::NotFound => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            let message = format!("{path} was written elsewhere too");
            let error = StoreError::new(Why::Changed, message);
            self.follow(node, &own, error).await?;
        }
        Err(FsError::Contended)
    }

    /// Truncates a file to zero; if several mounts may write it, on the store at once: a later
    /// commit would truncate what another one writes from now on.
    async fn empty(&self, node: &Arc<Node>) -> FsResult<()> {
        let _names = self.namespace.read().await;
        let _turn = node.mutation.lock().await;
        // An attempt that is taken back below must not be on the store.
        self.settle_doubts(node).await?;
        let before = {
            let mut state = self.loaded(node).await?;
            let before = (state.etag.clone(), state.content.clone());
            state.content.empty();
            changed(&mut state);
            before
        };
        let is_due = self.store.decides() && node.state.lock().etag.is_some();
        match is_due {
            true => self.commit_locked(node).await.inspect_err(|_| {
                // The open failed, and the file is as before.
                let mut state = node.state.lock();
                let (etag, content) = before;
                let is_rebased = state.etag != etag && state.etag.is_some();
                state.content.restore(content, is_rebased);
                let failed = state.attempts.iter_mut();
                failed
                    .filter(|attempt| attempt.is_current)
                    .for_each(|attempt| attempt.is_taken_back = true);
            }),
            false => Ok(()),
        }
    }

    pub(crate) async fn read(&self, handle: u64, offset: u64, size: u32) -> FsResult<Vec<Bytes>> {
        self.read_for(handle, offset, size, false).await
    }

    /// Reads pages for the kernel's cache.
    pub(crate) async fn read_pages(
        &self,
        handle: u64,
        offset: u64,
        size: u32,
    ) -> FsResult<Vec<Bytes>> {
        self.read_for(handle, offset, size, true).await
    }

    async fn read_for(
        &self,
        handle: u64,
        offset: u64,
        size: u32,
        is_kept: bool,
    ) -> FsResult<Vec<Bytes>> {
        let handle = self.handle(handle)?;
        let node = &handle.node;
        let size = u64::from(size);
        let ahead = handle.ahead.lock().take(offset, size);
        // Writers' handles read past the kernel's cache.
        let reader = match handle.mode.is_writer {
            true => Reader::Program,
            false => Reader::Kernel,
        };
        for _ in 0..LOADS_MAX {
            let path = self.tree.lock().path(node.ino);
            let (own, spans, is_local) = {
                let mut state = self.loaded(node).await?;
                if is_kept {
                    state.pages.read(&(offset..offset + size));
                }
                let own = self.own_version(path.as_deref().unwrap_or_default(), &state);
                let ahead = state.content.spans(ahead.0, ahead.1);
                self.cache.prefetch_spans(&own, &ahead);
                (own, state.content.spans(offset, size), state.is_local())
            };
            let is_own =
                |span: &Span<FileSource>| matches!(span.source, Some(FileSource::Own { .. }));
            if path.is_none() && spans.iter().any(is_own) {
                return Err(FsError::Stale);
            }
            match self.cache.gather(reader, &own, &spans).await {
                Ok(pieces) => return Ok(pieces),
                // Another client has written a new version, or removed it.
                Err(error) if matches!(error.why, Why::NotFound | Why::Changed) => {
                    if self.is_elsewhere(node, &own) {
                        continue;
                    }
                    let path = path.ok_or(FsError::Stale)?;
                    if is_local {
                        self.follow(node, &own, error).await?;
                        continue;
                    }
                    match self.look_again(&path).await {
                        Ok(now) if Arc::ptr_eq(&now, node) => {}
                        Ok(_) | Err(FsError::NotFound) => return Err(FsError::Stale),
                        Err(error) => return Err(error),
                    }
                    // A version that lost a segment is not found again by a look-up; one that was written to
                    // meanwhile is not looked at.
                    let state = node.state.lock();
                    if !state.is_local()
                        && state.is_loaded
                        && own.etag.as_deref() == state.etag.as_deref()
                    {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(FsError::Contended)
    }

    /// Has a commit or rename of this mount moved the bytes since `own` was taken?
    pub(super) fn is_elsewhere(&self, node: &Node, own: &Version) -> bool {
        let path = self.tree.lock().path(node.ino);
        let state = node.state.lock();
        path.as_deref().unwrap_or_default() != &*own.name.name
            || state.etag.as_deref().unwrap_or_default() != own.etag.as_deref().unwrap_or_default()
    }

    /// Set-id bits are removed by the first write of a user who may not keep them; true if there were
    /// any.
    pub(crate) fn drop_set_id(&self, handle: u64) -> FsResult<bool> {
        let handle = self.handle(handle)?;
        let mut state = handle.node.state.lock();
        let group = match state.attributes.mode & GROUP_EXECUTES {
            0 => 0,
            _ => SET_GROUP_ID,
        };
        let before = state.attributes.mode;
        state.attributes.mode &= !(SET_USER_ID | group);
        Ok(state.attributes.mode != before)
    }

    /// Writes bytes into memory; they are stored when the file is synced or closed. With
    /// `is_placed` they are of a page of a mapping: they belong to the offset even if the handle appends. Returns
    /// the write where the kernel may have pages from before it, which have to go until the call returns.
    pub(crate) async fn write(
        &self,
        handle: u64,
        offset: u64,
        data: Bytes,
        is_placed: bool,
    ) -> FsResult<Option<Overwrite>> {
        let handle = self.handle(handle)?;
        if !handle.mode.is_writer && !is_placed {
            return Err(FsError::BadHandle);
        }
        let node = &handle.node;
        let length = data.len() as u64;
        // Done first: bytes accepted afterwards cannot be refused any more.
        self.relieve(node).await?;
        let _turn = node.mutation.lock().await;
        let mut state = self.loaded(node).await?;
        let appends = handle.mode.is_append && !is_placed;
        let start = if appends {
            state.content.size()
        } else {
            offset
        };
        let end = start.checked_add(length);
        self.check_size(end)?;
        let range = start..start + length;
        let chunk = Chunk::new(data, &self.budget);
        let source = FileSource::Memory { chunk, offset: 0 };
        match (appends, is_placed) {
            (true, _) => state.content.append(length, source),
            (false, false) => state.content.write(start, length, source),
            (false, true) => {
                for Range { start, end } in state.pages.taken(range.clone()) {
                    let source = source.at(start - range.start);
                    state.content.write(start, end - start, source);
                }
            }
        }
        state.unsent += length;
        changed(&mut state);
        Ok(match is_placed {
            true => None,
            false => Overwrite::of(node, &mut state.pages, range),
        })
    }

    pub(super) fn check_size(&self, size: Option<u64>) -> FsResult<()> {
        let max = self.options.limits.file_bytes_max();
        match size.is_some_and(|size| size <= max) {
            true => Ok(()),
            false => Err(FsError::FileTooLarge),
        }
    }

    /// Zeroes `length` bytes from `offset`; with `keeps_size` the file is not extended.
    pub(crate) async fn zero(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
        keeps_size: bool,
    ) -> FsResult<()> {
        let handle = self.handle(handle)?;
        if !handle.mode.is_writer {
            return Err(FsError::BadHandle);
        }
        self.check_size(offset.checked_add(length))?;
        let node = &handle.node;
        let _turn = node.mutation.lock().await;
        let mut state = self.loaded(node).await?;
        let size = state.content.size();
        let end = match keeps_size {
            true => (offset + length).min(size),
            false => offset + length,
        };
        if end > offset {
            state.content.write(offset, end - offset, FileSource::Zero);
            changed(&mut state);
        }
        Ok(())
    }

    /// Extends a file to at least this size.
    pub(crate) async fn allocate(&self, handle: u64, size: u64) -> FsResult<()> {
        let handle = self.handle(handle)?;
        if !handle.mode.is_writer {
            return Err(FsError::BadHandle);
        }
        self.check_size(Some(size))?;
        let _turn = handle.node.mutation.lock().await;
        let mut state = self.loaded(&handle.node).await?;
        if size > state.content.size() {
            state.content.resize(size);
            changed(&mut state);
        }
        Ok(())
    }

    /// Stores all writes to a file.
    pub(crate) async fn sync(&self, handle: u64) -> FsResult<()> {
        let handle = self.handle(handle)?;
        self.commit(&handle.node).await
    }

    /// Called at each close of a descriptor.
    pub(crate) async fn flush(&self, handle: u64) -> FsResult<()> {
        let handle = self.handle(handle)?;
        match handle.mode.is_writer {
            true => self.commit_close(&handle.node).await,
            false => Ok(()),
        }
    }

    /// Called at the last close; writes through a mapping come after the flush.
    pub(crate) async fn release(&self, number: u64) -> FsResult<()> {
        let handle = self.handles.lock().remove(&number);
        let handle = handle.ok_or(FsError::BadHandle)?;
        let node = &handle.node;
        let result = match handle.mode.is_writer {
            true => self.commit_close(node).await,
            false => Ok(()),
        };
        let is_over = {
            let mut state = node.state.lock();
            state.opens -= 1;
            state.writers -= u32::from(handle.mode.is_writer);
            state.is_unlinked && state.opens == 0
        };
        if is_over {
            // Uploads in progress add their segments to those to remove.
            let _ = self.await_uploads(node).await;
            self.drop_content(node);
        }
        self.tree.lock().drop_unused(node.ino);
        result
    }
}

/// Records that the content of a file has changed now.
pub(super) fn changed(state: &mut super::tree::State) {
    let now = Time::now();
    state.attributes.mtime = now;
    state.ctime = now;
    state.is_kept = false;
    state.merges.changes += 1;
    state.kernel_has = None;
}
