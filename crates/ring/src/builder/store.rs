//! The builder file. It is written as OpenStack Swift's pickle (`swift_file.rs`), so that Swift's
//! tools read every builder. Earlier versions of this program wrote a JSON object, which is still
//! read, and is converted when the builder is next saved:
//!
//!
//! ```text
//! {"format": "cairn-ring-builder", "format_version": 1,
//!  "id": "9f…", "version": 7, "part_power": 10, "next_part_power": null, "replicas": 3.0,
//!  "min_part_hours": 1, "overload": 0.0, "devs_changed": false, "dispersion": 0.0,
//!  "dev_id_bytes": 2, "last_part_moves_epoch": 1700000000, "last_part_gather_start": 12,
//!  "devs": [null, {"id": 1, …the ring's device keys…, "parts": 768, "removing": false}],
//!  "last_part_moves": [[hours, run length], …],
//!  "assignments": null | [[device id, … per partition], … per replica]}
//! ```

use serde::Deserialize;

use crate::builder::{BuilderDevice, BuilderError, DEVICE_ID_MAX, RingBuilder, swift_file};
use crate::device::Device;

const FORMAT: &str = "cairn-ring-builder";
const FORMAT_VERSION: u32 = 1;
/// First byte of a pickle of protocol 2 or later; JSON never starts with it.
const PICKLE_START: u8 = 0x80;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonFile {
    format: String,
    format_version: u32,
    id: Option<String>,
    version: u64,
    part_power: u32,
    next_part_power: Option<u32>,
    replicas: f64,
    min_part_hours: u32,
    overload: f64,
    devs_changed: bool,
    dispersion: Option<f64>,
    dev_id_bytes: u8,
    last_part_moves_epoch: u64,
    last_part_gather_start: u64,
    devs: Vec<Option<Box<StoredDevice>>>,
    last_part_moves: Vec<(u8, u64)>,
    assignments: Option<Vec<Vec<u32>>>,
}

#[derive(Deserialize)]
struct StoredDevice {
    #[serde(flatten)]
    device: Device,
    parts: u64,
    removing: bool,
}

impl RingBuilder {
    /// Encodes a builder file.
    pub fn to_bytes(&self) -> Vec<u8> {
        swift_file::write(self)
    }

    /// Parses a builder file and checks the invariants that other code relies on.
    ///
    /// # Errors
    /// `PythonPickle` for a pickle that cannot be read or lacks a field; `Format` for any other
    /// malformed content, or devices and table that contradict each other; `Invalid` for a setting
    /// out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<RingBuilder, BuilderError> {
        if bytes.first() == Some(&PICKLE_START) {
            let builder = swift_file::read(bytes)?;
            builder.check_stored()?;
            return Ok(builder);
        }
        let file: JsonFile = serde_json::from_slice(bytes).map_err(|e| format_error(&e))?;
        if file.format != FORMAT || file.format_version != FORMAT_VERSION {
            return Err(BuilderError::Format(format!(
                "format is {:?} version {}: {FORMAT:?} version {FORMAT_VERSION} expected",
                file.format, file.format_version
            )));
        }
        let mut builder = RingBuilder::new(file.part_power, file.replicas, file.min_part_hours)?;
        builder.set_overload(file.overload)?;
        builder.id = file.id;
        builder.version = file.version;
        builder.next_part_power = file.next_part_power;
        builder.devs_changed = file.devs_changed;
        builder.dispersion = file.dispersion;
        builder.table_id_bytes = file.dev_id_bytes;
        builder.last_part_moves_epoch = file.last_part_moves_epoch;
        builder.last_part_gather_start = file.last_part_gather_start % builder.parts();
        builder.last_part_moves = expanded(&file.last_part_moves, builder.parts())?;
        builder.devs = file
            .devs
            .into_iter()
            .map(|dev| dev.map(|dev| restored(*dev)))
            .collect();
        builder.table = file.assignments;
        builder.check_stored()?;
        Ok(builder)
    }

    fn check_stored(&self) -> Result<(), BuilderError> {
        let invalid = |what: String| Err(BuilderError::Format(what));
        if !matches!(self.table_id_bytes, 2 | 4) {
            return invalid(format!(
                "dev_id_bytes is {}: 2 or 4 expected",
                self.table_id_bytes
            ));
        }
        if self.devs.len() > DEVICE_ID_MAX as usize {
            return invalid(format!("{} devices are too many", self.devs.len()));
        }
        for (position, dev) in self.devs.iter().enumerate() {
            let Some(dev) = dev else { continue };
            if dev.device.id as usize != position {
                return invalid(format!(
                    "the device at position {position} says its id is {}",
                    dev.device.id
                ));
            }
            if !dev.device.weight.is_finite() || dev.device.weight < 0.0 {
                return invalid(format!(
                    "device {position} has weight {}: a number of at least 0 expected",
                    dev.device.weight
                ));
            }
        }
        for (replica, row) in self.table.iter().flatten().enumerate() {
            if row.len() as u64 > self.parts() {
                return invalid(format!(
                    "replica {replica} has {} partitions of {}",
                    row.len(),
                    self.parts()
                ));
            }
            if let Some(id) = row.iter().find(|id| self.device(**id).is_none()) {
                return invalid(format!(
                    "replica {replica} is assigned to device {id}, which does not exist"
                ));
            }
        }
        let mut held = vec![0_u64; self.devs.len()];
        for id in self.table.iter().flatten().flatten() {
            held[*id as usize] += 1;
        }
        let wrong = self
            .devices()
            .find(|dev| dev.parts != held[dev.device.id as usize]);
        if let Some(dev) = wrong {
            return invalid(format!(
                "device {} says it holds {} partitions but the table gives it {}",
                dev.device.id, dev.parts, held[dev.device.id as usize]
            ));
        }
        Ok(())
    }
}

fn restored(dev: StoredDevice) -> BuilderDevice {
    BuilderDevice {
        device: dev.device,
        parts: dev.parts,
        removing: dev.removing,
    }
}

fn format_error(error: &serde_json::Error) -> BuilderError {
    BuilderError::Format(error.to_string())
}

fn expanded(runs: &[(u8, u64)], parts: u64) -> Result<Vec<u8>, BuilderError> {
    let mut ages = Vec::new();
    for (age, length) in runs {
        let total = (ages.len() as u64).checked_add(*length);
        if total.is_none_or(|total| total > parts) {
            return Err(BuilderError::Format(format!(
                "last_part_moves covers more than the {parts} partitions"
            )));
        }
        ages.resize(ages.len() + *length as usize, *age);
    }
    Ok(ages)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_from_run_lengths() {
        let ages = [0, 0, 255, 255, 255, 3];
        assert_eq!(expanded(&[(0, 2), (255, 3), (3, 1)], 6).unwrap(), ages);
        assert!(expanded(&[(0, u64::MAX), (1, 9)], 6).is_err());
    }

    #[test]
    fn pickles_are_named() {
        let error = RingBuilder::from_bytes(b"\x80\x02}q\0.").unwrap_err();
        assert!(error.to_string().contains("write_builder"), "{error}");
    }
}
