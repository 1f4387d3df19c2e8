//! Common model of a run for reports and comparisons. Our own runs and those imported from
//! COSBench, ssbench or swift-bench differ only in unknown values, which are absent, never zero.
//!
//! Times are microseconds, rates are per second, sizes are bytes.

use serde::{Deserialize, Serialize};

use crate::latencies::Latencies;

/// One run of a workload on a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub name: String,
    pub tool: Tool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Start time as written by the tool: UTC for ours and ssbench's, local time for COSBench's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    pub state: State,
    /// Conditions that hold (`--fail-if`, and many failures), one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<String>,
    /// The measured plan; `None` for other tools, and if not recorded.
    #[serde(skip)]
    pub plan: Option<Box<crate::plan::Plan>>,
    /// Details needed to repeat or to assess the run, as text: host, seed, ceiling, versions.
    #[serde(default)]
    pub facts: Vec<Fact>,
    /// Warnings that a reader must know before relying on a number.
    #[serde(default)]
    pub notes: Vec<String>,
    #[serde(default)]
    pub stages: Vec<Stage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    pub name: String,
    pub value: String,
}

impl Fact {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Fact {
        Fact {
            name: name.into(),
            value: value.into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    Lab,
    CosBench,
    SsBench,
    SwiftBench,
}

impl Tool {
    pub fn title(self) -> &'static str {
        match self {
            Tool::Lab => "cairn lab",
            Tool::CosBench => "COSBench",
            Tool::SsBench => "ssbench",
            Tool::SwiftBench => "swift-bench",
        }
    }
}

/// State of a run or a stage, in COSBench's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Waiting,
    Running,
    Completed,
    /// It ran to its end with more failures than allowed.
    Failed,
    /// It never began, because an earlier stage failed.
    Aborted,
    /// Ended by an error.
    Terminated,
    /// Ended by a user.
    Cancelled,
    /// Its process died: results until then are shown.
    Interrupted,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Running => "running",
            State::Completed => "completed",
            State::Failed => "failed",
            State::Aborted => "aborted",
            State::Terminated => "terminated",
            State::Cancelled => "cancelled",
            State::Interrupted => "interrupted",
        }
    }

    /// Parses COSBench's name of a state; a transient state counts as running.
    pub fn of_name(name: &str) -> State {
        match name {
            "completed" | "finished" => State::Completed,
            "failed" => State::Failed,
            "aborted" => State::Aborted,
            "terminated" => State::Terminated,
            "cancelled" => State::Cancelled,
            "interrupted" => State::Interrupted,
            "waiting" | "queuing" => State::Waiting,
            _ => State::Running,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// COSBench's id, `s2-main`; unique within the run.
    pub id: String,
    pub state: State,
    /// Its states with their times.
    #[serde(default)]
    pub history: Vec<Moment>,
    /// Total number of workers of its works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Offered rate of an open loop, operations per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_rate: Option<f64>,
    /// Measured time without ramps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default)]
    pub operations: Vec<Operation>,
    #[serde(default)]
    pub timeline: Vec<Timeline>,
    #[serde(default)]
    pub worst: Vec<WorstRequest>,
    #[serde(default)]
    pub resources: Vec<Resource>,
    #[serde(default)]
    pub distances: Vec<Distances>,
}

/// A stage's id without its number, by which stages of different runs are matched.
pub fn unnumbered(id: &str) -> &str {
    let named = id.strip_prefix('s').and_then(|rest| {
        let (number, name) = rest.split_once('-')?;
        let numbered = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        numbered.then_some(name)
    });
    named.unwrap_or(id)
}

impl Stage {
    pub fn new(id: impl Into<String>, state: State) -> Stage {
        Stage {
            id: id.into(),
            state,
            history: Vec::new(),
            workers: None,
            offered_rate: None,
            seconds: None,
            operations: Vec::new(),
            timeline: Vec::new(),
            worst: Vec::new(),
            resources: Vec::new(),
            distances: Vec::new(),
        }
    }

    /// The operations themselves, without size classes, which are included in their operations.
    pub fn whole_operations(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(|o| o.size_class.is_none())
    }

    /// Preparation and cleanup, which are COSBench's special works, not measurements.
    pub fn is_special(&self) -> bool {
        !self.operations.is_empty() && self.operations.iter().all(Operation::is_special)
    }

    /// An open loop of it could not keep up with its rate.
    pub fn is_overloaded(&self) -> bool {
        let mut open_loops = self.whole_operations().filter_map(|o| o.open_loop);
        open_loops.any(|open| open.overloaded)
    }

    pub fn rate(&self) -> f64 {
        self.whole_operations().filter_map(|o| o.rate).sum()
    }

    pub fn bandwidth(&self) -> f64 {
        self.whole_operations().filter_map(|o| o.bandwidth).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub state: String,
    pub at: String,
}

/// One kind of operation of one work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Name: `read`; for special works COSBench's double name, `prepare-write`.
    pub name: String,
    /// Kind of the work's operation: `read`, `prepare`.
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<String>,
    /// If present, this row is a part of the row without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_class: Option<String>,
    /// Number of successful operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    pub failed: Failures,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Successful operations per second; in an open loop those that ended within the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Bytes of successful operations per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
    /// Latency to the last byte; in an open loop from the intended start.
    pub latency: Latency,
    /// Latency to the first byte of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<Latency>,
    /// COSBench's processing time: the mean without the transfer of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processing_us: Option<f64>,
    #[serde(default)]
    pub errors: Vec<ErrorCount>,
    /// Its rate was offered independently of the store.
    #[serde(default)]
    pub is_open_loop: bool,
    /// Offered and achieved rate, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_loop: Option<crate::record::OpenLoop>,
}

impl Operation {
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Operation {
        Operation {
            name: name.into(),
            kind: kind.into(),
            work: None,
            size_class: None,
            done: None,
            failed: Failures::Unknown,
            bytes: None,
            rate: None,
            bandwidth: None,
            latency: Latency::default(),
            first_byte: None,
            processing_us: None,
            errors: Vec::new(),
            is_open_loop: false,
            open_loop: None,
        }
    }

    pub fn is_special(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "init" | "prepare" | "cleanup" | "dispose" | "delay"
        )
    }

    /// The share of successful operations, if both counts are known.
    pub fn success(&self) -> Option<f64> {
        let (done, failed) = (self.done?, self.failed.count()?);
        let all = done + failed;
        (all > 0).then(|| done as f64 / all as f64)
    }
}

/// Number of failed operations, with the certainty of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failures {
    Counted(u64),
    /// Computed from a success ratio rounded to a hundredth of a percent.
    Estimated(u64),
    Unknown,
}

impl Failures {
    pub fn count(self) -> Option<u64> {
        match self {
            Failures::Counted(count) | Failures::Estimated(count) => Some(count),
            Failures::Unknown => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    pub kind: String,
    pub count: u64,
}

/// A distribution of response times, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
    /// Quantiles in ascending order.
    #[serde(default)]
    pub quantiles: Vec<Quantile>,
    /// The whole curve in ascending order; empty if the tool recorded none.
    #[serde(default)]
    pub curve: Vec<Quantile>,
    /// Width of the tool's buckets, which limits the precision of a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_us: Option<f64>,
    /// The complete histogram of our own runs, for merging.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Latencies>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantile {
    /// Quantile, 0 to 1.
    pub quantile: f64,
    pub us: f64,
}

impl Latency {
    pub fn is_empty(&self) -> bool {
        self.mean_us.is_none() && self.quantiles.is_empty() && self.curve.is_empty()
    }

    /// The value of a quantile reported by the tool, or from its curve.
    pub fn at(&self, quantile: f64) -> Option<f64> {
        let given = self
            .quantiles
            .iter()
            .find(|q| (q.quantile - quantile).abs() < 1e-9);
        if let Some(given) = given {
            return Some(given.us);
        }
        self.curve
            .iter()
            .find(|q| q.quantile >= quantile)
            .map(|q| q.us)
    }

    /// The points of a distribution plot: the curve, or else the few known quantiles.
    pub fn points(&self) -> &[Quantile] {
        if self.curve.is_empty() {
            &self.quantiles
        } else {
            &self.curve
        }
    }
}

/// One operation over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    pub operation: String,
    pub ticks: Vec<Tick>,
}

/// Figures of the interval that ended at `second` of the stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    pub second: f64,
    pub interval: f64,
    pub done: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorstRequest {
    pub operation: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_class: Option<String>,
    pub us: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<f64>,
    /// The store's own id of the request, for its logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
}

/// One quantity of one host or process over a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    /// Host, process or device, for the legend.
    pub of: String,
    /// Quantity with its unit, `CPU (cores)`; each has a chart.
    pub quantity: String,
    /// Points: second of the stage, and value.
    pub points: Vec<(f64, f64)>,
}

/// Distances between successive disk I/Os of one device, in blocks of 512 bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distances {
    pub device: String,
    /// Lower bound of each bucket in blocks, and number of I/Os. The first bucket has those that
    /// began at the end of the last.
    pub buckets: Vec<(u64, u64)>,
    /// Numbers of distances above 125,000 and above 2,500,000 blocks, which published studies count
    /// as distant.
    pub beyond_125k: u64,
    pub beyond_2500k: u64,
}

impl Distances {
    pub fn total(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}
