//! Two builds of Cairn beside each other, alternating round by round, each frozen while the other is
//! measured: has a change made it slower? A round's ratio is relative to the other build in the same
//! round; the median over rounds counts.

use anyhow::{Context, Result, ensure};

use super::disk::Disk;
use super::load::Verb;
use super::protection::Bar;
use super::{Cell, Options, Subject, alternate};
use crate::cairn::{Cairn, Spread};
use crate::workspace;

const BEFORE: &str = "before";
const NOW: &str = "now";

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
    let binary = workspace::build_release("xtask")?;
    let dir = workspace::scratch("bench")?;
    let programs = [(BEFORE, before), (NOW, workspace::build_cairn()?)];
    let (mut disks, mut stores, mut subjects) = (Vec::new(), Vec::new(), Vec::new());
    for (name, program) in &programs {
        let disk = Disk::fresh(dir.path(), name, options.file_system)?;
        let mut store = Cairn::create(program, &disk.path().join("data"), None)?;
        store.start(Spread::OneProcess)?;
        let subject = Subject::new(name, store.port(), store.processes(), disk.path())?;
        subject.freeze(true);
        subjects.push(subject);
        stores.push(store);
        disks.push(disk);
    }
    let (sizes, connections, seconds) = options.plan();
    let mut all = Vec::new();
    for &size in &sizes {
        for &connections in &connections {
            let plan = (size, connections, seconds);
            let cells = alternate(&mut subjects, &binary, plan, options.rounds)?;
            for verb in [Verb::Put, Verb::Get, Verb::Delete] {
                println!("{}", line(&cells, verb));
            }
            all.extend(cells);
        }
    }
    for subject in &subjects {
        subject.freeze(false);
    }
    for store in &mut stores {
        store.stop()?;
    }
    let results = workspace::results("bench-builds")?;
    let all: Vec<&Cell> = all.iter().map(|(_, cell)| cell).collect();
    std::fs::write(results.join("bench.json"), serde_json::to_vec_pretty(&all)?)?;
    println!("kept in {}", results.display());
    Ok(())
}

/// Summary of the rounds of one verb, at one size and number of connections.
fn line(cells: &[(usize, Cell)], verb: Verb) -> String {
    let of = |store: &str, value: fn(&Cell) -> f64| -> Vec<f64> {
        let of_it = |cell: &&Cell| cell.store == store && cell.verb == verb;
        let cells = cells.iter().map(|(_, cell)| cell).filter(of_it);
        cells.map(value).collect()
    };
    let compared = |value: fn(&Cell) -> f64| -> String {
        let (before, now) = (of(BEFORE, value), of(NOW, value));
        let pairs = now.iter().zip(&before).filter(|(_, before)| **before > 0.0);
        let ratios = pairs.map(|(now, before)| now / before).collect();
        let median =
            |values: Vec<f64>| Bar::of(String::new(), 0.0, values).map_or(0.0, |b| b.median);
        match Bar::of(String::new(), 0.0, ratios) {
            None => "–".to_owned(),
            Some(bar) => format!(
                "{:.2} / {:.2}, × {:.2} (rounds {:.2} to {:.2})",
                median(before),
                median(now),
                bar.median,
                bar.lowest,
                bar.highest
            ),
        }
    };
    let errors: u64 = cells.iter().map(|(_, cell)| cell.outcome.errors).sum();
    let cell = &cells[0].1;
    format!(
        "{} {} B, {} connections, before / now: op/s {}; p99 ms {}; CPU s/1000 {}; {errors} errors",
        verb.as_str(),
        cell.size,
        cell.connections,
        compared(|cell| cell.outcome.per_second()),
        compared(|cell| cell.outcome.p99_ms),
        compared(|cell| cell.server_cpu_seconds_per_1000),
    )
}
