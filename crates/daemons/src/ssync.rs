//! SSYNC, the sender's side: offers what a partition has, hears what is wanted, sends that. The
//! lines are described in `cairn_formats::ssync`. The replicator sends objects as they are; the
//! reconstructor sends one fragment of each, or rebuilds the other side's.

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
use crate::object_reconstructor::{RebuildError, Rebuilder};
use crate::turns::Turns;

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

/// What the other side has after a conversation.
#[derive(Default)]
pub(crate) struct Delivered {
    /// Objects that are in step now; `None` where that is not known (rsync).
    pub(crate) in_step: Option<HashSet<ObjectHash>>,
    /// Objects that were wanted and could not be read: not to be removed.
    pub(crate) unsent: HashSet<ObjectHash>,
    /// What was offered of the objects in step.
    pub(crate) offers: Vec<Offer>,
    /// There is more than was offered.
    pub(crate) is_limited: bool,
}

/// What a sender stands on.
pub(crate) struct Sender<'a> {
    pub(crate) engine: &'a Arc<dyn Engine>,
    pub(crate) backends: &'a Backends,
    pub(crate) daemon: &'static str,
    /// For a request's head or a piece to be taken.
    pub(crate) node_timeout: Duration,
    /// For an answer that takes the other side some work.
    pub(crate) http_timeout: Duration,
    /// At the devices that are sent to.
    pub(crate) turns: &'a Turns,
    /// Called with everything that gets done.
    pub(crate) hear: &'a (dyn Fn() + Send + Sync),
}

/// What to send.
pub(crate) struct Order<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) policy: PolicyIndex,
    pub(crate) partition: u32,
    pub(crate) suffixes: &'a [String],
    /// Just find out which of these objects the other side has.
    pub(crate) only: Option<&'a HashSet<ObjectHash>>,
    /// In an erasure-coded policy.
    pub(crate) fragments: Option<FragmentOrder<'a>>,
}

impl Order<'_> {
    fn at(&self) -> PartitionKey {
        PartitionKey::new(self.policy, self.partition)
    }
}

/// Which fragments to send.
#[derive(Clone, Copy)]
pub(crate) struct FragmentOrder<'a> {
    /// Of this index here; `None`: tombstones are all there is.
    pub(crate) own: Option<u32>,
    /// The other side is to have this one.
    pub(crate) theirs: u32,
    /// Fragments that are not durable, too.
    pub(crate) not_durable: bool,
    /// Objects offered at most; 0: all.
    pub(crate) most: usize,
    /// Makes theirs of others', where it is not ours that they are to have.
    pub(crate) rebuilder: Option<&'a Rebuilder>,
}

/// A conversation under way.
struct Talk<'a> {
    ground: &'a Sender<'a>,
    order: &'a Order<'a>,
    choice: FragmentChoice,
    sender: BodySender,
    answer: BodyLines,
    /// Not sent yet.
    pending: BytesMut,
}

impl Sender<'_> {
    pub(crate) async fn ssync(
        &self,
        order: &Order<'_>,
        node: &Node,
    ) -> Result<Delivered, SsyncError> {
        let _turn = self.turns.wait(&node.name()).await;
        let mut talk = Talk::begin(self, order, node).await?;
        let (offers, is_limited) = talk.offer().await?;
        let mut in_step: HashSet<ObjectHash> = offers.keys().copied().collect();
        let wanted = talk.hear_wanted(&in_step).await?;
        let mut unsent = HashSet::new();
        talk.say(UPDATES_START).await?;
        if order.only.is_some() {
            for (hash, _) in &wanted {
                in_step.remove(hash);
            }
        } else {
            talk.send_all(node, wanted, &mut unsent).await?;
            in_step.retain(|hash| !unsent.contains(hash));
        }
        talk.say(UPDATES_END).await?;
        talk.end().await?;
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

impl<'a> Talk<'a> {
    async fn begin(
        ground: &'a Sender<'a>,
        order: &'a Order<'a>,
        node: &Node,
    ) -> Result<Self, SsyncError> {
        let (sender, body) = Body::channel(None, 8);
        let mut request = Request::new(body);
        *request.method_mut() = Method::from_bytes(b"SSYNC").unwrap_or_default();
        *request.uri_mut() = cairn_peer::fan_out::backend_uri(node, order.partition, "", None);
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, calls::user_agent(ground.daemon));
        headers.insert(
            "x-backend-storage-policy-index",
            HeaderValue::from(order.policy.0),
        );
        if let Some(fragments) = order.fragments {
            let index = HeaderValue::from(fragments.theirs);
            headers.insert("x-backend-ssync-frag-index", index.clone());
            // As servers of Swift 2.20 and before call it.
            headers.insert("x-backend-ssync-node-index", index);
        }
        let address = node.replication_address;
        let called = ground.backends.call(address, request, ground.node_timeout);
        let (head, body) = called.await?.into_parts();
        if head.status != StatusCode::OK {
            let _ = timeout(ground.node_timeout, body.collect(REFUSAL_MAX)).await;
            return Err(SsyncError::Status(head.status));
        }
        let at_once =
            header(&head.headers, "x-backend-ssync-at-once").and_then(|text| text.parse().ok());
        ground.turns.allow(&node.name(), at_once.unwrap_or(1));
        let takes_any = header(&head.headers, "x-backend-accept-no-commit").is_some_and(is_true);
        let choice = match order.fragments {
            None => FragmentChoice::default(),
            Some(fragments) if fragments.not_durable && takes_any => {
                FragmentChoice::even_not_durable(fragments.own)
            }
            Some(fragments) => FragmentChoice::of_index(fragments.own),
        };
        Ok(Talk {
            ground,
            order,
            choice,
            sender,
            answer: BodyLines::new(body, LINE_MAX, ground.http_timeout),
            pending: BytesMut::new(),
        })
    }

    /// Offers what is in the suffixes; tells what was offered, and whether there is more.
    async fn offer(&mut self) -> Result<(HashMap<ObjectHash, Offer>, bool), SsyncError> {
        let order = self.order;
        let most = order.fragments.map_or(0, |fragments| fragments.most);
        let mut offered = HashMap::new();
        let mut is_limited = false;
        let mut lines = format!("{MISSING_CHECK_START}\r\n");
        'suffixes: for suffixes in order.suffixes.chunks(SUFFIXES) {
            let engine = self.ground.engine.clone();
            let at = order.at();
            let (suffixes, choice) = (suffixes.to_vec(), self.choice.clone());
            let offers = order.device.write(move |disk| {
                let mut offers = Vec::new();
                for suffix in &suffixes {
                    offers.extend(engine.offers(disk, at, suffix, &choice)?);
                }
                Ok(offers)
            });
            for offer in offers.await? {
                if order.only.is_some_and(|only| !only.contains(&offer.hash)) {
                    continue;
                }
                if most > 0 && offered.len() >= most {
                    is_limited = true;
                    break 'suffixes;
                }
                offered.insert(offer.hash, offer);
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
        Ok((offered, is_limited))
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
        node: &Node,
        wanted: Vec<(ObjectHash, Wanted)>,
        unsent: &mut HashSet<ObjectHash>,
    ) -> Result<(), SsyncError> {
        let (device, at) = (self.order.device.clone(), self.order.at());
        let (engine, choice) = (self.ground.engine.clone(), self.choice.clone());
        let rebuilder = self.order.fragments.and_then(|f| f.rebuilder);
        // Content that is made of others' is not read.
        let inline = if rebuilder.is_some() { 0 } else { INLINE };
        let opened = futures_util::stream::iter(wanted).map(move |(hash, parts)| {
            let (device, engine, choice) = (device.clone(), engine.clone(), choice.clone());
            async move {
                let opened = device
                    .read(move |disk| engine.open_to_send(disk, at.object(hash), inline, choice));
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
                    match rebuilder {
                        None => self.send_object(&key, &info, content, parts).await,
                        Some(rebuilder) => {
                            self.send_rebuilt(rebuilder, node, &key, &info, parts).await
                        }
                    }
                }
                // Those whose device has gone are all lost to us.
                Err(error @ DiskError::Device(_)) => return Err(error.into()),
                Err(error) => {
                    match error.is_of_device() {
                        // The device has logged it: every object may meet it.
                        true => debug!(%error, hash = hash.hex(), "object not sent"),
                        false => warn!(%error, hash = hash.hex(), "object not sent"),
                    }
                    Ok(false)
                }
            };
            if !sent? {
                unsent.insert(hash);
            }
            (self.ground.hear)();
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

    /// As [`Talk::send_object`], with the fragment that the other side is to have in the place of
    /// ours. One that cannot be made is left for another time.
    async fn send_rebuilt(
        &mut self,
        rebuilder: &Rebuilder,
        node: &Node,
        key: &ObjectKey,
        info: &ObjectInfo,
        parts: Wanted,
    ) -> Result<bool, SsyncError> {
        if parts.data {
            let theirs = self.order.fragments.map_or(0, |fragments| fragments.theirs);
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
                (self.ground.hear)();
            }
            if sent != info.size {
                return Err(SsyncError::Short);
            }
        }
        self.send_metadata(key, info, parts).await
    }

    async fn send_metadata(
        &mut self,
        key: &ObjectKey,
        info: &ObjectInfo,
        parts: Wanted,
    ) -> Result<bool, SsyncError> {
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
            Content::Stored(stored) => {
                let mut reader = ObjectReader::new(
                    self.order.device.clone(),
                    self.ground.engine.clone(),
                    key.clone(),
                    info.etag(),
                    stored,
                    0..info.size,
                    CHUNK,
                );
                while let Some(bytes) = reader.next_chunk().await? {
                    sent += bytes.len() as u64;
                    self.send(bytes).await?;
                    (self.ground.hear)();
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
            head.extend_from_slice(&header_name::unescape(name));
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
                self.hand_over(bytes).await
            }
        }
    }

    async fn say(&mut self, line: &str) -> Result<(), SsyncError> {
        self.send(format!("{line}\r\n").into()).await
    }

    /// Sends these bytes, after those that wait.
    async fn send(&mut self, bytes: Bytes) -> Result<(), SsyncError> {
        self.flush().await?;
        self.hand_over(bytes).await
    }

    async fn hand_over(&mut self, bytes: Bytes) -> Result<(), SsyncError> {
        let patience = self.ground.node_timeout;
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
        let patience = self.ground.node_timeout;
        let _ = timeout(patience, self.answer.drain()).await;
        Ok(())
    }
}
