//! Commands of `cairn study`.

use std::io::{BufReader, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use crate::cell;
use crate::check::{self, CheckArguments};
use crate::file::{self, Choices, Study};
use crate::run::{self, Options};

/// The commands of `cairn study`.
#[derive(Debug, Subcommand)]
pub enum StudyCommand {
    /// Measure a study's cells that are missing, and write its page
    ///
    /// A cell is a cluster, a workload and a repetition. Each is measured on a cluster of its own,
    /// made by this program on this host, and leaves a folder OUT/cells/NAME with cell.json. What a
    /// call that was ended or killed has left is gone on with. Exit codes: 0 all cells are there;
    /// 1 an error; 3 the time of --at-most ran out.
    Run(RunArguments),
    /// Tell a study's clusters, workloads and cells, without measuring any
    Plan(StudyArguments),
    /// Provision one of a study's clusters, and keep it until the input ends or Ctrl-C
    ///
    /// Prints the addresses of its proxies; the user is test:tester, the key testing.
    Up(UpArguments),
    /// Write a study's page and plots again from the cells that are there
    Report(RunArguments),
    /// Tell how true emulated disks and networks are on this host
    Check(CheckArguments),
    /// The process that has emulated hardware, for its parent
    #[command(hide = true)]
    Emulate,
}

#[derive(Debug, Args)]
pub struct StudyArguments {
    /// The study file; docs/studies.md describes it
    file: PathBuf,

    /// At this scale of the study ([scales.NAME])
    #[arg(long, value_name = "NAME")]
    scale: Option<String>,

    /// A parameter of the study; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = name_value)]
    parameters: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    study: StudyArguments,

    /// The folder of results; made where it is not there [default: study-NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// The folder of disks and devices while cells are measured [default: in memory]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,

    /// Begin no further cell after so many seconds
    #[arg(long, value_name = "SECONDS")]
    at_most: Option<f64>,
}

#[derive(Debug, Args)]
pub struct UpArguments {
    #[command(flatten)]
    study: RunArguments,

    /// A cluster's name, as `cairn study plan` tells them
    #[arg(long, value_name = "NAME")]
    cluster: String,
}

fn name_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE was expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs a command; the caller prints its errors.
///
/// # Errors
/// The study file or a workload is invalid, this host cannot emulate or measure a cell, or results
/// cannot be read or written.
pub fn run(command: StudyCommand) -> Result<ExitCode> {
    match command {
        StudyCommand::Run(arguments) => run_study(&arguments),
        StudyCommand::Plan(arguments) => plan(&read(&arguments)?),
        StudyCommand::Report(arguments) => {
            let study = read(&arguments.study)?;
            let path = run::report(&study, &out(&arguments, &study))?;
            println!("{}", path.display());
            Ok(ExitCode::SUCCESS)
        }
        StudyCommand::Up(arguments) => up(&arguments),
        StudyCommand::Check(arguments) => check::run(&arguments),
        StudyCommand::Emulate => {
            let mut input = BufReader::new(stdin());
            cairn_emulate::world::serve(&mut input, &mut stdout())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read(arguments: &StudyArguments) -> Result<Study> {
    let choices = Choices {
        scale: arguments.scale.clone(),
        parameters: arguments.parameters.iter().cloned().collect(),
    };
    Ok(file::read(&arguments.file, &choices)?)
}

fn out(arguments: &RunArguments, study: &Study) -> PathBuf {
    let default = || PathBuf::from(format!("study-{}", study.name));
    arguments.out.clone().unwrap_or_else(default)
}

fn options(arguments: &RunArguments, study: &Study) -> Result<Options> {
    let out = out(arguments, study);
    std::fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    Ok(Options {
        // An absolute path, since conf files contain it, and servers run in folders of their own.
        out: std::fs::canonicalize(&out)?,
        program: std::env::current_exe().context("finding this program")?,
        scratch: arguments.scratch.clone(),
        at_most_s: arguments.at_most,
    })
}

fn up(arguments: &UpArguments) -> Result<ExitCode> {
    let study = read(&arguments.study.study)?;
    let options = options(&arguments.study, &study)?;
    run::up(&study, &arguments.cluster, &options, |proxies| {
        for proxy in proxies {
            println!("http://{proxy}/auth/v1.0");
        }
        // Waits for the end of the input, whatever is typed.
        let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
    })?;
    Ok(ExitCode::SUCCESS)
}

fn run_study(arguments: &RunArguments) -> Result<ExitCode> {
    let study = read(&arguments.study)?;
    let options = options(arguments, &study)?;
    let is_complete = run::run(&study, &options)?;
    println!("{}", options.out.join("report.html").display());
    Ok(match is_complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(3),
    })
}

fn plan(study: &Study) -> Result<ExitCode> {
    let pairs = cell::pairs(study)?;
    println!("{}: {}", study.name, study.title);
    for cluster in &study.clusters {
        let devices: usize = cluster.nodes.iter().map(|node| node.devices.len()).sum();
        let emulated = match cluster.is_emulated() {
            true => "emulated",
            false => "folders",
        };
        println!(
            "cluster {}: {} nodes, {devices} devices, {} replicas, {emulated}",
            cluster.name,
            cluster.nodes.len(),
            cluster.replicas
        );
        if let Some(words) = crate::cluster::impossible(cluster) {
            println!("  not here: {words}");
        }
    }
    for workload in &study.workloads {
        println!("workload {}: {}", workload.name, workload.file);
    }
    for (pair, of) in pairs.iter().enumerate() {
        let first = cell::cell(study, &pairs, pair, 1)?;
        println!(
            "cell {}: {} × {}",
            first.id, of.cluster.name, of.load.workload.name
        );
    }
    let (least, most) = (study.repetitions.least, study.repetitions.most);
    println!("{} cells, {least} to {most} repetitions each", pairs.len());
    Ok(ExitCode::SUCCESS)
}
