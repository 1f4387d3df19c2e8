//! `cairn lab report`: writes the report of runs.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::report::{Input, ReportOptions, report, summary};

#[derive(Debug, Args)]
pub struct ReportArguments {
    /// Run folders, folders of run folders, results of COSBench, ssbench or swift-bench; NAME=DIR
    /// calls them so
    #[arg(required = true, value_name = "[NAME=]DIR")]
    inputs: Vec<String>,

    /// Folder for the report [default: the run's own folder, or lab-report for several]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Write the plots as SVG only
    #[arg(long)]
    no_png: bool,

    /// Print the runs as JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &ReportArguments) -> Result<ExitCode> {
    let done = report(&ReportOptions {
        inputs: arguments
            .inputs
            .iter()
            .map(|text| Input::parse(text))
            .collect(),
        out: arguments.out.clone(),
        png: !arguments.no_png,
    })?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &done.runs)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", summary(&done.runs))?;
        writeln!(out, "{} ({} plots)", done.page.display(), done.pictures)?;
    }
    Ok(ExitCode::SUCCESS)
}
