//! Scripts of git's own test suite, with their repositories on a mounted container.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::suites::{by_threads, reasons, statements};
use super::tap::Tap;
use cairn_testkit::workspace;

/// Names of scripts below git's folder `t`.
const TESTS: &str = "xtask/mount/git.tests";
/// Scripts that may have failures, with reasons.
const EXCEPTIONS: &str = "xtask/mount/git.exceptions";

/// Time limit of one script, in seconds.
const SECONDS: &str = "600";
/// Scripts at once: each mostly waits for the store.
const AT_ONCE: usize = 4;

/// Directories of a run: git's tests, the one on the mount, the one of results.
struct Places {
    tests: PathBuf,
    root: PathBuf,
    results: PathBuf,
}

impl Places {
    /// Runs a script; returns its results, and whether it ended well.
    fn run(&self, name: &str) -> Result<(Tap, bool)> {
        let mut command = Command::new("timeout");
        command.args(["-k", "10", SECONDS, "sh"]);
        command.arg(format!("./{name}.sh"));
        command
            .arg(format!("--root={}", self.root.display()))
            .arg("--no-color");
        command.current_dir(&self.tests);
        // Results would be kept in the source tree otherwise.
        command.env("TEST_OUTPUT_DIRECTORY", &self.results);
        let output = command.output().with_context(|| name.to_owned())?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        fs::write(self.results.join(format!("{name}.log")), &text)?;
        Ok((Tap::of(&text), output.status.success()))
    }
}

/// Runs the scripts of the list, several at once; `dir` is on the mount, `results` is not.
pub(super) fn run(suite: &Path, dir: &Path, results: &Path) -> Result<String> {
    fs::create_dir_all(dir)?;
    fs::create_dir_all(results)?;
    let places = Places {
        tests: fs::canonicalize(suite.join("t"))?,
        root: dir.to_owned(),
        results: fs::canonicalize(results)?,
    };
    ensure!(
        suite.join("git").exists() && places.tests.join("helper/test-tool").exists(),
        "{} is not built: make -C {0}",
        suite.display()
    );
    let tests = fs::read_to_string(workspace::root().join(TESTS))?;
    let exceptions = fs::read_to_string(workspace::root().join(EXCEPTIONS))?;
    let reasons = reasons(&exceptions);
    let names = statements(&tests).map(str::trim);
    let outcomes: BTreeMap<&str, Result<(Tap, bool)>> =
        by_threads(AT_ONCE, names, |name| places.run(name))
            .into_iter()
            .collect();
    let scripts = outcomes.len();
    let (mut checks, mut excused, mut wrong) = (0, 0, Vec::new());
    for (name, outcome) in outcomes {
        let (tap, is_success) = outcome?;
        checks += tap.results;
        let words = if !tap.failures.is_empty() {
            tap.failures.join(", ")
        } else if let Some(words) = tap.broken_off() {
            words
        } else if !is_success {
            "it ended with an error".to_owned()
        } else {
            continue;
        };
        match reasons.contains_key(name) {
            true => excused += tap.failures.len(),
            false => wrong.push(format!("{name}: {words}")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n  "));
    let excused_scripts = reasons.len();
    Ok(format!(
        "{checks} checks in {scripts} scripts; {excused} failed, all in the {excused_scripts} scripts with a reason"
    ))
}
