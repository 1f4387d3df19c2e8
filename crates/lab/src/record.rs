//! What a run leaves: a folder, and the types of the files in it.
//!
//! ```text
//! RUN/run.json            [`RunMeta`]: what, where, when, with what, how it ended; the ceiling
//! RUN/plan.json           the [`Plan`](crate::plan::Plan) as it was run; passwords taken out
//! RUN/workload.EXT        the workload file, byte for byte; its passwords are its owner's
//! RUN/stages.json         [`StageResult`] of every stage that has ended: one array, rewritten as
//!                         a whole after each stage
//! RUN/timeline.ndjson     a [`Sample`] a line, written as the run goes on
//! RUN/resources.ndjson    a [`ResourceSample`] a line, written as the run goes on
//! ```
//!
//! Reports add files of their own beside these; none of these is ever changed by them. A run that
//! was cut short leaves `run.json` with the state `running`, and whole lines but the last.
//! Times are seconds since 1970 (`f64`), latencies nanoseconds, sizes bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::latencies::Latencies;
use crate::plan::{OperationKind, WorkKind};

/// The paths of a run's files.
#[derive(Debug, Clone)]
pub struct RunFolder {
    root: PathBuf,
}

impl RunFolder {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn run(&self) -> PathBuf {
        self.root.join("run.json")
    }

    pub fn plan(&self) -> PathBuf {
        self.root.join("plan.json")
    }

    pub fn stages(&self) -> PathBuf {
        self.root.join("stages.json")
    }

    pub fn timeline(&self) -> PathBuf {
        self.root.join("timeline.ndjson")
    }

    pub fn resources(&self) -> PathBuf {
        self.root.join("resources.ndjson")
    }

    /// The workload as given; `extension` is that of the file it came from.
    pub fn workload(&self, extension: &str) -> PathBuf {
        self.root.join(format!("workload.{extension}"))
    }
}

/// How a run, a stage or a work ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    #[default]
    Running,
    Completed,
    /// More failures than its `afr` accepts, or the target could not be used; told in `message`.
    Failed,
    /// Somebody ended it.
    Cancelled,
}

/// `run.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunMeta {
    /// Of this layout; 1.
    pub version: u32,
    /// Unique; also the folder's name by default: `20261122T010203-name`.
    pub id: String,
    pub name: String,
    pub description: String,
    /// `cosbench`, `ssbench`, `swift-bench`, `lab`.
    pub format: String,
    pub state: State,
    /// Why it failed; empty otherwise.
    pub message: String,
    pub started: f64,
    pub ended: Option<f64>,
    pub seed: u64,
    /// Hash of the plan without names, seed and store: runs that share it measured the same thing.
    /// Empty in runs of older programs.
    pub plan_digest: String,
    /// The store: kind and URL as used, without secrets: `swift http://127.0.0.1:8080/v1/AUTH_test`.
    pub target: String,
    /// What the store says it is (`Server` header or the like); empty when it does not.
    pub server: String,
    /// The command line, without secrets.
    pub command: Vec<String>,
    /// Of the program that made it.
    pub lab_version: String,
    pub drivers: Vec<DriverMeta>,
    /// What the generator reaches without a store; on the first driver.
    pub ceiling: Option<Ceiling>,
    /// Conditions of `--fail-if` that hold, in a sentence each.
    pub broken: Vec<String>,
    /// Things a reader should know: a driver that died, a trigger passed over, tracepoints not
    /// permitted.
    pub notes: Vec<String>,
}

/// A host that drives load.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverMeta {
    pub name: String,
    pub address: String,
    pub host: HostMeta,
    /// What must be added to its clock to get the controller's, measured at the start, in seconds;
    /// and half the round trip in which it was measured, which bounds its error.
    pub clock_offset: f64,
    pub clock_error: f64,
    /// When it was lost, and why.
    pub lost: Option<Loss>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Loss {
    pub at: f64,
    pub reason: String,
}

/// Facts of a machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostMeta {
    pub name: String,
    pub kernel: String,
    pub cpu: String,
    pub cores: u32,
    pub memory_bytes: u64,
}

/// How fast the generator is with full statistics and no store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ceiling {
    pub ops_per_second: f64,
    pub threads: u32,
    /// How long it was measured.
    pub seconds: f64,
}

/// An element of `stages.json`. A stage with a knee search leaves one per step
/// (`main@64` and so on; `swept` then has `workers`).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StageResult {
    /// Number in the plan, from 1.
    pub number: u32,
    pub name: String,
    pub state: State,
    pub message: String,
    pub started: f64,
    pub ended: f64,
    pub swept: BTreeMap<String, String>,
    pub works: Vec<WorkResult>,
    /// COSBench's `Detailed Status`: what happened when, in order.
    pub history: Vec<Event>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    pub at: f64,
    /// `waiting`, `authing`, `running`, `closing`, `completed`, `failed`, `cancelled`, …
    pub what: String,
}

/// What came of a work, merged exactly over threads and drivers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkResult {
    pub name: String,
    pub kind: WorkKind,
    pub workers: u32,
    /// Open loop: what was asked for, operations a second.
    pub rate: Option<f64>,
    /// The counted time in seconds: between ramp-up and ramp-down. Rates are over this.
    pub seconds: f64,
    /// Per operation (in the plan's order) and size class (smallest first). Sums over classes give
    /// the operation.
    pub operations: Vec<OperationResult>,
    /// It ended before its runtime since it was steady; since when, counted from the start.
    pub steady_after: Option<f64>,
}

impl WorkResult {
    /// An open loop's offered and achieved rate, and how late requests began. `None` in a closed
    /// loop, and of runs that did not record it.
    pub fn open_loop(&self) -> Option<OpenLoop> {
        self.rate?;
        OpenLoop::of(&self.operations.iter().collect::<Vec<_>>(), self.seconds)
    }
}

/// Below this part of the offered rate an open loop has not kept up, if requests began late too.
const KEPT_UP_MIN: f64 = 0.98;
/// A queue that most requests wait in for longer than this is no chance.
const MEDIAN_DELAY_MAX_NS: u64 = 10_000_000;
/// A request that began later than this after it was due was late.
const LATE_NS: u64 = 1_000_000;

/// How an open loop fared: rates a second, delays from due time to actual start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenLoop {
    /// Requests that were due.
    pub offered: f64,
    /// Successes that ended.
    pub achieved: f64,
    /// Part of the requests that began more than a millisecond late.
    pub late: f64,
    pub delay_p50_ns: u64,
    pub delay_p99_ns: u64,
    pub delay_max_ns: u64,
    /// The store (or the workers it was given) could not keep up with what was offered: the queue
    /// grew, and latencies tell of the length of the run.
    pub overloaded: bool,
}

impl OpenLoop {
    /// Figures of parts of one work, `seconds` long.
    pub fn of(parts: &[&OperationResult], seconds: f64) -> Option<Self> {
        if seconds <= 0.0 || parts.iter().all(|part| part.ended.is_none()) {
            return None;
        }
        let mut delay = Latencies::new();
        let (mut due, mut ended) = (0, 0);
        for part in parts {
            due += part.ops + part.failed();
            ended += part.ended.unwrap_or(0);
            delay.merge(&part.delay);
        }
        let late: u64 = delay
            .counts()
            .into_iter()
            .filter(|(ns, _)| *ns > LATE_NS)
            .map(|(_, count)| count)
            .sum();
        let (offered, achieved) = (due as f64 / seconds, ended as f64 / seconds);
        let delay_p50_ns = delay.percentile(50.0);
        Some(Self {
            offered,
            achieved,
            late: late as f64 / delay.count().max(1) as f64,
            delay_p50_ns,
            delay_p99_ns: delay.percentile(99.0),
            delay_max_ns: delay.max(),
            overloaded: achieved < KEPT_UP_MIN * offered && delay_p50_ns > MEDIAN_DELAY_MAX_NS,
        })
    }
}

/// Statistics of one operation and size class.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationResult {
    /// Which operation of the work, from 0: two may have the same name.
    pub index: u32,
    /// COSBench's `Op-Name`.
    pub name: String,
    pub kind: OperationKind,
    /// As the workload names it, or one decade of sizes: `0`, `<1KB`, `<10KB`, … `>=1GB`.
    pub size_class: String,
    /// Succeeded within the counted time, and the bytes they moved.
    pub ops: u64,
    pub bytes: u64,
    /// Failed within the counted time, by kind. `ops` and the latencies do not hold these.
    pub errors: BTreeMap<ErrorKind, u64>,
    /// Reads whose content was checked; one that is wrong is an error `integrity`.
    pub checked: u64,
    /// Start (open loop: due time) to the first byte of the answer's body, or to its head when it
    /// has none; of successes.
    pub first_byte: Latencies,
    /// Start (open loop: due time) to the last byte.
    pub last_byte: Latencies,
    /// Open loop: the actual start to the last byte, without the wait. Empty in a closed loop.
    pub service: Latencies,
    /// Open loop: successes that *ended* within the counted time, whenever they were due, and
    /// their bytes: what the store achieved. `ops` are those that were due within it. `None` in a
    /// closed loop.
    pub ended: Option<u64>,
    pub ended_bytes: u64,
    /// Open loop: due time to actual start: how late requests began since all workers were busy.
    pub delay: Latencies,
    /// The slowest that succeeded, slowest first. (COSBench's `Avg-ProcTime` is the mean of
    /// `service`, or of `last_byte` where that is empty.)
    pub worst: Vec<WorstRequest>,
    /// The first that failed.
    pub failures: Vec<WorstRequest>,
}

impl OperationResult {
    /// The size class, where the workload names it; a decade of sizes is no name.
    pub fn named_class(&self) -> Option<&str> {
        let class = self.size_class.as_str();
        let is_decade = class.is_empty() || class == "0" || class.starts_with(['<', '>']);
        (!is_decade).then_some(class)
    }

    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Successes and bytes that rates are made of: in an open loop what ended within the counted
    /// time, since what was only due within it is what was offered.
    pub fn achieved(&self) -> (u64, u64) {
        match self.ended {
            Some(ended) => (ended, self.ended_bytes),
            None => (self.ops, self.bytes),
        }
    }

    /// Adds what another thread or driver has seen of the same operation and class.
    pub fn merge(&mut self, other: &Self) {
        if let Some(ended) = other.ended {
            self.ended = Some(self.ended.unwrap_or(0) + ended);
        }
        self.ended_bytes += other.ended_bytes;
        self.delay.merge(&other.delay);
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.checked += other.checked;
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        self.first_byte.merge(&other.first_byte);
        self.last_byte.merge(&other.last_byte);
        self.service.merge(&other.service);
        self.worst.extend(other.worst.iter().cloned());
        keep_worst(&mut self.worst);
        let room = WORST_KEPT.saturating_sub(self.failures.len());
        self.failures
            .extend(other.failures.iter().take(room).cloned());
    }
}

/// How many requests a table of the worst has.
pub const WORST_KEPT: usize = 20;

/// Sorts the slowest first and drops what no table shows.
pub fn keep_worst(worst: &mut Vec<WorstRequest>) {
    worst.sort_by_key(|request| std::cmp::Reverse(request.last_byte_ns));
    worst.truncate(WORST_KEPT);
}

/// Why an operation failed; as text `connect`, `http 503`, `timeout`, `integrity`, …
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ErrorKind {
    /// The store answered with this status.
    Status(u16),
    Connect,
    /// The connection ended within an answer or a request.
    Closed,
    Timeout,
    /// Not what the protocol allows.
    Protocol,
    /// The content read is not what was written.
    Integrity,
    /// Anything else, in few words that do not differ from one request to the next.
    Other(String),
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "http {status}"),
            Self::Connect => f.write_str("connect"),
            Self::Closed => f.write_str("closed"),
            Self::Timeout => f.write_str("timeout"),
            Self::Protocol => f.write_str("protocol"),
            Self::Integrity => f.write_str("integrity"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl From<String> for ErrorKind {
    fn from(text: String) -> Self {
        let status = text
            .strip_prefix("http ")
            .and_then(|status| status.parse().ok());
        match (status, text.as_str()) {
            (Some(status), _) => Self::Status(status),
            (None, "connect") => Self::Connect,
            (None, "closed") => Self::Closed,
            (None, "timeout") => Self::Timeout,
            (None, "protocol") => Self::Protocol,
            (None, "integrity") => Self::Integrity,
            (None, _) => Self::Other(text),
        }
    }
}

impl OperationSample {
    /// Name and size class: several operations of a mix may have the same name.
    pub fn title(&self) -> String {
        match self.size_class.as_str() {
            "" => self.name.clone(),
            class => format!("{} {class}", self.name),
        }
    }
}

impl From<ErrorKind> for String {
    fn from(kind: ErrorKind) -> Self {
        kind.to_string()
    }
}

/// One of the slowest requests, or of the first that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorstRequest {
    pub at: f64,
    pub driver: String,
    pub worker: u32,
    pub container: String,
    pub object: String,
    pub bytes: u64,
    pub first_byte_ns: u64,
    pub last_byte_ns: u64,
    /// `X-Trans-Id`, `X-Amz-Request-Id`; empty when the store gave none.
    pub transaction: String,
    /// Set when it failed.
    pub error: Option<ErrorKind>,
}

/// Which part of a work a sample is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Rampup,
    #[default]
    Counted,
    Rampdown,
}

/// A line of `timeline.ndjson`: one interval of one work, over all drivers. Also what is shown
/// live.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// As in [`StageResult`].
    pub stage: String,
    pub work: String,
    /// The end of the interval.
    pub at: f64,
    /// Its length.
    pub seconds: f64,
    pub phase: Phase,
    /// Part of the work that is done, 0 to 1, by time, operations or bytes, whichever is further.
    pub progress: f64,
    /// Seconds left, when that can be told.
    pub left: Option<f64>,
    /// Drivers that reported in this interval.
    pub drivers: u32,
    /// One per operation of the plan that had any.
    pub operations: Vec<OperationSample>,
}

/// Part of a [`Sample`]: latencies are to the last byte.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationSample {
    pub name: String,
    pub kind: OperationKind,
    /// As the workload names it; empty where it does not, or where there are several.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub size_class: String,
    pub ops: u64,
    pub bytes: u64,
    pub errors: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// A line of `resources.ndjson`: what one host did in one interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceSample {
    pub host: String,
    pub stage: String,
    pub at: f64,
    pub seconds: f64,
    /// Cores in use; their sum is at most the host's cores.
    pub cpu: CpuSample,
    pub memory_used_bytes: u64,
    pub memory_cached_bytes: u64,
    /// By interface; the loopback too.
    pub network: BTreeMap<String, NetworkSample>,
    /// By whole device, not partition.
    pub disks: BTreeMap<String, DiskSample>,
    /// Processes of interest: the lab itself and those named on the command line.
    pub processes: Vec<ProcessSample>,
    /// By device, when the kernel's block tracepoints are permitted: distances between successive
    /// I/Os of this interval.
    pub distances: BTreeMap<String, DistanceSample>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuSample {
    pub user: f64,
    pub system: f64,
    pub iowait: f64,
    /// Taken by the hypervisor.
    pub steal: f64,
}

/// Per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkSample {
    pub received_bytes: f64,
    pub sent_bytes: f64,
    pub received_packets: f64,
    pub sent_packets: f64,
}

/// Per second; `queue` is the mean number of requests under way, `busy` the part of time with any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskSample {
    pub reads: f64,
    pub writes: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub flushes: f64,
    pub queue: f64,
    pub busy: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessSample {
    pub name: String,
    pub pid: u32,
    pub cpu_cores: f64,
    pub resident_bytes: u64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub threads: u32,
}

/// Counts of successive I/Os by how far apart they lie, in sectors of 512 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DistanceSample {
    /// `counts[0]`: the next begins where the last ended; `counts[n]`: 2^(n-1) <= distance < 2^n.
    pub counts: Vec<u64>,
    /// More than 125 000 and more than 2 500 000 blocks apart, as published studies count.
    pub beyond_125k: u64,
    pub beyond_2500k: u64,
}
