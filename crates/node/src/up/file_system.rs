//! Check of a new data folder's file system for the features that storing objects requires.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, bail};
use rustix::fs::{XattrFlags, fsetxattr, major, minor};

const CHECK_FILE: &str = ".cairn-check";
const LINKED_FILE: &str = ".cairn-check-linked";
const RENAMED_FILE: &str = ".cairn-check-renamed";
/// Bytes of metadata to try: an object with a few headers, too much for some file systems.
const METADATA_BYTES: usize = 1024;

/// Writes a file with metadata, syncs, links, renames and removes it.
pub(super) fn check(folder: &Path) -> Result<()> {
    let checked = try_out(folder);
    for name in [CHECK_FILE, LINKED_FILE, RENAMED_FILE] {
        // May be missing.
        let _ = fs::remove_file(folder.join(name));
    }
    let Err((what, error)) = checked else {
        return Ok(());
    };
    let kind = kind_of(folder).map_or(String::new(), |kind| format!(" ({kind})"));
    bail!(
        "--data {}: its file system{kind} cannot hold a store, for {what} fails: {error}: choose a \
         folder on XFS, ext4 or another file system with extended attributes with --data",
        folder.display()
    )
}

fn try_out(folder: &Path) -> Result<(), (&'static str, io::Error)> {
    let at = |name: &str| folder.join(name);
    let file = File::create_new(at(CHECK_FILE)).map_err(|error| ("writing a file", error))?;
    let value = [b'.'; METADATA_BYTES];
    fsetxattr(&file, "user.swift.metadata", &value, XattrFlags::empty())
        .map_err(|error| ("setting an extended attribute", error.into()))?;
    let synced = |error| ("syncing", error);
    file.sync_all().map_err(synced)?;
    fs::hard_link(at(CHECK_FILE), at(LINKED_FILE)).map_err(|error| ("linking a file", error))?;
    fs::rename(at(LINKED_FILE), at(RENAMED_FILE)).map_err(|error| ("renaming a file", error))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(synced)
}

/// Name of a folder's file system, from proc(5)'s `mountinfo`.
fn kind_of(folder: &Path) -> Option<String> {
    let device = fs::metadata(folder).ok()?.dev();
    let device = format!("{}:{}", major(device), minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut lines = mounts.lines();
    let line = lines.find(|line| line.split(' ').nth(2) == Some(&device))?;
    let (_, kind) = line.split_once(" - ")?;
    kind.split(' ').next().map(str::to_owned)
}
