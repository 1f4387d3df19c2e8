//! `cargo xtask …`: what developers of Cairn run, beside cargo itself.
//!
//! One file per command. What a command starts (Cairn, OpenStack Swift, memcached) listens on
//! loopback only, lives under `target/xtask`, and ends with the command. What commands share is the
//! crate `testkit`. Neither depends on another crate of the workspace: everything here meets Cairn
//! as its users do, over HTTP and the command line.

mod backup;
mod bench;
mod ceph;
mod clients;
mod conformance;
mod console;
mod crash;
mod docs;
mod engine;
mod faults;
mod fuzz;
mod hosts;
mod identity;
mod interop;
mod keystone;
mod lab_drivers;
mod lab_live;
mod mixed;
mod mount;
mod probe;
mod security;
mod sim;
mod study;
mod test;
mod tidy;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};
use cairn_testkit::report::{self, MaySkip};
use cairn_testkit::workspace;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, tests and measures Cairn")]
struct Cli {
    /// A check that may be skipped, by the beginning of its name, and why; any other one that is
    /// skipped fails the run
    #[arg(long, global = true, value_name = "NAME=WHY")]
    may_skip: Vec<MaySkip>,
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
    /// python-swiftclient, rclone, curl, restic and duplicity against Cairn, bytes compared
    Clients,
    /// The examples of the documentation, as their pages show them
    Docs(docs::Options),
    /// A real Keystone and the store's own identity, with clients that log in by them
    Identity,
    /// OpenStack Swift and Cairn serve each other's files
    Interop,
    /// The console's page in a real browser; its units; that console/dist is up to date
    Console(console::Options),
    /// Kill the store at random moments, find everything it acknowledged; lose a device
    Crash(crash::Options),
    /// A store on disks that fail, are slow, full or lose their power (needs root and /dev/fuse)
    Faults(faults::Options),
    /// Programs on a mounted container (needs root and /dev/fuse)
    Mount(mount::Options),
    /// Attacks on a running store, each on OpenStack Swift too
    Security(security::Options),
    /// OpenStack Swift and Cairn in one cluster, nodes swapped from one to the other under load
    Mixed(mixed::Options),
    /// A cluster over network namespaces: disks pulled, hosts killed, regions cut (needs root)
    Hosts(hosts::Options),
    /// Two load drivers in two network namespaces, one killed mid-run (needs root)
    LabDrivers,
    /// The lab against live stores of every kind, and against stores that are not there
    Lab(lab_live::Options),
    /// PUT, GET and DELETE on OpenStack Swift and on Cairn, side by side
    Bench(bench::Options),
    /// A study's workload on Cairn and on OpenStack Swift, in turn, and its plots side by side
    Study(study::Options),
    /// A whole cluster in one process, with faults, driven from seeds
    Sim(sim::Options),
    /// Rules over sources, manifests and pages: layers, forbidden uses, lengths, links
    Tidy(tidy::Options),
    /// Everything that fits in minutes; installs what it needs
    Test(test::Options),
    /// Every fuzz target for a short while; installs cargo-fuzz
    Fuzz(fuzz::Options),
    /// The load generator of `bench tls`, `container` and `repair`, as a process of its own: a job on stdin, a result on stdout
    #[command(hide = true)]
    BenchLoad,
    /// Answers every GET with as many bytes as its path says: the generator's own ceiling
    #[command(hide = true)]
    BenchNull { port: u16 },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    report::allow_skips(cli.may_skip);
    match run(cli.command) {
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
        Command::Docs(options) => docs::run(&options)?.finish(),
        Command::Identity => identity::run()?.finish(),
        Command::Interop => interop::run()?.finish(),
        Command::Console(options) => console::run(&options)?.finish(),
        Command::Crash(options) => crash::run(&options),
        Command::Faults(options) => faults::run(&options)?.finish(),
        Command::Mount(options) => mount::run(&options)?.finish(),
        Command::Security(options) => security::run(&options)?.finish(),
        Command::Mixed(options) => mixed::run(&options),
        Command::Hosts(options) => hosts::run(&options)?.finish(),
        Command::LabDrivers => lab_drivers::run()?.finish(),
        Command::Lab(options) => lab_live::run(&options)?.finish(),
        Command::Bench(options) => bench::run(&options),
        Command::Study(options) => study::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Tidy(options) => tidy::run(&options),
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
