//! The run folder: the files that a run leaves, and their types.
//!
//!
//! ```text
//! RUN/run.json            [`RunMeta`]: name, target, times, command, outcome; the ceiling
//! RUN/plan.json           the [`Plan`](crate::plan::Plan) as it was run, without passwords
//! RUN/workload.EXT        the workload file, byte for byte; its passwords are its owner's
//! RUN/stages.json         [`StageResult`] of every stage that has ended: one array, rewritten as
//!                         a whole after each stage
//! RUN/timeline.ndjson     a [`Sample`] a line, written as the run goes on
//! RUN/resources.ndjson    a [`ResourceSample`] a line, written as the run goes on
//! RUN/pools.json          [`SavedPools`] after the last stage, if a later one draws from pools
//! ```
//!
//! Reports add further files, but never change these. A run that was cut short leaves `run.json`
//! with the state `running`, and complete lines except for the last. Times are seconds since 1970
//! (`f64`), latencies nanoseconds, sizes bytes.

mod open_loop;
mod resumption;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::latencies::Latencies;
use crate::plan::{OperationKind, WorkKind};

pub use self::open_loop::OpenLoop;
pub use self::resumption::{Resumption, SavedPool, SavedPools};

/// Paths of a run's files.
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

    /// The workload as given; `extension` is that of its original file.
    pub fn workload(&self, extension: &str) -> PathBuf {
        self.root.join(format!("workload.{extension}"))
    }
}

/// Outcome of a run, a stage or a work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    #[default]
    Running,
    Completed,
    /// More failures than its `afr` accepts, or the target could not be used; `message` has the
    /// reason.
    Failed,
    /// Ended by a user.
    Cancelled,
}

/// Content of `run.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunMeta {
    /// Version of this format; 1.
    pub version: u32,
    /// Unique id, and by default the folder's name: `20261122T010203-name`.
    pub id: String,
    pub name: String,
    pub description: String,
    /// Name of the workload's file, and the scale of it, if one was chosen.
    pub file: String,
    pub scale: String,
    /// Words by which its owner tells it apart.
    pub tags: Vec<String>,
    /// Format of the workload: `cosbench`, `ssbench`, `swift-bench`, `lab`.
    pub format: String,
    pub state: State,
    /// Reason of a failure; empty otherwise.
    pub message: String,
    pub started: f64,
    pub ended: Option<f64>,
    pub seed: u64,
    /// Digest of the plan without names, seed and store: runs with equal digests measured the same
    /// thing. Empty in runs of older programs.
    pub plan_digest: String,
    /// Kind and URL of the store, without secrets: `swift http://127.0.0.1:8080/v1/AUTH_test`.
    pub target: String,
    /// The store's own identification (`Server` header or the like); empty if there is none.
    pub server: String,
    /// The command line, without secrets.
    pub command: Vec<String>,
    /// Version of the program.
    pub lab_version: String,
    pub drivers: Vec<DriverMeta>,
    /// The generator's rate without a store, on the first driver.
    pub ceiling: Option<Ceiling>,
    /// When it was resumed, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<Resumption>,
    /// Conditions of `--fail-if` that hold, one sentence each.
    pub broken: Vec<String>,
    /// Notes for the reader: a lost driver, a skipped trigger, tracepoints not permitted.
    pub notes: Vec<String>,
}

/// A host that generates load.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverMeta {
    pub name: String,
    pub address: String,
    pub host: HostMeta,
    /// Seconds to add to its clock to get the controller's, measured at the start; and half the
    /// round trip of that measurement, which bounds the error.
    pub clock_offset: f64,
    pub clock_error: f64,
    /// Time and reason of its loss.
    pub lost: Option<Loss>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Loss {
    pub at: f64,
    pub reason: String,
}

/// Properties of a host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostMeta {
    pub name: String,
    pub kernel: String,
    pub cpu: String,
    pub cores: u32,
    pub memory_bytes: u64,
}

/// The generator's rate with full statistics and no store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ceiling {
    pub ops_per_second: f64,
    pub threads: u32,
    /// Duration of the measurement.
    pub seconds: f64,
}

/// An element of `stages.json`. A stage with a knee search has one per step (`main@64` and so on;
/// `swept` then contains `workers`).
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
    /// COSBench's `Detailed Status`: events in order.
    pub history: Vec<Event>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    pub at: f64,
    /// `waiting`, `authing`, `running`, `closing`, `completed`, `failed`, `cancelled`, …
    pub what: String,
}

/// Results of a work, merged exactly over threads and drivers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkResult {
    pub name: String,
    pub kind: WorkKind,
    pub workers: u32,
    /// Offered rate of an open loop, operations per second.
    pub rate: Option<f64>,
    /// Counted time in seconds, between ramp-up and ramp-down. Rates refer to it.
    pub seconds: f64,
    /// Results per operation (in the plan's order) and size class (smallest first). Sums over
    /// classes give the operation.
    pub operations: Vec<OperationResult>,
    /// If the work ended early because its rate was steady: the seconds after the start since when
    /// it was.
    pub steady_after: Option<f64>,
}

impl WorkResult {
    /// Offered and achieved rate of an open loop, and lateness of requests. `None` for a closed
    /// loop, and for runs that did not record it.
    pub fn open_loop(&self) -> Option<OpenLoop> {
        self.rate?;
        OpenLoop::of(&self.operations.iter().collect::<Vec<_>>(), self.seconds)
    }
}

/// Statistics of one operation and size class.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationResult {
    /// Index of the operation in the work, from 0: two may have the same name.
    pub index: u32,
    /// COSBench's `Op-Name`.
    pub name: String,
    pub kind: OperationKind,
    /// Size class named by the workload, or a decade of sizes: `0`, `<1KB`, `<10KB`, … `>=1GB`.
    pub size_class: String,
    /// Number of successes within the counted time, and the bytes they moved.
    pub ops: u64,
    pub bytes: u64,
    /// Failures within the counted time, by kind. Not included in `ops` and the latencies.
    pub errors: BTreeMap<ErrorKind, u64>,
    /// Number of reads whose content was verified; a wrong one is an error `integrity`.
    pub checked: u64,
    /// Latency of successes from the start (open loop: due time) to the first byte of the
    /// response's body, or to its head if it has none.
    pub first_byte: Latencies,
    /// Latency from the start (open loop: due time) to the last byte.
    pub last_byte: Latencies,
    /// Open loop: latency from the actual start to the last byte, without the wait. Empty in a
    /// closed loop.
    pub service: Latencies,
    /// Open loop: number of successes that *ended* within the counted time, whenever they were due,
    /// and their bytes: the store's achieved rate. `ops` counts those that were due within it.
    /// `None` in a closed loop.
    pub ended: Option<u64>,
    pub ended_bytes: u64,
    /// Open loop: delay from due time to actual start, because all workers were busy.
    pub delay: Latencies,
    /// The slowest successes, slowest first. (COSBench's `Avg-ProcTime` is the mean of `service`,
    /// or of `last_byte` if that is empty.)
    pub worst: Vec<WorstRequest>,
    /// The first failures.
    pub failures: Vec<WorstRequest>,
}

impl OperationResult {
    /// The size class, if the workload defines one; a decade of sizes does not count.
    pub fn named_class(&self) -> Option<&str> {
        let class = self.size_class.as_str();
        let is_decade = class.is_empty() || class == "0" || class.starts_with(['<', '>']);
        (!is_decade).then_some(class)
    }

    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Successes and bytes from which rates are computed: in an open loop those that ended within
    /// the counted time, since those that were due in it are the offered rate.
    pub fn achieved(&self) -> (u64, u64) {
        match self.ended {
            Some(ended) => (ended, self.ended_bytes),
            None => (self.ops, self.bytes),
        }
    }

    /// Adds the results of another thread or driver for the same operation and class.
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

/// Maximum number of requests in a table of the slowest.
pub const WORST_KEPT: usize = 20;

/// Sorts the slowest first and drops those beyond the table.
pub fn keep_worst(worst: &mut Vec<WorstRequest>) {
    worst.sort_by_key(|request| std::cmp::Reverse(request.last_byte_ns));
    worst.truncate(WORST_KEPT);
}

/// Reason of an operation's failure; as text `connect`, `http 503`, `timeout`, `integrity`, …
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ErrorKind {
    /// The store responded with this status.
    Status(u16),
    Connect,
    /// The connection ended within a response or a request.
    Closed,
    Timeout,
    /// A violation of the protocol.
    Protocol,
    /// The content read differs from what was written.
    Integrity,
    /// Any other reason, in a few words that are equal for all such requests.
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

/// One of the slowest requests, or of the first failures.
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
    /// `X-Trans-Id`, `X-Amz-Request-Id`; empty if the store sent none.
    pub transaction: String,
    /// The error of a failure.
    pub error: Option<ErrorKind>,
}

/// The part of a work that a sample belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Rampup,
    #[default]
    Counted,
    Rampdown,
}

/// A line of `timeline.ndjson`: one interval of one work, over all drivers. Also the live display.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The stage's name in [`StageResult`].
    pub stage: String,
    pub work: String,
    /// End of the interval.
    pub at: f64,
    /// Length of the interval.
    pub seconds: f64,
    pub phase: Phase,
    /// Progress of the work, 0 to 1, by time, operations or bytes, whichever is furthest.
    pub progress: f64,
    /// Estimated seconds left, if known.
    pub left: Option<f64>,
    /// Number of drivers that reported in this interval.
    pub drivers: u32,
    /// Samples of the plan's operations with any requests.
    pub operations: Vec<OperationSample>,
}

/// Part of a [`Sample`]: latencies are to the last byte.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationSample {
    pub name: String,
    pub kind: OperationKind,
    /// Size class named by the workload; empty if there is none, or if there are several.
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

/// A line of `resources.ndjson`: resource usage of one host in one interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceSample {
    pub host: String,
    pub stage: String,
    pub at: f64,
    pub seconds: f64,
    /// Cores in use; their sum is at most the number of the host's cores.
    pub cpu: CpuSample,
    pub memory_used_bytes: u64,
    pub memory_cached_bytes: u64,
    /// Network usage by interface, including loopback.
    pub network: BTreeMap<String, NetworkSample>,
    /// Disk usage by whole device, not by partition.
    pub disks: BTreeMap<String, DiskSample>,
    /// The lab itself, and the processes named on the command line.
    pub processes: Vec<ProcessSample>,
    /// Distances between successive I/Os in this interval, by device, if the kernel's block
    /// tracepoints are permitted.
    pub distances: BTreeMap<String, DistanceSample>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuSample {
    pub user: f64,
    pub system: f64,
    pub iowait: f64,
    /// Time taken by the hypervisor.
    pub steal: f64,
}

/// Rates per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkSample {
    pub received_bytes: f64,
    pub sent_bytes: f64,
    pub received_packets: f64,
    pub sent_packets: f64,
}

/// Rates per second; `queue` is the mean number of requests in progress, `busy` the fraction of
/// time with any.
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

/// Counts of successive I/Os by their distance, in sectors of 512 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DistanceSample {
    /// `counts[0]`: the next begins at the end of the last; `counts[n]`: 2^(n-1) <= distance < 2^n.
    pub counts: Vec<u64>,
    /// Numbers of distances above 125 000 and above 2 500 000 blocks, as published studies count.
    pub beyond_125k: u64,
    pub beyond_2500k: u64,
}
