//! One of Swift's programs: its confs, its processes, and starting it.

use std::fs;
use std::io::{PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cairn_node::conf::read_conf;
use cairn_node::role::DaemonKind;
use cairn_node::role::Role;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::find::{Folders, Search};
use super::print_line;

/// Maximum output read of a program before it is ready, in bytes.
const OUTPUT_MAX_BYTES: u64 = 1 << 20;
/// Timeout for a server to install its signal handlers; after that it is signalled anyway.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(2);

/// The full name of a server, which may be abbreviated to its kind.
pub(super) fn full_name(name: &str) -> String {
    let name = name.split('.').next().unwrap_or(name).to_lowercase();
    match name.contains('-') {
        true => name,
        false => format!("{name}-server"),
    }
}

pub(super) struct Program {
    /// `object-updater`
    name: String,
    /// The conf selected by `object.2`.
    conf: Option<String>,
    file: PathBuf,
    folders: Folders,
    /// Reports removed pid files, and why.
    pub(super) verbose: bool,
}

impl Program {
    /// `None` if there is no such program.
    pub(super) fn named(word: &str, folders: &Folders) -> Option<Program> {
        let name = full_name(word);
        let conf = word.rsplit_once('.').map(|(_, conf)| conf.to_owned());
        Some(Program {
            file: find_program(&name)?,
            name,
            conf,
            folders: folders.clone(),
            verbose: false,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_server(&self) -> bool {
        self.name.ends_with("-server")
    }

    /// `object-server`, whose conf an `object-updater` also reads.
    fn server(&self) -> String {
        let kind = self.name.split('-').next().unwrap_or_default();
        format!("{kind}-server")
    }

    /// Whether it has a conf file of its own name.
    fn is_standalone(&self) -> bool {
        self.name == "container-reconciler"
    }

    /// Its conf files and folders in order, or only the nth.
    pub(super) fn confs(&self, number: Option<usize>) -> Vec<PathBuf> {
        let found = if self.is_standalone() {
            self.find_confs(&self.name)
        } else if self.name == "object-expirer" {
            let mut beside = self.find_confs("object-server");
            beside.retain(|conf| read_conf(conf).is_ok_and(|c| c.has_section("object-expirer")));
            match beside.is_empty() {
                true => self.find_confs("object-expirer"),
                false => beside,
            }
        } else {
            self.find_confs(&self.server())
        };
        match number {
            None => found,
            Some(n) => found
                .into_iter()
                .skip(n.saturating_sub(1))
                .take(1)
                .collect(),
        }
    }

    fn find_confs(&self, name: &str) -> Vec<PathBuf> {
        let (pattern, end) = match &self.conf {
            Some(conf) => (name.to_owned(), format!("{conf}.conf")),
            None => (format!("{name}*"), ".conf".to_owned()),
        };
        let search = Search {
            root: &self.folders.swift_dir,
            pattern: &pattern,
            file_ends: &[&end],
            folder_end: Some(&format!("{end}.d")),
        };
        search.run()
    }

    /// Pid file of a conf's process: at the corresponding path under the run folder, by the
    /// program's name.
    fn pid_file(&self, conf: &Path) -> PathBuf {
        let path = conf.strip_prefix(&self.folders.swift_dir).unwrap_or(conf);
        let text = path.to_string_lossy();
        let text = text.replacen(&self.server(), &self.name, 1);
        self.folders
            .run_dir
            .join(text.replacen(".conf", ".pid", 1).trim_start_matches('/'))
    }

    fn conf_of(&self, pid_file: &Path) -> PathBuf {
        let path = pid_file
            .strip_prefix(&self.folders.run_dir)
            .unwrap_or(pid_file);
        let text = path.to_string_lossy();
        let own = self.is_standalone();
        let server = if own {
            self.name.clone()
        } else {
            self.server()
        };
        let text = text.replacen(&self.name, &server, 1);
        self.folders
            .swift_dir
            .join(text.replacen(".pid", ".conf", 1))
    }

    fn pid_files(&self, number: Option<usize>) -> Vec<PathBuf> {
        let ends = match &self.conf {
            Some(conf) => vec![format!("{conf}.pid"), format!("{conf}.pid.d")],
            None => Vec::new(),
        };
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        let search = Search {
            root: &self.folders.run_dir,
            pattern: &format!("{}*", self.name),
            file_ends: &ends,
            folder_end: None,
        };
        let mut found = search.run();
        if number.is_some() {
            let wanted: Vec<PathBuf> = self
                .confs(number)
                .iter()
                .map(|c| self.pid_file(c))
                .collect();
            found.retain(|file| wanted.contains(file));
        }
        found
    }

    /// Live processes with their confs. Removes pid files of dead ones.
    pub(super) fn running(&self, number: Option<usize>) -> Vec<(Pid, PathBuf)> {
        let mut running = Vec::new();
        for file in self.pid_files(number) {
            let pid = read_pid(&file);
            match pid {
                Some(pid) if self.is_alive(pid) => {
                    running.push((pid, self.conf_of(&file)));
                    continue;
                }
                Some(_) if !self.verbose => {}
                Some(_) => print_line(format_args!("Removing stale pid file {}", file.display())),
                None => print_line(format_args!(
                    "Removing pid file {} with invalid pid",
                    file.display()
                )),
            }
            // Another process may have removed it.
            let _ = fs::remove_file(&file);
        }
        running
    }

    /// Whether this is a process of this program; the pid may have been reused.
    pub(super) fn is_alive(&self, pid: Pid) -> bool {
        if test_kill_process(pid).is_err() {
            return false;
        }
        let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
        let Ok(line) = fs::read(path) else {
            return false;
        };
        let line = String::from_utf8_lossy(&line);
        line.contains(&format!("swift-{}", self.name))
    }

    /// Signals the processes; returns those signalled.
    pub(super) fn signal(&self, signal: Signal, number: Option<usize>) -> Vec<Pid> {
        let mut told = Vec::new();
        for (pid, _) in self.running(number) {
            self.await_listener(pid, signal);
            let (name, raw) = (&self.name, pid.as_raw_nonzero());
            print_line(format_args!(
                "Signal {name}  pid: {raw}  signal: {}",
                signal.as_raw()
            ));
            match kill_process(pid, signal) {
                Ok(()) => told.push(pid),
                Err(error) => print_line(format_args!("cannot signal {raw}: {error}")),
            }
        }
        told
    }

    /// Waits for a starting server's signal handler: without one the signal would kill it, but not
    /// its workers.
    fn await_listener(&self, pid: Pid, signal: Signal) {
        let deadline = Instant::now() + LISTENER_TIMEOUT;
        while self.is_server() && !listens_for(pid, signal) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes the pid file of an ended process.
    pub(super) fn forget(&self, pid: Pid) {
        for file in self.pid_files(None) {
            if read_pid(&file) == Some(pid) {
                let _ = fs::remove_file(file);
            }
        }
    }

    pub(super) fn spawn(&self, conf: &Path, once: bool, verbose: bool) -> Result<Started> {
        let mut command = Command::new(&self.file);
        command.arg0(format!("swift-{}", self.name)).arg(conf);
        if once {
            command.arg("once");
        }
        let output = if verbose {
            command.arg("verbose");
            None
        } else {
            let (reader, writer) = std::io::pipe().context("no pipe for its output")?;
            command.stdin(Stdio::null());
            command.stdout(writer.try_clone()?).stderr(writer);
            Some(reader)
        };
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.file.display()))?;
        let file = self.pid_file(conf);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&file, child.id().to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Started { child, output })
    }
}

/// Whether a process catches a signal, by the kernel's `SigCgt` (bit 0 is signal 1). True if
/// unknown.
fn listens_for(pid: Pid, signal: Signal) -> bool {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = fs::read_to_string(path).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_none_or(|mask| (mask >> (signal.as_raw() - 1)) & 1 == 1)
}

fn read_pid(file: &Path) -> Option<Pid> {
    let text = fs::read_to_string(file).ok()?;
    Pid::from_raw(text.trim().parse().ok()?)
}

fn find_program(name: &str) -> Option<PathBuf> {
    let program = format!("swift-{name}");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .map(|folder| folder.join(&program))
        .find(|file| file.is_file());
    let is_ours =
        DaemonKind::from_name(name).is_some() || Role::ALL.iter().any(|r| r.server_name() == name);
    on_path.or_else(|| is_ours.then(std::env::current_exe).and_then(Result::ok))
}

/// A process started here.
pub(super) struct Started {
    child: Child,
    output: Option<PipeReader>,
}

impl Started {
    /// Reads its output until it closes that.
    pub(super) fn read_output(&mut self) -> String {
        let mut said = Vec::new();
        if let Some(output) = self.output.take() {
            // Partial output is better than none.
            let _ = output.take(OUTPUT_MAX_BYTES).read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    pub(super) fn wait(&mut self) -> bool {
        self.child.wait().is_ok_and(|status| status.success())
    }

    /// Its success, if it has ended.
    pub(super) fn ended(&mut self) -> Option<bool> {
        let status = self.child.try_wait().ok()??;
        Some(status.success())
    }
}
