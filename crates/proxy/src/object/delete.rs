//! DELETE of an object: writes a tombstone on every replica.

use std::sync::Arc;

use bytes::Bytes;
use cairn_http::Response;
use cairn_peer::fan_out::{FanOut, Heads, fan_out};
use cairn_peer::{Change, Nodes, ObjectHeads, quorum};
use cairn_types::Quorum;
use http::{HeaderMap, Method, StatusCode};

use super::conditional::Opening;
use super::{Location, Name, effect};
use crate::request::{Incoming, Target};
use crate::state::Proxy;
use crate::write::{Write, respond_by};

/// Headers that name the container servers that a replica must update; primaries get them.
const OF_UPDATES: [&str; 7] = [
    "x-container-host",
    "x-container-device",
    "x-container-partition",
    "x-container-root-db-state",
    "x-delete-at-host",
    "x-delete-at-device",
    "x-delete-at-partition",
];

impl Proxy {
    pub(super) async fn object_delete(
        &self,
        incoming: &mut Incoming,
        location: Location,
    ) -> Response {
        if let Some(refused) = self.refused_expiry(incoming, &location).await {
            return refused;
        }
        let swap = match self.begin_swap(incoming, &location, Opening::Give).await {
            Ok(swap) => swap,
            Err(refused) => return refused,
        };
        let Target::Object {
            account,
            container,
            object,
        } = &incoming.target
        else {
            return self.not_allowed(&incoming.target);
        };
        let name = Name {
            account,
            container,
            object,
        };
        let heads = self.backend_headers(incoming, name, &location, None);
        let path = incoming.target.entity_path();
        if let Some(swap) = swap {
            let (ring, method) = (location.ring, Method::DELETE);
            let write = Write::new(ring, location.partition, method, path, heads.all());
            return self.swap_write(incoming, swap, write).await;
        }
        let what = format!("DELETE {path}");
        let (nodes, heads, quorum) = self.to_delete(incoming, name, &location, heads);
        let request = FanOut {
            method: Method::DELETE,
            path,
            query: None,
            body: Bytes::new(),
            extensions: http::Extensions::new(),
        };
        let (backends, timeouts) = (&self.backends, self.timeouts());
        let partition = location.partition;
        let answers = fan_out(
            backends, &nodes, partition, request, heads, quorum, timeouts,
        );
        let answers = answers.await;
        let response = respond_by(&answers, quorum, quorum::best_of_delete, &what);
        if response.status() == StatusCode::CONFLICT {
            effect::note_missing(incoming);
        }
        response
    }

    /// Nodes to delete from, the headers for each, and how many have to agree. With `write_affinity` the object may be
    /// on near handoffs, which are deleted from as well.
    fn to_delete(
        &self,
        incoming: &Incoming,
        name: Name<'_>,
        location: &Location,
        heads: ObjectHeads,
    ) -> (Arc<Nodes>, Heads, Quorum) {
        if self.affinities.of(Some(location.policy)).writes_near() {
            let mut headers = heads.all();
            let nodes = self.near_too(location, &mut headers);
            let quorum = location.kind.update_quorum(headers.len());
            return (nodes, Heads::Each(headers), quorum);
        }
        let (ring, partition) = (location.ring.clone(), location.partition);
        let nodes = self.nodes_of(ring, partition, Some(location.policy));
        let quorum = location.kind.update_quorum(heads.replicas);
        let write = self.whole_write(incoming, name, location, heads, Change::Delete);
        (nodes, Heads::Of(Arc::new(write)), quorum)
    }

    /// The primaries and near handoffs, for which headers are added.
    fn near_too(&self, location: &Location, headers: &mut Vec<HeaderMap>) -> Arc<Nodes> {
        let affinity = self.affinities.of(Some(location.policy));
        let (ring, partition) = (location.ring.clone(), location.partition);
        let mut order = self.primaries(&ring, partition, Some(location.policy));
        let replicas = order.len();
        let all = ring.handoffs(partition, ring.ring().device_count());
        let near = affinity.to_delete_from(&order, all.clone());
        if let Some(first) = headers.first() {
            let mut bare = first.clone();
            for name in OF_UPDATES {
                bare.remove(name);
            }
            headers.extend(std::iter::repeat_n(bare, near.len()));
        }
        let told: Vec<u32> = near.iter().map(|node| node.device.id).collect();
        let most = self.options.request_node_count.for_replicas(replicas) + near.len();
        order.extend(near);
        order.extend(all.into_iter().filter(|n| !told.contains(&n.device.id)));
        let limiter = self.limiter.clone();
        Arc::new(Nodes::in_order(ring, partition, order, most, limiter))
    }
}
