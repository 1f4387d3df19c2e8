//! Checks of the console's page: whether `console/dist` is up to date with its source, its unit
//! tests, and all of it in a real browser (Debian's chromium) against a store of `cairn up`.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;

use cairn_testkit::process::{Process, free_range};
use cairn_testkit::report::Report;
use cairn_testkit::workspace::{
    build_cairn, find, have, install, results, root, run as run_program, run_quiet, scratch, utf8,
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
    if let Some(chromium) = find("chromium") {
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
    let data_text = utf8(data)?;
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
    store.wait_for_answer((Ipv4Addr::LOCALHOST, port + 1), "/api/session", 60)?;
    Ok(store)
}
