//! Metadata in extended attributes, in Swift's format:
//!
//! ```text
//! user.swift.metadata            the pickle's first 65,536 bytes
//! user.swift.metadata1, 2, …     the following ones, where there are any
//! user.swift.metadata_checksum   MD5 of the whole pickle, 32 hex digits; absent in old files
//! ```

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use cairn_formats::pickle::PickleError;
use md5::{Digest, Md5};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use thiserror::Error;

use crate::metadata::Metadata;

const KEY: &str = "user.swift.metadata";
const CHECKSUM_KEY: &str = "user.swift.metadata_checksum";
/// The kernel's limit of a value, in bytes.
const CHUNK_BYTES: usize = 65_536;
/// Maximum chunks to read: far beyond Swift's limits.
const CHUNKS_MAX: usize = 64;

#[derive(Debug, Error)]
pub(crate) enum XattrError {
    #[error("the file system has no user extended attributes")]
    Unsupported,
    #[error("the metadata does not fit into the file's extended attributes")]
    TooLarge,
    #[error("metadata checksum mismatch: stored {stored:?}, computed {computed:?}")]
    BadChecksum { stored: String, computed: String },
    #[error("unreadable metadata: {0}")]
    Unreadable(#[from] PickleError),
    #[error("no metadata")]
    Missing,
    #[error("extended attributes: {0}")]
    Io(Errno),
}

impl From<Errno> for XattrError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::OPNOTSUPP => XattrError::Unsupported,
            Errno::NODATA => XattrError::Missing,
            other => XattrError::Io(other),
        }
    }
}

/// Lower-case hex digits of an MD5.
pub(crate) fn hex(digest: &[u8; 16]) -> String {
    cairn_types::ObjectHash(*digest).hex()
}

pub(crate) fn md5(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

/// Reads and verifies a file's metadata, usually in two system calls.
pub(crate) fn read_metadata(fd: BorrowedFd<'_>) -> Result<Metadata, XattrError> {
    let mut pickle = read_value(fd, KEY)?;
    let stored = match read_value(fd, CHECKSUM_KEY) {
        Ok(checksum) => Some(checksum),
        Err(XattrError::Missing) => None,
        Err(error) => return Err(error),
    };
    let is_whole = |pickle: &[u8]| match &stored {
        Some(stored) => hex(&md5(pickle)).as_bytes() == stored.as_slice(),
        None => !matches!(Metadata::from_pickle(pickle), Err(PickleError::Truncated)),
    };
    // Further chunks exist only if the first is not the whole.
    let mut chunk = 1;
    while !is_whole(&pickle) {
        match read_value(fd, &format!("{KEY}{chunk}")) {
            Ok(more) if chunk < CHUNKS_MAX => pickle.extend(more),
            Ok(_) | Err(XattrError::Missing) => {
                let Some(stored) = stored else { break };
                return Err(XattrError::BadChecksum {
                    stored: String::from_utf8_lossy(&stored).into_owned(),
                    computed: hex(&md5(&pickle)),
                });
            }
            Err(error) => return Err(error),
        }
        chunk += 1;
    }
    Ok(Metadata::from_pickle(&pickle)?)
}

/// Writes metadata to a new file; `TooLarge` if the file system has too little room for it, or
/// none.
pub(crate) fn write_metadata(fd: BorrowedFd<'_>, metadata: &Metadata) -> Result<(), XattrError> {
    write_pickle(fd, &metadata.to_pickle())
}

pub(crate) fn write_pickle(fd: BorrowedFd<'_>, pickle: &[u8]) -> Result<(), XattrError> {
    for (i, chunk) in pickle.chunks(CHUNK_BYTES).enumerate() {
        if i == 0 {
            write_value(fd, KEY, chunk)?;
        } else {
            write_value(fd, &format!("{KEY}{i}"), chunk)?;
        }
    }
    write_value(fd, CHECKSUM_KEY, hex(&md5(pickle)).as_bytes())
}

fn write_value(fd: BorrowedFd<'_>, key: &str, value: &[u8]) -> Result<(), XattrError> {
    match rustix::fs::fsetxattr(fd, key, value, XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE) => {
            Err(XattrError::TooLarge)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn read_value(fd: BorrowedFd<'_>, key: &str) -> Result<Vec<u8>, XattrError> {
    let mut small = [MaybeUninit::<u8>::uninit(); 2048];
    match rustix::fs::fgetxattr(fd, key, &mut small) {
        Ok((value, _)) => return Ok(value.to_vec()),
        Err(Errno::RANGE) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut value = vec![0; CHUNK_BYTES];
    let len = rustix::fs::fgetxattr(fd, key, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let file = tempfile::tempfile().unwrap();
        let metadata: Metadata = [("name", "/a/c/o"), ("ETag", "x")].into_iter().collect();
        match write_metadata(file.as_fd(), &metadata) {
            Err(XattrError::Unsupported) => {
                println!("skipped: no user extended attributes here");
                return;
            }
            other => other.unwrap(),
        }
        assert_eq!(read_metadata(file.as_fd()).unwrap(), metadata);
        write_value(file.as_fd(), CHECKSUM_KEY, b"0").unwrap();
        assert!(matches!(
            read_metadata(file.as_fd()),
            Err(XattrError::BadChecksum { .. })
        ));
        // Without a checksum, as older Swift wrote it.
        rustix::fs::fremovexattr(&file, CHECKSUM_KEY).unwrap();
        assert_eq!(read_metadata(file.as_fd()).unwrap(), metadata);
        // In two chunks.
        let pickle = metadata.to_pickle();
        let (head, tail) = pickle.split_at(20);
        write_value(file.as_fd(), KEY, head).unwrap();
        write_value(file.as_fd(), &format!("{KEY}1"), tail).unwrap();
        assert_eq!(read_metadata(file.as_fd()).unwrap(), metadata);
        rustix::fs::fremovexattr(&file, format!("{KEY}1")).unwrap();
        assert!(matches!(
            read_metadata(file.as_fd()),
            Err(XattrError::Unreadable(PickleError::Truncated))
        ));
        rustix::fs::fremovexattr(&file, KEY).unwrap();
        assert!(matches!(
            read_metadata(file.as_fd()),
            Err(XattrError::Missing)
        ));
    }
}
