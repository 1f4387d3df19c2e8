//! PUT: content and metadata to disk, then the container's row.
//!
//! A small upload that is in memory, or whose sender does not wait for `100 Continue`, is read
//! first and then checked, written and made durable in one job on the device's thread. For any
//! other the check precedes the first poll of the body, which sends `100 Continue`.

use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::container_row::of_metadata;
use cairn_disk::metadata::FRAGMENT_INDEX;
use cairn_disk::owed::Debt;
use cairn_disk::steps::Step;
use cairn_disk::{Device, DiskError, Durability, Metadata, ObjectWriter};
use cairn_http::respond::{header, set};
use cairn_http::{Body, Response, SharedDigest, SharedFooters};
use cairn_types::blocks;
use cairn_types::metadata::{is_object_transient_sysmeta, is_sys_or_user_meta};
use cairn_types::{ServerKind, Timestamp};
use http::HeaderMap;
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::request::Parts;
use md5::{Digest, Md5};
use tokio::time::Instant;

use super::fragments::ssync_index;
use super::headers::{check_metadata, copy_footers, copy_metadata, delete_at, flag};
use super::owed::{owes_row, row_of};
use super::phases::{Content, Phases};
use super::promise;
use super::small::{
    Check, Existing, SMALL_UPLOAD_MAX_BYTES, check_existing, complete, received_etag,
    whole_max_bytes, write_whole,
};
use super::status::{self, Refusal};
use super::target::{Target, required_timestamp};
use super::updates::UpdateHeaders;
use super::{Inner, to_the_end};

/// Maximum blocks in use for batches of [`LARGE_BATCH_BYTES`] bytes.
const FEW_BLOCKS_MAX: usize = 128;
const LARGE_BATCH_BYTES: usize = 1 << 20;

/// Checked parameters of a PUT.
struct Upload {
    target: Target,
    timestamp: Timestamp,
    /// Announced size.
    size: Option<u64>,
    delete_at: Option<u64>,
    if_none_match: Option<String>,
    /// Fragment index of an upload by a replicator; other fragments are irrelevant then.
    fragment: Option<u32>,
    /// Whether the fragment is durable without a commit.
    durability: Durability,
    digest: Option<SharedDigest>,
    /// Footers from a proxy in this process.
    footers: Option<SharedFooters>,
}

impl Upload {
    fn check(&self) -> Check {
        Check {
            timestamp: self.timestamp,
            if_none_match: self.if_none_match.clone(),
            fragment: self.fragment,
        }
    }
}

impl Inner {
    pub(super) async fn put(
        self: &Arc<Self>,
        mut parts: Parts,
        body: Body,
    ) -> Result<Response, Refusal> {
        let phases = Phases::read(&parts)?;
        let upload = self.check_put(&mut parts, &body, phases.is_some())?;
        let most = match body.as_full() {
            Some(_) => whole_max_bytes(&*upload.target.engine),
            None if parts.headers.contains_key(EXPECT) => 0,
            None => SMALL_UPLOAD_MAX_BYTES,
        };
        let is_small = upload.size.is_some_and(|size| size <= most);
        if is_small && phases.is_none() && upload.footers.is_none() {
            self.put_small(parts, upload, body).await
        } else {
            // Boxed, so that the future of a small upload is not as large.
            Box::pin(self.put_streamed(parts, upload, body, phases)).await
        }
    }

    fn check_put(
        &self,
        parts: &mut Parts,
        body: &Body,
        in_documents: bool,
    ) -> Result<Upload, Refusal> {
        let target = self.target(parts)?;
        let timestamp = required_timestamp(parts)?;
        let headers = &parts.headers;
        let size = match in_documents {
            true => announced_length(headers)?,
            false => message_length(headers, body)?,
        };
        let limits = &self.config.constraints;
        if size.is_some_and(|size| size > limits.max_file_size) {
            return Err(Refusal::TooLarge);
        }
        let length = target.object.chars().count();
        let longest = limits.max_object_name_length;
        if length > longest {
            return Err(Refusal::BadRequest(format!(
                "Object name length of {length} longer than {longest}"
            )));
        }
        let content_type = headers
            .get(CONTENT_TYPE)
            .ok_or_else(|| Refusal::BadRequest("No content type".into()))?;
        let delete_at = delete_at(headers, timestamp)?;
        if std::str::from_utf8(content_type.as_bytes()).is_err() {
            return Err(Refusal::BadRequest("Invalid Content-Type".into()));
        }
        check_metadata(headers, &self.config)?;
        let if_none_match = header(headers, "if-none-match").map(str::to_owned);
        if let Some(at) = delete_at {
            set(&mut parts.headers, "x-delete-at", format!("{at:010}"));
            parts.headers.remove("x-delete-after");
        }
        Ok(Upload {
            target,
            timestamp,
            size,
            delete_at,
            if_none_match,
            fragment: ssync_index(&parts.headers)?,
            durability: match flag(&parts.headers, "x-backend-no-commit") {
                true => Durability::Later,
                false => Durability::AtOnce,
            },
            digest: parts.extensions.get::<SharedDigest>().cloned(),
            footers: parts.extensions.get::<SharedFooters>().cloned(),
        })
    }

    async fn put_small(
        self: &Arc<Self>,
        parts: Parts,
        upload: Upload,
        body: Body,
    ) -> Result<Response, Refusal> {
        let body = self.collect(body, &upload).await?;
        let (inner, mut upload) = (self.clone(), upload);
        to_the_end(async move {
            let target = upload.target.clone();
            let mut writing = inner.begin_promised(&parts, &target)?;
            if let Some(writing) = &writing {
                upload.timestamp = writing.timestamp;
            }
            let metadata = inner.request_metadata(&parts, &upload);
            let received = received_etag(&parts.headers);
            let known = upload.digest.as_ref().and_then(SharedDigest::get);
            let check = upload.check();
            let durability = upload.durability;
            let owes = durability == Durability::AtOnce && owes_row(&parts.headers);
            let metadata = move |body: &Bytes| {
                let md5 = known.unwrap_or_else(|| Md5::digest(body).into());
                complete(metadata, body.len() as u64, md5, received)
            };
            let place = (&target.device, &target.engine, &target.key);
            let written = write_whole(place, check, body, metadata, (durability, owes)).await;
            promise::note(&mut writing, &written);
            drop(writing);
            let (existing, metadata, debt) = written?;
            let (written, none) = ((&metadata, debt), HeaderMap::new());
            inner
                .after_put(&parts, &upload, existing, written, &none)
                .await
        })
        .await
    }

    async fn put_streamed(
        self: &Arc<Self>,
        parts: Parts,
        upload: Upload,
        body: Body,
        phases: Option<Phases>,
    ) -> Result<Response, Refusal> {
        let target = upload.target.clone();
        let (engine, key, check) = (target.engine.clone(), target.key.clone(), upload.check());
        let existing = target
            .device
            .read(move |disk| check_existing(&*engine, disk, &key, check));
        let existing = existing.await??;
        let mut content = match phases {
            None => Content::Plain(body),
            Some(phases) => phases.begin(body, self.config.client_timeout).await?,
        };
        let staged = self.stage(&upload, &mut content).await?;
        let (inner, mut upload) = (self.clone(), upload);
        to_the_end(async move {
            let footers = match &upload.footers {
                // Set by now, if the body ended well.
                Some(shared) => shared.get().cloned().ok_or(Refusal::Failed)?,
                None => content.footers().await?,
            };
            let mut writing = inner.begin_promised(&parts, &upload.target)?;
            if let Some(writing) = &writing {
                // The promise was given after the head was read.
                upload.timestamp = writing.timestamp;
            }
            let written = inner.publish(&parts, &upload, staged, &content, &footers);
            let written = written.await;
            promise::note(&mut writing, &written);
            drop(writing);
            let metadata = written?;
            if content.waits_for_commit() {
                content.commit().await?;
                if upload.durability == Durability::AtOnce {
                    inner.make_durable(&upload, &metadata).await?;
                }
            }
            content.finish().await?;
            inner
                .after_put(&parts, &upload, existing, (&metadata, None), &footers)
                .await
        })
        .await
    }

    /// Publishes a staged upload; returns its metadata.
    async fn publish(
        &self,
        parts: &Parts,
        upload: &Upload,
        mut staged: Staged,
        content: &Content,
        footers: &HeaderMap,
    ) -> Result<Metadata, Refusal> {
        let writer = staged.writer.take().ok_or(Refusal::Failed)?;
        let mut metadata = self.request_metadata(parts, upload);
        copy_footers(&mut metadata, footers);
        let received = match footers.contains_key("etag") {
            true => received_etag(footers),
            false => received_etag(&parts.headers),
        };
        let known = upload.digest.as_ref().and_then(SharedDigest::get);
        let durability = match content.waits_for_commit() {
            true => Durability::Later,
            false => upload.durability,
        };
        let written = upload.target.device.commit(move |_| {
            let mut writer = writer;
            // Known by now, if the proxy computes it.
            let Some(md5) = known.or_else(|| writer.md5()) else {
                return Ok(Step::Done(Err(Refusal::Disconnected)));
            };
            let metadata = match complete(metadata, writer.written(), md5, received) {
                Ok(metadata) => metadata,
                Err(refusal) => return Ok(Step::Done(Err(refusal))),
            };
            let written = writer.commit(metadata.clone(), durability)?;
            Ok(written.map(move |()| Ok(metadata)))
        });
        written.await?
    }

    /// Makes the fragment durable after the commit.
    async fn make_durable(&self, upload: &Upload, metadata: &Metadata) -> Result<(), Refusal> {
        let index = metadata.get_str(FRAGMENT_INDEX);
        let Some(index) = index.and_then(|text| text.trim().parse().ok()) else {
            return Ok(());
        };
        let (engine, key) = (upload.target.engine.clone(), upload.target.key.clone());
        let timestamp = upload.timestamp;
        let made = upload
            .target
            .device
            .commit(move |disk| engine.make_durable(disk, &key, timestamp, index));
        match made.await {
            // It was written a moment ago: no 404, which would say that there is no such object.
            Err(DiskError::NotExist) => Err(Refusal::Failed),
            made => Ok(made?),
        }
    }

    /// Reads a small body.
    async fn collect(&self, body: Body, upload: &Upload) -> Result<Bytes, Refusal> {
        let timeout = self.config.client_timeout;
        let most = body
            .as_full()
            .map_or(SMALL_UPLOAD_MAX_BYTES, |body| body.len() as u64);
        let collected = tokio::time::timeout(timeout, body.collect(most)).await;
        let body = collected.map_err(|_| Refusal::SlowUpload)??;
        if upload.size.is_some_and(|size| size != body.len() as u64) {
            return Err(Refusal::Disconnected);
        }
        Ok(body)
    }

    /// Writes the body to a staged file, one batch of chunks at a time, while the next batch is
    /// received.
    async fn stage(&self, upload: &Upload, body: &mut Content) -> Result<Staged, Refusal> {
        let target = &upload.target;
        let (engine, key, size) = (target.engine.clone(), target.key.clone(), upload.size);
        let hash = upload.digest.is_none();
        let writer = target
            .device
            .write(move |disk| engine.create(disk, &key, size, hash))
            .await?;
        let mut staged = Staged {
            writer: Some(writer),
            device: target.device.clone(),
        };
        let deadline = Instant::now() + self.config.max_upload_time;
        let max_size = self.config.constraints.max_file_size;
        let mut received = 0;
        let mut is_over = false;
        let mut batch = Vec::new();
        let mut next = self.gather(body, deadline, &mut is_over).await?;
        while !next.is_empty() {
            std::mem::swap(&mut batch, &mut next);
            received += batch.iter().map(|c| c.len() as u64).sum::<u64>();
            if received > max_size {
                return Err(Refusal::TooLarge);
            }
            let chunks = std::mem::take(&mut batch);
            let writing = staged.write(chunks);
            // In parallel: the disk writes one batch while the next one is received.
            if !is_over && !blocks::are_crowded() {
                let gathering = self.gather(body, deadline, &mut is_over);
                let (written, gathered) = tokio::join!(writing, gathering);
                staged.writer = Some(written?);
                next = gathered?;
                continue;
            }
            staged.writer = Some(writing.await?);
            if !is_over {
                next = self.gather(body, deadline, &mut is_over).await?;
            }
        }
        if upload.size.is_some_and(|size| size != received) {
            return Err(Refusal::Disconnected);
        }
        Ok(staged)
    }

    /// Reads chunks of about `network_chunk_size` bytes in total; more while few blocks are in use;
    /// one block when memory is short, as the sender may wait until it is freed. Empty at the end.
    async fn gather(
        &self,
        body: &mut Content,
        deadline: Instant,
        is_over: &mut bool,
    ) -> Result<Vec<Bytes>, Refusal> {
        let mut chunks = Vec::new();
        let mut bytes = 0;
        while bytes < self.batch_size() {
            if Instant::now() > deadline {
                return Err(Refusal::SlowUpload);
            }
            let chunk = body.next_chunk(self.config.client_timeout).await?;
            let Some(chunk) = chunk else {
                *is_over = true;
                break;
            };
            bytes += chunk.len();
            chunks.push(chunk);
        }
        Ok(chunks)
    }

    fn batch_size(&self) -> usize {
        let size = self.config.network_chunk_size;
        match blocks::in_use() {
            ..FEW_BLOCKS_MAX => size.max(LARGE_BATCH_BYTES),
            _ if blocks::are_crowded() => size.min(blocks::SIZE),
            _ => size,
        }
    }

    /// Metadata from the request's headers.
    fn request_metadata(&self, parts: &Parts, upload: &Upload) -> Metadata {
        self.metadata_of(&parts.headers, upload.timestamp)
    }

    /// Metadata that headers say.
    pub(super) fn metadata_of(&self, headers: &HeaderMap, timestamp: Timestamp) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("X-Timestamp", timestamp.internal());
        let content_type = headers.get(CONTENT_TYPE);
        metadata.set(
            "Content-Type",
            content_type.map_or(&b""[..], |v| v.as_bytes()),
        );
        copy_metadata(&mut metadata, headers, &self.config, |name| {
            is_sys_or_user_meta(ServerKind::Object, name) || is_object_transient_sysmeta(name)
        });
        metadata
    }

    /// After the object is durable, with its metadata and the debt of its row: updates its container and
    /// the expirer's queue.
    async fn after_put(
        self: &Arc<Self>,
        parts: &Parts,
        upload: &Upload,
        existing: Existing,
        (metadata, debt): (&Metadata, Option<Debt>),
        footers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        let (target, timestamp, new) = (&upload.target, upload.timestamp, upload.delete_at);
        let enqueued = match new {
            Some(new) => {
                self.enqueue_expiry(parts, target, timestamp, metadata, new)
                    .await
            }
            None => Ok(()),
        };
        if let Some(old) = existing.delete_at.filter(|_| existing.delete_at != new) {
            self.dequeue_expiry(parts, target, timestamp, old).await;
        }
        let headers = || put_headers(metadata, parts.headers.iter().chain(footers));
        let row = || row_of(&target.object, target.key.policy, metadata);
        self.update_row("PUT", (parts, target), debt, row, headers)
            .await?;
        enqueued?;
        let mut response = status::created();
        let etag = metadata.get_str("ETag").unwrap_or("");
        set(response.headers_mut(), "etag", format!("\"{etag}\""));
        Ok(response)
    }
}

/// Headers of the update of a PUT's container: what its metadata says, with the overrides among the headers of
/// the request.
pub(super) fn put_headers<'h>(
    metadata: &Metadata,
    items: impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>,
) -> UpdateHeaders {
    let mut update = UpdateHeaders::new();
    for (name, value) in of_metadata(metadata) {
        update.set(name, value);
    }
    update.apply_overrides(items.map(|(name, value)| (name.as_str(), value.as_bytes())));
    update
}

/// Space to reserve, which a proxy may state if the request has no length.
fn announced_length(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    match header(headers, "x-backend-obj-content-length").map(str::parse) {
        None => Ok(None),
        Some(Ok(size)) => Ok(Some(size)),
        Some(Err(_)) => Err(Refusal::BadRequest(
            "Invalid X-Backend-Obj-Content-Length header value".into(),
        )),
    }
}

/// The announced size of the body; `None` if it is chunked.
fn message_length(headers: &HeaderMap, body: &Body) -> Result<Option<u64>, Refusal> {
    let bad = |reason: &str| Err(Refusal::BadRequest(reason.into()));
    if let Some(encoding) = header(headers, TRANSFER_ENCODING.as_str()) {
        if !encoding.eq_ignore_ascii_case("chunked") {
            return bad("Invalid Transfer-Encoding header value");
        }
        return announced_length(headers);
    }
    match headers.get(CONTENT_LENGTH) {
        Some(length) => match length.to_str().ok().and_then(|t| t.trim().parse().ok()) {
            Some(size) => Ok(Some(size)),
            None => bad("Invalid Content-Length header value"),
        },
        // Within a process a body knows its length, and a stream may not.
        None if body.is_empty() => Err(Refusal::LengthRequired),
        None => Ok(body.length()),
    }
}

/// An upload in progress; if dropped, it is discarded on its device's thread.
struct Staged {
    writer: Option<Box<dyn ObjectWriter>>,
    device: Arc<Device>,
}

impl Staged {
    /// Writes chunks on the device's thread, and returns the writer.
    fn write(
        &mut self,
        chunks: Vec<Bytes>,
    ) -> impl Future<Output = Result<Box<dyn ObjectWriter>, Refusal>> + use<> {
        let writer = self.writer.take();
        let device = self.device.clone();
        async move {
            let mut writer = writer.ok_or(Refusal::Failed)?;
            let written = device.write(move |_| {
                writer.write(&chunks)?;
                Ok(writer)
            });
            Ok(written.await?)
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            // Removing a large file takes time.
            drop(self.device.write(move |_| {
                drop(writer);
                Ok(())
            }));
        }
    }
}

/// Whether a replicator sent the request; containers are then up to date already.
pub(super) fn is_replication(headers: &HeaderMap) -> bool {
    flag(headers, "x-backend-replication")
}
