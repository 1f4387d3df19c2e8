//! The published studies, as the repository has them, at the scale that a small host can measure.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cairn_study::cell;
use cairn_study::file::{self, Choices};

fn studies() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let paths = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    files
}

/// Each of them resolves to cells whose workloads the lab can read, and names every repetition.
#[test]
fn all_eight_are_planned_at_quick() {
    let studies = studies();
    assert_eq!(studies.len(), 8, "{studies:?}");
    for path in studies {
        let choices = Choices {
            scale: Some("quick".to_owned()),
            parameters: BTreeMap::new(),
        };
        let study = file::read(&path, &choices).unwrap_or_else(|error| panic!("{error:#}"));
        let pairs = cell::pairs(&study).unwrap_or_else(|error| panic!("{error:#}"));
        let mut names = Vec::new();
        for pair in 0..pairs.len() {
            for repetition in 1..=study.repetitions.least {
                names.push(cell::cell(&study, &pairs, pair, repetition).unwrap().id);
            }
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert!(
            count > 0 && names.len() == count,
            "{}: {names:?}",
            path.display()
        );
    }
}
