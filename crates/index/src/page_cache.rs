//! Files read from the disk, and not from what the page cache has of them.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;

/// Makes the next reader of a file get the disk's content. Dirty pages are written first, as only
/// clean ones can be dropped; the kernel may keep a page in use, so the content is compared with a
/// direct read where the file system supports it.
pub(crate) fn read_from_disk(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(direct) => File::from(direct),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match is_same(&file, &direct) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other(
            "the page cache keeps what is not on the disk",
        )),
        // `O_DIRECT` was accepted on opening, and the read refused.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_same(cached: &File, direct: &File) -> io::Result<bool> {
    use cairn_types::blocks::{ALIGN, Block};
    use std::os::unix::fs::FileExt;

    let mut at = 0;
    loop {
        let (mut on_disk, mut read) = (Block::take()?, Block::take()?);
        let count = direct.read_at(on_disk.spare(), at)?;
        let read = &mut read.spare()[..count];
        cached.read_exact_at(read, at)?;
        if on_disk.spare()[..count] != *read {
            return Ok(false);
        }
        // The file's tail after its last whole page.
        if !count.is_multiple_of(ALIGN) || count == 0 {
            return Ok(true);
        }
        at += count as u64;
    }
}
