//! The audit log's file: appended to by a thread of its own, in the order of the lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use tokio::sync::mpsc::{self, error::TrySendError};

/// Lines that may wait for the disk. More go to the process's log.
const WAITING_MAX: usize = 1024;

pub(super) struct AuditFile {
    lines: mpsc::Sender<String>,
}

impl AuditFile {
    pub(super) fn open(path: &str) -> io::Result<AuditFile> {
        let mut log = Log::open(Path::new(path))?;
        let (lines, mut waiting) = mpsc::channel::<String>(WAITING_MAX);
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

    /// Lines that cannot be written go to the process's log: they are not lost silently.
    fn append(&mut self, text: &str) {
        let written = self
            .open_anew_if_moved()
            .and_then(|()| self.file.write_all(text.as_bytes()));
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, text, "audit lines were not written");
        }
    }

    /// Somebody may have moved the file away to keep it (logrotate).
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
