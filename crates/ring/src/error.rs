//! Errors of reading a ring file. Each message names the position, the value found and the expected
//! one, because the reader is usually an operator with a broken deployment.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("cannot {action} {path}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("ring file {path}: {source}")]
    File {
        path: PathBuf,
        #[source]
        source: Box<RingError>,
    },
    #[error("not a gzip file, or its compressed data is damaged: {0}")]
    Gzip(std::io::Error),
    #[error("bad ring magic {found:?}: a ring file starts with \"R1NG\"")]
    Magic { found: Vec<u8> },
    #[error("unsupported ring format version {found}: versions 1 and 2 can be read")]
    Version { found: u16 },
    #[error("the file ends inside {what}: {expected} bytes expected, {found} found")]
    Truncated {
        what: &'static str,
        expected: u64,
        found: u64,
    },
    #[error("{what} is said to be {found} bytes long; at most {limit} are accepted")]
    TooLarge {
        what: &'static str,
        found: u64,
        limit: u64,
    },
    #[error("{what} is not the JSON a ring holds: {source}")]
    Json {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("{field} is {found}: {expected} expected")]
    Field {
        field: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("section {section} is missing from the ring's index")]
    SectionMissing { section: &'static str },
    #[error("section {section} lies outside the file or disagrees with its own length")]
    SectionBounds { section: String },
    #[error("section {section} is damaged: {method} is {found}, the index says {expected}")]
    Checksum {
        section: String,
        method: String,
        expected: String,
        found: String,
    },
    #[error("the device at position {position} says its id is {id}: the two must agree")]
    DeviceId { position: usize, id: u32 },
    #[error("partition {part}, replica {replica} is assigned to device {id}, which does not exist")]
    UnknownDevice {
        part: usize,
        replica: usize,
        id: u32,
    },
    #[error(
        "replica row {replica} has {found} partitions of {expected}: only the last may be short"
    )]
    ShortRow {
        replica: usize,
        found: usize,
        expected: usize,
    },
    #[error("format version 1 holds device ids up to 65534 only: write format version 2 instead")]
    DeviceIdsTooWide,
}
