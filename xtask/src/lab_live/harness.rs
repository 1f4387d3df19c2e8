//! Execution of runs of the lab, and their results.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use cairn_testkit::lab::Run;

pub(super) struct Lab {
    pub(super) binary: PathBuf,
    pub(super) dir: PathBuf,
    /// Port of Cairn.
    pub(super) port: u16,
    /// Port of OpenStack Swift's proxy with S3.
    pub(super) s3: Option<u16>,
}

pub(super) const LOGIN: [&str; 4] = ["--user", "test:tester", "--key", "testing"];

impl Lab {
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("lab").current_dir(&self.dir);
        command
    }

    /// Runs `cairn lab run FILE ARGUMENTS`, whatever its outcome.
    pub(super) fn run(&self, file: &Path, arguments: &[&str]) -> Result<Run> {
        let mut command = self.command();
        command.arg("run");
        self.finish(command, file, arguments)
    }

    pub(super) fn finish(
        &self,
        mut command: Command,
        file: &Path,
        arguments: &[&str],
    ) -> Result<Run> {
        let out = tempfile::tempdir_in(&self.dir)?;
        let folder = out.path().join("run");
        command.arg(file).args(["--no-ceiling", "--resources", "0"]);
        command.args(arguments).arg("--out").arg(&folder);
        let output = command.output().context("starting the lab")?;
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8_lossy(&shown).into_owned();
        Run::read(&folder, shown)
    }

    /// Runs like [`Self::run`]; it must complete without a failed operation.
    pub(super) fn must(&self, file: &Path, arguments: &[&str]) -> Result<Run> {
        let run = self.run(file, arguments)?;
        run.is_clean()?;
        Ok(run)
    }
}

/// Checks that the run failed without requests, and that one line with all these words states the
/// reason.
pub(super) fn one_line(run: &Run, words: &[&str]) -> Result<()> {
    ensure!(run.meta["state"] == "failed", "it {}", run.meta["state"]);
    ensure!(
        run.stages.len() == 1,
        "{} stages were tried",
        run.stages.len()
    );
    let message = run.meta["message"].as_str().unwrap_or_default();
    let told = run.shown.lines().filter(|line| line.contains(message));
    ensure!(
        !message.is_empty() && told.count() == 1,
        "not told once:\n{}",
        run.shown
    );
    for word in words {
        ensure!(message.contains(word), "no {word:?} in: {message}");
    }
    Ok(())
}
