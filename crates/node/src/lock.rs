//! One process per role and folder of devices: two would each believe that their queues and
//! caches are the only ones.
//!
//! The lock is a range of the folder itself (an open file description lock, fcntl(2)): no file lies
//! beside the devices, where Swift's programs and monitoring would take it for one that is not
//! mounted, and root, the servers' user and containers that share the folder hold the same lock. It
//! begins at its role's place and is as long as the holder's process id is large. A folder is open for
//! reading at most, so it is a lock for reading, of which there may be several: under flock(2) on the
//! folder the next one looks first whether it could lock for writing. Different roles may lock one
//! folder, from one process or several, and however a process ends its locks go.
//!
//! A data folder of `cairn up` has a file for it, locked by flock(2).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tracing::warn;

/// For others to look who holds what.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// From one role's place to the next: process ids are smaller.
const ROLE_BYTES: i64 = 1 << 32;
/// Roles' places: the last one still ends within what an offset can be.
const ROLES_MAX: u32 = 1 << 30;

/// Held until dropped.
#[derive(Debug)]
pub struct FolderLock(#[allow(dead_code, reason = "the open file is the lock")] Option<File>);

impl FolderLock {
    /// Locks a folder for a role. Where it is missing, or on a file system without such locks, there
    /// is a warning and no lock.
    pub fn devices(folder: &Path, role: &str) -> Result<FolderLock> {
        match lock_range(folder, role) {
            Ok(file) => {
                // An earlier release's lock, which looks like a device.
                let _ = fs::remove_file(folder.join(format!(".cairn-{role}.lock")));
                Ok(FolderLock(Some(file)))
            }
            Err(Refused::Held(by)) => bail!(
                "{} is served by another {role} process{by}: stop it, or give this one other \
                 devices; one that swift-init does not know of is listed by swift-orphans -a 0",
                folder.display()
            ),
            Err(Refused::NoFile(error) | Refused::Failed(error)) => {
                warn!(
                    folder = %folder.display(), role, %error,
                    "cannot lock this folder; nothing keeps a second server from these devices"
                );
                Ok(FolderLock(None))
            }
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

/// Offset of a role's range: the same in every release.
fn role_offset(role: &str) -> i64 {
    let sum = |sum: u32, byte: u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    i64::from(role.bytes().fold(0, sum) % ROLES_MAX) * ROLE_BYTES
}

fn lock_range(folder: &Path, role: &str) -> Result<File, Refused> {
    let file = File::open(folder).map_err(Refused::NoFile)?;
    let failed = |errno: nix::Error| Refused::Failed(errno.into());
    let deadline = Instant::now() + LOOK_TIMEOUT;
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK || Instant::now() >= deadline {
            return Err(Refused::Failed(error.into()));
        }
        thread::sleep(LOOK_AGAIN);
    }
    let range = |kind: i32, length: i64| libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: role_offset(role),
        l_len: length,
        l_pid: 0,
    };
    let mut other = range(libc::F_WRLCK, ROLE_BYTES);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut other)).map_err(failed)?;
    if i32::from(other.l_type) != libc::F_UNLCK {
        return Err(Refused::Held(format!(" (process {})", other.l_len)));
    }
    let own = range(libc::F_RDLCK, std::process::id().into());
    fcntl(&file, FcntlArg::F_OFD_SETLK(&own)).map_err(failed)?;
    flock(&file, FlockOperation::Unlock).map_err(|error| Refused::Failed(error.into()))?;
    Ok(file)
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::role::DaemonKind;
    use crate::role::Role;

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
        fs::write(folder.path().join(".cairn-object.lock"), "1").unwrap();
        let _again = FolderLock::devices(folder.path(), "object").unwrap();
        // Whatever lies there looks like a device.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn roles_have_places_of_their_own() {
        let mut names: Vec<String> = DaemonKind::ALL
            .iter()
            .map(|kind| kind.name().to_owned())
            .collect();
        for role in Role::ALL {
            names.extend([role.to_string(), role.as_str().to_owned()]);
            names.push(format!("{}-replication", role.as_str()));
        }
        names.sort();
        names.dedup();
        let places: BTreeSet<i64> = names.iter().map(|name| role_offset(name)).collect();
        assert_eq!(places.len(), names.len());
        assert!(places.iter().all(|place| *place >= 0));
    }
}
