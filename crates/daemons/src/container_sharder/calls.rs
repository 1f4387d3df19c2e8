//! Requests of the sharder to other servers, and the databases on this node for shards being
//! filled.

use std::sync::Arc;

use cairn_formats::json_ascii;
use cairn_formats::shard::{Bounded, ShardRange};
use cairn_http::params::{quote, quote_path};
use cairn_http::{Body, Request};
use cairn_index::{ContainerDb, DbKey, DbKind, NewDb};
use cairn_peer::Node;
use cairn_peer::backend_uri;
use cairn_ring::Device;
use cairn_types::Quorum;
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use http::{HeaderName, Method};
use serde_json::{Value, json};
use tracing::warn;

use super::{ContainerSharder, Result, SHARDING, SharderError, Visited, split};
use crate::calls;

/// A database on this node that takes a shard's rows, to be replicated from here.
pub(super) struct Shard {
    pub(super) db: ContainerDb,
    pub(super) device_id: u32,
    pub(super) created: bool,
}

impl ContainerSharder {
    /// Puts ranges into all replicas of a container. True if a quorum accepted them.
    pub(super) async fn send_ranges(
        &self,
        name: &str,
        ranges: &[ShardRange],
        extra: &[(&'static str, String)],
    ) -> bool {
        let body: Value = ranges
            .iter()
            .map(|range| {
                json!(ShardRange {
                    reported: 0,
                    ..range.clone()
                })
            })
            .collect();
        let body = json_ascii::to_string(&body);
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        add("x-backend-record-type", "shard");
        add("x-backend-use-replication-network", "True");
        add("x-timestamp", &self.now().internal());
        for (name, value) in extra {
            add(name, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, calls::user_agent("container-sharder"));
        let (account, container) = split(name);
        let ring = self.ring();
        let partition = ring.partition(&self.hash_path, account, Some(container), None);
        let nodes = ring.primaries(partition);
        let path = format!("/{account}/{container}");
        let puts = nodes
            .iter()
            .map(|node| self.put(node, partition, &path, &headers, &body));
        let taken = join_all(puts)
            .await
            .into_iter()
            .filter(|taken| *taken)
            .count();
        Quorum::of_replicas(nodes.len()).is_reached_by(taken)
    }

    async fn put(
        &self,
        node: &Node,
        partition: u32,
        path: &str,
        headers: &HeaderMap,
        body: &str,
    ) -> bool {
        let mut request = Request::new(Body::full(body.to_owned()));
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = backend_uri(node, partition, path, None);
        *request.headers_mut() = headers.clone();
        match calls::call(&self.backends, node, request, self.config.call_timeout).await {
            Ok((status, _)) if status.is_success() => true,
            Ok((status, _)) => {
                warn!(node = node.name(), path, %status, "shard ranges are not taken");
                false
            }
            Err(error) => {
                warn!(node = node.name(), path, %error, "shard ranges are not taken");
                false
            }
        }
    }

    /// Fetches the root's newest ranges between two names.
    pub(super) async fn root_ranges(
        &self,
        visited: &Visited,
        lower: &str,
        end_marker: &str,
        states: &str,
        include_deleted: bool,
    ) -> Result<Vec<ShardRange>> {
        let failed = |reason: String| SharderError::NoRanges {
            root: visited.root.clone(),
            reason,
        };
        let query = format!(
            "format=json&marker={}&end_marker={}&states={states}",
            quote(lower),
            quote(end_marker)
        );
        let headers = [
            ("x-backend-record-type", "shard".to_owned()),
            ("x-backend-record-shard-format", "full".to_owned()),
            ("x-backend-override-deleted", "true".to_owned()),
            ("x-backend-include-deleted", include_deleted.to_string()),
            ("x-newest", "true".to_owned()),
        ];
        let path = format!("/v1/{}", visited.root);
        let answer = self.client.get(&path, &query, &headers).await;
        let (head, body) = answer.map_err(|error| failed(error.to_string()))?;
        let kind = head
            .get("x-backend-record-type")
            .and_then(|kind| kind.to_str().ok());
        if kind != Some("shard") {
            return Err(failed(format!("records are of type {kind:?}")));
        }
        let records: Vec<Value> =
            serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
        let ranges = records.iter().map(ShardRange::from_json);
        ranges
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| failed(error.to_string()))
    }

    /// A device of this node for a partition: a primary's, else a random one, preferably with weight.
    fn local_device(&self, partition: u32) -> Result<Arc<Device>> {
        let local = self.local.lock().clone();
        let primaries = self.ring().primaries(partition);
        let of_ring = primaries
            .iter()
            .find_map(|node| local.iter().find(|device| device.id == node.device.id));
        if let Some(device) = of_ring {
            return Ok(device.clone());
        }
        let weighted: Vec<&Arc<Device>> = local.iter().filter(|d| d.weight > 0.0).collect();
        let any = match weighted.is_empty() {
            true => local.iter().collect(),
            false => weighted,
        };
        if any.is_empty() {
            return Err(SharderError::NoDevice);
        }
        let dice = (self.pool.config().random)() % any.len() as u128;
        Ok(any[dice as usize].clone())
    }

    /// The database on this node for a shard's rows; created if missing.
    pub(super) async fn local_shard(&self, visited: &Visited, range: &ShardRange) -> Result<Shard> {
        let (account, container) = range.place();
        let ring = self.ring();
        let partition = ring.partition(&self.hash_path, account, Some(container), None);
        let device = self.local_device(partition)?;
        let hash = self.hash_path.hash(account, Some(container), None);
        let partition = partition.to_string();
        let key = DbKey::new(&device.device, &partition, DbKind::Container, hash);
        let db = self.db(key);
        let new = NewDb::Container {
            account: account.to_owned(),
            container: container.to_owned(),
            put_timestamp: self.now().internal(),
            storage_policy_index: visited.policy,
        };
        let created = db.create_at_epoch(new, range.epoch.clone()).await?;
        let (range, now) = (range.clone(), self.now().internal());
        let root = quote_path(&visited.root);
        db.write(None, move |broker| {
            broker.merge_shard_ranges(vec![range])?;
            broker.set_sharding_sysmeta("Quoted-Root", &root)?;
            broker.update_metadata([(SHARDING, "True", &*now)], false)
        })
        .await?;
        Ok(Shard {
            db,
            device_id: device.id,
            created,
        })
    }
}
