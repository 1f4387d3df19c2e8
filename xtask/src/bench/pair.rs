//! Two stores beside each other, alternating round by round, each frozen while the other is measured:
//! two builds of Cairn, or one with an option and without. A round's ratio is relative to the other store
//! in the same round; the median over rounds counts.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::disk::Disk;
use super::load::Verb;
use super::protection::Bar;
use super::{Cell, Options, Subject, alternate};
use crate::engine::EngineName;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::figures::median;

/// Two running stores, all frozen but the one that is measured.
pub(super) struct Pair {
    subjects: Vec<Subject>,
    stores: Vec<Cairn>,
    _disks: Vec<Disk>,
}

/// Cells of all rounds of one load, and the names of the stores.
pub(super) struct Compared {
    names: [&'static str; 2],
    pub(super) cells: Vec<(usize, Cell)>,
}

impl Pair {
    /// Starts both, each with devices of its own below `dir`.
    pub(super) fn start(
        dir: &Path,
        programs: &[(&'static str, PathBuf); 2],
        options: &Options,
    ) -> Result<Pair> {
        let (mut disks, mut stores, mut subjects) = (Vec::new(), Vec::new(), Vec::new());
        for (name, program) in programs {
            let disk = Disk::fresh(dir, name, options.file_system)?;
            let mut store = Cairn::create(program, &disk.path().join("data"), None)?;
            EngineName::set(options.engine, &store)?;
            store.start(Spread::OneProcess)?;
            let subject = Subject::new(name, store.port(), store.processes(), disk.path())?;
            subject.freeze(true);
            subjects.push(subject);
            stores.push(store);
            disks.push(disk);
        }
        Ok(Pair {
            subjects,
            stores,
            _disks: disks,
        })
    }

    /// Measures all rounds of one load, its size in bytes, connections and seconds, by the lab of
    /// the program `lab`.
    pub(super) fn measure(
        &mut self,
        lab: &Path,
        load: (u64, usize, u64),
        rounds: usize,
    ) -> Result<Compared> {
        Ok(Compared {
            names: [self.subjects[0].name, self.subjects[1].name],
            cells: alternate(&mut self.subjects, lab, load, rounds)?,
        })
    }

    pub(super) fn stop(mut self) -> Result<()> {
        for subject in &self.subjects {
            subject.freeze(false);
        }
        self.stores.iter_mut().try_for_each(Cairn::stop)
    }
}

impl Compared {
    /// A line for each verb: the medians of both stores, and the second as a multiple of the first.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        [Verb::Put, Verb::Get, Verb::Delete]
            .into_iter()
            .map(|verb| self.line(verb))
    }

    fn line(&self, verb: Verb) -> String {
        let errors: u64 = self.cells.iter().map(|(_, cell)| cell.outcome.errors).sum();
        let cell = &self.cells[0].1;
        let [first, second] = self.names;
        format!(
            "{} {} B, {} connections, {first} / {second}: op/s {}; p99 ms {}; CPU s/1000 {}; \
             {errors} errors",
            verb.as_str(),
            cell.size,
            cell.connections,
            self.values(verb, |cell| cell.outcome.per_second()),
            self.values(verb, |cell| cell.outcome.p99_ms),
            self.values(verb, |cell| cell.server_cpu_seconds_per_1000),
        )
    }

    fn values(&self, verb: Verb, value: fn(&Cell) -> f64) -> String {
        let of = |store: &str| -> Vec<f64> {
            let of_it = |cell: &&Cell| cell.store == store && cell.verb == verb;
            let cells = self.cells.iter().map(|(_, cell)| cell).filter(of_it);
            cells.map(value).collect()
        };
        let [first, second] = self.names.map(of);
        let pairs = second.iter().zip(&first).filter(|(_, first)| **first > 0.0);
        let ratios = pairs.map(|(second, first)| second / first).collect();
        let middle = |values: Vec<f64>| median(values).unwrap_or(0.0);
        match Bar::of(String::new(), 0.0, ratios) {
            None => "–".to_owned(),
            Some(bar) => format!(
                "{:.2} / {:.2}, × {:.2} (rounds {:.2} to {:.2})",
                middle(first),
                middle(second),
                bar.median,
                bar.lowest,
                bar.highest
            ),
        }
    }
}
