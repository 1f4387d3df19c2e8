//! Cells: one cluster, one workload, one repetition, with everything that the study file determines
//! for it. A cell's name is a digest of that; its result is a JSON file, `cell.json`, described in
//! `docs/studies.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_lab::plan::{Pacing, Plan, Stage, Think, Work, WorkKind};
use cairn_lab::workload;
use cairn_types::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::file::{Cluster, Store, Study, StudyError, Workload};

/// Format version of [`Outcome`].
pub const VERSION: u32 = 1;
const WORKLOAD_BYTES_MAX: u64 = 4 << 20;

/// A workload of the study, parsed and dilated to this host's time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub workload: Workload,
    /// The workload in the lab's own TOML, in this host's time.
    pub plan: String,
}

/// A point of the study: a cluster with a workload.
#[derive(Clone, Debug)]
pub struct Pair {
    pub cluster: Cluster,
    pub load: Load,
}

/// A cell: one repetition of a pair.
#[derive(Clone, Debug)]
pub struct Cell {
    pub pair: usize,
    pub repetition: u32,
    pub seed: u64,
    /// Digest in hex, which is the folder's name.
    pub id: String,
}

#[derive(Serialize)]
struct Identity<'a> {
    version: u32,
    study: &'a str,
    dilation: f64,
    seed: u64,
    repetition: u32,
    cluster: &'a Cluster,
    load: &'a Load,
    gate: &'a crate::file::Gate,
    program: &'a str,
}

/// All combinations of clusters and workloads.
///
/// # Errors
/// A workload's file cannot be read, is too large, or is no valid workload.
pub fn pairs(study: &Study) -> anyhow::Result<Vec<Pair>> {
    let is_thrown_away = study.clusters.iter().all(|c| c.store == Store::Cairn);
    let mut loads = Vec::new();
    for workload in &study.workloads {
        loads.push(load(study, workload, is_thrown_away)?);
    }
    let of_cluster = |cluster: &Cluster| {
        let pair = |load: &Load| Pair {
            cluster: cluster.clone(),
            load: load.clone(),
        };
        loads.iter().map(pair).collect::<Vec<_>>()
    };
    Ok(study.clusters.iter().flat_map(of_cluster).collect())
}

fn load(study: &Study, of: &Workload, is_thrown_away: bool) -> anyhow::Result<Load> {
    let path = study.folder.join(&of.file);
    let io = |source| StudyError::Io {
        path: path.clone(),
        source,
    };
    let bytes = std::fs::metadata(&path).map_err(io)?.len();
    if bytes > WORKLOAD_BYTES_MAX {
        let path = path.clone();
        return Err(StudyError::TooLarge { path, bytes }.into());
    }
    let text = std::fs::read(&path).map_err(io)?;
    let options = workload::Options {
        format: None,
        scale: of.scale.clone(),
        parameters: of.parameters.clone(),
    };
    let mut read = workload::read(&path.display().to_string(), &text, &options)?;
    let clears = |work: &Work| matches!(work.kind, WorkKind::Cleanup | WorkKind::Dispose);
    let stages = &mut read.plan.stages;
    while is_thrown_away
        && stages
            .last()
            .is_some_and(|stage| stage.works.iter().all(clears))
    {
        // Cleanup is omitted: the cluster is removed with all its content.
        stages.pop();
    }
    dilate(&mut read.plan, study.dilation);
    if of.cold {
        wait_for_the_cold(&mut read.plan);
    }
    Ok(Load {
        workload: of.clone(),
        plan: workload::to_toml(&read.plan),
    })
}

/// Time of this host for dropping the devices' content from the page cache, before each measured
/// stage.
const CACHE_DROP_TIME: Duration = Duration::from_secs(2);

/// Inserts a waiting stage before each measured one, for dropping caches: otherwise content of the
/// stage before would still be cached.
fn wait_for_the_cold(plan: &mut Plan) {
    let stages = std::mem::take(&mut plan.stages);
    for stage in stages {
        if stage.works.iter().any(|work| work.kind == WorkKind::Main) {
            plan.stages.push(Stage {
                name: format!("cold-before-{}", stage.name),
                close_delay: CACHE_DROP_TIME,
                ..Stage::default()
            });
        }
        plan.stages.push(stage);
    }
}

/// Multiplies all times of a plan by `factor`, and divides all rates by it.
fn dilate(plan: &mut Plan, factor: f64) {
    for stage in &mut plan.stages {
        stage.close_delay = stage.close_delay.mul_f64(factor);
        for work in &mut stage.works {
            work.rampup = work.rampup.mul_f64(factor);
            work.rampdown = work.rampdown.mul_f64(factor);
            work.runtime = work.runtime.map(|runtime| runtime.mul_f64(factor));
            if let Some(knee) = &mut work.knee {
                knee.p99_limit = knee.p99_limit.map(|limit| limit.mul_f64(factor));
            }
            if let Some(steady) = &mut work.steady {
                steady.window = steady.window.mul_f64(factor);
            }
            pace(&mut work.pacing, factor);
        }
    }
}

fn pace(pacing: &mut Pacing, factor: f64) {
    match pacing {
        Pacing::Open { rate, .. } => *rate /= factor,
        Pacing::Closed { think: None } => (),
        Pacing::Closed { think: Some(think) } => match think {
            Think::Constant(time) => *time = time.mul_f64(factor),
            Think::Uniform { low, high } => {
                *low = low.mul_f64(factor);
                *high = high.mul_f64(factor);
            }
            Think::Exponential { mean } => *mean = mean.mul_f64(factor),
        },
    }
}

/// The cell of a pair. Its seed is the same for all clusters in a repetition, so that they are
/// compared under the same requests.
///
/// # Errors
/// A value of the study cannot be written as JSON, of which the digest is made.
pub fn cell(study: &Study, pairs: &[Pair], pair: usize, repetition: u32) -> anyhow::Result<Cell> {
    let Pair { cluster, load } = &pairs[pair];
    let mut digest = Sha256::new();
    digest.update(study.seed.to_le_bytes());
    digest.update(repetition.to_le_bytes());
    digest.update(load.workload.name.as_bytes());
    let digest = digest.finalize();
    let seed = digest.iter().take(6).fold(0, |n, b| n << 8 | u64::from(*b));
    let identity = Identity {
        version: VERSION,
        study: &study.name,
        dilation: study.dilation,
        seed,
        repetition,
        cluster,
        load,
        gate: &study.gate,
        program: env!("CARGO_PKG_VERSION"),
    };
    let text = serde_json::to_vec(&identity)?;
    let id = hex::encode(&Sha256::digest(&text)[..8]);
    Ok(Cell {
        pair,
        repetition,
        seed,
        id,
    })
}

/// Outcome of measuring a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Valid.
    Accepted,
    /// Invalid, since the emulated hardware or this host was too slow. Never included in averages.
    Rejected,
    /// The workload failed on the store. A cluster that does not start ends the study.
    Failed,
}

/// Content of `cell.json`: everything known of a cell. Rates, times and sizes are in emulated time
/// unless a field states otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub version: u32,
    pub id: String,
    pub study: String,
    pub scale: String,
    pub state: State,
    /// Reasons why it is not accepted, one sentence each.
    pub why: Vec<String>,
    /// Number of this measurement of the cell, from 1.
    pub attempt: u32,
    pub repetition: u32,
    pub seed: u64,
    pub dilation: f64,
    /// Was any hardware emulated?
    pub emulated: bool,
    pub cluster: Cluster,
    pub workload: Workload,
    /// Values of all sweeps around the cell.
    pub swept: BTreeMap<String, String>,
    pub host: Host,
    pub fidelity: Fidelity,
    pub stages: Vec<StageOutcome>,
    /// All values of `stages` and `fidelity` under flat names, for figures.
    pub metrics: BTreeMap<String, f64>,
}

/// Host and program of the measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub started: f64,
    /// Seconds of this host for provisioning, and for the whole cell.
    pub provision_s: f64,
    pub total_s: f64,
    pub cores: usize,
    pub kernel: String,
    pub program: String,
    /// SHA-256 of the program.
    pub binary: String,
}

/// Accuracy of the emulation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fidelity {
    /// Lateness by device while stages were measured: late time as a fraction of due time.
    pub device_lateness: BTreeMap<String, f64>,
    /// Lateness of all devices together.
    pub lateness: f64,
    pub network_lateness: f64,
    pub network_dropped: u64,
    /// Time that threads of the store and the driver waited for a CPU, as a fraction of the
    /// requests' time.
    pub cpu_wait: f64,
    /// The emulator ran at real-time priority.
    pub real_time: bool,
    /// This host's own disk overhead, in its time; part of each service time.
    pub overhead_us: BTreeMap<String, f64>,
}

/// A measured stage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StageOutcome {
    pub name: String,
    pub seconds: f64,
    pub workers: u32,
    pub swept: BTreeMap<String, String>,
    pub operations: Vec<OperationOutcome>,
    /// CPU seconds of the store a second.
    pub store_cores: f64,
    /// Disks by their rings (`object`, `account+container`).
    pub disks: BTreeMap<String, DiskOutcome>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationOutcome {
    pub name: String,
    pub done: u64,
    pub failed: u64,
    pub per_s: f64,
    pub mb_per_s: f64,
    pub mean_ms: f64,
    /// Latencies in milliseconds by percentile, such as `50`.
    pub percentiles_ms: BTreeMap<String, f64>,
    pub errors: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskOutcome {
    pub devices: u32,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    pub flushes_per_s: f64,
    pub read_mb_per_s: f64,
    pub written_mb_per_s: f64,
    /// Mean fraction of time that a device was serving.
    pub busy: f64,
    /// Fraction of successive requests farther apart than this many blocks of 512 bytes.
    pub beyond_125k: f64,
    pub beyond_2500k: f64,
    /// Counts by power of two of the distance.
    pub distances: Vec<u64>,
}

/// Paths of a study's results.
#[derive(Clone, Debug)]
pub struct Folder {
    pub root: PathBuf,
}

impl Folder {
    pub fn cells(&self) -> PathBuf {
        self.root.join("cells")
    }

    pub fn cell(&self, id: &str) -> PathBuf {
        self.cells().join(id)
    }

    /// Folder of rejected measurements, kept for inspection.
    pub fn rejected(&self, id: &str, attempt: u32) -> PathBuf {
        self.root.join("rejected").join(format!("{id}-{attempt}"))
    }

    pub fn result(cell: &Path) -> PathBuf {
        cell.join("cell.json")
    }

    /// The cell's outcome; `None` if it was not measured.
    ///
    /// # Errors
    /// Its `cell.json` cannot be read, or is no outcome.
    pub fn outcome(&self, id: &str) -> anyhow::Result<Option<Outcome>> {
        let path = Folder::result(&self.cell(id));
        match std::fs::read(&path) {
            Ok(bytes) => {
                let read = serde_json::from_slice(&bytes);
                Ok(Some(
                    read.map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?,
                ))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(anyhow::anyhow!("{}: {error}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests;
