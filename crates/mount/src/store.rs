//! The store as the mount needs it: objects of one container, manifests that refer to parts of
//! others, and conditions under which a name is written.

#[cfg(test)]
mod memory;
mod swift;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::time::Time;

#[cfg(test)]
pub(crate) use memory::MemoryStore;
pub(crate) use swift::{SwiftStore, options};

/// An object, by container and name.
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

/// An object that holds parts of a file and never changes.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    pub(crate) name: ObjectName,
    /// The size of the whole object.
    pub(crate) bytes: u64,
}

/// The headers that are stored with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) content_type: String,
    /// `X-Object-Meta-NAME`, names in small letters.
    pub(crate) meta: BTreeMap<String, String>,
    /// Others that a replacement would lose: `Content-Encoding`, `X-Delete-At` …
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

/// How the bytes of an object are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    /// A static large object.
    Manifest,
    /// A dynamic large object: its bytes depend on a listing.
    Dynamic,
}

/// An object as a HEAD describes it.
#[derive(Clone, Debug)]
pub(crate) struct Stat {
    pub(crate) bytes: u64,
    pub(crate) etag: String,
    /// When it, or its metadata, was stored.
    pub(crate) changed: Time,
    pub(crate) form: Form,
    pub(crate) headers: Headers,
}

/// A part of a large object.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A condition on the object under a name, without which a write is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect<'a> {
    Nothing,
    /// An object of this ETag.
    Version(&'a str),
    /// It is the writer's own name: anything may be there.
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
        /// A static large object; not every store tells it of all.
        is_manifest: bool,
    },
    /// The part that names have in common up to and with a slash.
    Prefix(String),
}

impl Row {
    pub(crate) fn name(&self) -> &str {
        match self {
            Row::Object { name, .. } | Row::Prefix(name) => name,
        }
    }
}

/// Bytes and objects of a container.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
}

/// Why a store did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    NotFound,
    /// Another version is there than was expected.
    Changed,
    Denied,
    /// No space, or a quota.
    Full,
    /// More than an object, or a name, may have.
    TooLarge,
    /// Away, slow, busy: later it may do it.
    Unavailable,
    Timeout,
    /// A refusal that no other case names.
    Refused,
}

#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub(crate) struct StoreError {
    pub(crate) why: Why,
    pub(crate) message: String,
    /// The write may have taken place: only a look tells.
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

/// A swap failed so that another version may be there, or the one that was to be written.
pub(crate) fn asks_for_a_look(error: &StoreError) -> bool {
    // A segment of the version before may be gone with it.
    let is_other = matches!(error.why, Why::Changed | Why::NotFound | Why::Refused);
    is_other || error.is_in_doubt
}

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// Tries of a write that may be carried out twice, while it is not known whether it was.
const TRIES_MAX: u32 = 4;

/// Makes a write again while it is not known whether it took place. For those that do no harm twice.
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

    /// Conditions of writes are decided at the commit: of two writers that expect the same version one
    /// succeeds. Otherwise only a look before the write tells another version.
    fn decides(&self) -> bool;

    fn head(&self, name: &str) -> impl Future<Output = Result<Stat>> + Send;

    /// As `head`, of the newest version that any server of the store has.
    fn head_newest(&self, name: &str) -> impl Future<Output = Result<Stat>> + Send;

    /// `length` bytes from `offset`, in pieces; with `etag` of that version alone ([`Why::Changed`]).
    fn read(
        &self,
        object: &ObjectName,
        etag: Option<&str>,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send;

    /// The parts of a version of a static large object ([`Why::Changed`] where it is another one);
    /// none where it has some that are no objects.
    fn manifest(
        &self,
        name: &str,
        etag: &str,
    ) -> impl Future<Output = Result<Option<Vec<Part>>>> + Send;

    /// The parts of a static large object that never changes; none where it has some that are no
    /// objects.
    fn parts(&self, name: &str) -> impl Future<Output = Result<Option<Vec<Part>>>> + Send;

    /// The objects that a static large object refers to, those beside inline bytes too; with `etag` of
    /// that version alone ([`Why::Changed`]).
    fn references(
        &self,
        name: &str,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<Vec<ObjectName>>> + Send;

    /// Stores an object; its ETag.
    fn put(
        &self,
        name: &str,
        headers: &Headers,
        body: Vec<Bytes>,
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<String>> + Send;

    /// Stores a static large object; its ETag.
    fn put_manifest(
        &self,
        name: &str,
        headers: &Headers,
        parts: &[Part],
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<String>> + Send;

    /// Replaces what is stored beside the bytes. The condition holds where the store decides them.
    fn post(
        &self,
        name: &str,
        headers: &Headers,
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// A copy, of a large object of its manifest. `etag`: of that version of the source alone
    /// ([`Why::Changed`]).
    fn copy(
        &self,
        source: &str,
        target: &str,
        etag: Option<&str>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Deletes an object, of a large one the manifest; false where there was none. The condition holds
    /// where the store decides them.
    fn delete(&self, name: &str, expect: Expect<'_>) -> impl Future<Output = Result<bool>> + Send;

    /// A page of names behind `marker` that begin with `prefix`; `flat`: not cut at slashes.
    /// `limit` 0: as many as the store gives.
    fn list(
        &self,
        prefix: &str,
        marker: &str,
        flat: bool,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;

    fn usage(&self) -> impl Future<Output = Result<Usage>> + Send;
}
