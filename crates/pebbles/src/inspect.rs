//! Looking at a device's volumes from outside: nothing is written, and a server may be at work on them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_types::{ObjectHash, Timestamp};

use crate::error::PebblesError;
use crate::format::{Found, VOLUME_MIN};
use crate::medium::{Folder, Medium, MediumFile, Space};
use crate::object::{Entry, Rules};
use crate::scanner::Scanner;
use crate::store::recovery::Recovery;
use crate::store::{Config, Store};

/// The store of a policy, opened to be read.
pub struct Inspected {
    pub path: PathBuf,
    pub store: Arc<Store>,
    pub recovery: Recovery,
}

/// The stores of a device: the folders `pebbles[-N]` in it.
pub fn open(device: &Path) -> Result<Vec<Inspected>, PebblesError> {
    let error = |source| PebblesError::of_io("list", source);
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(device).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("");
        let number = name.strip_prefix("pebbles");
        let is_store = number.is_some_and(|n| n.is_empty() || n.starts_with('-'));
        folders.extend((is_store && path.is_dir()).then_some(path));
    }
    folders.sort();
    folders.into_iter().map(open_folder).collect()
}

fn open_folder(path: PathBuf) -> Result<Inspected, PebblesError> {
    let folder = Folder::open(&path, false).map_err(|e| PebblesError::of_io("open", e))?;
    let config = Config {
        // Fragments are listed as they are: which count is the policy's to say.
        rules: Rules::default(),
        volume_bytes: VOLUME_MIN,
        reclaim_age: Duration::MAX,
        now: Box::new(|| Timestamp::ZERO),
        entropy: Box::new(|| 0),
        checkpoint_bytes: u64::MAX,
        keep_free: Box::new(|_| u64::MAX),
        compact_below: 0.0,
        external_gone: Box::new(|_| {}),
        read_errors: Arc::default(),
    };
    let medium = Arc::new(ReadOnly(folder));
    let (store, recovery) = Store::open_read_only(medium, config)?;
    Ok(Inspected {
        path,
        store,
        recovery,
    })
}

/// The account of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    pub volumes: u64,
    pub records: u64,
    /// Records that do not match their checksums, and the volume and offset of each.
    pub damaged: Vec<(ObjectHash, u16, u64)>,
    /// Stretches without a record where one should be.
    pub lost: Vec<(u16, u64)>,
}

impl Inspected {
    /// Reads every batch of every volume.
    pub fn check(&self) -> Result<Check, PebblesError> {
        let mut check = Check::default();
        for volume in self.store.volumes() {
            check.volumes += 1;
            let slot = volume.slot;
            let mut scanner = Scanner::of_written(volume, Arc::default(), Timestamp::ZERO);
            let read = |source| PebblesError::of_io("read volume", source);
            while let Some(scanned) = scanner.next().map_err(read)? {
                for found in scanned.found {
                    match found {
                        Found::Record { .. } => check.records += 1,
                        Found::Damaged { at, header, .. } => {
                            check.damaged.push((header.hash, slot, at));
                        }
                        Found::Lost { at } => check.lost.push((slot, at)),
                    }
                }
            }
        }
        Ok(check)
    }

    /// All objects, by partition.
    pub fn objects(&self) -> impl Iterator<Item = (u32, ObjectHash, Vec<Entry>)> {
        let index = self.store.index();
        index.partitions().into_iter().flat_map(move |partition| {
            let objects = index.objects(partition).into_iter();
            objects.map(move |(hash, entries)| (partition, hash, entries))
        })
    }

    /// The name in an object's records; `None`: none can be read.
    pub fn name(&self, partition: u32, hash: ObjectHash, entries: &[Entry]) -> Option<String> {
        let mut places = entries.iter().map(|entry| entry.place);
        places.find_map(|place| {
            let stored = self.store.read_head(partition, hash, place).ok()?;
            String::from_utf8(stored.name.to_vec()).ok()
        })
    }
}

/// A folder that refuses all writes.
struct ReadOnly(Folder);

fn refused() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

impl Medium for ReadOnly {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn MediumFile>> {
        Ok(Arc::new(ReadOnlyFile(self.0.open(name)?)))
    }

    fn create(&self, _name: &str, _size: u64) -> io::Result<Arc<dyn MediumFile>> {
        Err(refused())
    }

    fn create_new(&self, _name: &str) -> io::Result<Arc<dyn MediumFile>> {
        Err(refused())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Err(refused())
    }

    fn rename(&self, _name: &str, _to: &str) -> io::Result<()> {
        Err(refused())
    }

    fn link(&self, _name: &str, _to: &str) -> io::Result<()> {
        Err(refused())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Err(refused())
    }

    fn sync_files(&self) -> io::Result<()> {
        Err(refused())
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
}

struct ReadOnlyFile(Arc<dyn MediumFile>);

impl MediumFile for ReadOnlyFile {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, into)
    }

    fn read_cached(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_cached(offset, into)
    }

    fn write_durably(&self, _offset: u64, _blocks: &[u8]) -> io::Result<()> {
        Err(refused())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(refused())
    }

    fn sync(&self) -> io::Result<()> {
        Err(refused())
    }
}
