//! Locks: one process per role and folder of devices, as each assumes that its queues and caches
//! are the only ones.
//!
//! The lock is a range of the folder itself (an open file description lock, fcntl(2)): a lock file
//! beside the devices would be taken by Swift's programs and monitoring for an unmounted device,
//! and this way root, the servers' user and containers that share the folder have the same lock.
//! The range starts at the role's offset and is as long as the holder's process id. A folder can be
//! opened for reading only, so this is a read lock, of which there may be several: under flock(2)
//! on the folder each process first tests whether it could acquire a write lock. Different roles
//! may lock one folder, from one process or several, and locks are released however a process ends.
//!
//! A data folder of `cairn up` has a lock file for flock(2).

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

use crate::role::{DaemonKind, Role};

/// Timeout for the short flock under which locks are tested.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes per role's range: greater than any process id.
const ROLE_BYTES: i64 = 1 << 32;
/// Maximum roles, such that the last range ends within the maximum offset.
const ROLES_MAX: u32 = 1 << 30;

/// Guard of a lock.
#[derive(Debug)]
pub struct FolderLock(#[allow(dead_code, reason = "the open file is the lock")] Option<File>);

impl FolderLock {
    /// Locks a folder for a role. If it is missing, or the file system has no such locks, logs a
    /// warning and locks nothing.
    ///
    /// # Errors
    /// Another process of this role holds the folder.
    pub fn devices(folder: &Path, role: &str) -> Result<FolderLock> {
        match lock_range(folder, role) {
            Ok(file) => {
                // Lock file of an earlier release, which looks like a device.
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

    /// Locks a folder of devices against all servers and daemons of objects, for a tool that
    /// needs the devices for itself.
    ///
    /// # Errors
    /// One of them serves the folder, or the folder cannot be locked.
    pub fn all_of_objects(folder: &Path) -> Result<Vec<FolderLock>> {
        let beside = DaemonKind::ALL.into_iter();
        let beside = beside.filter(|kind| Role::beside(*kind) == Role::Object);
        let mut roles: Vec<String> = beside.map(|kind| kind.name().to_owned()).collect();
        let server = Role::Object.as_str();
        roles.extend([server.to_owned(), format!("{server}-replication")]);
        let lock = |role: String| match lock_range(folder, &role) {
            Ok(file) => Ok(FolderLock(Some(file))),
            Err(Refused::Held(by)) => bail!(
                "{} is served by the {role} process{by}: stop all servers and daemons of its \
                 devices first",
                folder.display()
            ),
            Err(Refused::NoFile(error) | Refused::Failed(error)) => Err(error).with_context(|| {
                let folder = folder.display();
                format!("{folder}: cannot lock this folder against servers")
            }),
        };
        roles.into_iter().map(lock).collect()
    }

    /// Locks a data folder of `cairn up`.
    ///
    /// # Errors
    /// Another cairn holds the folder, or its lock file cannot be created or locked.
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
    /// ` (process N)`, if known.
    Held(String),
    /// A lock file cannot be created here.
    NoFile(std::io::Error),
    Failed(std::io::Error),
}

/// Offset of a role's range, the same in every release.
fn role_offset(role: &str) -> i64 {
    let sum = |sum: u32, byte: u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    i64::from(role.bytes().fold(0, sum) % ROLES_MAX) * ROLE_BYTES
}

fn lock_range(folder: &Path, role: &str) -> Result<File, Refused> {
    let file = File::open(folder).map_err(Refused::NoFile)?;
    let failed = |errno: nix::Error| Refused::Failed(errno.into());
    let deadline = Instant::now() + PROBE_TIMEOUT;
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK || Instant::now() >= deadline {
            return Err(Refused::Failed(error.into()));
        }
        thread::sleep(POLL_INTERVAL);
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
            // Only for the message: unreadable is the same as unknown.
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
    // The holder, for others' messages; the lock itself is held already.
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
        // Any file there would look like a device.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_tool_has_the_devices_for_itself() {
        let folder = tempfile::tempdir().unwrap();
        for role in ["object", "object-replication", "object-auditor"] {
            let server = FolderLock::devices(folder.path(), role).unwrap();
            let refused = FolderLock::all_of_objects(folder.path()).unwrap_err();
            let wanted = format!("served by the {role} process");
            assert!(refused.to_string().contains(&wanted), "{refused}");
            drop(server);
            let tool = FolderLock::all_of_objects(folder.path()).unwrap();
            assert!(FolderLock::devices(folder.path(), role).is_err());
            drop(tool);
        }
        let _containers = FolderLock::devices(folder.path(), "container").unwrap();
        FolderLock::all_of_objects(folder.path()).unwrap();
        // It would not be noticed that servers come.
        FolderLock::all_of_objects(&folder.path().join("missing")).unwrap_err();
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
