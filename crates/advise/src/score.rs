//! Comparison of predictions with measurements, and with simpler prediction methods and the noise
//! of repetitions.

mod plot;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounds::by_mva;
use crate::calibration::Calibration;
use crate::cell::{Cell, Measured};
use crate::conformal::{LEVEL, Residuals, reach};
use crate::error::AdviseError;
use crate::placement::Placement;
use crate::plan::Planned;
use crate::random::Dice;
use crate::read;
pub use crate::regret::SIMULATION;
use crate::regret::{Candidate, Choice, Regret, regret};
use crate::simulate::{Options, run};
use crate::workload::{Operation, Workload};

pub const FILE: &str = "the predictions file";
pub const SCHEMA: &str = "cairn-advise-predictions/1";
/// Range of informative shares: those near 0 or 1 are easily guessed.
const SHARES: [f64; 2] = [0.05, 0.95];

/// Predictions made before the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predictions {
    pub schema: String,
    pub seed: u64,
    pub calibration: String,
    pub cells: Vec<Predicted>,
    /// Choices among the cells' clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    pub planned: Planned,
    /// Predicted figures by method.
    pub by: BTreeMap<String, Figures>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    pub throughput: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub within: Vec<(f64, f64)>,
}

impl Predictions {
    /// Parses predictions.
    ///
    /// # Errors
    /// The text does not follow the schema.
    pub fn parse(text: &str) -> Result<Predictions, AdviseError> {
        let it: Predictions = read::json(FILE, text)?;
        if it.schema != SCHEMA {
            let remedy = format!("this version reads {SCHEMA}");
            return Err(AdviseError::field(FILE, "schema", &it.schema, remedy));
        }
        Ok(it)
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The cells as choices see them.
    pub fn candidates(&self) -> Vec<Candidate<'_>> {
        let cells = self.cells.iter().map(|cell| Candidate {
            planned: &cell.planned,
            throughputs: cell
                .by
                .iter()
                .map(|(way, figures)| (way.as_str(), figures.throughput))
                .collect(),
        });
        cells.collect()
    }
}

/// Predicts each cell by simulation, by MVA, by the nearest calibration cell, and by scaling that.
///
/// # Errors
/// A ring that cannot be built, or a medium that is unknown.
pub fn predict_all(
    planned: Vec<Planned>,
    seed: u64,
    calibration: &Calibration,
    calibrated: &[Cell],
    operations: u64,
) -> Result<Predictions, AdviseError> {
    let mut cells = Vec::new();
    for planned in planned {
        let placement = Placement::new(&planned.cluster)?;
        let options = Options {
            operations,
            warm_up: operations / 8,
            lost: placement.zone_devices(planned.lost_zone),
            dilation: planned.emulation.as_ref().map(|e| e.dilation),
            ..Options::default()
        };
        let (cluster, workload) = (&planned.cluster, &planned.workload);
        let calibration = &calibration.with_media(planned.emulation.as_ref());
        let outcome = run(cluster, workload, calibration, &placement, &options)?;
        let limits = || workload.limits_ms.iter().copied();
        let simulated = Figures {
            throughput: outcome.throughput,
            p50_ms: outcome.quantile(0.5) * 1e3,
            p95_ms: outcome.quantile(0.95) * 1e3,
            p99_ms: outcome.quantile(0.99) * 1e3,
            within: limits().map(|l| (l, outcome.within(l / 1e3))).collect(),
        };
        let means = by_mva(cluster, workload, calibration, &placement)?;
        // Latencies are assumed to be exponential.
        let quantile = |part: f64| -means.latency * (1.0f64 - part).ln() * 1e3;
        let mva = Figures {
            throughput: means.throughput,
            p50_ms: quantile(0.5),
            p95_ms: quantile(0.95),
            p99_ms: quantile(0.99),
            within: limits()
                .map(|l| (l, 1.0 - (-l / 1e3 / means.latency).exp()))
                .collect(),
        };
        let mut by = BTreeMap::from([(SIMULATION.to_owned(), simulated), ("mva".to_owned(), mva)]);
        if let Some(nearest) = nearest(&planned, calibrated) {
            by.insert("linear scaling".to_owned(), scaled(&planned, nearest));
            by.insert("nearest neighbour".to_owned(), as_measured(&nearest.mean()));
        }
        cells.push(Predicted { planned, by });
    }
    Ok(Predictions {
        schema: SCHEMA.into(),
        seed,
        calibration: calibration.made_on.clone(),
        cells,
        choices: Vec::new(),
    })
}

fn as_measured(measured: &Measured) -> Figures {
    Figures {
        throughput: measured.throughput,
        p50_ms: measured.p50_ms,
        p95_ms: measured.p95_ms,
        p99_ms: measured.p99_ms,
        within: measured.within.clone(),
    }
}

/// The most similar calibration cell, by logarithms of size, workers and copies, and by the mix.
fn nearest<'a>(planned: &Planned, calibrated: &'a [Cell]) -> Option<&'a Cell> {
    let place = |cluster: &crate::cluster::Cluster, workload: &Workload| {
        [
            workload.mean_size().max(1.0).ln(),
            f64::from(workload.workers.unwrap_or(1)).ln(),
            cluster.overhead().ln(),
            4.0 * workload.share(Operation::Read),
            f64::from(u8::from(cluster.erasure.is_some())) * 2.0,
            f64::from(cluster.processes as u8),
        ]
    };
    let own = place(&planned.cluster, &planned.workload);
    let distance = |cell: &Cell| -> f64 {
        let its = place(&cell.cluster, &cell.workload);
        own.iter().zip(its).map(|(a, b)| (a - b) * (a - b)).sum()
    };
    calibrated
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// The nearest cell's figures, scaled: throughput by workers, written bytes by copies.
fn scaled(planned: &Planned, cell: &Cell) -> Figures {
    let mean = cell.mean();
    let workers = |workload: &Workload| f64::from(workload.workers.unwrap_or(1));
    let by_workers = workers(&planned.workload) / workers(&cell.workload);
    let copies = cell.cluster.overhead() / planned.cluster.overhead();
    let writes = 1.0 - planned.workload.share(Operation::Read);
    let throughput = mean.throughput * by_workers * (1.0 - writes + writes * copies);
    // Latencies follow by Little's law.
    let factor =
        workers(&planned.workload) / throughput / (workers(&cell.workload) / mean.throughput);
    let limits = planned.workload.limits_ms.iter();
    let within = limits.map(|limit| (*limit, part_within(&mean.within, limit / factor)));
    Figures {
        throughput,
        p50_ms: mean.p50_ms * factor,
        p95_ms: mean.p95_ms * factor,
        p99_ms: mean.p99_ms * factor,
        within: within.collect(),
    }
}

/// Fraction within a limit, interpolated between measured ones.
fn part_within(known: &[(f64, f64)], limit: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for (at, part) in known {
        if limit <= *at {
            let place = (limit - before.0) / (at - before.0).max(1e-12);
            return before.1 + (part - before.1) * place;
        }
        before = (*at, *part);
    }
    before.1
}

/// Mean errors of one prediction method.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Error in percent of the measured throughput.
    pub throughput: f64,
    pub p95: f64,
    pub p99: f64,
    /// Error in points, over limits whose measured share is between 5 and 95 %.
    pub share: f64,
    pub share_limits: usize,
    /// Fractions of cells within 10 and 25 % by throughput.
    pub within_10: f64,
    pub within_25: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    pub cells: usize,
    pub missing: Vec<String>,
    pub by: BTreeMap<String, Errors>,
    /// Errors of the simulation on cells that had lost a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degraded: Option<Errors>,
    /// Deviation of a repetition from the mean of the others in its cell, where cells have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<Errors>,
    /// Fraction of cells covered by 90 % intervals computed from the other half's errors.
    pub covered: BTreeMap<&'static str, f64>,
    pub each: Vec<Each>,
    /// Regret of the choices that were drawn with the cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regret: Option<Regret>,
    #[serde(skip)]
    pub residuals: Residuals,
    /// Throughputs, measured and predicted, by way of predicting.
    #[serde(skip)]
    pub points: BTreeMap<String, Vec<[f64; 2]>>,
}

/// One cell: measured and simulated figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Each {
    pub name: String,
    pub repetitions: usize,
    pub measured: [f64; 2],
    pub predicted: [f64; 2],
    /// Fraction of the host used by other programs, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
}

#[derive(Default)]
struct Sums {
    throughput: Vec<f64>,
    p95: Vec<f64>,
    p99: Vec<f64>,
    share: Vec<f64>,
}

impl Sums {
    fn add(&mut self, predicted: &Figures, measured: &Figures) {
        let off = |predicted: f64, measured: f64| (predicted / measured - 1.0).abs() * 100.0;
        self.throughput
            .push(off(predicted.throughput, measured.throughput));
        self.p95.push(off(predicted.p95_ms, measured.p95_ms));
        self.p99.push(off(predicted.p99_ms, measured.p99_ms));
        for ((_, predicted), (_, measured)) in predicted.within.iter().zip(&measured.within) {
            if (SHARES[0]..=SHARES[1]).contains(measured) {
                self.share.push((predicted - measured).abs() * 100.0);
            }
        }
    }

    fn errors(&self) -> Errors {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let part = |most: f64| {
            let near = self.throughput.iter().filter(|off| **off <= most).count();
            near as f64 / self.throughput.len().max(1) as f64
        };
        Errors {
            throughput: mean(&self.throughput),
            p95: mean(&self.p95),
            p99: mean(&self.p99),
            share: mean(&self.share),
            share_limits: self.share.len(),
            within_10: part(10.0),
            within_25: part(25.0),
        }
    }
}

/// Scores predictions.
///
/// # Errors
/// None of the predicted cells was measured.
pub fn score(predictions: &Predictions, measured: &[Cell]) -> Result<Score, AdviseError> {
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    let (mut noise, mut missing, mut each) = (Sums::default(), Vec::new(), Vec::new());
    let mut residuals = Residuals::default();
    let mut degraded = Sums::default();
    let mut points: BTreeMap<String, Vec<[f64; 2]>> = BTreeMap::new();
    // One error per cell, as the intervals need it; for shares the largest over all limits.
    let mut errors: Vec<[f64; 5]> = Vec::new();
    for predicted in &predictions.cells {
        let name = &predicted.planned.name;
        let found = measured.iter().find(|c| c.name == *name);
        let Some(cell) = found.and_then(Cell::quiet) else {
            missing.push(name.clone());
            continue;
        };
        let mean = cell.mean();
        let truth = as_measured(&mean);
        for (way, figures) in &predicted.by {
            sums.entry(way.clone()).or_default().add(figures, &truth);
        }
        add_noise(&cell, &mut noise);
        for (way, figures) in &predicted.by {
            let point = [truth.throughput, figures.throughput];
            points.entry(way.clone()).or_default().push(point);
        }
        let Some(ours) = predicted.by.get(SIMULATION) else {
            continue;
        };
        if cell.lost_zone.is_some() {
            degraded.add(ours, &truth);
        }
        let log = |measured: f64, predicted: f64| (measured / predicted).ln().abs();
        let limits = truth.within.iter().zip(&ours.within);
        let share = limits
            .map(|((_, m), (_, p))| (m - p).abs())
            .fold(0.0, f64::max);
        errors.push([
            log(truth.throughput, ours.throughput),
            log(truth.p50_ms, ours.p50_ms),
            log(truth.p95_ms, ours.p95_ms),
            log(truth.p99_ms, ours.p99_ms),
            share,
        ]);
        residuals.emulated |= cell.emulated;
        each.push(Each {
            name: name.clone(),
            repetitions: cell.repetitions.len(),
            measured: [truth.throughput, truth.p95_ms],
            predicted: [ours.throughput, ours.p95_ms],
            others: mean.others,
        });
    }
    if each.is_empty() {
        return Err(AdviseError::TooFewCells {
            what: "the score",
            have: 0,
            need: 1,
            remedy: "measure them with cairn advise validate run",
        });
    }
    let throughputs = each.iter().map(|it| (it.name.clone(), it.measured[0]));
    let regret = regret(
        &predictions.choices,
        &predictions.candidates(),
        &throughputs.collect(),
    );
    let column = |index: usize| errors.iter().map(|e| e[index]).collect::<Vec<f64>>();
    residuals.throughput = column(0);
    residuals.p50 = column(1);
    residuals.p95 = column(2);
    residuals.p99 = column(3);
    residuals.share = column(4);
    let names = ["throughput", "p50", "p95", "p99", "share"];
    let covered = names.into_iter().enumerate();
    Ok(Score {
        cells: each.len(),
        missing,
        by: sums
            .iter()
            .map(|(way, sums)| (way.clone(), sums.errors()))
            .collect(),
        noise: (!noise.throughput.is_empty()).then(|| noise.errors()),
        degraded: (!degraded.throughput.is_empty()).then(|| degraded.errors()),
        points,
        covered: covered
            .filter_map(|(index, name)| Some((name, covered_part(&column(index))?)))
            .collect(),
        each,
        regret,
        residuals,
    })
}

/// Splits the cells randomly in halves: intervals from one half are tested on the other, and vice
/// versa.
fn covered_part(errors: &[f64]) -> Option<f64> {
    let mut order: Vec<f64> = errors.to_vec();
    let mut dice = Dice::new(22);
    let (mut covered, mut all) = (0usize, 0usize);
    for _ in 0..50 {
        for last in (1..order.len()).rev() {
            order.swap(last, dice.below(last + 1));
        }
        let (one, other) = order.split_at(order.len() / 2);
        for (known, held) in [(one, other), (other, one)] {
            let reach = reach(known, LEVEL)?;
            covered += held.iter().filter(|error| **error <= reach).count();
            all += held.len();
        }
    }
    Some(covered as f64 / all.max(1) as f64)
}

fn add_noise(cell: &Cell, noise: &mut Sums) {
    if cell.repetitions.len() < 2 {
        return;
    }
    for index in 0..cell.repetitions.len() {
        let mut others = cell.clone();
        let one = others.repetitions.remove(index);
        noise.add(&as_measured(&one), &as_measured(&others.mean()));
    }
}

impl Score {
    /// Puts the errors into a calibration. The cells that they are of were measured, so they belong to
    /// its scope.
    pub fn update(&self, calibration: &mut Calibration, measured: &[Cell]) {
        calibration.residuals = self.residuals.clone();
        let is_scored = |cell: &&Cell| self.each.iter().any(|each| each.name == cell.name);
        let scored = measured.iter().filter(is_scored);
        scored.for_each(|cell| calibration.scope.add_cell(cell));
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// A plot of throughputs, as SVG.
    pub fn to_svg(&self) -> String {
        let ways = self.points.iter().rev();
        let series: Vec<plot::Series<'_>> = ways
            .map(|(name, points)| plot::Series {
                name,
                points: points.clone(),
            })
            .collect();
        plot::svg(
            "Throughput, predicted over measured",
            "operations a second",
            &series,
        )
    }

    /// The score as Markdown tables.
    pub fn to_text(&self) -> String {
        let mut lines = vec![
            format!("{} cells, {} of them not measured", self.cells + self.missing.len(), self.missing.len()),
            String::new(),
            "| predicted by | throughput | p95 | p99 | share within a limit | cells within 10 % | within 25 % |".into(),
            "| --- | --- | --- | --- | --- | --- | --- |".into(),
        ];
        let mut row = |name: &str, e: &Errors| {
            lines.push(format!(
                "| {name} | {:.1} % | {:.1} % | {:.1} % | {:.1} points ({} limits) | {:.0} % | {:.0} % |",
                e.throughput,
                e.p95,
                e.p99,
                e.share,
                e.share_limits,
                e.within_10 * 100.0,
                e.within_25 * 100.0
            ));
        };
        for (way, errors) in &self.by {
            row(way, errors);
        }
        if let Some(degraded) = &self.degraded {
            row("simulation, of cells without a zone", degraded);
        }
        if let Some(noise) = &self.noise {
            row("(noise of a repetition)", noise);
        }
        let covered = self.covered.iter();
        let covered: Vec<String> = covered
            .map(|(name, part)| format!("{name} {:.0} %", part * 100.0))
            .collect();
        lines.push(String::new());
        lines.push(format!(
            "90 % intervals of one half covered of the other: {}",
            covered.join(", ")
        ));
        lines.push(String::new());
        lines.extend(self.regret.iter().flat_map(Regret::lines));
        lines.push("| cell | measured | predicted | off | p95 measured | predicted | off | others' processor use |".into());
        lines.push("| --- | --- | --- | --- | --- | --- | --- | --- |".into());
        for it in &self.each {
            let short = crate::predict::short;
            let off = |i: usize| (it.predicted[i] / it.measured[i] - 1.0) * 100.0;
            let others = it
                .others
                .map_or("".into(), |part| format!("{:.0} %", part * 100.0));
            lines.push(format!(
                "| {} | {}/s | {}/s | {:+.0} % | {} ms | {} ms | {:+.0} % | {others} |",
                it.name,
                short(it.measured[0]),
                short(it.predicted[0]),
                off(0),
                short(it.measured[1]),
                short(it.predicted[1]),
                off(1)
            ));
        }
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibration::tests::example;
    use crate::plan::{calibration_cells, validation_cells};

    fn measured(predicted: &Predicted, factor: f64) -> Cell {
        let mut cell = crate::cell::tests::example();
        cell.name = predicted.planned.name.clone();
        let ours = &predicted.by[SIMULATION];
        let one = Measured {
            throughput: ours.throughput * factor,
            p50_ms: ours.p50_ms,
            p95_ms: ours.p95_ms / factor,
            p99_ms: ours.p99_ms,
            within: ours.within.clone(),
            ..Measured::default()
        };
        cell.repetitions = vec![one.clone(), one];
        cell
    }

    #[test]
    fn errors_are_those_that_were_put_in() {
        let mut known = crate::cell::tests::example();
        known.workload = calibration_cells("disk", 2)[0].workload.clone();
        known.repetitions.truncate(1);
        known.repetitions[0].within = known.workload.limits_ms.iter().map(|l| (*l, 0.5)).collect();
        let planned = validation_cells("disk", 2, 1, 20);
        let predictions = predict_all(planned, 1, &example(), &[known], 300).unwrap();
        assert_eq!(
            Predictions::parse(&predictions.to_text()).unwrap(),
            predictions
        );
        let cells: Vec<Cell> = predictions
            .cells
            .iter()
            .map(|p| measured(p, 1.25))
            .collect();
        let it = score(&predictions, &cells[..19]).unwrap();
        assert_eq!((it.cells, it.missing.len()), (19, 1));
        let ours = &it.by[SIMULATION];
        assert!((ours.throughput - 20.0).abs() < 1e-6 && (ours.p95 - 25.0).abs() < 1e-6);
        assert_eq!(
            (ours.share, ours.within_10, ours.within_25),
            (0.0, 0.0, 1.0)
        );
        assert!(it.by["mva"].throughput > 0.0 && it.by.len() == 4);
        assert_eq!(it.noise.as_ref().map(|noise| noise.throughput), Some(0.0));
        let mut calibration = example();
        it.update(&mut calibration, &cells);
        assert_eq!(calibration.residuals, it.residuals);
        let first = &cells[0];
        let outside = calibration.scope.outside(&first.cluster, &first.workload);
        assert_eq!(outside, Vec::<String>::new());
        // All errors are equal: each is within the interval of the others.
        assert_eq!(it.covered["share"], 1.0);
        assert_eq!(it.residuals.throughput.len(), 19);
        assert!(
            it.to_text().contains("| simulation | 20.0 % |"),
            "{}",
            it.to_text()
        );
        assert!(score(&predictions, &[]).is_err());
    }
}
