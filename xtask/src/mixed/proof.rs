//! Checks of a cluster that is in step, made by OpenStack Swift's own code: each object and each
//! row is on all devices of its partition and nowhere else, and `swift-dispersion-report` says 100
//! %.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::{Cluster, Kind};
use super::confs::NODES;
use super::passes;
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace::{root, run_quiet};

/// Maximum number of passes after which everything must be in its place.
const PASSES: usize = 3;

/// Empties the device of a node, like a new disk; its folder stays.
pub(super) fn lose_device(cluster: &Cluster, node: usize) -> Result<()> {
    let device = cluster.swift.node(node).join(format!("d{node}"));
    let entries = std::fs::read_dir(&device)?;
    for entry in entries {
        let path = entry?.path();
        match path.is_dir() {
            true => std::fs::remove_dir_all(path)?,
            false => std::fs::remove_file(path)?,
        }
    }
    Ok(())
}

/// Runs passes of the daemons of `kind` until everything is in its place; returns a summary.
pub(super) fn in_place(cluster: &mut Cluster, venv: &Venv, kind: Kind) -> Result<String> {
    cluster.daemons = [kind; NODES];
    let mut found = Value::Null;
    for pass in 1..=PASSES {
        passes::mend(cluster)?;
        found = look(cluster, venv)?;
        if found["wrong"].as_array().is_some_and(Vec::is_empty) {
            return Ok(format!(
                "{} objects, {} archives of fragments, {} containers and {} accounts are in their places after \
                 {pass} passes of {kind}'s daemons",
                found["objects"], found["archives"], found["containers"], found["accounts"]
            ));
        }
    }
    let wrong = found["wrong"].as_array().cloned().unwrap_or_default();
    let words: Vec<&str> = wrong.iter().filter_map(Value::as_str).take(20).collect();
    anyhow::bail!(
        "{} things are wrong after {PASSES} passes of {kind}'s daemons:\n{}",
        wrong.len(),
        words.join("\n")
    )
}

fn look(cluster: &Cluster, venv: &Venv) -> Result<Value> {
    let mut command = Command::new(venv.python());
    command
        .args(["-W", "ignore"])
        .arg(root().join("tests/swift_places.py"))
        .arg(cluster.swift.etc());
    for node in 1..=NODES {
        command.arg(cluster.swift.node(node).join(format!("d{node}")));
    }
    serde_json::from_str(&run_quiet(&mut command)?).context("reading what swift_places.py says")
}

/// Writes the dispersion samples of both policies with one implementation's program.
pub(super) fn populate(cluster: &Cluster, kind: Kind) -> Result<()> {
    dispersion(cluster, kind, "swift-dispersion-populate", &[]).map(|_| ())?;
    let coded = ["--object-only", "-P", "coded"];
    dispersion(cluster, kind, "swift-dispersion-populate", &coded).map(|_| ())
}

/// Checks that one implementation's program finds 100 % of the samples, in both policies.
pub(super) fn dispersed(cluster: &Cluster, kind: Kind) -> Result<()> {
    for policy in [&["-P", "Policy-0"][..], &["--object-only", "-P", "coded"]] {
        let arguments = [&["--dump-json"], policy].concat();
        let told = dispersion(cluster, kind, "swift-dispersion-report", &arguments)?;
        let line = told.lines().find(|line| line.starts_with('{'));
        let report: Value = serde_json::from_str(line.context(told.clone())?)?;
        for part in ["object", "container"] {
            let Some(found) = report.get(part) else {
                continue;
            };
            ensure!(
                found["pct_found"].as_f64() == Some(100.0)
                    && found["copies_found"].as_u64() > Some(0),
                "{kind}'s swift-dispersion-report of {policy:?}: {told}"
            );
        }
    }
    Ok(())
}

fn dispersion(cluster: &Cluster, kind: Kind, program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(cluster.program(kind, program));
    command
        .args(arguments)
        .arg(cluster.dir.join("dispersion.conf"));
    run_quiet(&mut command)
}
