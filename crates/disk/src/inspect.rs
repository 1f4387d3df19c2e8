//! Read access to an object's file without a device, for tools that are given a path.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use crate::Metadata;
use crate::xattr;

/// Opens the file at its start, and reads its metadata.
///
/// # Errors
/// The file cannot be opened; `InvalidData` if its metadata cannot be read or is malformed.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let file = File::open(path)?;
    let metadata = xattr::read_metadata(file.as_fd())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{error:?}")))?;
    Ok((file, metadata))
}
