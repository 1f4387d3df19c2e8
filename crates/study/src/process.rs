//! Child processes of a cell: in their node's network namespace and control groups, with output to
//! a log file. They are killed when dropped, and by the kernel when this process dies.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

const END_TIMEOUT: Duration = Duration::from_secs(10);
const LOG_LINES: usize = 20;
/// Unit of times in `/proc/PID/stat`: Linux has a hundred a second towards programs, whatever its
/// own.
const TICK_NS: u64 = 10_000_000;

/// Environment of a process.
#[derive(Clone, Debug, Default)]
pub struct ProcessEnvironment {
    /// Network namespace; `None`: this process's own.
    pub namespace: Option<String>,
    /// Files of control groups that it enters.
    pub entrances: Vec<PathBuf>,
}

/// A command in its environment; the process dies with the thread that starts it.
pub fn command(place: &ProcessEnvironment, program: &Path) -> Command {
    let mut words: Vec<String> = Vec::new();
    if cairn_emulate::host::has("setpriv") {
        words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(str::to_owned));
    }
    if let Some(namespace) = &place.namespace {
        words.extend([
            "nsenter".to_owned(),
            format!("--net=/run/netns/{namespace}"),
        ]);
    }
    if !place.entrances.is_empty() {
        let enter: Vec<String> = place
            .entrances
            .iter()
            .map(|at| format!("echo $$ > '{}'", at.display()))
            .collect();
        let script = format!("{} && exec \"$0\" \"$@\"", enter.join(" && "));
        words.extend(["sh".to_owned(), "-c".to_owned(), script]);
    }
    match words.split_first() {
        None => Command::new(program),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// A server process.
pub struct Process {
    pub name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the command, with its output in `log`.
    ///
    /// # Errors
    /// The log cannot be created, or the program cannot be started.
    pub fn start(name: &str, command: &mut Command, log: PathBuf) -> Result<Process> {
        let out = File::create(&log).with_context(|| log.display().to_string())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        let name = name.to_owned();
        Ok(Process { name, child, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails with its last output if it has ended.
    ///
    /// # Errors
    /// It has ended; the error has its exit status and last output.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}: {}", self.name, self.last_words());
        }
        Ok(())
    }

    pub fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    pub fn tell_to_end(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }

    /// Waits for the end of a process that was told to end; kills it after a timeout.
    pub fn end(&mut self) {
        self.tell_to_end();
        cairn_emulate::world::end_within(&mut self.child, END_TIMEOUT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time that a process has used, in nanoseconds.
pub fn cpu_used_ns(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field, in brackets, may have spaces; user and system time are the 14th and 15th.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|t| t.parse::<u64>().ok()).sum();
    ticks * TICK_NS
}

/// Time that a process's threads have waited for a CPU, in nanoseconds, without threads that have
/// ended.
pub fn cpu_wait_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let of_task = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    tasks.into_iter().flatten().filter_map(of_task).sum()
}

/// Runs this program to its end and returns its output. `also` are exit codes other than 0 that are
/// none of a failure.
///
/// # Errors
/// It cannot be started, or fails; the error has its output.
pub fn run_quiet(command: &mut Command, also: &[i32]) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("running {command:?}"))?;
    let is_other = output
        .status
        .code()
        .is_some_and(|code| also.contains(&code));
    if !output.status.success() && !is_other {
        bail!(
            "{command:?} ended with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
