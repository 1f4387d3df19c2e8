//! All checks that finish within minutes, on a fresh machine too: missing programs are downloaded
//! or installed first.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::conformance::Functional;
use crate::engine::EngineName;
use crate::{
    clients, conformance, console, crash, docs, faults, fuzz, hosts, identity, interop,
    lab_drivers, lab_live, mixed, mount, security, sim, tidy,
};
use cairn_testkit::report::Report;
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace::{self, build_cairn, cargo, install};

#[derive(Args)]
pub(crate) struct Options {
    /// Number of times that the store is killed
    #[arg(long, default_value_t = 10)]
    crash_rounds: u32,
    /// For each fuzz target
    #[arg(long, default_value_t = 10)]
    fuzz_seconds: u64,
}

/// Files of the functional tests that also run with every role in a process of its own.
const SPLIT_FILES: [&str; 3] = ["test_account.py", "test_container.py", "test_object.py"];

/// Files of the functional tests that also run with objects encrypted: those about bodies, ETags
/// and ranges.
const ENCRYPTED_FILES: [&str; 4] = [
    "test_object.py",
    "test_slo.py",
    "test_dlo.py",
    "test_versioned_writes.py",
];

/// Number of seeds of the cluster simulator.
const SIM_SEEDS: u64 = 200;
/// Number of seeds of each harsher mode of the simulator.
const SIM_SEEDS_OF_MANNER: u64 = 30;

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut report = Report::default();
    let venv = Venv::prepare()?;
    for program in ["memcached", "rclone", "curl", "rsync"] {
        // Checks that need a program that cannot be installed report that themselves.
        install(program, program);
    }
    report.check("tidy", || tidy::run(&tidy::Options::default()));
    let mut skipped = BTreeSet::new();
    report.check("cargo test", || {
        let mut command = cargo();
        command
            .args(["test", "--workspace", "--quiet", "--", "--show-output"])
            .env("CAIRN_SWIFT_PYTHON", venv.python());
        skipped = run_tests(&mut command)?;
        Ok(())
    });
    for why in skipped {
        report.skip(&why, "a test said so");
    }
    report.check("threads of the device runtime in many orders", || {
        let args = [
            "test",
            "--package",
            "cairn-device",
            "--features",
            "shuttle",
            "--quiet",
        ];
        workspace::run(cargo().args(args))
    });
    let mut built = false;
    report.check("release build", || {
        build_cairn()?;
        built = true;
        Ok(())
    });
    if built {
        against_the_store(&mut report, options);
    }
    simulate(&mut report);
    fuzz_smoke(&mut report, options.fuzz_seconds);
    report.finish()
}

/// Runs cargo's tests, and returns the reasons of those that skip themselves: such a test passes,
/// and prints a line that begins with "skipped:".
fn run_tests(command: &mut Command) -> Result<BTreeSet<String>> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("cargo's output")?;
    let mut output = TestOutput::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if output.shows(&line) {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "cargo test ended with {status}");
    Ok(output.skipped)
}

/// Parser of the output of cargo's tests with `--show-output`.
#[derive(Default)]
struct TestOutput {
    /// Whether the line is in the section with the output of passed tests.
    of_passed: bool,
    skipped: BTreeSet<String>,
}

impl TestOutput {
    fn shows(&mut self, line: &str) -> bool {
        if let Some(why) = line.strip_prefix("skipped: ") {
            self.skipped.insert(why.to_owned());
        }
        if line == "successes:" {
            self.of_passed = true;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.of_passed = false;
        }
        !self.of_passed
    }
}

fn against_the_store(report: &mut Report, options: &Options) {
    report.check("functional tests", || functional(&Functional::default()));
    report.check("functional tests, objects in volumes", || {
        functional(&Functional {
            engine: Some(EngineName::Pebbles),
            ..Functional::default()
        })
    });
    report.check("functional tests, a process per role", || {
        functional(&Functional {
            split: true,
            ..Functional::of_files(&SPLIT_FILES)
        })
    });
    report.check("functional tests, objects encrypted", || {
        functional(&Functional {
            encryption: true,
            ..Functional::of_files(&ENCRYPTED_FILES)
        })
    });
    report.check("functional tests, objects sealed", || {
        functional(&Functional {
            authenticated: true,
            ..Functional::of_files(&ENCRYPTED_FILES)
        })
    });
    for (name, part) in [
        ("clients", clients::run as fn() -> Result<Report>),
        ("docs", || docs::run(&docs::Options::default())),
        ("identity", identity::run),
        ("console", || console::run(&console::Options::default())),
        ("interop", interop::run),
        ("lab", || lab_live::run(&lab_live::Options::default())),
        ("lab drivers", lab_drivers::run),
        ("hosts", || hosts::run(&hosts::Options::short())),
        ("faults", || faults::run(&faults::Options::short())),
        ("mount", || mount::run(&mount::Options::short())),
        ("security", || security::run(&security::Options::short())),
    ] {
        match part() {
            Ok(of_part) => report.add(&of_part),
            Err(error) => report.check(name, || Err(error)),
        }
    }
    let crash = |rounds, device_gone, engine| {
        crash::run(&crash::Options {
            rounds,
            seed: 1,
            device_gone,
            part_power: false,
            engine,
            keep: false,
        })
    };
    report.check("killed and found whole", || {
        crash(options.crash_rounds, false, None)
    });
    report.check("killed and found whole, objects in volumes", || {
        crash(options.crash_rounds, false, Some(EngineName::Pebbles))
    });
    report.check("one device gone", || crash(0, true, None));
    report.check(
        "nodes of OpenStack Swift and of Cairn in one cluster",
        || {
            mixed::run(&mixed::Options {
                short: true,
                encryption: false,
                engine: None,
                seed: 1,
                keep: false,
            })
        },
    );
}

fn functional(options: &Functional) -> Result<()> {
    let counts = conformance::functional(options)?;
    counts.print();
    ensure!(
        counts.short.is_empty(),
        "{} tests fall short of upstream",
        counts.short.len()
    );
    Ok(())
}

fn simulate(report: &mut Report) {
    let all = sim::Options::seeds(SIM_SEEDS);
    report.check("simulator", || sim::run(&all));
    let some = || sim::Options::seeds(SIM_SEEDS_OF_MANNER);
    let rot = sim::Options {
        rot: true,
        ..some()
    };
    let fragments = sim::Options {
        fragments: true,
        ..some()
    };
    let failing_syncs = sim::Options {
        failing_syncs: true,
        ..some()
    };
    let conditional = sim::Options {
        conditional: true,
        ..some()
    };
    for (name, manner) in [
        ("simulator, content rots", rot),
        ("simulator, fragments", fragments),
        ("simulator, syncs fail", failing_syncs),
        ("simulator, conditional writes", conditional),
    ] {
        report.check(name, || sim::run(&manner));
    }
}

fn fuzz_smoke(report: &mut Report, seconds: u64) {
    match fuzz::build(None).and_then(|()| fuzz::targets()) {
        Ok(targets) => {
            for target in targets {
                report.check(&format!("fuzz {target}"), || fuzz::smoke(&target, seconds));
            }
        }
        Err(error) => report.check("fuzz targets", || Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_skip_themselves_are_known() {
        let mut command = Command::new("printf");
        command.arg(
            "..\nsuccesses:\n\n---- a stdout ----\nskipped: there is no rsync\n\n---- b stdout ----\n\
             words\n\nsuccesses:\n    a\n\ntest result: ok. 2 passed\n",
        );
        let skipped = run_tests(&mut command).expect("it ends well");
        assert_eq!(
            skipped.into_iter().collect::<Vec<_>>(),
            ["there is no rsync"]
        );
        assert!(run_tests(&mut Command::new("false")).is_err());
        let mut output = TestOutput::default();
        let lines = [
            "successes:",
            "words",
            "failures:",
            "why",
            "test result: FAILED",
        ];
        let shown = lines.map(|line| output.shows(line));
        assert_eq!(shown, [false, false, true, true, true]);
    }
}
