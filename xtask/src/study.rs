//! One workload on Cairn and on the real OpenStack Swift, in turn, and the published studies' plots
//! of both side by side. Only one store runs at a time; each repetition has stores of its own,
//! whose devices begin empty.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::process::Process;
use cairn_testkit::swift::{Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// A workload of any format; a name alone is one of `studies/workloads/`
    #[arg(default_value = "ceph-vs-swift")]
    workload: String,
    /// The workload's own scale: of a study `quick`, unless told; `published` takes as long as it
    /// did
    #[arg(long)]
    scale: Option<String>,
    /// Runs of each store, in turn; from two on they are compared
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,
    /// Folder for runs and report [default: target/xtask/study/NAME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Further options of `cairn lab run`
    #[arg(last = true)]
    run: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let workload = find(&options.workload)?;
    let name = workload.file_stem().unwrap_or_default().to_string_lossy();
    let out = match &options.out {
        Some(out) => out.clone(),
        None => workspace::results("study")?.join(&*name),
    };
    let (of_cairn, of_swift) = (out.join("cairn"), out.join("openstack-swift"));
    ensure!(
        !of_cairn.exists() && !of_swift.exists(),
        "{} holds runs already; name another folder with --out",
        out.display()
    );
    let venv = Venv::prepare()?;
    let binary = workspace::build_cairn()?;
    let scratch = workspace::scratch("study")?;
    for number in 1..=options.repetitions {
        let folder = |side: &Path| side.join(format!("{number:02}"));
        let on_cairn = || {
            let dir = scratch.path().join(format!("cairn-{number}"));
            let mut cairn = Cairn::create(&binary, &dir, None)?;
            cairn.start(Spread::OneProcess)?;
            let (port, processes) = (cairn.port(), cairn.processes());
            measure(
                options,
                &binary,
                &workload,
                port,
                processes,
                &folder(&of_cairn),
            )?;
            cairn.stop()
        };
        let on_swift = || {
            let dir = scratch.path().join(format!("swift-{number}"));
            let mut swift = Swift::create(&venv, &dir, Layout::default())?;
            swift.start()?;
            let (port, processes) = (swift.port, swift.processes());
            measure(
                options,
                &binary,
                &workload,
                port,
                processes,
                &folder(&of_swift),
            )?;
            swift.stop();
            Ok::<_, anyhow::Error>(())
        };
        // Alternate the order, so that a drift of the machine affects both alike.
        if number % 2 == 1 {
            on_cairn()?;
            on_swift()?;
        } else {
            on_swift()?;
            on_cairn()?;
        }
    }
    let mut report = Command::new(&binary);
    let named = |name: &str, folder: &Path| format!("{name}={}", folder.display());
    // One run of each side: more curves would hide one another, and all runs are compared below.
    let sides = [
        named("OpenStack Swift", &of_swift.join("01")),
        named("Cairn", &of_cairn.join("01")),
    ];
    report.args(["lab", "report"]).args(&sides);
    workspace::run(report.arg("--out").arg(out.join("report")))?;
    if options.repetitions > 1 {
        let mut compare = Command::new(&binary);
        compare.args(["lab", "compare"]).args([
            named("OpenStack Swift", &of_swift),
            named("Cairn", &of_cairn),
        ]);
        workspace::run(compare.arg("--out").arg(out.join("compare")))?;
    }
    println!("{}", out.join("report/report.html").display());
    Ok(())
}

/// Resolves the argument: a file, or a study of that name.
fn find(workload: &str) -> Result<PathBuf> {
    let path = PathBuf::from(workload);
    if path.is_file() {
        return path.canonicalize().context(path.display().to_string());
    }
    let study = workspace::root()
        .join("studies/workloads")
        .join(format!("{workload}.toml"));
    ensure!(
        study.is_file(),
        "{workload} is neither a file nor one of {}",
        workspace::root().join("studies/workloads").display()
    );
    Ok(study)
}

fn measure(
    options: &Options,
    binary: &Path,
    workload: &Path,
    port: u16,
    processes: &[Process],
    out: &Path,
) -> Result<()> {
    let parent = out.parent().context("a run has a folder around it")?;
    std::fs::create_dir_all(parent)?;
    let mut command = Command::new(binary);
    command.args(["lab", "run"]).arg(workload);
    let of_studies = workload.starts_with(workspace::root().join("studies/workloads"));
    if let Some(scale) = options.scale.as_deref().or(of_studies.then_some("quick")) {
        command.args(["--scale", scale]);
    }
    command.args(["--target", &format!("http://127.0.0.1:{port}/auth/v1.0")]);
    command
        .args(["--user", "test:tester"])
        .env("CAIRN_LAB_KEY", "testing");
    command.arg("--out").arg(out).args(&options.run);
    let status = command.status().context("starting the lab")?;
    // Exit code 1 is a failed run, which is shown beside the other.
    if !matches!(status.code(), Some(0 | 1)) || !out.join("run.json").is_file() {
        let tails: Vec<String> = processes.iter().map(Process::log_tail).collect();
        bail!("the run ended with {status}\n{}", tails.join("\n"));
    }
    Ok(())
}
