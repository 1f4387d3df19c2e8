//! Search for conf files and pid files.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders to search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    /// Folder of conf files.
    pub swift_dir: PathBuf,
    /// Folder of pid files.
    pub run_dir: PathBuf,
}

/// Whether a name matches a pattern with `*`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    (0..=name.len())
        .filter(|at| name.is_char_boundary(*at))
        .any(|at| matches(rest, &name[at..]))
}

/// A search below a root.
pub(super) struct Search<'a> {
    pub(super) root: &'a Path,
    /// Pattern of names directly in the root.
    pub(super) pattern: &'a str,
    /// Suffixes of file names; empty for any.
    pub(super) file_ends: &'a [&'a str],
    /// Suffix of folders that count as one match.
    pub(super) folder_end: Option<&'a str>,
}

impl Search<'_> {
    /// All matches, in the order of their paths.
    pub(super) fn run(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for path in entries(self.root) {
            let name = name_of(&path);
            if !matches(self.pattern, &name) {
                continue;
            }
            if path.is_dir() {
                self.walk(&path, &mut found);
            } else if self.is_wanted(&name) {
                found.push(path);
            }
        }
        found.sort();
        found
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.file_ends.is_empty() || self.file_ends.iter().any(|end| name.ends_with(end))
    }

    fn walk(&self, folder: &Path, found: &mut Vec<PathBuf>) {
        let is_whole = |path: &Path| {
            self.folder_end
                .is_some_and(|end| name_of(path).ends_with(end))
        };
        if is_whole(folder) {
            return found.push(folder.to_owned());
        }
        let (folders, files): (Vec<_>, Vec<_>) =
            entries(folder).into_iter().partition(|path| path.is_dir());
        found.extend(files.into_iter().filter(|f| self.is_wanted(&name_of(f))));
        for folder in folders {
            self.walk(&folder, found);
        }
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Entries of a folder; empty if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}
