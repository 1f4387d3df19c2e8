//! Read-ahead of the kernel, by which the size of its read requests is chosen. A file system cannot ask for
//! more than 128 KiB; root can, through sysfs, once it is mounted.

use std::io;
use std::path::Path;

const READ_AHEAD_KIB: u32 = 1024;

/// Has the kernel read ahead in requests of a megabyte on the file system at `dir`, where we may.
/// `dir` is a canonical path.
pub(crate) fn widen(dir: &Path) {
    if let Err(error) = try_to(dir) {
        tracing::debug!(%error, "the kernel reads ahead by its own measure");
    }
}

fn try_to(dir: &Path) -> io::Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let device = device(&mounts, dir).ok_or(io::ErrorKind::NotFound)?;
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    std::fs::write(file, READ_AHEAD_KIB.to_string())
}

/// The number of the device that was mounted last at a directory, as `MAJOR:MINOR`.
fn device<'a>(mounts: &'a str, dir: &Path) -> Option<&'a str> {
    let dir = escape(dir.to_str()?);
    let mounted = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        (fields.nth(1)? == dir).then_some(device)
    })?;
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b':';
    mounted.bytes().all(is_number).then_some(mounted)
}

/// A path in the form of mountinfo.
fn escape(path: &str) -> String {
    let mut text = String::new();
    for character in path.chars() {
        match character {
            ' ' | '\t' | '\n' | '\\' => text.push_str(&format!("\\{:03o}", character as u32)),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_at_a_directory_is_found() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      40 22 0:50 / /mnt/a\\040b rw,nodev shared:1 - fuse.cairn http://h rw\n\
                      41 40 0:51 / /mnt/a\\040b rw - fuse.cairn http://h rw\n";
        assert_eq!(device(mounts, Path::new("/mnt/a b")), Some("0:51"));
        assert_eq!(device(mounts, Path::new("/")), Some("254:0"));
        assert_eq!(device(mounts, Path::new("/mnt")), None);
        assert_eq!(device("1 2 x/../y / /a", Path::new("/a")), None);
        assert_eq!(device("1 2", Path::new("/a")), None);
    }
}
