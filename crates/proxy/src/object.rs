//! Object requests: the common steps; each verb that writes has a file of its own.

mod conditional;
mod delete;
mod effect;
pub(crate) mod erasure;
mod expiry;
mod get;
mod post;
mod put;
mod put_stream;

use std::sync::Arc;

use cairn_formats::shard::{Bounded, Namespace};
use cairn_http::{ContainerInfo, Response, params};
use cairn_peer::heads::{Expiry, Rows, Told};
use cairn_peer::whole_write::Prepared;
use cairn_peer::{Change, LoadedRing, Nodes, ObjectHeads, WholeWrite};
use cairn_types::{ObjectHash, PolicyIndex, PolicyKind, Quorum, expirer};
use http::{HeaderMap, Method, StatusCode};
use tracing::error;

use crate::erasure::Erasure;
use crate::headers::{self, POLICY_INDEX};
use crate::request::{Incoming, network_of};
use crate::state::Proxy;
use crate::status;

/// An object's full name.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    pub(crate) account: &'a str,
    pub(crate) container: &'a str,
    pub(crate) object: &'a str,
}

/// Location of an object: its container, policy, ring and partition.
pub(crate) struct Location {
    pub(crate) info: Arc<ContainerInfo>,
    pub(crate) policy: PolicyIndex,
    /// The policy's kind, which gives the quorums of writes.
    pub(crate) kind: PolicyKind,
    pub(crate) ring: Arc<LoadedRing>,
    pub(crate) hash: ObjectHash,
    pub(crate) partition: u32,
    /// The shard that gets the object's row.
    pub(crate) shard: Option<Namespace>,
    /// Erasure coding of the policy; `None` for replication.
    pub(crate) erasure: Option<Arc<Erasure>>,
}

impl Proxy {
    pub(crate) async fn object(&self, incoming: &mut Incoming, name: Name<'_>) -> Response {
        let is_told = incoming.header(POLICY_INDEX).is_some();
        let info = self
            .container_info(&incoming.context, name.account, name.container)
            .await;
        let mut location = match self.locate(incoming, name, info) {
            Ok(location) => location,
            Err(refused) => return refused,
        };
        headers::insert(
            &mut incoming.parts.headers,
            POLICY_INDEX,
            &location.policy.to_string(),
        );
        if self.options.allow_open_expired && incoming.flag("x-open-expired") {
            headers::insert(
                &mut incoming.parts.headers,
                "x-backend-open-expired",
                "true",
            );
        }
        let reads = [Method::GET, Method::HEAD].contains(incoming.method());
        let acl = if reads {
            &location.info.read_acl
        } else {
            &location.info.write_acl
        };
        if *incoming.method() == Method::PUT
            && let Err(refused) = put::check_conditions(incoming)
        {
            return refused;
        }
        if let Err(denied) = self.authorize(incoming, acl.as_deref()).await {
            return denied;
        }
        if reads {
            let policy = location.policy;
            let response = self.object_read(incoming, location).await;
            if response.status() == StatusCode::NOT_FOUND && !is_told {
                let elsewhere = Box::pin(self.object_elsewhere(incoming, name, policy)).await;
                return elsewhere.unwrap_or(response);
            }
            return response;
        }
        if !location.info.exists() {
            return status::no_such_container();
        }
        if let Some("sharding" | "sharded") = location.info.sharding_state.as_deref() {
            let shard = self.update_shard(incoming, name.account, name.container, name.object);
            location.shard = Box::pin(shard).await;
        }
        match *incoming.method() {
            Method::PUT => Box::pin(self.object_put(incoming, name, location)).await,
            Method::POST => Box::pin(self.object_post(incoming, name, location)).await,
            _ => Box::pin(self.object_delete(incoming, location)).await,
        }
    }

    /// Resolves the container, its policy, the policy's ring, and the object's partition.
    fn locate(
        &self,
        incoming: &Incoming,
        name: Name<'_>,
        info: Arc<ContainerInfo>,
    ) -> Result<Location, Response> {
        if info.status == 0 || info.status >= 500 {
            return Err(status::unavailable());
        }
        let policy = incoming
            .header(POLICY_INDEX)
            .and_then(|text| text.parse().ok())
            .map_or(info.policy, PolicyIndex);
        let ring = self.rings.object(policy).ok_or_else(status::unavailable)?;
        let known = self.policies.by_index(policy);
        let kind = known.ok_or_else(status::unavailable)?.kind;
        let ring = incoming.network_of(ring);
        let (container, object) = (Some(name.container), Some(name.object));
        let hash = self.hash_path.hash(name.account, container, object);
        let partition = ring.ring().partition(hash);
        let erasure = self.erasures.get(&policy).cloned();
        if let Some(erasure) = &erasure {
            let replicas = ring.ring().replica_count();
            if replicas != erasure.scheme.replicas() as f64 {
                error!(
                    %policy, replicas, fragments = erasure.scheme.replicas(),
                    "an erasure-coded policy's ring must have as many replicas as fragments: \
                     set its replicas and rebalance"
                );
                return Err(status::unavailable());
            }
        }
        Ok(Location {
            info,
            policy,
            kind,
            ring,
            hash,
            partition,
            shard: None,
            erasure,
        })
    }

    /// Nodes for an upload: with `write_affinity`, near nodes first, primaries or handoffs.
    fn upload_nodes(&self, location: &Location) -> Arc<Nodes> {
        let affinity = self.affinities.of(Some(location.policy));
        let (ring, partition) = (location.ring.clone(), location.partition);
        if !affinity.writes_near() {
            return self.nodes_of(ring, partition, Some(location.policy));
        }
        let primaries = ring.primaries(partition);
        let replicas = primaries.len();
        let most = self.options.request_node_count.for_replicas(replicas);
        let handoffs = ring.handoffs(partition, ring.ring().device_count());
        let mut order = affinity.for_upload(primaries, handoffs);
        let at_once = replicas.min(order.len());
        self.sort(&mut order[..at_once], Some(location.policy));
        let limiter = self.limiter.clone();
        Arc::new(Nodes::in_order(ring, partition, order, most, limiter))
    }

    /// A write as servers of this process may take it by a call.
    fn whole_write(
        &self,
        incoming: &Incoming,
        name: Name<'_>,
        location: &Location,
        heads: ObjectHeads,
        change: Change,
    ) -> WholeWrite {
        WholeWrite {
            hash_path: self.hash_path.clone(),
            account: name.account.to_owned(),
            container: name.container.to_owned(),
            object: name.object.to_owned(),
            hash: location.hash,
            policy: location.policy,
            partition: location.partition,
            timestamp: incoming.timestamp,
            change,
            heads,
            prepared: Prepared::default(),
        }
    }

    /// Headers for each replica: the client's, and the container servers that the replica's server
    /// must update. `delete_at` is the object's expiry, if any.
    fn backend_headers(
        &self,
        incoming: &Incoming,
        name: Name<'_>,
        location: &Location,
        delete_at: Option<u64>,
    ) -> ObjectHeads {
        let mut shared = headers::with_all(incoming);
        if let Some(power) = location.ring.ring().next_part_power() {
            headers::insert(&mut shared, "x-backend-next-part-power", &power.to_string());
        }
        let replicas = location.ring.primaries(location.partition).len();
        let containers = incoming.network_of(self.rings.container());
        let told = match &location.shard {
            Some(shard) => shard.place(),
            None => (name.account, name.container),
        };
        let partition = containers.partition(&self.hash_path, told.0, Some(told.1), None);
        let nodes = containers.primaries(partition);
        let updates = container_updates(
            Quorum::of_replicas(nodes.len()),
            location.kind.upload_quorum(replicas),
        );
        let db_state = location.info.sharding_state.as_deref();
        let expiry = delete_at.map(|delete_at| self.expiry(&shared, name, delete_at, updates));
        ObjectHeads {
            shared,
            replicas,
            rows: Rows {
                told: Told {
                    partition,
                    nodes,
                    updates,
                },
                db_state: db_state.unwrap_or("unsharded").to_owned(),
                shard: location.shard.as_ref().map(|s| params::quote_path(&s.name)),
            },
            expiry,
        }
    }

    /// The expirer's task container, which as many updates are sent to as to the object's own.
    fn expiry(&self, shared: &HeaderMap, name: Name<'_>, delete_at: u64, updates: usize) -> Expiry {
        let container = expirer::task_container(
            &self.hash_path,
            self.options.expiring_objects_container_divisor,
            delete_at,
            name.account,
            name.container,
            name.object,
        );
        let ring = network_of(self.rings.container(), shared);
        let owner = &self.options.expiring_objects_account;
        let partition = ring.partition(&self.hash_path, owner, Some(&container), None);
        let told = Told {
            partition,
            nodes: ring.primaries(partition),
            updates,
        };
        Expiry { told, container }
    }
}

/// Number of container updates to send such that every quorum of object servers updates a quorum of
/// the container's replicas, and all of them if no server fails.
fn container_updates(containers: Quorum, objects: Quorum) -> usize {
    if containers.servers() == 0 {
        return 0;
    }
    let needed = containers.size() + objects.missing_max();
    needed.max(containers.servers())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_reach_a_quorum() {
        let of = Quorum::of_replicas;
        assert_eq!(container_updates(of(3), of(3)), 3);
        assert_eq!(container_updates(of(3), of(6)), 5);
        assert_eq!(container_updates(of(1), of(3)), 2);
        assert_eq!(container_updates(of(3), Quorum::of_fragments(4, 2, 1)), 3);
        assert_eq!(container_updates(of(0), of(3)), 0);
    }
}
