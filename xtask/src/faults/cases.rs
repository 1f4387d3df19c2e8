//! The cases by name. Each round has a store of its own.

mod bad_write;
mod corrupt;
mod descriptors;
mod full;
mod mixture;
mod quarantine;
mod rows;
mod slow;
mod unmount;
mod unread;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use super::Outcome;
use super::disk::FileSystem;
use super::rig::{Rig, Shape};
use crate::engine::EngineName;
use cairn_testkit::model::load::Counts;

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
    /// Object files of all disks cannot be read for a moment
    UnreadForAMoment,
    /// The mixture, of erasure-coded objects
    Fragments,
    /// Bytes of object files of one or two disks are not what they were
    Corrupt,
    /// The same of erasure-coded objects
    CorruptFragments,
    /// Rotten objects are read while they are written anew
    Quarantine,
    /// No more files can be opened for a while
    Descriptors,
    /// Disks without any space
    Full,
    /// One write of one disk fails, once
    BadWrite,
    /// The same of a disk that all devices share
    BadWriteShared,
    /// One disk takes its time
    Slow,
    /// Disks are unmounted: idle ones, and one lazily under load
    Unmount,
}

/// Environment of a round.
pub(super) struct Setup<'a> {
    pub(super) binary: &'a Path,
    pub(super) file_system: FileSystem,
    pub(super) seed: u64,
    pub(super) engine: Option<EngineName>,
    pub(super) keep: bool,
}

impl Setup<'_> {
    /// A store with exclusive databases and replicated objects.
    fn rig(&self) -> Result<Rig> {
        self.shaped(|_| {})
    }

    fn shaped(&self, change: impl FnOnce(&mut Shape)) -> Result<Rig> {
        let mut shape = Shape {
            file_system: self.file_system,
            exclusive: true,
            apart: false,
            coded: false,
            shared: false,
        };
        change(&mut shape);
        Rig::new(self.binary, shape, self.seed, self.engine, self.keep)
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
            Case::UnreadForAMoment => "no object file can be read for a moment",
            Case::Fragments => "faults of all kinds and a power cut, erasure-coded",
            Case::Corrupt => "object files that rot",
            Case::CorruptFragments => "fragments that rot",
            Case::Quarantine => "rotten objects read and written anew",
            Case::Descriptors => "no files to be opened",
            Case::Full => "full disks",
            Case::BadWrite => "one bad write",
            Case::BadWriteShared => "one bad write on a disk that all devices share",
            Case::Slow => "one slow disk",
            Case::Unmount => "disks that are unmounted",
        }
    }

    pub(super) fn round(self, setup: &Setup<'_>) -> Result<Outcome> {
        match self {
            Case::Mixture => mixture::round(setup, false),
            Case::Fragments => mixture::round(setup, true),
            Case::Corrupt => corrupt::round(setup, false),
            Case::CorruptFragments => corrupt::round(setup, true),
            Case::Quarantine => quarantine::round(setup),
            Case::Descriptors => descriptors::round(setup),
            Case::Full => full::round(setup),
            Case::BadWrite => bad_write::round(setup, false),
            Case::BadWriteShared => bad_write::round(setup, true),
            Case::Slow => slow::round(setup),
            Case::Unmount => unmount::round(setup),
            Case::Rows => rows::round(setup, true),
            Case::RowsShared => rows::round(setup, false),
            Case::Unread => unread::round(setup),
            Case::UnreadForAMoment => unread::moment(setup),
        }
    }
}

/// The outcome of a load, and of the check after it.
fn outcome(rig: &Rig, counts: Counts, found: Vec<String>) -> Outcome {
    let mut lost = counts.wrong;
    lost.extend(found);
    let counted = rig.disks.iter().map(|disk| disk.medium.counted());
    let faults = counted.map(|counted| counted.failed + counted.rotten);
    Outcome {
        acknowledged: counts.acknowledged,
        refused: counts.refused.unwrap_or(0),
        faults: faults.sum(),
        lost,
    }
}
