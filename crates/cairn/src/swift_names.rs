//! The program under the names of OpenStack Swift's own: which one, and its arguments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairn_node::conf::Role;
use cairn_node::daemon;
use cairn_node::daemons::{DaemonKind, Narrowed};
use cairn_node::relinker;
use cairn_node::serve::{self, RunOptions};
use cairn_node::{shard_ranges, supervisor};
use cairn_ring::cli;
use clap::Parser;

use crate::init::InitArguments;

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

    /// Of so many processes that share the work
    #[arg(long, value_name = "N")]
    processes: Option<u64>,

    /// ... this is the Nth, counted from 0
    #[arg(long, value_name = "N")]
    process: Option<u64>,

    /// Swift's programs take the names of options as plain words too
    #[arg(hide = true)]
    words: Vec<String>,
}

/// Give objects their names in a ring's new partitions, and take the old ones away
#[derive(Debug, Parser)]
#[command(version)]
struct RelinkerArguments {
    /// Before the ring has more partitions: relink; after it has: cleanup
    #[arg(value_enum)]
    action: RelinkerStep,

    /// The conf file with a section [object-relinker]
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,

    /// Where swift.conf and the rings are
    #[arg(long, value_name = "DIR")]
    swift_dir: Option<PathBuf>,

    /// Only this policy, by name or index; give it again for more
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,

    /// The folder of devices
    #[arg(long, value_name = "DIR")]
    devices: Option<PathBuf>,

    /// Become this user first
    #[arg(long)]
    user: Option<String>,

    /// Only this device; give it again for more
    #[arg(long = "device", value_name = "NAME")]
    device_list: Vec<String>,

    /// Only this partition; give it again for more
    #[arg(short, long = "partition", value_name = "NUMBER")]
    partitions: Vec<u32>,

    /// Take devices that are not mounted, too
    #[arg(long)]
    skip_mount_check: bool,

    /// Objects a second on each device; 0: no limit
    #[arg(long, value_name = "N")]
    files_per_second: Option<f64>,

    /// Tell recon so often, in seconds
    #[arg(long, value_name = "N")]
    stats_interval: Option<f64>,

    /// Devices worked on at once: a number, or auto for all
    #[arg(long, value_parser = parse_workers)]
    workers: Option<usize>,

    #[arg(long)]
    debug: bool,

    /// Where both partitions have different files of one name: quarantine the new one (relink), or
    /// let the old one go (cleanup)
    #[arg(long)]
    clobber_hardlink_collisions: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RelinkerStep {
    Relink,
    Cleanup,
}

/// 0: all devices.
fn parse_workers(text: &str) -> Result<usize, String> {
    match text {
        "auto" => Ok(0),
        text => text
            .parse()
            .map_err(|_| "expected a number or auto".to_owned()),
    }
}

/// Start, stop and reload servers and daemons
#[derive(Debug, Parser)]
#[command(version)]
struct InitProgram {
    #[command(flatten)]
    arguments: InitArguments,
}

/// Runs the program that `arguments[0]` names, if it is one of Swift's.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(arguments.first()?)
        .file_name()
        .and_then(OsStr::to_str)?;
    let program = name.strip_prefix("swift-")?;
    if program == "ring-builder" || program == "ring-builder-safe" {
        let texts: Vec<String> = arguments[1..]
            .iter()
            .map(|a| a.to_string_lossy().into_owned())
            .collect();
        return Some(ring_builder(&texts, program.ends_with("-safe")));
    }
    if program == "ring-composer" {
        let texts: Vec<String> = arguments[1..]
            .iter()
            .map(|a| a.to_string_lossy().into_owned())
            .collect();
        return Some(ring_composer(&texts));
    }
    if program == "init" {
        return Some(crate::init::run(
            InitProgram::parse_from(arguments).arguments,
        ));
    }
    if program == "manage-shard-ranges" {
        let parsed = shard_ranges::Arguments::parse_from(arguments);
        return Some(shard_ranges::run(parsed));
    }
    if let Some(role) = Role::ALL.into_iter().find(|r| r.server_name() == program) {
        let parsed = ServerArguments::parse_from(arguments);
        return Some(crate::exit_code(run_server(role, parsed, arguments)));
    }
    if let Some(kind) = DaemonKind::from_name(program) {
        let parsed = DaemonArguments::parse_from(arguments);
        return Some(crate::exit_code(daemon::run(&called(kind, parsed))));
    }
    if program == "object-relinker" {
        return Some(relinker(RelinkerArguments::parse_from(arguments)));
    }
    if let Some(code) = cairn_tools::run(program, arguments) {
        return Some(code);
    }
    Some(crate::exit_code(Err(anyhow::anyhow!(
        "{name} is no program of this one; it can be called {}",
        known().join(", ")
    ))))
}

/// The names by which this program can be called.
fn known() -> Vec<String> {
    let servers = Role::ALL.into_iter().map(Role::server_name);
    let daemons = DaemonKind::ALL.into_iter().map(DaemonKind::name);
    let tools = cairn_tools::PROGRAMS.into_iter();
    let all = servers
        .chain(daemons)
        .chain([
            "init",
            "manage-shard-ranges",
            "object-relinker",
            "ring-builder",
            "ring-composer",
        ])
        .chain(tools);
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

fn relinker(parsed: RelinkerArguments) -> ExitCode {
    let outcome = relinker::run(&relinker::Called {
        step: match parsed.action {
            RelinkerStep::Relink => relinker::Step::Relink,
            RelinkerStep::Cleanup => relinker::Step::Cleanup,
        },
        conf: parsed.config,
        swift_dir: parsed.swift_dir,
        policies: parsed.policies,
        devices: parsed.devices,
        user: parsed.user,
        device_list: parsed.device_list,
        partitions: parsed.partitions,
        skip_mount_check: parsed.skip_mount_check,
        files_per_second: parsed.files_per_second,
        stats_interval: parsed.stats_interval,
        workers: parsed.workers,
        debug: parsed.debug,
        clobber_hardlink_collisions: parsed.clobber_hardlink_collisions,
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => crate::exit_code(Err(error)),
    }
}

fn called(kind: DaemonKind, parsed: DaemonArguments) -> daemon::Called {
    let is_said = |word: &str| parsed.words.iter().any(|w| w == word);
    daemon::Called {
        kind,
        once: parsed.once || is_said("once"),
        verbose: parsed.verbose || is_said("verbose"),
        conf: parsed.config,
        narrowed: Narrowed {
            devices: parsed.devices,
            partitions: parsed.partitions,
            policies: parsed.policies,
            zero_byte_fps: parsed.zero_byte_fps,
            no_auto_shard: parsed.no_auto_shard,
            processes: parsed.processes,
            process: parsed.process,
        },
    }
}

/// `cairn ring` and swift-ring-builder, whose exit codes say more than yes or no: 0 done, 1 done
/// with a warning, 2 not done. `locked`: as swift-ring-builder-safe.
pub(crate) fn ring_builder(arguments: &[String], locked: bool) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let run = if locked { cli::run_locked } else { cli::run };
    let code = run(arguments, &mut out, &mut err);
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// swift-ring-composer; exit codes as above.
fn ring_composer(arguments: &[String]) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let code = cli::run_composer(arguments, &mut out, &mut err);
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
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
        assert_eq!(called.narrowed.devices, ["sda", "sdb"]);
    }

    #[test]
    fn other_names_are_not_swifts() {
        assert!(run(&["/usr/bin/cairn".into()]).is_none());
        assert!(run(&["swift-no-such-program".into()]).is_some());
    }
}
