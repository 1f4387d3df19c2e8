//! Basic value types of all other crates: timestamps, name hashes, storage policies, limits, and
//! the classes of metadata headers.
//!
//! Layer 0: no tokio, no files, no clock. Values in, values out. Depends on no other crate of the
//! workspace.

pub mod blocks;
pub mod calendar;
pub mod dilation;
pub mod erasure_scheme;
pub mod expirer;
pub mod hash_path;
pub mod header_name;
pub mod heuristic;
pub mod hex;
pub mod json_text;
pub mod limits;
pub mod metadata;
pub mod plant;
pub mod policy;
pub mod quorum;
pub mod split_mix;
pub mod timestamp;

pub use erasure_scheme::{EcType, ErasureScheme, SchemeError};
pub use hash_path::{HashPath, ObjectHash};
pub use limits::Constraints;
pub use metadata::ServerKind;
pub use policy::{PolicyError, PolicyIndex, PolicyKind, PolicySet, StoragePolicy};
pub use quorum::Quorum;
pub use split_mix::SplitMix;
pub use timestamp::{Timestamp, TimestampError};
