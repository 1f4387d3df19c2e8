//! PUT of a replicated object. A small body is read first and sent as a whole, so that each replica
//! can go to a handoff if a node fails; a large one is streamed to all replicas at once
//! (`put_stream.rs`). Its MD5 is computed here once, for all servers of this process.

use std::sync::Arc;

use cairn_formats::content_type;
use cairn_http::{Body, BodyError, Footers, Response, SharedDigest, Trailer, params, respond};
use cairn_peer::fan_out::{FanOut, Heads, fan_out};
use cairn_peer::gather::Answer;
use cairn_peer::{Change, ObjectHeads};
use cairn_types::Quorum;
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH,
    LAST_MODIFIED,
};
use http::{HeaderMap, Method, StatusCode};
use md5::{Digest, Md5};
use serde_json::{Map, Value};
use tracing::{error, info};

use super::conditional::{Opening, Swap};
use super::{Location, Name, effect};
use crate::checks::{self, MessageLength};
use crate::request::Incoming;
use crate::state::Proxy;
use crate::status;
use crate::whole_body::Room;
use crate::write::{Write, best_response};

/// An upload whose body has been read.
struct Given {
    heads: ObjectHeads,
    swap: Option<Swap>,
    /// That of the body, if it is known.
    md5: Option<[u8; 16]>,
}

/// OpenStack Swift supports `If-None-Match: *` for a PUT, and refuses other values.
pub(super) fn check_conditions(incoming: &Incoming) -> Result<(), Response> {
    match incoming.header(IF_NONE_MATCH.as_str()) {
        Some(value) if !value.split(',').any(|tag| tag.trim() == "*") => {
            Err(status::malformed("If-None-Match only supports *"))
        }
        _ => Ok(()),
    }
}

impl Proxy {
    pub(super) async fn object_put(
        &self,
        incoming: &mut Incoming,
        name: Name<'_>,
        location: Location,
    ) -> Response {
        fill_content_type(&mut incoming.parts.headers, name.object);
        let checked = checks::check_object_creation(incoming, name.object, &self.constraints);
        let length = match checked {
            Ok(length) => length,
            Err(refused) => return refused,
        };
        let delete_at =
            match checks::check_delete_headers(&mut incoming.parts.headers, incoming.timestamp) {
                Ok(delete_at) => delete_at,
                Err(refused) => return refused,
            };
        let small = location.erasure.is_none()
            && matches!(length, MessageLength::Known(n) if n <= self.options.buffered_put_bytes);
        let opening = match small {
            true => Opening::Give,
            false => Opening::Look,
        };
        let room = match length {
            MessageLength::Known(bytes) if !small => self.room_for(incoming, &location, bytes),
            _ => None,
        };
        let is_whole = small || room.is_some();
        // Before promises, which a slow client would hold.
        let md5 = match (small, room) {
            (true, _) => self.read_small(incoming).await.map(|()| None),
            (false, Some(room)) => Box::pin(self.read_whole(incoming, room)).await,
            (false, None) => Ok(None),
        };
        let md5 = match md5 {
            Ok(md5) => md5,
            Err(broken) => return broken,
        };
        let swap = match self.begin_swap(incoming, &location, opening).await {
            Ok(swap) => swap,
            Err(refused) => return refused,
        };
        let heads = self.backend_headers(incoming, name, &location, delete_at);
        if heads.replicas == 0 {
            return status::no_devices();
        }
        // All servers must confirm that the object does not exist before any gets content.
        let conditional = incoming.headers().contains_key(IF_NONE_MATCH);
        let mut response = if let Some(erasure) = location.erasure.clone() {
            Box::pin(self.put_fragments(incoming, location, erasure, heads.all(), length)).await
        } else if is_whole && !conditional {
            let given = Given { heads, swap, md5 };
            self.put_whole(incoming, name, location, given).await
        } else {
            Box::pin(self.put_stream(incoming, location, heads.all(), length, swap)).await
        };
        if response.status() == StatusCode::CREATED {
            let modified = respond::http_date(incoming.timestamp);
            respond::set(response.headers_mut(), LAST_MODIFIED.as_str(), modified);
            // For middleware: the content type may have been guessed here.
            if let Some(content_type) = incoming.headers().get(CONTENT_TYPE) {
                let name = HeaderName::from_static("x-backend-content-type");
                response.headers_mut().insert(name, content_type.clone());
            }
        }
        response
    }

    /// Memory for a body that is not small, if it is to be read whole: not where a condition may refuse it, so that it
    /// comes in vain, nor where all of its object servers are other processes, which get the same bytes either way and
    /// hash them themselves.
    fn room_for(&self, incoming: &Incoming, location: &Location, bytes: u64) -> Option<Room> {
        let has_condition = |name: HeaderName| incoming.headers().contains_key(name);
        let is_streamed = bytes > self.options.whole_put_bytes
            || location.erasure.is_some()
            || has_condition(IF_MATCH)
            || has_condition(IF_NONE_MATCH);
        let is_here = || {
            let primaries = location.ring.primaries(location.partition);
            let mut nodes = primaries.iter();
            nodes.any(|node| self.backends.local(node.address).is_some())
        };
        if is_streamed || !is_here() {
            return None;
        }
        self.whole_bodies.room(bytes)
    }

    /// Reads a body into its memory; it is the request's still. Gives its MD5, unless a filter does.
    async fn read_whole(
        &self,
        incoming: &mut Incoming,
        room: Room,
    ) -> Result<Option<[u8; 16]>, Response> {
        let body = std::mem::take(&mut incoming.body);
        let hashes = incoming.parts.extensions.get::<Footers>().is_none();
        match room.fill(body, hashes, self.options.client_timeout).await {
            Ok((body, md5)) => {
                incoming.body = Body::full(body);
                Ok(md5)
            }
            Err(error) => Err(self.broken_upload(incoming, &error)),
        }
    }

    /// Reads a small body to its end; it is the request's still.
    async fn read_small(&self, incoming: &mut Incoming) -> Result<(), Response> {
        let body = std::mem::take(&mut incoming.body);
        let (limit, timeout) = (self.options.buffered_put_bytes, self.options.client_timeout);
        let error = match tokio::time::timeout(timeout, body.collect(limit)).await {
            Ok(Ok(body)) => {
                incoming.body = Body::full(body);
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => BodyError::Timeout(timeout),
        };
        Err(self.broken_upload(incoming, &error))
    }

    /// Sends a body that has been read to all replicas, each in one request or call.
    async fn put_whole(
        &self,
        incoming: &mut Incoming,
        name: Name<'_>,
        location: Location,
        given: Given,
    ) -> Response {
        let Given {
            mut heads,
            swap,
            md5,
        } = given;
        let body = std::mem::take(&mut incoming.body);
        // It has been read.
        let body = match body.collect(u64::MAX).await {
            Ok(body) => body,
            Err(error) => return self.broken_upload(incoming, &error),
        };
        heads
            .shared
            .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        let md5 = match trailer(incoming, body.len() as u64) {
            Ok(None) => md5.unwrap_or_else(|| Md5::digest(&body).into()),
            Ok(Some(trailer)) => {
                overlay(&mut heads.shared, &trailer);
                trailer.md5
            }
            Err(refused) => return refused,
        };
        let quorum = location.kind.upload_quorum(heads.replicas);
        let path = incoming.target.entity_path();
        let what = format!("PUT {path}");
        let mut extensions = http::Extensions::new();
        extensions.insert(SharedDigest::of(md5));
        if let Some(swap) = swap {
            let (ring, all) = (location.ring.clone(), heads.all());
            let write = Write {
                body,
                extensions,
                quorum,
                ..Write::new(ring, location.partition, Method::PUT, path, all)
            };
            return Box::pin(self.swap_write(incoming, swap, write)).await;
        }
        let nodes = self.upload_nodes(&location);
        let request = FanOut {
            method: Method::PUT,
            path,
            query: None,
            body: body.clone(),
            extensions,
        };
        let change = Change::Put { body, md5 };
        let put = self.whole_write(incoming, name, &location, heads, change);
        let answers = fan_out(
            &self.backends,
            &nodes,
            location.partition,
            request,
            Heads::Of(Arc::new(put)),
            quorum,
            self.timeouts(),
        );
        let answers = answers.await;
        conclude(incoming, &answers, quorum, &what)
    }

    /// The response to an upload that did not arrive completely.
    pub(super) fn broken_upload(&self, incoming: &Incoming, error: &BodyError) -> Response {
        let (response, code) = status::broken_upload(error);
        info!(path = %incoming.parts.uri.path(), code, %error, "upload did not arrive whole");
        response
    }
}

/// The footers of filters, after the whole body of `length` bytes has been read.
pub(super) fn trailer(incoming: &Incoming, length: u64) -> Result<Option<Trailer>, Response> {
    let Some(footers) = incoming.parts.extensions.get::<Footers>() else {
        return Ok(None);
    };
    let trailer = footers.conclude()?;
    if trailer.length != length {
        error!(
            path = %incoming.parts.uri.path(), length, handed_on = trailer.length,
            "another filter took the place of a body that had been encrypted: \
             encryption is to be behind it in the pipeline"
        );
        return Err(status::replaced_body());
    }
    Ok(Some(trailer))
}

fn overlay(headers: &mut HeaderMap, trailer: &Trailer) {
    for (name, value) in &trailer.headers {
        headers.insert(name, value.clone());
    }
}

/// Footers as a JSON object; each byte of a value is a Latin-1 character.
pub(super) fn footers_json(footers: &HeaderMap) -> Map<String, Value> {
    let text = |value: &[u8]| value.iter().copied().map(char::from).collect::<String>();
    let pairs = footers.iter();
    pairs
        .map(|(name, value)| (name.to_string(), text(value.as_bytes()).into()))
        .collect()
}

/// The response to the client, from the replicas' responses.
pub(super) fn conclude(
    incoming: &Incoming,
    answers: &[Answer],
    quorum: Quorum,
    what: &str,
) -> Response {
    if let Some(refused) = refused_by_state(incoming, answers.iter().map(|a| a.status)) {
        return refused;
    }
    let mut etags = answers
        .iter()
        .filter(|a| (200..300).contains(&a.status))
        .filter_map(|a| respond::header(&a.headers, ETAG.as_str()))
        .map(|etag| etag.trim_matches('"'));
    if let Some(first) = etags.next()
        && etags.any(|other| other != first)
    {
        error!(what, "object servers answered with different ETags");
        return status::servers_differ();
    }
    best_response(answers, quorum, what)
}

/// The refusal for an existing object that must not be replaced, or is newer than this write.
pub(super) fn refused_by_state(
    incoming: &Incoming,
    mut statuses: impl Iterator<Item = u16> + Clone,
) -> Option<Response> {
    let conditional = incoming.headers().contains_key(IF_NONE_MATCH);
    if conditional && statuses.clone().any(|s| s == 412) {
        return Some(status::condition_fails());
    }
    if !statuses.any(|s| s == 409) {
        return None;
    }
    effect::note_missing(incoming);
    Some(status::overtaken())
}

/// Guesses the content type from the object's name if the client gave none, or requested it.
fn fill_content_type(headers: &mut HeaderMap, object: &str) {
    let detect = respond::header(headers, "x-detect-content-type").is_some_and(params::is_true);
    let given = headers.get(CONTENT_TYPE).is_some_and(|v| !v.is_empty());
    if given && !detect {
        return;
    }
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static(content_type::guess(object)),
    );
    if detect {
        headers.remove("x-detect-content-type");
    }
}
