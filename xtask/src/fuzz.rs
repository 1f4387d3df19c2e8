//! Runner of the fuzz targets in `fuzz/`, one for each parser of bytes from a network or a disk,
//! each for a short time: libFuzzer, through cargo-fuzz, with the stable toolchain.
//!
//! Without a sanitizer: the fuzzed code is safe Rust, and coverage alone halves the build time and
//! doubles the rate of runs. `fuzz/seeds` is committed; inputs found by a run go to `fuzz/corpus`,
//! and with `--keep` the few that reach code no seed reaches are added to the seeds. A failing
//! input is stored in `fuzz/artifacts`; as a seed it becomes a regression test, since crates run
//! their seeds as tests.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use cairn_testkit::workspace::{cargo, root, run as run_program, run_quiet, target};

/// Version on crates.io.
const CARGO_FUZZ: &str = "0.13.2";
/// Timeout in seconds for building all targets on two busy cores.
const BUILD_TIMEOUT: &str = "1200";
/// Maximum input size; longer input finds nothing that shorter would not.
const INPUT_MAX_BYTES: u32 = 4096;

#[derive(Args)]
pub(crate) struct Options {
    /// For each target
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Afterwards add to the seeds what reaches code that they do not
    #[arg(long)]
    pub(crate) keep: bool,
    /// Only these targets
    pub(crate) targets: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let all = targets()?;
    for name in &options.targets {
        ensure!(
            all.contains(name),
            "no target is called {name:?}: there are {all:?}"
        );
    }
    let chosen = |name: &&String| options.targets.is_empty() || options.targets.contains(name);
    let chosen: Vec<&String> = all.iter().filter(chosen).collect();
    match chosen[..] {
        [one] => build(Some(one))?,
        _ => build(None)?,
    }
    for target in chosen {
        smoke(target, options.seconds)?;
        if options.keep {
            keep(target)?;
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

/// Installs cargo-fuzz if missing, and builds one target or all of them.
pub(crate) fn build(target: Option<&str>) -> Result<()> {
    let version = run_quiet(cargo().args(["fuzz", "--version"])).unwrap_or_default();
    if version.trim() != format!("cargo-fuzz {CARGO_FUZZ}") {
        let package = format!("cargo-fuzz@{CARGO_FUZZ}");
        run_program(cargo().args(["install", "--quiet", "--locked", "--force", &package]))?;
    }
    let mut command = Command::new("timeout");
    command.arg(BUILD_TIMEOUT).arg(cargo().get_program());
    let command = cargo_fuzz(&mut command, "build").args(target);
    run_quiet(command)
        .context("building the fuzz targets")
        .map(drop)
}

/// `cargo fuzz COMMAND` with the common options.
fn cargo_fuzz<'a>(command: &'a mut Command, name: &str) -> &'a mut Command {
    command
        .current_dir(root().join("fuzz"))
        // Allows the unstable options that cargo-fuzz uses with the stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["fuzz", name, "--sanitizer", "none", "--fuzz-dir", "."])
        .arg("--target-dir")
        .arg(target().join("fuzz"))
}

/// The folder of inputs found by runs, and that of the seeds.
fn inputs(target: &str) -> Result<[PathBuf; 2]> {
    let folders = ["corpus", "seeds"].map(|name| root().join("fuzz").join(name).join(target));
    for folder in &folders {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(folders)
}

/// Runs a built target for some time.
pub(crate) fn smoke(target: &str, seconds: u64) -> Result<()> {
    let [corpus, seeds] = inputs(target)?;
    let mut command = cargo();
    // The first folder receives new inputs.
    cargo_fuzz(&mut command, "run")
        .arg(target)
        .arg(corpus)
        .arg(seeds);
    command.args([
        "--",
        "-rss_limit_mb=2048",
        "-timeout=10",
        "-print_final_stats=1",
    ]);
    command.arg(format!("-max_len={INPUT_MAX_BYTES}"));
    command.arg(format!("-max_total_time={seconds}"));
    command.env("RUST_BACKTRACE", "1");
    let output = command
        .output()
        .with_context(|| format!("running {command:?}"))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{target}: an input fails, which is now in fuzz/artifacts/{target}\n{words}"
    );
    let runs = words
        .lines()
        .find_map(|l| l.strip_prefix("stat::number_of_executed_units:"));
    let runs = runs.unwrap_or_default().trim();
    println!("{target}: {runs} runs in {seconds} seconds, nothing found");
    Ok(())
}

/// Adds to the seeds the smallest inputs of the corpus that reach code no seed reaches.
fn keep(target: &str) -> Result<()> {
    let [corpus, seeds] = inputs(target)?;
    let count = |seeds: &PathBuf| std::fs::read_dir(seeds).map(Iterator::count);
    let before = count(&seeds)?;
    let mut command = cargo();
    cargo_fuzz(&mut command, "run")
        .arg(target)
        .arg(&seeds)
        .arg(corpus);
    // Whether code is reached, without counts, which would keep hundreds of inputs.
    command.args(["--", "-merge=1", "-use_counters=0", "-verbosity=0"]);
    run_quiet(&mut command)?;
    println!(
        "{target}: {} seeds added",
        count(&seeds)?.saturating_sub(before)
    );
    Ok(())
}
