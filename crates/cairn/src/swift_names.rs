//! The program under the names of OpenStack Swift's programs, with their arguments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cairn_node::daemon::{self, DaemonOptions, PassFilter};
use cairn_node::role::{DaemonKind, Role};
use cairn_node::serve::{self, RunOptions};
use cairn_node::{reload, supervisor};
use clap::Parser;

/// Run one server of OpenStack Swift
#[derive(Debug, Parser)]
#[command(version)]
struct ServerArguments {
    /// The server's conf file, or a folder of them
    #[arg(value_name = "CONFIG")]
    config: PathBuf,

    /// Log to standard error instead of syslog
    #[arg(short, long)]
    verbose: bool,

    /// Exit after loading and checking the configuration
    #[arg(short, long)]
    test_config: bool,

    /// For daemons; servers ignore it
    #[arg(short, long, hide = true)]
    once: bool,

    /// Swift's programs take the names of options as plain words too
    #[arg(hide = true)]
    words: Vec<String>,
}

/// Run one daemon of OpenStack Swift
#[derive(Debug, Parser)]
#[command(version)]
struct DaemonArguments {
    /// The conf file with the daemon's section, or a folder of them
    #[arg(value_name = "CONFIG")]
    config: PathBuf,

    /// Log to standard error instead of syslog
    #[arg(short, long)]
    verbose: bool,

    /// Only one pass
    #[arg(short, long)]
    once: bool,

    /// Only these devices, comma between them
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',')]
    devices: Vec<String>,

    /// Only these partitions, comma between them
    #[arg(short, long, value_name = "NUMBERS", value_delimiter = ',')]
    partitions: Vec<u32>,

    /// Only the policies with these indexes, comma between them
    #[arg(short = 'i', long, value_name = "NUMBERS", value_delimiter = ',')]
    policies: Vec<u32>,

    /// For object-auditor: only open objects, so many a second
    #[arg(short, long = "zero_byte_fps", value_name = "N")]
    zero_byte_fps: Option<f64>,

    /// For container-sharder: shard and merge only what is told to be
    #[arg(long)]
    no_auto_shard: bool,

    /// Number of processes that share the work
    #[arg(long, value_name = "N")]
    processes: Option<u64>,

    /// The number of this one, counted from 0
    #[arg(long, value_name = "N")]
    process: Option<u64>,

    /// Swift's programs take the names of options as plain words too
    #[arg(hide = true)]
    words: Vec<String>,
}

/// Start a server anew without refusing anybody, where its conf is good
#[derive(Debug, Parser)]
#[command(version)]
struct ReloadArguments {
    /// Process id of the server's parent process
    pid: i32,

    /// Wait so many seconds at most until it serves again
    #[arg(short, long, default_value_t = 300.0, conflicts_with = "no_wait")]
    timeout: f64,

    /// Do not wait
    #[arg(short = 'w', long)]
    no_wait: bool,

    /// Say more
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the program named by `arguments[0]`, if it is one of Swift's.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(arguments.first()?)
        .file_name()
        .and_then(OsStr::to_str)?;
    let program = name.strip_prefix("swift-")?;
    if let Some(role) = Role::ALL.into_iter().find(|r| r.server_name() == program) {
        let parsed = ServerArguments::parse_from(arguments);
        return Some(crate::exit_code(run_server(role, parsed, arguments)));
    }
    if let Some(kind) = DaemonKind::from_name(program) {
        let parsed = DaemonArguments::parse_from(arguments);
        return Some(crate::exit_code(daemon::run(&called(kind, parsed))));
    }
    if program == "reload" {
        return Some(reload(&ReloadArguments::parse_from(arguments)));
    }
    if let Some(code) = cairn_tools::run(program, arguments) {
        return Some(code);
    }
    Some(crate::exit_code(Err(anyhow::anyhow!(
        "{name} is no program of this one; it can be called {}",
        known().join(", ")
    ))))
}

/// Names by which this program can be called.
fn known() -> Vec<String> {
    let servers = Role::ALL.into_iter().map(Role::server_name);
    let daemons = DaemonKind::ALL.into_iter().map(DaemonKind::name);
    let tools = cairn_tools::PROGRAMS.into_iter();
    let all = servers.chain(daemons).chain(["reload"]).chain(tools);
    all.map(|name| format!("swift-{name}")).collect()
}

fn run_server(role: Role, parsed: ServerArguments, all: &[OsString]) -> anyhow::Result<()> {
    let is_said = |word: &str| parsed.words.iter().any(|w| w == word);
    if parsed.test_config || is_said("test_config") {
        let confs = serve::load(std::slice::from_ref(&parsed.config), Some(role))?;
        return serve::check(confs, &RunOptions::default());
    }
    supervisor::run(supervisor::Called {
        role,
        verbose: parsed.verbose || is_said("verbose"),
        conf: parsed.config,
        arguments: all.to_vec(),
    })
}

fn reload(parsed: &ReloadArguments) -> ExitCode {
    let wait_timeout = Duration::try_from_secs_f64(parsed.timeout).unwrap_or(Duration::MAX);
    ExitCode::from(reload::run(&reload::Called {
        pid: parsed.pid,
        wait_timeout: (!parsed.no_wait).then_some(wait_timeout),
        verbose: parsed.verbose,
    }))
}

fn called(kind: DaemonKind, parsed: DaemonArguments) -> daemon::Called {
    let is_said = |word: &str| parsed.words.iter().any(|w| w == word);
    daemon::Called {
        kind,
        once: parsed.once || is_said("once"),
        verbose: parsed.verbose || is_said("verbose"),
        conf: parsed.config,
        only: PassFilter {
            devices: parsed.devices,
            partitions: parsed.partitions,
            policies: parsed.policies,
            zero_byte_fps: parsed.zero_byte_fps,
        },
        options: DaemonOptions {
            no_auto_shard: parsed.no_auto_shard,
            processes: parsed.processes,
            process: parsed.process,
            ..DaemonOptions::default()
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn swifts_arguments() {
        ServerArguments::command().debug_assert();
        let text = "swift-object-server /etc/swift/object-server.conf -v test_config";
        let parsed = ServerArguments::try_parse_from(text.split_whitespace()).unwrap();
        assert!(parsed.verbose && !parsed.test_config);
        assert_eq!(parsed.words, ["test_config"]);
    }

    #[test]
    fn daemons_arguments() {
        DaemonArguments::command().debug_assert();
        let text = "swift-object-updater object-server/1.conf once --devices=sda,sdb verbose";
        let parsed = DaemonArguments::try_parse_from(text.split_whitespace()).unwrap();
        let called = called(DaemonKind::ObjectUpdater, parsed);
        assert!(called.once && called.verbose);
        assert_eq!(called.only.devices, ["sda", "sdb"]);
    }

    #[test]
    fn reloads_arguments() {
        ReloadArguments::command().debug_assert();
        assert!(ReloadArguments::try_parse_from(["x", "5", "-w", "-t", "3"]).is_err());
    }

    #[test]
    fn other_names_are_not_swifts() {
        assert!(run(&["/usr/bin/cairn".into()]).is_none());
        assert!(run(&["swift-no-such-program".into()]).is_some());
    }
}
