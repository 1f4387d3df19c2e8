//! Final checks, after faults have ended and the daemons have converged.

mod fragments;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cairn_http::{Body, Request};
use cairn_peer::LoadedRing;
use cairn_peer::backend_uri;
use cairn_types::{ObjectHash, PolicyIndex, ServerKind};
use md5::{Digest, Md5};
use serde_json::Value;

use crate::addresses::index;
use crate::client::{ACCOUNT, CONTAINER_MARK};
use crate::cluster::{Cluster, hash_path};
use crate::load::{CONTAINERS, TRANSIENT, Trouble, look};
use crate::model::{
    Change, IN_FLIGHT_MAX_TICKS, Model, Name, Seen, Write, allowed, by, is_certain, may_be_hearsay,
};
use crate::policies::{FRAGMENTS_INDEX, policy_of};
use crate::replicas;
use crate::shared::NODES;

/// One replica's listing, and its totals of objects and bytes.
struct Listing {
    entries: Vec<Value>,
    counted: [Option<u64>; 2],
    /// The mark of a container.
    mark: Option<String>,
}

/// Characters of a quarantined folder's name that are the hash of the object's name.
const HASH_CHARS: usize = 32;
const NOT_FOUND: &str = "status 404";

impl Listing {
    /// Sums over the listed entries.
    fn sums(&self, count: impl Fn(&Value) -> u64) -> [Option<u64>; 2] {
        let bytes = |e: &Value| e["bytes"].as_u64().unwrap_or(0);
        let objects = self.entries.iter().map(count).sum();
        [Some(objects), Some(self.entries.iter().map(bytes).sum())]
    }
}

/// A row of a listing: name, ETag, size.
type Row = (String, String, u64);

/// Observed state of each object.
pub(crate) type Objects = BTreeMap<Name, Option<Seen>>;

/// Collects everything that is wrong, and the observed objects. `before` has those of the last time
/// all was in order; only time has passed since.
pub(crate) async fn all(
    cluster: &Cluster,
    model: &Model,
    before: Option<&Objects>,
) -> (Vec<String>, Objects) {
    let mut wrong = Vec::new();
    let mut objects = BTreeMap::new();
    let now = cluster.proxy_clocks[0].now();
    for name in model.objects.names() {
        match look(cluster, model, 0, &name).await {
            Ok(seen) => {
                check_object(cluster, model, &name, &seen, &mut wrong);
                if let Some(was) = before.and_then(|before| before.get(&name))
                    && by(now, was.clone()) != seen
                {
                    wrong.push(format!("{name:?} was {was:?} and is {seen:?}"));
                }
                objects.insert(name, seen);
            }
            Err(Trouble::Unanswered(why)) => wrong.push(format!("{name:?}: {why}")),
            Err(Trouble::Wrong(why)) => wrong.push(why),
        }
    }
    check_replicas(cluster, model, &objects, &mut wrong);
    if cluster.shared.has_fragments {
        fragments::check(cluster, model, &objects, &mut wrong);
    }
    // In other runs power cuts leave files whose content and ETag differ.
    if cluster.shared.manner.is_rotting {
        check_quarantine(cluster, model, &mut wrong);
    }
    check_updates(cluster, &mut wrong);
    let mut counts = BTreeMap::new();
    for container in CONTAINERS {
        let rows = check_listing(cluster, container, model, &objects, &mut wrong).await;
        counts.insert(container.to_owned(), rows.len() as u64);
    }
    if check_container(cluster, model, &mut wrong).await {
        counts.insert(TRANSIENT.to_owned(), 0);
    }
    check_account(cluster, model, &counts, &mut wrong).await;
    check_databases(cluster, &counts, before.is_some(), &mut wrong);
    (wrong, objects)
}

fn check_object(
    cluster: &Cluster,
    model: &Model,
    name: &Name,
    seen: &Option<Seen>,
    wrong: &mut Vec<String>,
) {
    let writes = model.objects.writes(name);
    let is_replaced = cluster.shared.replaced.lock().is_some();
    let states = allowed(&writes, cluster.proxy_clocks[0].now(), is_replaced);
    if !states.contains(seen) {
        wrong.push(format!(
            "{name:?} is {seen:?}; acknowledged or possible is {states:?}, after {writes:#?}"
        ));
    }
}

/// An object's files: their names, and each content's MD5.
pub(crate) type Files = BTreeMap<String, String>;

/// Files of each of a policy's objects on a node, by the hash of its name.
pub(crate) fn files_of(device: &Path, policy: PolicyIndex) -> BTreeMap<String, Files> {
    let mut found = BTreeMap::new();
    for partition in paths_in(&device.join(policy.dir("objects"))) {
        for suffix in paths_in(&partition) {
            found.extend(
                paths_in(&suffix)
                    .iter()
                    .map(|hash| (file_name(hash), files_in(hash))),
            );
        }
    }
    found
}

fn paths_in(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn files_in(folder: &Path) -> Files {
    let md5 = |path: &Path| {
        let digest: [u8; 16] = Md5::digest(fs::read(path).unwrap_or_default()).into();
        ObjectHash(digest).hex()
    };
    paths_in(folder)
        .iter()
        .map(|f| (file_name(f), md5(f)))
        .collect()
}

/// Checks that only damaged objects are quarantined, and obsolete files beside them. Rotted content
/// may be valid again after a power cut.
fn check_quarantine(cluster: &Cluster, model: &Model, wrong: &mut Vec<String>) {
    let rotten = cluster.shared.rotten.lock().clone();
    for node in 0..NODES {
        for policy in [PolicyIndex(0), FRAGMENTS_INDEX] {
            let aside = cluster.device(node).join("quarantined");
            for folder in paths_in(&aside.join(policy.dir("objects"))) {
                let files = files_in(&folder);
                let newest = files.into_iter().rfind(|(name, _)| name.ends_with(".data"));
                let Some((file, md5)) = newest else {
                    continue;
                };
                let hash = file_name(&folder).chars().take(HASH_CHARS).collect();
                if rotten.contains(&(node, hash, file.clone())) {
                    continue;
                }
                let is_sound = match policy == FRAGMENTS_INDEX {
                    true => fragments::is_of_some_object(model, &md5),
                    false => model.contents.lock().contains_key(&md5),
                };
                if is_sound {
                    let folder = file_name(&folder);
                    wrong.push(format!("n{node}: {folder}/{file} was sound: quarantined"));
                }
            }
        }
    }
}

/// Checks that all primaries have the same state of each object, and no other node has any.
fn check_replicas(cluster: &Cluster, model: &Model, objects: &Objects, wrong: &mut Vec<String>) {
    let Some(nodes) = replicas::of_all(cluster, PolicyIndex(0), wrong) else {
        return;
    };
    let Some(ring) = cluster.rings().object(PolicyIndex(0)) else {
        return;
    };
    let has_fragments = cluster.shared.has_fragments;
    for (name, seen) in objects {
        let (container, object) = name;
        if policy_of(container, has_fragments) != PolicyIndex(0) {
            continue;
        }
        let hash = hash_path().hash(ACCOUNT, Some(container), Some(object));
        let partition = ring.partition(&hash_path(), ACCOUNT, Some(container), Some(object));
        let primaries: Vec<usize> = ring
            .primaries(partition)
            .iter()
            .map(|node| node.device.id as usize)
            .collect();
        let first = nodes[primaries[0]].get(&hash);
        for (node, replicas) in nodes.iter().enumerate() {
            let has = replicas.get(&hash);
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
        let content = first.and_then(|replica| replica.content.as_ref());
        let writes = model.objects.writes(name);
        let is_left = seen.is_none() && may_outlive_its_expiry(cluster, name, &writes);
        if content != seen.as_ref().map(|seen| &seen.etag) && !is_left {
            wrong.push(format!(
                "{container}/{object}: on disk {first:?}, read {seen:?}"
            ));
        }
    }
}

fn check_updates(cluster: &Cluster, wrong: &mut Vec<String>) {
    for node in 0..NODES {
        let folders = [PolicyIndex(0), FRAGMENTS_INDEX].into_iter();
        let folders = folders.map(|policy| cluster.device(node).join(policy.dir("async_pending")));
        let folders =
            folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
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
    kind: ServerKind,
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
        let answer = running.handlers[index(kind)].call(request).await;
        let status = answer.status().as_u16();
        let headers = answer.headers();
        let counted = ["object-count", "bytes-used"].map(|what| {
            let value = headers.get(format!("x-{}-{what}", kind.as_str()));
            value.and_then(|v| v.to_str().ok()?.parse().ok())
        });
        let mark = headers.get(CONTAINER_MARK).and_then(|v| v.to_str().ok());
        let mark = mark.map(str::to_owned);
        let body = answer.into_body().collect(1 << 20).await;
        let entries = match (status, body) {
            (200, Ok(body)) => serde_json::from_slice(&body).map_err(|e| e.to_string()),
            (204, _) => Ok(Vec::new()),
            (status, _) => Err(format!("status {status}")),
        };
        let listing = entries.map(|entries| Listing {
            entries,
            counted,
            mark,
        });
        listings.push((number, listing));
    }
    listings
}

fn text(entry: &Value, key: &str) -> String {
    entry[key].as_str().unwrap_or_default().to_owned()
}

/// Checks that all replicas list the same objects, namely those that exist.
async fn check_listing(
    cluster: &Cluster,
    container: &str,
    model: &Model,
    objects: &Objects,
    wrong: &mut Vec<String>,
) -> Vec<Row> {
    let ring = cluster.rings().container();
    let mut first: Option<(usize, Vec<Row>)> = None;
    for (node, listed) in list(cluster, ServerKind::Container, &ring, Some(container)).await {
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
        let writes = model.objects.writes(name);
        let is_left = seen.is_none() && may_outlive_its_expiry(cluster, name, &writes);
        if must_be_listed(cluster, &writes) && !is_left {
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

/// Checks the container that is created and deleted; returns whether it exists.
async fn check_container(cluster: &Cluster, model: &Model, wrong: &mut Vec<String>) -> bool {
    let name = (TRANSIENT.to_owned(), String::new());
    let now = cluster.proxy_clocks[0].now();
    let states = allowed(&model.container.writes(&name), now, false);
    let ring = cluster.rings().container();
    let mut first: Option<(usize, Option<String>)> = None;
    for (node, listed) in list(cluster, ServerKind::Container, &ring, Some(&name.0)).await {
        let mark = match listed {
            Ok(listing) => Some(listing.mark.unwrap_or_default()),
            Err(why) if why == NOT_FOUND => None,
            Err(why) => {
                wrong.push(format!("{} on n{node}: {why}", name.0));
                continue;
            }
        };
        let is_allowed = states
            .iter()
            .any(|state| state.as_ref().map(|seen| &seen.etag) == mark.as_ref());
        if !is_allowed {
            let writes = model.container.writes(&name);
            wrong.push(format!(
                "{} on n{node} is {mark:?}; acknowledged or possible is {states:?}, after \
                 {writes:#?}",
                name.0
            ));
        }
        match &first {
            None => first = Some((node, mark)),
            Some((other, of_other)) if *of_other != mark => wrong.push(format!(
                "{}: n{other} has {of_other:?}, n{node} has {mark:?}",
                name.0
            )),
            Some(_) => {}
        }
    }
    first.is_some_and(|(_, mark)| mark.is_some())
}

/// Checks that databases are on their primaries only, and deleted ones, after the reclaim age,
/// nowhere.
fn check_databases(
    cluster: &Cluster,
    there: &BTreeMap<String, u64>,
    is_reclaimed: bool,
    wrong: &mut Vec<String>,
) {
    let containers = CONTAINERS.iter().chain([&TRANSIENT]);
    let containers = containers.map(|name| (ServerKind::Container, Some(*name)));
    for (kind, container) in containers.chain([(ServerKind::Account, None)]) {
        let ring = match kind {
            ServerKind::Account => cluster.rings().account(),
            _ => cluster.rings().container(),
        };
        let is_there = container.is_none_or(|name| there.contains_key(name));
        let hash = hash_path().hash(ACCOUNT, container, None);
        let partition = ring.partition(&hash_path(), ACCOUNT, container, None);
        let folder = format!(
            "{}s/{partition}/{}/{}",
            kind.as_str(),
            hash.suffix(),
            hash.hex()
        );
        let primaries = ring.primaries(partition);
        for node in 0..NODES {
            let has = cluster.device(node).join(&folder).is_dir();
            let is_primary = primaries.iter().any(|n| n.device.id as usize == node);
            let may_have = is_primary && (is_there || !is_reclaimed);
            if has && !may_have {
                let name = container.unwrap_or(ACCOUNT);
                wrong.push(format!("n{node} has a database of {name}"));
            }
        }
    }
}

/// Whether listings and the expirer's queue must include the object.
fn must_be_listed(cluster: &Cluster, writes: &[Write]) -> bool {
    is_certain(writes) && !may_have_been_replaced(cluster, writes)
}

/// Whether an object may remain after its expiry, because the expirer does not learn of it: listings
/// may lack it, as the expirer's queue may; or the queue lost its entry. A server that takes a POST
/// removes the entry of the expiry before. If no other server took the POST, so that it was not
/// acknowledged, and the content of that one replica rots, it is quarantined with the POST, and the
/// other replicas have the earlier expiry without an entry. OpenStack Swift removes entries in the same
/// way.
pub(crate) fn may_outlive_its_expiry(cluster: &Cluster, name: &Name, writes: &[Write]) -> bool {
    let is_lost_post = |w: &Write| matches!(w.change, Change::Post { .. }) && !w.is_acknowledged();
    let hash = hash_path()
        .hash(ACCOUNT, Some(&name.0), Some(&name.1))
        .hex();
    let has_rotted = || {
        let rotten = cluster.shared.rotten.lock();
        rotten.iter().any(|(_, rotten, _)| *rotten == hash)
    };
    let expires = writes.iter().any(|w| w.change.delete_at().is_some());
    let is_entry_lost = || writes.iter().any(is_lost_post) && has_rotted();
    expires && (!must_be_listed(cluster, writes) || is_entry_lost())
}

/// Whether a row may have been lost with a replaced disk. Each object server updates one container
/// server: the only copies may be on one disk, the container server's and that of an object server
/// with an async pending. Rows from before the replacement may be lost.
fn may_have_been_replaced(cluster: &Cluster, writes: &[Write]) -> bool {
    let replaced = *cluster.shared.replaced.lock();
    let newest = writes.iter().map(|write| write.at).max();
    replaced
        .zip(newest)
        .is_some_and(|(replaced, newest)| newest <= replaced.plus_ticks(IN_FLIGHT_MAX_TICKS))
}

fn size_fits(model: &Model, name: &Name, row: Option<&Row>) -> bool {
    let Some((_, hash, bytes)) = row else {
        return true;
    };
    model.objects.writes(name).iter().any(|write| {
        matches!(&write.change, Change::Put { etag, size, .. } if etag == hash && *size as u64 == *bytes)
    })
}

/// Checks that all replicas of the account list its containers, with their totals. All or none list
/// the transient container if it is hearsay.
async fn check_account(
    cluster: &Cluster,
    model: &Model,
    counts: &BTreeMap<String, u64>,
    wrong: &mut Vec<String>,
) {
    let ring = cluster.rings().account();
    let writes = model
        .container
        .writes(&(TRANSIENT.to_owned(), String::new()));
    let is_hearsay = may_be_hearsay(&writes, *cluster.shared.replaced.lock());
    let mut counts = counts.clone();
    for (place, (node, listed)) in list(cluster, ServerKind::Account, &ring, None)
        .await
        .into_iter()
        .enumerate()
    {
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
                if is_hearsay && place == 0 {
                    counts.remove(TRANSIENT);
                    counts.extend(
                        listed
                            .get_key_value(TRANSIENT)
                            .map(|(n, c)| (n.clone(), *c)),
                    );
                }
                if listed != counts {
                    wrong.push(format!(
                        "the account on n{node} lists {listed:?}; there is {counts:?}"
                    ));
                }
            }
            Err(why) => wrong.push(format!("the account on n{node}: {why}")),
        }
    }
}
