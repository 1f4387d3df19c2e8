//! Two builds of Cairn beside each other: has a change made it slower?

use anyhow::{Context, Result, ensure};

use super::pair::Pair;
use super::{Cell, Options};
use cairn_testkit::workspace;

pub(super) fn measure(options: &Options) -> Result<()> {
    let before = options.against.as_deref();
    let before =
        before.context("--against is missing: give the program `cairn` of another build")?;
    ensure!(
        before.is_file(),
        "--against: {} is no file",
        before.display()
    );
    let before = before.canonicalize()?;
    let dir = workspace::scratch("bench")?;
    let lab = workspace::build_cairn()?;
    let programs = [("before", before), ("now", lab.clone())];
    let mut pair = Pair::start(dir.path(), &programs, options)?;
    let (sizes, connections, seconds) = options.plan();
    let mut all = Vec::new();
    for &size in &sizes {
        for &connections in &connections {
            let load = (size, connections, seconds);
            let compared = pair.measure(&lab, load, options.rounds)?;
            compared.lines().for_each(|line| println!("{line}"));
            all.extend(compared.cells);
        }
    }
    pair.stop()?;
    let all: Vec<&Cell> = all.iter().map(|(_, cell)| cell).collect();
    workspace::keep("bench-builds", "bench.json", &all)
}
