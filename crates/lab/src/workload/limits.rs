//! Limits of workload files: wide enough for every workload that a machine could run, narrow enough
//! that a hostile file costs neither memory nor time.

use std::time::Duration;

/// Maximum bytes of a file.
pub const FILE_BYTES: usize = 4 << 20;
/// Maximum bytes of a conf, whose options may refer to each other.
pub const CONF_BYTES: usize = 64 << 10;
/// Maximum bytes of one name, path, URL or other text.
pub const TEXT_BYTES: usize = 4096;
/// Maximum depth of nested elements.
pub const DEPTH: usize = 32;
/// Maximum number of elements of an XML file, and of attributes of one element.
pub const ELEMENTS: usize = 50_000;
pub const ATTRIBUTES: usize = 64;
/// Maximum number of stages of a plan, with sweeps expanded.
pub const STAGES: usize = 10_000;
pub const OPERATIONS: usize = 50_000;
/// Maximum number of points of all sweeps together, including those that make no stage.
pub const POINTS: usize = 50_000;
/// Maximum number of workers of one work, over all drivers.
pub const WORKERS: u64 = 1_000_000;
/// Maximum number in a container's or object's name.
pub const NUMBER: u64 = 1_000_000_000_000;
/// Maximum bytes of an object: 16 TiB.
pub const OBJECT_BYTES: u64 = 16 << 40;
/// Maximum of `total_bytes`: 1 EiB.
pub const TOTAL_BYTES: u64 = 1 << 60;
/// Maximum of `total_ops`.
pub const TOTAL_OPS: u64 = 1_000_000_000_000;
/// Maximum number of bars of a histogram, and weight of one.
pub const BARS: usize = 1000;
pub const WEIGHT: u64 = 1_000_000_000;
/// Maximum duration: a year.
pub const TIME: Duration = Duration::from_secs(366 * 24 * 3600);
/// Maximum rate of an open loop, operations per second.
pub const RATE: f64 = 1e8;
/// Maximum number of objects of one bulk deletion, as Swift has it; S3 takes 1000.
pub const BATCH: u64 = 10_000;
/// Maximum exponent of a zipf selector.
pub const EXPONENT: f64 = 20.0;
/// Maximum number of notes.
pub const NOTES: usize = 100;
