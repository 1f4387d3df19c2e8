//! The studies' workloads can be read at every scale, and have the expected content.

// Tests may panic.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use cairn_lab::plan::{Plan, Work, WorkKind};
use cairn_lab::workload::{Options, read};

fn study(name: &str, scale: &str) -> Plan {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/workloads");
    let bytes = std::fs::read(folder.join(name)).unwrap();
    let options = Options {
        scale: Some(scale.to_owned()),
        ..Options::default()
    };
    match read(name, &bytes, &options) {
        Ok(workload) => {
            assert!(workload.notes.is_empty(), "{name}: {:?}", workload.notes);
            workload.plan
        }
        Err(error) => panic!("{error}"),
    }
}

fn mains(plan: &Plan) -> impl Iterator<Item = &Work> {
    let works = plan.stages.iter().flat_map(|stage| &stage.works);
    works.filter(|work| work.kind == WorkKind::Main)
}

fn time(plan: &Plan) -> Duration {
    mains(plan)
        .map(|work| work.rampup + work.runtime.unwrap_or_default())
        .sum()
}

#[test]
fn every_study_is_read_at_every_scale() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/workloads");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".toml") {
            continue;
        }
        let (published, quick) = (study(&name, "published"), study(&name, "quick"));
        let names = |plan: &Plan| {
            plan.stages
                .iter()
                .map(|s| s.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(&published).len(),
            names(&quick).len(),
            "{name}: the same stages"
        );
        assert!(
            time(&quick) <= Duration::from_secs(900),
            "{name}: {:?}",
            time(&quick)
        );
        count += 1;
    }
    assert_eq!(count, 8);
}

#[test]
fn the_matrix_has_216_stages() {
    let plan = study("ceph-vs-swift.toml", "published");
    let swept: Vec<_> = plan
        .stages
        .iter()
        .filter(|s| s.swept.contains_key("mix"))
        .collect();
    assert_eq!(swept.len(), 216);
    let different: BTreeSet<_> = swept.iter().map(|stage| &stage.swept).collect();
    assert_eq!(different.len(), 216);
    let hours = time(&plan).as_secs_f64() / 3600.0;
    assert!((43.0..43.5).contains(&hours), "{hours}");
    let workers: BTreeSet<u32> = mains(&plan).map(|work| work.workers).collect();
    assert_eq!(workers, [1, 16, 64, 128, 256, 512].into());
    let sizes: BTreeSet<u64> = mains(&plan)
        .flat_map(|work| &work.operations)
        .filter_map(|operation| operation.sizes.as_ref())
        .map(|sizes| sizes.bounds().1)
        .collect();
    assert_eq!(
        sizes,
        [4000, 128_000, 512_000, 1_024_000, 5_000_000, 10_000_000].into()
    );
    // One prepare for the 18 stages of each size and number of containers.
    let prepares = plan.stages.iter().flat_map(|stage| &stage.works);
    assert_eq!(
        prepares
            .filter(|work| work.kind == WorkKind::Prepare)
            .count(),
        12
    );
}
