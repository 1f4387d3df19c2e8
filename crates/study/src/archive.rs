//! A container of a cell's cluster mounted as a file system, for workloads that write files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cairn_client::{Login, Options, StoreUrl, Swift};

use crate::cluster::{KEY, USER};
use crate::process::{self, Process, ProcessEnvironment};

const CONTAINER: &str = "archive";
const TIMEOUT: Duration = Duration::from_secs(30);

/// A mount that lasts until it is dropped.
pub struct Archive {
    process: Process,
    pub at: PathBuf,
}

impl Archive {
    /// Creates the container and mounts it at a new folder in `scratch`.
    ///
    /// # Errors
    /// The store refuses the sign-in or the container, or the mount does not start, ends, or is not
    /// there within 30 s.
    pub fn mount(program: &Path, proxy: &str, scratch: &Path, log: PathBuf) -> Result<Archive> {
        let auth_url = format!("http://{proxy}/auth/v1.0");
        let container = make_container(&auth_url)?;
        let at = scratch.join("mount");
        std::fs::create_dir_all(&at)?;
        let mut command = process::command(&ProcessEnvironment::default(), program);
        command.args(["mount", "--foreground"]);
        command.arg(container).arg(&at);
        command.env("ST_AUTH", auth_url);
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

/// Creates the container; returns its URL.
fn make_container(auth_url: &str) -> Result<String> {
    let login = Login::Tempauth {
        url: StoreUrl::parse(auth_url)?,
        user: USER.to_owned(),
        key: KEY.to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let swift = Swift::connect(login, None, &Options::default()).await?;
        swift.put_container(CONTAINER).await?;
        Ok(format!("{}/{CONTAINER}", swift.account()))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_container_is_made_by_the_user_of_the_cluster() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let store = std::thread::spawn(move || {
            let mut heads = Vec::new();
            // A connection for each request.
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head = lines.map_while(Result::ok);
                let head: Vec<String> = head.take_while(|line| !line.is_empty()).collect();
                heads.push(head.join("\n"));
                write!(
                    stream,
                    "HTTP/1.1 201 Created\r\nX-Auth-Token: t\r\n\
                     X-Storage-Url: http://{address}/v1/AUTH_test\r\nConnection: close\r\n\
                     Content-Length: 0\r\n\r\n"
                )
                .unwrap();
            }
            heads
        });
        let url = make_container(&format!("http://{address}/auth/v1.0")).unwrap();
        assert_eq!(url, format!("http://{address}/v1/AUTH_test/archive"));
        let heads = store.join().unwrap();
        assert!(heads[0].starts_with("GET /auth/v1.0 "), "{heads:?}");
        assert!(
            heads[0].contains(USER) && heads[0].contains(KEY),
            "{heads:?}"
        );
        assert!(
            heads[1].starts_with("PUT /v1/AUTH_test/archive "),
            "{heads:?}"
        );
    }
}
