//! Upload streamed to all replicas at once. No content is sent before a quorum has requested it; a
//! replica that fails on the way is dropped as long as a quorum is left.

use std::sync::Arc;

use cairn_http::{
    Blocks, BodyError, Footers, LaneMd5, Response, SharedDigest, SharedFooters, respond,
};
use cairn_peer::gather::{Answer, Gather};
use cairn_peer::put::{OpenError, Putter};
use cairn_peer::{Node, Nodes, documents};
use cairn_types::{Quorum, Timestamp};
use futures_util::future::join_all;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue};
use serde_json::Value;
use tracing::{debug, error};

use super::Location;
use super::conditional::Swap;
use super::put::{self, conclude, refused_by_state};
use crate::checks::MessageLength;
use crate::request::Incoming;
use crate::state::Proxy;
use crate::status;

/// Maximum bytes kept of a server's response body.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

impl Proxy {
    pub(super) async fn put_stream(
        &self,
        incoming: &mut Incoming,
        location: Location,
        headers: Vec<HeaderMap>,
        length: MessageLength,
        mut swap: Option<Swap>,
    ) -> Response {
        let quorum = match &swap {
            Some(swap) => swap.majority(),
            None => location.kind.upload_quorum(headers.len()),
        };
        let notes = Notes {
            digest: SharedDigest::new(),
            footers: incoming
                .parts
                .extensions
                .get::<Footers>()
                .map(|_| SharedFooters::new()),
        };
        let nodes = match &swap {
            Some(swap) => self.swap_nodes(swap, &location),
            None => self.upload_nodes(&location),
        };
        let (headers, length) = match &swap {
            Some(swap) => swap.opening(headers, length),
            None => (headers, length),
        };
        let mut putters = self
            .open_putters(
                incoming,
                &nodes,
                location.partition,
                headers,
                length,
                &notes,
            )
            .await;
        if let Some(swap) = &mut swap {
            putters = match self.wanted(swap, putters).await {
                Ok(putters) => putters,
                Err(refused) => return refused,
            };
        }
        let early = putters
            .iter()
            .filter_map(|p| p.early.as_ref().map(|(status, _)| *status));
        if let Some(refused) = refused_by_state(incoming, early) {
            return refused;
        }
        let path = incoming.target.entity_path();
        if !quorum.is_reached_by(putters.len()) {
            error!(
                path,
                open = putters.len(),
                enough = quorum.size(),
                "too few object servers for an upload"
            );
            return status::too_few_servers();
        }
        let hash_here = notes.footers.is_none()
            && putters
                .iter()
                .any(|p| self.backends.local(p.node.address).is_some());
        let hasher = hash_here.then(LaneMd5::new);
        let pumped = self.pump(incoming, &mut putters, quorum, hasher).await;
        let (length, md5) = match pumped {
            Ok(whole) => whole,
            Err(broken) => return broken,
        };
        if let Some(swap) = &mut swap {
            // All content has been sent except for its end, which is held back until the promises
            // are there.
            match self.promised_putters(swap, &mut putters).await {
                Ok(timestamp) => incoming.timestamp = timestamp,
                Err(refused) => return refused,
            }
        }
        let concluded = self.conclude_content(incoming, &mut putters, &notes, length, md5);
        if let Err(refused) = concluded.await {
            return refused;
        }
        let quorum = match &mut swap {
            Some(swap) => {
                swap.writes();
                // Only the servers that promised are considered.
                quorum.among(putters.len())
            }
            None => quorum,
        };
        let timeout = self.options.node_timeout;
        join_all(putters.iter_mut().map(|p| p.finish(timeout))).await;
        let answers = self.answers(putters, quorum, &nodes).await;
        if let Some(swap) = swap {
            return self.conclude_swap(&swap, incoming.method(), answers, incoming.timestamp);
        }
        conclude(incoming, &answers, quorum, &format!("PUT {path}"))
    }

    /// Uploads that servers have requested. A server that has not says nothing about the condition:
    /// if too few did, either the request is invalid, as they respond, or another write came first.
    async fn wanted(
        &self,
        swap: &mut Swap,
        mut putters: Vec<Putter>,
    ) -> Result<Vec<Putter>, Response> {
        let early = putters.iter().filter_map(|p| Some(p.early.as_ref()?.0));
        let at_fault = early.clone().find(|s| (400..500).contains(s) && *s != 409);
        let is_refused = early.count() > 0;
        putters.retain(|putter| putter.early.is_none());
        if swap.majority().is_reached_by(putters.len()) || !is_refused {
            return Ok(putters);
        }
        if let Some(refused) = at_fault.and_then(status::refused_by_server) {
            return Err(refused);
        }
        match self.promised(swap).await {
            Ok(_) => Err(self.unpromised(swap)),
            Err(refused) => Err(refused),
        }
    }

    /// Obtains the promise of a majority, and keeps the uploads to the servers that promised.
    async fn promised_putters(
        &self,
        swap: &mut Swap,
        putters: &mut Vec<Putter>,
    ) -> Result<Timestamp, Response> {
        let promised = self.promised(swap).await?;
        putters.retain(|putter| promised.is_by(&putter.node));
        match swap.majority().is_reached_by(putters.len()) {
            true => Ok(promised.timestamp),
            false => Err(self.unpromised(swap)),
        }
    }

    /// Sends the metadata known only now, when the servers have all of the content.
    async fn conclude_content(
        &self,
        incoming: &Incoming,
        putters: &mut [Putter],
        notes: &Notes,
        length: u64,
        md5: Option<[u8; 16]>,
    ) -> Result<(), Response> {
        let mut md5 = md5;
        if let Some(shared) = &notes.footers
            && let Some(trailer) = put::trailer(incoming, length)?
        {
            let json = Value::Object(put::footers_json(&trailer.headers)).to_string();
            shared.set(trailer.headers);
            md5 = Some(trailer.md5);
            let timeout = self.options.node_timeout;
            join_all(putters.iter_mut().map(|p| p.end_content(&json, timeout))).await;
        }
        if let Some(md5) = md5 {
            notes.digest.set(md5);
        }
        Ok(())
    }

    /// Opens one upload per replica, to handoffs if primaries do not respond.
    async fn open_putters(
        &self,
        incoming: &Incoming,
        nodes: &Arc<Nodes>,
        partition: u32,
        headers: Vec<HeaderMap>,
        length: MessageLength,
        notes: &Notes,
    ) -> Vec<Putter> {
        let path = incoming.target.entity_path();
        // An empty body is sent as chunks too, so that no server stores it before all have agreed.
        let known = match length {
            MessageLength::Known(n) if n > 0 => Some(n),
            _ => None,
        };
        let opening = headers.into_iter().map(|mut headers| {
            if let Some(n) = known {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(n));
            }
            self.open_one(nodes, partition, &path, headers, known, notes)
        });
        join_all(opening).await.into_iter().flatten().collect()
    }

    async fn open_one(
        &self,
        nodes: &Nodes,
        partition: u32,
        path: &str,
        headers: HeaderMap,
        length: Option<u64>,
        notes: &Notes,
    ) -> Option<Putter> {
        while let Some(node) = nodes.next() {
            let mut extensions = http::Extensions::new();
            extensions.insert(notes.digest.clone());
            let (mut headers, mut length) = (headers.clone(), length);
            if let Some(footers) = &notes.footers {
                if self.backends.is_in_process(node.address) {
                    extensions.insert(footers.clone());
                } else {
                    in_documents(&mut headers, length.take());
                }
            }
            let request = http::Request::put(cairn_peer::backend_uri(&node, partition, path, None));
            let opened = Putter::open(
                &self.backends,
                node.clone(),
                request,
                headers,
                length,
                extensions,
                self.options.node_timeout,
            )
            .await;
            match opened {
                Ok(putter) => {
                    let status = putter.early.as_ref().map_or(100, |(status, _)| *status);
                    if nodes.check_write(&node, status) {
                        return Some(putter);
                    }
                }
                Err(error) => note_unopened(nodes, &node, &error),
            }
        }
        None
    }

    /// Sends every chunk to every upload and hashes it meanwhile. Returns the total number of bytes
    /// and the MD5.
    async fn pump(
        &self,
        incoming: &mut Incoming,
        putters: &mut Vec<Putter>,
        quorum: Quorum,
        mut md5: Option<LaneMd5>,
    ) -> Result<(u64, Option<[u8; 16]>), Response> {
        let body = std::mem::take(&mut incoming.body);
        let mut blocks = Blocks::new(body, self.options.client_timeout);
        let mut sent = 0;
        while let Some(chunk) = blocks.next().await {
            let chunk = chunk.map_err(|error| self.broken_upload(incoming, &error))?;
            sent += chunk.len() as u64;
            if sent > self.constraints.max_file_size {
                let error = BodyError::TooLarge(self.constraints.max_file_size);
                return Err(self.broken_upload(incoming, &error));
            }
            let timeout = self.options.node_timeout;
            let sending = join_all(putters.iter_mut().map(|p| p.send(chunk.clone(), timeout)));
            let hashing = async {
                let (md5, _) = md5?.update(chunk.clone()).await?;
                Some(md5)
            };
            (_, md5) = tokio::join!(sending, hashing);
            putters.retain(|p| !p.failed());
            if !quorum.is_reached_by(putters.len()) {
                error!(
                    path = %incoming.parts.uri.path(), left = putters.len(),
                    enough = quorum.size(),
                    "too many object servers failed during an upload"
                );
                return Err(status::too_few_servers());
            }
        }
        Ok((sent, md5.map(LaneMd5::finish)))
    }

    /// The servers' responses to their whole uploads.
    async fn answers(
        &self,
        putters: Vec<Putter>,
        quorum: Quorum,
        nodes: &Arc<Nodes>,
    ) -> Vec<Answer> {
        let timeout = self.options.node_timeout;
        let mut gather = Gather::new(&self.backends, quorum, self.timeouts());
        for putter in putters.into_iter().filter(|p| !p.failed()) {
            let nodes = nodes.clone();
            gather.start(async move {
                let node = putter.node.clone();
                let Some(response) = putter.answer(timeout).await else {
                    nodes.limiter().increment(&node, "no answer to an upload");
                    return None;
                };
                let (parts, body) = response.into_parts();
                let status = parts.status.as_u16();
                let body = body.collect(ANSWER_MAX_BYTES).await.unwrap_or_default();
                nodes.check_write(&node, status);
                Some(Answer {
                    status,
                    headers: parts.headers,
                    body,
                    node: Some(node),
                })
            });
        }
        gather.answers().await
    }
}

/// Values shared with servers of this process through extensions.
struct Notes {
    digest: SharedDigest,
    /// Footers, if a filter adds some at the content's end.
    footers: Option<SharedFooters>,
}

/// Sets the headers of an upload with footers after the content; `length` is the content's.
fn in_documents(headers: &mut HeaderMap, length: Option<u64>) {
    headers.remove(CONTENT_LENGTH);
    if let Some(length) = length {
        respond::set(headers, "x-backend-obj-content-length", length.to_string());
    }
    let boundary = documents::boundary();
    respond::set(headers, "x-backend-obj-multipart-mime-boundary", boundary);
    respond::set(headers, "x-backend-obj-metadata-footer", "yes");
}

fn note_unopened(nodes: &Nodes, node: &Node, error: &OpenError) {
    debug!(node = %node.name(), ?error, "upload not opened");
    nodes.limiter().increment(node, "upload not opened");
}
