//! The cases by name. Each round has a store of its own.

mod mixture;
mod rows;
mod unread;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use super::Outcome;
use super::disk::FileSystem;
use super::rig::{Rig, Shape};
use crate::model::load::Counts;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Reads, writes and flushes fail, disks are slow, then a power cut
    Mixture,
    /// Writes to containers' databases, which are the server's own, fail for 0.7 s, then a power cut
    Rows,
    /// The same of databases that are shared with other programs
    RowsShared,
    /// Object files of one or two disks cannot be read
    Unread,
}

/// What a round stands on.
pub(super) struct Ground<'a> {
    pub(super) binary: &'a Path,
    pub(super) file_system: FileSystem,
    pub(super) seed: u64,
    pub(super) keep: bool,
}

impl Ground<'_> {
    /// A store with databases of its own and replicated objects.
    fn rig(&self) -> Result<Rig> {
        self.shaped(|_| {})
    }

    fn shaped(&self, change: impl FnOnce(&mut Shape)) -> Result<Rig> {
        let mut shape = Shape {
            file_system: self.file_system,
            exclusive: true,
            apart: false,
            coded: false,
        };
        change(&mut shape);
        Rig::new(self.binary, shape, self.seed, self.keep)
    }
}

impl Case {
    pub(super) fn all() -> Vec<Case> {
        Case::value_variants().to_vec()
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Case::Mixture => "faults of all kinds and a power cut",
            Case::Rows => "0.7 s of failed writes to databases and a power cut",
            Case::RowsShared => "the same with shared databases",
            Case::Unread => "object files that cannot be read",
        }
    }

    pub(super) fn round(self, ground: &Ground<'_>) -> Result<Outcome> {
        match self {
            Case::Mixture => mixture::round(ground),
            Case::Rows => rows::round(ground, true),
            Case::RowsShared => rows::round(ground, false),
            Case::Unread => unread::round(ground),
        }
    }
}

/// The outcome of a load, and of what was found after it.
fn outcome(rig: &Rig, counts: Counts, found: Vec<String>) -> Outcome {
    let mut lost = counts.wrong;
    lost.extend(found);
    Outcome {
        acknowledged: counts.acknowledged,
        refused: counts.refused.unwrap_or(0),
        faults: rig.disks.iter().map(|d| d.medium.counted().failed).sum(),
        lost,
    }
}
