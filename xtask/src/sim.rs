//! The cluster simulator: many seeds, one seed with its log, planted bugs; see `docs/simulator.md`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use cairn_testkit::workspace::{cargo, run as run_program, target};

/// Value of `--plant` for all bugs, which `crates/types/src/plant.rs` names.
const ALL: &str = "all";

#[derive(Args)]
pub(crate) struct Options {
    /// Number of seeds
    #[arg(long, default_value_t = 1000)]
    pub(crate) seeds: u64,
    /// The first one
    #[arg(long, default_value_t = 1)]
    pub(crate) first: u64,
    /// Only this one, with its whole log
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    pub(crate) seed: Option<u64>,
    /// Seeds run at once; all processors where it is not given
    #[arg(long)]
    pub(crate) jobs: Option<usize>,
    /// A bug on purpose, to be found; `all`: each in turn, with the seed that finds it
    #[arg(long)]
    pub(crate) plant: Option<String>,
    /// A build without optimisation: made sooner, slower after
    #[arg(long)]
    pub(crate) debug: bool,
    /// One of the containers is erasure-coded
    #[arg(long)]
    pub(crate) fragments: bool,
    /// Most objects expire, within seconds
    #[arg(long)]
    pub(crate) expiring: bool,
    /// New objects are put by several clients at once, and the power fails often
    #[arg(long)]
    pub(crate) crowded: bool,
    /// Syncs of databases fail on all nodes, and the power fails often
    #[arg(long)]
    pub(crate) failing_syncs: bool,
    /// Objects are large, their content rots often, and they are read while they are replaced
    #[arg(long)]
    pub(crate) rot: bool,
    /// Several clients replace the same objects on the condition that nobody else has
    #[arg(long)]
    pub(crate) conditional: bool,
    /// Go on after a seed that fails
    #[arg(long)]
    pub(crate) keep_going: bool,
}

impl Options {
    /// Options of a run of this number of seeds, with no bug planted.
    pub(crate) fn seeds(seeds: u64) -> Self {
        Options {
            seeds,
            first: 1,
            seed: None,
            jobs: None,
            plant: None,
            debug: false,
            fragments: false,
            expiring: false,
            crowded: false,
            failing_syncs: false,
            rot: false,
            conditional: false,
            keep_going: false,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = build(options.debug, options.plant.is_some())?;
    let mut command = std::process::Command::new(program);
    match options.seed {
        Some(seed) => command.args(["--seed", &seed.to_string()]),
        None => command
            .args(["--seeds", &options.seeds.to_string()])
            .args(["--first", &options.first.to_string()]),
    };
    let jobs = options.jobs.map_or_else(processors, |jobs| jobs.max(1));
    command.args(["--jobs", &jobs.to_string()]);
    if let Some(bug) = &options.plant {
        command.args(["--plant", bug]);
    }
    for (is_wanted, name) in [
        (options.fragments, "--fragments"),
        (options.expiring, "--expiring"),
        (options.crowded, "--crowded"),
        (options.failing_syncs, "--failing-syncs"),
        (options.rot, "--rot"),
        (options.conditional, "--conditional"),
    ] {
        if is_wanted {
            command.arg(name);
        }
    }
    if options.keep_going {
        command.arg("--keep-going");
    }
    if options.plant.as_deref().is_none_or(|bug| bug == ALL) {
        return run_program(&mut command);
    }
    // The run must find the planted bug, so success is a failure.
    if run_program(&mut command).is_ok() {
        bail!("no seed found the bug");
    }
    Ok(())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Builds the simulator; if one is to be planted, with the bugs compiled in, which no other program
/// has. Without them it is made of the same crates as the store, which are compiled once for both.
fn build(debug: bool, has_bugs: bool) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", "cairn-sim"]);
    if has_bugs {
        command.args(["--features", "plant"]);
    }
    if !debug {
        command.arg("--release");
    }
    run_program(&mut command)?;
    let kind = if debug { "debug" } else { "release" };
    Ok(target().join(kind).join("cairn-sim"))
}
