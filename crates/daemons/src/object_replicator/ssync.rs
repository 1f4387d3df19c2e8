//! SSYNC, the sender's side: offers what a partition has, hears what is wanted, sends that. The
//! lines are described in `cairn_formats::ssync`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_disk::object_file::Content;
use cairn_disk::replication::{self, Sendable};
use cairn_disk::{DiskError, Metadata, ObjectEngine, ObjectInfo, ObjectKey, ObjectReader};
use cairn_formats::ssync::{
    MISSING_CHECK_END, MISSING_CHECK_START, UPDATES_END, UPDATES_START, Wanted,
};
use cairn_http::client::CallError;
use cairn_http::lines::{BodyLines, LineError};
use cairn_http::params::quote_path;
use cairn_http::{Body, BodySender, Request};
use cairn_peer::Node;
use cairn_types::ObjectHash;
use futures_util::StreamExt;
use http::header::{HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use thiserror::Error;
use tokio::time::timeout;
use tracing::warn;

use super::jobs::Job;
use super::pass::{Pass, yield_to_clients};
use crate::calls;

/// Objects up to this size are read whole before they are sent.
const INLINE: u64 = 64 << 10;
/// Objects opened ahead of the one that is sent.
const AHEAD: usize = 32;
/// Small objects go out together, in pieces of about this many bytes.
const TOGETHER: usize = 128 << 10;
/// Suffixes whose objects are listed in one operation of the device.
const SUFFIXES: usize = 64;
/// Bytes of one piece of a larger object.
const CHUNK: usize = 128 << 10;
/// Offers are sent in pieces of about this many bytes.
const OFFERS: usize = 32 << 10;
/// The longest line of an answer.
const LINE_MAX: usize = 64 << 10;
/// What an answer that refuses may say.
const REFUSAL_MAX: u64 = 64 << 10;

/// Why a conversation did not come to its end.
#[derive(Debug, Error)]
pub(super) enum SsyncError {
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
    #[error("an object became shorter while it was sent")]
    Short,
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// What the other side has after a conversation.
#[derive(Default)]
pub(super) struct Delivered {
    /// Objects that are in step now; `None` where that is not known (rsync).
    pub(super) in_step: Option<HashSet<ObjectHash>>,
    /// Objects that were wanted and could not be read: not to be removed.
    pub(super) unsent: HashSet<ObjectHash>,
}

/// A conversation under way.
struct Talk<'a> {
    pass: &'a Pass,
    job: &'a Job,
    sender: BodySender,
    answer: BodyLines,
    /// Not sent yet.
    pending: BytesMut,
}

impl Pass {
    /// `only`: find out which of these objects the other side has, and send nothing.
    pub(super) async fn ssync(
        &self,
        job: &Job,
        node: &Node,
        suffixes: &[String],
        only: Option<&HashSet<ObjectHash>>,
    ) -> Result<Delivered, SsyncError> {
        let _turn = self.turn(node).await;
        let mut talk = Talk::begin(self, job, node).await?;
        let offered = talk.offer(suffixes, only).await?;
        let wanted = talk.hear_wanted(&offered).await?;
        let mut unsent = HashSet::new();
        talk.say(UPDATES_START).await?;
        let mut in_step = offered;
        if only.is_some() {
            for (hash, _) in &wanted {
                in_step.remove(hash);
            }
        } else {
            talk.send_all(wanted, &mut unsent).await?;
            in_step.retain(|hash| !unsent.contains(hash));
        }
        talk.say(UPDATES_END).await?;
        talk.end().await?;
        Ok(Delivered {
            in_step: Some(in_step),
            unsent,
        })
    }
}

impl<'a> Talk<'a> {
    async fn begin(pass: &'a Pass, job: &'a Job, node: &Node) -> Result<Self, SsyncError> {
        let (sender, body) = Body::channel(None, 8);
        let mut request = Request::new(body);
        *request.method_mut() = Method::from_bytes(b"SSYNC").unwrap_or_default();
        *request.uri_mut() = cairn_peer::fan_out::backend_uri(node, job.partition, "", None);
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, calls::user_agent("object-replicator"));
        headers.insert(
            "x-backend-storage-policy-index",
            HeaderValue::from(job.policy.0),
        );
        let config = &pass.replicator.config;
        let address = calls::replication_address(node);
        let backends = &pass.replicator.parts.backends;
        let response = backends.call(address, request, config.node_timeout).await?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            let _ = timeout(config.node_timeout, body.collect(REFUSAL_MAX)).await;
            return Err(SsyncError::Status(head.status));
        }
        Ok(Talk {
            pass,
            job,
            sender,
            answer: BodyLines::new(body, LINE_MAX, config.http_timeout),
            pending: BytesMut::new(),
        })
    }

    /// Offers what is in these suffixes; tells what was offered.
    async fn offer(
        &mut self,
        suffixes: &[String],
        only: Option<&HashSet<ObjectHash>>,
    ) -> Result<HashSet<ObjectHash>, SsyncError> {
        let mut offered = HashSet::new();
        let mut lines = format!("{MISSING_CHECK_START}\r\n");
        for suffixes in suffixes.chunks(SUFFIXES) {
            let engine = self.pass.replicator.parts.engine.clone();
            let (policy, partition) = (self.job.policy, self.job.partition);
            let suffixes = suffixes.to_vec();
            let offers = self.job.device.write(move |disk| {
                let mut offers = Vec::new();
                for suffix in &suffixes {
                    offers.extend(replication::list_offers(
                        disk, &engine, policy, partition, suffix,
                    )?);
                }
                Ok(offers)
            });
            for offer in offers.await? {
                if only.is_some_and(|only| !only.contains(&offer.hash)) {
                    continue;
                }
                offered.insert(offer.hash);
                lines.push_str(&offer.encode());
                lines.push_str("\r\n");
                if lines.len() >= OFFERS {
                    self.send(std::mem::take(&mut lines).into()).await?;
                }
            }
        }
        lines.push_str(MISSING_CHECK_END);
        lines.push_str("\r\n");
        self.send(lines.into()).await?;
        Ok(offered)
    }

    async fn hear_wanted(
        &mut self,
        offered: &HashSet<ObjectHash>,
    ) -> Result<Vec<(ObjectHash, Wanted)>, SsyncError> {
        self.hear_start(MISSING_CHECK_START).await?;
        let mut wanted = Vec::new();
        loop {
            let line = self.hear().await?;
            if line == MISSING_CHECK_END {
                return Ok(wanted);
            }
            if line.is_empty() {
                continue;
            }
            match Wanted::decode(&line) {
                // More than once each would be more than there is.
                Ok((hash, parts)) if offered.contains(&hash) && wanted.len() < offered.len() => {
                    wanted.push((hash, parts));
                }
                _ => return Err(SsyncError::Unexpected(line)),
            }
        }
    }

    /// Sends what is wanted, a few objects read ahead.
    async fn send_all(
        &mut self,
        wanted: Vec<(ObjectHash, Wanted)>,
        unsent: &mut HashSet<ObjectHash>,
    ) -> Result<(), SsyncError> {
        let (device, policy, partition) =
            (self.job.device.clone(), self.job.policy, self.job.partition);
        let engine = self.pass.replicator.parts.engine.clone();
        let opened = futures_util::stream::iter(wanted).map(move |(hash, parts)| {
            let (device, engine) = (device.clone(), engine.clone());
            async move {
                yield_to_clients(&device).await;
                let opened = device.read(move |disk| {
                    replication::open_to_send(disk, &engine, policy, partition, hash, INLINE)
                });
                (hash, parts, opened.await)
            }
        });
        let mut opened = std::pin::pin!(opened.buffered(AHEAD));
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
                    self.send_object(&key, &info, content, parts).await
                }
                // Those whose device has gone are all lost to us.
                Err(error @ DiskError::Device(_)) => return Err(error.into()),
                Err(error) => {
                    warn!(%error, hash = hash.hex(), "object not sent");
                    Ok(false)
                }
            };
            if !sent? {
                unsent.insert(hash);
            }
            self.pass.hear();
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
            if !self.send_head("PUT", &key.name, &headers).await? {
                return Ok(false);
            }
            self.send_content(key, info, content).await?;
        }
        match &info.metafile_metadata {
            Some(metadata) if parts.meta && info.timestamp() != info.data_timestamp => {
                self.send_head("POST", &key.name, metadata).await
            }
            _ => Ok(true),
        }
    }

    /// What the head has announced must come whole, or the conversation ends here: the other
    /// side would take what follows for content.
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
            Content::File(file) => {
                self.flush().await?;
                let engine: Arc<dyn ObjectEngine> =
                    Arc::new(self.pass.replicator.parts.engine.clone());
                let mut reader = ObjectReader::new(
                    self.job.device.clone(),
                    engine,
                    key.clone(),
                    info.etag(),
                    file,
                    0..info.size,
                    CHUNK,
                );
                while let Some(bytes) = reader.next_chunk().await? {
                    sent += bytes.len() as u64;
                    self.send(bytes).await?;
                    self.pass.hear();
                    yield_to_clients(&self.job.device).await;
                }
            }
        }
        match sent == info.size {
            true => Ok(()),
            false => Err(SsyncError::Short),
        }
    }

    /// The head of an update; false where it cannot be sent as it is.
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
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        self.gather(&head).await?;
        Ok(true)
    }

    /// Sends these bytes, with others.
    async fn gather(&mut self, bytes: &[u8]) -> Result<(), SsyncError> {
        self.pending.extend_from_slice(bytes);
        match self.pending.len() >= TOGETHER {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), SsyncError> {
        match self.pending.is_empty() {
            true => Ok(()),
            false => {
                let bytes = self.pending.split().freeze();
                self.send(bytes).await
            }
        }
    }

    async fn say(&mut self, line: &str) -> Result<(), SsyncError> {
        self.send(format!("{line}\r\n").into()).await
    }

    async fn send(&mut self, bytes: Bytes) -> Result<(), SsyncError> {
        let patience = self.pass.replicator.config.node_timeout;
        match timeout(patience, self.sender.send(bytes)).await {
            Ok(true) => Ok(()),
            Err(_) => Err(SsyncError::Stuck(patience)),
            // Whoever stops reading has said why.
            Ok(false) => match self.hear().await {
                Ok(line) if line.is_empty() => match self.hear().await {
                    Ok(line) => Err(SsyncError::Unexpected(line)),
                    Err(_) => Err(SsyncError::Disconnected),
                },
                Ok(line) => Err(SsyncError::Unexpected(line)),
                Err(_) => Err(SsyncError::Disconnected),
            },
        }
    }

    async fn hear(&mut self) -> Result<String, SsyncError> {
        let line = self.answer.line().await?.ok_or(SsyncError::Disconnected)?;
        let line: String = String::from_utf8_lossy(&line).chars().take(1024).collect();
        match line.starts_with(":ERROR:") {
            true => Err(SsyncError::Unexpected(line)),
            false => Ok(line),
        }
    }

    async fn hear_start(&mut self, expected: &str) -> Result<(), SsyncError> {
        loop {
            match self.hear().await? {
                line if line == expected => return Ok(()),
                line if line.is_empty() => {}
                line => return Err(SsyncError::Unexpected(line)),
            }
        }
    }

    /// Hears that all is well, and lets the other side end.
    async fn end(mut self) -> Result<(), SsyncError> {
        self.hear_start(UPDATES_START).await?;
        loop {
            match self.hear().await? {
                line if line == UPDATES_END => break,
                line if line.is_empty() => {}
                line => return Err(SsyncError::Unexpected(line)),
            }
        }
        self.sender.finish().await;
        // Its end, so that the connection can be used again.
        let patience = self.pass.replicator.config.node_timeout;
        let _ = timeout(patience, self.answer.drain()).await;
        Ok(())
    }
}
