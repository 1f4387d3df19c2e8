// Tests may panic.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::cell::{Fidelity, Host};
use crate::file::{self, Choices, Study};

const STUDY: &str = r#"
name = "t"
[[cluster]]
name = "${disk}"
for.disk = ["hdd", "ssd"]
[[cluster.node]]
roles = ["proxy", "account", "container", "object"]
[[cluster.node.device]]
[[workload]]
name = "w"
file = "w.toml"
[[figure]]
title = "rate"
x = "disk"
y = "put.per_s"
[[figure.expect]]
what = "more"
from.disk = "hdd"
to.disk = "ssd"
change = 0.25
[[figure.expect]]
what = "the same"
from.disk = "hdd"
to.disk = "ssd"
change = 0.0
"#;

fn study() -> Study {
    file::parse(STUDY, &Choices::default()).unwrap()
}

fn outcomes(hdd: &[f64], ssd: &[f64]) -> Vec<Outcome> {
    let study = study();
    let mut all = Vec::new();
    for (cluster, values) in study.clusters.iter().zip([hdd, ssd]) {
        for (number, value) in values.iter().enumerate() {
            all.push(Outcome {
                version: 1,
                id: format!("{}{number}", cluster.name),
                study: "t".into(),
                scale: String::new(),
                state: State::Accepted,
                why: Vec::new(),
                attempt: 1,
                repetition: number as u32,
                seed: 1,
                dilation: 1.0,
                emulated: true,
                cluster: cluster.clone(),
                workload: study.workloads[0].clone(),
                swept: cluster.swept.clone(),
                host: Host::default(),
                fidelity: Fidelity::default(),
                stages: Vec::new(),
                metrics: BTreeMap::from([("put.per_s".to_owned(), *value)]),
            });
        }
    }
    all
}

fn verdicts(outcomes: &[Outcome]) -> [Verdict; 2] {
    let figure = &study().figures[0];
    [0, 1].map(|n| effect(figure, &figure.expect[n], outcomes).verdict)
}

#[test]
fn an_interval_that_excludes_zero_resolves_the_sign() {
    let more = outcomes(&[100.0, 101.0, 99.0], &[125.0, 126.0, 124.0]);
    assert_eq!(verdicts(&more), [Verdict::Same, Verdict::Difference]);
    let less = outcomes(&[100.0, 101.0, 99.0], &[80.0, 81.0, 79.0]);
    assert_eq!(verdicts(&less), [Verdict::Opposite, Verdict::Difference]);
    let unclear = outcomes(&[100.0, 140.0, 60.0], &[105.0, 150.0, 70.0]);
    assert_eq!(verdicts(&unclear), [Verdict::NotResolved; 2]);
    let same = outcomes(&[100.0, 100.5, 99.5], &[100.1, 100.6, 99.6]);
    assert_eq!(
        verdicts(&same),
        [Verdict::NotResolved, Verdict::NoDifference]
    );
    let few = outcomes(&[100.0], &[200.0]);
    assert_eq!(verdicts(&few), [Verdict::TooFew; 2]);
}

#[test]
fn rejected_cells_are_never_averaged() {
    let mut all = outcomes(&[100.0, 101.0, 1.0], &[125.0]);
    all[2].state = State::Rejected;
    let drawn = draw(&study().figures[0], &all);
    assert_eq!(drawn.series[0].1[0].1.mean, 100.5);
    assert_eq!(drawn.series[0].1[0].1.values.len(), 2);
}

#[test]
fn an_estimate_knows_its_interval() {
    // Student's t with two degrees of freedom is 4.303.
    let estimate = Estimate::of(&[9.0, 10.0, 11.0]);
    assert!((estimate.reach.unwrap() - 4.303 / 3f64.sqrt()).abs() < 0.001);
    assert_eq!(Estimate::of(&[1.0]).reach, None);
}

#[test]
fn narrow_is_told_of_each_pair_alone() {
    let all = outcomes(&[100.0, 100.5, 99.5], &[100.0, 150.0]);
    let figures = study().figures;
    let of = |disk: &str| BTreeMap::from([("disk".to_owned(), disk.to_owned())]);
    assert!(is_narrow(&figures, &all, &of("hdd"), 0.05));
    assert!(!is_narrow(&figures, &all, &of("ssd"), 0.05));
}
