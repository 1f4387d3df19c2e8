//! Given workload files. Each runs unchanged and completely if that takes less than three minutes,
//! otherwise scaled down, through a counting relay: the store's requests must match the file, and
//! the lab's own results. And each reports in one line that its store is unreachable.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::counted;
use super::expected::{self, Amount, Expected, Kind, Scale};
use super::harness::{LOGIN, Lab, one_line};
use super::relay::Relay;
use cairn_testkit::process::free_ports;
use cairn_testkit::report::Report;

/// Every file below a folder that `cairn lab run` recognises as a workload.
pub(super) fn run(report: &mut Report, lab: &Lab, folder: &Path) -> Result<()> {
    let mut all = Vec::new();
    collect(folder, &mut all)?;
    all.sort();
    if all.is_empty() {
        bail!("no workload below {}", folder.display());
    }
    for file in all {
        let name = file.strip_prefix(folder).unwrap_or(&file).display();
        report.tell(&format!("{name} is what the store is asked"), || {
            unchanged(lab, &file)
        });
        report.check(&format!("{name} without a store"), || {
            let port = free_ports(1)?[0];
            let target = format!("http://127.0.0.1:{port}");
            let run = lab.run(&file, &[&["--target", &target], &LOGIN[..]].concat())?;
            one_line(&run, &["refused", "--target"])
        });
    }
    Ok(())
}

fn collect(folder: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            collect(&path, all)?;
        } else if matches!(extension, Some("xml" | "scenario" | "conf")) {
            all.push(path);
        }
    }
    Ok(())
}

/// Runs a file against a store of its kind, or Swift if that kind is not available, with counting;
/// returns the scale and the counts.
fn unchanged(lab: &Lab, file: &Path) -> Result<String> {
    let expected = expected::read(file, &std::fs::read_to_string(file)?)?;
    let scale = expected.scale();
    let factors = [scale.time, scale.ops, scale.size].map(|factor| factor.to_string());
    let scales = ["--time-scale", "--ops-scale", "--size-scale"];
    let scales = scales
        .iter()
        .zip(&factors)
        .flat_map(|(n, f)| [*n, f.as_str()]);
    let scales: Vec<&str> = scales.collect();
    if expected.storage == "mock" {
        let run = lab.run(file, &["--target", "noop:", "--time-scale", "0.02"])?;
        ensure!(run.meta["state"] == "completed", "{}", run.shown);
    }
    let relay = match (expected.storage.as_str(), lab.s3) {
        ("s3", Some(port)) => Relay::start(port)?,
        _ => Relay::start(lab.port)?,
    };
    let target = match expected.storage.as_str() {
        "s3" if lab.s3.is_some() => format!("s3+http://127.0.0.1:{}", relay.port),
        _ => format!("swift+http://127.0.0.1:{}", relay.port),
    };
    let mut arguments = vec!["--target", &target];
    arguments.extend(LOGIN);
    arguments.extend(scales);
    let run = lab.run(file, &arguments)?;
    // Reads of objects that were never written fail, and the lab reports that.
    let whole = expected.prepares();
    ensure!(
        run.meta["state"] == if whole { "completed" } else { "failed" },
        "it {}: {}",
        run.meta["state"],
        run.shown
    );
    let words = counted::compare(&expected.scaled(scale), &run, &relay.take())?;
    Ok(format!("{}: {words}", told(scale)))
}

fn told(scale: Scale) -> String {
    let factors = [
        ("times", scale.time),
        ("operations", scale.ops),
        ("sizes", scale.size),
    ];
    let cut = factors.iter().filter(|(_, factor)| *factor != 1.0);
    let cut: Vec<String> = cut.map(|(what, by)| format!("{what} × {by}")).collect();
    match cut.is_empty() {
        true => "whole".to_owned(),
        false => cut.join(", "),
    }
}

impl Expected {
    /// Has everything that the run reads been written before?
    fn prepares(&self) -> bool {
        let operations = || {
            let works = self.stages.iter().flat_map(|stage| &stage.works);
            works.flat_map(|work| &work.operations)
        };
        let fills = |kind: Kind| matches!(kind, Kind::Write | Kind::Create);
        let filled = operations().any(|o| fills(o.kind) && !matches!(o.amount, Amount::Share(_)));
        let pool = operations().any(|o| o.kind == Kind::Create);
        filled || pool || !operations().any(|o| o.kind == Kind::Read)
    }
}
