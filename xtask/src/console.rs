//! Checks of the console's page: whether `console/dist` is up to date with its source, its unit
//! tests, and all of it in a real browser (Debian's chromium) against a store of `cairn up`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::process::{Process, free_range, wait_for};
use crate::report::Report;
use crate::wire::Connection;
use crate::workspace::{
    build_cairn, have, install, results, root, run as run_program, run_quiet, scratch,
};

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Pictures of every page in light and dark, wide and narrow, in target/xtask/console
    #[arg(long)]
    shots: bool,
}

const PASSWORD: &str = "of-the-browser-test";

pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if !have("npm") {
        report.skip(
            "console",
            "no npm here: the committed console/dist is not checked",
        );
        return Ok(report);
    }
    packages()?;
    report.check("console/dist is what console/src makes", || {
        node(&["build.mjs", "--check"]).map(drop)
    });
    report.check("console: types", || npm(&["run", "-s", "check"]).map(drop));
    report.check("console: units", || npm(&["run", "-s", "unit"]).map(drop));
    if install("chromium", "chromium") {
        report.check("console in a browser", || browser(options));
    } else {
        report.skip(
            "console in a browser",
            "no chromium (apt-get install chromium)",
        );
    }
    Ok(report)
}

fn folder() -> PathBuf {
    root().join("console")
}

/// Installs the versions of the lock file, once.
fn packages() -> Result<()> {
    if folder().join("node_modules/playwright-core").is_dir() {
        return Ok(());
    }
    npm(&["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).map(drop)
}

fn npm(args: &[&str]) -> Result<String> {
    run_quiet(Command::new("npm").current_dir(folder()).args(args))
}

fn node(args: &[&str]) -> Result<String> {
    run_quiet(Command::new("node").current_dir(folder()).args(args))
}

fn browser(options: &Options) -> Result<()> {
    let binary = build_cairn()?;
    let dir = scratch("console")?;
    let data = dir.path().join("data");
    let port = free_range(100)?;
    let mut store = start(&binary, &data, dir.path(), port)?;
    let mut command = Command::new("node");
    command
        .current_dir(folder())
        .arg("tests/browser.mjs")
        .env("CONSOLE_URL", format!("http://127.0.0.1:{}", port + 1))
        .env("CONSOLE_PASSWORD", PASSWORD)
        .env("STORE_USER", "test:tester")
        .env("STORE_KEY", "testing")
        .env("TMPDIR", dir.path());
    if let Some(chromium) = which("chromium") {
        command.env("CHROMIUM", chromium);
    }
    if options.shots {
        let shots = results("console")?;
        println!("pictures: {}", shots.display());
        command.env("SHOTS", shots);
    }
    run_program(&mut command)?;
    ensure!(
        store.stop(),
        "the store did not end on SIGTERM:\n{}",
        store.log_tail()
    );
    Ok(())
}

/// Starts a store with its console one port above; the password is written to the file that the
/// first start reads.
fn start(binary: &Path, data: &Path, logs: &Path, port: u16) -> Result<Process> {
    let data_text = data.to_str().context("a path that is not UTF-8")?;
    let bind = format!("127.0.0.1:{port}");
    let make = [
        "up",
        "--write-only",
        "--part-power",
        "6",
        "--data",
        data_text,
        "--bind",
        &bind,
    ];
    run_quiet(Command::new(binary).args(make))?;
    std::fs::write(data.join("etc/console-password"), PASSWORD)?;
    let console = format!("127.0.0.1:{}", port + 1);
    let args = ["up", "--data", data_text, "--console", &console];
    let mut store = Process::start("up", binary, &args, &logs.join("log"))?;
    wait_for("the console", 60, || {
        if let Some(words) = store.ended() {
            bail!("{words}");
        }
        let answer = Connection::new(port + 1).call("GET", "/api/session", &[], b"");
        Ok(answer.is_ok_and(|a| a.status == 200))
    })?;
    Ok(store)
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}
