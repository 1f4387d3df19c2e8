//! How large what a workload file says may be. Wide enough for every workload that a machine could
//! run, narrow enough that a hostile file costs neither memory nor time.

use std::time::Duration;

/// Of the file.
pub const FILE_BYTES: usize = 4 << 20;
/// Of a conf, whose options may name each other.
pub const CONF_BYTES: usize = 64 << 10;
/// Of one name, path, URL or other text.
pub const TEXT_BYTES: usize = 4096;
/// Of elements within elements.
pub const DEPTH: usize = 32;
/// Elements of an XML file, and attributes of one of them.
pub const ELEMENTS: usize = 50_000;
pub const ATTRIBUTES: usize = 64;
/// Of a plan, sweeps expanded.
pub const STAGES: usize = 10_000;
pub const OPERATIONS: usize = 50_000;
/// Points of all sweeps together, also of those that make no stage.
pub const POINTS: usize = 50_000;
/// Of one work, over all drivers.
pub const WORKERS: u64 = 1_000_000;
/// A container's or object's number.
pub const NUMBER: u64 = 1_000_000_000_000;
/// An object's bytes: 16 TiB.
pub const OBJECT_BYTES: u64 = 16 << 40;
/// Of `total_bytes`: 1 EiB.
pub const TOTAL_BYTES: u64 = 1 << 60;
/// Of `total_ops`.
pub const TOTAL_OPS: u64 = 1_000_000_000_000;
/// Bars of a histogram, and the weight of one.
pub const BARS: usize = 1000;
pub const WEIGHT: u64 = 1_000_000_000;
/// Of any time: a year.
pub const TIME: Duration = Duration::from_secs(366 * 24 * 3600);
/// Operations a second of an open loop.
pub const RATE: f64 = 1e8;
/// Of a zipf selector.
pub const EXPONENT: f64 = 20.0;
/// Things told as passed over.
pub const NOTES: usize = 100;
