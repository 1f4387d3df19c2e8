//! Scripts of git's own test suite, with their repositories on a mounted container.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

use super::suites::{reasons, statements};
use cairn_testkit::workspace;

/// Names of scripts below git's folder `t`.
const TESTS: &str = "xtask/mount/git.tests";
/// Scripts that may have failures, with reasons.
const EXCEPTIONS: &str = "xtask/mount/git.exceptions";

/// Time limit of one script, in seconds.
const SECONDS: &str = "600";
/// Scripts at once: each mostly waits for the store.
const AT_ONCE: usize = 4;

/// Result of one script.
#[derive(Default)]
struct Outcome {
    checks: usize,
    /// Names of the checks that failed, without those that git expects to fail.
    failures: Vec<String>,
    /// End of the output of a script that ended with an error.
    error: Option<String>,
}

impl Outcome {
    fn is_good(&self) -> bool {
        self.failures.is_empty() && self.error.is_none()
    }
}

fn is_failure(line: &str) -> bool {
    line.starts_with("not ok") && !line.contains("# TODO")
}

fn outcome(text: &str, is_success: bool) -> Outcome {
    let is_result = |line: &&str| line.starts_with("ok ") || line.starts_with("not ok ");
    let failures = text.lines().filter(|line| is_failure(line));
    let tail: Vec<&str> = text.lines().rev().take(3).collect();
    let mut outcome = Outcome {
        checks: text.lines().filter(is_result).count(),
        failures: failures.map(str::to_owned).collect(),
        error: None,
    };
    if !is_success && outcome.failures.is_empty() {
        let tail = tail.into_iter().rev().collect::<Vec<_>>();
        outcome.error = Some(format!("it broke off: {}", tail.join(" | ")));
    }
    outcome
}

/// Directories of a run: git's tests, the one on the mount, the one of results.
struct Places {
    tests: PathBuf,
    root: PathBuf,
    results: PathBuf,
}

impl Places {
    fn run(&self, name: &str) -> Result<Outcome> {
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
        Ok(outcome(&text, output.status.success()))
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
    let queue: Mutex<VecDeque<&str>> = Mutex::new(names.collect());
    let outcomes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(name) = queue.lock().pop_front() else {
                        return;
                    };
                    let outcome = places.run(name);
                    outcomes.lock().insert(name, outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner();
    let scripts = outcomes.len();
    let (mut checks, mut excused, mut wrong) = (0, 0, Vec::new());
    for (name, outcome) in outcomes {
        let outcome = outcome?;
        checks += outcome.checks;
        if outcome.is_good() {
            continue;
        }
        let words = match outcome.error {
            Some(error) => error,
            None => outcome.failures.join(", "),
        };
        match reasons.contains_key(name) {
            true => excused += outcome.failures.len(),
            false => wrong.push(format!("{name}: {words}")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n  "));
    let excused_scripts = reasons.len();
    Ok(format!(
        "{checks} checks in {scripts} scripts; {excused} failed, all in the {excused_scripts} scripts with a reason"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_from_known_breakages() {
        let text = "ok 1 - one\nnot ok 2 - two # TODO known breakage\nnot ok 3 - three\n1..3\n";
        let told = outcome(text, false);
        assert_eq!(
            (told.checks, told.failures),
            (3, vec!["not ok 3 - three".to_owned()])
        );
        assert!(outcome("ok 1 - one\n1..1\n", true).is_good());
    }

    #[test]
    fn a_script_that_broke_off_is_no_success() {
        let told = outcome("ok 1 - one\nFATAL: no space\n", false);
        assert_eq!(
            told.error.as_deref(),
            Some("it broke off: ok 1 - one | FATAL: no space")
        );
    }
}
