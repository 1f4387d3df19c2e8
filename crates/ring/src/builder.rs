//! The ring builder: holds devices and the assignment of partitions, which
//! [`RingBuilder::rebalance`] changes.
//!
//! Behaves like OpenStack Swift's builder does. With the same devices, history, clock and seed it
//! places every replica on the same device, so the two programs can be compared exactly and used
//! alternately. One count differs on purpose: with fractional replicas Swift's report of moved
//! partitions and dispersion covers only partitions that have the extra replica; here it covers
//! all.

mod edit;
mod error;
mod gather;
mod part_power;
mod pickle;
mod plan;
mod reassign;
mod rebalance;
mod report;
mod store;
mod swift_file;
mod tiers;

use std::sync::Arc;

use crate::data::{FormatVersion, RingData, Row};
use crate::device::{Device, NewDevice};
use crate::error::RingError;
use crate::lookup::Ring;

pub use error::BuilderError;
pub use rebalance::{RebalanceOptions, RebalanceOutcome};
pub use report::{BALANCE_MAX, DispersionReport, TierDispersion};

/// Table entry for "no device yet"; never stored in a finished ring.
const NO_DEVICE: u32 = u32::MAX;
/// Maximum device id: ids are positions in a list, so a stray huge id would cost memory.
const DEVICE_ID_MAX: u32 = 1 << 24;

/// Devices with their weights, and the assignment table.
#[derive(Clone, Debug)]
pub struct RingBuilder {
    part_power: u32,
    next_part_power: Option<u32>,
    replicas: f64,
    min_part_hours: u32,
    overload: f64,
    /// Indexed by device id; removed devices leave holes that new devices fill.
    devs: Vec<Option<BuilderDevice>>,
    /// A device has been added, removed or re-weighted since the last rebalance.
    devs_changed: bool,
    version: u64,
    id: Option<String>,
    /// Device ids by replica and partition; `None` until the first rebalance.
    table: Option<Vec<Vec<u32>>>,
    /// Width of device ids in written rings. It grows as soon as needed, but shrinks only well
    /// below the limit.
    table_id_bytes: u8,
    /// Hours since each partition moved, as of the epoch, at most 255. Empty means all zero.
    last_part_moves: Vec<u8>,
    last_part_moves_epoch: u64,
    last_part_gather_start: u64,
    /// Percent of replicas placed closer together than necessary, as of the last rebalance.
    dispersion: Option<f64>,
}

/// A device with the fields that only the builder has.
#[derive(Clone, Debug, PartialEq)]
pub struct BuilderDevice {
    pub device: Device,
    /// Number of partition replicas it holds.
    pub parts: u64,
    /// Marked for removal: dropped by the next rebalance.
    pub removing: bool,
}

impl RingBuilder {
    /// A builder without devices.
    ///
    /// # Errors
    /// `Invalid` for a partition power above 32, or replicas outside 1 to 65536.
    pub fn new(
        part_power: u32,
        replicas: f64,
        min_part_hours: u32,
    ) -> Result<RingBuilder, BuilderError> {
        if part_power > 32 {
            return Err(BuilderError::invalid(
                "part_power",
                part_power,
                "at most 32",
            ));
        }
        check_replicas(replicas)?;
        Ok(RingBuilder {
            part_power,
            next_part_power: None,
            replicas,
            min_part_hours,
            overload: 0.0,
            devs: Vec::new(),
            devs_changed: false,
            version: 0,
            id: None,
            table: None,
            table_id_bytes: 2,
            last_part_moves: Vec::new(),
            last_part_moves_epoch: 0,
            last_part_gather_start: 0,
            dispersion: Some(0.0),
        })
    }

    pub fn part_power(&self) -> u32 {
        self.part_power
    }

    pub fn next_part_power(&self) -> Option<u32> {
        self.next_part_power
    }

    /// Number of partitions: two to the partition power.
    pub fn parts(&self) -> u64 {
        1 << self.part_power
    }

    pub fn replicas(&self) -> f64 {
        self.replicas
    }

    pub fn min_part_hours(&self) -> u32 {
        self.min_part_hours
    }

    pub fn overload(&self) -> f64 {
        self.overload
    }

    /// Version, incremented by every change that a ring file may contain.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Id of the builder, set once when it is first saved.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Sets the builder's permanent id; later calls have no effect.
    pub fn assign_id(&mut self, id: impl FnOnce() -> String) {
        self.id.get_or_insert_with(id);
    }

    pub fn devs_changed(&self) -> bool {
        self.devs_changed
    }

    /// Dispersion; `None` if never computed, as after recovery from a ring file.
    pub fn dispersion(&self) -> Option<f64> {
        self.dispersion
    }

    pub fn ever_rebalanced(&self) -> bool {
        self.table.is_some()
    }

    /// All devices in order of their ids, without holes.
    pub fn devices(&self) -> impl Iterator<Item = &BuilderDevice> {
        self.devs.iter().flatten()
    }

    pub fn device(&self, id: u32) -> Option<&BuilderDevice> {
        self.devs.get(id as usize)?.as_ref()
    }

    /// Seconds until partitions that moved in the last rebalance may move again.
    pub fn min_part_seconds_left(&self, now: u64) -> u64 {
        let elapsed = now.saturating_sub(self.last_part_moves_epoch);
        (u64::from(self.min_part_hours) * 3600).saturating_sub(elapsed)
    }

    /// Width in bytes of device ids in a ring written now.
    pub fn dev_id_bytes(&self) -> u8 {
        match &self.table {
            Some(rows) if !rows.is_empty() => self.table_id_bytes,
            _ => id_bytes_for(self.devs.len().saturating_sub(1) as u32),
        }
    }

    /// Sets the width of device ids in written rings: two bytes hold ids up to 65534, four any.
    ///
    /// # Errors
    /// `Invalid` for a width other than 2 or 4, or too narrow for the highest device id.
    pub fn set_dev_id_bytes(&mut self, bytes: u8) -> Result<(), BuilderError> {
        let fits = id_bytes_for(self.devs.len().saturating_sub(1) as u32) <= bytes;
        if !fits || !matches!(bytes, 2 | 4) {
            return Err(BuilderError::invalid(
                "dev-id-bytes",
                bytes,
                "2 or 4, and wide enough for the highest device id",
            ));
        }
        self.table_id_bytes = bytes;
        Ok(())
    }

    /// A balanced ring of these devices, none of which has had partitions before.
    ///
    /// # Errors
    /// As [`RingBuilder::new`], [`RingBuilder::add_dev`] and [`RingBuilder::rebalance`].
    pub fn balanced(
        part_power: u32,
        replicas: f64,
        devices: impl IntoIterator<Item = NewDevice>,
    ) -> Result<RingData, BuilderError> {
        let mut builder = RingBuilder::new(part_power, replicas, 0)?;
        for device in devices {
            builder.add_dev(device)?;
        }
        builder.rebalance(RebalanceOptions {
            seed: None,
            now: 0,
            log: None,
        })?;
        Ok(builder.ring_data())
    }

    /// The content of a ring file.
    pub fn ring_data(&self) -> RingData {
        let bytes = self.dev_id_bytes();
        let device =
            |dev: &Option<BuilderDevice>| dev.as_ref().map(|dev| Arc::new(dev.device.clone()));
        let rows = self.table.iter().flatten();
        RingData {
            devs: self.devs.iter().map(device).collect(),
            part_power: self.part_power,
            next_part_power: self.next_part_power,
            version: Some(self.version),
            dev_id_bytes: bytes,
            rows: rows.map(|row| Row::new(row, bytes)).collect(),
            format_version: FormatVersion::V1,
        }
    }

    /// The ring as it would be written now.
    ///
    /// # Errors
    /// The assignments contradict themselves: see [`Ring::from_data`].
    pub fn ring(&self) -> Result<Ring, RingError> {
        Ring::from_data(self.ring_data())
    }

    /// Recovers a builder from a ring. Data that a ring does not contain is lost: `min_part_hours`
    /// is given anew, overload is 0, and every partition may move at once.
    ///
    /// # Errors
    /// `Ring` if the ring contradicts itself; `Invalid` for a partition power above 32, or replicas
    /// above 65536.
    pub fn from_ring_data(
        data: &RingData,
        min_part_hours: u32,
    ) -> Result<RingBuilder, BuilderError> {
        data.check()?;
        let rows: Vec<Vec<u32>> = data.rows.iter().map(|row| row.iter().collect()).collect();
        let mut builder = RingBuilder::new(
            data.part_power,
            data.replica_count().max(1.0),
            min_part_hours,
        )?;
        builder.next_part_power = data.next_part_power;
        builder.version = data.version.unwrap_or(0);
        builder.devs = data
            .devs
            .iter()
            .map(|dev| dev.as_deref().map(fresh))
            .collect();
        for id in rows.iter().flatten() {
            if let Some(Some(dev)) = builder.devs.get_mut(*id as usize) {
                dev.parts += 1;
            }
        }
        builder.table_id_bytes = data.dev_id_bytes.max(2);
        builder.table = (!rows.is_empty()).then_some(rows);
        builder.dispersion = None;
        Ok(builder)
    }
}

fn fresh(device: &Device) -> BuilderDevice {
    BuilderDevice {
        device: device.clone(),
        parts: 0,
        removing: false,
    }
}

fn check_replicas(replicas: f64) -> Result<(), BuilderError> {
    if !(1.0..=65536.0).contains(&replicas) {
        return Err(BuilderError::invalid(
            "replicas",
            replicas,
            "a number of at least 1",
        ));
    }
    Ok(())
}

/// Width in bytes for ids up to `id_max`. The highest value of a width means "none", so it is not
/// an id.
pub(crate) fn id_bytes_for(id_max: u32) -> u8 {
    if id_max < u32::from(u16::MAX) { 2 } else { 4 }
}
