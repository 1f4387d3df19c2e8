//! Arguments of `cairn init` and swift-init.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};

use super::{Folders, InitOptions, is_command};

/// Arguments of both.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Programs (object-updater; object: object-server; object.2: its conf 2.conf) or groups of
    /// them (all, main, rest, container-*), then a command: start, stop, restart, reload,
    /// reload-seamless, shutdown, status, once, no-wait, no-daemon, force-reload, kill
    #[arg(value_name = "PROGRAM... COMMAND", required = true)]
    words: Vec<String>,

    /// Say more
    #[arg(short, long)]
    verbose: bool,

    /// Do not wait until what was started is ready
    #[arg(short = 'w', long)]
    no_wait: bool,

    /// Only one pass of each daemon
    #[arg(short, long)]
    once: bool,

    /// Start with the log on this terminal, and wait
    #[arg(short, long)]
    no_daemon: bool,

    /// Let servers finish their requests (SIGHUP)
    #[arg(short, long)]
    graceful: bool,

    /// Only the Nth conf of each program
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    config_num: Option<u16>,

    /// Wait so many seconds for processes to end
    #[arg(short, long, value_name = "N", default_value_t = 15)]
    kill_wait: u64,

    /// Kill what has not ended by then
    #[arg(long)]
    kill_after_timeout: bool,

    /// The folder of the files with process ids [default: /var/run/swift]
    #[arg(short, long, value_name = "DIR")]
    run_dir: Option<PathBuf>,

    /// The folder of the conf files [default: /etc/swift]
    #[arg(long, value_name = "DIR")]
    swift_dir: Option<PathBuf>,

    /// A missing conf is an error [default: where all programs are named one by one]
    #[arg(long, overrides_with = "non_strict")]
    strict: bool,

    /// A missing conf is no error
    #[arg(long, overrides_with = "strict")]
    non_strict: bool,
}

/// Start, stop and reload servers and daemons
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct SwiftInit {
    #[command(flatten)]
    pub(crate) arguments: Arguments,
}

/// Runs the command; exit code 0 if it succeeded for all.
pub fn run_arguments(arguments: Arguments) -> ExitCode {
    let strict = match (arguments.strict, arguments.non_strict) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let options = InitOptions {
        folders: Folders::new(arguments.swift_dir, arguments.run_dir),
        verbose: arguments.verbose,
        no_wait: arguments.no_wait,
        once: arguments.once,
        no_daemon: arguments.no_daemon,
        graceful: arguments.graceful,
        number: arguments.config_num.map(usize::from),
        kill_wait: Duration::from_secs(arguments.kill_wait),
        kill_after_timeout: arguments.kill_after_timeout,
        strict,
    };
    let mut words = arguments.words;
    // Accepts either order: `start main` and `main start`.
    if words.first().is_some_and(|w| is_command(w)) && !words.last().is_some_and(|w| is_command(w))
    {
        words.rotate_left(1);
    }
    let Some((command, programs)) = words.split_last().filter(|(_, rest)| !rest.is_empty()) else {
        return crate::exit_code(Err(anyhow::anyhow!(
            "name a program or a group of them, and a command: cairn init main start"
        )));
    };
    match super::run(programs, command, &options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => crate::exit_code(Err(error)),
    }
}
