//! Calibration: the demands measured by `cairn advise measure`, and their circumstances.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::conformal::Residuals;
use crate::emulation::Emulation;
use crate::error::AdviseError;
use crate::hardware;
use crate::placement::Placement;
use crate::random::Spread;
use crate::read::{self, within};
use crate::scope::Scope;

pub const FILE: &str = "the calibration file";
pub const SCHEMA: &str = "cairn-advise-calibration/1";

/// Calibrated demands. All times are seconds of a core of the calibrated host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    pub schema: String,
    /// Host, date and version as text.
    pub made_on: String,
    /// Were its disks and networks emulated?
    #[serde(default)]
    pub emulated: bool,
    pub store: StoreCost,
    pub load: LoadCost,
    pub medium: BTreeMap<String, Medium>,
    /// Requests of the store and its file systems to disks whose hardware is known.
    #[serde(default)]
    pub files: FileCost,
    pub scope: Scope,
    /// Prediction errors on held-out cells.
    #[serde(default)]
    pub residuals: Residuals,
}

/// CPU time of the store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreCost {
    pub read_op: f64,
    pub read_byte: f64,
    pub write_op: f64,
    pub write_byte: f64,
    /// Per replica, its container row included.
    pub write_replica: f64,
    pub write_replica_byte: f64,
    /// Per fragment, in addition to a replica's cost.
    pub fragment: f64,
    /// Coding, per byte of an object.
    pub coding_byte: f64,
    /// A backend call over a socket, both ends together, in addition to a call within a process.
    pub call: f64,
    pub call_byte: f64,
    /// Fraction of a read's CPU time that is the storage server's.
    pub storage_part: f64,
    /// Wait for a thread at each hand-over.
    pub hand_over: f64,
    /// Standard deviation of CPU times, relative to their mean.
    pub spread: f64,
}

/// CPU time of the load generator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadCost {
    pub read_op: f64,
    pub read_byte: f64,
    pub write_op: f64,
    pub write_byte: f64,
}

/// A kind of disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Medium {
    /// Number of concurrent requests.
    pub channels: u32,
    /// Time of a read: base, and per byte.
    pub read_base: f64,
    pub read_byte: f64,
    #[serde(default)]
    pub read_spread: Spread,
    /// Additional time of a seek over the whole disk; proportional to the square root of the
    /// distance.
    #[serde(default)]
    pub seek_whole: f64,
    /// Time of a group sync: base, per member beyond the first, and per byte.
    pub sync_base: f64,
    pub sync_member: f64,
    pub sync_byte: f64,
    #[serde(default)]
    pub sync_spread: Spread,
    /// CPU time of a group sync, before the disk's time.
    #[serde(default)]
    pub sync_cpu: f64,
    /// Its service times, where they are known; the times above then do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<hardware::Medium>,
}

/// Requests to a disk of known hardware, as counted on emulated ones. A sync of a file system writes
/// what was written, commits the journal, and writes the journal's blocks home.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileCost {
    /// Bytes of a journal's commit without its block of commitment, and more for each member of a
    /// sync.
    pub journal_base: f64,
    pub journal_member: f64,
    /// How often a sync commits twice: one that nobody waited for, and one that was waited for.
    pub second_commit: f64,
    pub second_commit_busy: f64,
    /// How often one that was waited for commits once more at its end.
    pub last_commit_busy: f64,
    /// Blocks of directories that each member has written.
    pub directories: f64,
    /// Blocks of bitmaps that a sync writes before the commit.
    pub bitmaps: f64,
    /// Blocks written home: of tables by each sync, and anywhere for each member.
    pub home_tables: f64,
    pub home_member: f64,
    /// Bytes of the journal for each row in a database's log.
    pub journal_entry: f64,
    /// Seconds after rows in which others are logged, and all after them until the log is merged.
    pub busy_seconds: f64,
    /// Age at which a log of rows is merged.
    pub merge_seconds: f64,
}

impl Default for FileCost {
    fn default() -> Self {
        FileCost {
            journal_base: 8192.0,
            journal_member: 30_000.0,
            second_commit: 0.5,
            second_commit_busy: 1.0,
            last_commit_busy: 0.2,
            directories: 0.7,
            bitmaps: 1.0,
            home_tables: 2.5,
            home_member: 1.7,
            journal_entry: 8192.0,
            busy_seconds: 0.1,
            merge_seconds: 30.0,
        }
    }
}

impl Calibration {
    /// Parses a calibration.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn parse(text: &str) -> Result<Calibration, AdviseError> {
        let calibration: Calibration = read::toml(FILE, text)?;
        calibration.check()?;
        Ok(calibration)
    }

    fn check(&self) -> Result<(), AdviseError> {
        if self.schema != SCHEMA {
            let remedy =
                format!("this version reads {SCHEMA}; make it again with cairn advise measure");
            return Err(AdviseError::field(FILE, "schema", &self.schema, remedy));
        }
        let (store, load) = (&self.store, &self.load);
        for (field, seconds) in [
            ("store.read_op", store.read_op),
            ("store.read_byte", store.read_byte),
            ("store.write_op", store.write_op),
            ("store.write_byte", store.write_byte),
            ("store.write_replica", store.write_replica),
            ("store.write_replica_byte", store.write_replica_byte),
            ("store.fragment", store.fragment),
            ("store.coding_byte", store.coding_byte),
            ("store.call", store.call),
            ("store.call_byte", store.call_byte),
            ("store.hand_over", store.hand_over),
            ("load.read_op", load.read_op),
            ("load.read_byte", load.read_byte),
            ("load.write_op", load.write_op),
            ("load.write_byte", load.write_byte),
        ] {
            within(FILE, field, seconds, 0.0, 10.0)?;
        }
        within(FILE, "store.storage_part", store.storage_part, 0.0, 1.0)?;
        within(FILE, "store.spread", store.spread, 0.0, 10.0)?;
        for (name, medium) in &self.medium {
            let field = |field: &str| format!("medium.{name}.{field}");
            within(FILE, field("channels"), medium.channels.into(), 1.0, 4096.0)?;
            for (what, seconds) in [
                ("read_base", medium.read_base),
                ("read_byte", medium.read_byte),
                ("seek_whole", medium.seek_whole),
                ("sync_base", medium.sync_base),
                ("sync_member", medium.sync_member),
                ("sync_byte", medium.sync_byte),
                ("sync_cpu", medium.sync_cpu),
            ] {
                within(FILE, field(what), seconds, 0.0, 100.0)?;
            }
        }
        Ok(())
    }

    /// Is the hardware of a cluster's disks known?
    pub fn is_known(&self, placement: &Placement) -> bool {
        let known = |medium: &String| {
            self.medium
                .get(medium)
                .is_some_and(|m| m.hardware.is_some())
        };
        placement.disks.iter().any(|disk| known(&disk.medium))
    }

    /// The same with the media of an emulation, whose hardware is known without a measurement.
    pub fn with_media(&self, emulation: Option<&Emulation>) -> Calibration {
        let mut with = self.clone();
        for (name, hardware) in emulation.into_iter().flat_map(|e| &e.media) {
            with.medium
                .insert(name.clone(), Medium::of_hardware(hardware));
        }
        with
    }

    pub fn to_text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// The medium of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn medium(&self, name: &str) -> Result<&Medium, AdviseError> {
        self.medium.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.medium.keys().map(String::as_str).collect();
            let remedy = format!(
                "take one that was measured ({}), or measure it",
                known.join(", ")
            );
            AdviseError::field(crate::cluster::FILE, "node.disk.medium", name, remedy)
        })
    }
}

impl Medium {
    /// A medium of known service times. Those that [`fit`](crate::fit) would measure are zero.
    pub fn of_hardware(hardware: &hardware::Medium) -> Medium {
        Medium {
            channels: hardware.channels,
            read_base: 0.0,
            read_byte: 0.0,
            read_spread: Spread::Fixed,
            seek_whole: 0.0,
            sync_base: 0.0,
            sync_member: 0.0,
            sync_byte: 0.0,
            sync_spread: Spread::Fixed,
            sync_cpu: 0.0,
            hardware: Some(hardware.clone()),
        }
    }

    /// Mean time of a read after a seek over `distance`, a fraction (0 to 1) of the disk.
    pub fn read(&self, bytes: f64, distance: f64) -> f64 {
        self.read_base + self.seek_whole * distance.clamp(0.0, 1.0).sqrt() + self.read_byte * bytes
    }

    /// Mean time of a sync shared by `members`.
    pub fn sync(&self, members: usize, bytes: f64) -> f64 {
        let others = members.saturating_sub(1) as f64;
        self.sync_base + self.sync_member * others + self.sync_byte * bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Calibration {
        let medium = Medium {
            channels: 4,
            read_base: 1e-4,
            read_byte: 1e-9,
            read_spread: Spread::Exponential,
            seek_whole: 0.0,
            sync_base: 2e-3,
            sync_member: 5e-5,
            sync_byte: 5e-9,
            sync_spread: Spread::LogNormal(0.4),
            sync_cpu: 2e-4,
            hardware: None,
        };
        Calibration {
            schema: SCHEMA.into(),
            made_on: "a test".into(),
            emulated: false,
            store: StoreCost {
                read_op: 2e-4,
                read_byte: 5e-10,
                write_op: 3e-4,
                write_byte: 2e-9,
                write_replica: 2e-4,
                write_replica_byte: 5e-10,
                fragment: 1e-4,
                coding_byte: 1e-9,
                call: 1e-4,
                call_byte: 1e-10,
                storage_part: 0.5,
                hand_over: 5e-5,
                spread: 0.5,
            },
            load: LoadCost {
                read_op: 1e-4,
                read_byte: 3e-10,
                write_op: 1e-4,
                write_byte: 3e-10,
            },
            medium: [("disk".to_owned(), medium)].into(),
            files: FileCost::default(),
            scope: Scope::default(),
            residuals: Residuals::default(),
        }
    }

    #[test]
    fn a_file_repeats_itself_and_bad_fields_are_named() {
        let text = example().to_text();
        assert_eq!(Calibration::parse(&text).unwrap(), example());
        for (from, to, parts) in [
            (
                "channels = 4",
                "channels = 0",
                ["medium.disk.channels is 0", "from 1"],
            ),
            (
                SCHEMA,
                "other/9",
                ["schema is other/9", "cairn advise measure"],
            ),
            (
                "storage_part = 0.5",
                "storage_part = 2",
                ["storage_part is 2", "0 to 1"],
            ),
        ] {
            assert!(text.contains(from), "{from} {text}");
            let error = Calibration::parse(&text.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        let error = example().medium("tape").unwrap_err().to_string();
        assert!(
            error.contains("medium is tape") && error.contains("(disk)"),
            "{error}"
        );
    }
}
