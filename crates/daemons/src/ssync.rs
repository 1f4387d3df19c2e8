//! SSYNC, the sender's side: offers a partition's objects, receives the list of those wanted, and
//! sends them. The lines are described in `cairn_formats::ssync`. The replicator sends objects
//! unchanged; the reconstructor sends one fragment of each, or rebuilds the receiver's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_disk::engine::{Content, Sendable};
use cairn_disk::{
    Device, DiskError, Engine, FragmentChoice, Metadata, ObjectInfo, ObjectKey, ObjectReader,
    PartitionKey,
};
use cairn_formats::ssync::{
    MISSING_CHECK_END, MISSING_CHECK_START, Offer, UPDATES_END, UPDATES_START, Wanted,
};
use cairn_http::client::CallError;
use cairn_http::lines::{BodyLines, LineError};
use cairn_http::params::{is_true, quote_path};
use cairn_http::respond::header;
use cairn_http::{Body, BodySender, Request};
use cairn_peer::{Backends, Node};
use cairn_types::{ObjectHash, PolicyIndex, header_name};
use futures_util::StreamExt;
use http::header::{HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use thiserror::Error;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::calls;
use crate::rebuild::{RebuildError, Rebuilder};
use crate::session_permits::SessionPermits;

/// Maximum size in bytes of objects that are read whole before they are sent.
const INLINE_MAX_BYTES: u64 = 64 << 10;
/// Objects opened ahead of the one being sent.
const OBJECTS_AHEAD_MAX: usize = 32;
/// Bytes of small objects sent in one chunk.
const GATHER_BYTES: usize = 128 << 10;
/// Suffixes listed in one job of the device.
const SUFFIXES_PER_JOB: usize = 64;
/// Bytes per chunk of a larger object.
const CHUNK_BYTES: usize = 128 << 10;
/// Bytes of offers sent in one chunk.
const OFFERS_CHUNK_BYTES: usize = 32 << 10;
/// Maximum line of a response.
const LINE_MAX_BYTES: usize = 64 << 10;
/// Maximum body of a refusal.
const REFUSAL_MAX_BYTES: u64 = 64 << 10;

/// Errors that end a session early.
#[derive(Debug, Error)]
pub(crate) enum SsyncError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("Expected status 200; got {0}")]
    Status(StatusCode),
    #[error("Unexpected response: {0}")]
    Unexpected(String),
    #[error("reading the answer: {0}")]
    Answer(#[from] LineError),
    #[error("Early disconnect")]
    Disconnected,
    #[error("nothing was taken for {0:?}")]
    Stuck(Duration),
    #[error("an object's length changed while it was sent")]
    Short,
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Result of a session.
#[derive(Default)]
pub(crate) struct Delivered {
    /// Objects in step now; `None` if unknown (rsync).
    pub(crate) in_step: Option<HashSet<ObjectHash>>,
    /// Wanted objects that could not be read: not to be removed.
    pub(crate) unsent: HashSet<ObjectHash>,
    /// Offers of the objects in step.
    pub(crate) offers: Vec<Offer>,
    /// Whether not all objects were offered.
    pub(crate) is_limited: bool,
}

/// Context of a sender.
pub(crate) struct Sender<'a> {
    pub(crate) engine: &'a Arc<dyn Engine>,
    pub(crate) backends: &'a Backends,
    pub(crate) daemon: &'static str,
    /// Timeout for sending a request's head or a chunk.
    pub(crate) node_timeout: Duration,
    /// Timeout of a response that requires work.
    pub(crate) http_timeout: Duration,
    /// Permits for sessions per remote device.
    pub(crate) permits: &'a SessionPermits,
    /// Called with every progress.
    pub(crate) on_progress: &'a (dyn Fn() + Send + Sync),
}

/// Partition and suffixes to send.
pub(crate) struct SsyncJob<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) policy: PolicyIndex,
    pub(crate) partition: u32,
    pub(crate) suffixes: &'a [String],
    /// Only determines which of these objects the receiver has.
    pub(crate) only: Option<&'a HashSet<ObjectHash>>,
    /// Fragments, in an erasure-coded policy.
    pub(crate) fragments: Option<FragmentSelection<'a>>,
}

impl SsyncJob<'_> {
    fn at(&self) -> PartitionKey {
        PartitionKey::new(self.policy, self.partition)
    }
}

/// Selection of fragments to send.
#[derive(Clone, Copy)]
pub(crate) struct FragmentSelection<'a> {
    /// Index of the local fragments; `None` for tombstones only.
    pub(crate) own: Option<u32>,
    /// Index of the receiver's fragments.
    pub(crate) theirs: u32,
    /// Includes non-durable fragments.
    pub(crate) not_durable: bool,
    /// Maximum objects offered; 0 is unlimited.
    pub(crate) most: usize,
    /// Rebuilds the receiver's fragments from others, if they are not ours.
    pub(crate) rebuilder: Option<&'a Rebuilder>,
}

/// An SSYNC session.
struct SsyncSession<'a> {
    context: &'a Sender<'a>,
    job: &'a SsyncJob<'a>,
    choice: FragmentChoice,
    sender: BodySender,
    answer: BodyLines,
    /// Buffered output.
    pending: BytesMut,
}

impl Sender<'_> {
    pub(crate) async fn ssync(
        &self,
        job: &SsyncJob<'_>,
        node: &Node,
    ) -> Result<Delivered, SsyncError> {
        let _turn = self.permits.wait(&node.name()).await;
        let mut session = SsyncSession::begin(self, job, node).await?;
        let (offers, is_limited) = session.offer().await?;
        let mut in_step: HashSet<ObjectHash> = offers.keys().copied().collect();
        let wanted = session.receive_wanted(&in_step).await?;
        let mut unsent = HashSet::new();
        session.send_line(UPDATES_START).await?;
        if job.only.is_some() {
            for (hash, _) in &wanted {
                in_step.remove(hash);
            }
        } else {
            session.send_all(node, wanted, &mut unsent).await?;
            in_step.retain(|hash| !unsent.contains(hash));
        }
        session.send_line(UPDATES_END).await?;
        session.end().await?;
        let offers = offers.into_iter();
        let offers = offers.filter(|(hash, _)| in_step.contains(hash));
        Ok(Delivered {
            offers: offers.map(|(_, offer)| offer).collect(),
            in_step: Some(in_step),
            unsent,
            is_limited,
        })
    }
}

impl<'a> SsyncSession<'a> {
    async fn begin(
        context: &'a Sender<'a>,
        job: &'a SsyncJob<'a>,
        node: &Node,
    ) -> Result<Self, SsyncError> {
        let (sender, body) = Body::channel(None, 8);
        let mut request = Request::new(body);
        *request.method_mut() = Method::from_bytes(b"SSYNC").unwrap_or_default();
        *request.uri_mut() = cairn_peer::backend_uri(node, job.partition, "", None);
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, calls::user_agent(context.daemon));
        headers.insert(
            "x-backend-storage-policy-index",
            HeaderValue::from(job.policy.0),
        );
        if let Some(fragments) = job.fragments {
            let index = HeaderValue::from(fragments.theirs);
            headers.insert("x-backend-ssync-frag-index", index.clone());
            // Header name of Swift 2.20 and earlier.
            headers.insert("x-backend-ssync-node-index", index);
        }
        let address = node.replication_address;
        let called = context
            .backends
            .call(address, request, context.node_timeout);
        let (head, body) = called.await?.into_parts();
        if head.status != StatusCode::OK {
            let _ = timeout(context.node_timeout, body.collect(REFUSAL_MAX_BYTES)).await;
            return Err(SsyncError::Status(head.status));
        }
        let at_once =
            header(&head.headers, "x-backend-ssync-at-once").and_then(|text| text.parse().ok());
        context.permits.allow(&node.name(), at_once.unwrap_or(1));
        let takes_any = header(&head.headers, "x-backend-accept-no-commit").is_some_and(is_true);
        let choice = match job.fragments {
            None => FragmentChoice::default(),
            Some(fragments) if fragments.not_durable && takes_any => {
                FragmentChoice::even_not_durable(fragments.own)
            }
            Some(fragments) => FragmentChoice::of_index(fragments.own),
        };
        Ok(SsyncSession {
            context,
            job,
            choice,
            sender,
            answer: BodyLines::new(body, LINE_MAX_BYTES, context.http_timeout),
            pending: BytesMut::new(),
        })
    }

    /// Sends the offers of the suffixes; returns them, and whether there are more.
    async fn offer(&mut self) -> Result<(HashMap<ObjectHash, Offer>, bool), SsyncError> {
        let job = self.job;
        let most = job.fragments.map_or(0, |fragments| fragments.most);
        let mut offered = HashMap::new();
        let mut is_limited = false;
        let mut lines = format!("{MISSING_CHECK_START}\r\n");
        'suffixes: for suffixes in job.suffixes.chunks(SUFFIXES_PER_JOB) {
            let engine = self.context.engine.clone();
            let at = job.at();
            let (suffixes, choice) = (suffixes.to_vec(), self.choice.clone());
            let offers = job.device.write(move |disk| {
                let mut offers = Vec::new();
                for suffix in &suffixes {
                    offers.extend(engine.offers(disk, at, suffix, &choice)?);
                }
                Ok(offers)
            });
            for offer in offers.await? {
                if job.only.is_some_and(|only| !only.contains(&offer.hash)) {
                    continue;
                }
                if most > 0 && offered.len() >= most {
                    is_limited = true;
                    break 'suffixes;
                }
                offered.insert(offer.hash, offer);
                lines.push_str(&offer.encode());
                lines.push_str("\r\n");
                if lines.len() >= OFFERS_CHUNK_BYTES {
                    self.send(std::mem::take(&mut lines).into()).await?;
                }
            }
        }
        lines.push_str(MISSING_CHECK_END);
        lines.push_str("\r\n");
        self.send(lines.into()).await?;
        Ok((offered, is_limited))
    }

    async fn receive_wanted(
        &mut self,
        offered: &HashSet<ObjectHash>,
    ) -> Result<Vec<(ObjectHash, Wanted)>, SsyncError> {
        self.receive_start(MISSING_CHECK_START).await?;
        let mut wanted = Vec::new();
        loop {
            let line = self.receive_line().await?;
            if line == MISSING_CHECK_END {
                return Ok(wanted);
            }
            if line.is_empty() {
                continue;
            }
            match Wanted::decode(&line) {
                // More entries than offers would include duplicates.
                Ok((hash, parts)) if offered.contains(&hash) && wanted.len() < offered.len() => {
                    wanted.push((hash, parts));
                }
                _ => return Err(SsyncError::Unexpected(line)),
            }
        }
    }

    /// Sends the wanted objects, with a few opened ahead.
    async fn send_all(
        &mut self,
        node: &Node,
        wanted: Vec<(ObjectHash, Wanted)>,
        unsent: &mut HashSet<ObjectHash>,
    ) -> Result<(), SsyncError> {
        let (device, at) = (self.job.device.clone(), self.job.at());
        let (engine, choice) = (self.context.engine.clone(), self.choice.clone());
        let rebuilder = self.job.fragments.and_then(|f| f.rebuilder);
        // Rebuilt content is not read here.
        let inline = if rebuilder.is_some() {
            0
        } else {
            INLINE_MAX_BYTES
        };
        let opened = futures_util::stream::iter(wanted).map(move |(hash, parts)| {
            let (device, engine, choice) = (device.clone(), engine.clone(), choice.clone());
            async move {
                let opened = device
                    .read(move |disk| engine.open_to_send(disk, at.object(hash), inline, choice));
                (hash, parts, opened.await)
            }
        });
        let mut opened = std::pin::pin!(opened.buffered(OBJECTS_AHEAD_MAX));
        while let Some((hash, parts, opened)) = opened.next().await {
            let sent = match opened {
                Ok(Sendable::Nothing) => Ok(true),
                Ok(Sendable::Tombstone(name, timestamp)) => {
                    let mut headers = Metadata::new();
                    headers.set("X-Timestamp", timestamp.internal());
                    match parts.data {
                        true => self.send_head("DELETE", &name, &headers).await,
                        false => Ok(true),
                    }
                }
                Ok(Sendable::Object(key, open)) => {
                    let (info, content) = (open.info, open.content);
                    match rebuilder {
                        None => self.send_object(&key, &info, content, parts).await,
                        Some(rebuilder) => {
                            self.send_rebuilt(rebuilder, node, &key, &info, parts).await
                        }
                    }
                }
                // All objects of a failed device are lost to us.
                Err(error @ DiskError::Device(_)) => return Err(error.into()),
                Err(error) => {
                    match error.is_of_device() {
                        // The device has logged it: it may recur for every object.
                        true => debug!(%error, hash = hash.hex(), "object not sent"),
                        false => warn!(%error, hash = hash.hex(), "object not sent"),
                    }
                    Ok(false)
                }
            };
            if !sent? {
                unsent.insert(hash);
            }
            (self.context.on_progress)();
        }
        self.flush().await
    }

    async fn send_object(
        &mut self,
        key: &ObjectKey,
        info: &ObjectInfo,
        content: Content,
        parts: Wanted,
    ) -> Result<bool, SsyncError> {
        if parts.data {
            let mut headers = Metadata::new();
            headers.set("Content-Length", info.size.to_string());
            for (name, value) in info.datafile_metadata().iter() {
                if name != "name" && name != "Content-Length" {
                    headers.set(name, value);
                }
            }
            let durable = info.fragments.as_ref().map(|fragments| fragments.durable);
            if durable.is_some_and(|durable| durable != Some(info.data_timestamp)) {
                headers.set("X-Backend-No-Commit", "True");
            }
            if !self.send_head("PUT", &key.name, &headers).await? {
                return Ok(false);
            }
            self.send_content(key, info, content).await?;
        }
        self.send_metadata(key, info, parts).await
    }

    /// As [`SsyncSession::send_object`], with the receiver's fragment instead of ours. One that cannot be
    /// rebuilt is left for another time.
    async fn send_rebuilt(
        &mut self,
        rebuilder: &Rebuilder,
        node: &Node,
        key: &ObjectKey,
        info: &ObjectInfo,
        parts: Wanted,
    ) -> Result<bool, SsyncError> {
        if parts.data {
            let theirs = self.job.fragments.map_or(0, |fragments| fragments.theirs);
            let mut rebuilt = match rebuilder.rebuild(node, key, info, theirs).await {
                Ok(rebuilt) => rebuilt,
                Err(error) => {
                    let (object, node) = (&*key.name, node.name());
                    warn!(object, node, fragment = theirs, %error, "fragment not rebuilt");
                    return Ok(false);
                }
            };
            if !self.send_head("PUT", &key.name, rebuilt.headers()).await? {
                return Ok(false);
            }
            let mut sent = 0;
            while let Some(bytes) = rebuilt.next_fragment().await? {
                sent += bytes.len() as u64;
                if sent > info.size {
                    return Err(SsyncError::Short);
                }
                self.send(bytes).await?;
                (self.context.on_progress)();
            }
            if sent != info.size {
                return Err(SsyncError::Short);
            }
        }
        self.send_metadata(key, info, parts).await
    }

    /// Sends newer metadata, if wanted; false if the receiver may still lack it.
    async fn send_metadata(
        &mut self,
        key: &ObjectKey,
        info: &ObjectInfo,
        parts: Wanted,
    ) -> Result<bool, SsyncError> {
        match &info.metafile_metadata {
            Some(metadata) if info.timestamp() != info.data_timestamp => match parts.meta {
                true => self.send_head("POST", &key.name, metadata).await,
                // It has newer metadata, or is an OpenStack Swift with a tombstone, which asks for ours
                // next time: until then ours is not to be removed.
                false => Ok(!parts.data),
            },
            _ => Ok(true),
        }
    }

    /// Sends content of the announced length; if it is short, the session ends, as the receiver
    /// would take what follows for content.
    async fn send_content(
        &mut self,
        key: &ObjectKey,
        info: &ObjectInfo,
        content: Content,
    ) -> Result<(), SsyncError> {
        let mut sent = 0;
        match content {
            Content::None => {}
            Content::Inline(bytes) => {
                sent = bytes.len() as u64;
                self.gather(&bytes).await?;
            }
            Content::Stored(stored) => {
                let mut reader = ObjectReader::new(
                    self.job.device.clone(),
                    self.context.engine.clone(),
                    key.clone(),
                    info.etag(),
                    stored,
                    0..info.size,
                    CHUNK_BYTES,
                );
                while let Some(bytes) = reader.next_chunk().await? {
                    sent += bytes.len() as u64;
                    self.send(bytes).await?;
                    (self.context.on_progress)();
                }
            }
        }
        match sent == info.size {
            true => Ok(()),
            false => Err(SsyncError::Short),
        }
    }

    /// Sends the head of an update; false if it cannot be encoded.
    async fn send_head(
        &mut self,
        method: &str,
        name: &str,
        headers: &Metadata,
    ) -> Result<bool, SsyncError> {
        let mut head = format!("{method} {}\r\n", quote_path(name)).into_bytes();
        let mut all: Vec<_> = headers.iter().collect();
        all.sort();
        for (name, value) in all {
            if value.iter().any(|b| matches!(b, b'\r' | b'\n')) {
                warn!(object = name, "metadata with line ends is not sent");
                return Ok(false);
            }
            head.extend_from_slice(&header_name::unescape(name));
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        self.gather(&head).await?;
        Ok(true)
    }

    /// Buffers bytes, to be sent with others.
    async fn gather(&mut self, bytes: &[u8]) -> Result<(), SsyncError> {
        self.pending.extend_from_slice(bytes);
        match self.pending.len() >= GATHER_BYTES {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), SsyncError> {
        match self.pending.is_empty() {
            true => Ok(()),
            false => {
                let bytes = self.pending.split().freeze();
                self.hand_over(bytes).await
            }
        }
    }

    async fn send_line(&mut self, line: &str) -> Result<(), SsyncError> {
        self.send(format!("{line}\r\n").into()).await
    }

    /// Sends bytes after the buffered ones.
    async fn send(&mut self, bytes: Bytes) -> Result<(), SsyncError> {
        self.flush().await?;
        self.hand_over(bytes).await
    }

    async fn hand_over(&mut self, bytes: Bytes) -> Result<(), SsyncError> {
        let node_timeout = self.context.node_timeout;
        match timeout(node_timeout, self.sender.send(bytes)).await {
            Ok(true) => Ok(()),
            Err(_) => Err(SsyncError::Stuck(node_timeout)),
            // The receiver reports its reason before it stops reading.
            Ok(false) => match self.receive_line().await {
                Ok(line) if line.is_empty() => match self.receive_line().await {
                    Ok(line) => Err(SsyncError::Unexpected(line)),
                    Err(_) => Err(SsyncError::Disconnected),
                },
                Ok(line) => Err(SsyncError::Unexpected(line)),
                Err(_) => Err(SsyncError::Disconnected),
            },
        }
    }

    async fn receive_line(&mut self) -> Result<String, SsyncError> {
        let line = self.answer.line().await?.ok_or(SsyncError::Disconnected)?;
        let line: String = String::from_utf8_lossy(&line).chars().take(1024).collect();
        match line.starts_with(":ERROR:") {
            true => Err(SsyncError::Unexpected(line)),
            false => Ok(line),
        }
    }

    async fn receive_start(&mut self, expected: &str) -> Result<(), SsyncError> {
        loop {
            match self.receive_line().await? {
                line if line == expected => return Ok(()),
                line if line.is_empty() => {}
                line => return Err(SsyncError::Unexpected(line)),
            }
        }
    }

    /// Receives the confirmation, and ends the request.
    async fn end(mut self) -> Result<(), SsyncError> {
        self.receive_start(UPDATES_START).await?;
        loop {
            match self.receive_line().await? {
                line if line == UPDATES_END => break,
                line if line.is_empty() => {}
                line => return Err(SsyncError::Unexpected(line)),
            }
        }
        self.sender.finish().await;
        // Drained, so that the connection can be reused.
        let node_timeout = self.context.node_timeout;
        let _ = timeout(node_timeout, self.answer.drain()).await;
        Ok(())
    }
}
