//! Named checks, each passed, failed or skipped with a reason; one failing check does not keep
//! the rest from running. A skipped one fails the run too, unless `--may-skip` names it.

use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Result, bail};

/// `NAME=WHY`: checks whose names begin with NAME may be skipped, for the reason WHY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaySkip {
    name: String,
    why: String,
}

static MAY_SKIP: OnceLock<Vec<MaySkip>> = OnceLock::new();

impl FromStr for MaySkip {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, why)) if !name.is_empty() && !why.is_empty() => Ok(MaySkip {
                name: name.to_owned(),
                why: why.to_owned(),
            }),
            _ => Err("give the check's name and the reason: NAME=WHY".to_owned()),
        }
    }
}

/// Sets the allowed skips, once for the whole run.
pub fn allow_skips(allowed: Vec<MaySkip>) {
    let _ = MAY_SKIP.set(allowed);
}

/// Skipped names that no rule allows.
fn refused<'a>(skipped: &'a [String], allowed: &[MaySkip]) -> Vec<&'a str> {
    let may = |name: &str| allowed.iter().any(|a| name.starts_with(&a.name));
    let names = skipped.iter().map(String::as_str);
    names.filter(|name| !may(name)).collect()
}

/// The checks so far, each printed when it ended.
#[derive(Default)]
pub struct Report {
    /// Number of checks that passed.
    pub passed: u64,
    /// Number of checks that failed.
    pub failed: u64,
    skipped: Vec<String>,
}

impl Report {
    /// Runs a check and prints how it ended.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        self.tell(name, || check().map(|()| String::new()));
    }

    /// Like [`Report::check`], for a check that returns a summary.
    pub fn tell(&mut self, name: &str, check: impl FnOnce() -> Result<String>) {
        let start = Instant::now();
        let result = check();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(words) => {
                self.passed += 1;
                let colon = if words.is_empty() { "" } else { ": " };
                println!("ok      {name} ({seconds:.1} s){colon}{words}");
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED  {name} ({seconds:.1} s): {error:#}");
            }
        }
    }

    /// Notes a check that cannot be run here.
    pub fn skip(&mut self, name: &str, why: &str) {
        self.skipped.push(name.to_owned());
        println!("skipped {name}: {why}");
    }

    /// Adds the checks of another report.
    pub fn add(&mut self, other: &Report) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend_from_slice(&other.skipped);
    }

    /// Prints the closing lines, and tells whether the run is a success.
    ///
    /// # Errors
    /// A check failed, or was skipped and no `--may-skip` names it.
    pub fn finish(&self) -> Result<()> {
        let allowed = MAY_SKIP.get().map_or(&[][..], Vec::as_slice);
        if !self.skipped.is_empty() {
            println!("{} skipped", self.skipped.len());
        }
        for MaySkip { name, why } in allowed {
            println!("allowed to be skipped: {name} ({why})");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("{} checks failed", self.failed);
        }
        let refused = refused(&self.skipped, allowed);
        if !refused.is_empty() {
            bail!("skipped, and no --may-skip names them with a reason: {refused:?}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_check_fails_the_run_unless_it_is_named() {
        let mut report = Report::default();
        report.check("one", || Ok(()));
        assert!(report.finish().is_ok());
        report.skip("hosts", "needs root");
        let error = report.finish().expect_err("skipped").to_string();
        assert!(error.contains("\"hosts\""), "{error}");
        let named: MaySkip = "hos=no namespaces here"
            .parse()
            .expect("a name and a reason");
        assert_eq!(refused(&report.skipped, &[named]), [""; 0]);
        let other: MaySkip = "faults=no loop devices"
            .parse()
            .expect("a name and a reason");
        assert_eq!(refused(&report.skipped, &[other]), ["hosts"]);
        for text in ["hosts", "hosts=", "=why"] {
            assert!(text.parse::<MaySkip>().is_err(), "{text}");
        }
    }
}
