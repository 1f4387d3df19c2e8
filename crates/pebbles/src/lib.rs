//! Small objects as records in volumes: an engine for one device, in place of a file an object.
//!
//! A volume is a file that is only appended to; the index of all objects is in memory. A write is a
//! record in the next batch of the one committer, and a batch one durable write. `docs/pebbles.md`
//! says when to take it, `docs/pebbles-format.md` what is on disk.
//!
//! Layer 1, beside `disk`, whose rules for which files of an object count it uses. Synchronous; its
//! threads are its own.

pub mod committer;
pub mod engine;
pub mod error;
pub mod format;
pub mod hashes;
pub mod index;
pub mod inspect;
pub mod medium;
pub mod migration;
pub mod object;
pub mod place;
pub mod read_errors;
mod scanner;
pub mod store;
pub mod upkeep;
pub mod volume;

pub use committer::Committer;
pub use engine::{PartPowers, PebblesConfig, PebblesEngine, Stores};
pub use error::{PebblesError, ReadError};
pub use migration::{Migrated, Migration, MigrationError};
pub use read_errors::ReadErrors;
pub use store::recovery::Recovery;
pub use store::{Change, Config, Expected, Outcome, Status, Store};
pub use upkeep::Upkeep;

#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::format::fuzzing::volume;
    pub use crate::store::checkpoint::fuzzing::chunk;
}
