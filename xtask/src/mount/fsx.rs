//! The C program fsx of xfstests on a mounted container: random calls on a file, each held against
//! bytes in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::suites::by_threads;
use cairn_testkit::report::Report;

/// Processes at once, each with a file of its own.
const AT_ONCE: usize = 4;

/// Kind of run: which calls, on files of which size.
struct Kind {
    name: &'static str,
    args: &'static [&'static str],
    /// Operations are divided by it: those on large files take longer.
    share: u64,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "fsx",
        args: &["-R", "-W"],
        share: 1,
    },
    Kind {
        name: "fsx with mappings",
        args: &[],
        share: 1,
    },
    // A file that was closed is on the store, and so is each truncation of it from then on.
    Kind {
        name: "fsx, closed and opened",
        args: &["-R", "-W", "-c", "200"],
        share: 20,
    },
    // To 8 MiB a file is one object: these cross that all the time.
    Kind {
        name: "fsx on large files, closed and opened",
        args: &["-l", "20000000", "-o", "300000", "-c", "100"],
        share: 20,
    },
];

/// Seeds and operations of each.
pub(super) struct Amount {
    pub(super) seeds: u64,
    pub(super) operations: u64,
}

/// Runs every kind; one check for each.
pub(super) fn run(report: &mut Report, program: &Path, amount: &Amount, dir: &Path, work: &Path) {
    for (number, kind) in KINDS.iter().enumerate() {
        let (dir, work) = (
            dir.join(number.to_string()),
            work.join(format!("fsx-{number}")),
        );
        report.tell(kind.name, || many(program, kind, amount, &dir, &work));
    }
}

fn many(program: &Path, kind: &Kind, amount: &Amount, dir: &Path, work: &Path) -> Result<String> {
    fs::create_dir_all(dir)?;
    fs::create_dir_all(work)?;
    let program = fs::canonicalize(program).with_context(|| program.display().to_string())?;
    let operations = (amount.operations / kind.share).max(1);
    let run = |seed| one(&program, kind, operations, seed, dir, work);
    let done = by_threads(AT_ONCE, 1..=amount.seeds, run).into_iter();
    let failed = done.filter_map(|(seed, result)| Some((seed, result.err()?)));
    let failed: Vec<String> = failed
        .map(|(seed, error)| format!("seed {seed}: {error:#}"))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n  "));
    Ok(format!("{operations} operations of {} seeds", amount.seeds))
}

fn one(
    program: &Path,
    kind: &Kind,
    operations: u64,
    seed: u64,
    dir: &Path,
    work: &Path,
) -> Result<()> {
    let file: PathBuf = dir.join(format!("seed-{seed}"));
    let (operations, seed) = (operations.to_string(), seed.to_string());
    let mut command = Command::new(program);
    command.args(["-q", "-N", &operations, "-S", &seed, "-P"]);
    command.arg(work).args(kind.args).arg(&file);
    let output = command.output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let tail: Vec<&str> = text.lines().rev().take(12).collect();
    ensure!(
        output.status.success() && text.contains("A-OK"),
        "{command:?} ended with {}: {}",
        output.status,
        tail.into_iter().rev().collect::<Vec<_>>().join(" | ")
    );
    Ok(fs::remove_file(file)?)
}
