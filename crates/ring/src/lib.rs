//! The ring: which devices hold which partition.
//!
//! [`Ring`] answers look-ups (primaries and handoffs, in OpenStack Swift's order) from a
//! `.ring.gz` file; [`RingBuilder`] places partitions on devices and writes such files; [`cli`] is
//! `cairn ring` (`swift-ring-builder`).
//!
//! Pure: values in, values out, no tokio. Depends on `cairn-types` only. Files are touched in two
//! places, `files.rs` (load, save, reload) and `cli`; the clock is read in `cli` alone.

pub mod builder;
pub mod cli;

mod address;
mod bitset;
mod data;
mod device;
mod error;
mod files;
mod handoffs;
mod json;
mod lookup;
mod python_random;
mod read;
mod search;
mod write;

pub use address::{AddressError, normalize_address, normalize_ip};
pub use builder::{
    BuilderDevice, BuilderError, DeviceChange, DispersionReport, NewDevice, RebalanceOptions,
    RebalanceOutcome, RingBuilder, TierDispersion,
};
pub use data::{FormatVersion, RingData, Row};
pub use device::Device;
pub use error::RingError;
pub use files::RingFile;
pub use handoffs::{HandoffNode, Handoffs};
pub use lookup::{PrimaryNode, Ring};
pub use python_random::{PythonRandom, Seed};
pub use search::{DeviceSearch, SearchError};
