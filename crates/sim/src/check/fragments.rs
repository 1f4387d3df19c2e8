//! Final check of erasure-coded objects: each primary has its own fragment, durable and with the
//! content that follows from the object's; no other node has any.

use std::collections::BTreeMap;

use cairn_erasure::Codec;
use cairn_types::ErasureScheme;
use md5::{Digest, Md5};

use super::{Files, Objects, files_of, may_outlive_its_expiry};
use crate::client::ACCOUNT;
use crate::cluster::{Cluster, hash_path};
use crate::model::{Model, Seen};
use crate::policies::{FRAGMENTS_INDEX, IN_FRAGMENTS, scheme};
use crate::shared::NODES;

/// Collects errors in the fragments of `objects`.
pub(crate) fn check(cluster: &Cluster, model: &Model, objects: &Objects, wrong: &mut Vec<String>) {
    let Some(ring) = cluster.rings().object(FRAGMENTS_INDEX) else {
        return wrong.push("there is no ring of the policy of fragments".into());
    };
    let scheme = match scheme() {
        Ok(scheme) => scheme,
        Err(error) => return wrong.push(error.to_string()),
    };
    let nodes: Vec<_> = (0..NODES)
        .map(|node| files_of(&cluster.device(node), FRAGMENTS_INDEX))
        .collect();
    for (name, seen) in objects.iter().filter(|(name, _)| name.0 == IN_FRAGMENTS) {
        let path = (ACCOUNT, Some(&*name.0), Some(&*name.1));
        let hash = hash_path().hash(path.0, path.1, path.2).hex();
        let partition = ring.partition(&hash_path(), path.0, path.1, path.2);
        let mut by_node: [Option<usize>; NODES] = [None; NODES];
        for primary in ring.primaries(partition) {
            by_node[primary.device.id as usize] = Some(scheme.fragment_of_node(primary.index));
        }
        let has = |node: usize| nodes[node].get(&hash).map(valid_files).unwrap_or_default();
        let there: Vec<Files> = (0..NODES).map(has).collect();
        let is_right = match seen {
            Some(seen) => are_fragments(model, &scheme, seen, &there, &by_node),
            None => {
                let writes = model.objects.writes(name);
                are_gone(&there, &by_node) || may_outlive_its_expiry(cluster, name, &writes)
            }
        };
        if !is_right {
            wrong.push(format!(
                "{}/{}: read {seen:?}; on disks {:?}; their fragments are {by_node:?}",
                name.0,
                name.1,
                nodes.iter().map(|node| node.get(&hash)).collect::<Vec<_>>()
            ));
        }
    }
}

/// The newest durable fragments or tombstone, and newer metadata. Non-durable fragments may stay
/// until they are reclaimed, and obsolete ones may be restored by a power cut.
fn valid_files(files: &Files) -> Files {
    let is_whole = |name: &str| name.ends_with("#d.data") || name.ends_with(".ts");
    let newest = files.keys().filter(|name| is_whole(name)).map(|n| time(n));
    let Some(newest) = newest.max() else {
        return Files::new();
    };
    let of_newest = |name: &str| is_whole(name) && time(name) == newest;
    let is_object = files
        .keys()
        .any(|name| of_newest(name) && name.ends_with(".data"));
    let is_meta = |name: &&String| name.ends_with(".meta") && time(name) > newest && is_object;
    let meta = files.keys().rev().find(is_meta);
    let counts = |name: &String| of_newest(name) || Some(name) == meta;
    let kept = files.iter().filter(|(name, _)| counts(name));
    kept.map(|(name, md5)| (name.clone(), md5.clone()))
        .collect()
}

/// The timestamp of a file name: its first sixteen characters.
fn time(name: &str) -> &str {
    name.get(..16).unwrap_or(name)
}

fn are_fragments(
    model: &Model,
    scheme: &ErasureScheme,
    seen: &Seen,
    there: &[Files],
    by_node: &[Option<usize>],
) -> bool {
    let contents = model.contents.lock();
    let Some(content) = contents.get(&seen.etag) else {
        return false;
    };
    let archives = archives(scheme, content);
    let newest = there.iter().flat_map(|files| files.keys());
    let Some(at) = newest.map(|name| time(name).to_owned()).min() else {
        return false;
    };
    let metas = |files: &Files| -> Vec<String> {
        let names = files.keys().filter(|name| name.ends_with(".meta"));
        names.cloned().collect()
    };
    let mut metas_of_primaries = Vec::new();
    for (files, fragment) in there.iter().zip(by_node) {
        let Some(fragment) = fragment else {
            if !files.is_empty() {
                return false;
            }
            continue;
        };
        let data = files.iter().filter(|(name, _)| !name.ends_with(".meta"));
        let expected = (format!("{at}#{fragment}#d.data"), &archives[fragment]);
        if !data.eq([(&expected.0, expected.1)]) {
            return false;
        }
        metas_of_primaries.push(metas(files));
    }
    metas_of_primaries.windows(2).all(|two| two[0] == two[1])
}

fn are_gone(there: &[Files], by_node: &[Option<usize>]) -> bool {
    let is_right = |(files, fragment): (&Files, &Option<usize>)| match fragment {
        Some(_) => files.keys().all(|name| name.ends_with(".ts")),
        None => files.is_empty(),
    };
    let mut tombstones = there.iter().zip(by_node).filter(|(_, f)| f.is_some());
    let first = tombstones.next().map(|(files, _)| files);
    there.iter().zip(by_node).all(is_right) && tombstones.all(|(files, _)| Some(files) == first)
}

/// Whether this is the MD5 of a fragment's file of any content ever sent.
pub(crate) fn is_of_some_object(model: &Model, md5: &str) -> bool {
    let Ok(scheme) = scheme() else {
        return false;
    };
    let contents = model.contents.lock();
    let mut archives = contents.values().map(|content| archives(&scheme, content));
    archives.any(|archives| archives.values().any(|archive| archive == md5))
}

/// The MD5 of each fragment's file, by index.
fn archives(scheme: &ErasureScheme, content: &[u8]) -> BTreeMap<usize, String> {
    let codec = Codec::new(scheme).with_checksums();
    let mut archives = vec![Md5::new(); scheme.unique()];
    for segment in content.chunks(scheme.segment_size()) {
        for (archive, fragment) in archives.iter_mut().zip(codec.encode(segment)) {
            archive.update(fragment);
        }
    }
    let hex = |archive: Md5| {
        let digest: [u8; 16] = archive.finalize().into();
        cairn_types::ObjectHash(digest).hex()
    };
    archives.into_iter().map(hex).enumerate().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Files {
        let file = |name: &&str| ((*name).to_owned(), String::new());
        names.iter().map(file).collect()
    }

    #[test]
    fn what_is_durable_counts() {
        let (old, new) = ("1700000001.00000", "1700000002.00000");
        let both = files(&[&format!("{old}#1#d.data"), &format!("{new}#1.data")]);
        assert_eq!(valid_files(&both), files(&[&format!("{old}#1#d.data")]));
        let replaced = files(&[&format!("{old}#1#d.data"), &format!("{new}.ts")]);
        assert_eq!(valid_files(&replaced), files(&[&format!("{new}.ts")]));
        let posted = files(&[&format!("{old}#1#d.data"), &format!("{new}.meta")]);
        assert_eq!(valid_files(&posted), posted);
        assert_eq!(
            valid_files(&files(&[&format!("{new}#1.data")])),
            Files::new()
        );
    }

    #[test]
    fn archives_are_those_of_the_segments() {
        let scheme = scheme().unwrap();
        let made = archives(&scheme, &vec![7; 25_000]);
        assert_eq!(made.len(), 3);
        // Content in even halves, and different parity.
        assert_ne!(made[&0], made[&2]);
        let again = archives(&scheme, &vec![7; 25_000]);
        assert_eq!(made, again);
    }
}
