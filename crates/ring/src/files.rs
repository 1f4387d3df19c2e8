//! Ring and builder files: loading, saving, and a ring that is reloaded when its file changes.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;

use crate::builder::{BuilderError, RingBuilder};
use crate::data::{FormatVersion, RingData};
use crate::error::RingError;
use crate::lookup::Ring;
use crate::write;

/// Maximum size of a ring file, far above any real one: twice the maximum of the uncompressed
/// table.
const RING_FILE_BYTES_MAX: u64 = 1 << 30;

impl Ring {
    /// Reads a `.ring.gz` file.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or is no valid ring.
    pub fn load(path: impl AsRef<Path>) -> Result<Ring, RingError> {
        let path = path.as_ref();
        load_with_stamp(path).map(|(ring, _)| ring)
    }

    /// Writes a `.ring.gz` file, atomically: readers see the old ring or the new one.
    ///
    /// # Errors
    /// `DeviceIdsTooWide` for version 1 if the ring has ids of four bytes; `Io` if the file cannot
    /// be written.
    pub fn save(&self, path: impl AsRef<Path>, version: FormatVersion) -> Result<(), RingError> {
        self.data.save(path, version)
    }
}

impl RingData {
    /// Writes a `.ring.gz` file, atomically: readers see the old ring or the new one.
    ///
    /// # Errors
    /// `DeviceIdsTooWide` for version 1 if the ring has ids of four bytes; `Io` if the file cannot
    /// be written.
    pub fn save(&self, path: impl AsRef<Path>, version: FormatVersion) -> Result<(), RingError> {
        write_atomically(path.as_ref(), &write::ring_bytes(self, version)?)
    }
}

impl RingBuilder {
    /// Reads a `.builder` file.
    ///
    /// # Errors
    /// The file cannot be read, or is no valid builder: see [`RingBuilder::from_bytes`].
    pub fn load(path: impl AsRef<Path>) -> Result<RingBuilder, BuilderError> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|e| io_error("read", path, e))?;
        RingBuilder::from_bytes(&bytes)
    }

    /// Writes a `.builder` file, atomically.
    ///
    /// # Errors
    /// `Ring` if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), BuilderError> {
        Ok(write_atomically(path.as_ref(), &self.to_bytes())?)
    }
}

/// Writes a temporary file beside the target, syncs it, and renames it into place.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), RingError> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let staged = path.with_file_name(name);
    let result = write_synced(&staged, bytes).and_then(|()| fs::rename(&staged, path));
    if let Err(source) = result {
        // The write has failed already; a leftover temporary file is the lesser problem.
        let _ = fs::remove_file(&staged);
        return Err(io_error("write", path, source));
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub(crate) fn io_error(action: &'static str, path: &Path, source: std::io::Error) -> RingError {
    RingError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Identity of a file's version: modification time and size.
type Stamp = (SystemTime, u64);

fn stamp(path: &Path) -> Result<Stamp, RingError> {
    let metadata = fs::metadata(path).map_err(|e| io_error("read", path, e))?;
    let modified = metadata.modified().map_err(|e| io_error("read", path, e))?;
    Ok((modified, metadata.len()))
}

/// Loads a ring with the stamp taken before reading, so that a file replaced meanwhile is noticed
/// at the next check.
fn load_with_stamp(path: &Path) -> Result<(Ring, Stamp), RingError> {
    let stamp = stamp(path)?;
    let file = fs::File::open(path).map_err(|e| io_error("open", path, e))?;
    let mut bytes = Vec::new();
    file.take(RING_FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| io_error("read", path, e))?;
    let in_file = |source| RingError::File {
        path: path.to_owned(),
        source: Box::new(source),
    };
    if bytes.len() as u64 > RING_FILE_BYTES_MAX {
        return Err(in_file(RingError::TooLarge {
            what: "the ring file",
            found: bytes.len() as u64,
            limit: RING_FILE_BYTES_MAX,
        }));
    }
    Ok((Ring::from_bytes(&bytes).map_err(in_file)?, stamp))
}

/// A ring that is reloaded when its file changes. [`RingFile::get`] is lock-free;
/// [`RingFile::refresh`] checks the file when due, and blocks while it loads, so it must be called
/// where blocking is allowed.
#[derive(Debug)]
pub struct RingFile {
    path: PathBuf,
    check_interval: Duration,
    ring: ArcSwap<Ring>,
    watch: Mutex<Watch>,
}

#[derive(Debug)]
struct Watch {
    next_check: Instant,
    stamp: Stamp,
}

impl RingFile {
    /// Interval at which Swift's servers check for a new ring.
    pub const DEFAULT_CHECK_INTERVAL: Duration = Duration::from_secs(15);

    /// Loads the ring; a ring that cannot be loaded at start is an error.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or is no valid ring.
    pub fn open(
        path: impl Into<PathBuf>,
        check_interval: Duration,
        now: Instant,
    ) -> Result<RingFile, RingError> {
        let path = path.into();
        let (ring, stamp) = load_with_stamp(&path)?;
        Ok(RingFile {
            path,
            check_interval,
            ring: ArcSwap::from_pointee(ring),
            watch: Mutex::new(Watch {
                next_check: now + check_interval,
                stamp,
            }),
        })
    }

    /// The ring last loaded.
    pub fn get(&self) -> Arc<Ring> {
        self.ring.load_full()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the file if the last check is at least `check_interval` ago, and loads it if it
    /// changed. Returns true if the ring was replaced. On error the old ring stays, and the next
    /// due call tries again. While one caller checks, others return at once.
    ///
    /// # Errors
    /// The changed file cannot be read, is too large, or is no valid ring.
    pub fn refresh(&self, now: Instant) -> Result<bool, RingError> {
        let Ok(mut watch) = self.watch.try_lock() else {
            return Ok(false);
        };
        if now < watch.next_check {
            return Ok(false);
        }
        watch.next_check = now + self.check_interval;
        if stamp(&self.path)? == watch.stamp {
            return Ok(false);
        }
        let (ring, stamp) = load_with_stamp(&self.path)?;
        watch.stamp = stamp;
        self.ring.store(Arc::new(ring));
        Ok(true)
    }
}
