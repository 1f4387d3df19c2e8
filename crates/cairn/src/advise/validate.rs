//! `cairn advise validate`: predictions are recorded first, then cells are measured, then both are
//! compared.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use cairn_advise::calibration::Calibration;
use cairn_advise::cell::Cell;
use cairn_advise::plan::{Planned, emulated, validation_cells};
use cairn_advise::regret;
use cairn_advise::score::{Predictions, predict_all, score};
use clap::{Args, Subcommand};

use super::cells::read_all;
use super::measure::BenchArguments;
use super::{print_line, read, read_calibration, write};

#[derive(Debug, Subcommand)]
pub(crate) enum ValidateCommand {
    /// Draw cells by a seed, and write down what is predicted of them
    Predict(PredictArguments),
    /// Measure the cells of a file of predictions, round after round
    ///
    /// Repetitions that a gate rejects do not count, and are told with the reason. Exit codes: 0 all
    /// cells are measured; 1 an error; 3 some are missing, which the same command measures.
    Run(RunArguments),
    /// Hold the predictions against the cells, beside simpler ways to predict
    Score(ScoreArguments),
}

#[derive(Debug, Args)]
pub(crate) struct PredictArguments {
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    calibration: PathBuf,

    /// The cells of the calibration, for predictions by nearest neighbour and linear scaling
    #[arg(long, value_name = "DIR", default_value = "calibration-cells")]
    calibration_cells: PathBuf,

    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=1000))]
    count: u64,

    /// Draw cells on emulated hardware: several nodes, media, round trips
    #[arg(long)]
    emulated: bool,

    /// Draw emulated cells for so many choices among clusters with prices, four clusters a workload
    #[arg(long, value_name = "N", requires = "emulated", conflicts_with = "of", value_parser = clap::value_parser!(u64).range(1..=1000))]
    choices: Option<u64>,

    /// Predict the cells of this folder (a study's) instead of drawing some
    #[arg(long, value_name = "DIR")]
    of: Option<PathBuf>,

    /// Operations that each cell's simulation counts
    #[arg(long, value_name = "N", default_value_t = 12_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    operations: u64,

    #[arg(long, value_name = "FILE", default_value = "predictions.json")]
    out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The file that cairn advise validate predict has written
    #[arg(value_name = "PREDICTIONS")]
    predictions: PathBuf,

    #[command(flatten)]
    bench: BenchArguments,

    /// Measured cells go there; repetitions that are there are not measured again
    #[arg(long, value_name = "DIR", default_value = "validation-cells")]
    cells: PathBuf,

    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    repetitions: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ScoreArguments {
    /// The file that cairn advise validate predict has written
    #[arg(value_name = "PREDICTIONS")]
    predictions: PathBuf,

    /// Measured cells; of several folders the first counts that has an accepted cell of the name
    #[arg(long, value_name = "DIR", default_value = "validation-cells")]
    cells: Vec<PathBuf>,

    /// Count repetitions beside other programs, too
    #[arg(long)]
    beside_others: bool,

    /// Put the errors and the ranges of the cells into this calibration: its predictions have intervals
    /// from then on
    #[arg(long, value_name = "FILE")]
    update: Option<PathBuf>,

    /// Leave score.md and score.json there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Exit code of a run that has not measured all cells.
const INCOMPLETE: u8 = 3;

pub(super) fn run(command: ValidateCommand) -> Result<ExitCode> {
    match command {
        ValidateCommand::Predict(arguments) => predict(&arguments)?,
        ValidateCommand::Run(arguments) => {
            let predictions = read(&arguments.predictions, Predictions::parse)?;
            let planned: Vec<Planned> = predictions
                .cells
                .into_iter()
                .map(|cell| cell.planned)
                .collect();
            let bench = arguments.bench.bench()?;
            let repetitions = arguments.repetitions as usize;
            let outcome = bench.measure(&planned, repetitions, &arguments.cells)?;
            outcome.lines().iter().for_each(|line| print_line(line));
            if !outcome.missing.is_empty() {
                return Ok(ExitCode::from(INCOMPLETE));
            }
        }
        ValidateCommand::Score(arguments) => hold(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Predicts with the medium and cores of the calibration's own cells.
fn predict(arguments: &PredictArguments) -> Result<()> {
    let calibration = read_calibration(&arguments.calibration)?;
    let calibrated = read_all(&arguments.calibration_cells)?;
    let (seed, count) = (arguments.seed, arguments.count as usize);
    let planned = match &arguments.of {
        Some(folder) => of_cells(folder)?,
        None if arguments.choices.is_some() => emulated::choice_cells(seed, count),
        None if arguments.emulated => emulated::validation_cells(seed, count),
        None => {
            let medium = calibration
                .medium
                .keys()
                .next()
                .map_or("disk", String::as_str);
            let cores = calibrated
                .first()
                .and_then(|cell| cell.cluster.node.first());
            let cores = cores.map_or(1, |node| node.cores);
            validation_cells(medium, cores, seed, count)
        }
    };
    let mut predictions = predict_all(
        planned,
        seed,
        &calibration,
        &calibrated,
        arguments.operations,
    )?;
    if let Some(choices) = arguments.choices {
        predictions.choices = regret::draw(&predictions.candidates(), seed, choices as usize);
        if predictions.choices.is_empty() {
            bail!(
                "--count {count}: a choice needs two clusters at least; four have a workload in common"
            );
        }
    }
    write(&arguments.out, &predictions.to_text())?;
    print_line(&format!(
        "{} cells in {}",
        predictions.cells.len(),
        arguments.out.display()
    ));
    Ok(())
}

fn of_cells(folder: &Path) -> Result<Vec<Planned>> {
    let planned = |cell: Cell| Planned {
        name: cell.name,
        emulation: cell.emulation,
        lost_zone: cell.lost_zone,
        cluster: cell.cluster,
        workload: cell.workload,
    };
    Ok(read_all(folder)?.into_iter().map(planned).collect())
}

/// The measured cells of all folders, one of each name.
fn measured(arguments: &ScoreArguments) -> Result<Vec<Cell>> {
    let mut cells: Vec<Cell> = Vec::new();
    for folder in &arguments.cells {
        for mut cell in read_all(folder)? {
            if arguments.beside_others {
                let all = cell.repetitions.iter_mut();
                all.for_each(|repetition| repetition.others = None);
            }
            let same = |known: &Cell| known.name == cell.name;
            if !cells
                .iter()
                .any(|known| same(known) && known.quiet().is_some())
            {
                cells.retain(|known| !same(known));
                cells.push(cell);
            }
        }
    }
    Ok(cells)
}

fn hold(arguments: &ScoreArguments) -> Result<()> {
    let predictions = read(&arguments.predictions, Predictions::parse)?;
    let cells = measured(arguments)?;
    let score = score(&predictions, &cells)?;
    print_line(score.to_text().trim_end());
    if let Some(out) = &arguments.out {
        write(&out.join("score.md"), &score.to_text())?;
        write(&out.join("score.json"), &score.to_json())?;
        write(&out.join("score.svg"), &score.to_svg())?;
    }
    if let Some(path) = &arguments.update {
        let mut calibration = read(path, Calibration::parse)?;
        score.update(&mut calibration, &cells);
        write(path, &calibration.to_text())?;
    }
    Ok(())
}
