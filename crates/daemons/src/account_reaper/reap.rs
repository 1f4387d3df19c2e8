//! Reaping one account: deletes its containers and their objects by requests.

use std::sync::Arc;

use bytes::Bytes;
use cairn_http::params::quote;
use cairn_http::{Body, Request};
use cairn_index::{AccountBroker, AccountInfo, DbKey, IndexError};
use cairn_peer::Node;
use cairn_peer::backend_uri;
use cairn_types::{PolicyIndex, Quorum};
use http::header::{HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use md5::{Digest, Md5};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::AccountReaper;
use crate::calls;

/// Containers read per page.
const CONTAINERS_PER_PAGE: usize = 1000;
/// Maximum listing: a page of 10,000 names of 1024 bytes, escaped.
const LISTING_BYTES_MAX: u64 = 96 << 20;

/// A container and its servers.
struct ContainerLocation {
    account: String,
    container: String,
    partition: u32,
    nodes: Vec<Node>,
}

enum Outcome {
    Deleted,
    Remaining,
    PossiblyRemaining,
}

impl Outcome {
    fn of(successes: usize, failures: usize) -> Self {
        match (successes, failures) {
            (0, _) => Outcome::Remaining,
            _ if Quorum::majority_of(successes + failures).is_reached_by(successes) => {
                Outcome::Deleted
            }
            _ => Outcome::PossiblyRemaining,
        }
    }
}

impl AccountReaper {
    /// Reaps this node's share of the account's containers.
    pub(super) async fn reap_account(
        self: &Arc<Self>,
        key: &DbKey,
        info: &AccountInfo,
        share: usize,
        primaries: &[Node],
    ) {
        info!(account = info.account, "emptying a deleted account");
        self.count(|stats| stats.accounts += 1);
        let account_partition: u32 = key.partition.parse().unwrap_or(0);
        let at_once = (self.config.concurrency as f64).sqrt().ceil() as usize;
        let mut under_way = JoinSet::new();
        // A row that changes moves behind the last one: left to the next pass.
        let db = self.pool.db_by_key(key.clone());
        let end = db.read(|broker| broker.max_row()).await.unwrap_or(-1);
        let mut point = -1;
        while point < end {
            let (containers, last) = match self.containers_since(key, point).await {
                Ok(page) => page,
                Err(error) => {
                    warn!(account = info.account, %error, "a deleted account's containers cannot be read");
                    break;
                }
            };
            for container in containers {
                if share_of(&container, primaries.len()) != share {
                    continue;
                }
                while under_way.len() >= at_once {
                    under_way.join_next().await;
                }
                let (reaper, account) = (self.clone(), info.account.clone());
                let tell = primaries.to_vec();
                under_way.spawn(async move {
                    let location = reaper.locate(account, container);
                    reaper
                        .reap_container(location, account_partition, &tell)
                        .await;
                });
            }
            match last {
                Some(last) => point = last,
                None => break,
            }
        }
        while under_way.join_next().await.is_some() {}
        let remaining = self.stats.lock().containers_remaining;
        let overdue = self.config.delay_reaping + self.config.reap_warn_after;
        if remaining > 0 && self.deleted_for(info) >= overdue {
            warn!(
                account = info.account,
                deleted = info.delete_timestamp,
                "a deleted account is still not empty"
            );
        }
    }

    /// Containers not deleted, by ROWID; and the last ROWID, if there are more.
    async fn containers_since(
        &self,
        key: &DbKey,
        point: i64,
    ) -> Result<(Vec<String>, Option<i64>), IndexError> {
        let db = self.pool.db_by_key(key.clone());
        let rows = db
            .read(move |broker| AccountBroker::of(broker).items_since(point, CONTAINERS_PER_PAGE))
            .await?;
        let last = rows.last().map(|row| row.rowid);
        let live = rows.into_iter().filter(|row| !row.deleted);
        Ok((live.map(|row| row.name).collect(), last))
    }

    fn locate(&self, account: String, container: String) -> ContainerLocation {
        let ring = self.rings.container();
        let partition = ring.partition(&self.hash_path, &account, Some(&container), None);
        ContainerLocation {
            nodes: ring.primaries(partition),
            account,
            container,
            partition,
        }
    }

    async fn reap_container(
        self: &Arc<Self>,
        location: ContainerLocation,
        account_partition: u32,
        account_nodes: &[Node],
    ) {
        let location = Arc::new(location);
        let mut marker = String::new();
        while let Some((policy, objects)) = self.list(&location, &marker).await {
            let Some(last) = objects.last().cloned() else {
                break;
            };
            self.reap_objects(&location, policy, objects).await;
            marker = last;
        }
        let now = self.now().internal();
        let path = format!("/{}/{}", location.account, location.container);
        let (mut successes, mut failures) = (0, 0);
        for (number, node) in location.nodes.iter().enumerate() {
            let mut headers = self.headers(&now);
            // Each container server updates a different account server.
            let told = account_nodes.len().checked_sub(1 + number);
            if let Some(account) = told.and_then(|at| account_nodes.get(at)) {
                for (name, value) in [
                    ("x-account-host", account.host()),
                    ("x-account-partition", account_partition.to_string()),
                    ("x-account-device", account.device.device.clone()),
                    ("x-account-override-deleted", "yes".into()),
                ] {
                    if let Ok(value) = HeaderValue::from_str(&value) {
                        headers.insert(name, value);
                    }
                }
            }
            match self.delete(node, location.partition, &path, headers).await {
                true => successes += 1,
                false => failures += 1,
            }
        }
        self.count(|stats| match Outcome::of(successes, failures) {
            Outcome::Deleted => stats.containers_deleted += 1,
            Outcome::Remaining => stats.containers_remaining += 1,
            Outcome::PossiblyRemaining => stats.containers_possibly_remaining += 1,
        });
    }

    async fn reap_objects(
        self: &Arc<Self>,
        location: &Arc<ContainerLocation>,
        policy: PolicyIndex,
        objects: Vec<String>,
    ) {
        let at_once = (self.config.concurrency as f64).sqrt().ceil() as usize;
        let mut under_way = JoinSet::new();
        for object in objects {
            while under_way.len() >= at_once {
                under_way.join_next().await;
            }
            let (reaper, location) = (self.clone(), location.clone());
            under_way.spawn(async move { reaper.reap_object(&location, policy, &object).await });
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn reap_object(&self, location: &ContainerLocation, policy: PolicyIndex, object: &str) {
        let Some(ring) = self.rings.object(policy) else {
            warn!(
                policy = policy.0,
                "objects of a policy that is not configured stay"
            );
            return self.count(|stats| stats.objects_remaining += 1);
        };
        let partition = ring.partition(
            &self.hash_path,
            &location.account,
            Some(&location.container),
            Some(object),
        );
        let now = self.now().internal();
        let path = format!("/{}/{}/{object}", location.account, location.container);
        let (mut successes, mut failures) = (0, 0);
        for (number, node) in ring.primaries(partition).iter().enumerate() {
            let mut headers = self.headers(&now);
            headers.insert(
                "x-backend-storage-policy-index",
                HeaderValue::from(policy.0),
            );
            if let Some(container) = location.nodes.get(number % location.nodes.len().max(1)) {
                for (name, value) in [
                    ("x-container-host", container.host()),
                    ("x-container-partition", location.partition.to_string()),
                    ("x-container-device", container.device.device.clone()),
                ] {
                    if let Ok(value) = HeaderValue::from_str(&value) {
                        headers.insert(name, value);
                    }
                }
            }
            match self.delete(node, partition, &path, headers).await {
                true => successes += 1,
                false => failures += 1,
            }
        }
        self.count(|stats| match Outcome::of(successes, failures) {
            Outcome::Deleted => stats.objects_deleted += 1,
            Outcome::Remaining => stats.objects_remaining += 1,
            Outcome::PossiblyRemaining => stats.objects_possibly_remaining += 1,
        });
    }

    fn headers(&self, now: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, calls::user_agent("account-reaper"));
        headers.insert(
            "x-backend-use-replication-network",
            HeaderValue::from_static("true"),
        );
        headers.insert(
            "x-backend-allow-reserved-names",
            HeaderValue::from_static("true"),
        );
        if let Ok(time) = HeaderValue::from_str(now) {
            headers.insert("x-timestamp", time);
        }
        headers
    }

    /// Deletes at one server. A 404 counts as success: the server has written a tombstone.
    async fn delete(&self, node: &Node, partition: u32, path: &str, headers: HeaderMap) -> bool {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::DELETE;
        *request.uri_mut() = backend_uri(node, partition, path, None);
        *request.headers_mut() = headers;
        match calls::call(&self.backends, node, request, self.config.call_timeout).await {
            Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => true,
            Ok((status, _)) => {
                debug!(node = node.name(), %status, path, "not deleted");
                false
            }
            Err(error) => {
                debug!(node = node.name(), %error, path, "not deleted");
                false
            }
        }
    }

    /// A page of a container's objects, and their policy. `None` if no server responds.
    async fn list(
        &self,
        location: &ContainerLocation,
        marker: &str,
    ) -> Option<(PolicyIndex, Vec<String>)> {
        let path = format!("/{}/{}", location.account, location.container);
        let query = format!("format=json&marker={}", quote(marker));
        for node in location.nodes.iter().rev() {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = backend_uri(node, location.partition, &path, Some(&query));
            *request.headers_mut() = self.headers(&self.now().internal());
            let Some((status, headers, body)) = self.get(node, request).await else {
                continue;
            };
            if !status.is_success() {
                continue;
            }
            let policy = headers
                .get("x-backend-storage-policy-index")
                .and_then(|value| value.to_str().ok()?.trim().parse().ok())
                .unwrap_or(0);
            let listed: Vec<Value> = serde_json::from_slice(&body).unwrap_or_default();
            let names = listed
                .iter()
                .filter_map(|entry| Some(entry.get("name")?.as_str()?.to_owned()));
            return Some((PolicyIndex(policy), names.collect()));
        }
        None
    }

    async fn get(&self, node: &Node, request: Request) -> Option<(StatusCode, HeaderMap, Bytes)> {
        let call_timeout = self.config.call_timeout;
        let address = node.replication_address;
        let (head, body) = self
            .backends
            .call(address, request, call_timeout)
            .await
            .ok()?
            .into_parts();
        let body = timeout(call_timeout, body.collect(LISTING_BYTES_MAX)).await;
        Some((head.status, head.headers, body.ok()?.ok()?))
    }
}

/// Index of the primary, of `primaries`, that handles a container.
fn share_of(container: &str, primaries: usize) -> usize {
    let digest: [u8; 16] = Md5::digest(container.as_bytes()).into();
    (u128::from_be_bytes(digest) % (primaries.max(1) as u128)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_as_upstream() {
        // int(md5(name).hexdigest(), 16) % 3
        assert_eq!(
            share_of("", 3),
            (0xd41d8cd98f00b204e9800998ecf8427e_u128 % 3) as usize
        );
        assert_eq!(share_of("any", 1), 0);
    }
}
