//! A crate's own benchmark, a program that is called with arguments and prints lines: what uses the
//! engines without a server is not in this crate, which uses none of ours.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use cairn_testkit::workspace;

/// Runs `bench` of a package to its end; `line` is called with each line that it prints.
pub(super) fn run(
    package: &str,
    bench: &str,
    arguments: &[String],
    mut line: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    let mut child = workspace::cargo()
        .args(["bench", "--package", package, "--bench", bench, "--"])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {bench} of {package}"))?;
    let output = child.stdout.take().context("no stdout")?;
    let mut read = Ok(());
    for text in BufReader::new(output).lines() {
        read = read.and_then(|()| line(&text?));
    }
    let status = child.wait()?;
    ensure!(status.success(), "{bench} of {package} ended with {status}");
    read
}
