//! Cluster simulator: a whole cluster in one process, with failing network and disks, driven from a
//! seed.
//!
//! Each seed is a cluster of its own: real servers and daemons on one thread, in virtual time; the
//! simulator controls every message, disk operation and clock. Clients write and read while faults
//! are injected; then faults end, the daemons converge, and the final state is compared with the
//! responses that clients received. `docs/simulator.md` describes what is modelled and what is not.

mod addresses;
mod check;
mod client;
mod cluster;
mod disk;
mod faults;
mod gates;
mod life;
mod load;
mod lost;
mod manner;
mod model;
mod network;
mod panics;
mod policies;
mod replicas;
mod rings;
mod run;
mod shared;
mod swaps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;

use crate::rings::RingSets;
use parking_lot::Mutex;

/// Runs seeds of the cluster simulator.
#[derive(Parser)]
struct Options {
    /// How many seeds
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first one
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Only this one, with its whole log
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Seeds run at once
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// One seed in so many is run twice, to see that it repeats itself; 0: none
    #[arg(long, default_value_t = 20)]
    replay: u64,
    /// A bug to find, or `all` in turn (a build with the feature `plant` only)
    #[arg(long)]
    plant: Option<String>,
    /// One of the containers keeps fragments of its objects instead of replicas
    #[arg(long)]
    fragments: bool,
    /// Most objects expire, within seconds
    #[arg(long)]
    expiring: bool,
    /// New objects are put by several clients at once, and the power fails often
    #[arg(long)]
    crowded: bool,
    /// Syncs of databases fail on all nodes, and the power fails often
    #[arg(long)]
    failing_syncs: bool,
    /// Objects are large, their content rots often, and they are read while they are replaced
    #[arg(long)]
    rot: bool,
    /// Several clients replace the same objects on the condition that nobody else has
    #[arg(long)]
    conditional: bool,
    /// Go on after a seed that fails
    #[arg(long)]
    keep_going: bool,
}

impl Options {
    fn manner(&self, is_verbose: bool) -> manner::Manner {
        manner::Manner {
            is_verbose,
            is_expiring: self.expiring,
            is_crowded: self.crowded,
            has_failing_syncs: self.failing_syncs,
            is_rotting: self.rot,
            is_conditional: self.conditional,
        }
    }
}

fn main() -> ExitCode {
    panics::watch();
    match simulate(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A temporary folder in memory if there is such a file system: nothing here must survive.
fn scratch() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let place: PathBuf = match memory.is_dir() {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    };
    let made = tempfile::Builder::new()
        .prefix("cairn-sim-")
        .tempdir_in(&place);
    made.with_context(|| format!("no scratch folder in {}", place.display()))
}

/// Runs the seeds; true if nothing was wrong.
fn simulate(options: &Options) -> Result<bool> {
    match options.plant.as_deref() {
        Some("all") => return every_bug(options),
        Some(name) => plant(name)?,
        None => {}
    }
    let scratch = scratch()?;
    let rings = RingSets::make(scratch.path(), options.fragments)?;
    if let Some(seed) = options.seed {
        let outcome = run::seed(seed, &rings, scratch.path(), options.manner(true))?;
        for line in &outcome.lines {
            println!("{line}");
        }
        report(seed, &outcome);
        return Ok(outcome.wrong.is_empty());
    }
    let started = Instant::now();
    let (next, failed) = (AtomicU64::new(options.first), Mutex::new(Vec::new()));
    let (stop, error) = (AtomicBool::new(false), Mutex::new(None));
    let (done, events) = (AtomicU64::new(0), AtomicU64::new(0));
    let end = options.first + options.seeds;
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            match one(seed, options, &rings, scratch.path()) {
                Ok(outcome) => {
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    if !outcome.wrong.is_empty() {
                        report(seed, &outcome);
                        failed.lock().push(seed);
                        if !options.keep_going {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
                Err(why) => {
                    *error.lock() = Some(why.context(format!("seed {seed}")));
                    stop.store(true, Ordering::Relaxed);
                }
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(500) {
                eprintln!("{done} seeds, {:.0} s", started.elapsed().as_secs_f64());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(work);
        }
    });
    if let Some(error) = error.lock().take() {
        return Err(error);
    }
    let mut failed = std::mem::take(&mut *failed.lock());
    failed.sort_unstable();
    println!(
        "{} seeds from {}, {} events, {:.1} s; failed: {failed:?}",
        done.load(Ordering::Relaxed),
        options.first,
        events.load(Ordering::Relaxed),
        started.elapsed().as_secs_f64()
    );
    Ok(failed.is_empty())
}

/// Runs a seed; some of them twice.
fn one(seed: u64, options: &Options, rings: &RingSets, scratch: &Path) -> Result<run::Outcome> {
    let manner = options.manner(false);
    let mut outcome = run::seed(seed, rings, scratch, manner)?;
    if options.replay > 0 && seed.is_multiple_of(options.replay) {
        let again = run::seed(seed, rings, scratch, manner)?;
        if again.hash != outcome.hash {
            let text = format!(
                "not the same twice: {} events, then {}",
                outcome.events, again.events
            );
            outcome.wrong.push(text);
        }
    }
    Ok(outcome)
}

fn report(seed: u64, outcome: &run::Outcome) {
    println!(
        "seed {seed}: {} events, log {:016x}",
        outcome.events, outcome.hash
    );
    for wrong in &outcome.wrong {
        println!("  {wrong}");
    }
}

/// Plants each bug in turn, and prints which seed found it. True if all were found.
fn every_bug(options: &Options) -> Result<bool> {
    let mut all_found = true;
    for bug in cairn_types::plant::Plant::ALL {
        plant(bug.name())?;
        let scratch = scratch()?;
        let rings = RingSets::make(scratch.path(), options.fragments)?;
        let mut found = None;
        for seed in options.first..options.first + options.seeds {
            let outcome = run::seed(seed, &rings, scratch.path(), options.manner(false))?;
            if let Some(wrong) = outcome.wrong.first() {
                found = Some((seed, wrong.lines().next().unwrap_or_default().to_owned()));
                break;
            }
        }
        match &found {
            Some((seed, wrong)) => println!("{:20} seed {seed}: {wrong}", bug.name()),
            None => println!("{:20} NOT FOUND in {} seeds", bug.name(), options.seeds),
        }
        all_found &= found.is_some();
    }
    Ok(all_found)
}

#[cfg(feature = "plant")]
fn plant(name: &str) -> Result<()> {
    let all = cairn_types::plant::Plant::ALL;
    let names = all.map(|p| p.name()).join(", ");
    let plant = all.into_iter().find(|p| p.name() == name);
    plant
        .with_context(|| format!("--plant {name}: there are {names}"))?
        .turn_on();
    Ok(())
}

#[cfg(not(feature = "plant"))]
fn plant(name: &str) -> Result<()> {
    anyhow::bail!("--plant {name}: this build has no bugs; build with --features plant")
}
