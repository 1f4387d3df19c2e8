//! An object's content streamed to a client, from one replica or, if that one breaks off, from
//! several.
//!
//! A replica that breaks off may have found its copy to be corrupt, or may have failed before it
//! could find out: over a socket both look alike. Therefore a CRC-32 is kept of the bytes passed
//! on, and another replica sends the same range from its beginning: only if it begins with the same
//! bytes does the client get the rest of it, otherwise the client's body breaks off too. The rest
//! is as reliable as the last replica alone: a whole object is verified against its ETag before the
//! last chunk, by a server that announces this, or here.

use bytes::Bytes;
use cairn_http::{Body, BodyError, respond};
use cairn_peer::Node;
use cairn_types::ObjectHash;
use cairn_types::plant::Plant;
use crc32fast::Hasher;
use http::header::{CONTENT_RANGE, ETAG};
use http::{HeaderMap, HeaderValue, StatusCode};
use md5::{Digest, Md5};
use tracing::warn;

use super::{Read, Tried};
use crate::headers::REFUSE_UNSOUND;

/// The part of an object that a client gets: all of it, or one range. Reads of several ranges in
/// one body are not resumed.
pub(super) struct Wanted {
    etag: String,
    status: StatusCode,
    /// Offset of the first byte in the object, and number of bytes.
    start: u64,
    length: u64,
    /// It is the whole object, whose MD5 is the ETag.
    is_whole: bool,
}

impl Wanted {
    /// Derived from the response of the first replica.
    pub(super) fn of(parts: &http::response::Parts) -> Option<Wanted> {
        let etag = bare_etag(&parts.headers);
        let length: u64 = respond::header(&parts.headers, "content-length")?
            .parse()
            .ok()?;
        if etag.is_empty() || length == 0 {
            return None;
        }
        let (start, is_whole) = match parts.status {
            StatusCode::OK => (0, true),
            StatusCode::PARTIAL_CONTENT => {
                let (start, size) = content_range(&parts.headers)?;
                (start, start == 0 && size == Some(length))
            }
            _ => return None,
        };
        Some(Wanted {
            etag: etag.to_owned(),
            status: parts.status,
            start,
            length,
            is_whole,
        })
    }

    /// The same, but only if these bytes must be verified against the ETag here.
    pub(super) fn of_unchecked(parts: &http::response::Parts) -> Option<Wanted> {
        match is_checked(&parts.headers) {
            true => None,
            false => Wanted::of(parts).filter(|wanted| wanted.check(&parts.headers).is_some()),
        }
    }

    pub(super) fn etag(&self) -> &str {
        &self.etag
    }

    /// The range header for another replica; `None` if the client's own headers are right.
    pub(super) fn range_header(&self) -> Option<HeaderValue> {
        if self.status == StatusCode::OK {
            return None;
        }
        let last = self.start + self.length - 1;
        HeaderValue::from_str(&format!("bytes={}-{last}", self.start)).ok()
    }

    /// Is this response the same content from the same offset?
    fn is_in(&self, parts: &http::response::Parts) -> bool {
        Wanted::of(parts).is_some_and(|other| {
            (other.status, other.start, other.length) == (self.status, self.start, self.length)
        })
    }

    /// A hasher if these bytes must be verified against the ETag here: not if their server does it,
    /// nor if the ETag is not an MD5.
    fn check(&self, headers: &HeaderMap) -> Option<Md5> {
        let is_to_be_checked = self.is_whole && !is_checked(headers) && self.md5().is_some();
        is_to_be_checked.then(Md5::new)
    }

    fn md5(&self) -> Option<ObjectHash> {
        ObjectHash::from_hex(&self.etag)
    }
}

/// First byte of a response's range, and the object's size.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let range = respond::header(headers, CONTENT_RANGE.as_str())?;
    let (range, size) = range.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split('-').next()?.parse().ok()?, size.parse().ok()))
}

/// Does the server verify its bytes against their ETag before it sends the last of them?
fn is_checked(headers: &HeaderMap) -> bool {
    respond::header(headers, REFUSE_UNSOUND).is_some()
}

pub(super) fn bare_etag(headers: &HeaderMap) -> &str {
    respond::header(headers, ETAG.as_str())
        .unwrap_or("")
        .trim_matches('"')
}

/// The bytes of one replica, from the first wanted one.
struct Source {
    node: Node,
    body: Body,
    /// Number of bytes received.
    at: u64,
    /// MD5 of all bytes received, if verified here.
    md5: Option<Md5>,
}

struct PassedOn {
    read: Read<'static>,
    wanted: Wanted,
    source: Source,
    /// New bytes that arrived in one chunk with bytes that the client already has.
    rest: Option<Bytes>,
    /// Number of bytes, and their CRC-32, that the client has.
    passed: u64,
    checksum: Hasher,
    done: bool,
}

/// A body that continues from another replica if its source fails.
pub(super) fn passed_on(
    read: Read<'static>,
    node: Node,
    headers: &HeaderMap,
    body: Body,
    wanted: Wanted,
) -> Body {
    let length = wanted.length;
    let state = PassedOn {
        read,
        source: Source {
            node,
            body,
            at: 0,
            md5: wanted.check(headers),
        },
        wanted,
        rest: None,
        passed: 0,
        checksum: Hasher::new(),
        done: false,
    };
    let stream = futures_util::stream::unfold(state, |mut state| async move {
        if state.done {
            return None;
        }
        let chunk = state.next().await;
        state.done = !matches!(chunk, Some(Ok(_)));
        chunk.map(|chunk| (chunk, state))
    });
    Body::from_stream(stream, Some(length))
}

impl PassedOn {
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        if self.passed == self.wanted.length {
            // Polls the source to its end, so that its connection can be reused.
            let _ = self.source.body.next_chunk_within(self.read.timeout).await;
            return None;
        }
        loop {
            let chunk = match self.rest.take() {
                Some(rest) => Ok(rest),
                None => self.source.next_chunk(&self.read, &self.wanted).await,
            };
            let reason = match chunk {
                Ok(chunk) => {
                    self.checksum.update(&chunk);
                    self.passed += chunk.len() as u64;
                    return Some(Ok(chunk));
                }
                Err(reason) => reason,
            };
            warn!(
                node = %self.source.node.name(), path = %self.read.path, reason,
                at = self.passed, "source broke off; trying another replica"
            );
            let limiter = self.read.nodes.limiter();
            limiter.increment(&self.source.node, "broke off");
            if !self.switch().await {
                return Some(Err(BodyError::Source(reason)));
            }
        }
    }

    /// Switches to another replica whose content begins like the client's, at the byte where the
    /// last one stopped.
    async fn switch(&mut self) -> bool {
        while let Some(node) = self.read.next_node() {
            let address = node.address;
            let asked = self.read.ask(node, Some(&self.wanted));
            let asked = self.read.backends.unless_hung(address, asked).await;
            let Some(Tried::Good(answer)) = asked else {
                continue;
            };
            let (parts, body) = answer.response.into_parts();
            if !self.wanted.is_in(&parts) {
                continue;
            }
            let mut source = Source {
                node: answer.node,
                body,
                at: 0,
                md5: self.wanted.check(&parts.headers),
            };
            match self.skip(&mut source).await {
                Ok(rest) => {
                    self.source = source;
                    self.rest = rest;
                    return true;
                }
                Err(reason) => warn!(
                    node = %source.node.name(), path = %self.read.path, reason,
                    at = self.passed, "this replica cannot go on for the other"
                ),
            }
        }
        false
    }

    /// Reads bytes that the client already has. Returns the new bytes of the last chunk, or the
    /// reason why the source cannot be used.
    async fn skip(&self, source: &mut Source) -> Result<Option<Bytes>, String> {
        let mut checksum = Hasher::new();
        let mut rest = None;
        while source.at < self.passed {
            let left = self.passed - source.at;
            let mut chunk = source.next_chunk(&self.read, &self.wanted).await?;
            if chunk.len() as u64 > left {
                rest = Some(chunk.split_off(left as usize));
            }
            checksum.update(&chunk);
        }
        let is_like = checksum.finalize() == self.checksum.clone().finalize();
        if !is_like && !Plant::UnlikeReplica.is_on() {
            return Err("it has other bytes than those that were sent".into());
        }
        Ok(rest)
    }
}

impl Source {
    /// The next chunk, or the reason why there is none. The last one is returned after it was
    /// verified together with all before it, if that must be done here.
    async fn next_chunk(&mut self, read: &Read<'_>, wanted: &Wanted) -> Result<Bytes, String> {
        let next = self.body.next_chunk_within(read.timeout);
        let chunk = match read.backends.unless_hung(self.node.address, next).await {
            Some(Some(Ok(chunk))) => chunk,
            Some(Some(Err(error))) => return Err(error.to_string()),
            Some(None) => return Err("ended early".into()),
            None => return Err("the host does not answer".into()),
        };
        self.at += chunk.len() as u64;
        if self.at > wanted.length {
            return Err("it sent more than it said".into());
        }
        if let Some(md5) = &mut self.md5 {
            md5.update(&chunk);
        }
        if self.at == wanted.length
            && let Some(md5) = self.md5.take()
        {
            let found = ObjectHash(md5.finalize().into());
            if Some(found) != wanted.md5() {
                return Err(format!(
                    "its content has the MD5 {}, not the ETag's",
                    found.hex()
                ));
            }
        }
        Ok(chunk)
    }
}
