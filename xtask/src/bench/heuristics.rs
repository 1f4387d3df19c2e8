//! Each heuristic of `crates/types/src/heuristic.rs` switched off, beside the same build with all of
//! them on: what does it win? Round by round, one store frozen while the other is measured; a ratio is
//! of one round, and the median over rounds counts. What wins less than 5 % anywhere has no place.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::Options;
use super::pair::Pair;
use cairn_testkit::workspace;

/// Environment variable that switches heuristics off (`cairn_types::heuristic::VARIABLE`).
const VARIABLE: &str = "CAIRN_WITHOUT";

/// A heuristic, and the loads at which it should win: bytes of an object, connections.
struct Case {
    name: &'static str,
    loads: &'static [(u64, usize)],
}

const SMALL: u64 = 4_000;
const LARGE: u64 = 1_000_000;
/// Larger than `keep_cache_size`, up to which content stays in the page cache in any case.
const HUGE: u64 = 10_000_000;

const CASES: [Case; 9] = [
    Case {
        name: "avoid-slow-sync",
        loads: &[(SMALL, 64), (LARGE, 64)],
    },
    Case {
        name: "inline-read",
        loads: &[(SMALL, 1), (SMALL, 64)],
    },
    Case {
        name: "inline-hash",
        loads: &[(SMALL, 1), (SMALL, 64)],
    },
    Case {
        name: "known-object",
        loads: &[(SMALL, 1), (SMALL, 64)],
    },
    Case {
        name: "verified-content",
        loads: &[(SMALL, 64), (LARGE, 64)],
    },
    Case {
        name: "read-again",
        loads: &[(HUGE, 16)],
    },
    Case {
        name: "direct-write",
        loads: &[(LARGE, 16), (LARGE, 64)],
    },
    Case {
        name: "gather-updates",
        loads: &[(SMALL, 4), (SMALL, 64)],
    },
    Case {
        name: "row-log",
        loads: &[(SMALL, 4), (SMALL, 64)],
    },
];

pub(super) fn measure(options: &Options) -> Result<()> {
    let named = |case: &&Case| options.heuristics.iter().any(|name| name == case.name);
    let is_wanted = |case: &&Case| options.heuristics.is_empty() || named(case);
    let cases: Vec<&Case> = CASES.iter().filter(is_wanted).collect();
    let known = |name: &String| CASES.iter().any(|case| case.name == name);
    if let Some(unknown) = options.heuristics.iter().find(|name| !known(name)) {
        let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        bail!("--heuristics: {unknown:?} is none of {}", names.join(", "));
    }
    let program = program()?;
    let (_, _, seconds) = options.plan();
    let mut all = Vec::new();
    for case in cases {
        let dir = workspace::scratch("bench")?;
        let without = switched_off(dir.path(), &program, case.name)?;
        let programs = [("without", without), ("with", program.clone())];
        let mut pair = Pair::start(dir.path(), &programs, options)?;
        for &(size, connections) in case.loads {
            let load = (size, connections, seconds);
            let compared = pair.measure(&program, load, options.rounds)?;
            compared
                .lines()
                .for_each(|line| println!("{}: {line}", case.name));
            let cells = compared.cells.into_iter();
            all.extend(cells.map(|(round, cell)| (case.name, round, cell)));
        }
        pair.stop()?;
    }
    workspace::keep("bench-heuristics", "bench.json", &all)
}

/// The program that can switch them off: `$CAIRN_BINARY`, or built in a folder of its own, that no
/// suite takes it for the one that people run.
fn program() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os("CAIRN_BINARY") {
        return Ok(PathBuf::from(binary));
    }
    let target = workspace::target().join("measure");
    let mut build = workspace::cargo();
    build.args([
        "build",
        "--release",
        "--package",
        "cairn",
        "--features",
        "measure",
    ]);
    workspace::run(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release/cairn"))
}

/// A script that runs the program without the heuristic.
fn switched_off(dir: &Path, program: &Path, name: &str) -> Result<PathBuf> {
    let script = dir.join("cairn-without");
    let program = workspace::utf8(program)?;
    let text = format!("#!/bin/sh\n{VARIABLE}={name} exec '{program}' \"$@\"\n");
    workspace::write_script(&script, &text)?;
    Ok(script)
}
