//! `cairn advise measure` and `fit`: calibration of a host.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cairn_advise::calibration::{Calibration, Medium};
use cairn_advise::cell::Cell;
use cairn_advise::fit;
use cairn_advise::plan::{calibration_cells, emulated, quick_cells};
use cairn_advise::scope::Scope;
use clap::Args;

use super::cells::{Bench, read_all};
use super::device::{self, Effort};
use super::load::Times;
use super::{print_line, read, write};

/// Operations of each simulated cell while demands are fitted.
const OPERATIONS: u64 = 4000;

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// The cairn whose store and lab are measured [default: this program]
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,

    /// Stores are made below this folder, on the disk to be measured, and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,

    /// Seconds that count of each cell, of this host also where time is dilated
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0)]
    seconds: f64,

    /// Begin no further repetition after so many seconds; the same command goes on
    #[arg(long, value_name = "SECONDS")]
    at_most: Option<f64>,
}

impl BenchArguments {
    pub(super) fn bench(&self) -> Result<Bench> {
        let program = match &self.program {
            Some(program) => std::path::absolute(program).context("--program: no usable path")?,
            None => std::env::current_exe().context("finding this program")?,
        };
        let data = std::path::absolute(&self.data).context("--data: no usable path")?;
        anyhow::ensure!(
            (1.0..=3600.0).contains(&self.seconds),
            "--seconds {}: give 1 to 3600",
            self.seconds
        );
        let at_most = self.at_most.map(|seconds| {
            let within = (0.0..=1e7).contains(&seconds);
            anyhow::ensure!(within, "--at-most {seconds}: give 0 to 10000000");
            Ok(Duration::from_secs_f64(seconds))
        });
        let at_most = at_most.transpose()?;
        Ok(Bench {
            until: at_most.map(|at_most| Instant::now() + at_most),
            program,
            data,
            times: Times {
                ramp: (self.seconds / 4.0).min(5.0),
                counted: self.seconds,
            },
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct MeasureArguments {
    #[command(flatten)]
    bench: BenchArguments,

    /// Two minutes instead of ten: four cells, and less of the disk. Erasure codes and calls between
    /// processes are then not measured
    #[arg(long)]
    quick: bool,

    /// The calibration's file
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    out: PathBuf,

    /// Measured cells go there; those that are there are not measured again
    #[arg(long, value_name = "DIR", default_value = "calibration-cells")]
    cells: PathBuf,

    /// The name of the disk in the calibration, by which clusters refer to it
    #[arg(long, value_name = "NAME", default_value = "disk")]
    medium: String,

    /// On emulated disks and networks with dilated time, as root: the medium, and the store on
    /// clusters of several nodes. Only cells that pass the gate of emulation count
    #[arg(long, conflicts_with_all = ["quick", "medium"])]
    emulated: bool,

    /// How often each cell is measured [default: 3, with --quick 1]
    #[arg(long, value_name = "N")]
    repetitions: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct FitArguments {
    /// Folders of cells (docs/advise.md has the schema)
    #[arg(required = true, value_name = "DIR")]
    cells: Vec<PathBuf>,

    /// A calibration whose media are taken; its other figures are made anew
    #[arg(long, value_name = "FILE")]
    media: PathBuf,

    /// Keep its other figures as well, and make its scope anew: the ranges that the cells have measured
    #[arg(long)]
    only_scope: bool,

    /// The new calibration's file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn measure(arguments: &MeasureArguments) -> Result<()> {
    let bench = arguments.bench.bench()?;
    if arguments.emulated {
        let planned = emulated::calibration_cells();
        let repetitions = arguments.repetitions.unwrap_or(1).clamp(1, 100);
        let measured = bench.measure(&planned, repetitions, &arguments.cells)?;
        return fit_and_write(&measured.cells, BTreeMap::new(), &arguments.out);
    }
    let effort = match arguments.quick {
        true => Effort {
            file_bytes: 128 << 20,
            reads: 200,
            syncs: 8,
        },
        false => Effort {
            file_bytes: 1 << 30,
            reads: 1000,
            syncs: 30,
        },
    };
    print_line("the disk:");
    let folder = bench
        .data
        .join(format!("advise-disk-{}", std::process::id()));
    let medium = device::measure(&folder, effort, &mut |line| {
        print_line(&format!("  {line}"))
    })?;
    let media = BTreeMap::from([(arguments.medium.clone(), medium)]);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let planned = match arguments.quick {
        true => quick_cells(&arguments.medium, cores),
        false => calibration_cells(&arguments.medium, cores),
    };
    print_line("cells:");
    let repetitions = arguments
        .repetitions
        .unwrap_or(if arguments.quick { 1 } else { 3 });
    let measured = bench.measure(&planned, repetitions.clamp(1, 100), &arguments.cells)?;
    fit_and_write(&measured.cells, media, &arguments.out)
}

pub(super) fn fit(arguments: &FitArguments) -> Result<()> {
    let known = read(&arguments.media, Calibration::parse)?;
    let mut cells = Vec::new();
    for folder in &arguments.cells {
        cells.extend(read_all(folder)?);
    }
    if arguments.only_scope {
        let scoped = with_scope_of(known, &cells)?;
        write(&arguments.out, &scoped.to_text())?;
        print_line(&format!("{}", arguments.out.display()));
        return Ok(());
    }
    // The fit scales syncs; media scaled before are its starting point.
    fit_and_write(&cells, known.medium, &arguments.out)
}

/// The calibration with the scope of these cells, and the media of their emulation.
fn with_scope_of(known: Calibration, cells: &[Cell]) -> Result<Calibration> {
    let is_measured = |cell: &&Cell| cell.accepted && !cell.repetitions.is_empty();
    let accepted: Vec<&Cell> = cells.iter().filter(is_measured).collect();
    anyhow::ensure!(
        !accepted.is_empty(),
        "none of {} cells was accepted: name folders of cells that were",
        cells.len()
    );
    let mut scope = Scope::default();
    let mut scoped = known;
    for cell in accepted {
        scope.add_cell(cell);
        scoped = scoped.with_media(cell.emulation.as_ref());
    }
    Ok(Calibration { scope, ..scoped })
}

fn fit_and_write(
    cells: &[Cell],
    media: BTreeMap<String, Medium>,
    out: &std::path::Path,
) -> Result<()> {
    let missing = cells.iter().filter(|cell| cell.repetitions.is_empty());
    let missing: Vec<&str> = missing.map(|cell| cell.name.as_str()).collect();
    if !missing.is_empty() {
        print_line(&format!(
            "{} of {} cells have no repetition that counts, and the calibration is made without \
             them: {}; the same command measures them again",
            missing.len(),
            cells.len(),
            missing.join(", ")
        ));
    }
    print_line("fitting:");
    let made_on = format!("{} cells of {}", cells.len() - missing.len(), host());
    let (calibration, off) = fit::fit(cells, media, made_on, OPERATIONS)?;
    for off in off {
        print_line(&format!(
            "  {}: measured over predicted: throughput {:.2}, p50 {:.2}, p95 {:.2}",
            off.cell, off.throughput, off.p50, off.p95
        ));
    }
    write(out, &calibration.to_text())?;
    print_line(&format!("{}", out.display()));
    Ok(())
}

/// Description of the host, without its name.
fn host() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("an unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{cores} cores of {model}, cairn {}",
        env!("CARGO_PKG_VERSION")
    )
}
