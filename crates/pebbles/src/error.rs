//! Errors of a store of volumes.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum PebblesError {
    #[error("no space left")]
    NoSpace,
    /// A write or sync failed: what is on disk is not known until the log was read anew.
    #[error("a write failed before: volumes take no more until they were opened anew")]
    Poisoned,
    #[error("the store was closed")]
    Closed,
    #[error("too many writes wait")]
    Busy,
    #[error("name, metadata or body is longer than a record holds")]
    TooLarge,
    /// Nothing was changed.
    #[error(
        "{name} has format version {version}, and this program knows 1: run the release that wrote \
         it, or a later one"
    )]
    Format { name: String, version: u8 },
    #[error("{action}: {source}")]
    Io {
        action: &'static str,
        source: io::Error,
    },
}

impl PebblesError {
    /// Whether nothing of the write can be on disk. After other failures the next opening knows.
    pub(crate) fn is_refusal(&self) -> bool {
        use PebblesError::{Busy, Closed, Format, Io, NoSpace, Poisoned, TooLarge};
        match self {
            NoSpace | Busy | TooLarge => true,
            Poisoned | Closed | Format { .. } | Io { .. } => false,
        }
    }

    /// Blocks of a volume that the disk did not give: it may the next time.
    pub(crate) fn unread(action: &'static str, slot: u16) -> Self {
        let text = "blocks cannot be read: they are damage if they cannot in ten seconds either";
        PebblesError::Io {
            action,
            source: io::Error::other(format!("volume {slot}: {text}")),
        }
    }

    pub(crate) fn of_io(action: &'static str, source: io::Error) -> Self {
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(OtherFormat { name, version }) = inner {
            let (name, version) = (name.clone(), *version);
            return PebblesError::Format { name, version };
        }
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PebblesError::NoSpace,
            _ => PebblesError::Io { action, source },
        }
    }
}

/// A batch or a record of another format, in a volume of this one.
#[derive(Debug, Error)]
#[error("{name} has something of format version {version}, which this program does not know")]
pub(crate) struct OtherFormat {
    pub(crate) name: String,
    pub(crate) version: u8,
}

impl From<OtherFormat> for io::Error {
    fn from(error: OtherFormat) -> Self {
        io::Error::other(error)
    }
}

/// Whether an error says that the disk has lost a sector, and not that something else is amiss.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    const LOST: [Errno; 5] = [
        Errno::IO,
        Errno::NODATA,
        Errno::ILSEQ,
        Errno::REMOTEIO,
        Errno::BADMSG,
    ];
    let code = error.raw_os_error();
    LOST.iter().any(|errno| Some(errno.raw_os_error()) == code)
}

/// A record could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Not there; or moved meanwhile, and it can be looked up again.
    #[error("no such record")]
    Gone,
    #[error("damaged: {0}")]
    Damaged(String),
    /// The disk did not give it, and may yet: it is no damage before it has lasted.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("read: {0}")]
    Io(#[from] io::Error),
}
