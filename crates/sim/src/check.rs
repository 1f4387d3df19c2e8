//! What must hold in the end, once everything works again and the daemons have gone round.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cairn_http::{Body, Request};
use cairn_peer::LoadedRing;
use cairn_peer::fan_out::backend_uri;
use cairn_types::PolicyIndex;
use md5::{Digest, Md5};
use serde_json::Value;

use crate::cluster::{Cluster, Kind, hash_path};
use crate::load::{ACCOUNT, CONTAINERS, Trouble, look};
use crate::model::{Change, Model, Name, Seen, Write, allowed, is_certain};
use crate::shared::{NODES, lock};

/// What one replica lists, and the objects and bytes it says it has.
struct Listing {
    entries: Vec<Value>,
    counted: [Option<u64>; 2],
}

impl Listing {
    /// The sums of what is listed.
    fn sums(&self, count: impl Fn(&Value) -> u64) -> [Option<u64>; 2] {
        let bytes = |e: &Value| e["bytes"].as_u64().unwrap_or(0);
        let objects = self.entries.iter().map(count).sum();
        [Some(objects), Some(self.entries.iter().map(bytes).sum())]
    }
}

/// A row of a listing: name, ETag, size.
type Row = (String, String, u64);

/// Everything that is not as it should be.
pub(crate) async fn all(cluster: &Cluster, model: &Model) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut objects = BTreeMap::new();
    for name in model.names() {
        match look(cluster, model, 0, &name).await {
            Ok(seen) => {
                check_object(model, &name, &seen, &mut wrong);
                objects.insert(name, seen);
            }
            Err(Trouble::Unanswered(why)) => wrong.push(format!("{name:?}: {why}")),
            Err(Trouble::Wrong(why)) => wrong.push(why),
        }
    }
    check_replicas(cluster, &objects, &mut wrong);
    let mut counts = BTreeMap::new();
    for container in CONTAINERS {
        let rows = check_listing(cluster, container, model, &objects, &mut wrong).await;
        counts.insert(container.to_owned(), rows.len() as u64);
    }
    check_account(cluster, &counts, &mut wrong).await;
    wrong
}

fn check_object(model: &Model, name: &Name, seen: &Option<Seen>, wrong: &mut Vec<String>) {
    let writes = model.writes(name);
    let states = allowed(&writes);
    if !states.contains(seen) {
        wrong.push(format!(
            "{name:?} is {seen:?}; acknowledged or possible is {states:?}, after {writes:#?}"
        ));
    }
}

/// The files of each object on a node: names, and the content's MD5.
fn files_of(device: &Path) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let list = |path: &Path| -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    for partition in list(&device.join("objects")) {
        for suffix in list(&partition) {
            for hash in list(&suffix) {
                let files = list(&hash);
                let name = |path: &Path| {
                    let name = path.file_name().unwrap_or_default();
                    name.to_string_lossy().into_owned()
                };
                let md5 = |path: &Path| {
                    let digest: [u8; 16] = Md5::digest(fs::read(path).unwrap_or_default()).into();
                    cairn_types::ObjectHash(digest).hex()
                };
                let files = files.iter().map(|f| (name(f), md5(f))).collect();
                let files = that_count(files);
                if !files.is_empty() {
                    found.insert(name(&hash), files);
                }
            }
        }
    }
    found
}

/// Without what is obsolete: a power cut may bring removed files back, which nobody minds.
fn that_count(mut files: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_whole = |name: &String| name.ends_with(".data") || name.ends_with(".ts");
    // Names begin with their times.
    let Some(newest) = files.keys().rev().find(|name| is_whole(name)).cloned() else {
        return BTreeMap::new();
    };
    let is_object = newest.ends_with(".data");
    let meta = files
        .keys()
        .rev()
        .find(|name| name.ends_with(".meta"))
        .cloned();
    files.retain(|name, _| {
        *name == newest || (is_object && *name > newest && Some(name) == meta.as_ref())
    });
    files
}

/// All primaries have the same files of each object, and nobody else has any.
fn check_replicas(
    cluster: &Cluster,
    objects: &BTreeMap<Name, Option<Seen>>,
    wrong: &mut Vec<String>,
) {
    let nodes: Vec<_> = (0..NODES).map(|n| files_of(&cluster.device(n))).collect();
    let Some(ring) = cluster.rings.object(PolicyIndex(0)) else {
        return;
    };
    for ((container, object), seen) in objects {
        let hash = hash_path()
            .hash(ACCOUNT, Some(container), Some(object))
            .hex();
        let partition = ring.partition(&hash_path(), ACCOUNT, Some(container), Some(object));
        let primaries: Vec<usize> = ring
            .primaries(partition)
            .iter()
            .map(|node| node.device.id as usize)
            .collect();
        let first = nodes[primaries[0]].get(&hash);
        for (node, files) in nodes.iter().enumerate() {
            let has = files.get(&hash);
            let is_right = match primaries.contains(&node) {
                true => has == first,
                false => has.is_none(),
            };
            if !is_right {
                wrong.push(format!(
                    "{container}/{object}: n{node} has {has:?}, n{} has {first:?}; primaries are \
                     {primaries:?}",
                    primaries[0]
                ));
            }
        }
        let content = first.and_then(|f| f.iter().find(|(name, _)| name.ends_with(".data")));
        let content = content.map(|(_, md5)| md5);
        if content != seen.as_ref().map(|seen| &seen.etag) {
            wrong.push(format!(
                "{container}/{object}: on disk {first:?}, read {seen:?}"
            ));
        }
    }
    for node in 0..NODES {
        let folders = fs::read_dir(cluster.device(node).join("async_pending"));
        let folders = folders.into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
        let count = files.count();
        if count > 0 {
            wrong.push(format!("n{node} has {count} updates not delivered"));
        }
    }
}

/// A listing of one replica, in JSON.
async fn list(
    cluster: &Cluster,
    kind: Kind,
    ring: &LoadedRing,
    container: Option<&str>,
) -> Vec<(usize, Result<Listing, String>)> {
    let partition = ring.partition(&hash_path(), ACCOUNT, container, None);
    let path = match container {
        Some(container) => format!("/{ACCOUNT}/{container}"),
        None => format!("/{ACCOUNT}"),
    };
    let mut listings = Vec::new();
    for node in ring.primaries(partition) {
        let number = node.device.id as usize;
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = backend_uri(&node, partition, &path, Some("format=json"));
        let Some(running) = cluster.node(number) else {
            continue;
        };
        let answer = running.handlers[kind as usize].call(request).await;
        let status = answer.status().as_u16();
        let headers = answer.headers();
        let counted = ["object-count", "bytes-used"].map(|what| {
            let value = headers.get(format!("x-{}-{what}", kind.name()));
            value.and_then(|v| v.to_str().ok()?.parse().ok())
        });
        let body = answer.into_body().collect(1 << 20).await;
        let entries = match (status, body) {
            (200, Ok(body)) => serde_json::from_slice(&body).map_err(|e| e.to_string()),
            (204, _) => Ok(Vec::new()),
            (status, _) => Err(format!("status {status}")),
        };
        listings.push((number, entries.map(|entries| Listing { entries, counted })));
    }
    listings
}

fn text(entry: &Value, key: &str) -> String {
    entry[key].as_str().unwrap_or_default().to_owned()
}

/// All replicas list the same, and that is what there is.
async fn check_listing(
    cluster: &Cluster,
    container: &str,
    model: &Model,
    objects: &BTreeMap<Name, Option<Seen>>,
    wrong: &mut Vec<String>,
) -> Vec<Row> {
    let ring = cluster.rings.container();
    let mut first: Option<(usize, Vec<Row>)> = None;
    for (node, listed) in list(cluster, Kind::Container, &ring, Some(container)).await {
        let rows: Vec<Row> = match listed {
            Ok(listing) => {
                let (listed, counted) = (listing.sums(|_| 1), listing.counted);
                if counted != listed {
                    wrong.push(format!(
                        "{container} on n{node} counts {counted:?} and lists {listed:?}"
                    ));
                }
                rows_of(&listing.entries)
            }
            Err(why) => {
                wrong.push(format!("{container} on n{node}: {why}"));
                continue;
            }
        };
        match &first {
            None => first = Some((node, rows)),
            Some((other, of_other)) if *of_other != rows => wrong.push(format!(
                "{container}: n{other} lists {of_other:?}, n{node} lists {rows:?}"
            )),
            Some(_) => {}
        }
    }
    let rows = first.map(|(_, rows)| rows).unwrap_or_default();
    for (name, seen) in objects.iter().filter(|(name, _)| name.0 == container) {
        let listed = rows.iter().find(|row| row.0 == name.1);
        let etag = listed.map(|row| &row.1);
        if etag == seen.as_ref().map(|seen| &seen.etag) && size_fits(model, name, listed) {
            continue;
        }
        let writes = model.writes(name);
        if is_certain(&writes) && !may_have_been_replaced(cluster, &writes) {
            wrong.push(format!("{name:?} is listed as {listed:?}, and is {seen:?}"));
        }
    }
    rows
}

fn rows_of(entries: &[Value]) -> Vec<Row> {
    let row = |e: &Value| {
        let bytes = e["bytes"].as_u64().unwrap_or(0);
        (text(e, "name"), text(e, "hash"), bytes)
    };
    entries.iter().map(row).collect()
}

/// Object servers tell container servers one each: all that is known of a row may be on one disk,
/// that of a container server and of the object server that could not tell another. Rows of before
/// a disk was replaced may be lost.
fn may_have_been_replaced(cluster: &Cluster, writes: &[Write]) -> bool {
    let replaced = *lock(&cluster.shared.replaced);
    let newest = writes.iter().map(|write| write.at).max();
    // Clocks differ by less, and so long may a row be on its way.
    let margin = 10 * 100_000;
    replaced
        .zip(newest)
        .is_some_and(|(replaced, newest)| newest <= replaced.plus_ticks(margin))
}

fn size_fits(model: &Model, name: &Name, row: Option<&Row>) -> bool {
    let Some((_, hash, bytes)) = row else {
        return true;
    };
    model.writes(name).iter().any(|write| {
        matches!(&write.change, Change::Put { etag, size } if etag == hash && *size as u64 == *bytes)
    })
}

/// All replicas of the account list its containers, with the counts that those have.
async fn check_account(cluster: &Cluster, counts: &BTreeMap<String, u64>, wrong: &mut Vec<String>) {
    let ring = cluster.rings.account();
    for (node, listed) in list(cluster, Kind::Account, &ring, None).await {
        match listed {
            Ok(listing) => {
                let sums = listing.sums(|e| e["count"].as_u64().unwrap_or(0));
                if listing.counted != sums {
                    let counted = listing.counted;
                    wrong.push(format!(
                        "the account on n{node} counts {counted:?} and lists {sums:?}"
                    ));
                }
                let listed: BTreeMap<String, u64> = listing
                    .entries
                    .iter()
                    .map(|e| (text(e, "name"), e["count"].as_u64().unwrap_or(u64::MAX)))
                    .collect();
                if listed != *counts {
                    wrong.push(format!(
                        "the account on n{node} lists {listed:?}; there is {counts:?}"
                    ));
                }
            }
            Err(why) => wrong.push(format!("the account on n{node}: {why}")),
        }
    }
}
