//! A folder whose files can be made to fail.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_pebbles::medium::{Folder, Medium, MediumFile, Space};
use parking_lot::Mutex;

/// A call that fails: reads of a range of a file, or writes to files with a prefix.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Read {
        name: String,
        from: u64,
        to: u64,
        errno: i32,
    },
    Write {
        prefix: String,
        errno: i32,
    },
    /// Writes of files with a prefix are taken, and cannot be made durable.
    Sync {
        prefix: String,
        errno: i32,
    },
    /// Files cannot be made.
    Create {
        errno: i32,
    },
    /// No bytes are free.
    Full,
}

pub(crate) type Faults = Arc<Mutex<Vec<Fault>>>;

/// Numbers of calls.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) creates: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) syncs: AtomicU64,
    /// Bytes of writes that wait for a sync, as zeros are written.
    pub(crate) written: AtomicU64,
}

pub(crate) struct Faulty {
    pub(crate) folder: Folder,
    pub(crate) faults: Faults,
    pub(crate) calls: Arc<Calls>,
    /// Bytes that are free, where nothing says otherwise.
    pub(crate) free: Arc<AtomicU64>,
}

struct File {
    file: Arc<dyn MediumFile>,
    name: String,
    faults: Faults,
    calls: Arc<Calls>,
}

impl Faulty {
    fn file(&self, name: &str, file: Arc<dyn MediumFile>) -> Arc<dyn MediumFile> {
        Arc::new(File {
            file,
            name: name.to_owned(),
            faults: self.faults.clone(),
            calls: self.calls.clone(),
        })
    }
}

impl Medium for Faulty {
    fn list(&self) -> io::Result<Vec<String>> {
        self.calls.lists.fetch_add(1, Ordering::Relaxed);
        self.folder.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        Ok(self.file(name, self.folder.open(name)?))
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn MediumFile>> {
        self.calls.creates.fetch_add(1, Ordering::Relaxed);
        for fault in self.faults.lock().iter() {
            if let Fault::Create { errno } = fault {
                return Err(io::Error::from_raw_os_error(*errno));
            }
        }
        Ok(self.file(name, self.folder.create(name, size)?))
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        Ok(self.file(name, self.folder.create_new(name)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        self.folder.rename(name, to)
    }

    fn link(&self, name: &str, to: &str) -> io::Result<()> {
        self.folder.link(name, to)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.calls.syncs.fetch_add(1, Ordering::Relaxed);
        self.folder.sync_dir()
    }

    fn sync_files(&self) -> io::Result<()> {
        self.calls.syncs.fetch_add(1, Ordering::Relaxed);
        self.folder.sync_files()
    }

    fn space(&self) -> io::Result<Space> {
        let is_full = |fault: &Fault| matches!(fault, Fault::Full);
        match self.faults.lock().iter().any(is_full) {
            true => Ok(Space {
                free: 0,
                total: 1 << 40,
            }),
            false => Ok(Space {
                free: self.free.load(Ordering::Relaxed),
                total: 1 << 40,
            }),
        }
    }
}

impl File {
    fn read_fails(&self, offset: u64, len: usize) -> io::Result<()> {
        for fault in self.faults.lock().iter() {
            if let Fault::Read {
                name,
                from,
                to,
                errno,
            } = fault
                && *name == self.name
                && offset < *to
                && *from < offset + len as u64
            {
                return Err(io::Error::from_raw_os_error(*errno));
            }
        }
        Ok(())
    }

    fn sync_fails(&self) -> io::Result<()> {
        for fault in self.faults.lock().iter() {
            if let Fault::Sync { prefix, errno } = fault
                && self.name.starts_with(prefix)
            {
                return Err(io::Error::from_raw_os_error(*errno));
            }
        }
        self.write_fails()
    }

    fn write_fails(&self) -> io::Result<()> {
        for fault in self.faults.lock().iter() {
            if let Fault::Write { prefix, errno } = fault
                && self.name.starts_with(prefix)
            {
                return Err(io::Error::from_raw_os_error(*errno));
            }
        }
        Ok(())
    }
}

impl MediumFile for File {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_fails(offset, into.len())?;
        self.file.read_at(offset, into)
    }

    fn read_cached(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.read_fails(offset, into.len())?;
        self.file.read_cached(offset, into)
    }

    fn write_durably(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        self.write_fails()?;
        self.file.write_durably(offset, blocks)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_fails()?;
        let bytes_written = bytes.len() as u64;
        self.calls
            .written
            .fetch_add(bytes_written, Ordering::Relaxed);
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.calls.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_fails()?;
        self.file.sync()
    }
}
