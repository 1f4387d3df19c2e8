//! Arguments and execution of the `cairn lab …` commands.

mod arguments;
mod compare;
mod driver;
mod metrics;
mod push;
mod quick;
mod ranks;
mod rename;
mod report;
mod run;
mod scale;
mod table;
mod terminal;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

pub use self::arguments::RunArguments;
pub use self::compare::CompareArguments;
pub use self::driver::DriverArguments;
pub use self::rename::RenameArguments;
pub use self::report::ReportArguments;

/// Subcommands of `cairn lab`, except the console, which is a crate of its own.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run a workload file against a store
    ///
    /// Reads COSBench workload XML, ssbench scenarios, swift-bench conf files and the lab's own
    /// TOML, drives the store they name or --target, and leaves a folder with everything needed to
    /// look at the run and to repeat it. Exit codes: 0 the run completed; 1 it failed or was
    /// cancelled; 2 arguments that make no sense; 3 it completed, and a condition of --fail-if
    /// holds (without one on failures: more than 1 % of an operation's requests failed).
    Run(Box<RunArguments>),
    /// Drive load for a controller on another host
    ///
    /// Waits until `cairn lab run --driver HOST:PORT` connects. Both ends prove over TLS that they
    /// know the secret. When the controller goes, the load ends. Ends on SIGTERM or Ctrl-C.
    Driver(DriverArguments),
    /// Show runs: a page, plots as SVG and PNG, tables, JSON
    ///
    /// Several runs, also of COSBench, ssbench and swift-bench, stand side by side. A single run's
    /// own folder takes its report.
    Report(ReportArguments),
    /// Give a run that is over another name, or tags
    Rename(RenameArguments),
    /// Say whether B differs from A, and by how much
    ///
    /// Repetitions are compared with confidence intervals; there is a verdict only where the
    /// interval leaves no doubt, else the number of repetitions that may bring one. With --workload
    /// both targets are measured now, in turn. Exit codes: 0; 3 a condition of --fail-if holds.
    Compare(CompareArguments),
}

/// Runs a command; the caller prints its errors.
///
/// # Errors
/// An argument, a workload or a run's folder is invalid, a driver cannot be used, or a file cannot
/// be written. A run that failed, or a condition that holds, is an exit code instead.
pub fn run(command: LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::Run(arguments) => run::run(&arguments),
        LabCommand::Driver(arguments) => driver::run(&arguments),
        LabCommand::Rename(arguments) => rename::run(&arguments),
        LabCommand::Report(arguments) => report::run(&arguments),
        LabCommand::Compare(arguments) => compare::run(&arguments),
    }
}
