//! `cairn lab compare`: compares existing runs, or two targets that are measured now, alternately.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::compare::{
    Comparison, Gate, Repetitions, alternate, compare, figures, markdown, repetitions, section,
    text,
};
use crate::fail_if::EXIT_CODE;
use crate::plot::{png, svg};
use crate::record::State;
use crate::report::{Input, write_report};
use crate::results::{read_folder, write_whole};

#[derive(Debug, Args)]
pub struct CompareArguments {
    /// A run folder, a folder of repetitions, another tool's results; NAME=DIR calls it so; with
    /// --workload a target URL
    a: String,

    /// The other
    b: String,

    /// Measure now: run this workload against both targets in turn (A B, B A, …)
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,

    /// Number of runs of each
    #[arg(
        long,
        value_name = "N",
        default_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    repetitions: u32,

    /// Folder for runs, page and plots [default: lab-compare]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print Markdown instead of a table
    #[arg(long)]
    markdown: bool,

    /// Sides that differ by less than this are equivalent
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    within: f64,

    /// Exit with 3 when this holds; may be repeated
    ///
    /// worse (by throughput), not-equivalent (a throughput not shown to be --within), plans-differ,
    /// or a change of B against A beyond doubt: p99>10%, 'read throughput<-5%', 'main/read
    /// failed>1%'. Too few repetitions to tell hold, too.
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Gate>,

    /// Options of `cairn lab run` for A alone, as one word each: --for-a=--user=a:b
    #[arg(long = "for-a", value_name = "OPTION", allow_hyphen_values = true)]
    for_a: Vec<String>,

    /// The same for B
    #[arg(long = "for-b", value_name = "OPTION", allow_hyphen_values = true)]
    for_b: Vec<String>,

    /// Options of `cairn lab run` for both, behind `--`
    #[arg(last = true, value_name = "OPTION")]
    for_both: Vec<String>,
}

/// Parses `5` or `5%` as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a percentage from 0 to 100 was expected".into()),
    }
}

pub(super) fn run(arguments: &CompareArguments) -> Result<ExitCode> {
    let measured = arguments.workload.is_some();
    let out = match (&arguments.out, measured) {
        (Some(out), _) => Some(out.clone()),
        (None, true) => Some(PathBuf::from("lab-compare")),
        (None, false) => None,
    };
    let (a, b) = match (&arguments.workload, &out) {
        (Some(workload), Some(out)) => measure(arguments, workload, out)?,
        _ => {
            if !arguments.for_a.is_empty()
                || !arguments.for_b.is_empty()
                || !arguments.for_both.is_empty()
            {
                bail!("options of `cairn lab run` need --workload FILE and two target URLs");
            }
            let side = |text: &str| {
                if text.contains("://") {
                    bail!("{text} is a target: name the workload to run with --workload FILE");
                }
                Ok(repetitions(&Input::parse(text))?)
            };
            (side(&arguments.a)?, side(&arguments.b)?)
        }
    };
    let comparison = compare(&a, &b, arguments.within)?;
    if let Some(out) = &out {
        write_files(out, &a, &b, &comparison)?;
    }
    let mut stdout = std::io::stdout().lock();
    let words = if arguments.markdown {
        markdown(&comparison)
    } else {
        text(&comparison)
    };
    write!(stdout, "{words}")?;
    if let Some(out) = out {
        writeln!(stdout, "\n{}", out.join("report.html").display())?;
    }
    let gates = arguments.fail_if.iter();
    let broken: Vec<String> = gates.flat_map(|gate| gate.broken(&comparison)).collect();
    for sentence in &broken {
        writeln!(stdout, "FAILED: {sentence}")?;
    }
    Ok(match broken.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_CODE),
    })
}

/// Measures alternately, each run in a process of its own, as if started manually: no state in
/// memory is carried over to the next.
fn measure(
    arguments: &CompareArguments,
    workload: &Path,
    out: &Path,
) -> Result<(Repetitions, Repetitions)> {
    let program = std::env::current_exe().context("where this program is")?;
    for (side, number) in alternate(arguments.repetitions) {
        let folder = out.join(format!("{}-{number:02}", side.letter()));
        let (target, own) = match side {
            crate::compare::Side::A => (&arguments.a, &arguments.for_a),
            crate::compare::Side::B => (&arguments.b, &arguments.for_b),
        };
        let mut command = Command::new(&program);
        command.args(["lab", "run"]).arg(workload);
        command.args(["--target", target]).arg("--out").arg(&folder);
        command.args(&arguments.for_both).args(own);
        let status = command
            .status()
            .with_context(|| format!("cannot start {}", program.display()))?;
        // 1 is a failed run, 3 one in which a condition holds: shown and counted, not dropped.
        if !matches!(status.code(), Some(0 | 1 | 3)) || !folder.join("run.json").is_file() {
            bail!(
                "{} of {target} could not be run: {status}",
                workload.display()
            );
        }
        let run = read_folder(&folder)?;
        let mut works = run.stages.iter().flat_map(|stage| &stage.works);
        if run.meta.state == State::Failed && works.all(|work| work.operations.is_empty()) {
            bail!("{target} could not be measured, as told above; nothing is compared");
        }
    }
    let side = |letter: char, name: &str| -> Result<Repetitions> {
        let mut side = Repetitions {
            name: name.to_owned(),
            runs: Vec::new(),
        };
        for number in 1..=arguments.repetitions {
            let folder = out.join(format!("{letter}-{number:02}"));
            let input = Input {
                label: None,
                path: folder,
            };
            side.runs.extend(repetitions(&input)?.runs);
        }
        Ok(side)
    };
    Ok((side('a', &arguments.a)?, side('b', &arguments.b)?))
}

fn write_files(
    out: &Path,
    a: &Repetitions,
    b: &Repetitions,
    comparison: &Comparison,
) -> Result<()> {
    let mut runs = Vec::new();
    for (letter, side) in [('A', a), ('B', b)] {
        for (index, run) in side.runs.iter().enumerate() {
            let mut run = run.clone();
            run.name = format!("{letter}{}: {}", index + 1, side.name);
            runs.push(run);
        }
    }
    write_report(&runs, Some(&section(comparison)), out, true)?;
    write_whole(&out.join("compare.md"), markdown(comparison).as_bytes())?;
    for (name, scene) in figures(comparison) {
        let plots = out.join("plots");
        write_whole(
            &plots.join(format!("compare-{name}.svg")),
            svg(&scene).as_bytes(),
        )?;
        write_whole(&plots.join(format!("compare-{name}.png")), &png(&scene)?)?;
    }
    Ok(())
}
