//! A container of a cell's cluster mounted as a file system, for workloads that write files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::{KEY, USER};
use crate::process::{self, Process, ProcessEnvironment};

const CONTAINER: &str = "archive";
const TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A mount that lasts until it is dropped.
pub struct Archive {
    process: Process,
    pub at: PathBuf,
}

impl Archive {
    /// Creates the container and mounts it at a new folder in `scratch`.
    pub fn mount(program: &Path, proxy: &str, scratch: &Path, log: PathBuf) -> Result<Archive> {
        let (user, key) = (format!("X-Auth-User: {USER}"), format!("X-Auth-Key: {KEY}"));
        let answer = ask(proxy, "GET /auth/v1.0", &[&user, &key])?;
        let token = header(&answer, "x-auth-token").context("a log-in without a token")?;
        let storage = header(&answer, "x-storage-url").context("a log-in without an account")?;
        let (_, path) = storage
            .split_once("/v1/")
            .context("an account's URL without /v1/")?;
        let put = format!("PUT /v1/{path}/{CONTAINER}");
        ask(proxy, &put, &[&format!("X-Auth-Token: {token}")])?;
        let at = scratch.join("mount");
        std::fs::create_dir_all(&at)?;
        let mut command = process::command(&ProcessEnvironment::default(), program);
        command.args(["mount", "--foreground"]);
        command
            .arg(format!("http://{proxy}/v1/{path}/{CONTAINER}"))
            .arg(&at);
        command.env("ST_AUTH", format!("http://{proxy}/auth/v1.0"));
        command.env("ST_USER", USER).env("ST_KEY", KEY);
        let mut archive = Archive {
            process: Process::start("mount", &mut command, log)?,
            at,
        };
        let deadline = Instant::now() + TIMEOUT;
        while !archive.is_mounted() {
            archive.process.check()?;
            ensure!(
                Instant::now() < deadline,
                "the mount does not come: {}",
                archive.process.last_words()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(archive)
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let at = self.at.to_string_lossy();
        mounts
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(&*at))
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        // It unmounts when it is told to end.
        self.process.end();
        if self.is_mounted() {
            let at = self.at.to_string_lossy().into_owned();
            let _ = cairn_emulate::host::run("umount", &["--lazy", &at]);
        }
    }
}

/// Sends one request without a body; returns the response's head.
fn ask(proxy: &str, request: &str, headers: &[&str]) -> Result<String> {
    let mut stream = TcpStream::connect(proxy).with_context(|| proxy.to_owned())?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let head = [headers, &["Content-Length: 0", "Connection: close"]]
        .concat()
        .join("\r\n");
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: {proxy}\r\n{head}\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 20") {
        bail!(
            "{request}: {}",
            answer.lines().next().unwrap_or("no answer")
        );
    }
    Ok(answer)
}

fn header(answer: &str, name: &str) -> Option<String> {
    let of_line = |line: &str| {
        let (own, value) = line.split_once(':')?;
        own.eq_ignore_ascii_case(name)
            .then(|| value.trim().to_owned())
    };
    answer.lines().skip(1).find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_by_any_spelling() {
        let answer = "HTTP/1.1 200 OK\r\nX-Auth-Token: t\r\nX-Storage-Url: http://h/v1/a\r\n\r\n";
        assert_eq!(header(answer, "x-auth-token"), Some("t".to_owned()));
        assert_eq!(
            header(answer, "x-storage-url"),
            Some("http://h/v1/a".to_owned())
        );
        assert_eq!(header(answer, "etag"), None);
    }
}
