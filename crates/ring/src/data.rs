//! Content of a ring file: devices, and for each replica a row that maps partitions to device ids.
//!
//! Rows keep the file's own id width (two or four bytes), so a loaded ring costs no more memory
//! than its table. Every row has an entry for each partition, except that the last may be shorter,
//! which represents fractional replicas such as 3.25.

use std::sync::Arc;

use crate::device::Device;
use crate::error::RingError;

/// Format of a ring file. Version 1 is readable for every Swift since 1.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FormatVersion {
    #[default]
    V1,
    V2,
}

impl FormatVersion {
    pub fn number(self) -> u16 {
        match self {
            FormatVersion::V1 => 1,
            FormatVersion::V2 => 2,
        }
    }
}

/// One replica's partition-to-device map.
#[derive(Clone, Debug)]
pub enum Row {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Row {
    /// A row of the given id width; all ids must fit it.
    pub fn new(ids: &[u32], dev_id_bytes: u8) -> Row {
        if dev_id_bytes <= 2 {
            Row::Narrow(ids.iter().map(|id| *id as u16).collect())
        } else {
            Row::Wide(ids.to_vec())
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Row::Narrow(ids) => ids.len(),
            Row::Wide(ids) => ids.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, part: usize) -> Option<u32> {
        match self {
            Row::Narrow(ids) => ids.get(part).map(|id| u32::from(*id)),
            Row::Wide(ids) => ids.get(part).copied(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter_map(|part| self.get(part))
    }
}

/// Rows are equal if they map alike, whatever their id width.
impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

/// A ring as stored; [`crate::Ring`] adds the indexes for look-ups.
#[derive(Clone, Debug)]
pub struct RingData {
    /// Indexed by device id; removed devices leave holes.
    pub devs: Vec<Option<Arc<Device>>>,
    pub part_power: u32,
    /// Set during a partition power increase.
    pub next_part_power: Option<u32>,
    /// Version of the builder that the ring was written from.
    pub version: Option<u64>,
    pub dev_id_bytes: u8,
    pub rows: Vec<Row>,
    /// Format that this was read from; a new ring may be written in either.
    pub format_version: FormatVersion,
}

/// Maximum partition power of look-ups; its table alone would have four gigabytes.
pub(crate) const PART_POWER_MAX: u32 = 32;

impl RingData {
    pub fn part_shift(&self) -> u32 {
        PART_POWER_MAX - self.part_power
    }

    /// Number of replicas: whole rows count 1, a short last row its fraction.
    pub fn replica_count(&self) -> f64 {
        match (self.rows.first(), self.rows.last()) {
            (Some(first), Some(last)) if !first.is_empty() => {
                (self.rows.len() - 1) as f64 + last.len() as f64 / first.len() as f64
            }
            _ => 0.0,
        }
    }

    pub fn devices(&self) -> impl Iterator<Item = &Arc<Device>> {
        self.devs.iter().flatten()
    }

    /// Checks the invariants of look-ups: ids match positions, rows are long enough, and every
    /// assignment refers to an existing device.
    pub(crate) fn check(&self) -> Result<(), RingError> {
        for (position, device) in self.devs.iter().enumerate() {
            if let Some(device) = device {
                if device.id as usize != position {
                    return Err(RingError::DeviceId {
                        position,
                        id: device.id,
                    });
                }
                if !device.weight.is_finite() || device.weight < 0.0 {
                    return Err(RingError::Field {
                        field: "a device's weight",
                        found: device.weight.to_string(),
                        expected: "a number of at least 0",
                    });
                }
            }
        }
        let parts = 1_usize << self.part_power;
        for (replica, row) in self.rows.iter().enumerate() {
            let may_be_short = replica > 0 && replica + 1 == self.rows.len();
            if row.len() > parts || (row.len() < parts && !may_be_short) {
                return Err(RingError::ShortRow {
                    replica,
                    found: row.len(),
                    expected: parts,
                });
            }
            let unknown = row
                .iter()
                .enumerate()
                .find(|(_, id)| !matches!(self.devs.get(*id as usize), Some(Some(_))));
            if let Some((part, id)) = unknown {
                return Err(RingError::UnknownDevice { part, replica, id });
            }
        }
        Ok(())
    }

    /// Do both describe the same ring, whatever their format?
    pub fn same_ring(&self, other: &RingData) -> bool {
        self.part_power == other.part_power
            && self.next_part_power == other.next_part_power
            && self.version == other.version
            && self.devs == other.devs
            && self
                .rows
                .iter()
                .filter(|row| !row.is_empty())
                .eq(other.rows.iter().filter(|row| !row.is_empty()))
    }
}
