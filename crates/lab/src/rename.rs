//! Another name or other tags for a run that is over.

use std::path::Path;

use anyhow::{Result, bail};

use crate::record::{RunFolder, RunMeta};
use crate::results::{RunWriter, lock, read_folder};

/// Maximum number of tags.
const TAGS_MAX: usize = 20;
/// Longest name and tag: a folder's name and a plot's legend have them.
const NAME_BYTES_MAX: usize = 200;
const TAG_BYTES_MAX: usize = 60;

/// Checks the name of a run.
///
/// # Errors
/// It is too long, empty, or has control characters.
pub fn run_name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=NAME_BYTES_MAX if !text.contains(char::is_control) => Ok(text.to_owned()),
        _ => Err(format!(
            "1 to {NAME_BYTES_MAX} bytes on one line were expected"
        )),
    }
}

/// Checks a tag.
///
/// # Errors
/// It is too long, empty, or has a comma or control characters.
pub fn tag(text: &str) -> Result<String, String> {
    let is_plain = !text.contains(|c: char| c.is_control() || c == ',');
    match text.trim().len() {
        1..=TAG_BYTES_MAX if is_plain => Ok(text.trim().to_owned()),
        _ => Err(format!(
            "1 to {TAG_BYTES_MAX} bytes without a comma were expected"
        )),
    }
}

/// Gives the run in this folder another name, if one is given, and changes its tags. Each is kept once.
/// Returns its record.
///
/// # Errors
/// The folder holds no run, the run is still under way, it would have more than 20 tags, or its record
/// cannot be written.
pub fn rename(
    root: &Path,
    name: Option<&str>,
    change: impl FnOnce(&mut Vec<String>),
) -> Result<RunMeta> {
    let folder = RunFolder::new(root);
    let mut meta = read_folder(root)?.meta;
    // A run under way would write its record over this one.
    let _lock = lock(&folder)?;
    if let Some(name) = name {
        name.clone_into(&mut meta.name);
    }
    let mut tags = std::mem::take(&mut meta.tags);
    change(&mut tags);
    for tag in tags {
        if !meta.tags.contains(&tag) {
            meta.tags.push(tag);
        }
    }
    if meta.tags.len() > TAGS_MAX {
        bail!(
            "{} tags: at most {TAGS_MAX} are kept; take some away",
            meta.tags.len()
        );
    }
    RunWriter::amend(&folder, &meta)?;
    Ok(meta)
}
