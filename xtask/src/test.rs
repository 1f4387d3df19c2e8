//! Everything that fits in minutes, on a fresh machine too: what is missing is fetched or
//! installed first.

use anyhow::{Result, ensure};
use clap::Args;

use crate::report::Report;
use crate::venv::Venv;
use crate::workspace::{build_cairn, cargo, install, run as run_program};
use crate::{
    clients, conformance, console, crash, docs, faults, fuzz, hosts, identity, interop,
    lab_drivers, lab_live, mixed, security, sim,
};

#[derive(Args)]
pub(crate) struct Options {
    /// How often the store is killed
    #[arg(long, default_value_t = 10)]
    crash_rounds: u32,
    /// For each fuzz target, where cargo-fuzz is there
    #[arg(long, default_value_t = 10)]
    fuzz_seconds: u64,
}

/// Files of the functional tests that also run with every role in a process of its own.
const SPLIT_FILES: [&str; 3] = ["test_account.py", "test_container.py", "test_object.py"];

/// Of the cluster simulator: well under a minute.
const SIM_SEEDS: u64 = 200;

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut report = Report::default();
    let venv = Venv::prepare()?;
    for program in ["memcached", "rclone", "curl"] {
        // Who needs one that is not to be had says so.
        install(program, program);
    }
    report.check("cargo test", || {
        let mut command = cargo();
        command
            .args(["test", "--workspace", "--quiet"])
            .env("CAIRN_SWIFT_PYTHON", venv.python());
        run_program(&mut command)
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
    report.check("simulator", || sim::run(&sim::Options::seeds(SIM_SEEDS)));
    fuzz_smoke(&mut report, options.fuzz_seconds);
    report.finish()
}

fn against_the_store(report: &mut Report, options: &Options) {
    report.check("functional tests", || functional(false, &[]));
    report.check("functional tests, a process per role", || {
        functional(true, &SPLIT_FILES)
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
        ("security", || security::run(&security::Options::short())),
    ] {
        match part() {
            Ok(of_part) => report.add(&of_part),
            Err(error) => report.check(name, || Err(error)),
        }
    }
    let crash = |rounds, device_gone| {
        crash::run(&crash::Options {
            rounds,
            seed: 1,
            device_gone,
            keep: false,
        })
    };
    report.check("killed and found whole", || {
        crash(options.crash_rounds, false)
    });
    report.check("one device gone", || crash(0, true));
    report.check(
        "nodes of OpenStack Swift and of Cairn in one cluster",
        || {
            mixed::run(&mixed::Options {
                short: true,
                encryption: false,
                seed: 1,
                keep: false,
            })
        },
    );
}

fn functional(split: bool, files: &[&str]) -> Result<()> {
    let files = files.iter().map(|f| (*f).to_owned()).collect();
    let options = conformance::Functional {
        files,
        split,
        ..Default::default()
    };
    let counts = conformance::functional(&options)?;
    counts.print();
    ensure!(
        counts.short.is_empty(),
        "{} tests fall short of upstream",
        counts.short.len()
    );
    Ok(())
}

fn fuzz_smoke(report: &mut Report, seconds: u64) {
    if !fuzz::available() {
        report.skip("fuzz targets", "no cargo-fuzz here; the property tests ran");
        return;
    }
    match fuzz::targets() {
        Ok(targets) => {
            for target in targets {
                report.check(&format!("fuzz {target}"), || fuzz::smoke(&target, seconds));
            }
        }
        Err(error) => report.check("fuzz targets", || Err(error)),
    }
}
