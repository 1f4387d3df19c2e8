//! A file with this process's id, for process managers (`--pid-file`).
//!
//! It is written before root's privileges are dropped, into a folder that may belong to the user:
//! symlinks are not followed, and only a file with a single link is written. It is removed at the
//! end by that user, who may lack permission; it is then truncated through the open descriptor. A
//! killed process leaves it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;

pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    pub(crate) fn write(path: &Path) -> Result<PidFile> {
        let name = path.display();
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path);
        let mut file = opened.with_context(|| {
            format!("--pid-file {name}: cannot write it (links are not followed)")
        })?;
        let written = file.metadata().and_then(|of| {
            let is_plain = of.is_file() && of.nlink() == 1;
            if is_plain {
                file.set_len(0)?;
                file.write_all(own_line().as_bytes())?;
            }
            Ok(is_plain)
        });
        match written.with_context(|| format!("--pid-file {name}: cannot write it"))? {
            true => Ok(PidFile {
                path: path.to_owned(),
                file,
            }),
            false => bail!("--pid-file {name}: not a file, or one of several names: remove it"),
        }
    }
}

fn own_line() -> String {
    format!("{}\n", std::process::id())
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another process's by now, or gone: not ours to remove.
        if self.is_ours().unwrap_or(false) && fs::remove_file(&self.path).is_err() {
            let _ = self.file.set_len(0);
        }
    }
}

impl PidFile {
    /// Whether the file of that name is the one written, unchanged. A replacement is not opened: it
    /// may be a symlink, or a pipe without a writer.
    fn is_ours(&self) -> std::io::Result<bool> {
        let (there, own) = (fs::symlink_metadata(&self.path)?, self.file.metadata()?);
        let line = own_line();
        let mut text = vec![0; line.len() + 1];
        let length = self.file.read_at(&mut text, 0)?;
        let is_same = (there.dev(), there.ino()) == (own.dev(), own.ino());
        Ok(is_same && text[..length] == *line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn written_over_an_old_one_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cairn.pid");
        fs::write(&path, "an old one, which is longer\n").unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), own_line());
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("cairn.pid"), folder.path().join("other"));
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(PidFile::write(&path).is_err());
        fs::remove_file(&path).unwrap();
        fs::hard_link(&other, &path).unwrap();
        assert!(PidFile::write(&path).is_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(PidFile::write(&path).is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    }

    #[test]
    fn what_another_process_wrote_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cairn.pid");
        let file = PidFile::write(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        // A file with equal content from another process.
        let file = PidFile::write(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, own_line()).unwrap();
        drop(file);
        assert!(path.exists());
    }
}
