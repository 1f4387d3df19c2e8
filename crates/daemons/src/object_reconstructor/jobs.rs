//! Jobs of a partition: one for each fragment index in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_disk::DiskError;
use cairn_disk::engine::SuffixHash;
use cairn_http::own_thread;
use cairn_peer::Node;
use cairn_types::ErasureScheme;
use tracing::warn;

use super::pass::Pass;
use crate::object_pass::LocalPartition;

/// A partition of an erasure-coded policy.
pub(super) type Part = LocalPartition<ErasureScheme>;

/// The hashes of a partition's suffixes.
pub(super) type Hashes = BTreeMap<String, SuffixHash>;

/// A job for the fragments of one index.
pub(super) struct Job {
    pub(super) part: Arc<Part>,
    pub(super) kind: Kind,
    /// `None` for tombstones only.
    pub(super) index: Option<u32>,
    pub(super) suffixes: Vec<String>,
    pub(super) nodes: Vec<Node>,
    /// Index that belongs on this device, if any.
    pub(super) primary: Option<u32>,
}

pub(super) enum Kind {
    /// They belong here: sync with other servers.
    Sync(Hashes),
    /// They belong on these nodes.
    Revert,
}

impl Part {
    pub(super) fn fragment_of(&self, node: &Node) -> u32 {
        self.scheme.fragment_of_node(node.index) as u32
    }
}

impl Pass {
    /// Jobs of a partition. None if it is misplaced and empty.
    pub(super) async fn jobs(&self, part: &Arc<Part>) -> Result<Vec<Job>, DiskError> {
        let hashes = part.hashes(Vec::new(), true).await?.hashes;
        let (mut by_index, bare) = suffixes_by_index(&hashes);
        let primaries = part.ring.primaries(part.partition);
        let own = primaries
            .iter()
            .position(|node| node.device.id == part.local.id);
        let primary = own.map(|at| part.fragment_of(&primaries[at]));
        let job = |kind, index, suffixes, nodes| Job {
            part: part.clone(),
            kind,
            index,
            suffixes,
            nodes,
            primary,
        };
        let mut jobs = Vec::new();
        if let Some(at) = own {
            let suffixes = primary.and_then(|index| by_index.remove(&index));
            let nodes = partners(at, &primaries);
            let suffixes = suffixes.unwrap_or_default();
            jobs.push(job(Kind::Sync(hashes), primary, suffixes, nodes));
        }
        let mut rest: Vec<(u32, Vec<String>)> = by_index.into_iter().collect();
        rest.sort_by_key(|(index, suffixes)| (suffixes.len(), *index));
        for (index, suffixes) in rest {
            let belongs = |node: &&Node| part.fragment_of(node) == index;
            let nodes: Vec<Node> = primaries.iter().filter(belongs).cloned().collect();
            if nodes.len() < part.scheme.duplication() {
                warn!(
                    partition = part.partition,
                    index, "a fragment's place is not in the ring"
                );
                continue;
            }
            jobs.push(job(Kind::Revert, Some(index), suffixes, nodes));
        }
        match jobs.first_mut() {
            Some(first) => first.suffixes.extend(bare),
            None if bare.is_empty() => {}
            // Tombstones have no index. They are sent to enough servers that the rest could not
            // restore the object.
            None => {
                let enough = part.scheme.replicas() - part.scheme.data() + 1;
                let mut nodes = primaries.clone();
                own_thread::shuffle(&mut nodes);
                nodes.truncate(enough);
                jobs.push(job(Kind::Revert, None, bare, nodes));
            }
        }
        Ok(jobs)
    }
}

/// Suffixes by fragment index, and those without fragments.
fn suffixes_by_index(hashes: &Hashes) -> (BTreeMap<u32, Vec<String>>, Vec<String>) {
    let mut by_index: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut bare = Vec::new();
    for (suffix, hash) in hashes {
        let Some(hashes) = hash.fragments().filter(|hashes| !hashes.is_empty()) else {
            continue;
        };
        let mut indices = hashes.keys().flatten().peekable();
        if indices.peek().is_none() {
            bare.push(suffix.clone());
        }
        for index in indices {
            by_index.entry(*index).or_default().push(suffix.clone());
        }
    }
    (by_index, bare)
}

/// The nodes before, after and opposite `at`, each once.
fn partners(at: usize, primaries: &[Node]) -> Vec<Node> {
    let count = primaries.len();
    let mut found: Vec<Node> = Vec::new();
    for step in [count - 1, 1, count / 2] {
        let node = &primaries[(at + step) % count];
        let is_new = found.iter().all(|other| other.device.id != node.device.id);
        if is_new && node.device.id != primaries[at].device.id {
            found.push(node.clone());
        }
    }
    found
}
