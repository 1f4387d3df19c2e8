//! `cairn advise`: command line and files of the crate `advise`, and the measurements that
//! calibrate it.

mod cells;
mod device;
mod emulated;
mod load;
mod measure;
mod processor;
mod store;
mod validate;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use cairn_advise::answer::{Limits, Question, answer};
use cairn_advise::calibration::Calibration;
use cairn_advise::catalogue::Catalogue;
use cairn_advise::cluster::Cluster;
use cairn_advise::page;
use cairn_advise::predict::{PredictOptions, predict};
use cairn_advise::simulate::Options;
use cairn_advise::workload::Workload;
use cairn_lab::results::write_whole;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum AdviseCommand {
    /// Measure this host: its disk, and what a store on it costs; leaves a calibration
    ///
    /// About ten minutes (--quick: two). Starts stores of its own on loopback, in child processes,
    /// and loads them by cairn lab run. Nothing else should run meanwhile.
    Measure(measure::MeasureArguments),
    /// Make a calibration of cells that were measured before, here or by a study
    Fit(measure::FitArguments),
    /// Predict what a cluster will do under a workload
    Predict(PredictArguments),
    /// The cheapest cluster for a capacity and a throughput
    LeastCost(QuestionArguments),
    /// The most capacity for a throughput and a budget
    MostCapacity(QuestionArguments),
    /// The most throughput for a capacity and a budget
    MostThroughput(QuestionArguments),
    /// Hold predictions against measurements
    #[command(subcommand)]
    Validate(validate::ValidateCommand),
}

#[derive(Debug, Args)]
pub(crate) struct PredictArguments {
    /// The cluster (TOML)
    cluster: PathBuf,

    /// The workload (TOML)
    workload: PathBuf,

    /// The calibration that cairn advise measure has made
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    calibration: PathBuf,

    /// Also without this zone, and while it is rebuilt
    #[arg(long, value_name = "rREGIONzZONE", value_parser = parse_zone)]
    lost_zone: Option<(u32, u32)>,

    /// Predict outside of what was measured, too, without intervals
    #[arg(long)]
    extrapolate: bool,

    /// The same seed gives the same prediction
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// One JSON object instead of lines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct QuestionArguments {
    /// Kinds of nodes and disks with prices (TOML)
    #[arg(long, value_name = "FILE")]
    catalogue: PathBuf,

    /// The workload (TOML)
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,

    /// Budget, capacity, throughput and other limits (TOML)
    #[arg(long, value_name = "FILE")]
    limits: PathBuf,

    /// The calibration that cairn advise measure has made
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    calibration: PathBuf,

    /// Predict outside of what was measured, too, without intervals
    #[arg(long)]
    extrapolate: bool,

    /// Leave advice.html, advice.json, front.svg and cluster.toml there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn parse_zone(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "expected a region and a zone, such as r1z2".to_owned();
    let (region, zone) = text
        .strip_prefix('r')
        .and_then(|t| t.split_once('z'))
        .ok_or_else(wrong)?;
    Ok((
        region.parse().map_err(|_| wrong())?,
        zone.parse().map_err(|_| wrong())?,
    ))
}

pub(crate) fn run(command: AdviseCommand) -> Result<ExitCode> {
    match command {
        AdviseCommand::Measure(arguments) => measure::measure(&arguments)?,
        AdviseCommand::Fit(arguments) => measure::fit(&arguments)?,
        AdviseCommand::Predict(arguments) => run_predict(&arguments)?,
        AdviseCommand::LeastCost(arguments) => ask(Question::LeastCost, &arguments)?,
        AdviseCommand::MostCapacity(arguments) => ask(Question::MostCapacity, &arguments)?,
        AdviseCommand::MostThroughput(arguments) => ask(Question::MostThroughput, &arguments)?,
        AdviseCommand::Validate(command) => return validate::run(command),
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a file; an error names the file.
fn read<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, cairn_advise::AdviseError>,
) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Reads a calibration; where there is none the error says where one comes from.
fn read_calibration(path: &Path) -> Result<Calibration> {
    if !path.exists() {
        bail!(
            "--calibration {}: there is no such file; cairn advise measure makes one",
            path.display()
        );
    }
    read(path, Calibration::parse)
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    Ok(write_whole(path, text.as_bytes())?)
}

fn print_line(text: &str) {
    // Standard output may be closed.
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn run_predict(arguments: &PredictArguments) -> Result<()> {
    let cluster = read(&arguments.cluster, Cluster::parse)?;
    let workload = read(&arguments.workload, Workload::parse)?;
    let calibration = read_calibration(&arguments.calibration)?;
    let asked = PredictOptions {
        extrapolate: arguments.extrapolate,
        lost_zone: arguments.lost_zone,
        options: Options {
            seed: arguments.seed,
            ..Options::default()
        },
    };
    let prediction = predict(&cluster, &workload, &calibration, &asked)?;
    match arguments.json {
        true => print_line(&prediction.to_json()),
        false => print_line(prediction.to_text().trim_end()),
    }
    Ok(())
}

fn ask(question: Question, arguments: &QuestionArguments) -> Result<()> {
    let catalogue = read(&arguments.catalogue, Catalogue::parse)?;
    let workload = read(&arguments.workload, Workload::parse)?;
    let limits = read(&arguments.limits, Limits::parse)?;
    let calibration = read_calibration(&arguments.calibration)?;
    let extrapolate = arguments.extrapolate;
    let answer = answer(
        question,
        &catalogue,
        &workload,
        &limits,
        &calibration,
        extrapolate,
    )?;
    print_line(answer.to_text().trim_end());
    let Some(out) = &arguments.out else {
        return Ok(());
    };
    write(&out.join("advice.html"), &page::html(&answer))?;
    write(&out.join("advice.json"), &answer.to_json())?;
    write(&out.join("front.svg"), &page::svg(&answer))?;
    if let Some(pick) = answer.pick.and_then(|pick| answer.simulated.get(pick)) {
        write(&out.join("cluster.toml"), &pick.cluster.to_text())?;
    }
    print_line(&format!("{}", out.join("advice.html").display()));
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_read() {
        assert_eq!(parse_zone("r1z20"), Ok((1, 20)));
        for wrong in ["", "z1", "r1", "r1zx", "1z2"] {
            assert!(parse_zone(wrong).unwrap_err().contains("r1z2"), "{wrong}");
        }
    }
}
