//! The medium of a real device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::{Medium, MediumFile, Space};
use crate::format::BLOCK;

/// A folder, made where it is missing.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    dir: OwnedFd,
    /// Durable writes return at once: for throw-away clusters (`unsafe_no_fsync`).
    is_unsafe: bool,
}

impl Folder {
    /// `path`: its parent is there. Syncs the parent where the folder is new.
    pub fn open(path: &Path, is_unsafe: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                let parent = rustix::fs::openat(CWD, parent, flags, Mode::empty())?;
                rustix::fs::fsync(parent)?;
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Folder {
            path: path.to_owned(),
            dir: rustix::fs::openat(CWD, path, flags, Mode::empty())?,
            is_unsafe,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        Ok(rustix::fs::openat(&self.dir, name, flags, mode)?)
    }

    fn opened(&self, name: &str, file: OwnedFd) -> Arc<dyn MediumFile> {
        let direct = self.open_file(name, OFlags::DIRECT | OFlags::DSYNC);
        Arc::new(File {
            file,
            // A file system without O_DIRECT has plain writes and syncs.
            direct: direct.ok(),
            is_unsafe: self.is_unsafe,
        })
    }
}

impl Medium for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            let name = name.filter(|name| !name.starts_with('.'));
            names.extend(name.map(str::to_owned));
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        let file = self.open_file(name, OFlags::empty())?;
        Ok(self.opened(name, file))
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn MediumFile>> {
        let file = self.open_file(name, OFlags::CREATE | OFlags::TRUNC)?;
        if size > 0 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(&file, size)?,
                Err(errno) => {
                    drop(file);
                    let _ = self.remove(name);
                    return Err(errno.into());
                }
            }
        }
        Ok(self.opened(name, file))
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        let file = self.open_file(name, OFlags::CREATE | OFlags::EXCL)?;
        Ok(self.opened(name, file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, name, &self.dir, to)?)
    }

    fn sync_dir(&self) -> io::Result<()> {
        match self.is_unsafe {
            true => Ok(()),
            false => Ok(rustix::fs::fsync(&self.dir)?),
        }
    }

    fn sync_files(&self) -> io::Result<()> {
        match self.is_unsafe {
            true => Ok(()),
            false => Ok(rustix::fs::syncfs(&self.dir)?),
        }
    }

    fn space(&self) -> io::Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.dir)?;
        Ok(Space {
            free: stat.f_frsize.saturating_mul(stat.f_bavail),
            total: stat.f_frsize.saturating_mul(stat.f_blocks),
        })
    }
}

struct File {
    file: OwnedFd,
    /// The same file, opened so that writes go past the page cache and return when they are durable.
    direct: Option<OwnedFd>,
    is_unsafe: bool,
}

fn write_all(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                offset += count as u64;
                bytes = &bytes[count..];
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

impl MediumFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_size as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.file, &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }

    fn read_cached(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut into = [io::IoSliceMut::new(into)];
        let flags = ReadWriteFlags::NOWAIT;
        Ok(rustix::io::preadv2(&self.file, &mut into, offset, flags)?)
    }

    fn forget(&self, offset: u64, len: u64) {
        // The kernel keeps pages that are only touched in part.
        let block = BLOCK as u64;
        let from = offset / block * block;
        let len = std::num::NonZero::new((offset + len).next_multiple_of(block) - from);
        let _ = rustix::fs::fadvise(&self.file, from, len, rustix::fs::Advice::DontNeed);
    }

    fn write_durably(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        debug_assert!(offset.is_multiple_of(BLOCK as u64) && blocks.len().is_multiple_of(BLOCK));
        if self.is_unsafe {
            return write_all(&self.file, offset, blocks);
        }
        if let Some(direct) = self.direct.as_ref().filter(|_| is_aligned(blocks)) {
            match write_all(direct, offset, blocks) {
                // The file system takes the flag and not the write.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                other => return other,
            }
        }
        write_all(&self.file, offset, blocks)?;
        if let Err(errno) = rustix::fs::fdatasync(self.file.as_fd()) {
            // The kernel takes the lost pages for clean: whoever reads them has to read the disk.
            let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
            return Err(errno.into());
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_all(&self.file, offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        match self.is_unsafe {
            true => Ok(()),
            false => Ok(rustix::fs::fsync(&self.file)?),
        }
    }
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(BLOCK)
}
