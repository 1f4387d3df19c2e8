//! Folders of files that clients carry to a store and back: their names are the difficult ones, and
//! what came back is compared byte by byte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::random::Random;

/// Writes files with names that are difficult for clients and servers, in folders with such names.
///
/// # Errors
/// A folder cannot be created below `root`, or a file cannot be written there.
pub fn write_tree(root: &Path, files: usize) -> Result<()> {
    const FOLDERS: [&str; 8] = [
        "",
        "plain",
        "with space",
        "ünï/côdé",
        "deep/er/and/deeper/still",
        ".hidden",
        "100%25",
        "日本語",
    ];
    const NAMES: [&str; 16] = [
        "plain.txt",
        "two words",
        "per%cent",
        "per%2Fcent",
        "hash#tag",
        "question?mark",
        "a+b&c=d",
        "quo\"te",
        "apo'strophe",
        "semi;colon,comma",
        "naïve",
        "😀",
        "back\\slash",
        "~tilde",
        "-dash",
        "(paren)[bracket]",
    ];
    let mut random = Random::new(2000);
    for number in 0..files {
        let folder = root.join(FOLDERS[number % FOLDERS.len()]);
        std::fs::create_dir_all(&folder)?;
        let mut name = format!(
            "{number:04} {}",
            NAMES[number / FOLDERS.len() % NAMES.len()]
        );
        if number % 97 == 0 {
            name.push_str(&"long".repeat(50));
        }
        let size = match number {
            n if n % 50 == 0 => 0,
            n if n % 500 == 1 => 4_000_000 + random.below(4_000_000),
            n if n % 40 == 2 => random.below(300_000),
            _ => random.below(8_000),
        };
        std::fs::write(folder.join(name), random.bytes(size as usize))?;
    }
    Ok(())
}

/// Every file below `root` by its relative path.
///
/// # Errors
/// `root`, or a folder below it, cannot be listed.
pub fn files(root: &Path) -> Result<BTreeMap<PathBuf, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(root)?.to_owned(), path);
            }
        }
    }
    Ok(found)
}

/// Checks that two folders hold the same files, bytes compared.
///
/// # Errors
/// A file did not come back or came back different, and is named; the folders hold different
/// numbers of files; or one of them cannot be listed or read.
pub fn same_trees(source: &Path, back: &Path) -> Result<()> {
    let (source, back) = (files(source)?, files(back)?);
    for (name, path) in &source {
        let other = back
            .get(name)
            .with_context(|| format!("{} did not come back", name.display()))?;
        ensure!(
            std::fs::read(path)? == std::fs::read(other)?,
            "{} came back different",
            name.display()
        );
    }
    ensure!(
        source.len() == back.len(),
        "{} files went, {} came back",
        source.len(),
        back.len()
    );
    Ok(())
}
