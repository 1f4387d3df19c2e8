//! `swift-reload PID`: restarts a server's program without refusing clients, for a service
//! manager's `ExecReload`: only if its conf is valid, and complete when it serves again. It also
//! reloads Swift's servers, and theirs reloads Cairn's.

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::notify;
use crate::role::Role;

/// Exit code of an invalid argument.
const BAD_PID: u8 = 2;
const FAILED: u8 = 1;
/// Exit code 128 plus ETIMEDOUT, in the manner of shells.
const TIMED_OUT: u8 = 128 + 110;

/// Arguments of the program.
#[derive(Clone, Debug)]
pub struct Called {
    pub pid: i32,
    /// Timeout for the restarted server to serve; `None` does not wait.
    pub wait_timeout: Option<Duration>,
    pub verbose: bool,
}

/// Reasons why a server was not reloaded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum ReloadError {
    #[error("Failed to get process information for {0}")]
    NoProcess(i32),
    #[error("Non-swift process: {0:?}")]
    NotSwifts(String),
    #[error("Process does not support config checks: {0}")]
    NoServer(String),
    #[error("Process appears to be a {0} worker, not a manager. Did you mean {1}?")]
    Worker(String, i32),
    #[error("Failed to validate config")]
    BadConf,
    #[error("Could not bind notification socket: {0}")]
    NoSocket(String),
    #[error("Could not send signal to {0}: {1}")]
    NotSent(i32, String),
    #[error("Timed out reloading {0}")]
    TimedOut(String),
}

impl ReloadError {
    fn code(&self) -> u8 {
        match self {
            ReloadError::NoProcess(_)
            | ReloadError::NotSwifts(_)
            | ReloadError::NoServer(_)
            | ReloadError::Worker(..) => BAD_PID,
            ReloadError::TimedOut(_) => TIMED_OUT,
            ReloadError::BadConf | ReloadError::NoSocket(_) | ReloadError::NotSent(..) => FAILED,
        }
    }
}

/// Reloads, prints the result, and returns the exit code.
pub fn run(called: &Called) -> u8 {
    match reload(called) {
        Ok(program) => {
            print_line(&format!("Reloaded {program}"));
            0
        }
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "{error}");
            error.code()
        }
    }
}

fn print_line(text: &str) {
    // Standard output may be closed.
    let _ = writeln!(io::stdout(), "{text}");
}

/// A server's parent process.
struct Server {
    pid: Pid,
    /// `swift-object-server`.
    program: String,
    words: Vec<String>,
}

fn reload(called: &Called) -> Result<String, ReloadError> {
    let print_line = |text: &str| {
        if called.verbose {
            print_line(text);
        }
    };
    let server = find(called.pid)?;
    print_line(&format!("Checking config for {}", server.program));
    if !is_conf_good(&server) {
        return Err(ReloadError::BadConf);
    }
    let listening = called
        .wait_timeout
        .map(|wait_timeout| listen(called.pid, wait_timeout));
    let listening = listening
        .transpose()
        .map_err(|error| ReloadError::NoSocket(error.to_string()))?;
    print_line("Sending USR1 signal");
    kill_process(server.pid, Signal::USR1)
        .map_err(|errno| ReloadError::NotSent(called.pid, errno.to_string()))?;
    if let Some(socket) = listening {
        until_ready(&socket, print_line).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ReloadError::TimedOut(server.program.clone())
            }
            _ => ReloadError::NoSocket(error.to_string()),
        })?;
    }
    Ok(server.program)
}

fn find(pid: i32) -> Result<Server, ReloadError> {
    let gone = || ReloadError::NoProcess(pid);
    let known = Pid::from_raw(pid.max(0)).ok_or_else(gone)?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| gone())?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|_| gone())?;
    let session = session_in(&stat).ok_or_else(gone)?;
    let line = String::from_utf8_lossy(&line);
    let words = line.trim_matches('\0').split('\0').map(str::to_owned);
    let words: Vec<String> = words.collect();
    let program = program_of(&words)?;
    if session != pid {
        return Err(ReloadError::Worker(program, session));
    }
    Ok(Server {
        pid: known,
        program,
        words,
    })
}

/// The sixth field of proc(5)'s `stat`, after a name that may contain anything. Unlike the result
/// of rustix's getsid(2) it may be 0: a session from outside this PID namespace.
fn session_in(stat: &str) -> Option<i32> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// The server run by a command line: its first word, or the script run by Python.
fn program_of(words: &[String]) -> Result<String, ReloadError> {
    let name = |word: &String| {
        let name = word.rsplit('/').next().unwrap_or_default();
        name.starts_with("swift-").then(|| name.to_owned())
    };
    let is_python = |word: &String| word.rsplit('/').next().unwrap_or("").starts_with("python");
    let program = match words.first() {
        Some(first) if is_python(first) => words.get(1).and_then(name),
        first => first.and_then(name),
    };
    let program = program.ok_or_else(|| ReloadError::NotSwifts(words.join(" ")))?;
    let is_server = |role: &Role| program.strip_prefix("swift-") == Some(role.server_name());
    match Role::ALL.iter().any(is_server) {
        true => Ok(program),
        false => Err(ReloadError::NoServer(program)),
    }
}

/// Validates the conf, by the server's own command line.
fn is_conf_good(server: &Server) -> bool {
    let Some((first, rest)) = server.words.split_first() else {
        return false;
    };
    let mut command = match first.contains('/') {
        true => Command::new(first),
        // The name is not on PATH: uses the running executable, or its replacement.
        false => Command::new(executable(server.pid).unwrap_or_else(|| first.into())),
    };
    let status = command
        .arg0(first)
        .args(rest)
        .arg("--test-config")
        .stdin(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn executable(pid: Pid) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()?;
    let text = path.to_str()?;
    Some(Path::new(text.strip_suffix(" (deleted)").unwrap_or(text)).to_owned())
}

fn listen(pid: i32, wait_timeout: Duration) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(&notify::own_address(pid.unsigned_abs())?)?;
    socket.set_read_timeout(Some(wait_timeout.max(Duration::from_millis(1))))?;
    Ok(socket)
}

fn until_ready(socket: &UnixDatagram, print_line: impl Fn(&str)) -> io::Result<()> {
    let mut bytes = [0; 1024];
    loop {
        let len = socket.recv(&mut bytes)?;
        let told = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let mut is_ready = false;
        for state in told.split('\n') {
            match state {
                notify::READY | notify::RELOADING | notify::STOPPING => {
                    print_line(&format!("Process is {}", state.trim_end_matches("=1")));
                }
                other => print_line(&format!("Received notification {other:?}")),
            }
            is_ready |= state == notify::READY;
        }
        if is_ready {
            return Ok(());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<String, ReloadError> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        program_of(&words)
    }

    #[test]
    fn only_servers_are_reloaded() {
        for line in [
            "/usr/bin/python3 /usr/bin/swift-object-server /etc/swift/o.conf",
            "swift-object-server /etc/swift/object-server.conf",
            "/opt/cairn/swift-object-server x.conf verbose",
        ] {
            assert_eq!(of(line).unwrap(), "swift-object-server");
        }
        let code = |line: &str| of(line).unwrap_err().code();
        assert_eq!(code("/bin/sleep 5"), BAD_PID);
        assert_eq!(code("/usr/bin/vi /etc/swift-object-server"), BAD_PID);
        let daemon = "swift-object-auditor x.conf";
        let found = of(daemon).unwrap_err();
        assert_eq!(found, ReloadError::NoServer("swift-object-auditor".into()));
    }

    #[test]
    fn processes_that_are_none() {
        assert_eq!(find(-1).err(), Some(ReloadError::NoProcess(-1)));
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(find(own).err(), Some(ReloadError::NotSwifts(_))));
    }

    #[test]
    fn a_session_from_outside_is_one() {
        assert_eq!(session_in("7 (a) b) S 1 7 6 0 -1 4194560"), Some(6));
        assert_eq!(session_in("7 (sleep) S 0 0 0 0 -1 4194560"), Some(0));
        assert_eq!(session_in("7 (sleep"), None);
    }

    #[test]
    fn it_waits_until_the_server_is_ready() {
        let pid = 999_999_999;
        let socket = listen(pid, Duration::from_secs(5)).unwrap();
        let server = UnixDatagram::unbound().unwrap();
        let address = notify::own_address(pid.unsigned_abs()).unwrap();
        for state in ["RELOADING=1", "STATUS=x\nREADY=1"] {
            server.send_to_addr(state.as_bytes(), &address).unwrap();
        }
        let said = std::cell::RefCell::new(Vec::new());
        until_ready(&socket, |text| said.borrow_mut().push(text.to_owned())).unwrap();
        let expected = [
            "Process is RELOADING",
            "Received notification \"STATUS=x\"",
            "Process is READY",
        ];
        assert_eq!(*said.borrow(), expected);
        socket
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        let error = until_ready(&socket, |_| {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
