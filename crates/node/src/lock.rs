//! One process per role and folder of devices: two would each believe that their queues and
//! caches are the only ones.
//!
//! The lock is `flock(2)` on `<devices>/.cairn-<role>.lock`. The file stays when the process ends,
//! the lock does not, however the process ends. Swift's own programs take such a file for a
//! device that is not mounted, and skip it. Different roles may lock one folder, from one process
//! or several.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tracing::warn;

/// Held until dropped.
#[derive(Debug)]
pub struct FolderLock(#[allow(dead_code, reason = "the open file is the lock")] Option<File>);

impl FolderLock {
    /// Locks a folder for a role. Where the folder cannot be written to (its mount points can,
    /// it itself often cannot) or is missing, there is a warning and no lock.
    pub fn devices(folder: &Path, role: &str) -> Result<FolderLock> {
        match lock_file(&folder.join(format!(".cairn-{role}.lock"))) {
            Err(Refused::NoFile(error)) => {
                warn!(
                    folder = %folder.display(), role, %error,
                    "cannot write a lock file; nothing keeps a second server from these devices"
                );
                Ok(FolderLock(None))
            }
            Err(Refused::Held(by)) => bail!(
                "{} is served by another {role} process{by}: stop it, or give this one other \
                 devices",
                folder.display()
            ),
            Err(Refused::Failed(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", folder.display()))
            }
            Ok(file) => Ok(FolderLock(Some(file))),
        }
    }

    /// Locks a data folder of `cairn up`.
    pub fn data(folder: &Path) -> Result<FolderLock> {
        let remedy = "choose another folder with --data";
        match lock_file(&folder.join("lock")) {
            Err(Refused::Held(by)) => bail!(
                "--data {}: another cairn is using this folder{by}: stop it, or {remedy}",
                folder.display()
            ),
            Err(Refused::NoFile(error) | Refused::Failed(error)) => Err(error)
                .with_context(|| format!("--data {}: cannot lock it; {remedy}", folder.display())),
            Ok(file) => Ok(FolderLock(Some(file))),
        }
    }
}

enum Refused {
    /// ` (process N)`, where it is known.
    Held(String),
    /// There can be no lock file here.
    NoFile(std::io::Error),
    Failed(std::io::Error),
}

fn lock_file(path: &Path) -> Result<File, Refused> {
    let opened = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound => {
            Refused::NoFile(error)
        }
        _ => Refused::Failed(error),
    })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // Only for the message: unreadable is as good as unknown.
            let _ = file.take(32).read_to_string(&mut holder);
            let number = holder.trim().parse::<u32>();
            return Err(Refused::Held(
                number
                    .map(|n| format!(" (process {n})"))
                    .unwrap_or_default(),
            ));
        }
        Err(error) => return Err(Refused::Failed(error.into())),
    }
    // Who holds it, for the message of the next one; the lock itself is held already.
    let _ = file.set_len(0);
    let _ = file.rewind();
    let _ = writeln!(file, "{}", std::process::id());
    Ok(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_per_role() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::devices(folder.path(), "object").unwrap();
        let error = FolderLock::devices(folder.path(), "object")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("another object process (process "),
            "{error}"
        );
        FolderLock::devices(folder.path(), "container").unwrap();
        FolderLock::devices(&folder.path().join("missing"), "object").unwrap();
        drop(first);
        FolderLock::devices(folder.path(), "object").unwrap();
    }
}
