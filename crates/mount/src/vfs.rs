//! The file system: names, nodes and handles over a store. Its calls correspond to the kernel's,
//! with types of their own; errors are [`FsError`].
//!
//! A node whose content or attributes were changed here and not committed yet is *local*: its state
//! is newer than the store's. The state of all others is cached for a second, and files are
//! revalidated whenever they are opened (close-to-open consistency).

mod attributes;
mod changes;
mod closes;
mod commits;
mod directories;
mod files;
mod flattening;
#[cfg(test)]
pub(crate) mod for_tests;
mod gathering;
mod links;
mod misses;
mod names;
mod pages;
mod removals;
mod renames;
#[cfg(test)]
mod tests;
mod tree;
mod upkeep;
mod uploads;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::attributes::{Attributes, Defaults, Kind, Xattrs};
use crate::cache::{Cache, DiskCache, Version};
use crate::commit::{Committer, Limits};
use crate::content::{Budget, Content, Layout};
use crate::error::{FsError, FsResult};
use crate::journal::Journal;
use crate::store::{
    Form, Headers, ObjectName, Row, SEGMENTS, Stat, Store, StoreError, Usage, Why, file_id,
};
use crate::time::{Instant, Time};

pub(crate) use attributes::{Changes, XattrMode, is_offered};
pub(crate) use closes::Replayed;
pub(crate) use directories::DirectoryEntry;
use files::Handle;
pub(crate) use files::OpenMode;
pub(crate) use names::Owner;
pub(crate) use pages::Overwrite;
use tree::{Node, State, Tree, below, join};
pub(crate) use tree::{ROOT, Stale};

/// Options of a file system.
#[derive(Clone, Debug)]
pub(crate) struct VfsOptions {
    pub(crate) is_read_only: bool,
    pub(crate) defaults: Defaults,
    /// Validity of cached state.
    pub(crate) fresh: Duration,
    pub(crate) limits: Limits,
    /// Size of the block cache in bytes.
    pub(crate) cache_bytes: u64,
    pub(crate) block_bytes: u64,
    /// Maximum bytes in memory that are not on the store.
    pub(crate) unwritten_bytes: u64,
    /// Time without writes after which small parts are flattened; `None`: never.
    pub(crate) flatten_after: Option<Duration>,
    /// Segments of versions that were replaced stay that long.
    pub(crate) superseded_for: Duration,
}

/// Attributes for `stat`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attr {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    /// Number of hard links: 0 for an unlinked file. For a directory 1, which programs interpret as
    /// unknown.
    pub(crate) nlink: u32,
    pub(crate) attributes: Attributes,
    pub(crate) ctime: Time,
}

/// Maximum length of a name, as in other file systems; the store limits paths.
const NAME_MAX_BYTES: usize = 255;
/// Additional validity of a large listing, for each row.
const FRESH_PER_ROW: Duration = Duration::from_micros(200);
/// Maximum attempts to read a consistent version of a file that others keep writing.
const LOADS_MAX: u32 = 50;

pub(crate) struct Vfs<S> {
    store: Arc<S>,
    cache: Arc<Cache<S>>,
    committer: Arc<Committer<S>>,
    tree: Mutex<Tree>,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    directories: Mutex<HashMap<u64, Arc<directories::Stream>>>,
    next_handle: AtomicU64,
    /// Held for writing while the paths of many nodes change, for reading while a path is used.
    namespace: tokio::sync::RwLock<()>,
    budget: Arc<Budget>,
    /// Removals of segments in the background.
    background: Mutex<tokio::task::JoinSet<()>>,
    flattening: Mutex<tokio::task::JoinSet<()>>,
    pins: tokio::sync::Mutex<upkeep::Pins>,
    misses: Mutex<misses::Misses>,
    usage: Mutex<Option<(Instant, Usage)>>,
    /// Journal of closed files, for which closes wait instead of the store.
    journal: Option<Arc<Journal>>,
    options: VfsOptions,
}

/// Result of looking up a name.
enum Found {
    Object(Box<Stat>),
    /// No object, but there are objects below it.
    Directory,
}

impl<S: Store> Vfs<S> {
    pub(crate) fn new(store: S, options: VfsOptions, disk: Option<DiskCache>) -> Vfs<S> {
        let store = Arc::new(store);
        let cache = Cache::new(store.clone(), options.block_bytes, options.cache_bytes);
        let cache = Arc::new(cache.with_disk(disk));
        let root = Attributes::default_of(Kind::Directory, Time::now(), options.defaults);
        Vfs {
            committer: Arc::new(Committer::new(
                store.clone(),
                cache.clone(),
                options.limits,
                options.superseded_for,
            )),
            background: Mutex::default(),
            flattening: Mutex::default(),
            pins: tokio::sync::Mutex::default(),
            misses: Mutex::default(),
            store,
            cache,
            tree: Mutex::new(Tree::new(State::new(root))),
            handles: Mutex::default(),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
            namespace: tokio::sync::RwLock::new(()),
            budget: Arc::default(),
            usage: Mutex::new(None),
            journal: None,
            options,
        }
    }

    pub(crate) fn fresh(&self) -> Duration {
        self.options.fresh
    }

    fn new_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn node(&self, ino: u64) -> FsResult<Arc<Node>> {
        self.tree.lock().node(ino).ok_or(FsError::NotFound)
    }

    /// The path of a node. A node that another host has removed is stale: the kernel then looks up
    /// its name again, which may be another file by now.
    fn path(&self, ino: u64) -> FsResult<String> {
        let tree = self.tree.lock();
        if let Some(path) = tree.path(ino) {
            return Ok(path);
        }
        match tree.node(ino) {
            Some(node) if !node.state.lock().is_unlinked => Err(FsError::Stale),
            _ => Err(FsError::NotFound),
        }
    }

    fn writable(&self) -> FsResult<()> {
        match self.options.is_read_only {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// The validated path of a name in a directory.
    fn path_in(&self, parent: u64, name: &str) -> FsResult<String> {
        let directory = self.path(parent)?;
        let path = join(&directory, name);
        if name.len() > NAME_MAX_BYTES || !self.store.fits(&path) {
            return Err(FsError::NameTooLong);
        }
        Ok(path)
    }

    /// The validated path of a name that is to be created.
    fn new_path_in(&self, parent: u64, name: &str) -> FsResult<String> {
        let path = self.path_in(parent, name)?;
        match path == SEGMENTS {
            true => Err(FsError::Reserved),
            false => Ok(path),
        }
    }

    fn attr(node: &Node) -> Attr {
        let state = node.state.lock();
        let size = match state.attributes.kind {
            Kind::Directory => 4096,
            Kind::File | Kind::Symlink => state.size(),
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => 0,
        };
        Attr {
            ino: node.ino,
            size,
            nlink: match state.is_unlinked {
                true => 0,
                false => state.links,
            },
            attributes: state.attributes.clone(),
            ctime: state.ctime,
        }
    }

    /// Looks up a path on the store; unless it is known to be an object, concurrently checks for
    /// objects below it.
    async fn look(&self, path: &str, is_object: bool) -> FsResult<Found> {
        if !is_object && self.has_nothing_below(path).await? {
            return match self.store.head(path).await {
                Ok(stat) => Ok(Found::Object(Box::new(stat))),
                Err(error) if error.why == Why::NotFound => Err(FsError::NotFound),
                Err(error) => Err(error.into()),
            };
        }
        let directory = below(path);
        let list = self.store.list(&directory, "", true, 1);
        let (stat, rows) = match is_object {
            true => (self.store.head(path).await, None),
            false => {
                let (stat, rows) = tokio::join!(self.store.head(path), list);
                (stat, Some(rows))
            }
        };
        match stat {
            Ok(stat) => Ok(Found::Object(Box::new(stat))),
            Err(error) if error.why == Why::NotFound => {
                let rows = match rows {
                    Some(rows) => rows?,
                    None => self.store.list(&directory, "", true, 1).await?,
                };
                // The rows of names that were just removed here may be out of date: the directory is gone
                // with the last of them.
                let first = rows.first();
                let is_gone = first.map(|row| self.tree.lock().was_removed(row.name()));
                let is_there = match is_gone {
                    Some(true) => self.is_anything_listed(&directory).await?,
                    Some(false) => true,
                    None => false,
                };
                match is_there {
                    true => Ok(Found::Directory),
                    false => Err(FsError::NotFound),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Updates a node from a HEAD sent at `asked`. The modification time of a known version is
    /// kept: ours and the store's differ by the latency, and programs like tar treat a file whose
    /// time changes as modified.
    fn absorb(&self, state: &mut State, stat: Stat, asked: Instant) {
        let is_outdated = state.changed_here.is_some_and(|at| at >= asked);
        let is_overtaken = state.asked.is_some_and(|at| at > asked);
        if state.is_local() || is_outdated || is_overtaken {
            return;
        }
        state.asked = Some(asked);
        let is_same = state.etag.as_ref() == Some(&stat.etag) && state.form == stat.form;
        if !is_same {
            state.is_loaded = false;
            state.content = Content::default();
            state.target = None;
            state.file_id = None;
            state.attempts.clear();
        }
        let attributes = Attributes::of_headers(&stat.headers, stat.changed, self.options.defaults);
        let xattrs = Xattrs::of_headers(&stat.headers);
        let is_known = is_same
            && state.attributes.is_but_for_reading(&attributes)
            && (!state.has_all_headers || state.xattrs == xattrs);
        if !is_known {
            state.ctime = stat.changed;
        }
        let atime = state.attributes.atime;
        state.attributes = attributes;
        state.attributes.atime = state.attributes.atime.or(atime);
        state.xattrs = xattrs;
        state.has_xattrs = !state.xattrs.0.is_empty();
        state.has_all_headers = true;
        state.headers = stat.headers;
        state.bytes = stat.bytes;
        state.form = stat.form;
        if let Some(touched) = state.touched {
            state.attributes.mtime = state.attributes.mtime.max(touched);
            state.ctime = state.ctime.max(touched);
        }
        state.etag = Some(stat.etag);
        let is_doubted = state.doubted.is_some_and(|at| at >= asked);
        state.fresh_until = match is_doubted {
            true => asked,
            false => Instant::now() + self.options.fresh,
        };
    }

    /// The state of a newly found object, before anything of it but its kind is known.
    fn unread(&self, stat: &Stat) -> State {
        let kind = Kind::of_content_type(&stat.headers.content_type);
        State::new(Attributes::default_of(
            kind,
            stat.changed,
            self.options.defaults,
        ))
    }

    /// The state of a newly found object.
    fn state_of(&self, stat: Stat) -> State {
        let mut state = self.unread(&stat);
        self.absorb(&mut state, stat, Instant::now());
        state
    }

    /// The state of a directory that exists only by the objects below it.
    fn state_of_implied(&self) -> State {
        let now = Time::default();
        let attributes = Attributes::default_of(Kind::Directory, now, self.options.defaults);
        let mut state = State::new(attributes);
        state.fresh_until = Instant::now() + self.options.fresh;
        state
    }

    /// The state from a listing's row, if its content type has the attributes.
    fn state_of_row(&self, row: &Row, until: Instant) -> Option<State> {
        let Row::Object {
            bytes,
            etag,
            content_type,
            changed,
            ..
        } = row
        else {
            return None;
        };
        let (attributes, has_xattrs) = Attributes::of_content_type(content_type)?;
        let mut state = State::new(attributes);
        state.headers = Headers::new(content_type);
        state.has_all_headers = false;
        state.has_xattrs = has_xattrs;
        state.bytes = *bytes;
        state.etag = Some(etag.clone());
        state.ctime = *changed;
        state.fresh_until = until;
        Some(state)
    }

    /// The node of a path, from the store or the cache.
    async fn find(&self, path: &str) -> FsResult<Arc<Node>> {
        {
            let tree = self.tree.lock();
            if let Some(node) = tree.at(path) {
                let (state, now) = (node.state.lock(), Instant::now());
                // A name of several is believed for itself: another host may have replaced it.
                let leads_here = tree.linked_until(path).is_none_or(|until| until > now);
                let is_known = state.is_local() || state.fresh_until > now || node.ino == ROOT;
                if leads_here && is_known {
                    drop(state);
                    return Ok(node);
                }
            } else {
                // A complete listing did not contain it.
                if tree.listed.is_complete(tree::parent_of(path)) {
                    return Err(FsError::NotFound);
                }
            }
        }
        self.look_undoubted(path).await
    }

    /// The node of a path, from the store.
    async fn look_again(&self, path: &str) -> FsResult<Arc<Node>> {
        if path.is_empty() {
            return self.node(ROOT);
        }
        if path == SEGMENTS {
            return Err(FsError::NotFound);
        }
        let asked = Instant::now();
        let known = self.tree.lock().at(path);
        let is_object = known.is_some_and(|node| node.state.lock().etag.is_some());
        let found = self.look(path, is_object).await;
        let links = self.links_of(&found).await?;
        let until = asked + self.options.fresh;
        let mut tree = self.tree.lock();
        let known = tree.at(path);
        if let Some(node) = &known {
            let leads_elsewhere = tree.home(path).is_some_and(|home| {
                !matches!(&found, Ok(Found::Object(stat)) if stat.home.as_ref() == Some(&home))
            });
            // A change of the file says nothing of a name that led to it; a later answer does.
            let was_led = tree.linked_until(path) >= Some(until);
            let mut state = node.state.lock();
            let is_outdated = state.changed_here.is_some_and(|at| at >= asked);
            let is_known = match leads_elsewhere {
                true => was_led,
                false => is_outdated || state.is_local(),
            };
            if is_known {
                drop(state);
                return Ok(node.clone());
            }
            match found {
                Ok(Found::Object(stat)) => {
                    let kind = Kind::of_content_type(&stat.headers.content_type);
                    let is_same_kind = kind == state.attributes.kind;
                    drop(state);
                    let home = stat.home.clone().unwrap_or_else(|| path.to_owned());
                    let is_same = tree.path(node.ino).as_deref() == Some(&*home);
                    let now = match is_same_kind && is_same && home == path {
                        true => node.clone(),
                        // Another object is there now, which is another node, or the same one has
                        // several names.
                        false => {
                            let known = is_same_kind.then_some(node);
                            tree.lead(path, &home, known, self.unread(&stat), until)
                        }
                    };
                    self.found_again(&now, *stat, links, asked);
                    return Ok(now);
                }
                Ok(Found::Directory) if state.attributes.kind == Kind::Directory => {
                    state.etag = None;
                    state.fresh_until = Instant::now() + self.options.fresh;
                    drop(state);
                    return Ok(node.clone());
                }
                Ok(Found::Directory) => {
                    drop(state);
                    return Ok(tree.add(path, self.state_of_implied()));
                }
                Err(error) => {
                    drop(state);
                    if matches!(error, FsError::NotFound) {
                        tree.detach_path(path);
                    }
                    return Err(error);
                }
            }
        }
        if matches!(found, Err(FsError::NotFound)) {
            tree.absent(path, Instant::now() + self.options.fresh);
            self.misses.lock().missed(path);
        }
        match found? {
            Found::Object(stat) => {
                let home = stat.home.as_deref().unwrap_or(path);
                let node = tree.lead(path, home, None, self.unread(&stat), until);
                self.found_again(&node, *stat, links, asked);
                Ok(node)
            }
            Found::Directory => Ok(tree.add(path, self.state_of_implied())),
        }
    }

    /// Takes over what the store has of a node.
    fn found_again(&self, node: &Node, stat: Stat, links: Option<u32>, asked: Instant) {
        let mut state = node.state.lock();
        self.absorb(&mut state, stat, asked);
        state.links = links.unwrap_or(state.links);
    }

    /// The object under a node's own name, in the known version.
    fn own_version(&self, path: &str, state: &State) -> Arc<Version> {
        let etag = state.etag.as_deref().unwrap_or_default();
        Arc::new(Version {
            name: ObjectName::new(self.store.container(), path),
            etag: Some(etag.into()),
            bytes: state.content.base().bytes,
        })
    }

    /// Loads the layout of a file; for a large object from its manifest.
    async fn load(&self, node: &Node) -> FsResult<()> {
        for lost in 0..LOADS_MAX {
            commits::pause(lost).await;
            {
                let state = node.state.lock();
                if state.is_loaded || state.etag.is_none() {
                    return Ok(());
                }
            }
            let path = self.path(node.ino)?;
            if !node.state.lock().has_all_headers {
                // A listing does not contain the form of an object.
                self.look_again(&path).await?;
            }
            let (etag, form, bytes) = {
                let state = node.state.lock();
                (
                    state.etag.clone().unwrap_or_default(),
                    state.form,
                    state.bytes,
                )
            };
            match self.layout(&path, &etag, form, bytes).await {
                Ok(layout) => {
                    let mut state = node.state.lock();
                    if !state.is_loaded && state.etag.as_ref() == Some(&etag) {
                        let segments = layout.segments();
                        state.file_id = segments
                            .iter()
                            .find_map(|s| file_id(&s.name.name).map(str::to_owned));
                        state.content = Content::of(layout);
                        state.is_loaded = true;
                    }
                }
                Err(error) if error.why == Why::Changed => {
                    let now = self.look_again(&path).await?;
                    // A file that got further names elsewhere may be two nodes here: the look was the
                    // other's.
                    if now.ino != node.ino {
                        let asked = Instant::now();
                        let stat = self.store.head_newest(&path).await?;
                        self.absorb(&mut node.state.lock(), stat, asked);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(FsError::Contended)
    }

    /// The locked state of a file with its layout loaded. Another call may find another version at
    /// any time, which would unload the layout; so the lock is held.
    async fn loaded<'a>(&self, node: &'a Node) -> FsResult<MutexGuard<'a, State>> {
        for _ in 0..LOADS_MAX {
            self.load(node).await?;
            let state = node.state.lock();
            if state.is_loaded || state.etag.is_none() {
                return Ok(state);
            }
        }
        Err(FsError::Contended)
    }

    /// The layout of a version.
    async fn layout(
        &self,
        path: &str,
        etag: &str,
        form: Form,
        bytes: u64,
    ) -> Result<Layout, StoreError> {
        match form {
            Form::Plain => return Ok(Layout::own(bytes, true)),
            Form::Dynamic => return Ok(Layout::own(bytes, false)),
            Form::Manifest => {}
        }
        let Some(parts) = self.store.manifest(path, etag).await? else {
            return Ok(Layout::own(bytes, false));
        };
        let layout = self.committer.layout_of(parts).await?;
        match layout.bytes == bytes {
            true => Ok(layout),
            false => Ok(Layout::own(bytes, false)),
        }
    }

    /// Usage of the container, requested at most once a second.
    pub(crate) async fn usage(&self) -> FsResult<Usage> {
        if let Some((until, usage)) = *self.usage.lock()
            && until > Instant::now()
        {
            return Ok(usage);
        }
        let usage = self.store.usage().await?;
        *self.usage.lock() = Some((Instant::now() + self.options.fresh, usage));
        Ok(usage)
    }
}
