//! Limits of open files and connections: every connection and every open database needs
//! descriptors, and the usual soft limit of 1024 is meant for programs that use `select`. The
//! maximum of connections depends on them, and on memory.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use crate::role::Role;

/// Open files below which a busy server runs out.
const FEW_FILES: u64 = 4096;

/// Maximum bytes held for a connection whose client does not read, rounded up.
const CONNECTION_BYTES: u64 = 256 << 10;
/// Minimum connections of any server.
const CONNECTIONS_MIN: u64 = 64;

/// Maximum client connections of a server, such that open files are left for disks, databases and
/// calls to other servers, and at most a quarter of the memory is held by clients that do not read.
pub(crate) fn connections(role: Role) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = most_connections(role, files, memory());
    usize::try_from(most).unwrap_or(usize::MAX)
}

fn most_connections(role: Role, files: u64, memory: Option<u64>) -> u64 {
    // The connection itself and, for an upload, one per replica; or a file.
    let files_each = match role {
        Role::Proxy => 5,
        _ => 3,
    };
    let by_memory = memory.map_or(u64::MAX, |bytes| bytes / 4 / CONNECTION_BYTES);
    (files / files_each).min(by_memory).max(CONNECTIONS_MIN)
}

/// Memory in bytes of this host or container.
fn memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.as_deref().and_then(total_memory);
    let container = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(container).min()
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Raises the soft limit of open files to the hard limit.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        warn_of_few(limit.current);
        return;
    }
    match setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        Ok(()) => warn_of_few(limit.maximum),
        Err(error) => warn!(%error, "cannot raise the limit of open files"),
    }
}

/// Warns of a low limit; `None` is unlimited.
fn warn_of_few(files: Option<u64>) {
    if let Some(files) = files.filter(|files| *files < FEW_FILES) {
        warn!(
            files,
            "the limit of open files is low; raise it (ulimit -n) for a busy server"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_and_memory() {
        let gib = 1 << 30;
        assert_eq!(most_connections(Role::Proxy, 20_000, Some(64 * gib)), 4000);
        assert_eq!(most_connections(Role::Object, 30_000, None), 10_000);
        assert_eq!(most_connections(Role::Proxy, 1 << 20, Some(2 * gib)), 2048);
        assert_eq!(most_connections(Role::Proxy, 100, Some(gib)), 64);
        assert_eq!(total_memory("MemTotal:  2 kB\nMemFree: 1 kB\n"), Some(2048));
    }
}
