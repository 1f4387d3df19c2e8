//! The program under the names of OpenStack Swift's programs, with their arguments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cairn_node::daemon::{self, DaemonOptions, PassFilter};
use cairn_node::init::Folders;
use cairn_node::role::{DaemonKind, Role};
use cairn_node::serve::{self, RunOptions};
use cairn_node::{
    container_deleter, drive_audit, relinker, reload, shard_ranges, show_conf, supervisor,
};
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

/// Show what conf files say once they are read
#[derive(Debug, Parser)]
#[command(version)]
struct ConfigArguments {
    /// Conf files, or programs as swift-init takes them
    #[arg(value_name = "SERVER|FILE")]
    words: Vec<String>,

    /// Only the Nth conf of a program
    #[arg(short = 'c', long, value_name = "N", default_value_t = 0)]
    config_num: usize,

    /// Only this section
    #[arg(short, long)]
    section: Option<String>,

    /// The pipeline's parts instead of all sections
    #[arg(short, long)]
    wsgi: bool,

    /// Where the programs' conf files are [default: /etc/swift]
    #[arg(long, value_name = "DIR")]
    swift_dir: Option<PathBuf>,
}

/// Unmount drives that the kernel's log has errors of
#[derive(Debug, Parser)]
#[command(version)]
struct DriveAuditArguments {
    /// The conf file with a section [drive-audit]
    #[arg(value_name = "CONF_FILE")]
    conf: PathBuf,
}

/// Start a server anew without refusing anybody, where its conf is good
#[derive(Debug, Parser)]
#[command(version)]
struct ReloadArguments {
    /// Of the server's parent process
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

/// Queue what a container holds for the expirer, which deletes it later
///
/// Listings show the objects until they are deleted. Where this breaks off, begin again after the
/// last name that it told, with --marker.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
struct ContainerDeleterArguments {
    account: String,
    container: String,

    /// The internal client's conf
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/swift/internal-client.conf"
    )]
    config: PathBuf,

    /// Ask so often
    #[arg(long, value_name = "N", default_value_t = 3)]
    request_tries: u32,

    /// Only objects whose names begin so
    #[arg(long, default_value = "")]
    prefix: String,

    /// Only objects after this name
    #[arg(long, default_value = "")]
    marker: String,

    /// Only objects before this name
    #[arg(long, default_value = "")]
    end_marker: String,

    /// Delete them as of this time [default: now]
    #[arg(long)]
    timestamp: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RelinkerStep {
    Relink,
    Cleanup,
}

/// A number; 0 is all devices.
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

/// Runs the program named by `arguments[0]`, if it is one of Swift's.
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
    if program == "config" {
        let parsed = ConfigArguments::parse_from(arguments);
        return Some(crate::exit_code(show_conf(parsed)));
    }
    if program == "drive-audit" {
        let parsed = DriveAuditArguments::parse_from(arguments);
        return Some(crate::exit_code(drive_audit::run(&parsed.conf)));
    }
    if program == "reload" {
        return Some(reload(&ReloadArguments::parse_from(arguments)));
    }
    if program == "container-deleter" {
        let parsed = ContainerDeleterArguments::parse_from(arguments);
        return Some(crate::exit_code(container_deleter(parsed)));
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
    let all = servers
        .chain(daemons)
        .chain([
            "config",
            "container-deleter",
            "drive-audit",
            "init",
            "manage-shard-ranges",
            "object-relinker",
            "reload",
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

fn show_conf(parsed: ConfigArguments) -> anyhow::Result<()> {
    let called = show_conf::Called {
        words: parsed.words,
        number: Some(parsed.config_num).filter(|number| *number > 0),
        section: parsed.section,
        wsgi: parsed.wsgi,
        folders: Folders::new(parsed.swift_dir, None),
    };
    show_conf::run(&called, &mut std::io::stdout())
}

fn reload(parsed: &ReloadArguments) -> ExitCode {
    let wait_timeout = Duration::try_from_secs_f64(parsed.timeout).unwrap_or(Duration::MAX);
    ExitCode::from(reload::run(&reload::Called {
        pid: parsed.pid,
        wait_timeout: (!parsed.no_wait).then_some(wait_timeout),
        verbose: parsed.verbose,
    }))
}

fn container_deleter(parsed: ContainerDeleterArguments) -> anyhow::Result<()> {
    let called = container_deleter::Called {
        conf: parsed.config,
        tries: parsed.request_tries,
        account: parsed.account,
        container: parsed.container,
        prefix: parsed.prefix,
        marker: parsed.marker,
        end_marker: parsed.end_marker,
        timestamp: parsed.timestamp,
    };
    container_deleter::run(called, &mut std::io::stdout())
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

/// `cairn ring` and swift-ring-builder, with its exit codes: 0 done, 1 done with a warning, 2 not
/// done. `locked` as for swift-ring-builder-safe.
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
        assert_eq!(called.only.devices, ["sda", "sdb"]);
    }

    #[test]
    fn small_programs_arguments() {
        ConfigArguments::command().debug_assert();
        DriveAuditArguments::command().debug_assert();
        ReloadArguments::command().debug_assert();
        ContainerDeleterArguments::command().debug_assert();
        let words = "x AUTH_a c --prefix=p --timestamp=1700000000.5".split(' ');
        let parsed = ContainerDeleterArguments::try_parse_from(words).unwrap();
        assert_eq!(parsed.timestamp.as_deref(), Some("1700000000.5"));
        assert!(ReloadArguments::try_parse_from(["x", "5", "-w", "-t", "3"]).is_err());
    }

    #[test]
    fn other_names_are_not_swifts() {
        assert!(run(&["/usr/bin/cairn".into()]).is_none());
        assert!(run(&["swift-no-such-program".into()]).is_some());
    }
}
