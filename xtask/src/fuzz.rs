//! The fuzz targets of `fuzz/`, each for a short while. They need the nightly toolchain (its
//! sanitizers) and cargo-fuzz; property tests in the crates cover the same parsers without.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::workspace::{root, run_quiet};

#[derive(Args)]
pub(crate) struct Options {
    /// For each target
    #[arg(long, default_value_t = 30)]
    pub(crate) seconds: u64,
    /// Only these targets
    pub(crate) targets: Vec<String>,
}

/// Can targets be built here?
pub(crate) fn available() -> bool {
    run_quiet(Command::new("cargo").args(["+nightly", "fuzz", "--version"])).is_ok()
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !available() {
        bail!("fuzzing needs: rustup toolchain install nightly; cargo install cargo-fuzz");
    }
    for target in targets()? {
        if options.targets.is_empty() || options.targets.contains(&target) {
            smoke(&target, options.seconds)?;
        }
    }
    Ok(())
}

/// The targets' names, from their files.
pub(crate) fn targets() -> Result<Vec<String>> {
    let dir = root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|s| s.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

pub(crate) fn smoke(target: &str, seconds: u64) -> Result<()> {
    let fuzz = root().join("fuzz");
    // What is found goes to the first folder; the seeds are committed and stay as they are.
    let corpus = fuzz.join("corpus").join(target);
    std::fs::create_dir_all(&corpus)?;
    let mut command = Command::new("cargo");
    command
        .current_dir(root())
        .args(["+nightly", "fuzz", "run", target])
        .arg(&corpus);
    let seeds = fuzz.join("seeds").join(target);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command.args(["--", "-rss_limit_mb=2048", "-timeout=10", "-verbosity=0"]);
    run_quiet(command.arg(format!("-max_total_time={seconds}")))?;
    println!("{target}: {seconds} seconds, nothing found");
    Ok(())
}
