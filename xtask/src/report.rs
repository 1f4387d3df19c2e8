//! Named checks, each passed, failed or skipped with a reason; one failing check does not keep
//! the rest from running.

use std::time::Instant;

use anyhow::{Result, bail};

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Report {
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        self.tell(name, || check().map(|()| String::new()));
    }

    /// As [`Report::check`], with what the check found in words.
    pub(crate) fn tell(&mut self, name: &str, check: impl FnOnce() -> Result<String>) {
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

    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        self.skipped += 1;
        println!("skipped {name}: {why}");
    }

    pub(crate) fn add(&mut self, other: &Report) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// The closing line; an error when something failed.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.skipped > 0 {
            println!("{} skipped", self.skipped);
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("{} checks failed", self.failed);
        }
        Ok(())
    }
}
