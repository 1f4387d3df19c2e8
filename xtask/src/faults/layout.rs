//! Layout of a disk: the ranges of files and folders, and the positions of one file's bytes.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::disk::FileSystem;
use cairn_testkit::workspace::run_quiet;

const BLOCK: u64 = 4096;

/// All ranges except superblocks, tables and the journal.
pub(super) fn data(file_system: FileSystem, disk: &Path, size: u64) -> Result<Vec<Range<u64>>> {
    let mut taken = match file_system {
        FileSystem::Ext4 | FileSystem::Ext4NoJournal => of_ext4(disk)?,
        FileSystem::Xfs => of_xfs(disk)?,
    };
    taken.sort_by_key(|range| range.start);
    let (mut data, mut from) = (Vec::new(), 0);
    for range in taken {
        if from < range.start {
            data.push(from..range.start);
        }
        from = range.end.max(from);
    }
    data.push(from..size);
    Ok(data)
}

/// Parses output of `dumpe2fs` and `debugfs`: `  Inode table at 26-6425 (+26)`, and for the journal
/// `(0-4095):6426-10521`.
fn of_ext4(disk: &Path) -> Result<Vec<Range<u64>>> {
    let tables = run_quiet(Command::new("dumpe2fs").arg(disk))?;
    let journal = run_quiet(Command::new("debugfs").args(["-R", "stat <8>"]).arg(disk))?;
    let of_tables = tables.split(" at ").skip(1);
    let of_journal = journal
        .lines()
        .skip_while(|line| !line.starts_with("EXTENTS:"))
        .flat_map(|line| line.split(", "))
        .filter_map(|extent| extent.split_once("):").map(|(_, blocks)| blocks));
    let taken: Vec<Range<u64>> = of_tables.chain(of_journal).filter_map(blocks).collect();
    anyhow::ensure!(!taken.is_empty(), "dumpe2fs tells no tables");
    Ok(taken)
}

/// Parses `26-6425`, or `26`, ignoring what follows.
fn blocks(words: &str) -> Option<Range<u64>> {
    let is_other = |c: char| !c.is_ascii_digit() && c != '-';
    let range = words.split(is_other).next()?;
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    Some(first * BLOCK..(last + 1) * BLOCK)
}

/// From the superblock: the log is in the middle, and each allocation group begins with its
/// headers.
fn of_xfs(disk: &Path) -> Result<Vec<Range<u64>>> {
    let mut superblock = [0; 128];
    File::open(disk)?.read_exact_at(&mut superblock, 0)?;
    let number = |at: usize, length: usize| {
        let bytes = &superblock[at..at + length];
        bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
    };
    let (block, log_start) = (number(4, 4), number(48, 8));
    let (group_blocks, groups) = (number(84, 4), number(88, 4));
    let (log_blocks, group_bits) = (number(96, 4), number(124, 1));
    let in_group = log_start & ((1 << group_bits) - 1);
    let log = ((log_start >> group_bits) * group_blocks + in_group) * block;
    let headers = (0..groups).map(|group| group * group_blocks * block);
    let mut taken: Vec<Range<u64>> = headers.map(|start| start..start + 16 * block).collect();
    taken.push(log..log + log_blocks * block);
    Ok(taken)
}

/// The positions of a file's bytes; unwritten ones have none.
pub(super) fn places(file: &Path) -> Vec<Range<u64>> {
    let mut command = Command::new("filefrag");
    command.args(["-v", "-b4096"]).arg(file);
    let Ok(text) = run_quiet(&mut command) else {
        // The file may be gone meanwhile.
        return Vec::new();
    };
    text.lines().filter_map(place).collect()
}

/// Parses `   0:        0..       3:      33793..     33796:      4:             last,eof`.
fn place(line: &str) -> Option<Range<u64>> {
    let mut columns = line.split(':');
    columns.next()?.trim().parse::<u64>().ok()?;
    let (first, last) = columns.nth(1)?.split_once("..")?;
    if line.contains("delalloc") || line.contains("unknown") {
        return None;
    }
    let first: u64 = first.trim().parse().ok()?;
    let last: u64 = last.trim().parse().ok()?;
    Some(first * BLOCK..(last + 1) * BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_filefrag_tells() {
        let line = "   0:        0..       3:      33793..     33796:      4:             last,eof";
        assert_eq!(place(line), Some(33793 * 4096..33797 * 4096));
        assert_eq!(
            place(" ext:     logical_offset:        physical_offset:"),
            None
        );
        let waiting =
            "   0:        0..       3:          0..         3:      0: last,unknown_loc,delalloc";
        assert_eq!(place(waiting), None);
    }

    #[test]
    fn reads_what_dumpe2fs_tells() {
        assert_eq!(blocks("26-27 (+26)"), Some(26 * 4096..28 * 4096));
        assert_eq!(blocks("262 (+261), csum"), Some(262 * 4096..263 * 4096));
        assert_eq!(blocks("the end"), None);
    }
}
