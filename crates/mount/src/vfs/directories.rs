//! Directory streams: an open directory is read page by page from the store's listing, as the
//! kernel requests entries, with names that were created here and are not stored yet, and without
//! names that were just removed.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt;

use super::tree::{LISTING_LAG, Node, ROOT, State, below, join, parent_of};
use super::{Attr, FRESH_PER_ROW, NAME_MAX_BYTES, Vfs};
use crate::attributes::{Attributes, Kind};
use crate::error::{FsError, FsResult};
use crate::links::HardLink;
use crate::store::{Row, SEGMENTS, Store};
use crate::time::Instant;

/// Concurrent HEADs for rows without attributes.
const CONCURRENT_HEADS_MAX: usize = 32;

/// Number of the entries `.` and `..`.
const DOTS: usize = 2;

/// Maximum number of entries in a reply.
const ENTRIES_MAX: usize = 64;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryEntry {
    pub(crate) name: String,
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
}

/// An open directory.
#[derive(Default)]
pub(crate) struct Stream(tokio::sync::Mutex<Position>);

#[derive(Default)]
struct Position {
    entries: Vec<DirectoryEntry>,
    marker: String,
    is_begun: bool,
    is_ended: bool,
    /// Number of this reading of the directory, among those that may know it completely.
    reader: u64,
    told: HashSet<String>,
}

fn link_of(row: &Row) -> Option<HardLink> {
    match row {
        Row::Object { content_type, .. } => HardLink::of_content_type(content_type),
        Row::Prefix(_) => None,
    }
}

impl<S: Store> Vfs<S> {
    pub(crate) async fn opendir(&self, ino: u64) -> FsResult<u64> {
        let node = self.node(ino)?;
        if node.state.lock().attributes.kind != Kind::Directory {
            return Err(FsError::NotADirectory);
        }
        let number = self.new_handle();
        self.directories.lock().insert(number, Arc::default());
        Ok(number)
    }

    pub(crate) fn releasedir(&self, number: u64) {
        self.directories.lock().remove(&number);
        self.tree.lock().sweep();
    }

    /// Entries from the `offset`-th on, at least one if there are more.
    pub(crate) async fn readdir(
        &self,
        ino: u64,
        number: u64,
        offset: u64,
    ) -> FsResult<Vec<DirectoryEntry>> {
        let stream = self.directories.lock().get(&number).cloned();
        let stream = stream.ok_or(FsError::BadHandle)?;
        let mut position = stream.0.lock().await;
        if offset == 0 {
            // Rewound: entries may have changed since they were read.
            *position = Position::default();
        }
        if !position.is_begun {
            position.is_begun = true;
            let path = self.path(ino)?;
            let parent = self
                .tree
                .lock()
                .at(parent_of(&path))
                .map_or(ROOT, |node| node.ino);
            for (name, ino) in [(".", ino), ("..", parent)] {
                let name = name.to_owned();
                position.entries.push(DirectoryEntry {
                    name,
                    ino,
                    kind: Kind::Directory,
                });
            }
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        // The directory itself and its parent come with the first page.
        while offset.max(DOTS) >= position.entries.len() && !position.is_ended {
            self.next_page(ino, &mut position).await?;
        }
        let entries = position.entries.get(offset..).unwrap_or_default();
        Ok(entries[..entries.len().min(ENTRIES_MAX)].to_vec())
    }

    async fn next_page(&self, ino: u64, position: &mut Position) -> FsResult<()> {
        let path = self.path(ino)?;
        let prefix = below(&path);
        if position.marker.is_empty() {
            position.reader = self.tree.lock().listed.begin(&path);
        }
        let asked = Instant::now();
        let rows = self.store.list(&prefix, &position.marker, false, 0).await?;
        let mut until = Instant::now() + self.options.fresh;
        until += FRESH_PER_ROW * rows.len() as u32;
        match rows.last() {
            Some(last) => position.marker = last.name().to_owned(),
            None => position.is_ended = true,
        }
        self.take_rows(&path, &rows, position, (asked, until));
        if !position.is_ended {
            return Ok(());
        }
        let children = self.tree.lock().children(&path);
        for (name, node) in children {
            if position.told.contains(&name)
                || !self.is_unlisted_here(&join(&path, &name), &node).await?
            {
                continue;
            }
            let kind = node.state.lock().attributes.kind;
            position.told.insert(name.clone());
            position.entries.push(DirectoryEntry {
                name,
                ino: node.ino,
                kind,
            });
        }
        let mut tree = self.tree.lock();
        tree.listed.end(&path, position.reader, until);
        Ok(())
    }

    /// Adds entries for a page's rows, which were requested at `asked` and are valid until `until`.
    fn take_rows(
        &self,
        directory: &str,
        rows: &[Row],
        position: &mut Position,
        (asked, until): (Instant, Instant),
    ) {
        let prefix = below(directory);
        let mut tree = self.tree.lock();
        for row in rows {
            let name = row.name().strip_prefix(&prefix).unwrap_or_default();
            let name = name.strip_suffix('/').unwrap_or(name);
            let is_odd = name.is_empty() || name == "." || name == ".." || name.contains('/');
            let path = join(directory, name);
            if is_odd || name.len() > NAME_MAX_BYTES || path == SEGMENTS {
                continue;
            }
            // A file hides names below its own.
            if tree.was_removed(&path) || !position.told.insert(name.to_owned()) {
                continue;
            }
            let node = match (link_of(row), tree.at(&path)) {
                (Some(link), known) => {
                    let home = link.home();
                    self.listed_link(&mut tree, (&path, &home), known, self.listed(row, until))
                }
                (None, Some(node)) => {
                    self.listed_again(&mut tree, &path, node, row, (asked, until))
                }
                (None, None) => tree.add(&path, self.listed(row, until)),
            };
            let kind = node.state.lock().attributes.kind;
            position.entries.push(DirectoryEntry {
                name: name.to_owned(),
                ino: node.ino,
                kind,
            });
        }
    }

    /// The node of a hard link, of which a row says nothing but where it leads.
    fn listed_link(
        &self,
        tree: &mut super::Tree,
        (path, home): (&str, &str),
        known: Option<Arc<Node>>,
        listed: State,
    ) -> Arc<Node> {
        let leads_there = tree.home(path).as_deref() == Some(home);
        let kind = listed.attributes.kind;
        match known.filter(|node| node.state.lock().attributes.kind == kind) {
            Some(node) if leads_there => node,
            // Changed here since: the store decides when it is looked up.
            Some(node) if node.state.lock().changed_within(LISTING_LAG) => node,
            // Handles of the node go on where another host has made the name lead.
            known => tree.lead(path, home, known.as_ref(), listed, Instant::now()),
        }
    }

    /// The state of a name for which only a listing's row is known.
    fn listed(&self, row: &Row, until: Instant) -> State {
        if let Some(state) = self.state_of_row(row, until) {
            return state;
        }
        match row {
            Row::Prefix(_) => {
                // The directory may have an object with attributes.
                let mut state = self.state_of_implied();
                state.fresh_until = Instant::now();
                state
            }
            Row::Object {
                bytes,
                content_type,
                changed,
                ..
            } => {
                let kind = Kind::of_content_type(content_type);
                let defaults = self.options.defaults;
                let attributes = Attributes::default_of(kind, *changed, defaults);
                let mut state = State::new(attributes);
                state.bytes = *bytes;
                state.has_all_headers = false;
                state.fresh_until = Instant::now();
                state
            }
        }
    }

    /// Updates a known node from a row of a listing that was requested at `asked`.
    fn listed_again(
        &self,
        tree: &mut super::Tree,
        path: &str,
        node: Arc<Node>,
        row: &Row,
        (asked, until): (Instant, Instant),
    ) -> Arc<Node> {
        let Row::Object {
            etag,
            content_type,
            changed,
            bytes,
            ..
        } = row
        else {
            return node;
        };
        let is_other_kind = {
            let mut state = node.state.lock();
            let is_late = state.is_local()
                || state.changed_within(LISTING_LAG)
                || state.fresh_until > asked
                || *changed < state.ctime && state.touched.is_none();
            if is_late {
                false
            } else if Kind::of_content_type(content_type) != state.attributes.kind {
                true
            } else if state.etag.as_ref() == Some(etag) && state.bytes == *bytes {
                if let Some((attributes, has_xattrs)) = Attributes::of_content_type(content_type) {
                    if state.has_xattrs != has_xattrs || state.attributes != attributes {
                        state.has_all_headers = false;
                        state.ctime = *changed;
                    }
                    state.attributes = attributes;
                    state.has_xattrs = has_xattrs;
                    state.fresh_until = until;
                }
                false
            } else {
                // Another version, which is read when needed.
                state.fresh_until = Instant::now();
                false
            }
        };
        match is_other_kind {
            true => tree.add(path, self.listed(row, until)),
            false => node,
        }
    }

    /// Entries like [`Vfs::readdir`], with attributes, and with the offset after each entry.
    /// Entries removed meanwhile are omitted; an empty result is the end.
    pub(crate) async fn readdir_plus(
        &self,
        ino: u64,
        number: u64,
        mut offset: u64,
    ) -> FsResult<Vec<(u64, String, Attr)>> {
        loop {
            let entries = self.readdir(ino, number, offset).await?;
            if entries.is_empty() {
                return Ok(Vec::new());
            }
            let attributes = self.attributes_of(ino, entries.clone()).await?;
            let mut found = Vec::with_capacity(entries.len());
            for (entry, attr) in entries.into_iter().zip(attributes) {
                offset += 1;
                found.extend(attr.map(|attr| (offset, entry.name, attr)));
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }

    /// The attributes of entries; `None` for an entry removed meanwhile.
    pub(super) async fn attributes_of(
        &self,
        directory: u64,
        entries: Vec<DirectoryEntry>,
    ) -> FsResult<Vec<Option<Attr>>> {
        let path = self.path(directory)?;
        let find = |entry: DirectoryEntry| {
            let path = join(&path, &entry.name);
            async move {
                if entry.name == "." || entry.name == ".." {
                    return Ok(self.node(entry.ino).ok().map(|node| Self::attr(&node)));
                }
                match self.find(&path).await {
                    Ok(node) => Ok(Some(Self::attr(&node))),
                    Err(FsError::NotFound) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        };
        let found = futures_util::stream::iter(entries.into_iter().map(find));
        let found: Vec<FsResult<Option<Attr>>> =
            found.buffered(CONCURRENT_HEADS_MAX).collect().await;
        found.into_iter().collect()
    }

    /// The kernel has received an entry with its attributes.
    pub(crate) fn told_entry(&self, ino: u64) {
        self.tree.lock().looked_up(ino);
    }
}
