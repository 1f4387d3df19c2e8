//! `cairn init`, also called `swift-init`: starts, stops and reloads Swift's programs by their
//! names, one process per conf file, tracked by pid files under the run folder. Commands, options,
//! files and exit codes are upstream's.
//!
//! Programs are searched on PATH first; one that is missing there and built into this binary is
//! started from this binary under that name.

mod anew;
mod arguments;
mod find;
mod program;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cairn_node::role::DaemonKind;
use cairn_node::similar::did_you_mean;
use rustix::process::{Pid, Signal, kill_process_group};

use anew::NewStarts;
pub(crate) use arguments::SwiftInit;
pub use arguments::{Arguments, run_arguments};
pub use find::Folders;
use program::{Program, Started};

/// Swift's servers.
const MAIN: [&str; 4] = [
    "proxy-server",
    "account-server",
    "container-server",
    "object-server",
];
/// Grace period for a program that has printed something and may be about to exit.
const EXIT_GRACE: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Commands and their help texts.
pub const COMMANDS: [(&str, &str); 12] = [
    ("force-reload", "alias for reload"),
    ("kill", "stop a server (no error if it is not running)"),
    ("no-daemon", "start a server interactively"),
    ("no-wait", "start a server and return at once"),
    ("once", "run one pass of daemons that know passes"),
    (
        "reload",
        "let servers finish their requests, then start them",
    ),
    (
        "reload-seamless",
        "start servers anew without closing their ports",
    ),
    ("restart", "stop a server, then start it"),
    ("shutdown", "let servers finish their requests and end"),
    ("start", "start a server"),
    ("status", "show which processes are running"),
    ("stop", "stop a server"),
];

/// Options of the command line.
#[derive(Clone, Debug)]
pub struct InitOptions {
    pub folders: Folders,
    /// If a conf is missing, lists existing ones; reports removed pid files.
    pub verbose: bool,
    /// Does not wait until servers are ready.
    pub no_wait: bool,
    pub once: bool,
    /// Starts with the log on the console, and stays in the foreground.
    pub no_daemon: bool,
    /// SIGHUP for servers, which then finish their requests.
    pub graceful: bool,
    /// Only the nth conf, from 1.
    pub number: Option<usize>,
    pub kill_wait: Duration,
    pub kill_after_timeout: bool,
    /// Whether a missing conf is an error; by default only if all programs were named individually.
    pub strict: Option<bool>,
}

/// Prints a line; standard output may be closed.
fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Runs `command` (`start`, `stop`, …) for programs and groups of them (`all`, `main`, `rest`,
/// `object`, `object-updater`, `object.2`, `container-*`). True if all succeeded.
///
/// # Errors
/// The command is unknown, or a word names no program. A program that fails is `false` instead.
pub fn run(words: &[String], command: &str, options: &InitOptions) -> Result<bool> {
    let command = command.to_lowercase().replace('_', "-");
    let Some((command, _)) = COMMANDS.iter().find(|(name, _)| *name == command) else {
        bail!(
            "unknown command, {command}{}",
            did_you_mean(&command, COMMANDS.iter().map(|(name, _)| *name))
        );
    };
    let (mut programs, all_named) = programs(words, &options.folders)?;
    for program in &mut programs {
        program.verbose = options.verbose;
    }
    let manager = Manager {
        programs,
        strict: options.strict.unwrap_or(all_named),
        options: options.clone(),
    };
    if manager.programs.is_empty() {
        return Ok(false);
    }
    Ok(manager.command(command))
}

/// Whether a word is a command; words may be in the other order.
pub fn is_command(word: &str) -> bool {
    COMMANDS
        .iter()
        .any(|(name, _)| *name == word.to_lowercase().replace('_', "-"))
}

/// Conf files of a program, or only the nth of them.
///
/// # Errors
/// There is no program of that name.
pub fn confs_of(word: &str, number: Option<usize>, folders: &Folders) -> Result<Vec<PathBuf>> {
    match Program::named(word, folders) {
        Some(program) => Ok(program.confs(number)),
        None => bail!("{word} is no file, and there is no program of that name"),
    }
}

/// Programs selected by words, and whether each was named individually.
fn programs(words: &[String], folders: &Folders) -> Result<(Vec<Program>, bool)> {
    let mut programs: BTreeMap<String, Program> = BTreeMap::new();
    let mut all_named = true;
    let all = || MAIN.iter().chain(&DaemonKind::NAMES).copied();
    for word in words {
        let names: Vec<String> = match word.as_str() {
            "all" => all().map(str::to_owned).collect(),
            "main" => MAIN.map(str::to_owned).to_vec(),
            "rest" => DaemonKind::NAMES.map(str::to_owned).to_vec(),
            glob if glob.contains('*') => all()
                .filter(|name| find::matches(glob, name))
                .map(str::to_owned)
                .collect(),
            name => {
                if let Some(program) = Program::named(name, folders) {
                    programs.insert(name.to_owned(), program);
                } else {
                    let full = program::full_name(name);
                    bail!(
                        "{name}: there is no program swift-{full}{}",
                        did_you_mean(&full, all())
                    );
                }
                continue;
            }
        };
        all_named = false;
        for name in names {
            if let Some(program) = Program::named(&name, folders) {
                programs.insert(name, program);
            }
        }
    }
    Ok((programs.into_values().collect(), all_named))
}

struct Manager {
    programs: Vec<Program>,
    strict: bool,
    options: InitOptions,
}

/// Ways to stop processes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopMode {
    AtOnce,
    Graceful,
    Seamless,
}

impl StopMode {
    /// Daemons have one way only.
    fn signal(self, program: &Program) -> Signal {
        match self {
            StopMode::Graceful if program.is_server() => Signal::HUP,
            StopMode::Seamless if program.is_server() => Signal::USR1,
            _ => Signal::TERM,
        }
    }
}

impl Manager {
    fn command(&self, command: &str) -> bool {
        let way = match self.options.graceful {
            true => StopMode::Graceful,
            false => StopMode::AtOnce,
        };
        let mut options = self.options.clone();
        let all = &self.programs[..];
        let start = |options: &InitOptions| self.start(all, options);
        match command {
            "status" => self.status(),
            "start" => start(&options),
            "no-wait" => {
                options.no_wait = true;
                start(&options)
            }
            "no-daemon" => {
                options.no_daemon = true;
                start(&options)
            }
            "once" => {
                options.once = true;
                start(&options)
            }
            "stop" => self.stop(all, way),
            "kill" => self.stop(all, way) || !self.is_any_running(),
            "shutdown" => self.stop(all, StopMode::Graceful),
            "restart" => {
                let stopped = self.stop(all, way);
                start(&options) && stopped
            }
            "reload" | "force-reload" => {
                // One after the other, so that the rest keeps running.
                let mut good = true;
                for program in all {
                    let program = slice::from_ref(program);
                    good &= self.stop(program, StopMode::Graceful);
                    good &= self.start(program, &options);
                }
                good
            }
            _ => self.reload_seamless(),
        }
    }

    fn status(&self) -> bool {
        let mut all_run = true;
        for program in &self.programs {
            let running = program.running(self.options.number);
            if running.is_empty() {
                all_run = false;
                self.print_none_running(program);
            }
            for (pid, conf) in running {
                print_running(program, pid, &conf);
            }
        }
        all_run
    }

    fn print_none_running(&self, program: &Program) {
        let name = program.name();
        let Some(number) = self.options.number else {
            return print_line(format_args!("No {name} running"));
        };
        match program.confs(Some(number)).first() {
            Some(conf) => print_line(format_args!(
                "{name} #{number} not running ({})",
                conf.display()
            )),
            None => self.print_no_conf(program),
        }
    }

    fn print_no_conf(&self, program: &Program) {
        let name = program.name();
        match self.options.number {
            Some(n) => print_line(format_args!(
                "Unable to locate config number {n} for {name}"
            )),
            None => print_line(format_args!("Unable to locate config for {name}")),
        }
        let found = program.confs(None);
        if self.options.verbose && !found.is_empty() {
            print_line(format_args!("Found configs:"));
            for (number, conf) in (1..).zip(found) {
                print_line(format_args!("  {number}) {}", conf.display()));
            }
        }
    }

    fn is_any_running(&self) -> bool {
        let number = self.options.number;
        self.programs.iter().any(|p| !p.running(number).is_empty())
    }

    fn start(&self, programs: &[Program], options: &InitOptions) -> bool {
        let mut good = true;
        let mut started: Vec<Started> = Vec::new();
        for program in programs {
            let of_program = self.launch(program, options);
            if of_program.is_empty() && self.strict {
                good = false;
            }
            started.extend(of_program);
        }
        for mut process in started {
            if options.no_daemon {
                good &= process.wait();
            } else if !options.no_wait {
                good &= self.await_ready(process, options.once);
            }
        }
        good
    }

    /// Starts a process for each conf, unless one is running.
    fn launch(&self, program: &Program, options: &InitOptions) -> Vec<Started> {
        let confs = program.confs(options.number);
        if confs.is_empty() {
            self.print_no_conf(program);
            return Vec::new();
        }
        let running = program.running(options.number);
        if !running.is_empty() {
            for (pid, conf) in running {
                print_running(program, pid, &conf);
            }
            print_line(format_args!("{} already started...", program.name()));
            return Vec::new();
        }
        let once = options.once && !program.is_server();
        let mut started = Vec::new();
        for conf in confs {
            let what = if once { "Running" } else { "Starting" };
            let once_word = if once { " once" } else { "" };
            let (name, shown) = (program.name(), conf.display());
            print_line(format_args!("{what} {name}{once_word}...({shown})"));
            match program.spawn(&conf, once, options.no_daemon) {
                Ok(process) => started.push(process),
                Err(error) => print_line(format_args!("{name}: {error:#}")),
            }
        }
        started
    }

    /// Waits until the program has closed its output and, with `once`, exited.
    fn await_ready(&self, mut process: Started, once: bool) -> bool {
        let said = process.read_output();
        if once {
            let good = process.wait();
            print_output(&said);
            return good;
        }
        if said.is_empty() {
            return true;
        }
        print_output(&said);
        let deadline = Instant::now() + EXIT_GRACE;
        while Instant::now() < deadline {
            if let Some(good) = process.ended() {
                return good;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    fn stop(&self, programs: &[Program], way: StopMode) -> bool {
        let mut waiting: Vec<(&Program, Pid)> = Vec::new();
        for program in programs {
            let signalled = program.signal(way.signal(program), self.options.number);
            if signalled.is_empty() {
                print_line(format_args!("No {} running", program.name()));
            }
            waiting.extend(signalled.into_iter().map(|pid| (program, pid)));
        }
        if waiting.is_empty() {
            return false;
        }
        let deadline = Instant::now() + self.options.kill_wait;
        loop {
            waiting.retain(|(program, pid)| {
                let ended = !program.is_alive(*pid);
                if ended {
                    program.forget(*pid);
                    let (name, pid) = (program.name(), pid.as_raw_nonzero());
                    print_line(format_args!("{name} ({pid}) appears to have stopped"));
                }
                !ended
            });
            if waiting.is_empty() {
                return true;
            }
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.handle_timeout(&waiting);
        false
    }

    fn handle_timeout(&self, waiting: &[(&Program, Pid)]) {
        let seconds = self.options.kill_wait.as_secs();
        for (program, pid) in waiting {
            let (name, number) = (program.name(), pid.as_raw_nonzero());
            if !self.options.kill_after_timeout {
                print_line(format_args!(
                    "Waited {seconds} seconds for {name} ({number}) to die; giving up"
                ));
                continue;
            }
            print_line(format_args!(
                "Waited {seconds} seconds for {name} ({number}) to die; killing"
            ));
            // The process group includes its workers; it may be gone already.
            let _ = kill_process_group(*pid, Signal::KILL);
        }
    }

    /// Returns when the servers have restarted: an earlier signal would kill them.
    fn reload_seamless(&self) -> bool {
        let mut good = true;
        let mut starts = NewStarts::default();
        for program in &self.programs {
            let signal = StopMode::Seamless.signal(program);
            if program.is_server() {
                starts.expect(program.running(self.options.number));
            }
            if program.signal(signal, self.options.number).is_empty() {
                print_line(format_args!("No {} running", program.name()));
                good = false;
            }
        }
        starts.wait();
        good
    }
}

fn print_running(program: &Program, pid: Pid, conf: &std::path::Path) {
    let (name, pid) = (program.name(), pid.as_raw_nonzero());
    print_line(format_args!("{name} running ({pid} - {})", conf.display()));
}

fn print_output(said: &str) {
    if !said.is_empty() {
        print_line(format_args!("{}", said.trim_end()));
    }
}

/// Default folders of confs and of pid files.
pub const SWIFT_DIR: &str = "/etc/swift";
pub const RUN_DIR: &str = "/var/run/swift";

impl Folders {
    pub fn new(swift_dir: Option<PathBuf>, run_dir: Option<PathBuf>) -> Folders {
        Folders {
            swift_dir: swift_dir.unwrap_or_else(|| SWIFT_DIR.into()),
            run_dir: run_dir.unwrap_or_else(|| RUN_DIR.into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
