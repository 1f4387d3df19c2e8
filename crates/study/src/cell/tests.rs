// Tests may panic.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::file::{Choices, parse};

const STUDY: &str = r#"
name = "t"
dilation = 4
[parameters]
cold = true
[[cluster]]
name = "one"
[[cluster.node]]
roles = ["proxy", "account", "container", "object"]
[[cluster.node.device]]
[[workload]]
name = "w"
file = "w.toml"
cold = "${cold}"
"#;

const WORKLOAD: &str = r#"
name = "w"
storage = { type = "swift" }
[defaults]
containers = "c(1)"
[[stage]]
name = "init"
[[stage.work]]
type = "init"
[[stage]]
name = "put"
[[stage.work]]
name = "put"
runtime = "10s"
rate = 100
workers = 8
sizes = "1KB"
pool = "p"
operation = [{ type = "write" }]
[[stage]]
name = "dispose"
[[stage.work]]
type = "dispose"
"#;

fn study(cold: &str) -> (tempfile::TempDir, Study) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("w.toml"), WORKLOAD).unwrap();
    let choices = Choices {
        scale: None,
        parameters: BTreeMap::from([("cold".to_owned(), cold.to_owned())]),
    };
    let mut study = parse(STUDY, &choices).unwrap();
    study.folder = dir.path().to_owned();
    (dir, study)
}

fn plan(study: &Study) -> Plan {
    let text = pairs(study).unwrap()[0].load.plan.clone();
    let options = workload::Options::default();
    workload::read("w", text.as_bytes(), &options).unwrap().plan
}

#[test]
fn times_are_stretched_and_nothing_is_cleared_away() {
    let (_dir, study) = study("false");
    let plan = plan(&study);
    let names: Vec<&str> = plan.stages.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["init", "put"]);
    let work = &plan.stages[1].works[0];
    assert_eq!(work.runtime, Some(Duration::from_secs(40)));
    assert!(matches!(work.pacing, Pacing::Open { rate, .. } if rate == 25.0));
}

#[test]
fn a_cold_stage_is_waited_for() {
    let (_dir, study) = study("true");
    let plan = plan(&study);
    let names: Vec<&str> = plan.stages.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["init", "cold-before-put", "put"]);
    assert!(plan.stages[1].works.is_empty());
}

#[test]
fn a_cell_is_named_by_all_that_it_is() {
    let (_dir, first) = study("false");
    let id = |study: &Study, repetition| {
        let pairs = pairs(study).unwrap();
        cell(study, &pairs, 0, repetition).unwrap()
    };
    let same = id(&first, 1);
    assert_eq!(same.id, id(&first, 1).id);
    assert_ne!(same.id, id(&first, 2).id);
    let mut other = first.clone();
    other.dilation = 5.0;
    assert_ne!(same.id, id(&other, 1).id);
    let mut other = first.clone();
    other.clusters[0].nodes[0].devices[0].weight = 1.0;
    assert_ne!(same.id, id(&other, 1).id);
    // Clusters in a repetition get the same requests.
    assert_eq!(same.seed, id(&other, 1).seed);
}
