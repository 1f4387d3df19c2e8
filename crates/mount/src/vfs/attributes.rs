//! Attribute calls: stat, chmod, chown, utimens, truncate, and extended attributes.

use std::sync::Arc;

use super::tree::{Node, ROOT, State};
use super::{Attr, LOADS_MAX, Vfs, files};
use crate::attributes::{Kind, Xattrs};
use crate::error::{FsError, FsResult};
use crate::store::{Expect, Store, StoreError, Why, insist};
use crate::time::{Instant, Time};

/// Attributes to change by `setattr`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<Time>,
    pub(crate) mtime: Option<Time>,
}

impl Changes {
    fn has_attributes(&self) -> bool {
        let ids = self.mode.is_some() || self.uid.is_some() || self.gid.is_some();
        ids || self.atime.is_some() || self.mtime.is_some()
    }

    fn put_into(&self, state: &mut State) {
        let attributes = &mut state.attributes;
        attributes.mode = self.mode.map_or(attributes.mode, |mode| mode & 0o7777);
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        attributes.mtime = self.mtime.unwrap_or(attributes.mtime);
        attributes.atime = self.atime.or(attributes.atime);
        if self.mtime.is_some() {
            state.touched = None;
        }
        state.ctime = Time::now();
    }
}

/// Mode of `setxattr`: the attribute must be new, or must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XattrMode {
    Any,
    Create,
    Replace,
}

/// Whether there may be extended attributes of this name. There are no access control lists (`system.`),
/// nor labels of SELinux: `ls -l` asks for both of every file, unless it is told so of the first.
pub(crate) fn is_offered(name: &str) -> bool {
    let mut spaces = ["user.", "trusted.", "security."].iter();
    spaces.any(|space| name.starts_with(space)) && name != "security.selinux"
}

impl<S: Store> Vfs<S> {
    /// The node with current state, from the store if the cached one is not valid.
    async fn current(&self, ino: u64) -> FsResult<Arc<Node>> {
        let node = self.node(ino)?;
        let is_known = {
            let state = node.state.lock();
            state.is_local() || state.fresh_until > Instant::now() || ino == ROOT
        };
        if is_known {
            return Ok(node);
        }
        match self.look_undoubted(&self.path(ino)?).await {
            Ok(now) if Arc::ptr_eq(&now, &node) => Ok(node),
            Ok(_) => Err(FsError::Stale),
            Err(FsError::NotFound) if node.state.lock().opens > 0 => Err(FsError::Stale),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn getattr(&self, ino: u64) -> FsResult<Attr> {
        let node = self.current(ino).await?;
        Ok(Self::attr(&node))
    }

    /// Ensures that all headers of the object are known: a POST must repeat those that it would
    /// remove.
    async fn with_headers(&self, node: &Arc<Node>) -> FsResult<()> {
        let is_known = {
            let state = node.state.lock();
            state.has_all_headers || state.is_local()
        };
        if is_known {
            return Ok(());
        }
        let now = self.look_again(&self.path(node.ino)?).await?;
        match Arc::ptr_eq(&now, node) {
            true => Ok(()),
            false => Err(FsError::Stale),
        }
    }

    pub(crate) async fn setattr(&self, ino: u64, changes: Changes) -> FsResult<Attr> {
        self.writable()?;
        let node = self.current(ino).await?;
        self.with_headers(&node).await?;
        let _names = self.namespace.read().await;
        let _turn = node.mutation.lock().await;
        if let Some(size) = changes.size {
            self.resize(&node, size).await?;
        }
        if changes.has_attributes() {
            self.change(&node, |state| {
                changes.put_into(state);
                Ok(())
            })
            .await?;
        }
        Ok(Self::attr(&node))
    }

    /// Resizes a file; the caller holds the node's `mutation`. A file that is not open for writing
    /// is committed at once.
    async fn resize(&self, node: &Arc<Node>, size: u64) -> FsResult<()> {
        if node.state.lock().attributes.kind != Kind::File {
            return Err(FsError::Invalid("only a file has a size"));
        }
        self.check_size(Some(size))?;
        let is_due = {
            let mut state = self.loaded(node).await?;
            state.content.resize(size);
            files::changed(&mut state);
            // A later commit would truncate what another mount writes beyond that size from now on.
            state.writers == 0 || self.store.decides() && state.content.is_cut()
        };
        match is_due {
            true => self.commit_locked(node).await,
            false => Ok(()),
        }
    }

    /// Changes attributes and stores them, at once or with a pending commit. The caller holds the
    /// node's `mutation`.
    async fn change(
        &self,
        node: &Arc<Node>,
        apply: impl Fn(&mut State) -> FsResult<()>,
    ) -> FsResult<()> {
        for _ in 0..LOADS_MAX {
            match self.try_change(node, &apply).await {
                // Headers of the version before would overwrite another mount's changes.
                Err(FsError::Store(error)) if error.why == Why::Changed => {
                    let now = self.look_again(&self.path(node.ino)?).await?;
                    if !Arc::ptr_eq(&now, node) {
                        return Err(FsError::Stale);
                    }
                }
                result => return result,
            }
        }
        Err(FsError::Contended)
    }

    async fn try_change(
        &self,
        node: &Arc<Node>,
        apply: impl Fn(&mut State) -> FsResult<()>,
    ) -> FsResult<()> {
        let (before, headers, etag) = {
            let mut state = node.state.lock();
            let before = (state.attributes.clone(), state.xattrs.clone(), state.ctime);
            apply(&mut state)?;
            state.has_xattrs = !state.xattrs.0.is_empty();
            if state.is_local() || node.ino == ROOT {
                // An unlinked node is not on the store, and the root is not an object.
                state.has_new_attributes |= !state.is_unlinked && node.ino != ROOT;
                state.is_kept = false;
                return Ok(());
            }
            let mut headers = state.headers.clone();
            state.attributes.put_into(&mut headers, &state.xattrs);
            (before, headers, state.etag.clone())
        };
        let path = self.path(node.ino)?;
        let stored = match etag {
            Some(etag) if self.is_link_now(&path, Some(&etag)).await? => {
                let message = format!("{path} is a hard link now");
                Err(StoreError::new(Why::Changed, message))
            }
            Some(etag) => {
                let expect = Expect::Version(&etag);
                let posted = insist(|| self.store.post(&path, &headers, expect)).await;
                posted.map(|()| etag)
            }
            // A directory without an object gets one.
            None => {
                let put = || self.store.put(&path, &headers, Vec::new(), Expect::Nothing);
                insist(put).await
            }
        };
        let mut state = node.state.lock();
        match stored {
            Ok(etag) => {
                state.etag = Some(etag);
                state.headers = headers;
                state.changed_here = Some(Instant::now());
                state.fresh_until = Instant::now() + self.options.fresh;
                Ok(())
            }
            Err(error) => {
                (state.attributes, state.xattrs, state.ctime) = before;
                state.has_xattrs = !state.xattrs.0.is_empty();
                state.fresh_until = Instant::now();
                match error.why {
                    Why::NotFound => Err(FsError::NotFound),
                    _ => Err(error.into()),
                }
            }
        }
    }

    /// The extended attributes of a node.
    async fn xattrs(&self, ino: u64) -> FsResult<(Arc<Node>, Xattrs)> {
        let node = self.current(ino).await?;
        // If a listing states that there are none, that is used.
        if node.state.lock().has_xattrs {
            self.with_headers(&node).await?;
        }
        let xattrs = node.state.lock().xattrs.clone();
        Ok((node, xattrs))
    }

    pub(crate) async fn getxattr(&self, ino: u64, name: &str) -> FsResult<Vec<u8>> {
        let (_, xattrs) = self.xattrs(ino).await?;
        xattrs.0.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    pub(crate) async fn listxattr(&self, ino: u64) -> FsResult<Vec<u8>> {
        let (_, xattrs) = self.xattrs(ino).await?;
        let mut names = Vec::new();
        for name in xattrs.0.keys().filter(|name| is_offered(name)) {
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        Ok(names)
    }

    pub(crate) async fn setxattr(
        &self,
        ino: u64,
        name: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        if !is_offered(name) {
            return Err(FsError::NotOffered("an attribute of this name space"));
        }
        self.change_xattrs(ino, |xattrs| {
            match (mode, xattrs.0.contains_key(name)) {
                (XattrMode::Create, true) => return Err(FsError::Exists),
                (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
                _ => {}
            }
            xattrs.0.insert(name.to_owned(), value.to_vec());
            match xattrs.fits() {
                true => Ok(()),
                false => Err(FsError::AttributesFull),
            }
        })
        .await
    }

    pub(crate) async fn removexattr(&self, ino: u64, name: &str) -> FsResult<()> {
        self.change_xattrs(ino, |xattrs| {
            xattrs
                .0
                .remove(name)
                .map(|_| ())
                .ok_or(FsError::NoAttribute)
        })
        .await
    }

    async fn change_xattrs(
        &self,
        ino: u64,
        apply: impl Fn(&mut Xattrs) -> FsResult<()>,
    ) -> FsResult<()> {
        self.writable()?;
        let (node, _) = self.xattrs(ino).await?;
        self.with_headers(&node).await?;
        let _names = self.namespace.read().await;
        let _turn = node.mutation.lock().await;
        self.change(&node, |state| {
            let mut xattrs = state.xattrs.clone();
            apply(&mut xattrs)?;
            state.xattrs = xattrs;
            state.ctime = Time::now();
            Ok(())
        })
        .await
    }
}
