//! Bodies that are files: which of them an opening removes, and which it keeps.

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io;
use std::time::Duration;

use crate::medium::{Folder, Medium};
use crate::store::Store;
use crate::store::quarantine::{LARGE, keep_large};
use crate::store::recovery::Recovery;

/// A file without a number is an upload under way, perhaps of another process, on file systems where those need
/// names. It is written to sooner.
const UPLOAD_AGE: Duration = Duration::from_secs(24 * 3600);

fn is_left_over(entry: &DirEntry) -> io::Result<bool> {
    let written = entry.metadata()?.modified()?;
    Ok(written.elapsed().is_ok_and(|age| age >= UPLOAD_AGE))
}

/// Removes large bodies that no record names, where all records were read; gives the highest number
/// there is. Where a record that may have named them was damaged they are kept as quarantined ones.
pub(super) fn clear_large(store: &Store, folder: &Folder, report: &Recovery) -> io::Result<u64> {
    let is_damaged = report.lost > 0 || report.has_unnamed;
    let is_known = report.unreadable == 0 && !is_damaged;
    let entries = match std::fs::read_dir(folder.path().join(LARGE)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut named = BTreeSet::new();
    for group in store.index().groups() {
        for (_, entries) in store.index().group_objects(group) {
            named.extend(entries.iter().filter_map(|entry| entry.external));
        }
    }
    let mut last = named.last().copied().unwrap_or(0);
    let mut has_kept = false;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| u64::from_str_radix(name, 16).ok());
        last = last.max(number.unwrap_or(0));
        match number {
            Some(number) if named.contains(&number) => {}
            // The damage is not seen any more after the next checkpoint.
            Some(number) if is_damaged => {
                keep_large(folder, number)?;
                has_kept = true;
            }
            None if !is_left_over(&entry)? => {}
            _ if is_known => std::fs::remove_file(entry.path())?,
            _ => {}
        }
    }
    if has_kept {
        folder.sync_dir()?;
    }
    Ok(last)
}
