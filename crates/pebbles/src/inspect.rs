//! Looking at a device's volumes from outside: nothing is written, and no server is at work on them meanwhile.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::Metadata;
use cairn_types::{ObjectHash, Timestamp};
use md5::{Digest, Md5};

use crate::engine::patience::Patience;
use crate::error::{PebblesError, ReadError};
use crate::format::{Found, VOLUME_MIN};
use crate::index::Grouping;
use crate::medium::{Folder, Medium, MediumFile, Space};
use crate::object::{Entry, Rules};
use crate::scanner::Scanner;
use crate::store::quarantine::{LARGE, large_name};
use crate::store::recovery::Recovery;
use crate::store::{Config, Store, Stored};

/// Bytes of a large body that are read at once.
const READ_BYTES: usize = 1 << 20;

/// The store of a policy, opened to be read.
pub struct Inspected {
    pub path: PathBuf,
    pub store: Arc<Store>,
    pub recovery: Recovery,
}

/// The stores of a device: the folders `pebbles[-N]` in it. As long as they are open no server can open
/// them.
///
/// # Errors
/// A server has them open, or they cannot be read.
pub fn open(device: &Path) -> Result<Vec<Inspected>, PebblesError> {
    let folders = folders_of(device)?.into_iter();
    folders.map(|folder| open_folder(folder, false)).collect()
}

/// As [`open`], for a look that takes no time: a server that has them open is asked to let this process in, which
/// it soon does.
///
/// # Errors
/// A server has something under way for too long, or they cannot be read.
pub fn open_in_turn(device: &Path) -> Result<Vec<Inspected>, PebblesError> {
    let folders = folders_of(device)?.into_iter();
    folders.map(|folder| open_folder(folder, true)).collect()
}

fn folders_of(device: &Path) -> Result<Vec<PathBuf>, PebblesError> {
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
    Ok(folders)
}

fn open_folder(path: PathBuf, waits: bool) -> Result<Inspected, PebblesError> {
    let folder = Folder::open(&path, false).map_err(|e| PebblesError::of_io("open", e))?;
    let locked = match waits {
        true => Patience::default().wait(&folder, true, || folder.lock_shared()),
        false => folder.lock_shared(),
    };
    locked.map_err(|e| PebblesError::of_io("lock", e))?;
    let config = Config {
        // Fragments are listed as they are: which count is the policy's to say.
        rules: Rules::default(),
        grouping: Grouping::ByHash,
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

/// A record that does not match its checksums, or a large body that is not what its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub hash: ObjectHash,
    pub volume: u16,
    pub offset: u64,
    pub reason: String,
}

/// The account of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    pub volumes: u64,
    pub records: u64,
    /// Bodies that are files.
    pub large: u64,
    pub damaged: Vec<Damage>,
    /// Stretches without a record where one should be: volume and offset.
    pub lost: Vec<(u16, u64)>,
    /// Files that were volumes, and in which nothing can be read.
    pub unreadable: u64,
}

impl Check {
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.lost.is_empty() && self.unreadable == 0
    }
}

impl Inspected {
    /// Reads every batch of every volume, and every large body.
    ///
    /// # Errors
    /// `Io` if a volume cannot be read; damaged records are in the account.
    pub fn check(&self) -> Result<Check, PebblesError> {
        let mut check = Check {
            unreadable: self.recovery.unreadable,
            ..Check::default()
        };
        for volume in self.store.volumes() {
            check.volumes += 1;
            let slot = volume.slot;
            let mut scanner = Scanner::of_written(volume, Arc::default(), Timestamp::ZERO);
            let read = |source| PebblesError::of_io("read volume", source);
            while let Some(scanned) = scanner.next().map_err(read)? {
                for found in scanned.found {
                    match found {
                        Found::Record { .. } => check.records += 1,
                        Found::Damaged { at, header, .. } => check.damaged.push(Damage {
                            hash: header.hash,
                            volume: slot,
                            offset: at,
                            reason: "the record does not match its checksums".to_owned(),
                        }),
                        Found::Lost { at } => check.lost.push((slot, at)),
                        // The scanner gives no such batch.
                        Found::Other { .. } => {}
                    }
                }
            }
        }
        for (partition, hash, entries) in self.objects() {
            for entry in entries.iter().filter(|entry| entry.external.is_some()) {
                check.large += 1;
                if let Err(reason) = self.check_large(partition, hash, entry) {
                    check.damaged.push(Damage {
                        hash,
                        volume: entry.place.slot,
                        offset: entry.place.offset,
                        reason,
                    });
                }
            }
        }
        Ok(check)
    }

    /// Holds a large body against its record's ETag.
    fn check_large(&self, partition: u32, hash: ObjectHash, entry: &Entry) -> Result<(), String> {
        let stored = self.store.read_head(partition, hash, entry.place);
        let Ok(stored) = stored else {
            // The record's damage is known.
            return Ok(());
        };
        let metadata = Metadata::from_pickle(&stored.metadata);
        let metadata = metadata.map_err(|error| error.to_string())?;
        let unread = |error: io::Error| format!("its file cannot be read: {error}");
        let Some(mut file) = self.large(entry).map_err(unread)? else {
            return Ok(());
        };
        let (mut md5, mut buffer) = (Md5::new(), vec![0; READ_BYTES]);
        loop {
            match file.read(&mut buffer).map_err(unread)? {
                0 => break,
                count => md5.update(&buffer[..count]),
            }
        }
        let (found, etag) = (
            ObjectHash(md5.finalize().into()).hex(),
            metadata.get_str("ETag"),
        );
        match etag.is_none_or(|etag| etag.trim_matches('"') == found) {
            true => Ok(()),
            false => Err(format!(
                "ETag {} and the md5 of its file, {found}, do not match",
                etag.unwrap_or("")
            )),
        }
    }

    /// The file of a large body; `None`: the record has the body.
    ///
    /// # Errors
    /// The file is gone or cannot be opened.
    pub fn large(&self, entry: &Entry) -> io::Result<Option<File>> {
        let path = |number| self.path.join(LARGE).join(large_name(number));
        entry
            .external
            .map(|number| File::open(path(number)))
            .transpose()
    }

    /// All objects, in groups; each with the number of its group, which stands for its partition here.
    pub fn objects(&self) -> impl Iterator<Item = (u32, ObjectHash, Vec<Entry>)> {
        let index = self.store.index();
        index.groups().into_iter().flat_map(move |group| {
            let objects = index.group_objects(group).into_iter();
            objects.map(move |(hash, entries)| (group, hash, entries))
        })
    }

    /// The records of the object with a hash; `None`: there is none.
    pub fn object(&self, hash: ObjectHash) -> Option<(u32, Vec<Entry>)> {
        let index = self.store.index();
        let all = index.groups().into_iter();
        let mut found = all.map(|partition| (partition, index.get(partition, hash)));
        found.find(|(_, entries)| !entries.is_empty())
    }

    /// Name and metadata of a record.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub fn head(
        &self,
        partition: u32,
        hash: ObjectHash,
        entry: &Entry,
    ) -> Result<Stored, ReadError> {
        self.store.read_head(partition, hash, entry.place)
    }

    /// The name in an object's records; `None`: none can be read.
    pub fn name(&self, partition: u32, hash: ObjectHash, entries: &[Entry]) -> Option<String> {
        entries.iter().find_map(|entry| {
            let stored = self.head(partition, hash, entry).ok()?;
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
