//! Fragment archives streamed from object servers: requested, read fragment by fragment, and
//! replaced by another server's if one breaks off.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_erasure::Codec;
use cairn_http::{Body, Request, Response, respond};
use cairn_peer::backend_uri;
use cairn_peer::{Backends, Node, Nodes};
use cairn_types::{ObjectHash, Timestamp};
use futures_util::future::join_all;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::json;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{EC_ETAG, EC_INDEX};
use crate::affinity::Timings;
use crate::headers::source_timestamp;

/// Maximum bytes passed on of a server's error body.
const ERROR_BODY_MAX_BYTES: u64 = 64 * 1024;

/// Parameters of one client's read, for its requests to servers.
pub(super) struct Fetch {
    /// The client's address, if the request came over a socket.
    pub(super) client: Option<IpAddr>,
    pub(super) backends: Arc<Backends>,
    pub(super) nodes: Arc<Nodes>,
    pub(super) partition: u32,
    pub(super) path: String,
    pub(super) query: Option<String>,
    /// Request headers, without a range.
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    /// Measured response times, if nodes are sorted by them.
    pub(super) timings: Option<Arc<Timings>>,
}

/// A server's response.
pub(super) enum FragmentResponse {
    Archive(Box<(HeaderMap, Archive)>),
    Refused(Refusal),
}

/// A response without a fragment.
pub(super) struct Refusal {
    /// Status; 500 for a server that did not respond.
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The server did not respond, or is a handoff that has no trace of the object.
    pub(super) is_void: bool,
    pub(super) is_primary: bool,
}

impl Refusal {
    fn void() -> Self {
        Refusal {
            status: 500,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            is_void: true,
            is_primary: false,
        }
    }
}

impl Fetch {
    /// Requests an archive. `preferences` state which fragments are wanted; `range` is a range of
    /// the archive.
    pub(super) async fn ask(
        &self,
        node: Node,
        preferences: String,
        range: Option<String>,
    ) -> FragmentResponse {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = backend_uri(&node, self.partition, &self.path, self.query.as_deref());
        let mut headers = self.headers.clone();
        respond::set(&mut headers, "x-backend-fragment-preferences", preferences);
        if let Some(range) = range.and_then(respond::value) {
            headers.insert(RANGE, range);
        }
        *request.headers_mut() = headers;
        let sent = Instant::now();
        let call = self.backends.call(node.address, request, self.timeout);
        let response = match call.await {
            Ok(response) => response,
            Err(error) => {
                debug!(node = %node.name(), %error, "no answer");
                self.nodes.limiter().increment(&node, "no answer");
                return FragmentResponse::Refused(Refusal::void());
            }
        };
        self.backends.hedging().note(node.address, sent.elapsed());
        if let Some(timings) = &self.timings {
            timings.note(node.address, sent.elapsed(), Instant::now());
        }
        if response.status().is_success() {
            let headers = response.headers().clone();
            return match Archive::of(node, response) {
                Some(archive) => FragmentResponse::Archive(Box::new((headers, archive))),
                None => FragmentResponse::Refused(Refusal::void()),
            };
        }
        FragmentResponse::Refused(self.refusal(node, response).await)
    }

    async fn refusal(&self, node: Node, response: Response) -> Refusal {
        let status = response.status().as_u16();
        self.nodes.check(&node, status);
        let stamp = respond::header_timestamp(response.headers(), "x-backend-timestamp");
        let is_unstamped = stamp.is_none_or(Timestamp::is_zero);
        if node.handoff && (status >= 500 || status == 404) && is_unstamped {
            return Refusal::void();
        }
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(self.timeout, body.collect(ERROR_BODY_MAX_BYTES)).await;
        Refusal {
            status,
            headers: parts.headers,
            body: body.ok().and_then(Result::ok).unwrap_or_default(),
            is_void: false,
            is_primary: !node.handoff,
        }
    }
}

/// Parameters of the next fragment to read from each archive.
pub(super) struct FragmentWanted<'a> {
    /// Range of the archive that contains the fragment.
    pub(super) range: Range<u64>,
    /// Offset in the archive at which reading will end.
    pub(super) end: u64,
    /// Bytes of the object in the segment.
    pub(super) segment_len: u64,
    /// Fragments without a checksum of their payload are rejected.
    pub(super) needs_checksum: bool,
    pub(super) codec: &'a Codec,
}

/// An archive, or a part of it, that is being received.
pub(super) struct Archive {
    node: Node,
    pub(super) index: usize,
    body: Body,
    /// The unread rest of the last chunk.
    rest: Bytes,
    /// Offset in the archive of the rest, and of the end of the body.
    at: u64,
    end: u64,
    /// The archive's fragment of the current segment.
    fragment: Option<Bytes>,
}

impl Archive {
    fn of(node: Node, response: Response) -> Option<Archive> {
        let (parts, body) = response.into_parts();
        let number = |name: &str| respond::header(&parts.headers, name)?.parse::<u64>().ok();
        let index = number(EC_INDEX)? as usize;
        let (at, end) = match parts.status {
            StatusCode::PARTIAL_CONTENT => {
                let range = respond::header(&parts.headers, CONTENT_RANGE.as_str())?;
                let (range, _) = range.strip_prefix("bytes ")?.split_once('/')?;
                let (first, last) = range.split_once('-')?;
                (
                    first.parse().ok()?,
                    last.parse::<u64>().ok()?.checked_add(1)?,
                )
            }
            _ => (0, number(CONTENT_LENGTH.as_str())?),
        };
        Some(Archive {
            node,
            index,
            body,
            rest: Bytes::new(),
            at,
            end,
            fragment: None,
        })
    }

    fn covers(&self, range: &Range<u64>) -> bool {
        self.at <= range.start && range.end <= self.end
    }

    /// Reads a fragment and verifies its header and checksum.
    async fn read(&mut self, wanted: &FragmentWanted<'_>, timeout: Duration) -> Result<(), String> {
        let range = &wanted.range;
        if self.fragment.is_some() {
            return Ok(());
        }
        if !self.covers(range) {
            return Err("it has another range of the archive".into());
        }
        let needed = (range.end - self.at) as usize;
        let skipped = (range.start - self.at) as usize;
        // A buffer of exactly the fragment's size, since a slow client may keep it for long.
        let mut read = BytesMut::with_capacity(needed);
        while read.len() < needed {
            if self.rest.is_empty() {
                self.rest = match self.body.next_chunk_within(timeout).await {
                    Some(Ok(chunk)) => chunk,
                    Some(Err(error)) => return Err(error.to_string()),
                    None => return Err("ended early".into()),
                };
            }
            let count = self.rest.len().min(needed - read.len());
            read.extend_from_slice(&self.rest.split_to(count));
        }
        let fragment = read.split_off(skipped).freeze();
        self.at = range.end;
        let header = wanted.codec.check(&fragment);
        let header = header.map_err(|error| error.to_string())?;
        if header.index as usize != self.index {
            return Err(format!("it sent a fragment {}", header.index));
        }
        if header.segment_len != wanted.segment_len {
            let length = header.segment_len;
            return Err(format!("it sent a fragment of a segment of {length} bytes"));
        }
        if wanted.needs_checksum && header.payload_crc32.is_none() {
            return Err("its fragment has no checksum, as the others' have".into());
        }
        self.fragment = Some(fragment);
        Ok(())
    }

    /// Polls the body to its end, so that its connection can be reused.
    async fn end(&mut self, timeout: Duration) {
        if self.at == self.end {
            let _ = self.body.next_chunk_within(timeout).await;
        }
    }
}

/// Servers that were asked for the first archives, and whose responses are not used. If an archive
/// breaks off, they are asked again.
#[derive(Default)]
pub(super) struct Spare {
    /// Servers that sent an archive.
    pub(super) answered: Vec<Node>,
    /// Servers that had not responded when there were enough archives.
    pub(super) given_up: Vec<Node>,
}

impl Spare {
    /// Removes servers whose archives are used.
    fn beside(mut self, archives: &[Archive]) -> Spare {
        let is_spare = |node: &Node| {
            let mut used = archives.iter();
            used.all(|archive| archive.node.device.id != node.device.id)
        };
        self.answered.retain(is_spare);
        self
    }
}

/// The archives of one version that are being decoded, as many as needed.
pub(super) struct Archives {
    fetch: Fetch,
    spare: Spare,
    timestamp: Timestamp,
    etag: Option<HeaderValue>,
    archives: Vec<Archive>,
}

impl Archives {
    /// `headers` are those of one of the archives.
    pub(super) fn new(
        fetch: Fetch,
        headers: &HeaderMap,
        archives: Vec<Archive>,
        spare: Spare,
    ) -> Self {
        Archives {
            fetch,
            spare: spare.beside(&archives),
            timestamp: source_timestamp(headers),
            etag: headers.get(EC_ETAG).cloned(),
            archives,
        }
    }

    pub(super) fn client(&self) -> Option<IpAddr> {
        self.fetch.client
    }

    /// Prepares all archives for reading this range.
    pub(super) async fn seek(&mut self, range: &Range<u64>) {
        let fetch = &self.fetch;
        let all: Vec<usize> = self.archives.iter().map(|archive| archive.index).collect();
        let seeks = self.archives.iter_mut().map(|archive| {
            let others = all.iter().copied().filter(|i| *i != archive.index);
            let preferences = preferences(self.timestamp, others.collect());
            async move {
                if archive.covers(range) {
                    return;
                }
                // If this fails, reading fails too, and another server is asked.
                let node = archive.node.clone();
                let address = node.address;
                let asked = fetch.ask(node, preferences, Some(text(range)));
                let asked = fetch.backends.unless_hung(address, asked).await;
                if let Some(FragmentResponse::Archive(answer)) = asked
                    && answer.1.index == archive.index
                {
                    *archive = answer.1;
                }
            }
        });
        join_all(seeks).await;
    }

    /// MD5 of the whole object, if its servers know it.
    pub(super) fn object_md5(&self) -> Option<ObjectHash> {
        let etag = self.etag.as_ref()?.to_str().ok()?;
        ObjectHash::from_hex(etag.trim_matches('"'))
    }

    /// Reads one fragment of each archive; archives that break off or send an invalid fragment are
    /// replaced.
    pub(super) async fn fragments(
        &mut self,
        wanted: &FragmentWanted<'_>,
    ) -> Result<Vec<Bytes>, String> {
        let timeout = self.fetch.timeout;
        loop {
            let (reads, backends) = (self.archives.iter_mut(), &self.fetch.backends);
            let reads = join_all(reads.map(|archive| async move {
                let address = archive.node.address;
                let read = archive.read(wanted, timeout);
                let outcome = backends.unless_hung(address, read).await;
                outcome.unwrap_or_else(|| Err("the host does not answer".into()))
            }));
            let failures: Vec<(usize, String)> = reads
                .await
                .into_iter()
                .enumerate()
                .filter_map(|(i, read)| Some((i, read.err()?)))
                .collect();
            if failures.is_empty() {
                break;
            }
            for (i, reason) in failures {
                self.replace(i, wanted.range.start..wanted.end, &reason)
                    .await?;
            }
        }
        let fragments = self.archives.iter_mut();
        Ok(fragments.filter_map(|a| a.fragment.take()).collect())
    }

    /// Replaces a failed archive by another server's.
    async fn replace(&mut self, i: usize, range: Range<u64>, reason: &str) -> Result<(), String> {
        let failed = &self.archives[i];
        let (node, path) = (failed.node.name(), &self.fetch.path);
        warn!(
            node,
            path,
            reason,
            at = range.start,
            "a fragment archive broke off"
        );
        self.fetch
            .nodes
            .limiter()
            .increment(&failed.node, "broke off");
        let others = self.archives.iter().enumerate();
        let others: Vec<usize> = others
            .filter(|(other, _)| *other != i)
            .map(|(_, archive)| archive.index)
            .collect();
        match self.other_than(&others, &range).await {
            Some(archive) => {
                self.archives[i] = archive;
                Ok(())
            }
            None => Err(format!(
                "a fragment archive broke off ({reason}), and nobody has another"
            )),
        }
    }

    /// The next server to try: first those known to have an archive, last those that were too slow.
    fn next_node(&mut self) -> Option<Node> {
        let answered = self.spare.answered.pop();
        let next = answered.or_else(|| self.fetch.nodes.next());
        next.or_else(|| self.spare.given_up.pop())
    }

    /// An archive of this version whose index is not among `indexes`, from a server that is not in
    /// use.
    async fn other_than(&mut self, indexes: &[usize], range: &Range<u64>) -> Option<Archive> {
        while let Some(node) = self.next_node() {
            let preferences = preferences(self.timestamp, indexes.to_vec());
            let address = node.address;
            let asked = self.fetch.ask(node, preferences, Some(text(range)));
            let asked = self.fetch.backends.unless_hung(address, asked).await;
            let Some(FragmentResponse::Archive(answer)) = asked else {
                continue;
            };
            let (headers, archive) = *answer;
            let is_same = source_timestamp(&headers) == self.timestamp
                && headers.get(EC_ETAG) == self.etag.as_ref();
            if is_same && !indexes.contains(&archive.index) && archive.covers(range) {
                return Some(archive);
            }
        }
        None
    }

    /// Reads one fragment more than decoding needs, from an additional archive.
    pub(super) async fn further_fragment(&mut self, wanted: &FragmentWanted<'_>) -> Option<Bytes> {
        let (timeout, backends) = (self.fetch.timeout, self.fetch.backends.clone());
        let indexes: Vec<usize> = self.archives.iter().map(|archive| archive.index).collect();
        loop {
            let mut archive = self.other_than(&indexes, &wanted.range).await?;
            let address = archive.node.address;
            let read = archive.read(wanted, timeout);
            if let Some(Ok(())) = backends.unless_hung(address, read).await {
                return archive.fragment;
            }
        }
    }

    pub(super) async fn end(&mut self) {
        let timeout = self.fetch.timeout;
        join_all(self.archives.iter_mut().map(|archive| archive.end(timeout))).await;
    }
}

fn text(range: &Range<u64>) -> String {
    format!("bytes={}-{}", range.start, range.end.saturating_sub(1))
}

fn preferences(timestamp: Timestamp, exclude: Vec<usize>) -> String {
    json!([{"timestamp": timestamp.internal(), "exclude": exclude}]).to_string()
}
