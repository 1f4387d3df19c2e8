//! The program `cairn`: `cairn up`, `cairn serve`, `cairn lab`, `cairn study`, `cairn advise`,
//! `cairn mount`, `cairn ring`, `cairn init`, `cairn rekey`, `cairn pebbles`; and, called under the
//! names of OpenStack Swift's programs (`ln -s cairn swift-object-server`), those programs with
//! their arguments.
//!
//! Exit codes: 0 success; 1 an error, reported on standard error, or something remains for `cairn
//! rekey`; 2 invalid arguments; 130 a second signal aborted the shutdown. `cairn ring` has those of
//! swift-ring-builder.

mod advise;
mod allocator;
mod args;
mod console;
mod mount;
mod swift_names;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use cairn_console::WebConsole;
use cairn_node::serve::{self, RunOptions};
use cairn_node::up::{self, TlsChoice, UpOptions, UserOption};
pub(crate) use cairn_tools::exit_code;
use cairn_tools::{init, pebbles, rekey, ring_builder};
use clap::Parser;

use crate::args::{Arguments, Command, LabCommand, ServeArguments, UpArguments};

/// Switches off the heuristics that the environment names, for `cargo xtask bench heuristics`.
#[cfg(feature = "measure")]
fn switch_heuristics_off() {
    use cairn_types::heuristic::{Heuristic, VARIABLE};

    Heuristic::switch_off(&std::env::var(VARIABLE).unwrap_or_default());
}

fn main() -> ExitCode {
    // With huge pages a hundred threads' small allocations take twice the memory. Fails harmlessly
    // on a kernel without that option.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    cairn_node::memory::tidy_with(allocator::give_back);
    if let Ok(factor) = std::env::var(cairn_types::dilation::VARIABLE) {
        cairn_types::dilation::set(&factor);
    }
    #[cfg(feature = "measure")]
    switch_heuristics_off();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = swift_names::run(&arguments) {
        return code;
    }
    match Arguments::parse_from(arguments).command {
        Command::Up(arguments) => exit_code(run_up(arguments)),
        Command::Serve(arguments) => exit_code(run_serve(arguments)),
        Command::Lab(LabCommand::Serve(arguments)) => exit_code(console::serve(arguments)),
        Command::Lab(LabCommand::Measure(command)) => match cairn_lab::cli::run(command) {
            Ok(code) => code,
            Err(error) => exit_code(Err(error)),
        },
        Command::Advise(command) => match advise::run(command) {
            Ok(code) => code,
            Err(error) => exit_code(Err(error)),
        },
        Command::Study(command) => match cairn_study::cli::run(command) {
            Ok(code) => code,
            Err(error) => exit_code(Err(error)),
        },
        Command::Rekey(arguments) => match rekey::run(&arguments, &mut std::io::stdout()) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => exit_code(Err(error)),
        },
        Command::Mount(arguments) => exit_code(mount::run(arguments)),
        Command::Init(arguments) => init::run_arguments(arguments),
        Command::Pebbles(command) => match pebbles::run(command, std::io::stdout()) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => exit_code(Err(error)),
        },
        Command::Ring { arguments } => ring_builder::run_as("ring-builder", &arguments),
    }
}

fn run_up(arguments: UpArguments) -> Result<()> {
    let has_key = |user: &UserOption| matches!(user, UserOption::Complete(_));
    let options = UpOptions {
        data: arguments.data,
        bind: arguments.bind,
        devices: arguments.devices,
        replicas: arguments.replicas,
        part_power: arguments.part_power,
        engine: arguments.engine,
        shows_keys: arguments.users.iter().any(has_key),
        users: up::read_users(arguments.users, arguments.user_file.as_deref())?,
        unsafe_no_fsync: arguments.unsafe_no_fsync,
        log: arguments.log.into(),
        pid_file: arguments.pid_file,
        console: arguments.console.unwrap_or_default(),
        tls: match (arguments.tls_cert, arguments.tls_key) {
            (Some(cert), Some(key)) => Some(TlsChoice::Given(cert, key)),
            _ => arguments.tls,
        },
        console_hosts: arguments.console_hosts,
        allow_local: arguments.allow_local,
    };
    if !arguments.write_only {
        return up::up(options, Arc::new(WebConsole));
    }
    let store = up::write_configuration(&options)?;
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{}", store.layout.etc.display());
    Ok(())
}

fn run_serve(arguments: ServeArguments) -> Result<()> {
    let confs = serve::load(&arguments.confs, None)?;
    let options = RunOptions {
        log: arguments.log.into(),
        pid_file: arguments.pid_file,
        unsafe_no_fsync: arguments.unsafe_no_fsync,
        ..RunOptions::default()
    };
    if arguments.check {
        serve::check(confs, &options)
    } else {
        serve::run(confs, options)
    }
}
