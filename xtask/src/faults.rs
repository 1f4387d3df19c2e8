//! Fault injection into disks: a store on disks, each a file system on a loop device on a file that
//! this program serves, with a cache that a power cut empties, and with reads, writes and flushes
//! that fail where and when told to. Each case injects into some or all of them what broke a store
//! before, and then checks everything that was acknowledged.
//!
//! Counted as lost or wrong: an object or a row in an impossible state, and any response that seems
//! complete and is wrong. A store may refuse (5xx) what its disks refuse, unless the case is about
//! exactly that.

mod cases;
mod disk;
mod fuse;
mod layout;
mod medium;
mod rig;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;

use anyhow::{Context, Result, bail};
use clap::Args;

use cairn_testkit::report::Report;
use cairn_testkit::workspace;

use crate::engine::EngineName;
pub(crate) use cases::Case;
pub(crate) use disk::FileSystem;

#[derive(Args)]
pub(crate) struct Options {
    /// Cases to run; all if none is named
    #[arg(value_enum)]
    pub(crate) cases: Vec<Case>,
    /// On which file systems; all where none is named
    #[arg(long = "fs", value_enum)]
    pub(crate) file_systems: Vec<FileSystem>,
    /// Rounds of each case, each with a new store and another seed
    #[arg(long, default_value_t = 2)]
    pub(crate) rounds: u64,
    /// Cases with a single round, beside `cases`
    #[arg(skip)]
    once: Vec<Case>,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Rounds that run concurrently, each with a store and disks of its own
    #[arg(long, default_value_t = 2)]
    pub(crate) jobs: u64,
    /// Say of each round what was lost, all of it
    #[arg(long)]
    pub(crate) verbose: bool,
    /// The engine of all policies
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineName>,
    /// Keep the stores' confs and logs for a look
    #[arg(long)]
    pub(crate) keep: bool,
}

impl Options {
    /// Options for a few minutes: of the longer cases, those that found most have one round each.
    pub(crate) fn short() -> Self {
        Options {
            once: vec![
                Case::Rows,
                Case::Quarantine,
                Case::Descriptors,
                Case::BadWrite,
            ],
            cases: vec![
                Case::Mixture,
                Case::Unread,
                Case::Corrupt,
                Case::CorruptFragments,
                Case::Full,
                Case::Unmount,
            ],
            file_systems: vec![FileSystem::Ext4],
            rounds: 2,
            seed: 1,
            jobs: 2,
            verbose: false,
            engine: None,
            keep: false,
        }
    }
}

/// Outcome of one round.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) acknowledged: u64,
    pub(crate) refused: u64,
    /// Requests that disks failed, and bytes that they returned changed.
    pub(crate) faults: u64,
    /// Acknowledged data that is missing, or responses that are wrong.
    pub(crate) lost: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let Some(_lock) = lock()? else {
        bail!("another run of this command is under way in this workspace");
    };
    disk::sweep();
    sweep_when_interrupted()?;
    let (mut cases, mut file_systems) = (options.cases.clone(), options.file_systems.clone());
    if cases.is_empty() {
        cases = Case::all();
    }
    let cases = cases.into_iter().map(|case| (case, options.rounds));
    let cases: Vec<_> = cases
        .chain(options.once.iter().map(|case| (*case, 1)))
        .collect();
    if file_systems.is_empty() {
        file_systems = vec![FileSystem::Ext4, FileSystem::Ext4NoJournal, FileSystem::Xfs];
    }
    let binary = std::fs::canonicalize(workspace::build_cairn()?)?;
    for file_system in file_systems {
        if let Some(why) = disk::missing(file_system) {
            report.skip(&format!("faults on {}", file_system.name()), &why);
            continue;
        }
        for (case, count) in &cases {
            let name = format!("{} on {}", case.words(), file_system.name());
            report.tell(&name, || {
                rounds(*case, *count, file_system, &binary, options)
            });
        }
    }
    Ok(report)
}

/// All rounds of a case: prints numbers, and fails if anything was lost.
fn rounds(
    case: Case,
    count: u64,
    file_system: FileSystem,
    binary: &Path,
    options: &Options,
) -> Result<String> {
    let next = AtomicU64::new(1);
    let one_after_the_other = || {
        let mut done = Vec::new();
        loop {
            let round = next.fetch_add(1, Ordering::Relaxed);
            if round > count {
                return Ok(done);
            }
            let setup = cases::Setup {
                binary,
                file_system,
                seed: options.seed.wrapping_mul(1000) + round,
                engine: options.engine,
                keep: options.keep,
            };
            let outcome = case.round(&setup);
            let outcome = outcome.with_context(|| format!("round {round}"))?;
            if options.verbose {
                tell(round, &outcome);
            }
            done.push((round, outcome));
        }
    };
    let outcomes: Result<Vec<Vec<(u64, Outcome)>>> = std::thread::scope(|scope| {
        let jobs = 0..options.jobs.max(1);
        let jobs: Vec<_> = jobs.map(|_| scope.spawn(one_after_the_other)).collect();
        let ended = |job: ScopedJoinHandle<'_, _>| {
            let panicked = |_| bail!("a round panicked");
            job.join().unwrap_or_else(panicked)
        };
        jobs.into_iter().map(ended).collect()
    });
    summed(count, outcomes?.into_iter().flatten())
}

fn tell(round: u64, outcome: &Outcome) {
    println!(
        "        round {round}: {} acknowledged, {} refused, {} faults, {} lost or wrong",
        outcome.acknowledged,
        outcome.refused,
        outcome.faults,
        outcome.lost.len()
    );
    outcome.lost.iter().for_each(|l| println!("          {l}"));
}

fn summed(rounds: u64, outcomes: impl Iterator<Item = (u64, Outcome)>) -> Result<String> {
    let mut total = Outcome::default();
    let mut failed = Vec::new();
    for (round, outcome) in outcomes {
        total.acknowledged += outcome.acknowledged;
        total.refused += outcome.refused;
        total.faults += outcome.faults;
        if !outcome.lost.is_empty() {
            failed.push(round);
        }
        total.lost.extend(outcome.lost);
    }
    let words = format!(
        "{rounds} rounds, {} acknowledged, {} refused, {} faults, {} lost or wrong",
        total.acknowledged,
        total.refused,
        total.faults,
        total.lost.len()
    );
    if total.lost.is_empty() {
        return Ok(words);
    }
    failed.sort_unstable();
    total.lost.truncate(20);
    bail!(
        "{words} in rounds {failed:?}:\n  {}",
        total.lost.join("\n  ")
    );
}

/// Lock held during a run: another one would remove its disks.
fn lock() -> Result<Option<File>> {
    let path = workspace::results("faults")?.join("lock");
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    Ok(rustix::fs::flock(&file, operation).is_ok().then_some(file))
}

/// Unmounts everything on Ctrl-C or SIGTERM.
fn sweep_when_interrupted() -> Result<()> {
    let wait = || {
        if workspace::wait_for_end().is_ok() {
            disk::sweep();
            std::process::exit(130);
        }
    };
    std::thread::Builder::new().spawn(wait)?;
    Ok(())
}
