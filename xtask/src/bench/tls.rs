//! Cost of TLS: one store whose proxies listen on two ports, one of them with TLS, and the same
//! objects read through both alternately, on persistent connections. The load generator decrypts on
//! the same machine, so its own time is shown as well. A round's ratio is that of its two cells;
//! the median over rounds counts.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::cells::READ_OBJECTS;
use super::disk::Disk;
use super::load::{Job, Outcome, Verb};
use super::protection::Bar;
use super::{CONTAINERS, Options, load_process, with_containers};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::workspace;

/// Required fraction of the throughput without TLS, by size.
const WANTED: [(u64, f64); 2] = [(4_000, 0.7), (1_000_000, 0.6)];
const CONNECTIONS: usize = 64;

#[derive(Serialize)]
struct Round {
    size: u64,
    connections: usize,
    without: Outcome,
    with: Outcome,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.with.per_second() / self.without.per_second().max(1e-9)
    }
}

/// Ports of the same store with and without TLS.
struct Ports {
    plain: u16,
    tls: u16,
    ca: PathBuf,
}

/// Prints and records each cell; returns the bars of cells that have one.
pub(super) fn measure(options: &Options) -> Result<Vec<Bar>> {
    let binary = workspace::build_release("xtask")?;
    let dir = workspace::scratch("bench")?;
    let program = workspace::build_cairn()?;
    let disk = Disk::fresh(dir.path(), "tls", options.file_system)?;
    let mut store = Cairn::create(&program, &disk.path().join("data"), None)?;
    let (tls, ca) = store.add_tls_proxy()?;
    store.start(Spread::OneProcess)?;
    let ports = Ports {
        plain: store.port(),
        tls,
        ca,
    };
    let (_, _, seconds) = options.plan();
    let sizes = match &options.sizes[..] {
        [] => WANTED.map(|(size, _)| size).to_vec(),
        sizes => sizes.to_vec(),
    };
    let connections = match &options.connections[..] {
        [] => vec![CONNECTIONS],
        connections => connections.to_vec(),
    };
    let (mut rounds, mut bars) = (Vec::new(), Vec::new());
    for (place, &size) in sizes.iter().enumerate() {
        let mut job = job(&ports, size, place as u64)?;
        ensure!(load_process(&binary, &job)?.errors == 0, "PUT failed");
        job.verb = Verb::Get;
        job.seconds = seconds;
        job.warm_up_seconds = 1;
        for &connections in &connections {
            job.connections = connections;
            let from = rounds.len();
            for number in 0..options.rounds {
                rounds.push(round(&binary, &mut job, &ports, number)?);
            }
            bars.extend(print(&rounds[from..]));
        }
    }
    store.stop()?;
    workspace::keep("bench-tls", "bench.json", &rounds)?;
    Ok(bars)
}

/// Writes the objects to be read.
fn job(ports: &Ports, size: u64, place: u64) -> Result<Job> {
    let account = with_containers(ports.plain)?;
    Ok(Job {
        port: ports.plain,
        token: account.token.clone(),
        prefix: format!("{}/bench-", account.path),
        containers: CONTAINERS,
        verb: Verb::Put,
        size,
        connections: 16,
        warm_up_seconds: 0,
        seconds: 600,
        first: place * READ_OBJECTS,
        count: READ_OBJECTS,
        headers: String::new(),
        ca: None,
    })
}

/// The order alternates.
fn round(binary: &Path, job: &mut Job, ports: &Ports, number: usize) -> Result<Round> {
    let mut measure = |is_tls: bool| -> Result<Outcome> {
        (job.port, job.ca) = match is_tls {
            true => (ports.tls, Some(ports.ca.clone())),
            false => (ports.plain, None),
        };
        let outcome = load_process(binary, job)?;
        let error = outcome.error.as_deref().unwrap_or_default();
        ensure!(outcome.errors == 0, "GET failed: {error}");
        Ok(outcome)
    };
    let (without, with) = match number % 2 {
        0 => {
            let without = measure(false)?;
            (without, measure(true)?)
        }
        _ => {
            let with = measure(true)?;
            (measure(false)?, with)
        }
    };
    Ok(Round {
        size: job.size,
        connections: job.connections,
        without,
        with,
    })
}

/// The cell's bar, if it has one.
fn print(rounds: &[Round]) -> Option<Bar> {
    let mut sorted: Vec<&Round> = rounds.iter().collect();
    sorted.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let median = sorted[sorted.len() / 2];
    let ratio = median.ratio();
    let wanted = WANTED
        .iter()
        .find(|(size, _)| *size == median.size && median.connections == CONNECTIONS);
    let bar = wanted.and_then(|(size, wanted)| {
        let name = format!("GET {size} B by TLS, {CONNECTIONS} connections");
        let ratios = rounds.iter().map(Round::ratio).collect();
        Bar::of(name, *wanted, ratios)
    });
    let verdict = match &bar {
        Some(bar) => format!(", {}", bar.verdict()),
        None => String::new(),
    };
    println!(
        "GET {} B, {} connections: {:.0}/s by TLS, {:.0}/s without: {ratio:.2} (rounds {:.2} to {:.2}; \
         the generator's own {:.0} and {:.0} µs a request){verdict}",
        median.size,
        median.connections,
        median.with.per_second(),
        median.without.per_second(),
        first.ratio(),
        last.ratio(),
        median.with.generator_cpu_us,
        median.without.generator_cpu_us,
    );
    bar
}
