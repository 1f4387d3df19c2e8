//! Other mounts of the same store, for comparison: rclone (a Debian package) and S3QL (from
//! wherever it was installed). A missing one is skipped, by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Mount, Setup, bench};
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{have, install, run_quiet, utf8};

pub(super) const RCLONE: &str = "rclone mount";
pub(super) const S3QL: &str = "S3QL";
const CONTAINER: &str = "rclone";
const S3QL_CONTAINER: &str = "s3ql";

pub(super) enum Rival {
    Rclone,
    S3ql(S3ql),
}

/// S3QL's programs, and its login to the store.
pub(super) struct S3ql {
    programs: Option<PathBuf>,
    login: PathBuf,
    cache: PathBuf,
    url: String,
}

/// The available rivals.
pub(super) fn all(setup: &Setup, account: &mut Account, s3ql: Option<&Path>) -> Result<Vec<Rival>> {
    let mut rivals = Vec::new();
    match install("rclone", "rclone") {
        true => {
            account.must("PUT", &format!("/{CONTAINER}"), "", &[], b"")?;
            rivals.push(Rival::Rclone);
        }
        false => println!("left out: {RCLONE}, not installed (apt-get install rclone)"),
    }
    match s3ql.is_some_and(|dir| dir.join("mount.s3ql").exists()) || have("mount.s3ql") {
        true => {
            account.must("PUT", &format!("/{S3QL_CONTAINER}"), "", &[], b"")?;
            rivals.push(Rival::S3ql(S3ql::make(setup, s3ql)?));
        }
        false => println!("left out: {S3QL}, not installed (--s3ql DIR names its programs)"),
    }
    Ok(rivals)
}

impl S3ql {
    fn make(setup: &Setup, programs: Option<&Path>) -> Result<S3ql> {
        let host = setup.url.trim_start_matches("http://");
        let url = format!("swift://{host}/{S3QL_CONTAINER}");
        let login = setup.dir.join("s3ql-login");
        fs::write(
            &login,
            format!(
                "[store]\nstorage-url: swift://{host}\nbackend-login: test:tester\nbackend-password: testing\n"
            ),
        )?;
        rustix::fs::chmod(&login, rustix::fs::Mode::from_raw_mode(0o600))?;
        let s3ql = S3ql {
            programs: programs.map(Path::to_owned),
            login,
            cache: setup.dir.join("s3ql-cache"),
            url,
        };
        fs::create_dir_all(&s3ql.cache)?;
        let mut make = s3ql.program("mkfs.s3ql");
        make.args(s3ql.options()?).arg("--plain").arg(&s3ql.url);
        run_quiet(&mut make)?;
        Ok(s3ql)
    }

    fn path(&self, name: &str) -> PathBuf {
        match &self.programs {
            Some(dir) => dir.join(name),
            None => name.into(),
        }
    }

    fn program(&self, name: &str) -> Command {
        Command::new(self.path(name))
    }

    fn options(&self) -> Result<Vec<String>> {
        Ok(vec![
            "--authfile".to_owned(),
            utf8(&self.login)?.to_owned(),
            "--cachedir".to_owned(),
            utf8(&self.cache)?.to_owned(),
            "--backend-options".to_owned(),
            "no-ssl".to_owned(),
        ])
    }
}

impl Rival {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Rival::Rclone => RCLONE,
            Rival::S3ql(_) => S3QL,
        }
    }

    pub(super) fn sees_objects(&self) -> bool {
        matches!(self, Rival::Rclone)
    }

    pub(super) fn mount(&self, setup: &Setup) -> Result<Mount> {
        self.mount_of(setup, CONTAINER)
    }

    /// Mounts with empty caches.
    pub(super) fn mount_cold(&self, setup: &Setup) -> Result<Mount> {
        if let Rival::S3ql(s3ql) = self {
            for entry in fs::read_dir(&s3ql.cache)? {
                let path = entry?.path();
                if path.is_dir() {
                    fs::remove_dir_all(path)?;
                }
            }
        }
        self.mount(setup)
    }

    pub(super) fn mount_of(&self, setup: &Setup, container: &str) -> Result<Mount> {
        let dir = setup.dir.join("rival");
        fs::create_dir_all(&dir)?;
        let at = utf8(&dir)?.to_owned();
        let mut args: Vec<String> = Vec::new();
        match self {
            Rival::Rclone => {
                args.push("RCLONE_CONFIG_STORE_TYPE=swift".to_owned());
                args.push("RCLONE_CONFIG_STORE_USER=test:tester".to_owned());
                args.push("RCLONE_CONFIG_STORE_KEY=testing".to_owned());
                args.push(format!("RCLONE_CONFIG_STORE_AUTH={}/auth/v1.0", setup.url));
                args.extend(["rclone", "mount"].map(str::to_owned));
                args.push(format!("store:{container}"));
                args.push(at);
                args.extend(
                    ["--vfs-cache-mode", "writes", "--vfs-write-back", "0s"].map(str::to_owned),
                );
                let cache = setup.dir.join("rclone-cache");
                args.push("--cache-dir".to_owned());
                args.push(utf8(&cache)?.to_owned());
            }
            Rival::S3ql(s3ql) => {
                let program = s3ql.path("mount.s3ql");
                args.push(utf8(&program)?.to_owned());
                args.extend(s3ql.options()?);
                args.extend(["--fg", "--compress", "none"].map(str::to_owned));
                args.push(s3ql.url.clone());
                args.push(at);
            }
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Mount::start_program(setup, "rival", dir, &args)
    }

    /// Waits until closed files are in the store: neither rival's `close` or `fsync` waits for it.
    pub(super) fn on_store(
        &self,
        mount: &Mount,
        account: &mut Account,
        name: &str,
        bytes: u64,
    ) -> Result<()> {
        match self {
            Rival::Rclone => bench::await_object(account, &format!("/{CONTAINER}/{name}"), bytes),
            Rival::S3ql(s3ql) => {
                let mut flush = s3ql.program("s3qlctrl");
                run_quiet(flush.arg("flushcache").arg(&mount.dir)).map(drop)
            }
        }
    }

    pub(super) fn unmount(&self, mount: Mount) -> Result<()> {
        match self {
            Rival::Rclone => mount.stop(),
            Rival::S3ql(s3ql) => {
                let mut unmount = s3ql.program("umount.s3ql");
                run_quiet(unmount.arg(&mount.dir))?;
                Ok(())
            }
        }
    }
}
