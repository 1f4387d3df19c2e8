//! Workload files that somebody has: each runs unchanged, cut down to seconds, and each says in one
//! line that its store is not there.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::harness::{LOGIN, Lab, one_line};
use crate::process::free_ports;
use crate::report::Report;

/// Every file below a folder that `cairn lab run` takes for a workload.
pub(super) fn run(report: &mut Report, lab: &Lab, folder: &Path) -> Result<()> {
    let mut all = Vec::new();
    collect(folder, &mut all)?;
    all.sort();
    if all.is_empty() {
        bail!("no workload below {}", folder.display());
    }
    for file in all {
        let name = file.strip_prefix(folder).unwrap_or(&file).display();
        report.check(&format!("{name} runs"), || unchanged(lab, &file));
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
        } else if matches!(extension, Some("xml" | "scenario" | "conf" | "toml")) {
            all.push(path);
        }
    }
    Ok(())
}

/// A fiftieth of every file's time, operations and sizes.
const SCALES: [&str; 6] = [
    "--time-scale",
    "0.02",
    "--ops-scale",
    "0.02",
    "--size-scale",
    "0.02",
];

/// Runs a file, cut down, against a store of the kind it names; of a kind that is not here, Swift.
fn unchanged(lab: &Lab, file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file)?;
    let names = |kind: &str| text.contains(&format!("storage type=\"{kind}\""));
    let target = match lab.s3 {
        Some(port) if names("s3") => format!("s3+http://127.0.0.1:{port}"),
        _ if names("mock") => "noop:".to_owned(),
        _ => format!("swift+{}", lab.url()),
    };
    let arguments = [&["--target", &target], &LOGIN[..], &SCALES[..]].concat();
    let run = lab.run(file, &arguments)?;
    ensure!(run.meta["state"] == "completed", "{}", run.shown);
    ensure!(run.count("") > 0, "nothing was asked:\n{}", run.shown);
    Ok(())
}
