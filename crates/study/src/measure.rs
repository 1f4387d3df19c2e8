//! Measurement of one cell: provisions its cluster, runs its workload by the lab in a separate
//! process, reads the emulated hardware's counters when a stage begins or ends, and combines
//! everything into an [`Outcome`].

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use cairn_emulate::world::Counts;
use cairn_lab::plan::{Stage, WorkKind};
use cairn_lab::record::{self, StageResult, WorkResult};
use cairn_lab::results;
use cairn_lab::workload;
use serde_json::Value;

use crate::archive::Archive;
use crate::cell::{Cell, Fidelity, Host, Outcome, Pair, StageOutcome, State, VERSION};
use crate::cluster::{ClusterSpec, KEY, Provisioned, USER};
use crate::file::{Store, Study};
use crate::metrics::{self, Reading, Spent};
use crate::process::{self, ProcessEnvironment};

/// Timeout of a workload's requests, in emulated time.
const REQUEST_TIMEOUT_S: f64 = 120.0;
const DRIVER_TIMEOUT: Duration = Duration::from_secs(20);

/// Inputs of a measurement besides the cell.
pub struct Bench<'a> {
    pub study: &'a Study,
    pub pairs: &'a [Pair],
    pub program: &'a Path,
    /// SHA-256 of the program.
    pub binary: &'a str,
    /// Folder of devices and of the disks' content; emptied after each cell.
    pub scratch: &'a Path,
}

/// Measures a cell into the existing, empty `folder`. An error is one of this host
/// or of a cluster that does not start; requests that fail are an outcome.
///
/// # Errors
/// The cluster cannot be provisioned, a server, the emulator or the mount ends, or the lab or a
/// driver cannot be run.
pub fn measure(bench: &Bench<'_>, cell: &Cell, attempt: u32, folder: &Path) -> Result<Outcome> {
    let began = Instant::now();
    let pair = &bench.pairs[cell.pair];
    let scratch = bench.scratch.join(&cell.id);
    std::fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let _clean = Clean(scratch.clone());
    let order = ClusterSpec {
        cluster: &pair.cluster,
        dilation: bench.study.dilation,
        seed: cell.seed,
        program: bench.program,
        folder,
        scratch: &scratch,
    };
    let mut cluster = Provisioned::create(&order)?;
    let provision_s = began.elapsed().as_secs_f64();
    let readings = drive(bench, cell, &mut cluster, folder);
    let words = cluster.last_words();
    let made = cluster.made();
    let usable = cluster.usable_bytes;
    cluster.tear_down();
    let readings = readings.with_context(|| words)?;
    let recorded = results::read_folder(&run_folder(folder))?;
    let mut outcome = outcome(bench, cell, attempt);
    outcome.host.provision_s = provision_s;
    outcome.host.started = now() - began.elapsed().as_secs_f64();
    outcome.stages = stages(&recorded.stages, &readings, bench.study.dilation);
    outcome.fidelity = fidelity(&recorded.stages, &readings);
    outcome.fidelity.real_time = made.real_time;
    outcome.fidelity.overhead_us = made.overhead_us;
    outcome.metrics = metrics::flat(&outcome.stages, &outcome.fidelity);
    if usable.is_finite() {
        outcome.metrics.insert("usable_gb".to_owned(), usable / 1e9);
    }
    judge(bench.study, &recorded.meta, &mut outcome);
    outcome.host.total_s = began.elapsed().as_secs_f64();
    Ok(outcome)
}

/// A folder that is removed when dropped.
struct Clean(PathBuf);

impl Drop for Clean {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// The lab's run folder in a cell's folder.
pub fn run_folder(cell: &Path) -> PathBuf {
    cell.join("run")
}

fn outcome(bench: &Bench<'_>, cell: &Cell, attempt: u32) -> Outcome {
    let Pair { cluster, load } = &bench.pairs[cell.pair];
    let mut swept = cluster.swept.clone();
    swept.extend(load.workload.swept.clone());
    let kernel = rustix::system::uname();
    Outcome {
        version: VERSION,
        id: cell.id.clone(),
        study: bench.study.name.clone(),
        scale: bench.study.scale.clone(),
        state: State::Accepted,
        why: Vec::new(),
        attempt,
        repetition: cell.repetition,
        seed: cell.seed,
        dilation: bench.study.dilation,
        emulated: cluster.is_emulated(),
        cluster: cluster.clone(),
        workload: load.workload.clone(),
        swept,
        host: Host {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.release().to_string_lossy().into_owned(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            binary: bench.binary.to_owned(),
            ..Host::default()
        },
        fidelity: Fidelity::default(),
        stages: Vec::new(),
        metrics: BTreeMap::new(),
    }
}

/// Runs the lab; returns counters before and after each stage, by name.
fn drive(
    bench: &Bench<'_>,
    cell: &Cell,
    cluster: &mut Provisioned,
    folder: &Path,
) -> Result<BTreeMap<String, Reading>> {
    let Pair { load, .. } = &bench.pairs[cell.pair];
    let plan = folder.join("workload.toml");
    std::fs::write(&plan, &load.plan)?;
    if load.workload.quick_preparation {
        cluster.set_free(true)?;
    }
    let archive = archive(bench, cell, cluster, folder)?;
    let drivers = Drivers::start(bench, load.workload.drivers, folder)?;
    let mut command = lab(bench, cell, &plan, folder);
    if let Some(archive) = &archive {
        command.args(["--target", &format!("file:{}", archive.at.display())]);
    } else {
        sign_in(bench, cell, cluster, &mut command);
    }
    drivers.name_in(&mut command);
    let log = std::fs::File::create(folder.join("log/lab.log"))
        .or_else(|_| std::fs::File::create(folder.join("lab.log")))?;
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("starting the lab")?;
    let mut child = Ended(child);
    let pid = child.0.id();
    let output = child.0.stdout.take().context("the lab without an output")?;
    let mut readings: BTreeMap<String, Reading> = BTreeMap::new();
    let content = bench.scratch.join(&cell.id).join("srv");
    let _forgetting = load.workload.cold.then(|| Forgetting::start(content));
    let measured = measured_stages(&load.plan)?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        let Ok(event) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        let name = |event: &str, value: &Value| {
            let name = value.get(event)?.get("name")?.as_str()?;
            Some(name.to_owned())
        };
        let read = |cluster: &mut Provisioned| -> Result<(Counts, Spent)> {
            cluster.check()?;
            let waited = cluster.cpu_wait_ns() + process::cpu_wait_ns(pid) + drivers.cpu_wait_ns();
            let spent = Spent {
                waited_ns: waited,
                store_ns: cluster.cpu_used_ns(),
            };
            Ok((cluster.counts()?, spent))
        };
        if let Some(name) = name("stage_started", &event) {
            if load.workload.quick_preparation && measured.contains(&name) {
                cluster.set_free(false)?;
            }
            if let Some(zone) = load.workload.lost_zone.filter(|_| measured.contains(&name)) {
                cluster.lose(zone, &bench.pairs[cell.pair].cluster);
            }
            let (counts, spent) = read(cluster)?;
            readings.insert(name, Reading::begun(counts, spent));
        } else if let Some(name) = name("stage_ended", &event) {
            let (counts, spent) = read(cluster)?;
            if let Some(reading) = readings.get_mut(&name) {
                reading.end(counts, spent);
            }
        }
    }
    let status = child.0.wait()?;
    // Exit codes 1 and 3 are runs that failed or exceeded a limit, which are outcomes.
    ensure!(
        matches!(status.code(), Some(0 | 1 | 3)) && run_folder(folder).join("run.json").is_file(),
        "the lab ended with {status}: {}",
        std::fs::read_to_string(folder.join("log/lab.log")).unwrap_or_default()
    );
    Ok(readings)
}

/// A thread that has content forgotten again and again: what was read once would be cached from then
/// on, which a cluster of far more content than memory does not do.
struct Forgetting {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Time of this host between two rounds.
const FORGET_INTERVAL: Duration = Duration::from_secs(1);

impl Forgetting {
    fn start(folder: PathBuf) -> Forgetting {
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                forget_objects(&folder);
                std::thread::park_timeout(FORGET_INTERVAL);
            }
        });
        Forgetting {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Names of the stages of a workload that are measured.
fn measured_stages(plan: &str) -> Result<Vec<String>> {
    let read = workload::read(
        "the workload",
        plan.as_bytes(),
        &workload::Options::default(),
    )?;
    let is_main = |stage: &Stage| stage.works.iter().any(|work| work.kind == WorkKind::Main);
    let measured = read.plan.stages.into_iter().filter(is_main);
    Ok(measured.map(|stage| stage.name).collect())
}

/// Drops the content of objects from the page cache, in the devices of all nodes. Databases stay:
/// they are small, and a cluster with far more content than memory has them cached, too.
fn forget_objects(folder: &Path) {
    let inner = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    for node in inner(folder.to_owned()) {
        for device in inner(node.path()) {
            for kept in inner(device.path()) {
                if kept.file_name().to_string_lossy().starts_with("objects") {
                    forget(&kept.path());
                }
            }
        }
    }
}

/// Drops the content of all files below a folder from the page cache. Names and attributes stay
/// cached.
fn forget(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => forget(&path),
            Ok(kind) if kind.is_file() => {
                // A file that is gone meanwhile is not cached either.
                if let Ok(file) = std::fs::File::open(&path) {
                    let advice = rustix::fs::Advice::DontNeed;
                    let _ = rustix::fs::fadvise(&file, 0, None, advice);
                }
            }
            _ => (),
        }
    }
}

/// The mount for a workload of files.
fn archive(
    bench: &Bench<'_>,
    cell: &Cell,
    cluster: &Provisioned,
    folder: &Path,
) -> Result<Option<Archive>> {
    if !bench.pairs[cell.pair].load.workload.mount {
        return Ok(None);
    }
    let proxy = cluster
        .proxies
        .first()
        .context("a mount needs a proxy of the cluster's own")?;
    let scratch = bench.scratch.join(&cell.id);
    let log = folder.join("log/mount.log");
    Archive::mount(bench.program, proxy, &scratch, log).map(Some)
}

fn lab(bench: &Bench<'_>, cell: &Cell, plan: &Path, folder: &Path) -> Command {
    let mut command = process::command(&ProcessEnvironment::default(), bench.program);
    command.args(["lab", "run"]).arg(plan);
    command.args(["--json", "--no-ceiling", "--resources", "0"]);
    command.arg("--seed").arg(cell.seed.to_string());
    command.arg("--out").arg(run_folder(folder));
    let timeout = REQUEST_TIMEOUT_S * bench.study.dilation;
    command.arg("--timeout").arg(timeout.to_string());
    command
}

/// Adds the store's address and the user to the command.
fn sign_in(bench: &Bench<'_>, cell: &Cell, cluster: &Provisioned, command: &mut Command) {
    let of_cluster = &bench.pairs[cell.pair].cluster;
    let (user, key) = match of_cluster.store {
        Store::Cairn => (Some(USER.to_owned()), Some(KEY.to_owned())),
        Store::Existing => (of_cluster.user.clone(), of_cluster.key.clone()),
    };
    let lost = bench.pairs[cell.pair].load.workload.lost_zone;
    let with_zones = cluster.proxies.iter().zip(&cluster.zones);
    let proxies: Vec<&str> = with_zones
        .filter(|(_, zone)| Some(**zone) != lost)
        .map(|(proxy, _)| proxy.as_str())
        .collect();
    match (&cluster.url, proxies.first()) {
        (Some(url), _) => command.args(["--target", url]),
        (None, Some(first)) => command.args(["--target", &format!("http://{first}/auth/v1.0")]),
        (None, None) => &mut *command,
    };
    if proxies.len() > 1 {
        command.args(["--storage", &format!("proxies={}", proxies.join(","))]);
    }
    if let Some(user) = user {
        command.args(["--user", &user]);
    }
    if let Some(key) = key {
        command.env("CAIRN_LAB_KEY", key);
    }
}

/// A child process that is killed when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Driver processes for the lab's controller.
struct Drivers {
    children: Vec<Ended>,
    addresses: Vec<String>,
    secret: String,
}

impl Drivers {
    fn start(bench: &Bench<'_>, count: u32, folder: &Path) -> Result<Drivers> {
        let mut drivers = Drivers {
            children: Vec::new(),
            addresses: Vec::new(),
            // Known to us alone: the drivers listen on loopback only during the cell.
            secret: format!("{}-{}", std::process::id(), bench.binary),
        };
        for number in 1..=count {
            let mut command = process::command(&ProcessEnvironment::default(), bench.program);
            command.args(["lab", "driver", "--bind", "127.0.0.1:0", "--threads", "1"]);
            command.env("CAIRN_LAB_SECRET", &drivers.secret);
            let log = std::fs::File::create(folder.join(format!("driver{number}.log")))?;
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log)
                .spawn()
                .context("starting a driver")?;
            let mut child = Ended(child);
            let output = child
                .0
                .stdout
                .take()
                .context("a driver without an output")?;
            let mut line = String::new();
            let began = Instant::now();
            BufReader::new(output).read_line(&mut line)?;
            let address = line
                .split_whitespace()
                .find(|word| word.starts_with("127.0.0.1:"));
            let Some(address) = address.filter(|_| began.elapsed() < DRIVER_TIMEOUT) else {
                bail!("driver {number} said {line:?} instead of where it listens");
            };
            drivers
                .addresses
                .push(address.trim_end_matches([',', '.']).to_owned());
            drivers.children.push(child);
        }
        Ok(drivers)
    }

    fn name_in(&self, command: &mut Command) {
        for address in &self.addresses {
            command.args(["--driver", address]);
        }
        if !self.addresses.is_empty() {
            command.env("CAIRN_LAB_SECRET", &self.secret);
        }
    }

    fn cpu_wait_ns(&self) -> u64 {
        self.children
            .iter()
            .map(|c| process::cpu_wait_ns(c.0.id()))
            .sum()
    }
}

fn is_measured(stage: &StageResult) -> bool {
    stage.works.iter().any(|work| work.kind == WorkKind::Main)
}

fn stages(
    recorded: &[StageResult],
    readings: &BTreeMap<String, Reading>,
    dilation: f64,
) -> Vec<StageOutcome> {
    let measured = recorded.iter().filter(|stage| is_measured(stage));
    measured
        .map(|stage| metrics::stage(stage, reading_of(readings, &stage.name), dilation))
        .collect()
}

/// A step of a knee search, `main@64`, belongs to its stage.
fn reading_of<'a>(readings: &'a BTreeMap<String, Reading>, name: &str) -> Option<&'a Reading> {
    let whole = name.split('@').next().unwrap_or(name);
    readings.get(name).or_else(|| readings.get(whole))
}

fn fidelity(recorded: &[StageResult], readings: &BTreeMap<String, Reading>) -> Fidelity {
    let measured: Vec<&StageResult> = recorded.iter().filter(|s| is_measured(s)).collect();
    let request_ns: f64 = measured
        .iter()
        .flat_map(|stage| &stage.works)
        .flat_map(|work: &WorkResult| &work.operations)
        .map(|operation: &record::OperationResult| {
            operation.last_byte.mean() * operation.last_byte.count() as f64
        })
        .sum();
    let used = measured
        .iter()
        .filter_map(|stage| reading_of(readings, &stage.name));
    metrics::fidelity(used, request_ns)
}

/// Decides whether the cell is accepted.
fn judge(study: &Study, meta: &record::RunMeta, outcome: &mut Outcome) {
    let gate = &study.gate;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    if meta.state != record::State::Completed {
        outcome.state = State::Failed;
        outcome
            .why
            .push(format!("the run did not complete: {}", meta.message));
    }
    let fidelity = &outcome.fidelity;
    let mut reasons = Vec::new();
    for (name, share) in &fidelity.device_lateness {
        if *share > gate.lateness {
            reasons.push(format!(
                "disk {name} was {} late, of {} allowed",
                percent(*share),
                percent(gate.lateness)
            ));
        }
    }
    if fidelity.network_lateness > gate.lateness {
        reasons.push(format!(
            "the network was {} late, of {} allowed",
            percent(fidelity.network_lateness),
            percent(gate.lateness)
        ));
    }
    if fidelity.cpu_wait > gate.cpu_wait {
        reasons.push(format!(
            "threads waited for a CPU for {} of the requests' time, of {} allowed",
            percent(fidelity.cpu_wait),
            percent(gate.cpu_wait)
        ));
    }
    if !reasons.is_empty() && outcome.emulated && outcome.state == State::Accepted {
        outcome.state = State::Rejected;
    }
    outcome.why.extend(reasons);
}
