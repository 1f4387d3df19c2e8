//! `cairn init`, also called `swift-init`: starts, stops and reloads Swift's programs by their
//! names, one process for each conf file, and remembers them by files of process ids under the
//! run folder. Commands, options, files and exit codes are upstream's.
//!
//! A program is looked for on PATH first; one that is not there and that this binary is, is this
//! binary under that name.

mod anew;
mod find;
mod program;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::similar::did_you_mean;
use anew::NewStarts;
pub use find::Folders;
use program::{Program, Started};

/// Swift's servers, and its daemons.
const MAIN: [&str; 4] = [
    "proxy-server",
    "account-server",
    "container-server",
    "object-server",
];
const REST: [&str; 14] = [
    "account-auditor",
    "account-reaper",
    "account-replicator",
    "container-auditor",
    "container-reconciler",
    "container-replicator",
    "container-sharder",
    "container-sync",
    "container-updater",
    "object-auditor",
    "object-expirer",
    "object-reconstructor",
    "object-replicator",
    "object-updater",
];
/// For a program that has said something to end, for what it said may have been its last words.
const LAST_WORDS: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What can be done, and what is said about it.
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

/// What the command line says.
#[derive(Clone, Debug)]
pub struct InitOptions {
    pub folders: Folders,
    /// Where a conf is missing, show those there are; say which files of process ids were removed.
    pub verbose: bool,
    /// Do not wait until servers are ready.
    pub no_wait: bool,
    pub once: bool,
    /// Start with the log on the console, and stay.
    pub no_daemon: bool,
    /// SIGHUP for those that finish their requests on it.
    pub graceful: bool,
    /// Only the nth conf, counted from 1.
    pub number: Option<usize>,
    pub kill_wait: Duration,
    pub kill_after_timeout: bool,
    /// Is a conf that is missing an error? None: if all programs were named one by one.
    pub strict: Option<bool>,
}

/// Writes a line where people look; nobody may be looking.
fn tell(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Does `command` (`start`, `stop`, …) for programs and groups of them (`all`, `main`, `rest`,
/// `object`, `object-updater`, `object.2`, `container-*`). True: all went well.
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

/// Is this a command? Then words may have come in the other order.
pub fn is_command(word: &str) -> bool {
    COMMANDS
        .iter()
        .any(|(name, _)| *name == word.to_lowercase().replace('_', "-"))
}

/// The conf files of a program; only the nth of them.
pub fn confs_of(word: &str, number: Option<usize>, folders: &Folders) -> Result<Vec<PathBuf>> {
    match Program::named(word, folders) {
        Some(program) => Ok(program.confs(number)),
        None => bail!("{word} is no file, and there is no program of that name"),
    }
}

/// The programs that words stand for, and whether each was named on its own.
fn programs(words: &[String], folders: &Folders) -> Result<(Vec<Program>, bool)> {
    let mut programs: BTreeMap<String, Program> = BTreeMap::new();
    let mut all_named = true;
    let all = || MAIN.iter().chain(&REST).copied();
    for word in words {
        let names: Vec<String> = match word.as_str() {
            "all" => all().map(str::to_owned).collect(),
            "main" => MAIN.map(str::to_owned).to_vec(),
            "rest" => REST.map(str::to_owned).to_vec(),
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

/// How processes are told to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    AtOnce,
    Graceful,
    Seamless,
}

impl Way {
    /// Daemons know one way.
    fn signal(self, program: &Program) -> Signal {
        match self {
            Way::Graceful if program.is_server() => Signal::HUP,
            Way::Seamless if program.is_server() => Signal::USR1,
            _ => Signal::TERM,
        }
    }
}

impl Manager {
    fn command(&self, command: &str) -> bool {
        let way = match self.options.graceful {
            true => Way::Graceful,
            false => Way::AtOnce,
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
            "shutdown" => self.stop(all, Way::Graceful),
            "restart" => {
                let stopped = self.stop(all, way);
                start(&options) && stopped
            }
            "reload" | "force-reload" => {
                // One after the other: the rest goes on meanwhile.
                let mut good = true;
                for program in all {
                    let program = slice::from_ref(program);
                    good &= self.stop(program, Way::Graceful);
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
                self.tell_none_running(program);
            }
            for (pid, conf) in running {
                tell_running(program, pid, &conf);
            }
        }
        all_run
    }

    fn tell_none_running(&self, program: &Program) {
        let name = program.name();
        let Some(number) = self.options.number else {
            return tell(format_args!("No {name} running"));
        };
        match program.confs(Some(number)).first() {
            Some(conf) => tell(format_args!(
                "{name} #{number} not running ({})",
                conf.display()
            )),
            None => self.tell_no_conf(program),
        }
    }

    fn tell_no_conf(&self, program: &Program) {
        let name = program.name();
        match self.options.number {
            Some(n) => tell(format_args!(
                "Unable to locate config number {n} for {name}"
            )),
            None => tell(format_args!("Unable to locate config for {name}")),
        }
        let found = program.confs(None);
        if self.options.verbose && !found.is_empty() {
            tell(format_args!("Found configs:"));
            for (number, conf) in (1..).zip(found) {
                tell(format_args!("  {number}) {}", conf.display()));
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

    /// Starts a process for each conf; none where one is running already.
    fn launch(&self, program: &Program, options: &InitOptions) -> Vec<Started> {
        let confs = program.confs(options.number);
        if confs.is_empty() {
            self.tell_no_conf(program);
            return Vec::new();
        }
        let running = program.running(options.number);
        if !running.is_empty() {
            for (pid, conf) in running {
                tell_running(program, pid, &conf);
            }
            tell(format_args!("{} already started...", program.name()));
            return Vec::new();
        }
        let once = options.once && !program.is_server();
        let mut started = Vec::new();
        for conf in confs {
            let what = if once { "Running" } else { "Starting" };
            let once_word = if once { " once" } else { "" };
            let (name, shown) = (program.name(), conf.display());
            tell(format_args!("{what} {name}{once_word}...({shown})"));
            match program.spawn(&conf, once, options.no_daemon) {
                Ok(process) => started.push(process),
                Err(error) => tell(format_args!("{name}: {error:#}")),
            }
        }
        started
    }

    /// Waits until the program has closed its output, and for one pass to end.
    fn await_ready(&self, mut process: Started, once: bool) -> bool {
        let said = process.read_output();
        if once {
            let good = process.wait();
            print_said(&said);
            return good;
        }
        if said.is_empty() {
            return true;
        }
        print_said(&said);
        let deadline = Instant::now() + LAST_WORDS;
        while Instant::now() < deadline {
            if let Some(good) = process.ended() {
                return good;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        true
    }

    fn stop(&self, programs: &[Program], way: Way) -> bool {
        let mut waiting: Vec<(&Program, Pid)> = Vec::new();
        for program in programs {
            let signalled = program.signal(way.signal(program), self.options.number);
            if signalled.is_empty() {
                tell(format_args!("No {} running", program.name()));
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
                    tell(format_args!("{name} ({pid}) appears to have stopped"));
                }
                !ended
            });
            if waiting.is_empty() {
                return true;
            }
            if Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        self.give_up(&waiting);
        false
    }

    fn give_up(&self, waiting: &[(&Program, Pid)]) {
        let seconds = self.options.kill_wait.as_secs();
        for (program, pid) in waiting {
            let (name, number) = (program.name(), pid.as_raw_nonzero());
            if !self.options.kill_after_timeout {
                tell(format_args!(
                    "Waited {seconds} seconds for {name} ({number}) to die; giving up"
                ));
                continue;
            }
            tell(format_args!(
                "Waited {seconds} seconds for {name} ({number}) to die; killing"
            ));
            // Its workers and it; gone meanwhile is what was wanted.
            let _ = kill_process_group(*pid, Signal::KILL);
        }
    }

    /// Comes back when the servers have started anew: a signal before that would end them.
    fn reload_seamless(&self) -> bool {
        let mut good = true;
        let mut starts = NewStarts::default();
        for program in &self.programs {
            let signal = Way::Seamless.signal(program);
            if program.is_server() {
                starts.expect(program.running(self.options.number));
            }
            if program.signal(signal, self.options.number).is_empty() {
                tell(format_args!("No {} running", program.name()));
                good = false;
            }
        }
        starts.wait();
        good
    }
}

fn tell_running(program: &Program, pid: Pid, conf: &std::path::Path) {
    let (name, pid) = (program.name(), pid.as_raw_nonzero());
    tell(format_args!("{name} running ({pid} - {})", conf.display()));
}

fn print_said(said: &str) {
    if !said.is_empty() {
        tell(format_args!("{}", said.trim_end()));
    }
}

/// Where confs and files of process ids are, unless told otherwise.
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
