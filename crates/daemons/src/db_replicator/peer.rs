//! REPLICATE requests to one node about one database.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use cairn_formats::json_ascii;
use cairn_http::{Body, Request};
use cairn_index::{DbKey, Metadata, RemoteInfo, RemotePolicy};
use cairn_peer::backend_uri;
use cairn_peer::{Backends, Node};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::timeout;
use tracing::warn;

use crate::calls;

/// Maximum response: a database's properties, or its shard ranges.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

pub(super) struct Peer<'p> {
    pub(super) backends: &'p Backends,
    pub(super) node: &'p Node,
    pub(super) partition: u32,
    pub(super) key: &'p DbKey,
    pub(super) call_timeout: Duration,
}

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Peer<'_> {
    /// Sends a request; `None` without a response, which is logged.
    pub(super) async fn replicate(&self, args: &Value) -> Option<Answer> {
        self.replicate_within(args, self.call_timeout).await
    }

    pub(super) async fn replicate_within(
        &self,
        args: &Value,
        call_timeout: Duration,
    ) -> Option<Answer> {
        let mut request = Request::new(Body::full(json_ascii::to_string(args)));
        *request.method_mut() = Method::from_bytes(b"REPLICATE").ok()?;
        let path = format!("/{}", self.key.hash.hex());
        *request.uri_mut() = backend_uri(self.node, self.partition, &path, None);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let agent = match self.key.kind {
            cairn_index::DbKind::Account => "account-replicator",
            cairn_index::DbKind::Container => "container-replicator",
        };
        headers.insert(USER_AGENT, calls::user_agent(agent));
        let address = self.node.replication_address;
        self.call(address, request, call_timeout).await
    }

    /// Creates the database there by an ordinary PUT, as a proxy does.
    pub(super) async fn put(&self, path: &str, headers: HeaderMap) -> Option<Answer> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = backend_uri(self.node, self.partition, path, None);
        *request.headers_mut() = headers;
        self.call(self.node.address, request, self.call_timeout)
            .await
    }

    async fn call(
        &self,
        address: SocketAddr,
        request: Request,
        call_timeout: Duration,
    ) -> Option<Answer> {
        let answer = async {
            let response = self.backends.call(address, request, call_timeout).await;
            let (head, body) = response.map_err(|error| error.to_string())?.into_parts();
            let body = timeout(call_timeout, body.collect(ANSWER_BYTES_MAX)).await;
            let body = body.map_err(|_| format!("no data for {call_timeout:?}"))?;
            Ok::<_, String>(Answer {
                status: head.status,
                body: body.map_err(|error| error.to_string())?,
            })
        };
        match answer.await {
            Ok(answer) => Some(answer),
            Err(error) => {
                warn!(node = self.node.name(), error, "a replica does not answer");
                None
            }
        }
    }
}

/// A replica's response to `sync`.
pub(super) struct Replica {
    pub(super) remote: RemoteInfo,
    /// The sync point of our rows there.
    pub(super) point: i64,
    pub(super) max_row: i64,
    /// Its highest shard range; none from a release without them.
    pub(super) shard_max_row: Option<i64>,
    /// The metadata column, unparsed.
    pub(super) raw_metadata: String,
}

impl Replica {
    pub(super) fn parse(body: &[u8]) -> Option<Replica> {
        let answer: Value = serde_json::from_slice(body).ok()?;
        let text = |name: &str| Some(answer.get(name)?.as_str()?.to_owned());
        let number = |name: &str| answer.get(name).and_then(Value::as_i64);
        let raw_metadata = text("metadata").unwrap_or_default();
        let policy = number("storage_policy_index").and_then(|storage_policy_index| {
            Some(RemotePolicy {
                status_changed_at: text("status_changed_at")?,
                count: number("count").unwrap_or(0),
                storage_policy_index,
            })
        });
        Some(Replica {
            remote: RemoteInfo {
                point: -1,
                hash: text("hash")?,
                id: text("id")?,
                created_at: text("created_at")?,
                put_timestamp: text("put_timestamp")?,
                delete_timestamp: text("delete_timestamp")?,
                metadata: Metadata::parse(&raw_metadata).unwrap_or_default(),
                policy,
            },
            point: number("point").unwrap_or(-1),
            max_row: number("max_row").unwrap_or(-1),
            shard_max_row: number("shard_max_row"),
            raw_metadata,
        })
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(
            body in r#"\{("(hash|id|point|max_row|metadata|count)": ?("[0-9a-f{}]{0,20}"|-?[0-9]{0,21}|null),?){0,6}\}|.{0,80}"#
        ) {
            let _ = Replica::parse(body.as_bytes());
        }
    }
}
