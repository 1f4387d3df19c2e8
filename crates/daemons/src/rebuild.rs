//! Rebuilding a fragment archive from others, fetched from the partition's servers, segment by
//! segment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_disk::metadata::FRAGMENT_INDEX;
use cairn_disk::{Device, DiskError, Engine, Metadata, ObjectInfo, ObjectKey, Suspect};
use cairn_erasure::{Codec, CodecError};
use cairn_formats::ini::{ConfError, Section};
use cairn_http::lines::{BodyLines, LineError};
use cairn_http::own_thread;
use cairn_http::respond::{header, header_timestamp};
use cairn_http::{Body, Clock, Request, Response};
use cairn_peer::{Backends, LoadedRing, Node};
use cairn_types::{ErasureScheme, PolicyIndex, Timestamp};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use http::header::{HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use thiserror::Error;
use tracing::{debug, error, warn};

use crate::calls;

const EC_ETAG: &str = "X-Object-Sysmeta-Ec-Etag";
/// A response without a status.
const UNKNOWN: u16 = 0;

/// Reasons why a fragment could not be rebuilt.
#[derive(Debug, Error)]
pub(crate) enum RebuildError {
    #[error("too few fragments of its time ({found} of {needed}); other answers: {errors}")]
    TooFew {
        found: usize,
        needed: usize,
        errors: String,
    },
    #[error("quarantined: {0}")]
    Quarantined(String),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("reading a fragment: {0}")]
    Read(#[from] LineError),
    #[error("fragments of different lengths: one archive ended before the others")]
    Uneven,
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("the thread that computes it has ended")]
    Ended,
}

/// Rebuilds fragments of one partition.
pub(crate) struct Rebuilder {
    pub(crate) policy: PolicyIndex,
    pub(crate) scheme: ErasureScheme,
    pub(crate) codec: Arc<Codec>,
    pub(crate) ring: Arc<LoadedRing>,
    pub(crate) device: Arc<Device>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) backends: Arc<Backends>,
    pub(crate) clock: Clock,
    pub(crate) node_timeout: Duration,
    pub(crate) quarantine_threshold: usize,
    pub(crate) quarantine_age: Duration,
    pub(crate) request_node_count: RequestNodeCount,
}

/// `request_node_count`: a number of servers, or a multiple of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestNodeCount {
    Nodes(usize),
    PerReplica(usize),
}

impl RequestNodeCount {
    pub(crate) fn read(section: &Section) -> Result<Self, ConfError> {
        let text = section.str_or("request_node_count", "2 * replicas");
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let number = words.first().and_then(|word| word.parse().ok());
        match (number, &words[..]) {
            (Some(number), [_]) => Ok(RequestNodeCount::Nodes(number)),
            (Some(number), [_, "*", word]) if word.eq_ignore_ascii_case("replicas") => {
                Ok(RequestNodeCount::PerReplica(number))
            }
            _ => Err(section.bad(
                "request_node_count",
                "expected a number, or one as in 2 * replicas",
            )),
        }
    }

    pub(crate) fn for_replicas(self, replicas: usize) -> usize {
        match self {
            RequestNodeCount::Nodes(number) => number,
            RequestNodeCount::PerReplica(number) => number.saturating_mul(replicas),
        }
    }
}

/// Responses with fragments of one timestamp.
#[derive(Default)]
struct Bucket {
    answers: usize,
    /// By index; never the one to rebuild.
    useful: BTreeMap<u32, Body>,
    etag: Option<String>,
    is_durable: bool,
}

/// Responses so far.
#[derive(Default)]
struct Answers {
    buckets: BTreeMap<Timestamp, Bucket>,
    /// Counts of other statuses.
    errors: BTreeMap<u16, usize>,
}

impl Rebuilder {
    /// Rebuilds the fragment `index` of an object, whose local fragment is open, for `node`, which
    /// lacks it.
    pub(crate) async fn rebuild(
        &self,
        node: &Node,
        key: &ObjectKey,
        info: &ObjectInfo,
        index: u32,
    ) -> Result<Rebuilt, RebuildError> {
        let metadata = info.datafile_metadata();
        let own = info.fragments.as_ref().map(|fragments| fragments.index);
        let is_whole = [FRAGMENT_INDEX, EC_ETAG]
            .iter()
            .all(|name| metadata.get(name).is_some_and(|value| !value.is_empty()));
        if !is_whole {
            let reason = format!("Invalid fragment #{}", own.unwrap_or(0));
            return Err(self.quarantine(key, info, reason).await);
        }
        let mut answers = Answers::default();
        if let Some(bodies) = self.ask(node, key, info, index, &mut answers).await {
            let mut headers: Metadata = metadata
                .iter()
                .filter(|(name, _)| !matches!(*name, "name" | "ETag" | "Content-Length"))
                .collect();
            headers.set("Content-Length", info.size.to_string());
            headers.set(FRAGMENT_INDEX, index.to_string());
            return Ok(Rebuilt {
                headers,
                archives: bodies
                    .into_iter()
                    .map(|body| BodyLines::new(body, 0, self.node_timeout))
                    .collect(),
                codec: self.codec.clone(),
                index,
                fragment_size: self
                    .codec
                    .fragment_size(segment_size(metadata, &self.scheme)),
            });
        }
        let local = info.data_timestamp;
        if self.is_isolated(&answers, local, own) {
            let reason = format!("Solitary fragment #{}", own.unwrap_or(0));
            return Err(self.quarantine(key, info, reason).await);
        }
        for (timestamp, bucket) in &answers.buckets {
            let (object, found) = (&*key.name, bucket.useful.len());
            let (is_durable, timestamp) = (bucket.is_durable, timestamp.internal());
            error!(
                object,
                index, timestamp, found, is_durable, "too few fragments to rebuild one"
            );
        }
        let found = answers.buckets.get(&local).map_or(0, |b| b.useful.len());
        let errors = answers.errors.iter();
        let errors: Vec<String> = errors
            .map(|(status, count)| match *status {
                UNKNOWN => format!("{count} x unknown"),
                status => format!("{count} x {status}"),
            })
            .collect();
        Err(RebuildError::TooFew {
            found,
            needed: self.scheme.data(),
            errors: errors.join(", "),
        })
    }

    async fn quarantine(&self, key: &ObjectKey, info: &ObjectInfo, reason: String) -> RebuildError {
        let (engine, key, why) = (self.engine.clone(), key.clone(), reason.clone());
        let suspect = Suspect::Data {
            timestamp: info.data_timestamp,
            fragment: info.fragments.as_ref().map(|fragments| fragments.index),
        };
        let moved = self
            .device
            .write(move |disk| engine.quarantine(disk, &key, &suspect, &why));
        match moved.await {
            Ok(true) => RebuildError::Quarantined(reason),
            Ok(false) => DiskError::StateChanged.into(),
            Err(error) => error.into(),
        }
    }

    /// Queries all primaries except `node`, and handoffs if ours seems to be the only fragment
    /// left. Returns enough archives to rebuild from; `None` if there are too few.
    async fn ask(
        &self,
        node: &Node,
        key: &ObjectKey,
        info: &ObjectInfo,
        index: u32,
        answers: &mut Answers,
    ) -> Option<Vec<Body>> {
        let local = info.data_timestamp;
        let own = info.fragments.as_ref().map(|fragments| fragments.index);
        let primaries = self.ring.primaries(key.partition);
        let count = primaries.len();
        let ask = |node: Node| async move {
            let answer = self.get(&node, key, local).await;
            (node, answer)
        };
        let others = primaries
            .into_iter()
            .filter(|primary| primary.device.id != node.device.id);
        let mut asked: FuturesUnordered<_> = others.map(ask).collect();
        let at_once = asked.len();
        while let Some((node, answer)) = asked.next().await {
            if let Some(bodies) = self.sort(&node, answer, index, answers) {
                return Some(bodies);
            }
        }
        if !self.is_isolated(answers, local, own) {
            return None;
        }
        let more = self.request_node_count.for_replicas(count);
        let more = more.saturating_sub(count);
        let mut handoffs = self.ring.handoffs(key.partition, more).into_iter();
        asked.extend(handoffs.by_ref().take(at_once).map(ask));
        while let Some((node, answer)) = asked.next().await {
            if let Some(bodies) = self.sort(&node, answer, index, answers) {
                return Some(bodies);
            }
            if self.is_isolated(answers, local, own) {
                asked.extend(handoffs.next().map(ask));
            }
        }
        None
    }

    async fn get(&self, node: &Node, key: &ObjectKey, local: Timestamp) -> Option<Response> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = cairn_peer::backend_uri(node, key.partition, &key.name, None);
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, calls::user_agent("obj-reconstructor"));
        headers.insert("x-backend-storage-policy-index", self.policy.0.into());
        headers.insert("x-backend-replication", HeaderValue::from_static("True"));
        // An archive that fails its ETag check must not be used.
        let refuse = HeaderValue::from_static("true");
        headers.insert("x-backend-refuse-unsound", refuse);
        // With the timestamp of ours, durable or not.
        let preferences = format!("[{{\"timestamp\": \"{local}\", \"exclude\": []}}]");
        if let Ok(preferences) = HeaderValue::try_from(preferences) {
            headers.insert("x-backend-fragment-preferences", preferences);
        }
        let address = node.replication_address;
        let called = self.backends.call(address, request, self.node_timeout);
        match called.await {
            Ok(response) => Some(response),
            Err(error) => {
                let (node, object) = (node.name(), &*key.name);
                warn!(node, object, %error, "no answer with a fragment");
                None
            }
        }
    }

    /// Adds a response to its bucket. Returns the archives once there are enough.
    fn sort(
        &self,
        node: &Node,
        answer: Option<Response>,
        index: u32,
        answers: &mut Answers,
    ) -> Option<Vec<Body>> {
        let mut bad = |status: u16| {
            *answers.errors.entry(status).or_default() += 1;
            None
        };
        let Some(answer) = answer else {
            return bad(UNKNOWN);
        };
        let (head, body) = answer.into_parts();
        if head.status != StatusCode::OK {
            if head.status != StatusCode::NOT_FOUND {
                warn!(node = node.name(), status = %head.status, "no fragment");
            }
            return bad(head.status.as_u16());
        }
        let headers = &head.headers;
        let their_index = header(headers, FRAGMENT_INDEX).and_then(|text| text.trim().parse().ok());
        let time = header_timestamp(headers, "x-backend-data-timestamp")
            .or_else(|| header_timestamp(headers, "x-backend-timestamp"));
        let (Some(their_index), Some(time), Some(etag)) =
            (their_index, time, header(headers, EC_ETAG))
        else {
            warn!(
                node = node.name(),
                "an answer without a fragment's index, time or ETag"
            );
            return bad(UNKNOWN);
        };
        if let Some(durable) = header_timestamp(headers, "x-backend-durable-timestamp") {
            answers.buckets.entry(durable).or_default().is_durable = true;
        }
        let bucket = answers.buckets.entry(time).or_default();
        bucket.answers += 1;
        if *bucket.etag.get_or_insert_with(|| etag.to_owned()) != etag {
            error!(
                node = node.name(),
                etag, "fragments of one time with different ETags"
            );
            return None;
        }
        if their_index == index {
            debug!(
                node = node.name(),
                index, "the fragment to be rebuilt is there"
            );
        } else {
            bucket.useful.entry(their_index).or_insert(body);
        }
        let needed = self.scheme.data();
        (bucket.useful.len() >= needed).then(|| {
            let useful = std::mem::take(&mut bucket.useful).into_values();
            useful.take(needed).collect()
        })
    }

    /// Whether ours is an isolated fragment, from which nothing can be rebuilt: all others have
    /// been gone for long.
    fn is_isolated(&self, answers: &Answers, local: Timestamp, own: Option<u32>) -> bool {
        let all_missing = answers.errors.keys().eq([&StatusCode::NOT_FOUND.as_u16()]);
        let of_one_time = answers.buckets.keys().eq([&local]);
        let age = self.clock.now().as_f64() - local.as_f64();
        let Some(bucket) = answers.buckets.get(&local) else {
            return false;
        };
        all_missing
            && of_one_time
            && age > self.quarantine_age.as_secs_f64()
            && bucket.answers <= self.quarantine_threshold
            && bucket.answers < self.scheme.data()
            && own.is_some_and(|own| bucket.useful.contains_key(&own))
    }
}

/// Segment size of the object, whatever its policy's current setting.
fn segment_size(metadata: &Metadata, scheme: &ErasureScheme) -> u64 {
    let text = metadata.get_str("X-Object-Sysmeta-Ec-Segment-Size");
    let size = text.and_then(|text| text.trim().parse::<u64>().ok());
    let largest = cairn_types::erasure_scheme::MAX_SEGMENT_SIZE as u64;
    size.filter(|size| (1..=largest).contains(size))
        .unwrap_or(scheme.segment_size() as u64)
}

/// A fragment archive being rebuilt.
pub(crate) struct Rebuilt {
    headers: Metadata,
    archives: Vec<BodyLines>,
    codec: Arc<Codec>,
    index: u32,
    /// Bytes of each fragment except the last.
    fragment_size: u64,
}

impl Rebuilt {
    /// The archive's metadata, including its length.
    pub(crate) fn headers(&self) -> &Metadata {
        &self.headers
    }

    /// The next fragment; `None` at the end.
    pub(crate) async fn next_fragment(&mut self) -> Result<Option<Bytes>, RebuildError> {
        let size = self.fragment_size;
        let pieces = self.archives.iter_mut().map(|a| piece(a, size));
        let pieces: Result<Vec<Bytes>, LineError> = join_all(pieces).await.into_iter().collect();
        let pieces = pieces?;
        let length = pieces.first().map_or(0, Bytes::len);
        if pieces.iter().any(|piece| piece.len() != length) {
            return Err(RebuildError::Uneven);
        }
        if length == 0 {
            return Ok(None);
        }
        let (codec, index) = (self.codec.clone(), self.index as usize);
        let made = own_thread::blocking(move || {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
            codec.reconstruct(&pieces, index)
        });
        let made = made.await.ok_or(RebuildError::Ended)??;
        Ok(Some(made.into()))
    }
}

/// Reads `size` bytes of an archive; fewer at its end.
async fn piece(archive: &mut BodyLines, size: u64) -> Result<Bytes, LineError> {
    let mut all = BytesMut::new();
    while (all.len() as u64) < size {
        match archive.bytes(size - all.len() as u64).await {
            Ok(bytes) => all.extend_from_slice(&bytes),
            Err(LineError::Ended) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(all.freeze())
}
