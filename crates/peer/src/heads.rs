//! Headers of the requests by which a proxy writes an object: those that all replicas' share, and for each
//! replica the servers that its object server is to tell: of the container's row, and of the expirer's queue.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use std::fmt::Write as _;

use crate::node::Node;

/// Databases that are told of a write, each by one of the replicas' servers.
#[derive(Clone)]
pub struct Told {
    /// Partition of the container, in its ring.
    pub partition: u32,
    /// The servers of its replicas.
    pub nodes: Vec<Node>,
    /// Number of updates to send in all; servers get more than one where it is more than there are.
    pub updates: usize,
}

impl Told {
    /// The servers that a replica tells: replica `turn` of `replicas`.
    fn by(&self, turn: usize, replicas: usize) -> impl Iterator<Item = &Node> {
        let all = self.nodes.iter().cycle().take(self.updates);
        all.skip(turn).step_by(replicas.max(1))
    }
}

/// The destination of the object's row.
#[derive(Clone)]
pub struct Rows {
    pub told: Told,
    /// Sharding state of the root container, as the proxy knows it.
    pub db_state: String,
    /// Encoded path of the shard that gets the row in place of the object's container.
    pub shard: Option<String>,
}

/// The destination of the entry in the expirer's queue.
#[derive(Clone)]
pub struct Expiry {
    pub told: Told,
    /// The queue's container.
    pub container: String,
}

/// The headers of all replicas' requests of one write.
pub struct ObjectHeads {
    /// Headers that are the same for all replicas.
    pub shared: HeaderMap,
    pub replicas: usize,
    pub rows: Rows,
    pub expiry: Option<Expiry>,
}

impl ObjectHeads {
    /// Whether a replica's server is to tell a container.
    pub fn tells(&self, replica: usize) -> bool {
        self.rows.told.by(replica, self.replicas).next().is_some()
    }

    /// The one database that a replica's row is for, with its container's partition. `None` if there are more or
    /// none, or it is a shard's.
    pub fn row_of(&self, replica: usize) -> Option<(&Node, u32)> {
        if self.rows.shard.is_some() {
            return None;
        }
        let told = &self.rows.told;
        let mut nodes = told.by(replica, self.replicas);
        let only = nodes.next()?;
        nodes.next().is_none().then_some((only, told.partition))
    }

    /// The headers for a replica, by its number.
    pub fn head(&self, replica: usize) -> HeaderMap {
        let mut head = self.shared.clone();
        head.reserve(6);
        let rows = &self.rows;
        let mut nodes = rows.told.by(replica, self.replicas).peekable();
        if nodes.peek().is_some() {
            insert(&mut head, "x-container-partition", &rows.told.partition);
            insert_servers(&mut head, "x-container-host", "x-container-device", nodes);
            insert(&mut head, "x-container-root-db-state", &rows.db_state);
            if let Some(shard) = &rows.shard {
                insert(&mut head, "x-backend-quoted-container-path", shard);
            }
        }
        if let Some(expiry) = &self.expiry {
            // Last first: the first replicas have the rows.
            let turn = self.replicas.saturating_sub(replica + 1);
            let mut nodes = expiry.told.by(turn, self.replicas).peekable();
            if nodes.peek().is_some() {
                insert(&mut head, "x-delete-at-container", &expiry.container);
                insert(&mut head, "x-delete-at-partition", &expiry.told.partition);
                insert_servers(&mut head, "x-delete-at-host", "x-delete-at-device", nodes);
            }
        }
        // Two replicas clear the expirer's queue; one would be enough. The expirer's requests say it
        // already.
        let clears = HeaderName::from_static("x-backend-clean-expiring-object-queue");
        let word = if replica < 2 { "t" } else { "f" };
        head.entry(clears).or_insert(HeaderValue::from_static(word));
        head
    }

    /// The headers of every replica.
    pub fn all(&self) -> Vec<HeaderMap> {
        (0..self.replicas)
            .map(|replica| self.head(replica))
            .collect()
    }
}

fn insert(head: &mut HeaderMap, name: &'static str, value: &impl ToString) {
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(value.to_string())) {
        head.insert(HeaderName::from_static(name), value);
    }
}

/// The addresses and devices of servers, separated by commas.
fn insert_servers<'n>(
    head: &mut HeaderMap,
    host: &'static str,
    device: &'static str,
    nodes: impl Iterator<Item = &'n Node>,
) {
    let (mut hosts, mut devices) = (String::new(), String::new());
    for node in nodes {
        let comma = if hosts.is_empty() { "" } else { "," };
        let _ = write!(hosts, "{comma}{}", node.host());
        let _ = write!(devices, "{comma}{}", node.device.device);
    }
    insert(head, host, &hosts);
    insert(head, device, &devices);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use cairn_ring::Device;

    use super::*;

    fn told(servers: u32, updates: usize) -> Told {
        let node = |id| {
            let address = SocketAddr::from(([127, 0, 0, 1], 6000 + id as u16));
            Node {
                device: Arc::new(Device::at(id, address)),
                address,
                replication_address: address,
                index: id as usize,
                handoff: false,
            }
        };
        Told {
            partition: 5,
            nodes: (0..servers).map(node).collect(),
            updates,
        }
    }

    fn heads(replicas: usize, told: Told, expiry: Option<Told>) -> ObjectHeads {
        ObjectHeads {
            shared: HeaderMap::new(),
            replicas,
            rows: Rows {
                told,
                db_state: "unsharded".into(),
                shard: None,
            },
            expiry: expiry.map(|told| Expiry {
                told,
                container: "7".into(),
            }),
        }
    }

    /// Hosts' ports that each replica is to tell, by this header.
    fn ports(heads: &ObjectHeads, name: &str) -> Vec<String> {
        let all = heads.all();
        let text = all.iter().map(|head| {
            let value = head.get(name).map_or(&b""[..], HeaderValue::as_bytes);
            String::from_utf8_lossy(value).replace("127.0.0.1:600", "")
        });
        text.collect()
    }

    /// As OpenStack Swift's proxy hands them out (`_backend_requests`).
    #[test]
    fn updates_are_spread_over_replicas() {
        let even = heads(3, told(3, 3), None);
        assert_eq!(ports(&even, "x-container-host"), ["0", "1", "2"]);
        assert_eq!(ports(&even, "x-container-device"), ["d0", "d1", "d2"]);
        let row = even
            .row_of(1)
            .map(|(node, partition)| (node.device.id, partition));
        assert_eq!(row, Some((1, 5)));
        let few = heads(3, told(1, 2), None);
        assert_eq!(ports(&few, "x-container-host"), ["0", "0", ""]);
        assert!(few.tells(1) && !few.tells(2) && few.row_of(2).is_none());
        let many = heads(2, told(3, 3), Some(told(3, 3)));
        assert_eq!(ports(&many, "x-container-host"), ["0,2", "1"]);
        assert_eq!(ports(&many, "x-delete-at-host"), ["1", "0,2"]);
        assert!(many.row_of(0).is_none() && many.row_of(1).is_some());
        let none = heads(2, told(0, 0), None);
        assert_eq!(ports(&none, "x-container-partition"), ["", ""]);
    }

    #[test]
    fn a_shards_row_is_no_containers() {
        let mut sharded = heads(1, told(1, 1), None);
        sharded.rows.shard = Some(".shards_a/c-1".into());
        assert!(sharded.row_of(0).is_none() && sharded.tells(0));
        let head = sharded.head(0);
        assert_eq!(head["x-backend-quoted-container-path"], ".shards_a/c-1");
    }

    #[test]
    fn two_replicas_clear_the_queue_unless_the_request_says_who() {
        let mut heads = heads(3, told(3, 3), None);
        let name = "x-backend-clean-expiring-object-queue";
        assert_eq!(ports(&heads, name), ["t", "t", "f"]);
        heads.shared.insert(name, HeaderValue::from_static("no"));
        assert_eq!(ports(&heads, name), ["no", "no", "no"]);
    }
}
