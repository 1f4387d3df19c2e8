//! Store interface of the mount: objects of one container, manifests that refer to parts of others,
//! and conditional writes.

#[cfg(test)]
mod memory;
mod swift;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::time::Time;

#[cfg(test)]
pub(crate) use memory::MemoryStore;
pub(crate) use swift::{SwiftStore, options};

/// Name prefix of the mount's own objects in a container.
pub(crate) const SEGMENTS: &str = ".segments";

/// ETag of an empty object. Hard links have it, too, in stores whose conditions do not tell them apart.
pub(crate) const EMPTY_ETAG: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// Length of the ids of files.
pub(crate) const ID_CHARS: usize = 32;

/// Name prefix of all files with several names.
pub(crate) fn links_folder() -> String {
    format!("{SEGMENTS}/links/")
}

/// Name prefix of the objects of zeros, of which holes consist.
pub(crate) fn zeros_folder() -> String {
    format!("{SEGMENTS}/zeros/")
}

pub(crate) fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == ID_CHARS && text.bytes().all(is_digit)
}

/// Is an object one to which hard links lead?
pub(crate) fn is_home(name: &str) -> bool {
    name.strip_prefix(&links_folder()).is_some_and(is_id)
}

/// Id of the file that a segment was created for.
pub(crate) fn file_id(segment: &str) -> Option<&str> {
    let (folder, name) = segment.split_once('/')?;
    let (id, _) = name.split_once('/')?;
    (folder == SEGMENTS && id != "zeros" && id != "links").then_some(id)
}

/// Name of an object, with its container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectName {
    pub(crate) container: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl ObjectName {
    pub(crate) fn new(container: &str, name: &str) -> ObjectName {
        ObjectName {
            container: container.into(),
            name: name.into(),
        }
    }
}

/// An immutable object that holds parts of a file.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    pub(crate) name: ObjectName,
    /// Size of the whole object.
    pub(crate) bytes: u64,
}

/// Headers stored with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Headers {
    pub(crate) content_type: String,
    /// User metadata `X-Object-Meta-NAME`, with lower-case names.
    pub(crate) meta: BTreeMap<String, String>,
    /// Other headers that a replacement would lose: `Content-Encoding`, `X-Delete-At` …
    pub(crate) kept: BTreeMap<String, String>,
}

impl Headers {
    pub(crate) fn new(content_type: &str) -> Headers {
        Headers {
            content_type: content_type.to_owned(),
            ..Headers::default()
        }
    }
}

/// The way in which an object's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    /// A static large object.
    Manifest,
    /// A dynamic large object: its bytes depend on a listing.
    Dynamic,
}

/// Metadata of an object from a HEAD.
#[derive(Clone, Debug)]
pub(crate) struct Stat {
    pub(crate) bytes: u64,
    pub(crate) etag: String,
    /// ETag of the stored bytes, which conditions of copies are about: of a large object its manifest's.
    /// `None` where the store does not tell it.
    pub(crate) stored_etag: Option<String>,
    /// Time when it or its metadata was stored.
    pub(crate) changed: Time,
    pub(crate) form: Form,
    pub(crate) headers: Headers,
    /// The object that has the content, where the name is a hard link (`links.rs`).
    pub(crate) home: Option<String>,
}

/// A part of a large object.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A condition on the current object of a name; the write fails if it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect<'a> {
    Nothing,
    /// An object with this ETag.
    Version(&'a str),
    /// No condition: the name belongs to the writer.
    Anything,
}

/// A row of a listing.
#[derive(Clone, Debug)]
pub(crate) enum Row {
    Object {
        name: String,
        bytes: u64,
        etag: String,
        content_type: String,
        changed: Time,
        /// It is a static large object; some stores do not report this for all.
        is_manifest: bool,
    },
    /// A common prefix of names, up to and including a slash.
    Prefix(String),
}

impl Row {
    pub(crate) fn name(&self) -> &str {
        match self {
            Row::Object { name, .. } | Row::Prefix(name) => name,
        }
    }
}

/// An object that was written or deleted, as the store tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) name: String,
    /// `None` once it is deleted.
    pub(crate) etag: Option<String>,
    pub(crate) content_type: String,
}

impl Changed {
    /// The path of the file or directory.
    pub(crate) fn path(&self) -> &str {
        self.name.trim_end_matches('/')
    }
}

/// A page of a change feed.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    /// Start of the next page.
    pub(crate) cursor: String,
    /// Changes are missing: nothing that is known of the store need be true any more.
    pub(crate) is_reset: bool,
    pub(crate) changed: Vec<Changed>,
}

/// Number of bytes and objects in a container.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
}

/// Reasons for a failure of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    NotFound,
    /// The version differs from the expected one.
    Changed,
    Denied,
    /// No space, or a quota is exceeded.
    Full,
    /// An object or name exceeds the maximum.
    TooLarge,
    /// Unreachable, slow, or busy: it may succeed later.
    Unavailable,
    Timeout,
    /// A refusal for any other reason.
    Refused,
}

#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub(crate) struct StoreError {
    pub(crate) why: Why,
    pub(crate) message: String,
    /// The write may have taken place: only a read can tell.
    pub(crate) is_in_doubt: bool,
}

impl StoreError {
    pub(crate) fn new(why: Why, message: impl Into<String>) -> StoreError {
        StoreError {
            why,
            message: message.into(),
            is_in_doubt: false,
        }
    }
}

/// Can a failed swap mean that another version is there, or already the one being written?
pub(crate) fn asks_for_a_look(error: &StoreError) -> bool {
    // A segment of the version before may have been removed with it.
    let is_other = matches!(error.why, Why::Changed | Why::NotFound | Why::Refused);
    is_other || error.is_in_doubt
}

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// Maximum attempts of an idempotent write whose outcome is unknown.
const TRIES_MAX: u32 = 4;

/// Repeats a write as long as its outcome is unknown. For idempotent writes only.
pub(crate) async fn insist<T, F>(write: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 1;
    loop {
        match write().await {
            Err(error) if error.is_in_doubt && tries < TRIES_MAX => tries += 1,
            written => return written,
        }
    }
}

/// Objects of one container.
pub(crate) trait Store: Send + Sync + 'static {
    fn container(&self) -> &str;

    /// Are conditions of writes evaluated at commit, so that of two writers expecting the same
    /// version only one succeeds? Otherwise another version is found only by a read before the
    /// write.
    fn decides(&self) -> bool;

    /// Can a name lead to another object?
    fn has_links(&self) -> bool;

    /// Is a path within the store's limits of names?
    fn fits(&self, path: &str) -> bool;

    fn head(&self, name: &str) -> impl Future<Output = Result<Stat>> + Send;

    /// Metadata like `head`, of the newest version on any server.
    fn head_newest(&self, name: &str) -> impl Future<Output = Result<Stat>> + Send;

    /// Metadata of a link itself, newest version; of another object as `head_newest`.
    fn head_link(&self, name: &str) -> impl Future<Output = Result<Stat>> + Send;

    /// Stores a link to another object; returns its ETag.
    fn put_link(
        &self,
        name: &str,
        content_type: &str,
        target: &str,
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<String>> + Send;

    /// Reads `length` bytes from `offset`, in pieces; with `etag`, of that version only
    /// ([`Why::Changed`]).
    fn read(
        &self,
        object: &ObjectName,
        etag: Option<&str>,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send;

    /// Reads like [`Store::read`], `length` bytes from `offset` into a buffer that is empty.
    fn read_into(
        &self,
        object: &ObjectName,
        etag: Option<&str>,
        (offset, length): (u64, u64),
        buffer: &mut Vec<u8>,
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            for piece in self.read(object, etag, offset, length).await? {
                buffer.extend_from_slice(&piece);
            }
            Ok(())
        }
    }

    /// The parts of a version of a static large object ([`Why::Changed`] for another version);
    /// `None` if some are not objects.
    fn manifest(
        &self,
        name: &str,
        etag: &str,
    ) -> impl Future<Output = Result<Option<Vec<Part>>>> + Send;

    /// The parts of an immutable static large object; `None` if some are not objects.
    fn parts(&self, name: &str) -> impl Future<Output = Result<Option<Vec<Part>>>> + Send;

    /// The objects that a static large object refers to, including those beside inline bytes; with
    /// `etag`, of that version only ([`Why::Changed`]).
    fn references(
        &self,
        name: &str,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<Vec<ObjectName>>> + Send;

    /// Stores an object; returns its ETag.
    fn put(
        &self,
        name: &str,
        headers: &Headers,
        body: Vec<Bytes>,
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<String>> + Send;

    /// Stores a static large object; returns its ETag.
    fn put_manifest(
        &self,
        name: &str,
        headers: &Headers,
        parts: &[Part],
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<String>> + Send;

    /// Replaces the metadata. The condition is effective if the store evaluates conditions at
    /// commit.
    fn post(
        &self,
        name: &str,
        headers: &Headers,
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Copies an object, or a large object's manifest. With `etag`, its [`Stat::stored_etag`], only that
    /// version of the source ([`Why::Changed`]).
    fn copy(
        &self,
        source: &str,
        target: &str,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Deletes an object, or a large object's manifest; returns false if there is none, or fails with
    /// [`Why::Changed`] if one was expected. The condition is effective if the store evaluates
    /// conditions at commit.
    fn delete(&self, name: &str, expect: Expect<'_>) -> impl Future<Output = Result<bool>> + Send;

    /// A page of names after `marker` that begin with `prefix`; with `flat`, not cut at slashes.
    /// `limit` 0: the store's maximum.
    fn list(
        &self,
        prefix: &str,
        marker: &str,
        flat: bool,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;

    fn usage(&self) -> impl Future<Output = Result<Usage>> + Send;

    /// Maximum time for which the store's change feed waits; `None` without a feed.
    fn feed_wait(&self) -> Option<Duration> {
        None
    }

    /// Changes since a cursor, which is empty at first; where there are none, after `wait`.
    fn changes(&self, cursor: &str, wait: Duration) -> impl Future<Output = Result<News>> + Send {
        let _ = (cursor, wait);
        async { Err(StoreError::new(Why::Refused, "no change feed")) }
    }
}
