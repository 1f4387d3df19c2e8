//! Affinity: the order in which a partition's servers are read from and written to, by region and
//! zone. Options apply to all policies, or to one in `[proxy-server:policy:N]`.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_peer::Node;
use cairn_types::PolicyIndex;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::settings::NodeCount;

const EXTRA_FRAGMENTS: &str = "concurrent_ec_extra_requests";
const UNHEARD_OF: &str = "rebalance_missing_suppression_count";

/// Order of servers for reads (`sorting_method`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sorting {
    Shuffle,
    /// Servers with the shortest recent response times first.
    Timing,
    Affinity,
}

/// A region, or a zone of a region: `r1` or `r1z2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegionOrZone {
    region: u32,
    zone: Option<u32>,
}

impl RegionOrZone {
    fn parse(text: &str) -> Option<RegionOrZone> {
        let rest = text.trim().strip_prefix('r')?;
        let (region, zone) = match rest.split_once('z') {
            Some((region, zone)) => (region, Some(zone.parse().ok()?)),
            None => (rest, None),
        };
        Some(RegionOrZone {
            region: region.parse().ok()?,
            zone,
        })
    }

    fn has(self, node: &Node) -> bool {
        let device = &node.device;
        self.region == device.region && self.zone.is_none_or(|zone| zone == device.zone)
    }
}

/// The options of one policy, or of all policies without their own.
#[derive(Clone, Debug)]
pub(crate) struct Affinity {
    pub(crate) sorting: Sorting,
    /// Priorities for reads: smaller numbers are nearer, and a node without a match is farthest.
    read: Vec<(RegionOrZone, u32)>,
    write: Vec<RegionOrZone>,
    write_node_count: NodeCount,
    /// Number of handoffs to delete from; `None`: as many as there are primaries elsewhere.
    write_handoff_delete_count: Option<usize>,
    pub(crate) concurrent_gets: bool,
    pub(crate) concurrency_timeout: Duration,
    /// Fragments requested at once beyond those needed, with `concurrent_gets`.
    pub(crate) extra_fragments: usize,
    /// Number of primaries without any trace of the object that are ignored: a rebalance may have
    /// made them primaries just now (`rebalance_missing_suppression_count`).
    pub(crate) unheard_of: usize,
}

impl Affinity {
    /// Reads the options of the policy's section `own`, with those of `[app:proxy-server]` as
    /// defaults.
    fn read(app: &Section, own: Option<&Section>) -> Result<Affinity, ConfError> {
        let of = |option: &str| own.filter(|s| s.get(option).is_some()).unwrap_or(app);
        let section = of("sorting_method");
        let method = section.str_or("sorting_method", "shuffle");
        let sorting = match method.to_ascii_lowercase().as_str() {
            "shuffle" => Sorting::Shuffle,
            "timing" => Sorting::Timing,
            "affinity" => Sorting::Affinity,
            _ => {
                return Err(section.bad("sorting_method", "expected shuffle, timing or affinity"));
            }
        };
        let section = of("read_affinity");
        let read = words(section, "read_affinity").map(|word| {
            let (region, priority) = word.split_once('=')?;
            Some((RegionOrZone::parse(region)?, priority.trim().parse().ok()?))
        });
        let read: Option<Vec<_>> = read.collect();
        let read = read.ok_or_else(|| {
            section.bad(
                "read_affinity",
                "expected places with priorities: r1z1=100, r2=200",
            )
        })?;
        if !read.is_empty() && sorting != Sorting::Affinity {
            warn!(
                section = section.name(),
                "read_affinity changes nothing unless sorting_method is affinity"
            );
        }
        let section = of("write_affinity");
        let write: Option<Vec<_>> = words(section, "write_affinity")
            .map(RegionOrZone::parse)
            .collect();
        let write =
            write.ok_or_else(|| section.bad("write_affinity", "expected places: r1, r2z2"))?;
        let count = "write_affinity_node_count";
        let deletes = "write_affinity_handoff_delete_count";
        let section = of(deletes);
        Ok(Affinity {
            sorting,
            read,
            write,
            write_node_count: NodeCount::read(of(count), count)?,
            write_handoff_delete_count: match section.str_or(deletes, "auto").trim() {
                "auto" => None,
                number => Some(
                    number
                        .parse()
                        .map_err(|_| section.bad(deletes, "expected a number or auto"))?,
                ),
            },
            concurrent_gets: of("concurrent_gets").bool_or("concurrent_gets", false),
            concurrency_timeout: of("concurrency_timeout")
                .seconds_or("concurrency_timeout", 0.5)?,
            extra_fragments: of(EXTRA_FRAGMENTS).usize_or(EXTRA_FRAGMENTS, 0)?,
            unheard_of: of(UNHEARD_OF).usize_or(UNHEARD_OF, 1)?,
        })
    }

    pub(crate) fn writes_near(&self) -> bool {
        !self.write.is_empty()
    }

    fn is_near(&self, node: &Node) -> bool {
        self.write.iter().any(|region| region.has(node))
    }

    /// Distance of a node for reads.
    pub(crate) fn distance(&self, node: &Node) -> u32 {
        let matching = self.read.iter().filter(|(region, _)| region.has(node));
        matching
            .map(|(_, priority)| *priority)
            .min()
            .unwrap_or(u32::MAX)
    }

    /// Nodes in order for an upload: up to `write_affinity_node_count` near ones, primaries or
    /// handoffs, then the others.
    pub(crate) fn for_upload(&self, primaries: Vec<Node>, handoffs: Vec<Node>) -> Vec<Node> {
        let wanted = self.write_node_count.for_replicas(primaries.len());
        let all = primaries.into_iter().chain(handoffs);
        let (mut near, mut others) = (Vec::new(), Vec::new());
        for node in all {
            match near.len() < wanted && self.is_near(&node) {
                true => near.push(node),
                false => others.push(node),
            }
        }
        near.extend(others);
        near
    }

    /// Near handoffs to which an upload may have gone, for a deletion.
    pub(crate) fn to_delete_from(&self, primaries: &[Node], handoffs: Vec<Node>) -> Vec<Node> {
        let far = primaries.iter().filter(|node| !self.is_near(node)).count();
        let most = self.write_handoff_delete_count.unwrap_or(far);
        let near = handoffs.into_iter().filter(|node| self.is_near(node));
        near.take(most).collect()
    }
}

fn words<'a>(section: &'a Section, option: &str) -> impl Iterator<Item = &'a str> {
    let text = section.get(option).unwrap_or("");
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// Affinity options of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct Affinities {
    default: Affinity,
    by_policy: BTreeMap<PolicyIndex, Affinity>,
}

impl Affinities {
    pub(crate) fn read(
        app: &Section,
        of_policies: &BTreeMap<PolicyIndex, Section>,
    ) -> Result<Affinities, ConfError> {
        let mut by_policy = BTreeMap::new();
        for (policy, section) in of_policies {
            by_policy.insert(*policy, Affinity::read(app, Some(section))?);
        }
        Ok(Affinities {
            default: Affinity::read(app, None)?,
            by_policy,
        })
    }

    /// The options of a policy; `None` for accounts and containers.
    pub(crate) fn of(&self, policy: Option<PolicyIndex>) -> &Affinity {
        policy
            .and_then(|policy| self.by_policy.get(&policy))
            .unwrap_or(&self.default)
    }
}

/// Recent response times of servers.
#[derive(Debug)]
pub(crate) struct Timings {
    /// Time after which a measurement expires.
    expiry: Duration,
    known: Mutex<HashMap<SocketAddr, (Duration, Instant)>>,
}

impl Timings {
    pub(crate) fn new(expiry: Duration) -> Timings {
        Timings {
            expiry,
            known: Mutex::default(),
        }
    }

    pub(crate) fn note(&self, address: SocketAddr, took: Duration, now: Instant) {
        let mut known = self.known.lock();
        // The number of servers is bounded by the rings.
        known.insert(address, (took, now));
    }

    /// A server's response time in milliseconds; 0 for one without a recent measurement, so that it
    /// is asked and measured.
    pub(crate) fn of(&self, address: SocketAddr, now: Instant) -> u128 {
        let known = self.known.lock();
        match known.get(&address) {
            Some((took, at)) if now.duration_since(*at) < self.expiry => took.as_millis() + 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use cairn_ring::Device;

    use super::*;

    fn node(region: u32, zone: u32, handoff: bool) -> Node {
        let device = Device {
            region,
            zone,
            ..Device::at(region * 10 + zone, ([127, 0, 0, 1], 6200).into())
        };
        Node {
            device: Arc::new(device),
            address: ([127, 0, 0, 1], 6200).into(),
            replication_address: ([127, 0, 0, 1], 6200).into(),
            index: 0,
            handoff,
        }
    }

    fn ids(nodes: &[Node]) -> Vec<u32> {
        nodes.iter().map(|node| node.device.id).collect()
    }

    fn affinity(pairs: &[(&str, &str)], own: &[(&str, &str)]) -> Result<Affinity, ConfError> {
        let app = Section::from_pairs("app:proxy-server", pairs);
        let own = Section::from_pairs("proxy-server:policy:1", own);
        Affinity::read(&app, Some(&own))
    }

    #[test]
    fn near_ones_are_read_first() {
        let options = [
            ("sorting_method", "affinity"),
            ("read_affinity", "r1z1=100, r1=200"),
        ];
        let near = affinity(&options, &[]).unwrap();
        let distances: Vec<u32> = [node(1, 1, false), node(1, 2, false), node(2, 1, false)]
            .iter()
            .map(|node| near.distance(node))
            .collect();
        assert_eq!(distances, [100, 200, u32::MAX]);
        let own = affinity(&options, &[("read_affinity", "r2=1")]).unwrap();
        assert_eq!(own.distance(&node(2, 1, false)), 1);
        assert_eq!(own.sorting, Sorting::Affinity);
    }

    #[test]
    fn near_ones_are_written_first() {
        let near = affinity(&[("write_affinity", "r1")], &[]).unwrap();
        let primaries = vec![node(2, 1, false), node(1, 1, false), node(2, 2, false)];
        let handoffs = vec![node(2, 3, true), node(1, 2, true), node(1, 3, true)];
        let order = near.for_upload(primaries.clone(), handoffs.clone());
        assert_eq!(ids(&order), [11, 12, 13, 21, 22, 23]);
        assert_eq!(
            ids(&near.to_delete_from(&primaries, handoffs.clone())),
            [12, 13]
        );
        let one = [
            ("write_affinity", "r1"),
            ("write_affinity_node_count", "2"),
            ("write_affinity_handoff_delete_count", "1"),
        ];
        let near = affinity(&one, &[]).unwrap();
        let order = near.for_upload(primaries.clone(), handoffs.clone());
        assert_eq!(ids(&order), [11, 12, 21, 22, 23, 13]);
        assert_eq!(ids(&near.to_delete_from(&primaries, handoffs)), [12]);
    }

    #[test]
    fn mistakes_are_told() {
        for (option, value) in [
            ("sorting_method", "random"),
            ("read_affinity", "r1z1"),
            ("read_affinity", "z1=1"),
            ("write_affinity", "r1=100"),
            ("write_affinity_node_count", "some"),
            ("write_affinity_handoff_delete_count", "few"),
        ] {
            let error = affinity(&[(option, value)], &[]).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn the_quickest_first_and_those_not_known() {
        let timings = Timings::new(Duration::from_secs(300));
        let (now, address) = (Instant::now(), ([127, 0, 0, 1], 1).into());
        assert_eq!(timings.of(address, now), 0);
        timings.note(address, Duration::from_millis(7), now);
        assert_eq!(timings.of(address, now), 8);
        assert_eq!(timings.of(address, now + Duration::from_secs(301)), 0);
    }
}
