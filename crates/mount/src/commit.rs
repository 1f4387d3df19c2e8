//! Commits: writing a file's content as a new version on the store. A small file is one object. A
//! larger one is a manifest over segments: data in memory goes into new segments, and the rest of
//! the manifest refers to parts of existing ones, so that a small change of a large file is a small
//! upload.
//!
//! The manifest (or object) is written last and conditionally, so a commit is visible completely or
//! not at all, and one that loses against another writer leaves only unused segments.

mod nesting;

pub(crate) use nesting::{is_index, is_long_hole};

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cache::{Cache, Reader, Version};
use crate::chance;
use crate::content::{Content, FileSource, Layout};
use crate::extents::Span;
use crate::history;
use crate::nested::Known;
use crate::store::{
    Expect, Headers, ObjectName, Part, Result, SEGMENTS, Segment, Store, StoreError, Why,
    zeros_folder,
};
use crate::superseded::Superseded;

/// Sizes that determine a file's form on the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum size of a file stored as a single object.
    pub(crate) whole_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// A shorter hole is stored as zeros.
    pub(crate) hole_bytes: u64,
    /// Parts shorter than this are small: if there are many of them, the manifest is nested, and
    /// flattened later.
    pub(crate) small_bytes: u64,
    /// Number of parts, beyond those of full segments, above which manifests are nested.
    pub(crate) extra_parts: u64,
    /// Total number of parts above which a commit compacts the most fragmented ranges.
    pub(crate) parts_max: u64,
    /// Maximum number of parts in one manifest.
    pub(crate) manifest_parts: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            whole_bytes: 8 << 20,
            segment_bytes: 64 << 20,
            hole_bytes: 1 << 20,
            small_bytes: 1 << 20,
            extra_parts: 100,
            parts_max: 200_000,
            manifest_parts: 1000,
        }
    }
}

impl Limits {
    /// Maximum file size: two levels of manifests of full segments, with a short first level.
    pub(crate) fn file_bytes_max(&self) -> u64 {
        self.segment_bytes * self.manifest_parts as u64 * 100
    }

    /// Number of parts of a file in a single manifest.
    pub(crate) fn flat_parts(&self, size: u64) -> u64 {
        let parts = self.extra_parts + size / self.segment_bytes;
        parts.min(self.manifest_parts as u64)
    }
}

/// Concurrent uploads of one commit.
const CONCURRENT_UPLOADS_MAX: usize = 2;
/// Many short holes are stored as zeros if they are at most a fourth of the data between them.
const HOLES_RATIO: u64 = 4;
/// Size ratio of successive zero objects: each consists of this many of the next smaller one. The second
/// has a segment's size.
const ZEROS_FACTOR: u64 = 64;
const ZEROS_LEVELS: u32 = 4;

/// The file to commit.
pub(crate) struct Target<'a> {
    pub(crate) name: &'a str,
    pub(crate) own: Arc<Version>,
    pub(crate) file_id: &'a str,
    pub(crate) headers: &'a Headers,
    pub(crate) expect: Expect<'a>,
    /// Segments that others may remove: their bytes are uploaded anew.
    pub(crate) gone: HashSet<Arc<Segment>>,
}

/// A version whose segments are all on the store, but not the object itself.
pub(crate) struct Prepared {
    body: Body,
    pub(crate) layout: Layout,
    /// All segments it refers to, through nested manifests too.
    pub(crate) needed: HashSet<Arc<Segment>>,
}

enum Body {
    Whole(Vec<Bytes>),
    Manifest(Vec<Part>),
}

/// Writer of file versions.
pub(crate) struct Committer<S> {
    pub(crate) store: Arc<S>,
    pub(crate) cache: Arc<Cache<S>>,
    pub(crate) limits: Limits,
    /// Id that distinguishes this mount's segments and commits from others'.
    pub(crate) mount_id: String,
    sequence: AtomicU64,
    pub(crate) known: Known,
    pub(crate) superseded: Superseded,
    /// Sizes of zero objects known to be on the store.
    zeros: Mutex<HashSet<u64>>,
    is_ending: watch::Sender<bool>,
}

const MOUNT_ID_CHARS: usize = 10;

/// A unique id: 128 random bits.
pub(crate) fn random_id() -> String {
    format!("{:032x}", chance::bits())
}

impl<S: Store> Committer<S> {
    pub(crate) fn new(
        store: Arc<S>,
        cache: Arc<Cache<S>>,
        limits: Limits,
        superseded_for: Duration,
    ) -> Committer<S> {
        Committer {
            store,
            cache,
            limits,
            mount_id: random_id()[..MOUNT_ID_CHARS].to_owned(),
            sequence: AtomicU64::new(0),
            known: Known::default(),
            superseded: Superseded::new(superseded_for),
            zeros: Mutex::default(),
            is_ending: watch::Sender::new(false),
        }
    }

    /// The name of a new segment.
    pub(crate) fn segment_name(&self, file_id: &str) -> String {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed);
        format!("{SEGMENTS}/{file_id}/{}.{number:08}", self.mount_id)
    }

    /// The token of a new commit.
    pub(crate) fn token(&self) -> String {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed);
        history::token(&self.mount_id, number)
    }

    /// Makes long optional work end with an error from now on.
    pub(crate) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Sleeps, but not beyond the mount's end.
    pub(crate) async fn pause(&self, time: Duration) -> Result<()> {
        let mut is_ending = self.is_ending.subscribe();
        let _ = tokio::time::timeout(time, is_ending.wait_for(|is_ending| *is_ending)).await;
        self.check_end()
    }

    pub(crate) fn check_end(&self) -> Result<()> {
        match *self.is_ending.borrow() {
            true => Err(StoreError::new(Why::Unavailable, "the mount is ending")),
            false => Ok(()),
        }
    }

    /// Stores bytes as a new segment.
    pub(crate) async fn upload(&self, file_id: &str, body: Vec<Bytes>) -> Result<Arc<Segment>> {
        let name = self.segment_name(file_id);
        let bytes = body.iter().map(|piece| piece.len() as u64).sum();
        let headers = Headers::new("application/octet-stream");
        self.store
            .put(&name, &headers, body, Expect::Anything)
            .await?;
        Ok(self.segment(&name, bytes))
    }

    pub(crate) fn segment(&self, name: &str, bytes: u64) -> Arc<Segment> {
        Arc::new(Segment {
            name: ObjectName::new(self.store.container(), name),
            bytes,
        })
    }

    /// Uploads the data that a version of `content` needs. Afterwards `content` refers to the
    /// uploaded segments, even on failure, and `made` contains all of them.
    pub(crate) async fn prepare(
        &self,
        target: &Target<'_>,
        content: &mut Content,
        made: &mut Vec<Arc<Segment>>,
    ) -> Result<Prepared> {
        let size = content.size();
        if size <= self.limits.whole_bytes {
            let body = self
                .cache
                .gather(Reader::Program, &target.own, &content.spans(0, size))
                .await?;
            return Ok(Prepared {
                body: Body::Whole(body),
                layout: Layout::own(size, true),
                needed: HashSet::new(),
            });
        }
        self.free_own(target, content, made).await?;
        self.upload_rest(target, content, made).await?;
        let parts = self.parts(content).await?;
        let segment_of = |part: &Part| part.segment.clone();
        let mut needed: HashSet<Arc<Segment>> = parts.iter().map(segment_of).collect();
        let is_flat = parts.len() as u64 <= self.limits.flat_parts(size);
        let (outer, nested) = match is_flat {
            true => (parts.clone(), Vec::new()),
            false => {
                self.expect_before(target).await?;
                self.nest(target, content.base(), &parts, made).await?
            }
        };
        needed.extend(outer.iter().map(segment_of));
        Ok(Prepared {
            body: Body::Manifest(outer),
            layout: Layout::of_parts(parts, nested),
            needed,
        })
    }

    /// Looks whether the expected version is still there, before indexes are written for nothing.
    async fn expect_before(&self, target: &Target<'_>) -> Result<()> {
        let Expect::Version(expected) = target.expect else {
            return Ok(());
        };
        let name = target.name;
        let is = self.store.head_newest(name).await?.etag;
        match is == expected {
            true => Ok(()),
            false => {
                let message = format!("{name}: version {expected} was expected, {is} is there");
                Err(StoreError::new(Why::Changed, message))
            }
        }
    }

    /// Replaces the expected version by the prepared one; returns the ETag.
    pub(crate) async fn swap(&self, target: &Target<'_>, prepared: &Prepared) -> Result<String> {
        let (name, headers, expect) = (target.name, target.headers, target.expect);
        match &prepared.body {
            Body::Whole(body) => self.store.put(name, headers, body.clone(), expect).await,
            Body::Manifest(parts) => {
                let put = self.store.put_manifest(name, headers, parts, expect);
                put.await
            }
        }
    }

    /// Saves the file's own object before it is replaced: one that is too large to be uploaded
    /// again is copied within the store to a segment.
    async fn free_own(
        &self,
        target: &Target<'_>,
        content: &mut Content,
        made: &mut Vec<Arc<Segment>>,
    ) -> Result<()> {
        let spans = content.spans(0, content.size());
        let is_own = |span: &&Span<FileSource>| matches!(span.source, Some(FileSource::Own { .. }));
        let own: u64 = spans.iter().filter(is_own).map(|span| span.length).sum();
        if own <= self.limits.segment_bytes || !content.base().is_plain {
            return Ok(());
        }
        let segment = self.copy_own(&target.own, target.file_id).await?;
        made.push(segment.clone());
        content.own_moved(&segment);
        Ok(())
    }

    /// Copies a version of an ordinary object to a new segment.
    pub(crate) async fn copy_own(&self, own: &Version, file_id: &str) -> Result<Arc<Segment>> {
        let copy = self.segment_name(file_id);
        let copying = self.store.copy(&own.name.name, &copy, own.etag.as_deref());
        copying.await?;
        Ok(self.segment(&copy, own.bytes))
    }

    /// Uploads data that is in no segment, or in one that others may remove, and ranges with too many small
    /// parts.
    async fn upload_rest(
        &self,
        target: &Target<'_>,
        content: &mut Content,
        made: &mut Vec<Arc<Segment>>,
    ) -> Result<()> {
        let spans = to_upload(
            &content.spans(0, content.size()),
            &target.gone,
            &self.limits,
        );
        let objects = pack(spans, self.limits.segment_bytes);
        let upload = |spans: Vec<Span<FileSource>>| async move {
            let body = self.cache.gather(Reader::Program, &target.own, &spans);
            let body = body.await?;
            let segment = self.upload(target.file_id, body).await?;
            Ok::<_, StoreError>((spans, segment))
        };
        let uploads = futures_util::stream::iter(objects.into_iter().map(upload));
        let mut uploads = uploads.buffer_unordered(CONCURRENT_UPLOADS_MAX);
        let mut result = Ok(());
        while let Some(uploaded) = uploads.next().await {
            let (spans, segment) = match uploaded {
                Ok(uploaded) => uploaded,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            made.push(segment.clone());
            let mut offset = 0;
            for span in spans {
                let segment = segment.clone();
                content.moved(
                    span.offset,
                    span.length,
                    FileSource::Segment { segment, offset },
                );
                offset += span.length;
            }
        }
        result
    }

    /// The whole file as parts of segments.
    async fn parts(&self, content: &Content) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for span in content.spans(0, content.size()) {
            match span.source {
                Some(FileSource::Segment { segment, offset }) => parts.push(Part {
                    segment,
                    offset,
                    length: span.length,
                }),
                Some(FileSource::Zero) | None => self.zeros(span.length, &mut parts).await?,
                Some(FileSource::Own { .. } | FileSource::Memory { .. }) => {
                    let message = "a part of a file was not uploaded";
                    return Err(StoreError::new(Why::Refused, message));
                }
            }
        }
        Ok(parts)
    }

    /// Parts of zero objects, which are created when first needed.
    async fn zeros(&self, mut length: u64, parts: &mut Vec<Part>) -> Result<()> {
        let smallest = (self.limits.segment_bytes / ZEROS_FACTOR).max(1);
        let bytes_of = |level: u32| smallest * ZEROS_FACTOR.pow(level);
        for level in (0..ZEROS_LEVELS).rev() {
            let bytes = bytes_of(level);
            let is_too_large = match level {
                0 => length == 0,
                1 => length <= smallest,
                _ => length < bytes,
            };
            if is_too_large {
                continue;
            }
            let name = |bytes: u64| format!("{}{bytes}", zeros_folder());
            let segment = self.segment(&name(bytes), bytes);
            for below in 0..=level {
                let bytes = bytes_of(below);
                self.make_zeros(
                    &name(bytes),
                    bytes,
                    (below > 0).then(|| name(bytes_of(below - 1))),
                )
                .await?;
            }
            while length > 0 && (length >= bytes || level < 2) {
                let part = length.min(bytes);
                parts.push(Part {
                    segment: segment.clone(),
                    offset: 0,
                    length: part,
                });
                length -= part;
            }
        }
        Ok(())
    }

    /// Clears the known zero objects: the store has refused a manifest, so one of them may have
    /// been deleted.
    pub(crate) fn forget_zeros(&self) {
        self.zeros.lock().clear();
    }

    async fn make_zeros(&self, name: &str, bytes: u64, of: Option<String>) -> Result<()> {
        if self.zeros.lock().contains(&bytes) {
            return Ok(());
        }
        self.make_zeros_anew(name, bytes, of).await?;
        self.zeros.lock().insert(bytes);
        Ok(())
    }

    async fn make_zeros_anew(&self, name: &str, bytes: u64, of: Option<String>) -> Result<()> {
        match self.store.head(name).await {
            Ok(stat) if stat.bytes == bytes => return Ok(()),
            Ok(_) => {}
            Err(error) if error.why == Why::NotFound => {}
            Err(error) => return Err(error),
        }
        let headers = Headers::new("application/octet-stream");
        match of {
            None => {
                let piece = Bytes::from(vec![0; bytes.min(1 << 20) as usize]);
                let mut body = vec![piece.clone(); (bytes / piece.len() as u64) as usize];
                body.push(piece.slice(..(bytes % piece.len() as u64) as usize));
                self.store
                    .put(name, &headers, body, Expect::Anything)
                    .await?;
            }
            Some(smaller) => {
                let segment = self.segment(&smaller, bytes / ZEROS_FACTOR);
                let part = Part {
                    offset: 0,
                    length: segment.bytes,
                    segment,
                };
                let parts = vec![part; ZEROS_FACTOR as usize];
                self.store
                    .put_manifest(name, &headers, &parts, Expect::Anything)
                    .await?;
            }
        }
        Ok(())
    }
}

/// The spans to upload: those in no segment or in one that is `gone`, together with short holes between them, unless many
/// holes dominate; and, if the file has too many parts, the most densely fragmented ranges.
fn to_upload(
    spans: &[Span<FileSource>],
    gone: &HashSet<Arc<Segment>>,
    limits: &Limits,
) -> Vec<Span<FileSource>> {
    let must = |span: &Span<FileSource>| match &span.source {
        Some(FileSource::Memory { .. } | FileSource::Own { .. }) => true,
        Some(FileSource::Segment { segment, .. }) => gone.contains(segment),
        Some(FileSource::Zero) | None => false,
    };
    let fills = |span: &Span<FileSource>| {
        let is_hole = matches!(span.source, Some(FileSource::Zero) | None);
        is_hole && span.length < limits.hole_bytes
    };
    let bytes: u64 = spans.iter().filter(|s| must(s)).map(|s| s.length).sum();
    let holes: Vec<u64> = spans
        .iter()
        .filter(|s| fills(s))
        .map(|s| s.length)
        .collect();
    // Interleaved records of many hosts: the holes contain the other hosts' records.
    let is_sparse = holes.iter().sum::<u64>() * HOLES_RATIO > bytes;
    let leaves_holes = is_sparse && holes.len() as u64 > limits.extra_parts;
    let is_chosen = |span: &Span<FileSource>| must(span) || !leaves_holes && fills(span);
    let mut chosen: Vec<bool> = spans.iter().map(is_chosen).collect();
    compact(spans, limits, &mut chosen);
    let chosen = spans.iter().zip(chosen).filter(|(_, is_chosen)| *is_chosen);
    chosen.map(|(span, _)| span.clone()).collect()
}

/// Number of parts after uploading the chosen spans, when adjacent ones have become one.
fn parts_left(chosen: &[bool]) -> u64 {
    let joined = chosen.windows(2).filter(|pair| pair[0] && pair[1]).count();
    (chosen.len() - joined) as u64
}

/// Chooses more spans if there would be too many parts: adjacent ones that fit into one segment
/// form a group, and the groups with the most parts are rewritten until a quarter of the limit is
/// free again, so that the next commits need not compact.
fn compact(spans: &[Span<FileSource>], limits: &Limits, chosen: &mut [bool]) {
    let mut parts = parts_left(chosen);
    if parts <= limits.parts_max {
        return;
    }
    let mut groups: Vec<(usize, usize)> = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, span) in spans.iter().enumerate() {
        if bytes + span.length > limits.segment_bytes && i > start {
            groups.push((start, i));
            (start, bytes) = (i, 0);
        }
        bytes += span.length;
    }
    groups.push((start, spans.len()));
    groups.sort_by_key(|(from, to)| std::cmp::Reverse(to - from));
    for (from, to) in groups {
        if parts <= limits.parts_max - limits.parts_max / 4 || to - from < 2 {
            break;
        }
        parts = (parts + 1).saturating_sub(parts_left(&chosen[from..to]));
        chosen[from..to].fill(true);
    }
}

/// Distributes spans in order over objects of at most `bytes`; a span may be split.
pub(crate) fn pack(spans: Vec<Span<FileSource>>, bytes: u64) -> Vec<Vec<Span<FileSource>>> {
    use crate::extents::Source;
    let mut objects: Vec<Vec<Span<FileSource>>> = Vec::new();
    let mut room = 0;
    for mut span in spans {
        while span.length > 0 {
            if room == 0 {
                objects.push(Vec::new());
                room = bytes;
            }
            let length = span.length.min(room);
            if let Some(object) = objects.last_mut() {
                object.push(Span {
                    length,
                    ..span.clone()
                });
            }
            room -= length;
            span = Span {
                offset: span.offset + length,
                length: span.length - length,
                source: span.source.map(|source| source.at(length)),
            };
        }
    }
    objects
}
