//! PUT, GET and DELETE on OpenStack Swift and on Cairn, on this machine, side by side: the same
//! devices, replicas, objects and connections, cell by cell in turn, each store frozen
//! (SIGSTOP) while the other works. It prints and keeps numbers and judges nothing.
//!
//! The load comes from `bench-load`, a process of its own whose processor time is counted apart
//! from the servers'; what it can do at most is measured against a server that does nothing.

mod container;
mod disk;
mod encryption;
mod lab;
pub(crate) mod load;
pub(crate) mod null;
mod protection;
mod repair;
mod table;
mod tls;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rustix::process::Signal;

use crate::cairn::{Cairn, Spread};
use crate::process::{Process, free_ports, wait_for_port};
use crate::swift::{Layout, Swift};
use crate::venv::Venv;
use crate::wire::Account;
use crate::workspace;
use disk::{Disk, FileSystem};
use load::{Job, Outcome, Verb};
use usage::Watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// All sizes
    All,
    /// 4 KB and 128 KB
    Small,
    /// 1 MB and 10 MB
    Large,
    /// The lab's generator: no-op, beside wrk against nginx, memory
    Lab,
    /// One container at 1 K to 10 M rows: updates, listings, both at once, PUTs
    Container,
    /// What each filter of the default pipeline adds to a request
    Middleware,
    /// Cairn with objects encrypted, beside itself without
    Encryption,
    /// GET by TLS, beside the same without
    Tls,
    /// `tls` and `encryption` in one run, each bar with its verdict; fails where one is missed
    Protection,
    /// A device is wiped: how long until its objects are back, and clients meanwhile
    Repair,
    /// `cairn mount` beside the store's own PUT and GET, rclone and S3QL (needs root and /dev/fuse)
    Mount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    Swift,
    Cairn,
}

#[derive(Args)]
pub(crate) struct Options {
    #[arg(default_value = "all")]
    name: Name,
    /// 4 KB and 1 MB at 1 and 64 connections, 3 seconds each
    #[arg(long)]
    quick: bool,
    /// Bytes; K and M are thousands and millions
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<u64>,
    #[arg(long, value_delimiter = ',')]
    connections: Vec<usize>,
    /// Length of each measurement, after a second of warm-up
    #[arg(long)]
    seconds: Option<u64>,
    /// Rounds of `encryption`, `tls`, `protection` and `mount`: as often is each cell measured, in turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure one of the two alone
    #[arg(long)]
    only: Option<Only>,
    /// Of `repair`: objects in the cluster; the first of --sizes, or 10 KB, is their size
    #[arg(long, default_value_t = 100_000)]
    objects: u64,
    /// Of `repair`: the cluster has two to the power of so many partitions
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=20))]
    part_power: u32,
    /// Of `repair`: OpenStack Swift's replicator by SSYNC, too, which syncs what it writes as Cairn's
    /// does
    #[arg(long)]
    ssync: bool,
    /// Of `repair`: stop OpenStack Swift's after so many times what Cairn's took
    #[arg(long)]
    give_up: Option<f64>,
    /// Of `container`: numbers of rows instead of 1 K, 100 K, 1 M and 10 M
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    rows: Vec<u64>,
    /// Of `container`: also a page after the page cache was dropped (needs root)
    #[arg(long)]
    cold: bool,
    /// Of `container`: also with the container in ten shards
    #[arg(long)]
    sharded: bool,
    /// The folder of S3QL's programs, for `mount`, where they are not on the path
    #[arg(long)]
    s3ql: Option<PathBuf>,
    /// What the stores' devices are on
    #[arg(long, value_enum, default_value_t = FileSystem::Workspace)]
    file_system: FileSystem,
}

const CONTAINERS: u64 = 10;

fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.to_ascii_uppercase() {
        t if t.ends_with('K') => (t[..t.len() - 1].to_owned(), 1000),
        t if t.ends_with('M') => (t[..t.len() - 1].to_owned(), 1_000_000),
        t => (t, 1),
    };
    digits
        .parse::<u64>()
        .map(|n| n * factor)
        .map_err(|e| e.to_string())
}

/// GET reads this many of the objects that were put: as many on a slow store as on a fast one, so
/// that neither has more of them in memory.
const READ_OBJECTS: u64 = 256;

/// One store under load.
struct Subject {
    name: &'static str,
    port: u16,
    roots: Vec<u32>,
    watch: Watch,
    /// Where its devices are.
    disk: PathBuf,
    /// The next object's number, so that no name is used twice.
    next: u64,
}

/// What one cell gave for one store.
#[derive(Clone, serde::Serialize)]
pub(crate) struct Cell {
    pub(crate) store: &'static str,
    pub(crate) verb: Verb,
    pub(crate) size: u64,
    pub(crate) connections: usize,
    pub(crate) outcome: Outcome,
    /// Of all the store's processes, over all requests of the cell.
    pub(crate) server_cpu_seconds_per_1000: f64,
    /// Highest so far in this run.
    pub(crate) memory_peak_bytes: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.name == Name::Lab {
        return lab::run(
            options
                .seconds
                .unwrap_or(if options.quick { 3 } else { 10 }),
        );
    }
    if options.name == Name::Middleware {
        let cost = ["bench", "--package", "cairn-middleware", "--bench", "cost"];
        return workspace::run(workspace::cargo().args(cost));
    }
    if options.name == Name::Container {
        return container::run(options);
    }
    if options.name == Name::Encryption {
        return encryption::measure(options).map(drop);
    }
    if options.name == Name::Tls {
        return tls::measure(options).map(drop);
    }
    if options.name == Name::Protection {
        return protection::run(options);
    }
    match options.name {
        Name::Repair => return repair::run(options),
        Name::Mount => return crate::mount::bench::run(options.rounds, options.s3ql.as_deref()),
        _ => {}
    }
    let binary = workspace::build_release("xtask")?;
    let dir = workspace::scratch("bench")?;
    let disk = |name| Disk::fresh(dir.path(), name, options.file_system);
    let (swift_disk, cairn_disk) = (disk("swift")?, disk("cairn")?);
    let mut swift = None;
    let mut cairn = None;
    let mut subjects = Vec::new();
    if options.only != Some(Only::Cairn) {
        let venv = Venv::prepare()?;
        let store = swift.insert(Swift::create(
            &venv,
            &swift_disk.path().join("data"),
            Layout::default(),
        )?);
        store.start()?;
        subjects.push(Subject::new(
            "OpenStack Swift",
            store.port,
            store.processes(),
            swift_disk.path(),
        )?);
    }
    if options.only != Some(Only::Swift) {
        let data = cairn_disk.path().join("data");
        let store = cairn.insert(Cairn::create(&workspace::build_cairn()?, &data, None)?);
        store.start(Spread::OneProcess)?;
        let (port, disk) = (store.port(), cairn_disk.path());
        subjects.push(Subject::new("Cairn", port, store.processes(), disk)?);
    }
    let (sizes, connections, seconds) = options.plan();
    let ceilings = ceilings(&binary, dir.path(), &sizes)?;
    println!("{}", table::heading(&ceilings));
    for subject in &subjects {
        subject.freeze(true);
    }
    let mut cells = Vec::new();
    for &size in &sizes {
        for &connections in &connections {
            let mut of_subjects = Vec::new();
            for subject in &mut subjects {
                subject.freeze(false);
                of_subjects.push(subject.cells(&binary, size, connections, seconds)?);
                subject.freeze(true);
            }
            for verb in 0..3 {
                let row: Vec<Cell> = of_subjects
                    .iter()
                    .map(|cells| cells[verb].clone())
                    .collect();
                println!("{}", table::line(&row));
                cells.extend(row);
            }
        }
    }
    for subject in &subjects {
        subject.freeze(false);
    }
    if let Some(store) = &mut cairn {
        store.stop()?;
    }
    let markdown = table::markdown(&cells, &ceilings);
    println!("\n{markdown}");
    let results = workspace::results("bench")?;
    std::fs::write(results.join("bench.md"), &markdown)?;
    std::fs::write(
        results.join("bench.json"),
        serde_json::to_vec_pretty(&cells)?,
    )?;
    println!("kept in {}", results.display());
    Ok(())
}

impl Options {
    fn plan(&self) -> (Vec<u64>, Vec<usize>, u64) {
        let mut sizes = match (self.name, self.quick) {
            (Name::All, true) => vec![4_000, 1_000_000],
            (Name::All, false) => vec![4_000, 128_000, 1_000_000, 10_000_000],
            (Name::Small, _) => vec![4_000, 128_000],
            (Name::Protection, _) => vec![1_000_000],
            (_, _) => {
                vec![1_000_000, 10_000_000]
            }
        };
        let mut connections = match (self.name, self.quick) {
            (Name::Protection, _) => vec![64],
            (_, true) => vec![1, 64],
            (_, false) => vec![1, 16, 64, 256],
        };
        if !self.sizes.is_empty() {
            sizes.clone_from(&self.sizes);
        }
        if !self.connections.is_empty() {
            connections.clone_from(&self.connections);
        }
        (
            sizes,
            connections,
            self.seconds.unwrap_or(if self.quick { 3 } else { 8 }),
        )
    }
}

impl Subject {
    fn new(name: &'static str, port: u16, processes: &[Process], disk: &Path) -> Result<Subject> {
        let roots: Vec<u32> = processes.iter().map(Process::id).collect();
        let mut account = Account::login(port)?;
        for number in 0..CONTAINERS {
            account.must("PUT", &format!("/bench-{number}"), "", &[], b"")?;
        }
        let watch = Watch::start(roots.clone());
        Ok(Subject {
            name,
            port,
            roots,
            watch,
            disk: disk.to_owned(),
            next: 0,
        })
    }

    /// Stops or continues every process of the store.
    fn freeze(&self, frozen: bool) {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        for pid in usage::with_children(&self.roots) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }

    /// PUT, GET and DELETE of one size at one number of connections.
    fn cells(
        &mut self,
        binary: &Path,
        size: u64,
        connections: usize,
        seconds: u64,
    ) -> Result<Vec<Cell>> {
        // A session may have ended in a long run.
        let account = Account::login(self.port)?;
        let first = self.next;
        let mut job = Job {
            port: self.port,
            token: account.token.clone(),
            prefix: format!("{}/bench-", account.path),
            containers: CONTAINERS,
            verb: Verb::Put,
            size,
            connections,
            warm_up_seconds: 1,
            seconds,
            first,
            count: affordable(&self.disk, size, connections)?,
            headers: String::new(),
            ca: None,
        };
        let put = self.cell(binary, &job)?;
        self.next = first + put.outcome.started;
        job.verb = Verb::Get;
        job.count = put.outcome.started.min(READ_OBJECTS);
        let get = self.cell(binary, &job)?;
        job.count = put.outcome.started;
        // Deleting uses the objects up, so there is no warm-up, and no end but the last object.
        job.verb = Verb::Delete;
        job.warm_up_seconds = 0;
        let mut delete = self.cell(binary, &job)?;
        let left = job.count - delete.outcome.started;
        if left > 0 {
            job.first += delete.outcome.started;
            job.count = left;
            job.connections = 16;
            job.seconds = 600;
            delete.outcome.errors += load_process(binary, &job)?.errors;
        }
        Ok(vec![put, get, delete])
    }

    fn cell(&mut self, binary: &Path, job: &Job) -> Result<Cell> {
        let before = usage::cpu_seconds(&self.roots);
        let outcome = load_process(binary, job)?;
        let cpu = usage::cpu_seconds(&self.roots) - before;
        Ok(Cell {
            store: self.name,
            verb: job.verb,
            size: job.size,
            connections: job.connections,
            server_cpu_seconds_per_1000: cpu * 1000.0 / (outcome.started.max(1) as f64),
            memory_peak_bytes: self.watch.peak(),
            outcome,
        })
    }
}

/// How many objects of a size may be written: 6 GB at most, never more than a third of the disk,
/// three replicas counted; but each connection gets two.
fn affordable(dir: &Path, size: u64, connections: usize) -> Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    let room = disk.f_bavail * disk.f_frsize / 3;
    let least = connections as u64 * 2;
    ensure!(
        least * size * 3 <= room * 2,
        "too little room in {} for {size} bytes × {least}",
        dir.display()
    );
    Ok(((6_000_000_000 / size).min(room / 3 / size)).max(least))
}

fn load_process(binary: &Path, job: &Job) -> Result<Outcome> {
    let mut child = Command::new(binary)
        .arg("bench-load")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", binary.display()))?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(&serde_json::to_vec(job)?)?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "the load generator ended with {}",
        output.status
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// GET against a server that does nothing: what the generator itself can do.
fn ceilings(binary: &Path, dir: &Path, sizes: &[u64]) -> Result<Vec<(u64, Outcome)>> {
    let port = free_ports(1)?[0];
    let mut server = [Process::start(
        "null",
        binary,
        &["bench-null", &port.to_string()],
        &dir.join("log"),
    )?];
    wait_for_port(port, &mut server)?;
    let mut all = Vec::new();
    for &size in sizes {
        let job = Job {
            port,
            token: "none".into(),
            prefix: format!("/{size}/"),
            containers: CONTAINERS,
            verb: Verb::Get,
            size,
            connections: 64,
            warm_up_seconds: 0,
            seconds: 2,
            first: 0,
            count: 1000,
            headers: String::new(),
            ca: None,
        };
        all.push((size, load_process(binary, &job)?));
    }
    Ok(all)
}
