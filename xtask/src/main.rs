//! `cargo xtask …`: what developers of Cairn run, beside cargo itself.
//!
//! One file per command. What a command starts (Cairn, OpenStack Swift, memcached) listens on
//! loopback only, lives under `target/xtask`, and ends with the command. Depends on no crate of
//! the workspace: everything here meets Cairn as its users do, over HTTP and the command line.

mod bench;
mod cairn;
mod clients;
mod conformance;
mod crash;
mod fuzz;
mod interop;
mod process;
mod random;
mod report;
mod swift;
mod test;
mod venv;
mod wire;
mod workspace;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, tests and measures Cairn")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build Cairn and run `cairn up ARGS`
    Up {
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// OpenStack Swift's own test suites against Cairn
    Conformance {
        #[command(subcommand)]
        suite: conformance::Suite,
    },
    /// python-swiftclient, rclone and curl against Cairn, bytes compared
    Clients,
    /// OpenStack Swift and Cairn serve each other's files
    Interop,
    /// Kill the store at random moments, find everything it acknowledged; lose a device
    Crash(crash::Options),
    /// PUT, GET and DELETE on OpenStack Swift and on Cairn, side by side
    Bench(bench::Options),
    /// Everything that fits in minutes; installs what it needs
    Test(test::Options),
    /// Every fuzz target for a short while (needs the nightly toolchain)
    Fuzz(fuzz::Options),
    /// The load generator of `bench`, as a process of its own: a job on stdin, a result on stdout
    #[command(hide = true)]
    BenchLoad,
    /// Answers every GET with as many bytes as its path says: the generator's own ceiling
    #[command(hide = true)]
    BenchNull { port: u16 },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Up { args } => up(&args),
        Command::Conformance { suite } => conformance::run(&suite),
        Command::Clients => clients::run()?.finish(),
        Command::Interop => interop::run()?.finish(),
        Command::Crash(options) => crash::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::BenchLoad => bench::load::main(),
        Command::BenchNull { port } => bench::null::main(port),
    }
}

fn up(args: &[String]) -> Result<()> {
    let binary = workspace::build_cairn()?;
    let error = std::process::Command::new(&binary)
        .arg("up")
        .args(args)
        .exec();
    Err(error).with_context(|| format!("running {}", binary.display()))
}
