//! Cost of encryption: Cairn with Swift's filters, with authenticated encryption, and without,
//! alternating cell by cell, each store frozen while another is measured. A round's ratio is
//! relative to the store without encryption in the same round; the median over rounds counts.

use anyhow::Result;

use super::disk::Disk;
use super::load::Verb;
use super::protection::Bar;
use super::{Cell, Options, Subject, alternate};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::workspace;

const NONE: &str = "none";
const SWIFTS: &str = "AES-CTR";
const SEALED: &str = "AES-GCM";

/// Required fraction of the throughput without encryption, at a megabyte.
const WANTED: [(Verb, f64); 2] = [(Verb::Put, 0.7), (Verb::Get, 0.6)];

/// Options of a filter.
type Settings = &'static [(&'static str, &'static str)];

/// A store's name, and its options of `encryption`; `None`: without the filter.
const STORES: [(&str, Option<Settings>); 3] = [
    (NONE, None),
    (SWIFTS, Some(&[])),
    (SEALED, Some(&[("authenticated", "true")])),
];

/// Prints and records each cell; returns the bars of cells that have one.
pub(super) fn measure(options: &Options) -> Result<Vec<Bar>> {
    let dir = workspace::scratch("bench")?;
    let lab = workspace::build_cairn()?;
    let (mut disks, mut stores, mut subjects) = (Vec::new(), Vec::new(), Vec::new());
    for (name, encryption) in STORES {
        let disk = Disk::fresh(dir.path(), name, options.file_system)?;
        let mut store = Cairn::create(&lab, &disk.path().join("data"), None)?;
        if let Some(encryption) = encryption {
            store.encrypt(encryption)?;
        }
        store.start(Spread::OneProcess)?;
        let subject = Subject::new(name, store.port(), store.processes(), disk.path())?;
        subject.freeze(true);
        subjects.push(subject);
        stores.push(store);
        disks.push(disk);
    }
    let (sizes, connections, seconds) = options.plan();
    let mut cells: Vec<(usize, Cell)> = Vec::new();
    let mut bars = Vec::new();
    for &size in &sizes {
        for &connections in &connections {
            let plan = (size, connections, seconds);
            cells.extend(alternate(&mut subjects, &lab, plan, options.rounds)?);
            bars.extend(print(&cells, size, connections));
        }
    }
    for subject in &subjects {
        subject.freeze(false);
    }
    for store in &mut stores {
        store.stop()?;
    }
    let all: Vec<&Cell> = cells.iter().map(|(_, cell)| cell).collect();
    workspace::keep("bench-encryption", "bench.json", &all)?;
    Ok(bars)
}

/// The cells' bars, if any.
fn print(cells: &[(usize, Cell)], size: u64, connections: usize) -> Vec<Bar> {
    let mut bars = Vec::new();
    for verb in [Verb::Put, Verb::Get] {
        let of = |name: &str| -> Vec<f64> {
            let is_it = |cell: &Cell| {
                cell.store == name
                    && cell.verb == verb
                    && cell.size == size
                    && cell.connections == connections
            };
            let cells = cells.iter().filter(|(_, cell)| is_it(cell));
            let mut cells: Vec<(usize, f64)> = cells
                .map(|(round, cell)| (*round, cell.outcome.per_second()))
                .collect();
            cells.sort_by_key(|(round, _)| *round);
            cells.into_iter().map(|(_, rate)| rate).collect()
        };
        let without = of(NONE);
        for (name, _) in STORES.iter().filter(|(name, _)| *name != NONE) {
            let with = of(name);
            let pairs = with.iter().zip(&without).filter(|(_, base)| **base > 0.0);
            let ratios: Vec<f64> = pairs.map(|(with, base)| with / base).collect();
            let wanted = WANTED
                .iter()
                .find(|(of, _)| *of == verb && size == 1_000_000);
            let title = format!(
                "{} {size} B, {connections} connections, {name}",
                verb.as_str()
            );
            let Some(bar) = Bar::of(title, wanted.map_or(0.0, |(_, wanted)| *wanted), ratios)
            else {
                continue;
            };
            let verdict = match wanted {
                Some(_) => format!(", {}", bar.verdict()),
                None => String::new(),
            };
            let Bar {
                name,
                median,
                lowest,
                highest,
                ..
            } = &bar;
            println!(
                "{name}: {median:.2} of without (rounds {lowest:.2} to {highest:.2}){verdict}"
            );
            if wanted.is_some() {
                bars.push(bar);
            }
        }
    }
    bars
}
