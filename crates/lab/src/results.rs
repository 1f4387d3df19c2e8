//! Results of runs: the run folder's files as the generator writes them ([`RunWriter`]), the common
//! model for reports and comparisons ([`model::Run`]), and the tables written beside: COSBench's
//! own CSVs, more precise ones, and `.hlog`.

mod cosbench;
pub mod csv;
mod hlog;
pub mod model;
mod read;
mod resources;
mod ssbench;
mod tables;
mod time;
mod view;
mod writer;

pub use model::unnumbered;
pub use read::{ReadError, Recorded, read_folder};
pub use tables::write_run as write_run_tables;
pub use time::{date_time, duration, rfc3339};
pub use view::open_loop_words;
pub(crate) use writer::{HIDDEN, lock};
pub use writer::{RunWriter, WriteError, write_whole};

use std::path::Path;

/// Writes all tables of a recorded run beside its files, replacing earlier ones.
/// `docs/lab-results.md` lists their names.
///
/// # Errors
/// `Io` for the first table that cannot be made or written.
pub fn write_tables(folder: &Path, recorded: &Recorded) -> Result<(), WriteError> {
    cosbench::write(folder, recorded)?;
    ssbench::write(folder, recorded)?;
    tables::write(folder, recorded)?;
    hlog::write(folder, recorded)
}

#[cfg(test)]
mod tests;
