//! Grouping of the responses to a read. Each version of an object of which some server has a
//! fragment is a bucket, keyed by its data timestamp; so is each status of the responses without a
//! fragment. A version can be served if it is durable (at least one server has committed it) and
//! there are enough fragments.

use std::collections::BTreeMap;

use cairn_http::respond;
use cairn_peer::Node;
use cairn_types::Timestamp;
use http::HeaderMap;
use serde_json::{Value, json};

use super::{EC_ETAG, EC_INDEX};
use crate::headers::source_timestamp;

/// Numbers of fragments of the policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Number needed for decoding.
    pub(super) data: usize,
    pub(super) parity: usize,
    /// Number stored in all.
    pub(super) replicas: usize,
}

/// Further fragments by index, each with the servers that reported to have it besides the one they
/// sent.
type Alternates = BTreeMap<usize, Vec<Node>>;

/// Responses with fragments of one version. `T` is the archive being received.
pub(super) struct Bucket<T> {
    pub(super) timestamp: Timestamp,
    /// At least one server has committed this version.
    pub(super) durable: bool,
    /// Headers of the response with the newest metadata: a server may have missed a POST.
    pub(super) headers: HeaderMap,
    /// One archive for each fragment index; duplicates are dropped.
    pub(super) archives: BTreeMap<usize, T>,
    alternates: Alternates,
}

/// Responses without a fragment that have the same status.
#[derive(Default)]
struct Refusals {
    /// For 404, the timestamp of the newest tombstone.
    newest: Timestamp,
    count: usize,
}

/// All responses to one read.
pub(super) struct Buckets<T> {
    counts: Counts,
    good: BTreeMap<Timestamp, Bucket<T>>,
    bad: BTreeMap<u16, Refusals>,
    /// Timestamp of the newest tombstone reported beside fragments that are not durable.
    deleted: Timestamp,
}

/// Reasons why a fragment cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It has no index.
    NoIndex,
    /// Its object has another ETag than that of the other fragments with this timestamp.
    OtherEtag,
}

impl<T> Bucket<T> {
    fn new(timestamp: Timestamp) -> Self {
        Bucket {
            timestamp,
            durable: false,
            headers: HeaderMap::new(),
            archives: BTreeMap::new(),
            alternates: BTreeMap::new(),
        }
    }

    /// Number of further responses needed to serve this version, or to know that it cannot be
    /// served.
    fn shortfall(&self, counts: Counts) -> usize {
        shortfall(self.archives.len(), self.durable, counts)
    }

    /// The same, assuming that every server sent all the fragments it reported.
    fn shortfall_with_alternates(&self, counts: Counts) -> usize {
        let more = self.alternates.keys();
        let more = more.filter(|i| !self.archives.contains_key(i)).count();
        counts.data.saturating_sub(self.archives.len() + more)
    }
}

fn shortfall(count: usize, durable: bool, counts: Counts) -> usize {
    let missing = counts.data.saturating_sub(count);
    if durable {
        return missing;
    }
    // Another server may know that the version is durable.
    let others = counts.replicas.saturating_sub(count).min(counts.parity);
    missing.max(others).max(1)
}

impl<T> Buckets<T> {
    pub(super) fn new(counts: Counts) -> Self {
        Buckets {
            counts,
            good: BTreeMap::new(),
            bad: BTreeMap::new(),
            deleted: Timestamp::ZERO,
        }
    }

    fn bucket(&mut self, timestamp: Timestamp) -> &mut Bucket<T> {
        let fresh = || Bucket::new(timestamp);
        self.good.entry(timestamp).or_insert_with(fresh)
    }

    /// Adds a fragment archive that `node` sends.
    pub(super) fn add(
        &mut self,
        node: &Node,
        headers: &HeaderMap,
        archive: T,
    ) -> Result<(), Unusable> {
        let index = respond::header(headers, EC_INDEX).and_then(|text| text.parse().ok());
        let index: usize = index.ok_or(Unusable::NoIndex)?;
        for (timestamp, indexes) in also_has(headers) {
            let alternates = &mut self.bucket(timestamp).alternates;
            for index in indexes {
                alternates.entry(index).or_default().push(node.clone());
            }
        }
        let deleted = respond::header_timestamp(headers, "x-backend-deleted-timestamp");
        self.deleted = self.deleted.max(deleted.unwrap_or(Timestamp::ZERO));
        let data = respond::header_timestamp(headers, "x-backend-data-timestamp");
        let durable = respond::header_timestamp(headers, "x-backend-durable-timestamp");
        let timestamp = source_timestamp(headers);
        // A server that does not report durability has only durable fragments.
        if let Some(durable) = durable.or(data.is_none().then_some(timestamp)) {
            self.bucket(durable).durable = true;
        }
        let bucket = self.bucket(timestamp);
        let is_first = bucket.headers.is_empty();
        if !is_first && bucket.headers.get(EC_ETAG) != headers.get(EC_ETAG) {
            return Err(Unusable::OtherEtag);
        }
        let posted = |headers| respond::header_timestamp(headers, "x-timestamp");
        if is_first || posted(headers) > posted(&bucket.headers) {
            bucket.headers = headers.clone();
        }
        bucket.archives.entry(index).or_insert(archive);
        Ok(())
    }

    /// Adds a response without a fragment.
    pub(super) fn refuse(&mut self, status: u16, headers: &HeaderMap) {
        let refusals = self.bad.entry(status).or_default();
        refusals.count += 1;
        refusals.newest = refusals.newest.max(refusal_timestamp(headers));
    }

    /// The version to serve; `None` if there is none, or if it has been deleted since.
    pub(super) fn best(&self) -> Option<&Bucket<T>> {
        let told = self.bad.get(&404).map_or(Timestamp::ZERO, |r| r.newest);
        let tombstone = told.max(self.deleted);
        self.ranked()
            .into_iter()
            .find(|bucket| tombstone.is_zero() || bucket.timestamp >= tombstone)
    }

    /// Consumes the buckets and returns the version to serve.
    pub(super) fn into_best(mut self) -> Option<Bucket<T>> {
        let timestamp = self.best()?.timestamp;
        self.good.remove(&timestamp)
    }

    /// Buckets, best first.
    fn ranked(&self) -> Vec<&Bucket<T>> {
        let mut all: Vec<_> = self.good.values().collect();
        let key = |bucket: &Bucket<T>| {
            let missing = bucket.shortfall_with_alternates(self.counts);
            let is_complete = bucket.shortfall(self.counts) == 0;
            (
                bucket.durable,
                is_complete,
                std::cmp::Reverse(missing),
                bucket.timestamp,
            )
        };
        all.sort_by_key(|bucket| std::cmp::Reverse(key(bucket)));
        all
    }

    /// Can the best version be served?
    pub(super) fn is_enough(&self) -> bool {
        self.best()
            .is_some_and(|best| best.durable && best.shortfall(self.counts) == 0)
    }

    /// Number of further responses needed to know the outcome.
    pub(super) fn shortfall(&self) -> usize {
        let none = shortfall(0, false, self.counts);
        // 404s do not end the search.
        let refused = self.bad.iter().filter(|(status, _)| **status != 404);
        let refused = refused
            .map(|(status, refusals)| shortfall(refusals.count, *status == 416, self.counts))
            .min()
            .unwrap_or(none);
        let best = self.best().map(|best| best.shortfall(self.counts));
        best.map_or(refused, |best| best.min(refused))
    }

    /// The value of `X-Backend-Fragment-Preferences`: versions in order of preference, each with
    /// the fragments already present, which are not wanted again. An empty list allows fragments
    /// that are not durable.
    pub(super) fn preferences(&self) -> String {
        let wanted = self.ranked().into_iter().map(|bucket| {
            let exclude: Vec<_> = bucket.archives.keys().collect();
            json!({"timestamp": bucket.timestamp.internal(), "exclude": exclude})
        });
        Value::Array(wanted.collect()).to_string()
    }

    /// Takes a server that was asked before and reported another fragment that is missing.
    pub(super) fn take_alternate(&mut self) -> Option<Node> {
        let counts = self.counts;
        let best = self.best()?;
        if !best.durable || best.shortfall(counts) == 0 {
            return None;
        }
        let timestamp = best.timestamp;
        let bucket = self.good.get_mut(&timestamp)?;
        let archives = &bucket.archives;
        bucket
            .alternates
            .iter_mut()
            .filter(|(index, _)| !archives.contains_key(index))
            .find_map(|(_, nodes)| nodes.pop())
    }
}

/// Time of the deletion, or of another event that a response without a fragment reports.
pub(super) fn refusal_timestamp(headers: &HeaderMap) -> Timestamp {
    ["x-backend-timestamp", "x-timestamp"]
        .into_iter()
        .find_map(|name| respond::header_timestamp(headers, name))
        .unwrap_or(Timestamp::ZERO)
}

/// Parses `X-Backend-Fragments`: fragment indexes by data timestamp.
fn also_has(headers: &HeaderMap) -> Vec<(Timestamp, Vec<usize>)> {
    let text = respond::header(headers, "x-backend-fragments").unwrap_or("{}");
    let Ok(Value::Object(sets)) = serde_json::from_str(text) else {
        return Vec::new();
    };
    let sets = sets.into_iter().filter_map(|(timestamp, indexes)| {
        let indexes = indexes.as_array()?.iter();
        let indexes = indexes.filter_map(|index| usize::try_from(index.as_u64()?).ok());
        Some((Timestamp::parse(&timestamp).ok()?, indexes.collect()))
    });
    sets.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use cairn_ring::Device;

    use super::*;

    const COUNTS: Counts = Counts {
        data: 2,
        parity: 2,
        replicas: 4,
    };

    fn node(id: u32) -> Node {
        let device = Device::at(id, ([127, 0, 0, 1], 6000).into());
        Node {
            device: Arc::new(device),
            address: "127.0.0.1:6000".parse().unwrap(),
            replication_address: "127.0.0.1:6000".parse().unwrap(),
            index: id as usize,
            handoff: false,
        }
    }

    fn headers(timestamp: u32, index: usize, durable: Option<u32>, has: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let internal = |seconds| format!("{seconds:010}.00000");
        respond::set(
            &mut headers,
            "x-backend-data-timestamp",
            internal(timestamp),
        );
        respond::set(&mut headers, EC_INDEX, index.to_string());
        respond::set(&mut headers, EC_ETAG, timestamp.to_string());
        respond::set(&mut headers, "x-backend-fragments", has);
        if let Some(durable) = durable {
            respond::set(
                &mut headers,
                "x-backend-durable-timestamp",
                internal(durable),
            );
        }
        headers
    }

    fn deleted(timestamp: u32) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let text = format!("{timestamp:010}.00000");
        respond::set(&mut headers, "x-backend-timestamp", text);
        headers
    }

    #[test]
    fn a_tombstone_behind_what_is_not_durable_counts() {
        let mut buckets = Buckets::new(COUNTS);
        for id in 0..2 {
            let durable = headers(5, id, Some(5), "{}");
            buckets.add(&node(id as u32), &durable, ()).unwrap();
        }
        assert!(buckets.is_enough());
        let mut later = headers(9, 2, None, "{}");
        let name = "x-backend-deleted-timestamp";
        respond::set(&mut later, name, "0000000007.00000");
        buckets.add(&node(2), &later, ()).unwrap();
        assert!(!buckets.is_enough());
        assert_eq!(buckets.best().unwrap().timestamp, Timestamp::from_secs(9));
    }

    #[test]
    fn an_older_durable_version_is_served_while_a_newer_one_is_not_durable() {
        let mut buckets = Buckets::new(COUNTS);
        buckets
            .add(&node(0), &headers(9, 0, Some(5), "{}"), ())
            .unwrap();
        assert!(!buckets.is_enough());
        assert_eq!(
            buckets.preferences(),
            "[{\"exclude\":[],\"timestamp\":\"0000000005.00000\"},\
             {\"exclude\":[0],\"timestamp\":\"0000000009.00000\"}]"
        );
        buckets
            .add(&node(1), &headers(5, 1, Some(5), "{}"), ())
            .unwrap();
        buckets
            .add(&node(2), &headers(5, 2, Some(5), "{}"), ())
            .unwrap();
        assert!(buckets.is_enough());
        assert_eq!(
            buckets.into_best().unwrap().timestamp.internal(),
            "0000000005.00000"
        );
    }

    #[test]
    fn what_nobody_has_committed_is_not_served() {
        let mut buckets = Buckets::new(COUNTS);
        for i in 0..4 {
            buckets
                .add(&node(i), &headers(9, i as usize, None, "{}"), ())
                .unwrap();
        }
        assert!(!buckets.is_enough());
        assert_eq!(buckets.shortfall(), 1);
    }

    #[test]
    fn a_tombstone_hides_what_is_older() {
        let mut buckets = Buckets::new(COUNTS);
        for i in 0..2 {
            buckets
                .add(&node(i), &headers(5, i as usize, Some(5), "{}"), ())
                .unwrap();
        }
        assert!(buckets.is_enough());
        buckets.refuse(404, &deleted(6));
        assert!(!buckets.is_enough());
        assert!(buckets.best().is_none());
    }

    #[test]
    fn a_server_with_several_fragments_is_asked_again() {
        let mut buckets = Buckets::new(COUNTS);
        let has = "{\"0000000005.00000\": [0, 3]}";
        buckets
            .add(&node(0), &headers(5, 0, Some(5), has), ())
            .unwrap();
        assert_eq!(buckets.take_alternate().unwrap().index, 0);
        assert!(buckets.take_alternate().is_none());
    }

    #[test]
    fn fragments_of_different_objects_are_not_mixed() {
        let mut buckets = Buckets::new(COUNTS);
        buckets
            .add(&node(0), &headers(5, 0, Some(5), "{}"), ())
            .unwrap();
        let mut other = headers(5, 1, Some(5), "{}");
        respond::set(&mut other, EC_ETAG, "other");
        assert_eq!(buckets.add(&node(1), &other, ()), Err(Unusable::OtherEtag));
        // The same fragment twice counts once.
        buckets
            .add(&node(1), &headers(5, 0, Some(5), "{}"), ())
            .unwrap();
        assert_eq!(buckets.best().unwrap().archives.len(), 1);
    }

    #[test]
    fn metadata_is_the_newest_that_anybody_has() {
        let mut buckets = Buckets::new(COUNTS);
        for (id, posted) in [(0, 7), (1, 9), (2, 5)] {
            let mut headers = headers(5, id as usize, Some(5), "{}");
            respond::set(&mut headers, "x-timestamp", format!("{posted}.00000"));
            respond::set(&mut headers, "x-object-meta-posted", posted.to_string());
            buckets.add(&node(id), &headers, ()).unwrap();
        }
        let best = buckets.into_best().unwrap();
        assert_eq!(best.headers["x-object-meta-posted"], "9");
    }

    #[test]
    fn refusals_that_are_enough_end_the_search() {
        let mut buckets: Buckets<()> = Buckets::new(COUNTS);
        assert_eq!(buckets.shortfall(), 2);
        buckets.refuse(416, &HeaderMap::new());
        assert_eq!(buckets.shortfall(), 1);
        buckets.refuse(416, &HeaderMap::new());
        assert_eq!(buckets.shortfall(), 0);
        let mut buckets: Buckets<()> = Buckets::new(COUNTS);
        for _ in 0..4 {
            buckets.refuse(404, &HeaderMap::new());
        }
        assert_eq!(buckets.shortfall(), 2);
    }
}
