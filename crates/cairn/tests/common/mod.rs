//! The program under test, and the smallest HTTP client that can talk to it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

/// How long anything may take before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn cairn() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    command.env_remove("RUST_LOG");
    command
}

/// A running `cairn`; killed when dropped.
pub(crate) struct Running {
    child: Child,
    /// Kept open, so that the program's later lines have somewhere to go.
    _stdout: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

impl Running {
    /// Starts the program, and waits until `server` says that it is ready.
    pub(crate) fn start(command: &mut Command, server: &str) -> Running {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("cairn starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let address = loop {
            let mut line = String::new();
            let read = stdout.read_line(&mut line).expect("its output is text");
            assert_ne!(read, 0, "ended before it was ready: {:?}", child.wait());
            if let Some(rest) = line.strip_prefix(&format!("{server} ready on ")) {
                let address = rest.split_whitespace().next().expect("an address");
                break address.parse().expect("an address");
            }
        };
        Running {
            child,
            _stdout: stdout,
            address,
        }
    }

    pub(crate) fn up(data: &Path, options: &[&str]) -> Running {
        let mut command = cairn();
        command
            .arg("up")
            .arg("--data")
            .arg(data)
            .args(["--log-level", "warn"])
            .args(options);
        Running::start(&mut command, "proxy-server")
    }

    pub(crate) fn serve(conf: &Path, server: &str) -> Running {
        let mut command = cairn();
        command.arg("serve").arg(conf).args(["--log-level", "warn"]);
        Running::start(&mut command, server)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end; answers with its exit code.
    pub(crate) fn stop(self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id");
        let id = rustix::process::Pid::from_raw(id).expect("a process id");
        rustix::process::kill_process(id, signal).expect("it runs");
    }

    /// Its exit code, once it has ended.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// An upload of ten bytes that the server waits for, none of them sent.
    pub(crate) fn begin_upload(&self, path: &str, token: &str) -> TcpStream {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {token}\r\nContent-Length: 10\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        stream
            .write_all(head.as_bytes())
            .expect("the head is taken");
        let mut answer = [0; 25];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream
    }

    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        call(self.address, method, path, headers, body)
    }

    /// A token and the path of the account.
    pub(crate) fn log_in(&self, user: &str, key: &str) -> (String, String) {
        let headers = [("X-Auth-User", user), ("X-Auth-Key", key)];
        let answer = self.call("GET", "/auth/v1.0", &headers, b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        let url = &answer.headers["x-storage-url"];
        let path = url
            .split_once("//")
            .and_then(|(_, rest)| rest.split_once('/'));
        let path = format!("/{}", path.expect("a URL").1);
        (answer.headers["x-auth-token"].clone(), path)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended in most cases.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream
        .write_all(head.as_bytes())
        .expect("the head is taken");
    stream.write_all(body).expect("the body is taken");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("a head");
    let head = std::str::from_utf8(&answer[..end])
        .expect("a head of text")
        .to_owned();
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .expect("a status");
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers
        .get("transfer-encoding")
        .is_some_and(|value| value == "chunked");
    let body = &answer[end + 4..];
    Answer {
        status: status.parse().expect("a status"),
        body: if chunked {
            unchunked(body)
        } else {
            body.to_vec()
        },
        headers,
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest
            .windows(2)
            .position(|w| w == b"\r\n")
            .expect("a chunk's size");
        let size = std::str::from_utf8(&rest[..end]).expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
}

pub(crate) fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
