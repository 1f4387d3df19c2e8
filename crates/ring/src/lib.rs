//! The ring: the assignment of partitions to devices.
//!
//! [`Ring`] does look-ups (primaries and handoffs, in OpenStack Swift's order) in a `.ring.gz`
//! file; [`RingBuilder`] assigns partitions to devices and writes such files; [`CompositeBuilder`]
//! combines the rings of several builders. The programs over them (`cairn ring`,
//! `swift-ring-composer`) are in `tools`.
//!
//! Pure: values in, values out, no tokio, no clock. Depends on `cairn-types` only. Files are
//! accessed in two modules, `files.rs` (load, save, reload) and `composite.rs`.

pub mod builder;
pub mod search;

mod address;
mod bitset;
mod composite;
mod data;
mod device;
mod error;
mod files;
mod lookup;
mod python_random;
mod read;
mod write;

pub use address::{AddressError, normalize_address, normalize_ip};
pub use builder::{
    BuilderDevice, BuilderError, DispersionReport, RebalanceOptions, RebalanceOutcome, RingBuilder,
    TierDispersion,
};
pub use composite::{Component, CompositeBuilder, CompositeError};
pub use data::{FormatVersion, RingData, Row};
pub use device::{Device, DeviceChange, NewDevice, bracketed};
pub use error::RingError;
pub use files::RingFile;
pub use lookup::{HandoffNode, Handoffs, PrimaryNode, Ring};
pub use python_random::{PythonRandom, Seed};
pub use search::{DeviceSearch, SearchError};
