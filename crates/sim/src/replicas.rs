//! Final state of objects' replicas, as each node's engine has them.

use std::collections::BTreeMap;

use cairn_disk::engine::{Content, Sendable};
use cairn_disk::{DiskError, FragmentChoice, PartitionKey};
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use md5::{Digest, Md5};

use crate::cluster::{Cluster, Node};
use crate::shared::NODES;

/// A node's replica of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    /// Timestamp of the PUT or the deletion.
    data: Timestamp,
    /// Timestamps of the last change, and of the content type.
    newest: Option<(Timestamp, Timestamp)>,
    /// MD5 of its content; `None` if deleted.
    pub(crate) content: Option<String>,
}

/// All objects of a policy, by node and hash; `None` if a node cannot be read.
pub(crate) fn of_all(
    cluster: &Cluster,
    policy: PolicyIndex,
    wrong: &mut Vec<String>,
) -> Option<Vec<BTreeMap<ObjectHash, Replica>>> {
    let mut nodes = Vec::new();
    for node in 0..NODES {
        let running = cluster.node(node);
        match running.map(|running| of_node(&running, policy)) {
            Some(Ok(replicas)) => nodes.push(replicas),
            Some(Err(error)) => wrong.push(format!("n{node}: {error}")),
            None => wrong.push(format!("n{node} does not run")),
        }
    }
    (nodes.len() == NODES).then_some(nodes)
}

/// All objects of a policy on a node, by the hashes of their names.
fn of_node(node: &Node, policy: PolicyIndex) -> Result<BTreeMap<ObjectHash, Replica>, DiskError> {
    let mut replicas = BTreeMap::new();
    let Some(engine) = node.parts.engines.of(policy) else {
        return Ok(replicas);
    };
    for name in node.parts.devices.names() {
        let disk = node.parts.devices.get(&name)?.disk()?;
        for partition in engine.partitions(&disk, policy)? {
            let at = PartitionKey::new(policy, partition);
            for hash in engine.objects(&disk, at)? {
                let choice = FragmentChoice::default();
                let found = engine.open_to_send(&disk, at.object(hash), u64::MAX, choice)?;
                replicas.extend(replica(found).map(|replica| (hash, replica)));
            }
        }
    }
    Ok(replicas)
}

fn replica(found: Sendable) -> Option<Replica> {
    match found {
        Sendable::Nothing => None,
        Sendable::Tombstone(_, data) => Some(Replica {
            data,
            newest: None,
            content: None,
        }),
        Sendable::Object(_, open) => {
            let content = match &open.content {
                Content::Inline(bytes) => bytes.as_ref(),
                Content::None | Content::Stored(_) => &[],
            };
            let md5: [u8; 16] = Md5::digest(content).into();
            Some(Replica {
                data: open.info.data_timestamp,
                newest: Some((open.info.timestamp(), open.info.content_type_timestamp())),
                content: Some(ObjectHash(md5).hex()),
            })
        }
    }
}
