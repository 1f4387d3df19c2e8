//! A container's report to its account: whether one is due, and sending it.

use std::sync::Arc;

use cairn_http::params::unquote;
use cairn_http::{Body, Request};
use cairn_index::broker::timestamp;
use cairn_index::{ContainerInfo, Metadata, Result};
use cairn_peer::Node;
use cairn_peer::backend_uri;
use cairn_types::{Quorum, Timestamp};
use http::header::{HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::ContainerUpdater;
use crate::calls;

/// Content of a report; times as stored in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) account: String,
    pub(super) container: String,
    pub(super) put_timestamp: String,
    pub(super) delete_timestamp: String,
    pub(super) object_count: i64,
    pub(super) bytes_used: i64,
    storage_policy_index: i64,
}

/// Result of a report by the account servers' responses.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReportResult {
    Most,
    TooFew,
    /// All responded, and none has the account.
    NoAccount,
}

impl Report {
    /// The report, if one is due. Not for containers created by an object's update alone.
    pub(super) fn of(info: &ContainerInfo, metadata: &Metadata) -> Result<Option<Report>> {
        if timestamp(&info.put_timestamp) <= Timestamp::ZERO {
            return Ok(None);
        }
        // A shard's objects are counted by its root.
        let (object_count, bytes_used) = if is_shard(info, metadata) {
            (0, 0)
        } else {
            (info.object_count, info.bytes_used)
        };
        let is_due = info.put_timestamp > info.reported_put_timestamp
            || info.delete_timestamp > info.reported_delete_timestamp
            || object_count != info.reported_object_count
            || bytes_used != info.reported_bytes_used;
        Ok(is_due.then(|| Report {
            account: info.account.clone(),
            container: info.container.clone(),
            put_timestamp: info.put_timestamp.clone(),
            delete_timestamp: info.delete_timestamp.clone(),
            object_count,
            bytes_used,
            storage_policy_index: info.storage_policy_index,
        }))
    }

    /// Sends the report to all of the account's primaries concurrently.
    pub(super) async fn send(&self, updater: &ContainerUpdater) -> ReportResult {
        let Some(headers) = self.headers() else {
            warn!(
                account = self.account,
                container = self.container,
                "this container's times fit in no header"
            );
            return ReportResult::TooFew;
        };
        let ring = updater.rings.account();
        let partition = ring.partition(&updater.hash_path, &self.account, None, None);
        let path = format!("/{}/{}", self.account, self.container);
        let mut calls = JoinSet::new();
        for node in ring.primaries(partition) {
            let mut request = Request::new(Body::empty());
            *request.method_mut() = Method::PUT;
            *request.uri_mut() = backend_uri(&node, partition, &path, None);
            *request.headers_mut() = headers.clone();
            let (backends, call_timeout) =
                (Arc::clone(&updater.backends), updater.config.call_timeout);
            calls.spawn(async move {
                let answer = calls::call(&backends, &node, request, call_timeout).await;
                let status = answer.map(|(status, _)| status);
                let is_unknown = matches!(&status, Ok(StatusCode::NOT_FOUND));
                (is_taken(&node, status), is_unknown)
            });
        }
        let (mut taken, mut unknown) = (0, 0);
        while let Some(call) = calls.join_next().await {
            let (is_taken, is_unknown) = call.unwrap_or((false, false));
            taken += usize::from(is_taken);
            unknown += usize::from(is_unknown);
        }
        // Primaries with unresolvable hosts count as well.
        let all = ring.ring().primaries(partition).len();
        if Quorum::majority_of(all).is_reached_by(taken) {
            ReportResult::Most
        } else if unknown == all {
            ReportResult::NoAccount
        } else {
            ReportResult::TooFew
        }
    }

    fn headers(&self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, calls::user_agent("container-updater"));
        for (name, time) in [
            ("x-put-timestamp", &self.put_timestamp),
            ("x-delete-timestamp", &self.delete_timestamp),
        ] {
            headers.insert(name, HeaderValue::from_str(time).ok()?);
        }
        for (name, number) in [
            ("x-object-count", self.object_count),
            ("x-bytes-used", self.bytes_used),
            ("x-backend-storage-policy-index", self.storage_policy_index),
        ] {
            headers.insert(name, HeaderValue::from(number));
        }
        let yes = HeaderValue::from_static("yes");
        headers.insert("x-account-override-deleted", yes);
        Some(headers)
    }
}

fn is_taken(node: &Node, answer: std::result::Result<StatusCode, cairn_peer::CallError>) -> bool {
    match answer {
        Ok(status) if status.is_success() => return true,
        Ok(status) => debug!(node = node.name(), %status, "account update refused"),
        Err(error) => debug!(node = node.name(), %error, "account update failed"),
    }
    false
}

/// Whether the metadata names another container as its root.
fn is_shard(info: &ContainerInfo, metadata: &Metadata) -> bool {
    let value = |wanted: &str| {
        let mut items = metadata.iter();
        let (_, value, _) = items.find(|(name, ..)| name.eq_ignore_ascii_case(wanted))?;
        Some(value).filter(|value| !value.is_empty())
    };
    let root = match value("X-Container-Sysmeta-Shard-Quoted-Root") {
        // An undecodable name is no container's, hence not this one's.
        Some(quoted) => Some(unquote(quoted).unwrap_or_default()),
        None => value("X-Container-Sysmeta-Shard-Root").map(str::to_owned),
    };
    root.is_some_and(|root| root != format!("{}/{}", info.account, info.container))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn info() -> ContainerInfo {
        ContainerInfo {
            account: "a".into(),
            container: "c é".into(),
            put_timestamp: "0000000005.00000".into(),
            delete_timestamp: "0".into(),
            reported_put_timestamp: "0000000005.00000".into(),
            reported_delete_timestamp: "0".into(),
            object_count: 2,
            reported_object_count: 2,
            db_state: "unsharded",
            ..ContainerInfo::default()
        }
    }

    fn due(change: impl FnOnce(&mut ContainerInfo)) -> Option<Report> {
        let mut info = info();
        change(&mut info);
        Report::of(&info, &Metadata::default()).unwrap()
    }

    #[test]
    fn due_when_something_differs() {
        assert_eq!(due(|_| {}), None);
        assert_eq!(due(|info| info.object_count = 1).unwrap().object_count, 1);
        assert_eq!(due(|info| info.bytes_used = 7).unwrap().bytes_used, 7);
        let newer = "0000000009.00000";
        assert!(due(|info| info.put_timestamp = newer.into()).is_some());
        assert!(due(|info| info.delete_timestamp = newer.into()).is_some());
        assert_eq!(due(|info| info.reported_put_timestamp = newer.into()), None);
        let never_put = |info: &mut ContainerInfo| {
            info.put_timestamp = "0000000000.00000".into();
            info.bytes_used = 7;
        };
        assert_eq!(due(never_put), None);
    }

    #[test]
    fn a_shard_holds_nothing_of_its_own() {
        let of = |name: &str, root: &str| {
            let mut metadata = Metadata::default();
            metadata.set(name, root, "0000000001.00000");
            let report = Report::of(&info(), &metadata).unwrap();
            report.map(|report| report.object_count)
        };
        let quoted = "X-Container-Sysmeta-Shard-Quoted-Root";
        assert_eq!(of(quoted, "a/other"), Some(0));
        assert_eq!(of(quoted, "a/c%20%C3%A9"), None);
        assert_eq!(of(quoted, ""), None);
        assert_eq!(of("X-Container-Sysmeta-Shard-Root", "a/other"), Some(0));
        assert_eq!(of("X-Container-Sysmeta-Shard-Root", "a/c é"), None);
    }
}
