//! Benchmark of rows that objects in volumes owe to their containers: given to the databases by a call,
//! as the object server of the same process does it, until they are merged into SQLite and durable
//! there. The path is that of the server from the call on (`crates/index/benches/rows.rs`); what comes
//! before, the object's PUT, is left out. Databases of all sizes are measured in turn in each round.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::disk::Disk;
use super::protection::Bar;
use super::{Options, program};
use cairn_testkit::workspace;

const ROWS: [u64; 2] = [1000, 10_000_000];
const SECONDS: u64 = 5;
const WANTED_PER_SECOND: f64 = 30_000.0;

pub(super) fn run(options: &Options) -> Result<()> {
    let dir = workspace::scratch("rows")?;
    let disk = Disk::fresh(dir.path(), "devices", options.file_system)?;
    let mut rows = options.rows.clone();
    if rows.is_empty() {
        rows = ROWS.to_vec();
    }
    let mut arguments = vec![
        workspace::utf8(disk.path())?.to_owned(),
        options.seconds.unwrap_or(SECONDS).to_string(),
        options.rounds.to_string(),
    ];
    arguments.extend(rows.iter().map(u64::to_string));
    let (mut all, mut rates) = (Vec::new(), BTreeMap::<_, Vec<f64>>::new());
    program::run("cairn-index", "rows", &arguments, |line| {
        println!("{line}");
        let measured: Value = serde_json::from_str(line)?;
        let rows = measured["rows"].as_u64().context("no rows")?;
        let names = measured["names"].as_str().context("no names")?.to_owned();
        let rate = measured["per_second"].as_f64().context("no rate")?;
        rates.entry((rows, names)).or_default().push(rate);
        all.push(measured);
        Ok(())
    })?;
    let bars = rates.into_iter().filter_map(|((rows, names), rates)| {
        let title = format!("{rows} rows, {names} names");
        Bar::of(title, WANTED_PER_SECOND, rates)
    });
    let bars: Vec<Bar> = bars.collect();
    for bar in &bars {
        println!(
            "{}: {:.0} rows a second (rounds {:.0} to {:.0}), {}",
            bar.name,
            bar.median,
            bar.lowest,
            bar.highest,
            bar.verdict()
        );
    }
    workspace::keep("bench", "rows.json", &all)?;
    let missed = bars.iter().filter(|bar| !bar.is_met()).count();
    ensure!(missed == 0, "{missed} of {} bars missed", bars.len());
    Ok(())
}
