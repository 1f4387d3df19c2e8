//! Servers we start and stop. Each leads a process group of its own with its output in a log
//! file; it is killed when dropped, and (where `setpriv` is) when xtask itself dies.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use tokio::net::TcpSocket;

use crate::wire::Connection;

/// A server that was started, killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program args…`, with its output in `log_dir/name.log`.
    ///
    /// # Errors
    /// The log cannot be opened, or the program (`setpriv`, where it is) cannot be started.
    pub fn start(name: &str, program: &Path, args: &[&str], log_dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(log_dir)?;
        let log = log_dir.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        let mut command = if crate::workspace::have("setpriv") {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "TERM", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let child = command
            .args(args)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Process {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// The name given at the start, which its log has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Status and end of the log, if the process has ended.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!(
            "{} ended with {status}:\n{}",
            self.name,
            self.log_tail()
        ))
    }

    /// Exit code, if the process has ended; `Some(None)` if it was ended by a signal.
    pub fn code(&mut self) -> Option<Option<i32>> {
        Some(self.child.try_wait().ok()??.code())
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Lines of its log that contain `of`.
    pub fn log_lines(&self, of: &str) -> Vec<String> {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| line.contains(of));
        lines.map(str::to_owned).collect()
    }

    /// Waits until `ready` returns true, for at most `seconds`, while the process lives.
    ///
    /// # Errors
    /// The process has ended, `ready` fails, or the time is over: see [`wait_for`].
    pub fn wait_until(
        &mut self,
        what: &str,
        seconds: u64,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        wait_for(what, seconds, || match self.ended() {
            Some(words) => bail!("{words}"),
            None => ready(),
        })
    }

    /// Waits until a GET of `path` at `address` is answered with 200, for at most `seconds`, while
    /// the process lives.
    ///
    /// # Errors
    /// The process has ended, or there is no such answer in time. A failed request is no error: it
    /// is sent again.
    pub fn wait_for_answer(
        &mut self,
        address: impl Into<SocketAddr>,
        path: &str,
        seconds: u64,
    ) -> Result<()> {
        let address = address.into();
        let what = format!("GET {path} of {} at {address}", self.name);
        self.wait_until(&what, seconds, || {
            let answer = Connection::to(address).call("GET", path, &[], b"");
            Ok(answer.is_ok_and(|answer| answer.status == 200))
        })
    }

    /// Sends a signal to the process and its children.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.group() {
            // It may have ended already: nobody is left to receive the signal.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// Sends SIGTERM to the leader, and SIGKILL to the rest of the group after ten seconds. Returns
    /// false if it had to be killed.
    pub fn stop(&mut self) -> bool {
        if let (Some(pid), Ok(None)) = (self.group(), self.child.try_wait()) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut clean = false;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                clean = true;
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
        clean
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns `count` different free ports of 127.0.0.1, reserved until this process ends: a bound
/// socket that does not listen keeps the kernel from assigning the port to a client's connection or
/// to a bind to port 0, and still lets servers listen there (all of them set `SO_REUSEADDR`).
///
/// # Errors
/// A socket cannot be opened, or no port is left to bind it to.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    static HELD: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());
    let mut held = HELD.lock();
    let mut ports = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        socket.set_reuseaddr(true)?;
        ports.push(socket.local_addr()?.port());
        held.push(socket);
    }
    Ok(ports)
}

/// Returns the first of `count` consecutive free ports, for programs that count up from their first
/// port. A range may be returned twice if the first caller does not listen yet.
///
/// # Errors
/// No such range is free among those tried, which begin between 10000 and 32000.
pub fn free_range(count: u16) -> Result<u16> {
    static LAST: Mutex<u16> = Mutex::new(0);
    let mut last = LAST.lock();
    // Below the kernel's ephemeral range, so that no client's connection takes one meanwhile.
    let offset = (std::process::id() % 97) as u16 * count % 2000;
    let firsts = (10_000u16..30_000).step_by(usize::from(count));
    let firsts: Vec<u16> = firsts.map(|first| first + offset).collect();
    let (given, later): (Vec<u16>, Vec<u16>) = firsts.iter().partition(|f| **f <= *last);
    for first in later.into_iter().chain(given) {
        let mut range = first..first + count;
        if range.all(|p| TcpListener::bind((Ipv4Addr::LOCALHOST, p)).is_ok()) {
            *last = first;
            return Ok(first);
        }
    }
    bail!("no {count} free ports in a row");
}

/// Waits until `ready` returns true, for at most `seconds`.
///
/// # Errors
/// `ready` fails, or it still returns false when the time is over.
pub fn wait_for(what: &str, seconds: u64, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if ready()? {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{what}: not within {seconds} seconds");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Time for a program to listen, while it lives: a dozen of Python start at once on a busy host.
const PORT_SECONDS: u64 = 240;

/// Waits until something listens on the port, while the processes live.
///
/// # Errors
/// A process has ended, nothing listens within 240 seconds, or connecting fails otherwise than by
/// being refused.
pub fn wait_for_port(port: u16, processes: &mut [Process]) -> Result<()> {
    wait_for(&format!("port {port}"), PORT_SECONDS, || {
        if let Some(words) = processes.iter_mut().find_map(Process::ended) {
            bail!("{words}");
        }
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(false),
            Err(e) => Err(e.into()),
        }
    })
}
