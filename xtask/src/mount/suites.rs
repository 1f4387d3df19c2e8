//! Third-party suites on a mounted container: pjdfstest, LTP, git's own tests, xfstests, fsx, IOR
//! and mdtest. They are built elsewhere; options give their paths, and a missing suite is skipped by
//! name.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use parking_lot::Mutex;

use super::tap::Tap;
use super::{Setup, fsx, git_tests, namespaces, programs, xfstests};
use cairn_testkit::report::Report;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{self, have};

#[derive(Args, Default)]
pub(crate) struct Suites {
    /// A built github.com/pjd/pjdfstest
    #[arg(long, value_name = "DIR")]
    pjdfstest: Option<PathBuf>,
    /// A built github.com/linux-test-project/ltp: testcases/kernel/fs and syscalls/fcntl
    #[arg(long, value_name = "DIR")]
    ltp: Option<PathBuf>,
    /// A built github.com/git/git, for the scripts of xtask/mount/git.tests
    #[arg(long, value_name = "DIR")]
    git: Option<PathBuf>,
    /// A built xfstests, for generic tests of its group "quick"
    #[arg(long, value_name = "DIR")]
    xfstests: Option<PathBuf>,
    /// Only these tests of xfstests; again for more
    #[arg(long, value_name = "generic/NNN")]
    xfstests_test: Vec<String>,
    /// fsx in C: ltp/fsx of a built xfstests
    #[arg(long, value_name = "FILE")]
    fsx: Option<PathBuf>,
    /// Seeds of fsx
    #[arg(long, value_name = "N", default_value_t = 10)]
    fsx_seeds: u64,
    /// Operations of each seed of fsx
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    fsx_operations: u64,
    /// A built github.com/hpc/ior; needs Open MPI (openmpi-bin)
    #[arg(long, value_name = "DIR")]
    ior: Option<PathBuf>,
    /// A Python that has h5py (a virtual environment's)
    #[arg(long, value_name = "FILE")]
    h5py: Option<PathBuf>,
}

/// Files of pjdfstest that may have failures, with reasons.
const PJDFSTEST_EXCEPTIONS: &str = "xtask/mount/pjdfstest.exceptions";
/// Programs of LTP with their arguments, and excluded ones with reasons.
const LTP_PROGRAMS: &str = "xtask/mount/ltp.programs";

pub(super) fn run(
    report: &mut Report,
    options: &Suites,
    setup: &Setup,
    account: &mut Account,
    at: &Path,
) -> Result<()> {
    match &options.pjdfstest {
        Some(_) if setup.name_bytes < super::LONG_NAME_BYTES => {
            report.skip(
                "pjdfstest",
                "its paths of 4,095 bytes need --file-system xfs",
            );
        }
        Some(suite) => {
            report.tell("pjdfstest", || pjdfstest(suite, &at.join("pjdfstest")));
        }
        None => report.skip("pjdfstest", "--pjdfstest names none"),
    }
    match &options.ltp {
        Some(suite) => ltp(report, suite, &at.join("ltp"), setup.traits.patience)?,
        None => report.skip("LTP", "--ltp names none"),
    }
    of_git(report, options, at);
    match &options.fsx {
        Some(program) => {
            let amount = fsx::Amount {
                seeds: options.fsx_seeds,
                operations: options.fsx_operations,
            };
            fsx::run(report, program, &amount, &at.join("fsx"), &setup.dir);
        }
        None => report.skip("fsx", "--fsx names none"),
    }
    match &options.xfstests {
        Some(suite) => match xfstests::missing() {
            Some(why) => report.skip("xfstests", &why),
            None => report.tell("xfstests", || {
                xfstests::run(suite, &options.xfstests_test, setup, account)
            }),
        },
        None => report.skip("xfstests", "--xfstests names none"),
    }
    match &options.h5py {
        Some(python) => report.check("HDF5", || programs::hdf5(&at.join("hdf5"), python)),
        None => report.skip("HDF5", "--h5py names none"),
    }
    match &options.ior {
        Some(_) if !have("mpirun") => {
            report.skip("IOR", "no mpirun (apt-get install openmpi-bin)");
        }
        Some(suite) => namespaces::run(report, suite, setup, account),
        None => report.skip("IOR", "--ior names none"),
    }
    Ok(())
}

fn of_git(report: &mut Report, options: &Suites, at: &Path) {
    match &options.git {
        Some(suite) => report.tell("git's own tests", || {
            let results = workspace::results("mount/git")?;
            git_tests::run(suite, &at.join("git-tests"), &results)
        }),
        None => report.skip("git's own tests", "--git names none"),
    }
}

/// Calls `run` for every item, by `count` threads; returns the items with their results, in no order.
pub(super) fn by_threads<T: Copy + Send, R: Send>(
    count: usize,
    items: impl Iterator<Item = T>,
    run: impl Fn(T) -> R + Sync,
) -> Vec<(T, R)> {
    let queue: Mutex<VecDeque<T>> = Mutex::new(items.collect());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                loop {
                    let Some(item) = queue.lock().pop_front() else {
                        return;
                    };
                    let result = run(item);
                    done.lock().push((item, result));
                }
            });
        }
    });
    done.into_inner()
}

/// Lines of a list that are neither empty nor a comment.
pub(super) fn statements(text: &str) -> impl Iterator<Item = &str> {
    let is_said = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    text.lines().filter(is_said)
}

/// Parses `NAME: REASON` lines; what is left out altogether (`NAME -- REASON`) is not among them.
pub(super) fn reasons(text: &str) -> BTreeMap<&str, &str> {
    let lines = statements(text).filter(|line| !line.contains(" -- "));
    lines.filter_map(|line| line.split_once(": ")).collect()
}

fn pjdfstest(suite: &Path, dir: &Path) -> Result<String> {
    fs::create_dir_all(dir)?;
    let mut files = Vec::new();
    let tests = fs::canonicalize(suite.join("tests"))?;
    for group in fs::read_dir(&tests)? {
        let group = group?.path();
        if group.is_dir() {
            for file in fs::read_dir(group)? {
                files.push(file?.path());
            }
        }
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "t"));
    files.sort();
    ensure!(!files.is_empty(), "no tests below {}", tests.display());
    let exceptions = fs::read_to_string(workspace::root().join(PJDFSTEST_EXCEPTIONS))?;
    let reasons = reasons(&exceptions);
    let (mut checks, mut excused, mut wrong) = (0, 0, Vec::new());
    for file in &files {
        let name = file.strip_prefix(&tests)?.to_string_lossy().into_owned();
        let output = Command::new("sh").arg(file).current_dir(dir).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let tap = Tap::of(&text);
        checks += tap.results;
        let failures = tap.failures.len();
        match tap.broken_off() {
            Some(words) => wrong.push(format!("{name} ({words})")),
            None if failures == 0 => {}
            None if reasons.contains_key(&*name) => excused += failures,
            None => wrong.push(format!("{name} ({failures})")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join(", "));
    let (files, excused_files) = (files.len(), reasons.len());
    Ok(format!(
        "{checks} checks in {files} files; {excused} failed, all in the {excused_files} files with a reason"
    ))
}

/// Time limit of one program of LTP, in seconds.
const LTP_SECONDS: u32 = 300;
/// Exit code of an LTP program that does not apply here (TCONF).
const LTP_NOT_HERE: i32 = 32;

fn ltp(report: &mut Report, suite: &Path, dir: &Path, patience: u32) -> Result<()> {
    fs::create_dir_all(dir)?;
    let seconds = (LTP_SECONDS * patience).to_string();
    let multiple = (5 * patience).to_string();
    let suite = fs::canonicalize(suite)?;
    let programs = fs::read_to_string(workspace::root().join(LTP_PROGRAMS))?;
    for line in programs.lines().filter(|line| !line.starts_with('#')) {
        let (words, reason) = match line.split_once(" -- ") {
            Some((words, reason)) => (words, Some(reason)),
            None => (line, None),
        };
        let mut words = words.split_whitespace();
        let Some(program) = words.next() else {
            continue;
        };
        let name = format!("LTP {}", program.rsplit('/').next().unwrap_or(program));
        if let Some(reason) = reason {
            println!("left out: {name}: {reason}");
            continue;
        }
        report.tell(&name, || {
            let mut command = Command::new("timeout");
            command.args(["-k", "10", &seconds]);
            let program = suite.join("testcases/kernel").join(program);
            // Some programs start others from the same folder.
            let beside = program
                .parent()
                .unwrap_or(Path::new("/"))
                .display()
                .to_string();
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{beside}:{path}"));
            command.arg(program).args(words);
            command.current_dir(dir).env("TMPDIR", dir);
            let output = command.env("LTP_TIMEOUT_MUL", &multiple).output()?;
            let code = output.status.code().context("it was killed")?;
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let tail: Vec<&str> = text.lines().rev().take(12).collect();
            if code & LTP_NOT_HERE != 0 && code & 7 == 0 {
                return Ok("does not apply here".to_owned());
            }
            ensure!(code == 0, "it ended with {code}: {}", tail.join(" | "));
            Ok(String::new())
        });
    }
    Ok(())
}
