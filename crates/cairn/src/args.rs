//! The command line of `cairn`, and its help.

use std::net::SocketAddr;
use std::path::PathBuf;

use cairn_node::logging::{LogFormat, LogOptions};
use cairn_node::up::{ConsoleChoice, EngineChoice, TlsChoice, UserOption};
use cairn_tools::{init, rekey};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::advise::AdviseCommand;

/// An object store that speaks OpenStack Swift
#[derive(Debug, Parser)]
#[command(
    name = "cairn",
    version,
    propagate_version = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start an all-in-one store; the first start makes it
    ///
    /// All servers run in this process, on devices that are folders of the data folder. The first
    /// start writes ordinary OpenStack Swift files (swift.conf, a conf for each server, rings) into
    /// DATA/etc; later starts serve what these files say, so they may be edited. Ends on SIGTERM or
    /// Ctrl-C once requests under way have finished; a second one ends it at once.
    Up(UpArguments),
    /// Run the servers of OpenStack Swift conf files
    ///
    /// Any mix of proxy, account, container and object servers runs in one process; those of the
    /// same process call each other without a network. A folder is read as one conf of its *.conf
    /// files. Daemons whose sections the confs have ([object-replicator], [container-updater], …)
    /// run too; as programs of their own they are started by Swift's names (cairn init). Prints a
    /// line for each server that is ready. Ends on SIGTERM, SIGINT or SIGHUP once requests under way
    /// have finished; a second signal ends it at once.
    Serve(ServeArguments),
    /// Measure object stores
    #[command(subcommand)]
    Lab(LabCommand),
    /// Predict clusters that nobody has built, and choose among them
    ///
    /// By a simulation over real rings, calibrated by cairn advise measure; docs/advise.md has files
    /// to begin with. Answers state their error on cells that were held out, and nothing is
    /// predicted outside of what was measured unless --extrapolate says so.
    #[command(subcommand)]
    Advise(AdviseCommand),
    /// Measure clusters that are made for it: studies over disks, weights, regions, workloads
    #[command(subcommand)]
    Study(cairn_study::cli::StudyCommand),
    /// Put the keys of encrypted objects under the active root secret; their content stays
    ///
    /// For objects of authenticated encryption (docs/encryption.md), with the secrets of a proxy's
    /// conf. Doing it again does no harm. Ends with 0 where no other root secret is needed any more,
    /// as far as could be seen, and with 1 where one is.
    Rekey(rekey::Arguments),
    /// Mount a container as a file system
    ///
    /// Files are ordinary objects under their paths; docs/mount.md says what is promised. Logs in by
    /// the swift client's variables: ST_AUTH, ST_USER and ST_KEY; or OS_AUTH_URL, OS_USERNAME,
    /// OS_PASSWORD and OS_PROJECT_NAME; or OS_STORAGE_URL and OS_AUTH_TOKEN. Returns when it is
    /// mounted. Ends with umount DIR, or on SIGTERM or Ctrl-C once everything written is on the store.
    Mount(MountArguments),
    /// Start, stop and reload servers and daemons by Swift's names (swift-init)
    ///
    /// One process for each conf file of a program in /etc/swift. Ends with 0 where all went well.
    Init(init::Arguments),
    /// Look at a device's volumes, and move objects from files to volumes or back (docs/pebbles.md)
    ///
    /// ls, check and cat write nothing; import and export move all objects. A server must not have the
    /// volumes open; one that is asked for them meanwhile answers with errors.
    #[command(subcommand)]
    Pebbles(cairn_tools::pebbles::PebblesCommand),
    /// Build, inspect and rebalance rings (swift-ring-builder)
    #[command(disable_help_flag = true)]
    Ring {
        /// As swift-ring-builder takes them; none prints its help
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Serve the console: submit workloads, watch runs, compare them
    ///
    /// A page for browsers; each run it starts is a process of its own (cairn lab run), one at a
    /// time. Runs made on the command line show up too when their folders are in RUNS.
    Serve(LabServeArguments),
    #[command(flatten)]
    Measure(cairn_lab::cli::LabCommand),
}

#[derive(Debug, Args)]
pub(crate) struct LabServeArguments {
    /// Address for browsers; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", value_parser = parse_bind, default_value = "127.0.0.1:8081")]
    pub(crate) bind: SocketAddr,

    /// Browsers connect by TLS with this certificate (PEM, those of its authorities behind it)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The folder of runs [default: $XDG_DATA_HOME/cairn/lab or ~/.local/share/cairn/lab]
    #[arg(long, value_name = "RUNS")]
    pub(crate) dir: Option<PathBuf>,

    /// Read the password from this file's first line; CAIRN_CONSOLE_PASSWORD holds one too
    /// [default: a new one at each start, printed]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// A host name under which browsers reach it, beside addresses and localhost; give it again
    /// for more
    #[arg(long = "console-host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,

    /// Let runs that are started from the console use local files below DIR (and RADOS); may be
    /// repeated [default: none; runs then only drive stores over the network]
    #[arg(long, value_name = "DIR")]
    pub(crate) allow_local: Vec<PathBuf>,

    /// Append who signs in and what is changed to this file, a JSON object a line, mode 0600
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_file: Option<String>,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    /// The folder of everything that is kept [default: $XDG_DATA_HOME/cairn or ~/.local/share/cairn]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Address for clients; port 0 takes a free one. Kept for later starts
    /// [default: 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_bind)]
    pub(crate) bind: Option<SocketAddr>,

    /// Devices to make; fixed by the first start [default: 4]
    #[arg(long, value_name = "N", value_parser = parse_count, allow_negative_numbers = true)]
    pub(crate) devices: Option<u32>,

    /// Copies of every object, each on another device; fixed by the first start [default: 3]
    #[arg(long, value_name = "N", value_parser = parse_count, allow_negative_numbers = true)]
    pub(crate) replicas: Option<u32>,

    /// The rings have 2^N partitions; fixed by the first start [default: 10]
    #[arg(long, value_name = "N", value_parser = parse_count, allow_negative_numbers = true)]
    pub(crate) part_power: Option<u32>,

    /// Engine that keeps the objects: pebbles, volumes of small objects, or files, as OpenStack Swift
    /// keeps them; fixed by the first start [default: pebbles]
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Option<EngineChoice>,

    /// A user; give it again for more. The group .admin owns the account. Without =KEY the key is
    /// asked for; a key given here shows in ps. These users replace those of an earlier start
    /// [default: those of CAIRN_USERS, or test:tester=testing,.admin]
    #[arg(long = "user", value_name = "ACCOUNT:USER[=KEY][,GROUP...]")]
    pub(crate) users: Vec<UserOption>,

    /// More users, a line ACCOUNT:USER=KEY[,GROUP...] each; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) user_file: Option<PathBuf>,

    /// Address of the console, or off [default: the next port above the store's]
    #[arg(long, value_name = "IP:PORT|off", value_parser = parse_choice)]
    pub(crate) console: Option<ConsoleChoice>,

    /// Clients connect by TLS, with a certificate made at the first start, or no longer. Kept for
    /// later starts [default: off]
    #[arg(long, value_name = "on|off", value_parser = parse_tls, num_args = 0..=1,
          default_missing_value = "on", require_equals = true)]
    pub(crate) tls: Option<TlsChoice>,

    /// Clients connect by TLS with this certificate (PEM, those of its authorities behind it)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "tls"
    )]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Its key (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        conflicts_with = "tls"
    )]
    pub(crate) tls_key: Option<PathBuf>,

    /// A host name under which browsers reach the console, beside addresses and localhost; give
    /// it again for more
    #[arg(long = "console-host", value_name = "NAME")]
    pub(crate) console_hosts: Vec<String>,

    /// Let runs that are started from the console use local files below DIR (and RADOS); may be
    /// repeated [default: none; runs then only drive stores over the network]
    #[arg(long, value_name = "DIR")]
    pub(crate) allow_local: Vec<PathBuf>,

    /// Write the files, print their folder and exit: `cairn serve` can then run them, in one
    /// process or several
    #[arg(long)]
    pub(crate) write_only: bool,

    /// Answer before data is on disk. A power cut then loses what was acknowledged: for tests
    #[arg(long)]
    pub(crate) unsafe_no_fsync: bool,

    /// Write the process id there, and remove the file at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Conf files, or folders of them
    #[arg(value_name = "CONF", required = true)]
    pub(crate) confs: Vec<PathBuf>,

    /// Only check that the confs could be served
    #[arg(long)]
    pub(crate) check: bool,

    /// Answer before data is on disk. A power cut then loses what was acknowledged: for tests
    #[arg(long)]
    pub(crate) unsafe_no_fsync: bool,

    /// Write the process id there, and remove the file at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LogArguments {
    /// The form of the log, on standard error
    #[arg(long = "log", value_name = "FORM", value_enum, default_value = "human")]
    form: LogForm,

    /// error, warn, info, debug, trace, or by part: info,cairn_proxy=debug
    /// [default: RUST_LOG, or the confs' log_level]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LogForm {
    #[default]
    Human,
    Json,
}

impl From<LogArguments> for LogOptions {
    fn from(arguments: LogArguments) -> LogOptions {
        let format = match arguments.form {
            LogForm::Human => LogFormat::Human,
            LogForm::Json => LogFormat::Json,
        };
        LogOptions {
            format,
            level: arguments.log_level,
            syslog: None,
            access_syslog: None,
        }
    }
}

fn parse_count(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "expected a whole number, such as 4".to_owned())
}

fn parse_tls(text: &str) -> Result<TlsChoice, String> {
    match text {
        "on" => Ok(TlsChoice::Own),
        "off" => Ok(TlsChoice::Off),
        _ => Err("expected on or off".to_owned()),
    }
}

pub(crate) fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    let text = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    text.parse().map_err(|_| {
        "expected IP:PORT, for example 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080".to_owned()
    })
}

fn parse_choice(text: &str) -> Result<ConsoleChoice, String> {
    match text {
        "off" => Ok(ConsoleChoice::Off),
        address => parse_bind(address)
            .map(ConsoleChoice::At)
            .map_err(|error| format!("{error}; or off")),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum MountCommand {
    /// Remove segments of a container that no file refers to any more
    ///
    /// What a killed mount, a failed deletion or a broken rename leaves. A segment goes when a sweep has
    /// found it unused and another one, a grace period later, finds it so again; those of files that
    /// are open on a mount stay. Run it every day, while mounts work. docs/mount.md says more.
    Sweep(SweepArguments),
}

#[derive(Debug, Args)]
pub(crate) struct SweepArguments {
    /// The container: http://HOST:PORT/v1/ACCOUNT/CONTAINER
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// For as long a segment has to have been unused; 0 only where nothing mounts the container
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    pub(crate) grace: u64,

    /// Within that the store has to answer a request; a failed one is tried four times
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,

    /// Trust the certificates of this file (PEM), and no others [default: OS_CACERT, or the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct MountArguments {
    #[command(subcommand)]
    pub(crate) command: Option<MountCommand>,

    /// The container: http://HOST:PORT/v1/ACCOUNT/CONTAINER
    #[arg(value_name = "URL", required = true)]
    pub(crate) url: Option<String>,

    /// The directory where it shows
    #[arg(value_name = "DIR", required = true)]
    pub(crate) dir: Option<PathBuf>,

    /// Change nothing
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Stay in the foreground
    #[arg(long)]
    pub(crate) foreground: bool,

    /// Let other users in; modes and owners are checked in any case [default: where root mounts]
    #[arg(long)]
    pub(crate) allow_other: bool,

    /// The owner of files that name none [default: who mounts]
    #[arg(long, value_name = "ID")]
    pub(crate) uid: Option<u32>,

    /// The group of files that name none [default: that of who mounts]
    #[arg(long, value_name = "ID")]
    pub(crate) gid: Option<u32>,

    /// Within that the store has to answer a request; a failed one is tried four times
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,

    /// Memory for what was read
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub(crate) cache: u64,

    /// Keep what was read in this directory too, which no other mount uses
    #[arg(long, value_name = "DIR")]
    pub(crate) disk_cache: Option<PathBuf>,

    /// Size of the disk cache
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size,
          requires = "disk_cache")]
    pub(crate) disk_cache_size: u64,

    /// Memory for what was written and is not on the store yet
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    pub(crate) write_buffer: u64,

    /// Durable at close: on the store, or in the journal, and a second later on the store
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Close::Sync,
          requires_if("async", "journal"), conflicts_with = "read_only")]
    pub(crate) close: Close,

    /// With --close=async: a directory on a local disk, which no other mount uses; what a killed mount
    /// has left there is written to the store when the container is mounted with it again
    #[arg(long, value_name = "DIR")]
    pub(crate) journal: Option<PathBuf>,

    /// Trust the certificates of this file (PEM), and no others [default: OS_CACERT, or the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// The place where a file's writes are when its close returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Close {
    /// On the store
    Sync,
    /// In a journal on a local disk, and on the store soon
    Async,
}

/// Bytes, or with suffix K, M or G multiples of 1,024.
fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || "expected bytes, or a number with K, M or G behind it, such as 256M".to_owned();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1u64),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(unit).ok_or_else(wrong)?;
    match bytes >= 1 << 20 {
        true => Ok(bytes),
        false => Err("at least 1M is needed".to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("256M").unwrap(), 256 << 20);
        assert_eq!(parse_size("2097152").unwrap(), 2 << 20);
        assert_eq!(parse_size("1g").unwrap(), 1 << 30);
        let too_many = ["99999999999999999999", "999999999999G"];
        for bad in ["", "M", "12X", "1K"].into_iter().chain(too_many) {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn mistakes_are_told_with_option_value_and_remedy() {
        for (arguments, parts) in [
            (["--bind", "8080"], ["--bind", "'8080'", "expected IP:PORT"]),
            (
                ["--user", "joe"],
                ["--user", "'joe'", "expected ACCOUNT:USER=KEY"],
            ),
            (
                ["--devices", "-1"],
                ["--devices", "'-1'", "expected a whole number"],
            ),
        ] {
            let all = ["cairn", "up"].into_iter().chain(arguments);
            let error = Arguments::try_parse_from(all).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn everything_at_once() {
        let text = "cairn up --data x --bind localhost:0 --devices 2 --replicas 1 --part-power 4 \
                    --user a:b=c --user d:e=f,.admin --log json --log-level debug --write-only \
                    --console off --console-host lab.example";
        let Command::Up(up) = Arguments::try_parse_from(text.split_whitespace())
            .unwrap()
            .command
        else {
            panic!("not up");
        };
        assert_eq!(up.bind, Some("127.0.0.1:0".parse().unwrap()));
        assert_eq!(up.users.len(), 2);
        assert_eq!(up.console, Some(ConsoleChoice::Off));
        let log = LogOptions::from(up.log);
        assert_eq!(
            (log.format, log.level.as_deref()),
            (LogFormat::Json, Some("debug"))
        );
    }
}
