//! Benchmark of a store with many small objects in volumes, beside an empty one: PUT, GET and DELETE of
//! both in turn, the disk reads of a cold GET, the time to start, and memory.
//!
//! Objects are written by the engine's own library, straight to the devices where the ring has them
//! (`crates/pebbles/benches/fill.rs`), since 10 M PUTs would take hours; containers have no rows of them.
//! The store is one of `cairn up`: four devices, three replicas, volumes of 32 MiB, but without the
//! daemons of objects, whose auditor would read all of it. Reads are counted by the block device that the store's devices are on, so that
//! they include the file system's own; with `--file-system ext4` or `xfs` nobody else uses it.

mod cold;
mod starts;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::disk::Disk;
use super::load::Verb;
use super::protection::Bar;
use super::{CONTAINERS, Cell, Options, Subject, alternate, program, with_containers};
use crate::engine::EngineName;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::process::{Process, wait_for};
use cairn_testkit::wire::Connection;
use cairn_testkit::workspace;
use cold::ColdGets;
use starts::Start;

const OBJECTS: u64 = 10_000_000;
const OBJECT_BYTES: u64 = 256;
const REPLICAS: u64 = 3;
/// The load's objects, and connections.
const LOAD_BYTES: u64 = 4000;
const CONNECTIONS: usize = 64;
const EMPTY: &str = "empty";
const FULL: &str = "full";

const WANTED_PUTS: f64 = 0.8;
const READS_MAX: f64 = 1.0;
const START_SECONDS_MAX: f64 = 10.0;
const MEMORY_BYTES_MAX: f64 = 60.0;

#[derive(Serialize)]
struct Results {
    objects: u64,
    object_bytes: u64,
    records: u64,
    fill_seconds: f64,
    /// Bytes of the devices that are taken.
    disk_bytes: u64,
    starts: Vec<Start>,
    memory: Memory,
    cold_gets: ColdGets,
    cells: Vec<Cell>,
    puts: Bar,
}

/// Memory of the process that has the full store, beyond that of the empty one.
#[derive(Serialize)]
struct Memory {
    /// Anonymous memory of the processes.
    full_bytes: u64,
    empty_bytes: u64,
    bytes_a_record: f64,
    /// By the engine's own estimate.
    index_bytes_a_record: f64,
}

/// A store, and the file system of its devices.
struct Part {
    name: &'static str,
    store: Cairn,
    disk: Disk,
}

pub(super) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.engine != Some(EngineName::Files),
        "`volumes` has one engine"
    );
    let lab = workspace::build_cairn()?;
    let dir = workspace::scratch("volumes")?;
    let mut empty = Part::create(dir.path(), EMPTY, &lab, options)?;
    let mut full = Part::create(dir.path(), FULL, &lab, options)?;
    let objects = options.objects.unwrap_or(OBJECTS);
    let (records, fill_seconds) = full.fill(objects)?;
    let mut starts = vec![full.started(records, "cold, after a clean stop")?];
    empty.store.start(Spread::OneProcess)?;
    with_containers(empty.store.port())?;
    let memory = Memory::of(&full, &empty, records)?;
    println!("{}", memory.line());
    let cold_gets = full.cold_gets(objects)?;
    println!("{}", cold_gets.line());
    let cells = in_turns(&[&empty, &full], &lab, options)?;
    let puts = ratios(&cells, Verb::Put).context("nothing was put")?;
    full.store.kill();
    // It would tidy up after what was deleted, on the same processors.
    empty.store.kill();
    starts.push(full.started(records, "cold, after it was killed")?);
    // A clean end writes checkpoints, which may take longer than is waited for.
    full.store.kill();
    let room = rustix::fs::statvfs(full.disk.path())?;
    let results = Results {
        objects,
        object_bytes: OBJECT_BYTES,
        records,
        fill_seconds,
        disk_bytes: (room.f_blocks - room.f_bfree) * room.f_frsize,
        starts,
        memory,
        cold_gets,
        puts,
        cells: cells.into_iter().map(|(_, cell)| cell).collect(),
    };
    workspace::keep("bench", "volumes.json", &results)?;
    results.verdict()
}

impl Part {
    fn create(dir: &Path, name: &'static str, binary: &Path, options: &Options) -> Result<Part> {
        let disk = Disk::fresh(dir, name, options.file_system)?;
        let store = Cairn::create(binary, &disk.path().join("data"), None)?;
        EngineName::set(Some(EngineName::Pebbles), &store)?;
        let conf = store.conf("object").context("no object conf")?;
        let text = std::fs::read_to_string(&conf)?;
        // Their reads would be counted as those of GETs.
        std::fs::write(&conf, without_daemons(&text))?;
        Ok(Part { name, store, disk })
    }

    /// Fills the devices while nothing runs; returns the number of records, and seconds.
    fn fill(&mut self, objects: u64) -> Result<(u64, f64)> {
        self.store.start(Spread::OneProcess)?;
        let account = with_containers(self.store.port())?;
        self.store.stop()?;
        let conf = self.store.conf("object").context("no object conf")?;
        let text = std::fs::read_to_string(&conf)?;
        let volume_bytes = text
            .lines()
            .find_map(|line| line.strip_prefix("pebbles_volume_bytes = "))
            .context("no size of volumes in the conf")?;
        let mut arguments = vec![
            workspace::utf8(conf.parent().context("a conf at the root")?)?.to_owned(),
            volume_bytes.to_owned(),
            account.path.trim_start_matches("/v1/").to_owned(),
            CONTAINERS.to_string(),
            objects.to_string(),
            OBJECT_BYTES.to_string(),
        ];
        for device in self.store.devices()? {
            arguments.push(workspace::utf8(&device)?.to_owned());
        }
        let begun = Instant::now();
        let mut records = 0;
        program::run("cairn-pebbles", "fill", &arguments, |line| {
            records = line.parse().with_context(|| line.to_owned())?;
            Ok(())
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{objects} objects of {OBJECT_BYTES} bytes, {records} records on four devices, in \
             {seconds:.0} s ({:.0} records/s)",
            records as f64 / seconds
        );
        ensure!(records == objects * REPLICAS, "{records} records");
        Ok((records, seconds))
    }

    fn process(&self) -> Result<&Process> {
        self.store.processes().first().context("no process")
    }

    /// A figure of the process, summed over its stores of volumes.
    fn figure(&self, name: &str) -> Result<u64> {
        let answer = Connection::new(self.store.port()).call("GET", "/metrics", &[], b"")?;
        ensure!(answer.status == 200, "/metrics: {}", answer.status);
        Ok(sum_of(&answer.text(), name))
    }

    /// Bytes of memory that are the process's own.
    fn memory(&self) -> Result<u64> {
        let file = format!("/proc/{}/status", self.process()?.id());
        let text = std::fs::read_to_string(&file)?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("no RssAnon in {file}"))? * 1024)
    }
}

impl Memory {
    fn of(full: &Part, empty: &Part, records: u64) -> Result<Memory> {
        // Memory that opening needed is given back by then.
        std::thread::sleep(Duration::from_secs(3));
        let (full_bytes, empty_bytes) = (full.memory()?, empty.memory()?);
        let index = full.figure("cairn_pebbles_index_bytes")?;
        let more = full_bytes.saturating_sub(empty_bytes);
        Ok(Memory {
            full_bytes,
            empty_bytes,
            bytes_a_record: more as f64 / records.max(1) as f64,
            index_bytes_a_record: index as f64 / records.max(1) as f64,
        })
    }

    fn line(&self) -> String {
        format!(
            "anonymous memory: {} MB, {} MB with nothing in it: {:.1} B a record (the engine says {:.1})",
            self.full_bytes >> 20,
            self.empty_bytes >> 20,
            self.bytes_a_record,
            self.index_bytes_a_record
        )
    }
}

/// Measures both stores in turn, the other one frozen.
fn in_turns(parts: &[&Part], lab: &Path, options: &Options) -> Result<Vec<(usize, Cell)>> {
    let mut subjects = Vec::new();
    for part in parts {
        let (port, processes) = (part.store.port(), part.store.processes());
        let subject = Subject::new(part.name, port, processes, part.disk.path())?;
        subject.freeze(true);
        subjects.push(subject);
    }
    let size = options.sizes.first().copied().unwrap_or(LOAD_BYTES);
    let connections = options.connections.first().copied();
    let seconds = options.seconds.unwrap_or(8);
    let load = (size, connections.unwrap_or(CONNECTIONS), seconds);
    let measured = alternate(&mut subjects, lab, load, options.rounds);
    for subject in &subjects {
        subject.freeze(false);
    }
    let cells = measured?;
    for verb in [Verb::Put, Verb::Get, Verb::Delete] {
        let errors = cells.iter().filter(|(_, cell)| cell.verb == verb);
        let errors: u64 = errors.map(|(_, cell)| cell.outcome.errors).sum();
        if let Some(bar) = ratios(&cells, verb) {
            println!(
                "{}: {:.2} of that of the empty store (rounds {:.2} to {:.2}); {} op/s; {errors} errors",
                bar.name,
                bar.median,
                bar.lowest,
                bar.highest,
                rates(&cells, verb)
            );
        }
    }
    Ok(cells)
}

/// Operations per second of a store, by rounds.
fn rates_of(cells: &[(usize, Cell)], store: &str, verb: Verb) -> Vec<f64> {
    let of_it = cells
        .iter()
        .filter(|(_, cell)| cell.store == store && cell.verb == verb);
    let mut of_it: Vec<_> = of_it.collect();
    of_it.sort_by_key(|(round, _)| *round);
    of_it
        .iter()
        .map(|(_, cell)| cell.outcome.per_second())
        .collect()
}

fn rates(cells: &[(usize, Cell)], verb: Verb) -> String {
    let middle = |store| cairn_testkit::figures::median(rates_of(cells, store, verb));
    let [empty, full] = [EMPTY, FULL].map(|store| middle(store).unwrap_or(0.0));
    format!("{empty:.0} / {full:.0}")
}

/// The full store's rates as multiples of the empty one's in the same round.
fn ratios(cells: &[(usize, Cell)], verb: Verb) -> Option<Bar> {
    let (empty, full) = (rates_of(cells, EMPTY, verb), rates_of(cells, FULL, verb));
    let pairs = full.iter().zip(&empty).filter(|(_, empty)| **empty > 0.0);
    let ratios = pairs.map(|(full, empty)| full / empty).collect();
    Bar::of(verb.as_str().to_owned(), WANTED_PUTS, ratios)
}

impl Results {
    /// A line for each bar; an error where one is missed.
    fn verdict(&self) -> Result<()> {
        let start = self.starts.iter().map(|start| start.served_seconds);
        let start = start.fold(0.0, f64::max);
        let bars = [
            (
                "PUT of the empty store's",
                self.puts.median,
                self.puts.is_met(),
                WANTED_PUTS,
            ),
            (
                "disk reads a cold GET",
                self.cold_gets.reads_a_get,
                self.cold_gets.reads_a_get <= READS_MAX,
                READS_MAX,
            ),
            (
                "seconds to start",
                start,
                start <= START_SECONDS_MAX,
                START_SECONDS_MAX,
            ),
            (
                "bytes of memory a record",
                self.memory.bytes_a_record,
                self.memory.bytes_a_record <= MEMORY_BYTES_MAX,
                MEMORY_BYTES_MAX,
            ),
        ];
        for (name, value, is_met, bar) in &bars {
            let word = if *is_met { "met" } else { "missed" };
            println!("{name}: {value:.2}, bar {bar}: {word}");
        }
        let missed = bars.iter().filter(|bar| !bar.2).count();
        ensure!(missed == 0, "{missed} of {} bars missed", bars.len());
        Ok(())
    }
}

/// An object server's conf without the sections of its daemons, which are the last ones.
fn without_daemons(text: &str) -> &str {
    text.find("\n[object-")
        .map_or(text, |daemons| &text[..=daemons])
}

/// The sum of a figure over all of its labels.
fn sum_of(figures: &str, name: &str) -> u64 {
    let lines = figures.lines().filter_map(|line| line.strip_prefix(name));
    let values = lines.filter_map(|rest| rest.strip_prefix('{')?.rsplit_once(' '));
    values
        .filter_map(|(_, value)| value.parse::<f64>().ok())
        .sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_left_out() {
        let text = "[app:object-server]\nuse = x\n[object-replicator]\ninterval = 1\n";
        assert_eq!(without_daemons(text), "[app:object-server]\nuse = x\n");
        assert_eq!(without_daemons("[DEFAULT]\n"), "[DEFAULT]\n");
    }

    #[test]
    fn figures_of_all_stores_are_summed() {
        let figures = "# TYPE cairn_pebbles_objects gauge\n\
                       cairn_pebbles_objects{store=\"d1/pebbles\"} 7\n\
                       cairn_pebbles_objects{store=\"d2/pebbles\"} 5.0\n\
                       cairn_pebbles_objects_more{store=\"d2/pebbles\"} 100\n";
        assert_eq!(sum_of(figures, "cairn_pebbles_objects"), 12);
        assert_eq!(sum_of(figures, "cairn_other"), 0);
    }
}
