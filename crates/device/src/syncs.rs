//! Syncs: the set of things that one must cover, the file system it is done on, and the groups in which
//! many are one.

mod file_system;
mod group;
mod machine;
mod set;

pub use file_system::{FileSystem, Syncs};
pub(crate) use file_system::{Patience, Syncing};
#[cfg(all(test, feature = "shuttle"))]
pub(crate) use group::{Attendance, Entered};
pub use group::{GroupSync, fsync, sync_all};
pub(crate) use machine::instant;
pub use machine::{Machine, wall_clock};
pub use set::{SyncSet, SyncedFile, Trust, open_directory};
