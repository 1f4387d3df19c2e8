//! Calls on names: lookup, create, mkdir, mknod, symlink, unlink, rmdir.

use std::sync::Arc;

use bytes::Bytes;

use super::files::OpenMode;
use super::tree::{Attempt, LISTING_LAG, Node, State, below, join, parent_of};
use super::{Attr, Vfs};
use crate::attributes::{Attributes, Kind, Xattrs};
use crate::content::{Content, Layout};
use crate::error::{FsError, FsResult};
use crate::history;
use crate::store::{Expect, Headers, Row, Store, Why, insist};
use crate::time::{Instant, Time};

const SET_GROUP_ID: u32 = 0o2000;

/// Owner, group and permissions of a new name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permissions with the umask applied.
    pub(crate) mode: u32,
}

impl Owner {
    fn attributes(self, kind: Kind) -> Attributes {
        Attributes {
            kind,
            mode: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            mtime: Time::now(),
            atime: None,
            rdev: 0,
        }
    }
}

impl<S: Store> Vfs<S> {
    /// Attributes of a new node: in a directory with the set-group-id bit it gets that group, and a
    /// directory the bit too.
    fn inherited(&self, parent: u64, mut attributes: Attributes) -> FsResult<Attributes> {
        let parent = self.node(parent)?;
        let parent = parent.state.lock();
        if parent.attributes.mode & SET_GROUP_ID != 0 {
            attributes.gid = parent.attributes.gid;
            if attributes.kind == Kind::Directory {
                attributes.mode |= SET_GROUP_ID;
            }
        }
        Ok(attributes)
    }

    /// Looks up a name. The kernel then holds one more reference to the node.
    pub(crate) async fn lookup(&self, parent: u64, name: &str) -> FsResult<Attr> {
        let path = self.path_in(parent, name)?;
        let node = self.find(&path).await?;
        self.tree.lock().looked_up(node.ino);
        Ok(Self::attr(&node))
    }

    pub(crate) fn forget(&self, ino: u64, count: u64) {
        self.tree.lock().forget(ino, count);
    }

    /// Fails if the path exists.
    pub(super) async fn expect_nothing(&self, path: &str) -> FsResult<()> {
        if self.tree.lock().was_absent(path) {
            return Ok(());
        }
        match self.find(path).await {
            Ok(_) => Err(FsError::Exists),
            Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Fails if the path exists on the store: if several mounts may write a file, an existing one
    /// must be opened, or truncated.
    async fn expect_no_file(&self, path: &str) -> FsResult<()> {
        if !self.store.decides() || self.tree.lock().was_absent(path) {
            return self.expect_nothing(path).await;
        }
        match self.look_again(path).await {
            Ok(_) => Err(FsError::Exists),
            Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates a file. Where the store decides conditions of writes, it is stored at once, so that hosts
    /// agree who creates it and find it before its first close (MPI-IO: one rank creates what the
    /// others open). With O_TRUNC and without O_EXCL it is stored when first synced or closed.
    pub(crate) async fn create(
        &self,
        parent: u64,
        name: &str,
        owner: Owner,
        mode: OpenMode,
        is_exclusive: bool,
    ) -> FsResult<(Attr, u64)> {
        self.writable()?;
        let path = self.new_path_in(parent, name)?;
        match self.expect_no_file(&path).await {
            Ok(()) => {}
            Err(FsError::Exists) if !is_exclusive => {
                return self.open_made(parent, name, mode).await;
            }
            Err(error) => return Err(error),
        }
        let attributes = self.inherited(parent, owner.attributes(Kind::File))?;
        if self.store.decides() && (is_exclusive || !mode.truncates) {
            let names = self.namespace.read().await;
            let attr = match self.make(&path, attributes, Bytes::new()).await {
                Err(FsError::Exists) if !is_exclusive => {
                    drop(names);
                    self.tree.lock().present(&path);
                    return self.open_made(parent, name, mode).await;
                }
                made => made?,
            };
            let node = self.node(attr.ino)?;
            let handle = self.add_handle(&node, mode);
            return Ok((attr, handle));
        }
        let mut state = State::new(attributes);
        state.is_loaded = true;
        state.content.touch();
        let node = {
            let mut tree = self.tree.lock();
            let node = tree.add(&path, state);
            tree.looked_up(node.ino);
            node
        };
        self.touch(parent_of(&path));
        let handle = self.add_handle(&node, mode);
        Ok((Self::attr(&node), handle))
    }

    /// Opens a file that another host has created meanwhile.
    async fn open_made(&self, parent: u64, name: &str, mode: OpenMode) -> FsResult<(Attr, u64)> {
        let attr = self.lookup(parent, name).await?;
        let (handle, _) = match self.open(attr.ino, mode).await {
            Ok(opened) => opened,
            Err(error) => {
                self.forget(attr.ino, 1);
                return Err(error);
            }
        };
        let node = self.node(attr.ino)?;
        Ok((Self::attr(&node), handle))
    }

    /// Stores a new object that is not an open file.
    async fn make(&self, path: &str, attributes: Attributes, body: Bytes) -> FsResult<Attr> {
        let mut headers = Headers::new(attributes.kind.content_type());
        attributes.put_into(&mut headers, &Xattrs::default());
        let token = self.committer.token();
        history::add(&mut headers, &token);
        let bytes = body.len() as u64;
        let body = || vec![body.clone()];
        let put = || self.store.put(path, &headers, body(), Expect::Nothing);
        let mut state = match insist(put).await {
            Ok(etag) => {
                let mut state = State::new(attributes);
                if state.attributes.kind == Kind::File {
                    state.content = Content::of(Layout::own(bytes, true));
                    state.is_loaded = true;
                }
                state.headers = headers;
                state.etag = Some(etag);
                state.bytes = bytes;
                state
            }
            // The response was lost, and the retry found the object.
            Err(error) if error.why == Why::Changed || error.is_in_doubt => {
                let stat = match self.store.head_newest(path).await {
                    Ok(stat) => stat,
                    Err(_) => return Err(error.into()),
                };
                // Another host may have written it since.
                match history::has(&stat.headers, &token) {
                    true => self.state_of(stat),
                    false => return Err(FsError::Exists),
                }
            }
            Err(error) => return Err(error.into()),
        };
        state.changed_here = Some(Instant::now());
        state.fresh_until = Instant::now() + self.options.fresh;
        let node = {
            let mut tree = self.tree.lock();
            let node = tree.add(path, state);
            tree.looked_up(node.ino);
            node
        };
        self.touch(parent_of(path));
        Ok(Self::attr(&node))
    }

    pub(crate) async fn mkdir(&self, parent: u64, name: &str, owner: Owner) -> FsResult<Attr> {
        self.make_new(
            parent,
            name,
            owner.attributes(Kind::Directory),
            Bytes::new(),
        )
        .await
    }

    pub(crate) async fn symlink(
        &self,
        parent: u64,
        name: &str,
        target: &str,
        owner: Owner,
    ) -> FsResult<Attr> {
        let owner = Owner {
            mode: 0o777,
            ..owner
        };
        let body = Bytes::copy_from_slice(target.as_bytes());
        self.make_new(parent, name, owner.attributes(Kind::Symlink), body)
            .await
    }

    /// Creates an empty file, a FIFO, a socket or a device. `rdev` is a device's number.
    pub(crate) async fn mknod(
        &self,
        parent: u64,
        name: &str,
        kind: Kind,
        owner: Owner,
        rdev: u32,
    ) -> FsResult<Attr> {
        let attributes = Attributes {
            rdev: if kind.is_device() { rdev } else { 0 },
            ..owner.attributes(kind)
        };
        self.make_new(parent, name, attributes, Bytes::new()).await
    }

    async fn make_new(
        &self,
        parent: u64,
        name: &str,
        attributes: Attributes,
        body: Bytes,
    ) -> FsResult<Attr> {
        self.writable()?;
        let _names = self.namespace.read().await;
        let path = self.new_path_in(parent, name)?;
        self.expect_nothing(&path).await?;
        let attributes = self.inherited(parent, attributes)?;
        self.make(&path, attributes, body).await
    }

    pub(crate) async fn readlink(&self, ino: u64) -> FsResult<String> {
        let node = self.node(ino)?;
        let (bytes, target) = {
            let state = node.state.lock();
            if state.attributes.kind != Kind::Symlink {
                return Err(FsError::Invalid("it is no symbolic link"));
            }
            (state.bytes, state.target.clone())
        };
        if let Some(target) = target {
            return Ok(target);
        }
        if bytes == 0 || bytes > 4096 {
            return Err(FsError::Invalid("a link's target has 1 to 4,096 bytes"));
        }
        let path = self.path(ino)?;
        let name = crate::store::ObjectName::new(self.store.container(), &path);
        let body = self.store.read(&name, None, 0, bytes).await?;
        let target = String::from_utf8(body.concat()).map_err(|_| FsError::NotUtf8)?;
        node.state.lock().target = Some(target.clone());
        Ok(target)
    }

    /// Sets a directory's times to its last change; kept in this mount only.
    pub(super) fn touch(&self, directory: &str) {
        let node = self.tree.lock().at(directory);
        if let Some(node) = node {
            let mut state = node.state.lock();
            let now = Time::now();
            state.touched = Some(now);
            state.attributes.mtime = now;
            state.ctime = now;
        }
    }

    /// Creates an object for a directory that exists only by a name below it, before that name is
    /// removed.
    pub(super) async fn keep_directory(&self, path: &str) -> FsResult<()> {
        let node = self.tree.lock().at(path);
        let Some(node) = node.filter(|_| !path.is_empty()) else {
            return Ok(());
        };
        let headers = {
            let state = node.state.lock();
            if state.etag.is_some() {
                return Ok(());
            }
            let mut headers = state.headers.clone();
            state.attributes.put_into(&mut headers, &state.xattrs);
            headers
        };
        let put = || self.store.put(path, &headers, Vec::new(), Expect::Nothing);
        match insist(put).await {
            Ok(etag) => {
                let mut state = node.state.lock();
                state.etag = Some(etag);
                state.changed_here = Some(Instant::now());
                Ok(())
            }
            Err(error) if error.why == Why::Changed => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn unlink(&self, parent: u64, name: &str) -> FsResult<()> {
        self.writable()?;
        let _names = self.namespace.read().await;
        let path = self.path_in(parent, name)?;
        let node = self.find(&path).await?;
        if node.state.lock().attributes.kind == Kind::Directory {
            return Err(FsError::IsADirectory);
        }
        self.keep_directory(parent_of(&path)).await?;
        self.remove(&path, node).await?;
        self.settle_closes().await;
        Ok(())
    }

    /// Prepares a file for the removal of its object: open handles keep its bytes, and its segments
    /// become known, so that they can be removed with the last handle. Returns the version that this was
    /// done for; `None` if there is nothing to do for any.
    pub(super) async fn detach_content(
        &self,
        path: &str,
        node: &Arc<Node>,
    ) -> FsResult<Option<String>> {
        let (is_open, may_have_segments) = {
            let state = node.state.lock();
            if state.etag.is_none() || state.attributes.kind != Kind::File {
                return Ok(None);
            }
            (
                state.opens > 0,
                state.bytes > self.options.limits.whole_bytes,
            )
        };
        if !is_open && !may_have_segments {
            return Ok(None);
        }
        let (version, own, is_needed, file_id) = {
            let mut state = match self.loaded(node).await {
                Ok(state) => state,
                // It is gone, or in an unknown form: it has no segments of ours.
                Err(FsError::NotFound | FsError::Stale) => return Ok(None),
                Err(FsError::Store(error)) if error.why == Why::NotFound => {
                    return Ok(node.state.lock().etag.clone());
                }
                Err(error) => return Err(error),
            };
            let version = state.etag.clone();
            let spans = state.content.spans(0, u64::MAX);
            let is_own = |source| matches!(source, Some(crate::content::FileSource::Own { .. }));
            let is_needed = spans.into_iter().any(|span| is_own(span.source));
            let base = state.content.base();
            let needed = is_open && is_needed && base.is_plain;
            let own = self.own_version(path, &state);
            (version, own, needed, state.file_id().to_owned())
        };
        if is_needed {
            let copy = match self.committer.copy_own(&own, &file_id).await {
                Ok(copy) => copy,
                // Another client has replaced or removed it.
                Err(error) if matches!(error.why, Why::Changed | Why::NotFound) => {
                    return Ok(version);
                }
                Err(error) => return Err(error.into()),
            };
            let mut state = node.state.lock();
            state.content.own_moved(&copy);
            state.made.push(copy);
        }
        Ok(version)
    }

    /// Records that the name has been removed from the store.
    pub(super) fn unlinked(&self, path: &str, node: &Arc<Node>) {
        let is_open = {
            let mut state = node.state.lock();
            state.is_unlinked = true;
            state.changed_here = Some(Instant::now());
            state.ctime = Time::now();
            state.opens > 0
        };
        self.forget_close(node);
        if !is_open {
            self.drop_content(node);
        }
        let mut tree = self.tree.lock();
        if tree.at(path).is_some_and(|at| Arc::ptr_eq(&at, node)) {
            tree.detach_path(path);
        }
        tree.removed(path);
        drop(tree);
        self.touch(parent_of(path));
    }

    /// Drops the bytes of an unlinked file without open handles.
    pub(super) fn drop_content(&self, node: &Node) {
        let segments = {
            let mut state = node.state.lock();
            let mut segments = match state.leaves_segments {
                true => Vec::new(),
                false => state.content.base().segments(),
            };
            // Segments of an attempt in doubt may be on the store, and have another name by now.
            let mut made = std::mem::take(&mut state.made);
            let attempts = state.attempts.iter();
            let doubtful: Vec<&Attempt> = attempts
                .filter(|attempt| attempt.is_in_doubt || state.leaves_segments)
                .collect();
            made.retain(|made| !doubtful.iter().any(|tried| tried.needed.contains(made)));
            segments.append(&mut made);
            state.content = crate::content::Content::default();
            state.is_loaded = true;
            segments
        };
        self.remove_segments(segments);
    }

    /// Does a name exist that a listing does not show? It may be unstored, or stored so recently
    /// that the listing may be out of date. Then the store decides, since another host may have
    /// removed it.
    pub(super) async fn is_unlisted_here(&self, path: &str, node: &Arc<Node>) -> FsResult<bool> {
        // Another host may have removed one of several names of a file that is changed here.
        let is_link = self.tree.lock().home(path).is_some();
        let is_recent = {
            let state = node.state.lock();
            if state.is_local() && !is_link {
                return Ok(true);
            }
            state.is_local() || state.changed_within(LISTING_LAG)
        };
        if !is_recent {
            return Ok(false);
        }
        match self.look_again(path).await {
            Ok(_) => Ok(true),
            Err(FsError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Is a directory empty? Names recently removed here do not count, even if listed.
    pub(super) async fn is_empty(&self, path: &str) -> FsResult<bool> {
        let prefix = below(path);
        let children = self.tree.lock().children(path);
        for (name, node) in children {
            let is_here = self.is_unlisted_here(&join(path, &name), &node).await?;
            if is_here {
                return Ok(false);
            }
        }
        Ok(!self.is_anything_listed(&prefix).await?)
    }

    /// Does the store list an object with this prefix? Names recently removed here do not count.
    pub(super) async fn is_anything_listed(&self, prefix: &str) -> FsResult<bool> {
        let mut marker = String::new();
        loop {
            let rows = self.store.list(prefix, &marker, true, 0).await?;
            let Some(last) = rows.last() else {
                return Ok(false);
            };
            marker = last.name().to_owned();
            let tree = self.tree.lock();
            // A name that ends with the slash is another tool's object for the directory itself.
            let is_there = |row: &Row| row.name() != prefix && !tree.was_removed(row.name());
            if rows.iter().any(is_there) {
                return Ok(true);
            }
        }
    }

    pub(crate) async fn rmdir(&self, parent: u64, name: &str) -> FsResult<()> {
        self.writable()?;
        let _names = self.namespace.write().await;
        let path = self.path_in(parent, name)?;
        let node = self.find(&path).await?;
        if node.state.lock().attributes.kind != Kind::Directory {
            return Err(FsError::NotADirectory);
        }
        if !self.is_empty(&path).await? {
            return Err(FsError::NotEmpty);
        }
        self.keep_directory(parent_of(&path)).await?;
        self.store.delete(&path, Expect::Anything).await?;
        self.store.delete(&below(&path), Expect::Anything).await?;
        self.unlinked(&path, &node);
        Ok(())
    }
}
