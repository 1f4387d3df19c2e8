//! The real OpenStack Swift from PyPI: a Python virtual environment with Swift and its clients, and
//! the source release, which contains the test suites. Downloaded once into the cache.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::{cache, install, root, run_quiet};

/// The release that Cairn is held against.
pub const SWIFT_VERSION: &str = "2.38.3";

/// The installed environment.
pub struct Venv {
    /// The environment's folder of programs.
    pub bin: PathBuf,
    /// The unpacked source release.
    pub source: PathBuf,
}

impl Venv {
    /// The environment, fetched and installed when it is not in the cache.
    ///
    /// # Errors
    /// There is no place for the cache ([`cache`]), it cannot be written, or a step of the
    /// installation fails: `python3 -m venv`, `pip` or `tar`.
    pub fn prepare() -> Result<Venv> {
        let home = cache()?;
        let venv = Venv {
            bin: home.join("venv/bin"),
            source: home.join(format!("swift-{SWIFT_VERSION}")),
        };
        let ready = home.join(format!("ready-{SWIFT_VERSION}"));
        if !ready.exists() {
            eprintln!(
                "fetching OpenStack Swift {SWIFT_VERSION} into {} (once)",
                home.display()
            );
            std::fs::create_dir_all(&home)?;
            venv.fetch(&home)
                .context("fetching OpenStack Swift from PyPI")?;
            std::fs::write(&ready, "")?;
        }
        Ok(venv)
    }

    fn fetch(&self, home: &std::path::Path) -> Result<()> {
        let create = || {
            run_quiet(
                Command::new("python3")
                    .args(["-m", "venv"])
                    .arg(home.join("venv")),
            )
        };
        if create().is_err() {
            // Debian has ensurepip in a separate package.
            install("ensurepip", "python3-venv");
            create()?;
        }
        let pip = || {
            let mut command = self.program("pip");
            command.args(["--quiet", "--disable-pip-version-check"]);
            command
        };
        run_quiet(pip().args(["install", "pbr", "setuptools<81", "wheel"]))?;
        run_quiet(
            pip()
                .args([
                    "download",
                    "--no-deps",
                    "--no-binary",
                    ":all:",
                    "--no-build-isolation",
                ])
                .arg("--dest")
                .arg(home)
                .arg(format!("swift=={SWIFT_VERSION}")),
        )?;
        run_quiet(
            Command::new("tar")
                .arg("xzf")
                .arg(home.join(format!("swift-{SWIFT_VERSION}.tar.gz")))
                .arg("-C")
                .arg(home),
        )?;
        let requirements = root().join("crates/testkit/requirements.txt");
        run_quiet(pip().args(["install", "--requirement"]).arg(requirements))?;
        Ok(())
    }

    /// A command of one of its programs.
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.bin.join(name))
    }

    /// Its Python interpreter.
    pub fn python(&self) -> PathBuf {
        self.bin.join("python")
    }
}
