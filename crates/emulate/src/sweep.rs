//! Removal of leftovers of killed emulators: mounts, loop devices, control groups, network
//! namespaces. All names contain the process id of their emulator; those of living processes are
//! left alone.

use std::path::{Path, PathBuf};

use crate::host;
use crate::names::is_dead;

/// Removes leftovers of emulators that have ended.
pub fn sweep() {
    disks();
    crate::cgroup::sweep();
    crate::network::sweep();
}

fn disks() {
    let table = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let dead: Vec<&str> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let source = words.next()?;
            is_dead(source).then(|| words.next())?
        })
        .collect();
    if dead.is_empty() {
        return;
    }
    let list = ["--list", "--noheadings", "--output", "NAME,BACK-FILE"];
    for line in host::run("losetup", &list).unwrap_or_default().lines() {
        let Some((device, file)) = line.split_once(char::is_whitespace) else {
            continue;
        };
        if dead.iter().any(|at| Path::new(file.trim()).starts_with(at)) {
            for at in mounts_of(&table, device) {
                let _ = host::run("umount", &["--lazy", &at.to_string_lossy()]);
            }
            let _ = host::run("losetup", &["-d", device]);
        }
    }
    for at in dead {
        let _ = host::run("umount", &["--lazy", at]);
    }
}

fn mounts_of(table: &str, device: &str) -> Vec<PathBuf> {
    let of_device = |line: &str| {
        let mut words = line.split(' ');
        (words.next()? == device).then(|| words.next().map(PathBuf::from))?
    };
    table.lines().filter_map(of_device).collect()
}
