//! The audit log's file: a thread of its own appends the lines in order.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use tokio::sync::mpsc::{self, error::TrySendError};

/// Maximum number of lines queued for the disk; further ones go to the process's log.
const QUEUED_LINES_MAX: usize = 1024;

pub(super) struct AuditFile {
    lines: mpsc::Sender<String>,
}

impl AuditFile {
    pub(super) fn open(path: &str) -> io::Result<AuditFile> {
        let mut log = Log::open(Path::new(path))?;
        let (lines, mut waiting) = mpsc::channel::<String>(QUEUED_LINES_MAX);
        thread::Builder::new().name("audit".into()).spawn(move || {
            while let Some(mut text) = waiting.blocking_recv() {
                while let Ok(more) = waiting.try_recv() {
                    text.push_str(&more);
                }
                log.append(&text);
            }
        })?;
        Ok(AuditFile { lines })
    }

    pub(super) fn append(&self, line: String) {
        if let Err(error) = self.lines.try_send(line) {
            let (TrySendError::Full(line) | TrySendError::Closed(line)) = error;
            tracing::error!(
                line,
                "an audit line was not written: too many wait for the disk"
            );
        }
    }
}

struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    fn open(path: &Path) -> io::Result<Log> {
        let open = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path);
        Ok(Log {
            path: path.to_owned(),
            file: open?,
        })
    }

    /// Appends a line; one that cannot be written goes to the process's log, so that it is not lost
    /// silently.
    fn append(&mut self, text: &str) {
        let written = self
            .open_anew_if_moved()
            .and_then(|()| self.file.write_all(text.as_bytes()));
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, text, "audit lines were not written");
        }
    }

    /// Reopens the file if it has been moved away, as logrotate does.
    fn open_anew_if_moved(&mut self) -> io::Result<()> {
        let ours = self.file.metadata()?;
        let is_ours =
            |named: std::fs::Metadata| (named.dev(), named.ino()) == (ours.dev(), ours.ino());
        if !self.path.metadata().is_ok_and(is_ours) {
            *self = Log::open(&self.path.clone())?;
        }
        Ok(())
    }
}
