//! Benchmark of PUT, GET and DELETE on OpenStack Swift and on Cairn, on this machine: with the same
//! devices, replicas, objects and connections, alternating cell by cell, each store frozen
//! (SIGSTOP) while the other is measured. It prints and records numbers without a verdict.
//!
//! The load is the lab's (`cells.rs`), a separate process whose CPU time is measured apart from the
//! servers'; its own maximum is measured against a server that does nothing. What the lab does not
//! do (`bench tls` reads ciphertext in large pieces, `bench container` speaks to a container server,
//! `bench repair` fills a cluster for it) has the generator of `load.rs`, `bench-load`.

mod builds;
mod cells;
mod container;
pub(crate) mod disk;
mod encryption;
mod heuristics;
mod lab;
pub(crate) mod load;
pub(crate) mod null;
mod pair;
mod program;
mod protection;
mod repair;
mod rows;
mod steady;
mod table;
mod tls;
pub(crate) mod usage;
mod volumes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rustix::process::Signal;

use crate::engine::EngineName;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::process::{Process, free_ports, wait_for_port};
use cairn_testkit::swift::{Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace;
use cells::Plan;
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
    /// Cost of each filter of the default pipeline, per request
    Middleware,
    /// Cairn with objects encrypted, beside itself without
    Encryption,
    /// This build of Cairn beside another one (--against): has a change made it slower?
    Builds,
    /// Each heuristic of disks and databases switched off, beside the same build with it (--heuristics)
    Heuristics,
    /// GET by TLS, beside the same without
    Tls,
    /// `tls` and `encryption` in one run, each bar with its verdict; fails where one is missed
    Protection,
    /// A device is wiped: how long until its objects are back, and clients meanwhile; with `--engine
    /// pebbles` Cairn's has volumes
    Repair,
    /// 10 M small objects in volumes: PUT beside an empty store, disk reads of a cold GET, start, memory
    Volumes,
    /// Volumes on devices that are 80 % full, under overwrites, deletions and creates (needs root)
    Steady,
    /// Rows given to container databases by a call, at 1 K and 10 M rows
    Rows,
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
    /// Rounds of `builds`, `heuristics`, `encryption`, `tls`, `protection`, `volumes`, `rows` and `mount`: as often is each cell measured, in turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// For `builds` and `mount`: the program `cairn` of the other build
    #[arg(long)]
    against: Option<PathBuf>,
    /// For `heuristics`: these alone, by name
    #[arg(long, value_delimiter = ',')]
    heuristics: Vec<String>,
    /// Measure one of the two alone
    #[arg(long)]
    only: Option<Only>,
    /// For `repair`: objects in the cluster (100,000); the first of --sizes, or 10 KB, is their size. For
    /// `volumes`: objects of 256 bytes in the store (10 M)
    #[arg(long, value_parser = parse_size)]
    objects: Option<u64>,
    /// For `steady`: bytes of each of the four devices
    #[arg(long, value_parser = parse_size, default_value = "2000M")]
    device_bytes: u64,
    /// For `repair`: the ring's partition power
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=20))]
    part_power: u32,
    /// For `repair`: OpenStack Swift's replicator by SSYNC, too, which syncs its writes like
    /// Cairn's
    #[arg(long)]
    ssync: bool,
    /// For `repair`: stop OpenStack Swift's after this multiple of Cairn's duration
    #[arg(long)]
    give_up: Option<f64>,
    /// For `container`: numbers of rows instead of 1 K, 100 K, 1 M and 10 M; for `rows`, instead of 1 K
    /// and 10 M
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    rows: Vec<u64>,
    /// For `container`: also a page after the page cache was dropped (needs root)
    #[arg(long)]
    cold: bool,
    /// For `container`: also with the container in ten shards
    #[arg(long)]
    sharded: bool,
    /// The folder of S3QL's programs, for `mount`, where they are not on the path
    #[arg(long)]
    s3ql: Option<PathBuf>,
    /// For `mount`: these parts alone
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<crate::mount::bench::Part>,
    /// For `mount`: the checkpoint alone, of this many ranks
    #[arg(long, value_name = "RANKS")]
    checkpoint: Option<usize>,
    /// Engine of all policies of Cairn's stores
    #[arg(long, value_enum)]
    engine: Option<EngineName>,
    /// File system or medium of the stores' devices
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

/// One store under load.
struct Subject {
    name: &'static str,
    port: u16,
    roots: Vec<u32>,
    watch: Watch,
    /// Folder of its devices.
    disk: PathBuf,
    /// Number of cells measured, so that no name is used twice.
    cells: u64,
}

/// Results of one cell for one store.
#[derive(Clone, serde::Serialize)]
pub(crate) struct Cell {
    pub(crate) store: &'static str,
    pub(crate) verb: Verb,
    pub(crate) size: u64,
    pub(crate) connections: usize,
    pub(crate) outcome: Outcome,
    /// CPU time of all the store's processes, over all requests of the cell.
    pub(crate) server_cpu_seconds_per_1000: f64,
    /// Maximum so far in this run.
    pub(crate) memory_peak_bytes: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match options.name {
        Name::Lab => {
            let seconds = if options.quick { 3 } else { 10 };
            lab::run(options.seconds.unwrap_or(seconds))
        }
        Name::Middleware => {
            let cost = ["bench", "--package", "cairn-middleware", "--bench", "cost"];
            workspace::run(workspace::cargo().args(cost))
        }
        Name::Container => container::run(options),
        Name::Builds => builds::measure(options),
        Name::Heuristics => heuristics::measure(options),
        Name::Encryption => encryption::measure(options).map(drop),
        Name::Tls => tls::measure(options).map(drop),
        Name::Protection => protection::run(options),
        Name::Repair => repair::run(options),
        Name::Volumes => volumes::run(options),
        Name::Steady => steady::run(options),
        Name::Rows => rows::run(options),
        Name::Mount => match options.checkpoint {
            Some(ranks) => crate::mount::bench::run_checkpoint(ranks),
            None => crate::mount::bench::run(&crate::mount::bench::Plan {
                rounds: options.rounds,
                s3ql: options.s3ql.as_deref(),
                parts: &options.parts,
                against: options.against.as_deref(),
            }),
        },
        Name::All | Name::Small | Name::Large => beside_swift(options),
    }
}

/// PUT, GET and DELETE of the sizes asked for, on OpenStack Swift and on Cairn in turn.
fn beside_swift(options: &Options) -> Result<()> {
    let (null, lab) = (
        workspace::build_release("xtask")?,
        workspace::build_cairn()?,
    );
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
        let store = cairn.insert(Cairn::create(&lab, &data, None)?);
        EngineName::set(options.engine, store)?;
        store.start(Spread::OneProcess)?;
        let (port, disk) = (store.port(), cairn_disk.path());
        subjects.push(Subject::new("Cairn", port, store.processes(), disk)?);
    }
    let (sizes, connections, seconds) = options.plan();
    let ceilings = ceilings(&null, &lab, dir.path(), &sizes)?;
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
                of_subjects.push(subject.cells(&lab, size, connections, seconds)?);
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
    workspace::keep("bench", "bench.json", &cells)
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
        let watch = Watch::start(roots.clone());
        Ok(Subject {
            name,
            port,
            roots,
            watch,
            disk: disk.to_owned(),
            cells: 0,
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

    /// Measures PUT, GET and DELETE at one size and number of connections.
    fn cells(
        &mut self,
        lab: &Path,
        size: u64,
        connections: usize,
        seconds: u64,
    ) -> Result<Vec<Cell>> {
        // The token may have expired during a long run.
        let account = Account::login(self.port)?;
        let storage_url = format!("http://127.0.0.1:{}{}", self.port, account.path);
        self.cells += 1;
        let plan = Plan {
            size,
            connections,
            seconds,
            objects_max: affordable(&self.disk, size, connections)?,
            number: self.cells,
        };
        let measured = cells::measure(lab, &storage_url, &account.token, &self.roots, plan)?;
        let cell = |(verb, outcome, cpu): (Verb, Outcome, f64)| Cell {
            store: self.name,
            verb,
            size,
            connections,
            server_cpu_seconds_per_1000: cpu * 1000.0 / (outcome.started.max(1) as f64),
            memory_peak_bytes: self.watch.peak(),
            outcome,
        };
        Ok(measured.into_iter().map(cell).collect())
    }
}

/// Measures every store in each round, all others frozen: cells with the number of their round. The order
/// rotates, so that no store always follows the same one. `plan`: size, connections, seconds.
fn alternate(
    subjects: &mut [Subject],
    lab: &Path,
    (size, connections, seconds): (u64, usize, u64),
    rounds: usize,
) -> Result<Vec<(usize, Cell)>> {
    let mut cells = Vec::new();
    let count = subjects.len();
    for round in 0..rounds {
        for turn in 0..count {
            let subject = &mut subjects[(turn + round) % count];
            subject.freeze(false);
            let measured = subject.cells(lab, size, connections, seconds)?;
            subject.freeze(true);
            cells.extend(measured.into_iter().map(|cell| (round, cell)));
        }
    }
    Ok(cells)
}

/// Maximum number of objects of a size: 6 GB in all, and at most a third of the disk including
/// three replicas; but at least two per connection.
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

/// Logs in and creates the containers of all jobs.
fn with_containers(port: u16) -> Result<Account> {
    let mut account = Account::login(port)?;
    for number in 0..CONTAINERS {
        account.must("PUT", &format!("/bench-{number}"), "", &[], b"")?;
    }
    Ok(account)
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

/// Measures GET against a server that does nothing: the generator's own maximum.
fn ceilings(null: &Path, lab: &Path, dir: &Path, sizes: &[u64]) -> Result<Vec<(u64, Outcome)>> {
    let port = free_ports(1)?[0];
    let mut server = [Process::start(
        "null",
        null,
        &["bench-null", &port.to_string()],
        &dir.join("log"),
    )?];
    wait_for_port(port, &mut server)?;
    let ceiling = |size: &u64| Ok((*size, cells::ceiling(lab, port, *size, 2)?));
    sizes.iter().map(ceiling).collect()
}
