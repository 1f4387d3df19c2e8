//! What every report and comparison reads: one run, whoever made it. A run of the lab's own and
//! one imported from COSBench, ssbench or swift-bench differ only in what they do not know, and
//! what is not known is absent, never zero.
//!
//! Times are microseconds, rates are per second, sizes are bytes.

use serde::{Deserialize, Serialize};

use crate::latencies::Latencies;

/// One workload on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub name: String,
    pub tool: Tool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// As the tool wrote it: UTC for ours and ssbench's, the machine's own time for COSBench's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    pub state: State,
    /// Conditions that hold (`--fail-if`, and many failures), in a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<String>,
    /// Settings that were measured; `None` of other tools, and where it was not recorded.
    #[serde(skip)]
    pub plan: Option<Box<crate::plan::Plan>>,
    /// What is needed to repeat or to judge the run, in words: host, seed, ceiling, versions.
    #[serde(default)]
    pub facts: Vec<Fact>,
    /// What a reader must know before trusting a number.
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

/// How far a run or a stage came, in COSBench's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Waiting,
    Running,
    Completed,
    /// It ran to its end, and more of it failed than it may.
    Failed,
    /// It never began, because an earlier stage failed.
    Aborted,
    /// An error ended it.
    Terminated,
    /// A person ended it.
    Cancelled,
    /// Its process died: what was written until then is shown.
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

    /// COSBench's name of a state; one that is only passed through counts as running.
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
    /// COSBench's: `s2-main`; unique within the run.
    pub id: String,
    pub state: State,
    /// Every state it passed, and when.
    #[serde(default)]
    pub history: Vec<Moment>,
    /// All of its works' workers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Operations a second that an open loop offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_rate: Option<f64>,
    /// How long was measured, ramps left out.
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

/// A stage's id without its number: what stages are matched by between runs.
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

    /// The operations themselves: a size class repeats what its operation already counts.
    pub fn whole_operations(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(|o| o.size_class.is_none())
    }

    /// Preparing and clearing away is no measurement: COSBench's special works.
    pub fn is_special(&self) -> bool {
        !self.operations.is_empty() && self.operations.iter().all(Operation::is_special)
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
    /// `read`; of special works COSBench's double name, `prepare-write`.
    pub name: String,
    /// The kind of work: `read`, `prepare`.
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<String>,
    /// When present this row is a part of the row without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_class: Option<String>,
    /// Operations that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    pub failed: Failures,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Succeeded operations a second; in an open loop those that ended within the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Their bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
    /// To the last byte; in an open loop from the intended start.
    pub latency: Latency,
    /// To the first byte of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<Latency>,
    /// What COSBench calls processing time: the mean without the transfer of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processing_us: Option<f64>,
    #[serde(default)]
    pub errors: Vec<ErrorCount>,
    /// It was offered at a rate, whatever the store did.
    #[serde(default)]
    pub is_open_loop: bool,
    /// Offered and achieved, where it was recorded.
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

    /// The share of operations that succeeded, when both counts are known.
    pub fn success(&self) -> Option<f64> {
        let (done, failed) = (self.done?, self.failed.count()?);
        let all = done + failed;
        (all > 0).then(|| done as f64 / all as f64)
    }
}

/// How many operations failed, and how well that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failures {
    Counted(u64),
    /// From a success ratio that was rounded to a hundredth of a percent.
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
    /// In rising order of the quantile.
    #[serde(default)]
    pub quantiles: Vec<Quantile>,
    /// The whole curve, in rising order; empty where the tool kept none.
    #[serde(default)]
    pub curve: Vec<Quantile>,
    /// How wide the tool's buckets are: a value says no more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_us: Option<f64>,
    /// Of our own runs all of it, to be merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Latencies>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantile {
    /// 0 to 1.
    pub quantile: f64,
    pub us: f64,
}

impl Latency {
    pub fn is_empty(&self) -> bool {
        self.mean_us.is_none() && self.quantiles.is_empty() && self.curve.is_empty()
    }

    /// The value of a quantile that the tool itself gave, or of its curve.
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

    /// What a distribution plot draws: the curve, else the few quantiles there are.
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

/// What happened in the interval that ended at `second` of the stage.
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
    /// The store's own name of the request, for its logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
}

/// One quantity of one host or process over a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    /// Host, process or device: the legend.
    pub of: String,
    /// What is measured, with its unit: `CPU (cores)`; one chart each.
    pub quantity: String,
    /// Second of the stage, value.
    pub points: Vec<(f64, f64)>,
}

/// How far apart successive disk I/Os of one device were, in blocks of 512 bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distances {
    pub device: String,
    /// From so many blocks up to the next bucket: how many I/Os. The first holds those that
    /// began where the last ended.
    pub buckets: Vec<(u64, u64)>,
    /// More than 125,000 and 2,500,000 blocks apart: what published studies count as distant.
    pub beyond_125k: u64,
    pub beyond_2500k: u64,
}

impl Distances {
    pub fn total(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}
