//! The minimum time of any repair: creates the files in Swift's layout, each in folders of its own,
//! with content and one extended attribute, on as many threads as the machine has cores, with one
//! sync at the end. Nothing is read, verified, sent or renamed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use rustix::fs::{XattrFlags, fsetxattr, syncfs};

const ATTRIBUTE: &str = "user.swift.metadata";
/// Size of an object's pickled metadata with short names.
const ATTRIBUTE_BYTES: usize = 256;

/// Creates `files`, at their relative paths below `folder`, of `size` bytes each; returns the
/// seconds.
pub(super) fn make_files(folder: &Path, files: &BTreeSet<PathBuf>, size: u64) -> Result<f64> {
    let files: Vec<&PathBuf> = files.iter().collect();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let content = vec![b'x'; usize::try_from(size)?];
    let begun = Instant::now();
    fs::create_dir_all(folder)?;
    std::thread::scope(|scope| {
        let shares = files.chunks(files.len().div_ceil(threads).max(1));
        let make = |share: &[&PathBuf]| {
            share
                .iter()
                .try_for_each(|f| make(&folder.join(f), &content))
        };
        let threads: Vec<_> = shares
            .map(|share| scope.spawn(move || make(share)))
            .collect();
        let made = threads.into_iter().map(|thread| thread.join());
        made.map(|made| made.map_err(|_| anyhow!("a thread panicked"))?)
            .collect::<Result<Vec<()>>>()
    })?;
    syncfs(File::open(folder)?)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn make(path: &Path, content: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file at the root")?)?;
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    fsetxattr(
        &file,
        ATTRIBUTE,
        &[b'x'; ATTRIBUTE_BYTES],
        XattrFlags::empty(),
    )?;
    Ok(())
}
