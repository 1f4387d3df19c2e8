//! Sync of one row: puts or deletes its object in the other cluster.

use cairn_http::{Body, respond};
use cairn_index::ObjectRecord;
use cairn_types::metadata::{is_object_transient_sysmeta, is_sys_meta};
use cairn_types::timestamp::decode_timestamps;
use cairn_types::{ServerKind, Timestamp};
use http::header::{
    CONNECTION, CONTENT_TYPE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
    TRANSFER_ENCODING,
};
use http::{Method, StatusCode};
use thiserror::Error;

use super::peer::{Peer, PeerError};
use crate::internal_client::{InternalClient, InternalClientError};

const X_TIMESTAMP: HeaderName = HeaderName::from_static("x-timestamp");
/// Metadata of links made by object versioning, which have no meaning in another cluster.
const VERSIONS_LINK: &str = "x-object-sysmeta-versions-symlink";
/// Headers of the response that are not the object's.
const RESPONSE_HEADERS: [HeaderName; 6] = [
    CONNECTION,
    DATE,
    LAST_MODIFIED,
    TRANSFER_ENCODING,
    HeaderName::from_static("x-trans-id"),
    HeaderName::from_static("x-openstack-request-id"),
];

/// Result of syncing a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Put,
    Deleted,
    /// Already present, or not to be synced.
    Nothing,
}

#[derive(Debug, Error)]
pub(super) enum RowError {
    #[error("the row has no readable time: {0}")]
    Time(String),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Source(#[from] InternalClientError),
    #[error("no server has the object as new as its row ({found} instead of {wanted})")]
    NotYet { found: String, wanted: String },
}

/// A container and its counterpart in the other cluster.
pub(super) struct Pair {
    pub(super) client: InternalClient,
    pub(super) account: String,
    pub(super) container: String,
    pub(super) policy: i64,
    pub(super) peer: Peer,
}

impl Pair {
    pub(super) async fn sync(&self, row: &ObjectRecord) -> Result<Done, RowError> {
        let times = decode_timestamps(&row.created_at);
        let (data, _, meta) = times.map_err(|_| RowError::Time(row.created_at.clone()))?;
        if row.deleted {
            return self.delete(&row.name, data).await;
        }
        if self.is_there(&row.name, meta).await? {
            return Ok(Done::Nothing);
        }
        self.put(&row.name, meta).await
    }

    async fn delete(&self, name: &str, time: Timestamp) -> Result<Done, RowError> {
        let headers = at(time);
        let deleted = self
            .peer
            .ask(Method::DELETE, name, headers, Body::empty())
            .await;
        match deleted {
            Ok(_) => Ok(Done::Deleted),
            Err(error) => match error.status() {
                // It never existed there, or is newer.
                Some(StatusCode::NOT_FOUND | StatusCode::CONFLICT) => Ok(Done::Deleted),
                _ => Err(error.into()),
            },
        }
    }

    async fn is_there(&self, name: &str, time: Timestamp) -> Result<bool, RowError> {
        let headers = at(time);
        let found = self
            .peer
            .ask(Method::HEAD, name, headers, Body::empty())
            .await;
        match found {
            Ok(found) => Ok(time_of(found.headers()) >= time),
            Err(error) => match error.status() {
                Some(StatusCode::NOT_FOUND) => Ok(false),
                _ => Err(error.into()),
            },
        }
    }

    async fn put(&self, name: &str, time: Timestamp) -> Result<Done, RowError> {
        let path = format!("/v1/{}/{}/{name}", self.account, self.container);
        let headers = [
            ("x-newest", "True".to_owned()),
            ("x-backend-storage-policy-index", self.policy.to_string()),
        ];
        // A link is sent as a link.
        let source = self.client.open(&path, Some("symlink=get"), &headers);
        let (head, body) = source.await?.into_parts();
        if head.headers.contains_key(VERSIONS_LINK) {
            return Ok(Done::Nothing);
        }
        let found = time_of(&head.headers);
        if !head.status.is_success() || found < time {
            return Err(RowError::NotYet {
                found: found.internal(),
                wanted: time.internal(),
            });
        }
        let headers = outgoing(head.headers);
        self.peer.ask(Method::PUT, name, headers, body).await?;
        Ok(Done::Put)
    }
}

fn at(time: Timestamp) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&time.internal()) {
        headers.insert(X_TIMESTAMP, value);
    }
    headers
}

fn time_of(headers: &HeaderMap) -> Timestamp {
    respond::header_timestamp(headers, "x-timestamp").unwrap_or_default()
}

/// Converts response headers to those of an upload. Internal headers are removed: the other
/// cluster's gatekeeper would drop them, and any other server must not see them.
fn outgoing(mut headers: HeaderMap) -> HeaderMap {
    for name in RESPONSE_HEADERS {
        headers.remove(name);
    }
    let is_internal = |name: &HeaderName| {
        let name = name.as_str();
        name.starts_with("x-backend-")
            || is_sys_meta(ServerKind::Object, name)
            || is_object_transient_sysmeta(name)
    };
    let internal: Vec<HeaderName> = headers.keys().filter(|n| is_internal(n)).cloned().collect();
    for name in internal {
        headers.remove(name);
    }
    let text = |headers: &HeaderMap, name: &HeaderName| {
        respond::header(headers, name.as_str()).map(str::to_owned)
    };
    if let Some(etag) = text(&headers, &ETAG) {
        respond::set(&mut headers, ETAG.as_str(), etag.trim_matches('"'));
    }
    if let Some(kind) = text(&headers, &CONTENT_TYPE) {
        // Parameters added by middleware belong to this cluster.
        let is_own = |part: &str| !part.trim().to_ascii_lowercase().starts_with("swift_");
        let kept: Vec<&str> = kind.split(';').filter(|part| is_own(part)).collect();
        respond::set(&mut headers, CONTENT_TYPE.as_str(), kept.join(";"));
    }
    headers
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_along() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("etag", "\"abc\""),
            ("content-type", "text/plain; charset=utf-8;swift_bytes=5"),
            ("x-object-meta-a", "b"),
            ("date", "now"),
            ("last-modified", "then"),
            ("x-timestamp", "5"),
            ("x-backend-timestamp", "5"),
            ("x-object-sysmeta-a", "b"),
            ("x-object-transient-sysmeta-a", "b"),
        ] {
            respond::set(&mut headers, name, value);
        }
        let headers = outgoing(headers);
        let header = |name: &str| respond::header(&headers, name).unwrap_or("none");
        assert_eq!(header("etag"), "abc");
        assert_eq!(header("content-type"), "text/plain; charset=utf-8");
        assert_eq!(
            (header("x-object-meta-a"), header("x-timestamp")),
            ("b", "5")
        );
        assert_eq!((header("date"), header("last-modified")), ("none", "none"));
        let internal = |name: &HeaderName| name.as_str().contains("sysmeta-");
        assert!(!headers.keys().any(internal));
        assert_eq!(header("x-backend-timestamp"), "none");
    }
}
