//! Fit of demands to measured cells.
//!
//! CPU demands are fitted by non-negative least squares: each cell's measured seconds per operation
//! are a sum of known multiples of the demands. The multiples come from the paths themselves, so
//! both have the same meaning. Parameters that cannot be measured directly (waits for threads,
//! sharing of the store's syncs relative to those of the measurement, spread) are then chosen such
//! that the simulation matches the cells' throughput and latencies.

use std::collections::{BTreeMap, HashSet};

use crate::calibration::{Calibration, FileCost, LoadCost, Medium, SCHEMA, StoreCost};
use crate::cell::{Cell, DiskUse, Measured};
use crate::cluster::Processes;
use crate::conformal::Residuals;
use crate::engine::{Engine, demands};
use crate::error::AdviseError;
use crate::paths::World;
use crate::placement::Placement;
use crate::random::Dice;
use crate::scope::Scope;
use crate::simulate::{Options, run};
use crate::workload::Workload;

const SAMPLES: usize = 1000;
const SWEEPS: usize = 20_000;
const ROUNDS: usize = 5;
const NEED: usize = 2;
/// Requests to disks an operation below which they do not decide.
const LEAST_REQUESTS: f64 = 0.5;

/// Initial demands of the search; those that no cell determines stay.
const STORE: StoreCost = StoreCost {
    read_op: 1e-4,
    read_byte: 3e-10,
    write_op: 1e-4,
    write_byte: 1e-9,
    write_replica: 1e-4,
    write_replica_byte: 3e-10,
    fragment: 5e-5,
    coding_byte: 5e-10,
    call: 1e-4,
    call_byte: 3e-10,
    storage_part: 0.5,
    hand_over: 5e-5,
    spread: 0.5,
};
const NO_STORE: StoreCost = StoreCost {
    read_op: 0.0,
    read_byte: 0.0,
    write_op: 0.0,
    write_byte: 0.0,
    write_replica: 0.0,
    write_replica_byte: 0.0,
    fragment: 0.0,
    coding_byte: 0.0,
    call: 0.0,
    call_byte: 0.0,
    storage_part: 0.5,
    hand_over: 0.0,
    spread: 0.0,
};
const NO_LOAD: LoadCost = LoadCost {
    read_op: 0.0,
    read_byte: 0.0,
    write_op: 0.0,
    write_byte: 0.0,
};

type StoreField = fn(&mut StoreCost) -> &mut f64;
type LoadField = fn(&mut LoadCost) -> &mut f64;
const STORE_FIELDS: [StoreField; 10] = [
    |c| &mut c.read_op,
    |c| &mut c.read_byte,
    |c| &mut c.write_op,
    |c| &mut c.write_byte,
    |c| &mut c.write_replica,
    |c| &mut c.write_replica_byte,
    |c| &mut c.fragment,
    |c| &mut c.coding_byte,
    |c| &mut c.call,
    |c| &mut c.call_byte,
];
const LOAD_FIELDS: [LoadField; 4] = [
    |c| &mut c.read_op,
    |c| &mut c.read_byte,
    |c| &mut c.write_op,
    |c| &mut c.write_byte,
];

/// Deviation of the fitted simulation from a cell used for the fit: measured over predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Off {
    pub cell: String,
    pub throughput: f64,
    pub p50: f64,
    pub p95: f64,
    /// Sum of logarithms, without sign, of measured over predicted requests to emulated disks.
    pub requests: f64,
}

/// Fits a calibration to cells and to measured disk times.
///
/// # Errors
/// Fewer than two usable cells; or a cell's ring cannot be built, or its medium was not measured.
pub fn fit(
    cells: &[Cell],
    media: BTreeMap<String, Medium>,
    made_on: String,
    operations: u64,
) -> Result<(Calibration, Vec<Off>), AdviseError> {
    // Undisturbed repetitions are preferred; for others, the other programs' usage is simulated
    // too.
    let usable = |cell: &Cell| {
        let is_measured = cell.accepted && !cell.repetitions.is_empty();
        cell.quiet().or_else(|| is_measured.then(|| cell.clone()))
    };
    let cells: Vec<Cell> = cells.iter().filter_map(usable).collect();
    if cells.len() < NEED {
        return Err(AdviseError::TooFewCells {
            what: "the calibration",
            have: cells.len(),
            need: NEED,
            remedy: "measure with cairn advise measure, or name a folder that has accepted ones",
        });
    }
    let mut scope = Scope::default();
    cells.iter().for_each(|cell| scope.add_cell(cell));
    let mut calibration = Calibration {
        schema: SCHEMA.into(),
        made_on,
        emulated: cells.iter().any(|cell| cell.emulated),
        store: STORE,
        load: NO_LOAD,
        medium: media,
        files: FileCost::default(),
        scope,
        residuals: Residuals::default(),
    };
    for cell in &cells {
        calibration = calibration.with_media(cell.emulation.as_ref());
    }
    let mut placed = Vec::new();
    for cell in &cells {
        placed.push(Placed {
            cell,
            mean: cell.mean(),
            placement: Placement::new(&cell.cluster)?,
        });
    }
    fit_load(&placed, &mut calibration)?;
    // The CPU time of groups depends on the number of members, which depends on the other demands,
    // so this is iterated.
    let mut groups = vec![0.0; placed.len()];
    for _ in 0..4 {
        fit_store(&placed, &groups, &mut calibration)?;
        for (at, groups) in placed.iter().zip(&mut groups) {
            *groups = at.run(&calibration, operations)?.groups;
        }
    }
    fit_waits(&placed, operations, &mut calibration)?;
    let off = placed.iter().map(|at| at.off(&calibration, operations));
    let off = off.collect::<Result<Vec<Off>, AdviseError>>()?;
    Ok((calibration, off))
}

struct Placed<'a> {
    cell: &'a Cell,
    mean: Measured,
    placement: Placement,
}

impl Placed<'_> {
    fn run(
        &self,
        calibration: &Calibration,
        operations: u64,
    ) -> Result<crate::simulate::Outcome, AdviseError> {
        let options = Options {
            operations,
            warm_up: operations / 8,
            lost: self.placement.zone_devices(self.cell.lost_zone),
            others: self.mean.others.unwrap_or(0.0),
            dilation: self.cell.emulation.as_ref().map(|e| e.dilation),
            ..Options::default()
        };
        let (cluster, workload) = (&self.cell.cluster, &self.cell.workload);
        run(cluster, workload, calibration, &self.placement, &options)
    }

    fn off(&self, calibration: &Calibration, operations: u64) -> Result<Off, AdviseError> {
        let outcome = self.run(calibration, operations)?;
        let requests = |of: fn(&DiskUse) -> f64| {
            let measured = self.mean.disk.as_ref().map_or(0.0, of);
            match measured > LEAST_REQUESTS {
                true => (measured / of(&outcome.disk).max(0.1)).ln().abs(),
                false => 0.0,
            }
        };
        Ok(Off {
            requests: requests(|d| d.writes)
                + requests(|d| d.flushes)
                + 0.5 * requests(|d| d.written_bytes),
            cell: self.cell.name.clone(),
            throughput: self.mean.throughput / outcome.throughput,
            p50: self.mean.p50_ms / 1e3 / outcome.quantile(0.5),
            p95: self.mean.p95_ms / 1e3 / outcome.quantile(0.95),
        })
    }

    /// CPU seconds of one operation with these demands.
    fn seconds(&self, calibration: &Calibration) -> Result<f64, AdviseError> {
        let mut engine = Engine::new(1);
        let (cluster, workload) = (&self.cell.cluster, &self.cell.workload);
        let none = (HashSet::new(), None);
        let world = World::new(
            cluster,
            workload,
            calibration,
            &self.placement,
            &mut engine,
            none,
        )?;
        let processors: HashSet<usize> = world.hosts.iter().map(|h| h.processor).collect();
        let mut world = world.without_spread();
        let (mut dice, mut syncs, mut sums) = (Dice::new(1), 0.0, BTreeMap::new());
        for (number, (operation, size)) in draws(workload, &mut dice).into_iter().enumerate() {
            let steps = world.operation(number as u64, operation, size, &mut dice);
            demands(&steps, &mut syncs, &mut sums);
        }
        let on_processors = sums
            .iter()
            .filter(|(station, _)| processors.contains(station));
        // Measured seconds are those of a core of the host, whatever the cluster's.
        let speed = match self.cell.emulation {
            Some(_) => cluster.node[0].core_speed,
            None => 1.0,
        };
        let all = on_processors.map(|(_, seconds)| seconds).sum::<f64>();
        Ok(all * speed / SAMPLES as f64)
    }
}

fn draws(workload: &Workload, dice: &mut Dice) -> Vec<(crate::workload::Operation, f64)> {
    let (mix, classes) = (workload.mix(), workload.classes());
    let mut draw = || {
        let operation = mix[dice.weighted(mix.iter().map(|(_, share)| *share))].0;
        let class = classes[dice.weighted(classes.iter().map(|c| c.share))];
        (operation, class.bytes.0)
    };
    (0..SAMPLES).map(|_| draw()).collect()
}

fn fit_load(placed: &[Placed<'_>], calibration: &mut Calibration) -> Result<(), AdviseError> {
    let mut rows = Vec::new();
    for at in placed {
        let Some(measured) = at.mean.load_cpu else {
            continue;
        };
        let mut features = Vec::new();
        for field in LOAD_FIELDS {
            let mut unit = calibration.clone();
            (unit.store, unit.load) = (NO_STORE, NO_LOAD);
            *field(&mut unit.load) = 1.0;
            features.push(at.seconds(&unit)?);
        }
        rows.push((features, measured));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let mut start = LoadCost {
        read_op: 5e-5,
        read_byte: 2e-10,
        write_op: 5e-5,
        write_byte: 2e-10,
    };
    let values = least_squares(&rows, LOAD_FIELDS.map(|field| *field(&mut start)).to_vec());
    for (field, value) in LOAD_FIELDS.iter().zip(values) {
        *field(&mut calibration.load) = value;
    }
    Ok(())
}

fn fit_store(
    placed: &[Placed<'_>],
    groups: &[f64],
    calibration: &mut Calibration,
) -> Result<(), AdviseError> {
    let mut rows = Vec::new();
    for (at, groups) in placed.iter().zip(groups) {
        let Some(measured) = at.mean.store_cpu else {
            continue;
        };
        let mut features = Vec::new();
        for field in STORE_FIELDS {
            let mut unit = calibration.clone();
            (unit.store, unit.load) = (NO_STORE, NO_LOAD);
            *field(&mut unit.store) = 1.0;
            features.push(at.seconds(&unit)?);
        }
        features.push(*groups);
        rows.push((features, measured));
    }
    let mut start = calibration.store;
    let mut begin = STORE_FIELDS.map(|field| *field(&mut start)).to_vec();
    let media = calibration.medium.values();
    begin.push(media.map(|m| m.sync_cpu).fold(0.0, f64::max));
    let values = least_squares(&rows, begin);
    for (field, value) in STORE_FIELDS.iter().zip(&values) {
        *field(&mut calibration.store) = *value;
    }
    let sync_cpu = values[STORE_FIELDS.len()];
    calibration
        .medium
        .values_mut()
        .for_each(|m| m.sync_cpu = sync_cpu);
    let parts = placed
        .iter()
        .filter(|at| at.cell.cluster.processes == Processes::Roles);
    let parts: Vec<f64> = parts
        .filter_map(|at| Some(at.mean.storage_cpu? / at.mean.store_cpu?))
        .collect();
    if !parts.is_empty() {
        let part = parts.iter().sum::<f64>() / parts.len() as f64;
        calibration.store.storage_part = part.clamp(0.05, 0.95);
    }
    Ok(())
}

/// Weight, beside that of a row's relative error, of a value's relative distance from its initial one.
const STAY_WEIGHT: f64 = 1e-3;

/// Non-negative least squares of relative errors, by cyclic coordinate descent. Values that no row
/// determines stay; of several that the rows determine together none takes all of the change: a first
/// descent also keeps each near its initial value, in proportion to it.
fn least_squares(rows: &[(Vec<f64>, f64)], mut values: Vec<f64>) -> Vec<f64> {
    let rows: Vec<Vec<f64>> = rows
        .iter()
        .filter(|(_, measured)| *measured > 0.0)
        .map(|(features, measured)| features.iter().map(|f| f / measured).collect())
        .collect();
    let squares: Vec<f64> = (0..values.len())
        .map(|j| rows.iter().map(|row| row[j] * row[j]).sum())
        .collect();
    let initial = values.clone();
    let stay = |first: bool, j: usize| match first && initial[j] > 0.0 {
        true => STAY_WEIGHT / (initial[j] * initial[j]),
        false => 0.0,
    };
    for sweep in 0..2 * SWEEPS {
        for j in 0..values.len() {
            if squares[j] <= 0.0 {
                continue;
            }
            let stay = stay(sweep < SWEEPS, j);
            let gradient: f64 = rows
                .iter()
                .map(|row| {
                    let sum: f64 = row.iter().zip(&values).map(|(f, v)| f * v).sum();
                    row[j] * (1.0 - sum)
                })
                .sum();
            let back = stay * (initial[j] - values[j]);
            values[j] = (values[j] + (gradient + back) / (squares[j] + stay)).max(0.0);
        }
    }
    values
}

type Scale = fn(&mut Calibration, f64);
/// Demands that are scaled until the simulation matches the cells.
const SCALES: [Scale; 8] = [
    |c, by| c.store.hand_over *= by,
    |c, by| c.medium.values_mut().for_each(|m| m.sync_base *= by),
    |c, by| c.medium.values_mut().for_each(|m| m.sync_member *= by),
    |c, by| {
        c.store.read_op *= by;
        c.load.read_op *= by;
    },
    |c, by| {
        c.store.write_op *= by;
        c.store.write_replica *= by;
        c.load.write_op *= by;
    },
    |c, by| c.store.spread *= by,
    |c, by| c.medium.values_mut().for_each(|m| m.sync_byte *= by),
    |c, by| {
        let media = c.medium.values_mut();
        media.for_each(|m| m.sync_spread = m.sync_spread.widened(by));
    },
];

/// Figures that are scaled for emulated cells: their disks are known, and only what the store asks of them
/// is not.
const EMULATED_SCALES: [Scale; 10] = [
    |c, by| c.files.second_commit_busy = (c.files.second_commit_busy * by).min(1.0),
    |c, by| c.files.last_commit_busy = (c.files.last_commit_busy * by).min(1.0),
    |c, by| c.files.second_commit = (c.files.second_commit * by).min(1.0),
    |c, by| c.files.journal_member *= by,
    |c, by| c.files.directories *= by,
    |c, by| c.files.home_tables *= by,
    |c, by| c.files.home_member *= by,
    |c, by| {
        c.store.read_op *= by;
        c.store.call *= by;
    },
    |c, by| {
        c.store.write_op *= by;
        c.store.write_replica *= by;
    },
    |c, by| c.store.spread *= by,
];

fn fit_waits(
    placed: &[Placed<'_>],
    operations: u64,
    calibration: &mut Calibration,
) -> Result<(), AdviseError> {
    let loss = |calibration: &Calibration| -> Result<f64, AdviseError> {
        let mut sum = 0.0;
        for at in placed {
            let off = at.off(calibration, operations)?;
            sum += off.throughput.ln().abs() + 0.5 * (off.p50.ln().abs() + off.p95.ln().abs());
            sum += off.requests;
        }
        Ok(sum)
    };
    let is_emulated = placed.iter().any(|at| at.cell.emulation.is_some());
    let scales: &[Scale] = match is_emulated {
        true => &EMULATED_SCALES,
        false => &SCALES,
    };
    let mut best = loss(calibration)?;
    let mut factor: f64 = 1.6;
    for _ in 0..ROUNDS {
        for scale in scales.iter().copied() {
            for by in [factor, 1.0 / factor] {
                loop {
                    let mut tried = calibration.clone();
                    scale(&mut tried, by);
                    let its = loss(&tried)?;
                    if its >= best || tried.store.spread > 3.0 || tried.store.hand_over > 0.1 {
                        break;
                    }
                    (best, *calibration) = (its, tried);
                }
            }
        }
        factor = factor.sqrt();
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibration::tests::example;
    use crate::cell::tests::example as cell;
    use crate::plan;

    #[test]
    fn squares_find_what_was_put_in() {
        let truth = [2.0, 0.0, 3e-3];
        let features = [
            [1.0, 2.0, 500.0],
            [1.0, 0.0, 10.0],
            [3.0, 1.0, 0.0],
            [0.5, 4.0, 900.0],
        ];
        let rows: Vec<(Vec<f64>, f64)> = features
            .iter()
            .map(|f| (f.to_vec(), f.iter().zip(truth).map(|(f, t)| f * t).sum()))
            .collect();
        let found = least_squares(&rows, vec![1.0, 1.0, 1.0]);
        for (found, truth) in found.iter().zip(truth) {
            assert!((found - truth).abs() < 1e-4, "{found} {truth}");
        }
    }

    /// A proxy's and three servers' part of a write, in cells that all have three replicas.
    #[test]
    fn values_that_belong_together_change_together() {
        let rows = [(vec![1.0, 3.0, 0.0], 8e-4), (vec![2.0, 6.0, 0.0], 16e-4)];
        let found = least_squares(&rows, vec![1e-4, 1e-4, 5e-5]);
        for (found, nearest) in found.iter().zip([1.4e-4, 2.2e-4, 5e-5]) {
            assert!((found / nearest - 1.0).abs() < 0.01, "{found} {nearest}");
        }
    }

    /// One whose repetitions were all rejected would be fitted as if nothing was done.
    #[test]
    fn cells_without_a_repetition_do_not_count() {
        let mut measured = cell();
        measured.emulated = false;
        let mut empty = measured.clone();
        empty.repetitions.clear();
        let media = example().medium;
        let error = fit(&[measured, empty], media, String::new(), 10).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("has 1 cells, 2 are needed"), "{told}");
    }

    /// Cells simulated with known demands give these demands again.
    #[test]
    fn a_store_that_is_known_is_found_again() {
        let mut truth = example();
        truth.store.hand_over = 2e-4;
        let mut cells = Vec::new();
        for planned in plan::calibration_cells("disk", 2) {
            let placement = Placement::new(&planned.cluster).unwrap();
            let mut made = cell();
            (made.cluster, made.workload) = (planned.cluster, planned.workload);
            made.name = planned.name;
            let placed = Placed {
                mean: made.mean(),
                cell: &made,
                placement,
            };
            let outcome = placed.run(&truth, 1500).unwrap();
            let alone = |calibration: &Calibration| placed.seconds(calibration).unwrap();
            let mut without = truth.clone();
            without.load = NO_LOAD;
            let store = alone(&without);
            let it = Measured {
                throughput: outcome.throughput,
                p50_ms: outcome.quantile(0.5) * 1e3,
                p95_ms: outcome.quantile(0.95) * 1e3,
                p99_ms: outcome.quantile(0.99) * 1e3,
                store_cpu: Some(store + outcome.groups * truth.medium["disk"].sync_cpu),
                load_cpu: Some(alone(&truth) - store),
                ..Measured::default()
            };
            made.repetitions = vec![it];
            cells.push(made);
        }
        assert!(cells.len() <= 8);
        let (found, off) = fit(&cells, truth.medium.clone(), "a test".into(), 800).unwrap();
        for off in &off {
            assert!((off.throughput - 1.0).abs() < 0.2, "{off:?}");
        }
        let part = found.load.read_op / truth.load.read_op;
        assert!((part - 1.0).abs() < 0.35, "{part}");
        assert!(found.scope.apart && found.scope.erasure.len() == 1);
        let error = fit(&cells[..1], BTreeMap::new(), String::new(), 10)
            .unwrap_err()
            .to_string();
        assert!(error.contains("has 1 cells, 2 are needed"), "{error}");
    }
}
