//! Fragment archives on their way from object servers: asked for, read fragment by fragment, and
//! replaced by another server's when one breaks off.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_erasure::Codec;
use cairn_http::{Body, Request, Response, respond};
use cairn_peer::fan_out::{self, backend_uri};
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

/// The largest error body taken over from a server.
const MAX_ERROR_BODY: u64 = 64 * 1024;

/// One client's read, as it is sent to servers.
pub(super) struct Fetch {
    pub(super) backends: Arc<Backends>,
    pub(super) nodes: Arc<Nodes>,
    pub(super) partition: u32,
    pub(super) path: String,
    pub(super) query: Option<String>,
    /// Without a range.
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    /// Where nodes are asked in the order of their times.
    pub(super) timings: Option<Arc<Timings>>,
}

/// What a server said.
pub(super) enum Asked {
    Archive(Box<(HeaderMap, Archive)>),
    Refused(Refusal),
}

/// An answer without a fragment.
pub(super) struct Refusal {
    /// 500 for a server that did not answer.
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// It did not answer, or is a handoff that has nothing to do with the object.
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
    /// `preferences`: which fragments are wanted. `range`: of the archive.
    pub(super) async fn ask(
        &self,
        node: Node,
        preferences: String,
        range: Option<String>,
    ) -> Asked {
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
                return Asked::Refused(Refusal::void());
            }
        };
        self.backends.hedging().note(node.address, sent.elapsed());
        if let Some(timings) = &self.timings {
            timings.note(node.address, sent.elapsed(), Instant::now());
        }
        if response.status().is_success() {
            let headers = response.headers().clone();
            return match Archive::of(node, response) {
                Some(archive) => Asked::Archive(Box::new((headers, archive))),
                None => Asked::Refused(Refusal::void()),
            };
        }
        Asked::Refused(self.refusal(node, response).await)
    }

    async fn refusal(&self, node: Node, response: Response) -> Refusal {
        let status = response.status().as_u16();
        fan_out::check(&node, status, &self.nodes);
        let stamp = respond::header_timestamp(response.headers(), "x-backend-timestamp");
        let is_unstamped = stamp.is_none_or(Timestamp::is_zero);
        if node.handoff && (status >= 500 || status == 404) && is_unstamped {
            return Refusal::void();
        }
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(self.timeout, body.collect(MAX_ERROR_BODY)).await;
        Refusal {
            status,
            headers: parts.headers,
            body: body.ok().and_then(Result::ok).unwrap_or_default(),
            is_void: false,
            is_primary: !node.handoff,
        }
    }
}

/// Which fragment of each archive is wanted.
pub(super) struct FragmentWanted<'a> {
    /// Of the archive.
    pub(super) range: Range<u64>,
    /// Where what will be read of the archive ends.
    pub(super) end: u64,
    /// Bytes of the object that the segment has.
    pub(super) segment_len: u64,
    /// A fragment without a checksum of its payload is of no use.
    pub(super) needs_checksum: bool,
    pub(super) codec: &'a Codec,
}

/// One archive, or a part of it, on its way.
pub(super) struct Archive {
    node: Node,
    pub(super) index: usize,
    body: Body,
    /// The unused rest of the last chunk that came.
    rest: Bytes,
    /// Where in the archive the rest begins, and the body ends.
    at: u64,
    end: u64,
    /// The fragment of the segment that is being read.
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

    /// Reads a fragment and checks it.
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
        // A buffer of the fragment's size: many clients may leave theirs lying here.
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

    /// Lets a body end properly, so that its connection can be used again.
    async fn end(&mut self, timeout: Duration) {
        if self.at == self.end {
            let _ = self.body.next_chunk_within(timeout).await;
        }
    }
}

/// Servers that were asked for the first archives, and whose answers are not read from: should an
/// archive break off, they are asked again.
#[derive(Default)]
pub(super) struct Spare {
    /// They sent an archive.
    pub(super) answered: Vec<Node>,
    /// They had sent nothing yet when there were archives enough.
    pub(super) given_up: Vec<Node>,
}

impl Spare {
    /// Leaves out those that an archive comes from.
    fn beside(mut self, archives: &[Archive]) -> Spare {
        let is_spare = |node: &Node| {
            let mut used = archives.iter();
            used.all(|archive| archive.node.device.id != node.device.id)
        };
        self.answered.retain(is_spare);
        self
    }
}

/// As many archives of one version as it takes to decode it.
pub(super) struct Archives {
    fetch: Fetch,
    spare: Spare,
    timestamp: Timestamp,
    etag: Option<HeaderValue>,
    archives: Vec<Archive>,
}

impl Archives {
    /// `headers`: those that came with one of the archives.
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

    /// Makes ready to read this range of all archives.
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
                // Where this fails, so does reading, and another server is asked.
                let node = archive.node.clone();
                let address = node.address;
                let asked = fetch.ask(node, preferences, Some(text(range)));
                let asked = fetch.backends.unless_hung(address, asked).await;
                if let Some(Asked::Archive(answer)) = asked
                    && answer.1.index == archive.index
                {
                    *archive = answer.1;
                }
            }
        });
        join_all(seeks).await;
    }

    /// The MD5 of the whole object, where its servers know it.
    pub(super) fn object_md5(&self) -> Option<ObjectHash> {
        let etag = self.etag.as_ref()?.to_str().ok()?;
        ObjectHash::from_hex(etag.trim_matches('"'))
    }

    /// One fragment of each archive; archives that break off, or send what is no sound fragment,
    /// are replaced.
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

    /// Takes another server's archive in the place of one that failed.
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

    /// Another server to go on with: first those that are known to have an archive, last those that
    /// were too slow.
    fn next_node(&mut self) -> Option<Node> {
        let answered = self.spare.answered.pop();
        let next = answered.or_else(|| self.fetch.nodes.next());
        next.or_else(|| self.spare.given_up.pop())
    }

    /// An archive of this version whose index is none of these, from a server that none is read from.
    async fn other_than(&mut self, indexes: &[usize], range: &Range<u64>) -> Option<Archive> {
        while let Some(node) = self.next_node() {
            let preferences = preferences(self.timestamp, indexes.to_vec());
            let address = node.address;
            let asked = self.fetch.ask(node, preferences, Some(text(range)));
            let asked = self.fetch.backends.unless_hung(address, asked).await;
            let Some(Asked::Archive(answer)) = asked else {
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

    /// One more fragment than it takes to decode, of a further archive.
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
