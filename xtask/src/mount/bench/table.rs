//! Measured values of the benchmark, and its bars.

use serde::Serialize;

use super::{CREATE, LIST, MOUNT, READ, STORE, WRITE, rivals};
use cairn_testkit::figures::median;

/// Measurements of one operation, one per round.
#[derive(Serialize)]
pub(super) struct Cell {
    what: &'static str,
    who: &'static str,
    unit: &'static str,
    rounds: Vec<f64>,
}

impl Cell {
    fn median(&self) -> f64 {
        median(self.rounds.iter().copied()).unwrap_or_default()
    }
}

#[derive(Default)]
pub(super) struct Table(pub(super) Vec<Cell>);

impl Table {
    pub(super) fn add(
        &mut self,
        what: &'static str,
        who: &'static str,
        unit: &'static str,
        value: f64,
    ) {
        println!("{what:>24}  {who:<22} {value:9.1} {unit}");
        let is_it = |cell: &&mut Cell| cell.what == what && cell.who == who;
        match self.0.iter_mut().find(is_it) {
            Some(cell) => cell.rounds.push(value),
            None => self.0.push(Cell {
                what,
                who,
                unit,
                rounds: vec![value],
            }),
        }
    }

    fn of(&self, what: &str, who: &str) -> Option<f64> {
        let mut cells = self.0.iter();
        let cell = cells.find(|cell| cell.what == what && cell.who == who)?;
        Some(cell.median())
    }

    pub(super) fn show(&self, words: &str) {
        println!();
        for cell in &self.0 {
            let (what, who, unit, median) = (cell.what, cell.who, cell.unit, cell.median());
            let least = cell.rounds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = cell.rounds.iter().copied().fold(0.0, f64::max);
            println!("{what:>24}  {who:<22} {median:9.2} {unit} ({least:.2} to {most:.2})");
        }
        println!("{words}");
        for (words, is_met) in self.bars() {
            println!("{} {words}", if is_met { "met    " } else { "MISSED " });
        }
    }

    /// The bars that the mount has to reach, and whether its median does.
    fn bars(&self) -> Vec<(String, bool)> {
        let mut bars = Vec::new();
        let mut bar = |what: &str, value: Option<f64>, least: f64| {
            if let Some(value) = value {
                bars.push((format!("{what}: {value:.2}, bar {least}"), value >= least));
            }
        };
        let ratio = |what: &str, to: &str| Some(self.of(what, MOUNT)? / self.of(what, to)?);
        bar("write / the store's PUT", ratio(WRITE, STORE), 0.85);
        bar("write / S3QL", ratio(WRITE, rivals::S3QL), 3.0);
        let read = self.of(READ, MOUNT).map(|rate| rate / 1000.0);
        bar("cold read, GB/s", read, 1.0);
        bar("cold read / rclone", ratio(READ, rivals::RCLONE), 4.0);
        for what in CREATE {
            bar(
                &format!("{what} / the store's PUT"),
                ratio(what, STORE),
                0.8,
            );
        }
        let list = self.of(LIST, MOUNT).map(|ms| 500.0 / ms.max(1e-9));
        bar("0.5 s / cold ls -l of 10,000 names", list, 1.0);
        bars
    }
}
