//! A node, with what is known of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::attributes::{Attributes, Xattrs};
use crate::content::{Content, FileSource};
use crate::extents::Extents;
use crate::merges::Merges;
use crate::store::{Form, Headers, Segment, StoreError};
use crate::time::{Instant, Time};
use crate::vfs::pages::Pages;

/// A file, directory or link to which the kernel or a handle has a reference.
pub(crate) struct Node {
    pub(crate) ino: u64,
    /// Its place among all nodes, in the order in which they came.
    pub(super) serial: u64,
    pub(crate) state: Mutex<State>,
    /// Held during every change of the content or of the version on the store.
    pub(crate) mutation: tokio::sync::Mutex<()>,
}

/// A version that was sent and not acknowledged.
#[derive(Clone)]
pub(crate) struct Attempt {
    /// The commit's token in the file's history.
    pub(crate) token: String,
    /// End of the appended bytes that are part of it.
    pub(crate) end: u64,
    pub(crate) needed: HashSet<Arc<Segment>>,
    /// The writes that it had over its base.
    pub(crate) written: Extents<FileSource>,
    /// Number of times that the file had been made shorter.
    pub(crate) shrunk: usize,
    /// Nested manifests that were made for it alone.
    pub(crate) indexes: Vec<Arc<Segment>>,
    /// The store has told that it was not stored.
    pub(crate) is_lost: bool,
    /// The answer did not tell whether it was stored.
    pub(crate) is_in_doubt: bool,
    /// Nothing has been written since.
    pub(crate) is_current: bool,
    /// Its call has failed, and its change is not in the local state any more.
    pub(crate) is_taken_back: bool,
}

/// The known state of a node.
pub(crate) struct State {
    pub(crate) attributes: Attributes,
    /// Content type and metadata of the object, including those of other clients.
    pub(crate) headers: Headers,
    pub(crate) xattrs: Xattrs,
    /// False if only a listing's row is known.
    pub(crate) has_all_headers: bool,
    pub(crate) has_xattrs: bool,
    pub(crate) ctime: Time,
    /// ETag of the version on the store; `None` without an object: a new file, an implied
    /// directory.
    pub(crate) etag: Option<String>,
    pub(crate) form: Form,
    /// Size of the version on the store, while the content is not loaded.
    pub(crate) bytes: u64,
    pub(crate) content: Content,
    pub(crate) is_loaded: bool,
    /// Attributes to be stored by the next commit.
    pub(crate) has_new_attributes: bool,
    /// The journal of closed files has all that is not on the store.
    pub(crate) is_kept: bool,
    /// End of this state's validity.
    pub(crate) fresh_until: Instant,
    /// Time of this mount's last change on the store.
    pub(crate) changed_here: Option<Instant>,
    /// Time at which the store was asked for what is known: answers may come in another order.
    pub(crate) asked: Option<Instant>,
    /// Time at which the store told of another version: answers to earlier questions are not valid for
    /// longer.
    pub(crate) doubted: Option<Instant>,
    pub(crate) opens: u32,
    pub(crate) writers: u32,
    pub(crate) is_unlinked: bool,
    /// Another name may refer to the segments of its version: they stay when it goes.
    pub(crate) leaves_segments: bool,
    /// Number of hard links; 1 for a file under its own name.
    pub(crate) links: u32,
    /// A link's target, once it has been read.
    pub(crate) target: Option<String>,
    pub(crate) file_id: Option<String>,
    /// Segments uploaded since the last commit.
    pub(crate) made: Vec<Arc<Segment>>,
    pub(crate) uploads: Vec<JoinHandle<Result<(), StoreError>>>,
    /// Commits attempted since the last acknowledged one: any of them may be on the store.
    pub(crate) attempts: Vec<Attempt>,
    /// Written bytes for which no upload has been started.
    pub(crate) unsent: u64,
    /// ETag of the version in the kernel's page cache.
    pub(crate) kernel_has: Option<String>,
    pub(crate) pages: Pages,
    pub(crate) was_warned: bool,
    pub(crate) is_flattening: bool,
    pub(crate) merges: Merges,
    /// Time of this mount's last change in a directory.
    pub(crate) touched: Option<Time>,
}

impl State {
    pub(crate) fn new(attributes: Attributes) -> State {
        State {
            headers: Headers::new(attributes.kind.content_type()),
            ctime: attributes.mtime,
            attributes,
            xattrs: Xattrs::default(),
            has_all_headers: true,
            has_xattrs: false,
            etag: None,
            form: Form::Plain,
            bytes: 0,
            content: Content::default(),
            is_loaded: false,
            has_new_attributes: false,
            is_kept: false,
            fresh_until: Instant::now(),
            changed_here: None,
            asked: None,
            doubted: None,
            opens: 0,
            writers: 0,
            is_unlinked: false,
            leaves_segments: false,
            links: 1,
            target: None,
            file_id: None,
            made: Vec::new(),
            uploads: Vec::new(),
            attempts: Vec::new(),
            unsent: 0,
            kernel_has: None,
            pages: Pages::default(),
            was_warned: false,
            is_flattening: false,
            merges: Merges::default(),
            touched: None,
        }
    }

    /// Is a commit due?
    pub(crate) fn is_dirty(&self) -> bool {
        self.content.is_dirty() || self.has_new_attributes
    }

    /// Is this state newer than the store's?
    pub(crate) fn is_local(&self) -> bool {
        self.is_dirty() || self.is_unlinked
    }

    /// The id of the file, by which its segments are named.
    pub(crate) fn file_id(&mut self) -> &str {
        self.file_id.get_or_insert_with(crate::commit::random_id)
    }

    pub(crate) fn size(&self) -> u64 {
        match self.is_loaded {
            true => self.content.size(),
            false => self.bytes,
        }
    }

    pub(crate) fn changed_within(&self, time: Duration) -> bool {
        self.changed_here.is_some_and(|at| at.elapsed() < time)
    }
}
