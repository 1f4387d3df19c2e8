//! The three questions: least cost, most capacity, most throughput, over clusters built from a
//! catalogue.
//!
//! Candidates are all combinations of kinds of nodes and disks, counts and policies. Costs and
//! capacities are sums; throughput has an upper bound by demands, which prunes; the remaining
//! candidates are simulated from the most promising on, so that the first that meets all limits is
//! the answer.

use serde::{Deserialize, Serialize};

use crate::bounds::Demands;
use crate::calibration::Calibration;
use crate::catalogue::{Catalogue, DiskType, NodeType};
use crate::cluster::{Cluster, DiskGroup, Erasure, Network, Node, Processes, Role, Serves};
use crate::error::AdviseError;
use crate::placement::Placement;
use crate::predict::{Prediction, of_outcome, short};
use crate::quantity::Bytes;
use crate::read::{self, within};
use crate::simulate::{Options, run};
use crate::workload::Workload;

pub const FILE: &str = "the limits file";
/// Ring partitions per device of a candidate.
const PARTITIONS_A_DEVICE: f64 = 32.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    LeastCost,
    MostCapacity,
    MostThroughput,
}

/// Limits that an answer must meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(default)]
    pub budget: Option<f64>,
    /// Capacity in bytes of objects.
    #[serde(default)]
    pub capacity: Option<Bytes>,
    /// Operations per second.
    #[serde(default)]
    pub throughput: Option<f64>,
    #[serde(default)]
    pub p95_ms: Option<f64>,
    #[serde(default)]
    pub watts: Option<f64>,
    /// Maximum usable fraction of the disks.
    #[serde(default = "fill")]
    pub fill: f64,
    #[serde(default = "policies")]
    pub policies: Vec<String>,
    #[serde(default = "three")]
    pub zones: u32,
    #[serde(default = "nodes")]
    pub nodes_max: u32,
    /// Maximum number of candidates simulated.
    #[serde(default = "simulations")]
    pub simulations: usize,
}

fn fill() -> f64 {
    0.8
}
fn policies() -> Vec<String> {
    vec!["replicas 3".into()]
}
fn three() -> u32 {
    3
}
fn nodes() -> u32 {
    24
}
fn simulations() -> usize {
    120
}

impl Limits {
    /// Parses limits.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn parse(text: &str) -> Result<Limits, AdviseError> {
        let limits: Limits = read::toml(FILE, text)?;
        for (field, value) in [
            ("budget", limits.budget),
            ("capacity", limits.capacity.map(|bytes| bytes.0)),
            ("throughput", limits.throughput),
            ("p95_ms", limits.p95_ms),
            ("watts", limits.watts),
        ] {
            within(FILE, field, value.unwrap_or(1.0), 1e-6, 1e21)?;
        }
        within(FILE, "fill", limits.fill, 0.01, 1.0)?;
        within(FILE, "zones", limits.zones.into(), 1.0, 1000.0)?;
        within(FILE, "nodes_max", limits.nodes_max.into(), 1.0, 1000.0)?;
        within(FILE, "simulations", limits.simulations as f64, 1.0, 1e5)?;
        limits
            .policies
            .iter()
            .try_for_each(|text| policy(text).map(|_| ()))?;
        Ok(limits)
    }

    fn check_for(&self, question: Question, workload: &Workload) -> Result<(), AdviseError> {
        let missing = |field: &str, is_there: bool| match is_there {
            true => Ok(()),
            false => {
                let remedy = "the question needs it; give it in the limits file";
                Err(AdviseError::field(FILE, field, "missing", remedy))
            }
        };
        match question {
            Question::LeastCost => {
                missing("capacity", self.capacity.is_some())?;
                missing("throughput", self.throughput.is_some())
            }
            Question::MostCapacity => {
                missing("budget", self.budget.is_some())?;
                missing("throughput", self.throughput.is_some())
            }
            Question::MostThroughput => {
                missing("budget", self.budget.is_some())?;
                missing("capacity", self.capacity.is_some())
            }
        }?;
        let file = crate::workload::FILE;
        match workload.rate {
            Some(rate) => {
                let remedy = "give workers instead: throughput is what they reach in a closed loop";
                Err(AdviseError::field(file, "rate", rate, remedy))
            }
            None => Ok(()),
        }
    }
}

/// Parses `replicas 3` or `erasure 4+2`.
fn policy(text: &str) -> Result<(u32, Option<Erasure>), AdviseError> {
    let wrong = || {
        let remedy = "write \"replicas 3\" or \"erasure 4+2\"";
        AdviseError::field(FILE, "policies", format!("\"{text}\""), remedy)
    };
    match text.split_once(' ').ok_or_else(wrong)? {
        ("replicas", count) => Ok((count.parse().map_err(|_| wrong())?, None)),
        ("erasure", scheme) => {
            let (data, parity) = scheme.split_once('+').ok_or_else(wrong)?;
            let data = data.parse().map_err(|_| wrong())?;
            let parity = parity.parse().map_err(|_| wrong())?;
            Ok((3, Some(Erasure { data, parity })))
        }
        _ => Err(wrong()),
    }
}

/// A cluster that could be bought.
#[derive(Clone, Debug, PartialEq)]
struct Candidate {
    cluster: Cluster,
    cost: f64,
    watts: f64,
    capacity: f64,
}

/// A simulated candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    pub cost: f64,
    pub watts: f64,
    /// Capacity in bytes of objects.
    pub capacity: f64,
    pub meets_limits: bool,
    /// It is on the Pareto front: no other candidate costs at most as much with at least its
    /// capacity and throughput.
    pub is_on_front: bool,
    pub prediction: Prediction,
    pub cluster: Cluster,
}

/// A limit, and the answer's relative distance from it: 0.1 is a tenth of headroom.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Margin {
    pub limit: &'static str,
    pub value: f64,
    pub bound: f64,
    pub room: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub question: Question,
    pub currency: String,
    pub candidates: usize,
    /// Number of candidates pruned by bounds.
    pub pruned: usize,
    /// Not all remaining candidates were simulated, because `simulations` was reached.
    pub is_cut_short: bool,
    /// Index of the answer in `simulated`.
    pub pick: Option<usize>,
    /// Margins of the answer, the tightest first.
    pub margins: Vec<Margin>,
    pub simulated: Vec<Simulated>,
    pub validated_on: String,
}

/// Answers a question.
///
/// # Errors
/// A limit that the question needs is missing; or something is outside of what was measured.
pub fn answer(
    question: Question,
    catalogue: &Catalogue,
    workload: &Workload,
    limits: &Limits,
    calibration: &Calibration,
    extrapolate: bool,
) -> Result<Answer, AdviseError> {
    limits.check_for(question, workload)?;
    let mut all = candidates(catalogue, limits)?;
    let count = all.len();
    let need = limits
        .capacity
        .map_or(0.0, |c| c.0)
        .max(workload.stored_bytes());
    all.retain(|c| c.capacity >= need);
    all.retain(|c| limits.budget.is_none_or(|budget| c.cost <= budget));
    all.retain(|c| limits.watts.is_none_or(|watts| c.watts <= watts));
    let mut outside: Vec<String> = Vec::new();
    if !extrapolate {
        let scope = &calibration.scope;
        all.retain(|c| {
            let reasons = scope.outside(&c.cluster, workload);
            let is_inside = reasons.is_empty();
            outside.extend(reasons);
            is_inside
        });
        if all.is_empty() && !outside.is_empty() {
            outside.sort();
            outside.dedup();
            return Err(AdviseError::Outside { reasons: outside });
        }
    }
    let mut bounded = Vec::new();
    for candidate in all {
        let placement = Placement::new(&candidate.cluster)?;
        let demands = Demands::new(&candidate.cluster, workload, calibration, &placement)?;
        let bound = demands.throughput_at_most(calibration, &placement);
        if limits
            .throughput
            .is_none_or(|throughput| bound >= throughput)
        {
            bounded.push((candidate, placement, bound));
        }
    }
    let pruned = count - bounded.len();
    let first = |a: f64, b: f64| a.total_cmp(&b);
    bounded.sort_by(|(a, _, x), (b, _, y)| match question {
        Question::LeastCost => first(a.cost, b.cost),
        Question::MostCapacity => first(b.capacity, a.capacity).then(first(a.cost, b.cost)),
        Question::MostThroughput => first(*y, *x).then(first(a.cost, b.cost)),
    });
    let mut found = Found::default();
    let mut left = bounded.len();
    for (candidate, placement, bound) in &bounded {
        if found.simulated.len() >= limits.simulations || found.is_settled(question, *bound) {
            break;
        }
        left -= 1;
        found.add(
            question,
            simulated(candidate, placement, workload, limits, calibration)?,
        );
    }
    let is_cut_short = left > 0 && found.simulated.len() >= limits.simulations;
    let Found {
        mut simulated,
        pick,
        ..
    } = found;
    mark_front(&mut simulated);
    Ok(Answer {
        question,
        currency: catalogue.currency.clone(),
        candidates: count,
        pruned,
        is_cut_short,
        margins: pick.map_or(Vec::new(), |pick| margins(&simulated[pick], limits)),
        pick,
        validated_on: simulated
            .first()
            .map_or(String::new(), |s| s.prediction.validated_on.clone()),
        simulated,
    })
}

impl Answer {
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The answer as text.
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!(
            "{} candidates, {} ruled out by limits and bounds, {} simulated",
            self.candidates,
            self.pruned,
            self.simulated.len()
        )];
        if self.is_cut_short {
            lines.push("not all that were left were simulated: raise simulations".into());
        }
        let Some(pick) = self.pick.and_then(|pick| self.simulated.get(pick)) else {
            lines.push("no candidate meets the limits".into());
            return lines.join("\n") + "\n";
        };
        lines.push(format!(
            "{}: {} {}, {} of objects, {} W",
            pick.prediction.cluster,
            short(pick.cost),
            self.currency,
            Bytes(pick.capacity),
            short(pick.watts)
        ));
        for margin in &self.margins {
            let shown = |value: f64| match margin.limit {
                "capacity" => Bytes(value).to_string(),
                _ => short(value),
            };
            lines.push(format!(
                "  {}: {} of {}, {:.1} % of room",
                margin.limit,
                shown(margin.value),
                shown(margin.bound),
                margin.room * 100.0
            ));
        }
        lines.join("\n") + "\n" + &pick.prediction.to_text()
    }
}

/// Candidates simulated so far, and the best.
#[derive(Default)]
struct Found {
    simulated: Vec<Simulated>,
    pick: Option<usize>,
    since_pick: usize,
}

/// Number of neighbours of the answer that are simulated for the front.
const NEIGHBOURS_MAX: usize = 24;

impl Found {
    fn add(&mut self, question: Question, it: Simulated) {
        self.since_pick += usize::from(self.pick.is_some());
        let throughput = it.prediction.throughput.value;
        let is_better = it.meets_limits
            && match self.pick.map(|pick| &self.simulated[pick]) {
                None => true,
                Some(best) => {
                    question == Question::MostThroughput
                        && throughput > best.prediction.throughput.value
                }
            };
        if is_better {
            (self.pick, self.since_pick) = (Some(self.simulated.len()), 0);
        }
        self.simulated.push(it);
    }

    /// Can no later candidate be the answer, and does the front have enough neighbours?
    fn is_settled(&self, question: Question, bound: f64) -> bool {
        let Some(best) = self.pick.map(|pick| &self.simulated[pick]) else {
            return false;
        };
        let cannot =
            question != Question::MostThroughput || bound <= best.prediction.throughput.value;
        cannot && self.since_pick >= NEIGHBOURS_MAX
    }
}

fn simulated(
    candidate: &Candidate,
    placement: &Placement,
    workload: &Workload,
    limits: &Limits,
    calibration: &Calibration,
) -> Result<Simulated, AdviseError> {
    let options = Options {
        operations: 4000,
        warm_up: 800,
        ..Options::default()
    };
    let cluster = &candidate.cluster;
    let outcome = run(cluster, workload, calibration, placement, &options)?;
    let outside = calibration.scope.outside(cluster, workload);
    let prediction = of_outcome(cluster, workload, calibration, &outcome, outside);
    let is_fast = limits
        .throughput
        .is_none_or(|t| prediction.throughput.value >= t);
    let is_quick = limits
        .p95_ms
        .is_none_or(|p95| prediction.p95_ms.value <= p95);
    Ok(Simulated {
        cost: candidate.cost,
        watts: candidate.watts,
        capacity: candidate.capacity,
        meets_limits: is_fast && is_quick,
        is_on_front: false,
        prediction,
        cluster: cluster.clone(),
    })
}

fn mark_front(simulated: &mut [Simulated]) {
    let key = |s: &Simulated| [-s.cost, s.capacity, s.prediction.throughput.value];
    let keys: Vec<[f64; 3]> = simulated.iter().map(key).collect();
    for (index, it) in simulated.iter_mut().enumerate() {
        let own = keys[index];
        it.is_on_front = !keys.iter().any(|other| {
            let as_good = other.iter().zip(&own).all(|(o, s)| o >= s);
            as_good && other.iter().zip(&own).any(|(o, s)| o > s)
        });
    }
}

fn margins(pick: &Simulated, limits: &Limits) -> Vec<Margin> {
    let mut margins = Vec::new();
    let mut at_most = |limit, value: f64, bound: Option<f64>| {
        margins.extend(bound.map(|bound| Margin {
            limit,
            value,
            bound,
            room: 1.0 - value / bound,
        }));
    };
    at_most("budget", pick.cost, limits.budget);
    at_most("watts", pick.watts, limits.watts);
    at_most("p95_ms", pick.prediction.p95_ms.value, limits.p95_ms);
    let mut at_least = |limit, value: f64, bound: Option<f64>| {
        margins.extend(bound.map(|bound| Margin {
            limit,
            value,
            bound,
            room: value / bound - 1.0,
        }));
    };
    at_least("capacity", pick.capacity, limits.capacity.map(|c| c.0));
    at_least(
        "throughput",
        pick.prediction.throughput.value,
        limits.throughput,
    );
    margins.sort_by(|a, b| a.room.total_cmp(&b.room));
    margins
}

/// Counts to try: dense for small numbers.
fn counts(most: u32) -> Vec<u32> {
    let all = [
        1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000,
    ];
    all.into_iter().filter(|count| *count <= most).collect()
}

fn candidates(catalogue: &Catalogue, limits: &Limits) -> Result<Vec<Candidate>, AdviseError> {
    let mut found = Vec::new();
    let storage = catalogue
        .node
        .iter()
        .filter(|n| n.roles.contains(&Role::Storage));
    let fronts: Vec<&NodeType> = (catalogue.node.iter())
        .filter(|n| n.roles.contains(&Role::Proxy) && !n.roles.contains(&Role::Storage))
        .collect();
    for node in storage {
        let is_sumo = node.roles.contains(&Role::Proxy);
        for disk in catalogue
            .disk
            .iter()
            .filter(|d| node.disks.contains(&d.name))
        {
            let mut filled = [node.slots, node.slots.div_ceil(2), node.slots.div_ceil(4)].to_vec();
            filled.dedup();
            for disks in filled {
                for count in counts(limits.nodes_max) {
                    for text in &limits.policies {
                        let policy = policy(text)?;
                        let made = |front: Option<(&NodeType, u32)>| {
                            candidate((node, count), (disk, disks), front, policy, limits)
                        };
                        if is_sumo {
                            found.extend(made(None));
                            continue;
                        }
                        for front in &fronts {
                            let proxies = counts(limits.nodes_max.saturating_sub(count).min(count));
                            found
                                .extend(proxies.into_iter().filter_map(|p| made(Some((front, p)))));
                        }
                    }
                }
            }
        }
    }
    Ok(found)
}

/// Makes a candidate; `None` if the rings' rules cannot be met.
fn candidate(
    (node, count): (&NodeType, u32),
    (disk, disks): (&DiskType, u32),
    front: Option<(&NodeType, u32)>,
    (replicas, erasure): (u32, Option<Erasure>),
    limits: &Limits,
) -> Option<Candidate> {
    let zones = limits.zones.min(count);
    let made = |kind: &NodeType, count, disk| Node {
        name: kind.name.clone(),
        count,
        roles: kind.roles.clone(),
        region: 1,
        zones,
        zone: 1,
        cores: kind.cores,
        core_speed: kind.core_speed,
        memory: kind.memory,
        nic: kind.nic,
        disk,
    };
    let group = DiskGroup {
        medium: disk.medium.clone(),
        count: disks,
        devices: 1,
        bytes: disk.bytes,
        weight: 100.0,
        serves: Serves::All,
        device_zones: false,
    };
    let mut nodes = vec![made(node, count, vec![group])];
    let mut name = format!("{count} {} with {disks} {}", node.name, disk.name);
    let each = f64::from(count);
    let mut cost = each * (node.price + f64::from(disks) * disk.price);
    let mut watts = each * (node.watts + f64::from(disks) * disk.watts);
    if let Some((kind, proxies)) = front {
        nodes.push(made(kind, proxies, Vec::new()));
        name = format!("{name}, {proxies} {}", kind.name);
        cost += f64::from(proxies) * kind.price;
        watts += f64::from(proxies) * kind.watts;
    }
    let devices = f64::from(count * disks);
    let part_power = (devices * PARTITIONS_A_DEVICE)
        .log2()
        .ceil()
        .clamp(6.0, 13.0) as u32;
    let cluster = Cluster {
        name,
        replicas,
        erasure,
        part_power,
        processes: Processes::One,
        network: Network::default(),
        node: nodes,
    };
    // A node holds at most one replica, unless the policy has a lower requirement.
    let rows = cluster.object_rows();
    if rows > count * disks || cluster.check().is_err() || (erasure.is_none() && replicas > count) {
        return None;
    }
    Some(Candidate {
        cost,
        watts,
        capacity: cluster.usable_bytes(limits.fill),
        cluster,
    })
}

#[cfg(test)]
mod tests;
