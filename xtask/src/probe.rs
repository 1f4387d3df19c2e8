//! OpenStack Swift's probe tests (test/probe) against Cairn's programs. They start and stop the
//! programs by name, break things in between and look at the files: a cluster of four nodes in
//! one machine, as upstream's "SAIO" document lays it out. It runs in namespaces of its own
//! (mounts, network, processes), which needs root and leaves nothing behind.

mod layout;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::conformance::{self, Counts};
use crate::engine::EngineName;
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace;

const UPSTREAM: &str = include_str!("../conformance/probe-upstream.txt");
const LATER: &str = include_str!("../conformance/probe-later.txt");
/// Tests that look for the files of objects, which volumes do not have.
const OF_FILES: &str = include_str!("../conformance/probe-files.txt");

/// Tests for a cluster that lets clients open expired objects; the others are for a cluster that
/// does not.
const OPEN_EXPIRED: [&str; 2] = [
    "test.probe.test_object_expirer.TestObjectExpirer::test_open_expired_enabled",
    "test.probe.test_object_expirer.TestObjectExpirer::test_open_expired_enabled_with_part_num",
];

#[derive(Args, Default)]
pub(crate) struct Probe {
    /// Modules of test/probe (all of them by default); with ::Class::test as pytest takes it
    pub(crate) files: Vec<String>,
    /// OpenStack Swift's own programs instead of Cairn's: are the lists right?
    #[arg(long)]
    pub(crate) upstream: bool,
    /// The engine of all policies
    #[arg(long, value_enum, conflicts_with = "upstream")]
    pub(crate) engine: Option<EngineName>,
    /// Also show tests of the list of later ones that pass already
    #[arg(long)]
    pub(crate) show_early: bool,
    /// Keep the cluster's folder, with the log of all programs
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Programs that the tests need besides Swift's, with their Debian packages.
const NEEDED: [(&str, &str); 5] = [
    ("rsync", "rsync"),
    ("memcached", "memcached"),
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
    ("ps", "procps"),
];

pub(crate) fn run(options: &Probe) -> Result<Counts> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the probe tests need root, for namespaces of their own"
    );
    for (program, package) in NEEDED {
        ensure!(
            workspace::install(program, package),
            "{program} is missing: install the package {package}"
        );
    }
    let venv = Venv::prepare()?;
    let mut dir = workspace::scratch("probe")?;
    dir.disable_cleanup(options.keep);
    if options.keep {
        println!("the cluster's folder is {}", dir.path().display());
    }
    layout::write(dir.path(), &venv, options.upstream, options.engine)?;
    let files = match &options.files[..] {
        [] => vec![conformance::ALL.to_owned()],
        files => files.to_vec(),
    };
    let later = match options.engine {
        Some(EngineName::Pebbles) => format!("{LATER}\n{OF_FILES}"),
        None | Some(EngineName::Files) => LATER.to_owned(),
    };
    let left_out = if options.show_early { "" } else { &*later };
    let mut outcomes = pytest(&venv, dir.path(), &files, left_out)?;
    let open_expired: Vec<String> = OPEN_EXPIRED
        .iter()
        .filter(|test| {
            files
                .iter()
                .any(|file| conformance::is_of(test, file, "test.probe"))
        })
        .filter_map(|test| conformance::file_of(test, "test.probe"))
        .collect();
    if !open_expired.is_empty() {
        layout::allow_open_expired(dir.path())?;
        outcomes.extend(pytest(&venv, dir.path(), &open_expired, left_out)?);
    }
    Ok(conformance::judge(
        &outcomes,
        UPSTREAM,
        &later,
        &files,
        "test.probe",
        options.show_early,
    ))
}

/// Runs files of `test/probe` inside the namespaces; returns outcomes by test name. Tests of the list
/// `later` are left out: they take long to fail.
fn pytest(
    venv: &Venv,
    dir: &Path,
    files: &[String],
    later: &str,
) -> Result<BTreeMap<String, String>> {
    let later = conformance::names(later);
    let left_out = later
        .iter()
        .filter_map(|test| conformance::file_of(test, "test.probe"))
        .map(|file| format!("--deselect=test/probe/{file}"));
    let results = workspace::results("conformance-probe")?;
    let junit = results.join("junit.xml");
    let status = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "--propagation", "private", "--"])
        .arg(dir.join("inside"))
        .arg(dir)
        .arg(venv.python())
        .current_dir(&venv.source)
        .env("SWIFT_TEST_CONFIG_FILE", dir.join("test.conf"))
        .args(conformance::PYTEST)
        .args(left_out)
        .arg(format!("--junitxml={}", junit.display()))
        .args(files.iter().map(|file| format!("test/probe/{file}")))
        .status()
        .context("running the probe tests")?;
    conformance::outcomes(venv, status, &junit)
}
