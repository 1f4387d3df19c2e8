//! Opening an object: choosing the valid files, merging their metadata, and checking them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cairn_types::heuristic::Heuristic;
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, PolicyIndex, SplitMix};
use parking_lot::Mutex;
use rustix::fs::RawDir;
use rustix::io::Errno;

use super::look::{Lookup, open_file};
use super::metadata::{check_metadata, io_error, merge, read_metadata};
use super::quarantine::{HashDir, QuarantineExtent};
use super::{DiskFileEngine, SeenDir, is_broken_dir};
use crate::device_pool::Disk;
use crate::engine::{
    Check, Content, ObjectInfo, ObjectKey, OpenObject, OpenOptions, PageCache, Seen, Source,
    StoredContent, Suspect,
};
use crate::error::{DiskError, LIST};
use crate::hot::{FileIdentity, KnownObject};
use crate::layout::{FileEntry, FragmentChoice, OnDiskFiles, hash_dir};
use crate::machine::wall_clock;
use crate::metadata::{Metadata, NAME};
use crate::staged_file::open_dir;
use crate::xattr;

/// Attempts when files vanish between listing and opening.
const OPEN_ATTEMPTS_MAX: usize = 3;

/// Valid entries of a directory, and the number of all entries.
pub(super) struct Listing {
    pub(super) entries: Vec<FileEntry>,
    pub(super) count: usize,
}

pub(super) fn list_entries(dir: BorrowedFd<'_>) -> Result<Listing, Errno> {
    let mut buffer = [const { MaybeUninit::<u8>::uninit() }; 2048];
    let mut listing = Listing {
        entries: Vec::with_capacity(2),
        count: 0,
    };
    let mut raw = RawDir::new(dir, &mut buffer);
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        listing.count += 1;
        let name = std::str::from_utf8(name).ok();
        listing.entries.extend(name.and_then(FileEntry::parse));
    }
    Ok(listing)
}

/// Maximum size in bytes of content that a caller hashes inline.
const INLINE_HASH_MAX_BYTES: u64 = 16 << 10;

/// Reasons why an attempt to open failed.
pub(super) enum OpenError {
    /// Not in memory; must be read from the disk.
    NotCached,
    /// A file vanished before it was opened: list again.
    Changed,
    /// The object is broken, with the reason; to be quarantined.
    Broken(String),
    /// The disk failed; if it still does later, the object, or this file of it, is quarantined.
    Unreadable(String, Option<Suspect>),
    /// The content of this file is broken: only the file is quarantined if others beside it are
    /// valid.
    Unsound(String, Suspect),
    Final(DiskError),
}

impl From<DiskError> for OpenError {
    fn from(error: DiskError) -> Self {
        OpenError::Final(error)
    }
}

impl DiskFileEngine {
    /// Chooses the valid files of an object without cleaning up.
    pub(crate) fn look(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        partition: u32,
        hash: ObjectHash,
        choice: &FragmentChoice,
    ) -> Result<OnDiskFiles, DiskError> {
        let dir = hash_dir(policy, partition, hash);
        let error = |errno| DiskError::from_errno(LIST, &*dir, errno);
        let entries = match open_dir(disk, &dir) {
            Ok(fd) => list_entries(fd.as_fd()).map_err(error)?.entries,
            Err(Errno::NOENT) => Vec::new(),
            Err(errno) => return Err(error(errno)),
        };
        Ok(self.choose(policy, entries, choice))
    }

    pub(super) fn open_object(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Result<OpenObject, DiskError> {
        let location = Location {
            policy: key.policy,
            partition: key.partition,
            hash: key.hash,
            name: Some(&key.name),
        };
        self.open_location(disk, &location, options)
            .map(|(_, open)| open)
    }

    /// As `open_object`, from memory only.
    pub(super) fn open_object_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>> {
        let location = Location {
            policy: key.policy,
            partition: key.partition,
            hash: key.hash,
            name: Some(&key.name),
        };
        let dir = hash_dir(location.policy, location.partition, location.hash);
        match self.try_open(disk, &location, &dir, options, Lookup::InMemory) {
            Ok((_, open)) => Some(Ok(open)),
            Err(OpenError::Final(error @ (DiskError::NotExist | DiskError::Deleted { .. }))) => {
                Some(Err(error))
            }
            Err(_) => None,
        }
    }

    pub(super) fn open_any(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        partition: u32,
        hash: ObjectHash,
        options: &OpenOptions,
    ) -> Result<(ObjectKey, OpenObject), DiskError> {
        let location = Location {
            policy,
            partition,
            hash,
            name: None,
        };
        let (name, open) = self.open_location(disk, &location, options)?;
        let key = ObjectKey {
            policy,
            partition,
            hash,
            name,
        };
        Ok((key, open))
    }

    /// The name in an object's tombstone; `None` without a valid tombstone.
    pub(crate) fn tombstone_name(
        &self,
        disk: &Disk,
        policy: PolicyIndex,
        partition: u32,
        hash: ObjectHash,
    ) -> Result<Option<Arc<str>>, DiskError> {
        let dir = hash_dir(policy, partition, hash);
        let error = |errno| DiskError::from_errno(LIST, &*dir, errno);
        let dir_fd = match open_dir(disk, &dir) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(error(errno)),
        };
        let listing = list_entries(dir_fd.as_fd()).map_err(error)?;
        let choice = FragmentChoice::default();
        let Some(tombstone) = self.choose(policy, listing.entries, &choice).tombstone else {
            return Ok(None);
        };
        let metadata = open_file(dir_fd.as_fd(), &tombstone)
            .and_then(|fd| read_metadata(dir_fd.as_fd(), fd.as_fd(), &tombstone));
        match metadata {
            Ok(metadata) => Ok(metadata.get_str(NAME).map(Into::into)),
            Err(OpenError::Final(error)) => Err(error),
            Err(
                OpenError::Changed
                | OpenError::NotCached
                | OpenError::Broken(_)
                | OpenError::Unreadable(..)
                | OpenError::Unsound(..),
            ) => Ok(None),
        }
    }

    fn open_location(
        &self,
        disk: &Disk,
        location: &Location<'_>,
        options: &OpenOptions,
    ) -> Result<(Arc<str>, OpenObject), DiskError> {
        let dir = hash_dir(location.policy, location.partition, location.hash);
        for _ in 0..OPEN_ATTEMPTS_MAX {
            let failed = match self.try_open(disk, location, &dir, options, Lookup::OnDisk) {
                Ok(open) => {
                    disk.state.touched.mark(&location.hash);
                    return Ok(open);
                }
                Err(OpenError::Unreadable(reason, suspect)) => {
                    if !disk
                        .state
                        .unreadable
                        .is_confirmed(location.hash, disk.now())
                    {
                        return Err(DiskError::Unreadable(reason));
                    }
                    match suspect {
                        Some(suspect) => OpenError::Unsound(reason, suspect),
                        None => OpenError::Broken(reason),
                    }
                }
                Err(failed) => failed,
            };
            match failed {
                OpenError::Changed | OpenError::NotCached | OpenError::Unreadable(..) => {}
                OpenError::Broken(reason) => {
                    let again = || self.try_open(disk, location, &dir, options, Lookup::OnDisk);
                    let is_gone = location.dir().quarantine(disk, &reason, || {
                        Ok(match again() {
                            Err(OpenError::Broken(_) | OpenError::Unreadable(..)) => {
                                QuarantineExtent::Whole
                            }
                            _ => QuarantineExtent::Nothing,
                        })
                    })?;
                    if is_gone {
                        return Err(DiskError::Quarantined(reason));
                    }
                }
                OpenError::Unsound(reason, suspect) => {
                    let dir = location.dir();
                    let is_gone =
                        dir.quarantine(disk, &reason, || dir.with_suspect(disk, &suspect))?;
                    if is_gone {
                        return Err(DiskError::Quarantined(reason));
                    }
                }
                OpenError::Final(error) => return Err(error),
            }
        }
        Err(DiskError::StateChanged)
    }

    fn try_open(
        &self,
        disk: &Disk,
        location: &Location<'_>,
        dir: &str,
        options: &OpenOptions,
        look: Lookup,
    ) -> Result<(Arc<str>, OpenObject), OpenError> {
        let dir_fd = match look.open_dir(disk, dir) {
            Ok(fd) => fd,
            Err(Errno::AGAIN) => return Err(OpenError::NotCached),
            Err(Errno::NOENT) => return Err(DiskError::NotExist.into()),
            Err(errno) if is_broken_dir(errno) => {
                return Err(OpenError::Broken(format!("the hash directory: {errno}")));
            }
            Err(errno) => return Err(DiskError::from_errno("open", dir, errno).into()),
        };
        let known = self.known_in(dir_fd.as_fd(), location, look);
        if let Some((dir, Some(object))) = &known {
            let open = self.open_known(disk, location, dir_fd.as_fd(), object, options);
            if matches!(open, Err(OpenError::Changed)) {
                self.known.forget(dir);
            }
            return open;
        }
        let listing = list_entries(dir_fd.as_fd()).map_err(|errno| match errno {
            errno if is_broken_dir(errno) => OpenError::Broken(format!("not listable: {errno}")),
            errno => DiskError::from_errno(LIST, dir, errno).into(),
        })?;
        let count = listing.count;
        let files = self.choose(location.policy, listing.entries, &options.fragment);
        let Some(data) = &files.data else {
            return Err(self.deleted(dir_fd.as_fd(), location, &files));
        };
        if look == Lookup::InMemory && files.meta.is_some() {
            // Rare, and needs more files.
            return Err(OpenError::NotCached);
        }
        let fd = look.open_file(disk, dir_fd.as_fd(), data)?;
        let datafile = read_metadata(dir_fd.as_fd(), fd.as_fd(), data)?;
        let data_timestamp = datafile.timestamp("X-Timestamp").unwrap_or(data.timestamp);
        let info = merge(dir_fd.as_fd(), &files, datafile, data_timestamp)?;
        let name = self.check_name(location, &info.metadata)?;
        let stat = rustix::fs::fstat(&fd)
            .map_err(|errno| OpenError::Broken(format!("not stat-able: {errno}")))?;
        let info = check_metadata(info, stat.st_size as u64, options)?;
        let identity = FileIdentity::of(&stat);
        if let Some((dir, None)) = known {
            let object = KnownObject {
                data: data.clone(),
                file: identity,
                metadata: info.metadata.clone(),
                data_timestamp,
            };
            self.known.insert(dir, object, wall_clock());
        }
        let (content, is_checked) = self.read_content(disk, fd, &info, identity, options, look)?;
        let seen = (options.inline_limit == 0 && count == 1).then(|| {
            Seen::new(SeenDir {
                dir: dir_fd,
                data: data.name.clone(),
            })
        });
        let open = OpenObject {
            info,
            content,
            is_checked,
            seen,
        };
        Ok((name, open))
    }

    /// Identity of the directory, and the cached object in it. `None` if the cache does not apply,
    /// as there may be more than one file.
    fn known_in(
        &self,
        dir: BorrowedFd<'_>,
        location: &Location<'_>,
        look: Lookup,
    ) -> Option<(FileIdentity, Option<Arc<KnownObject>>)> {
        if look != Lookup::InMemory || self.unique_fragments(location.policy).is_some() {
            return None;
        }
        let dir = FileIdentity::of(&rustix::fs::fstat(dir).ok()?);
        let object = self.known.get(&dir);
        Some((dir, object))
    }

    fn open_known(
        &self,
        disk: &Disk,
        location: &Location<'_>,
        dir: BorrowedFd<'_>,
        object: &KnownObject,
        options: &OpenOptions,
    ) -> Result<(Arc<str>, OpenObject), OpenError> {
        let look = Lookup::InMemory;
        let fd = look.open_file(disk, dir, &object.data)?;
        let stat = rustix::fs::fstat(&fd).map_err(|_| OpenError::Changed)?;
        let identity = FileIdentity::of(&stat);
        if identity != object.file {
            return Err(OpenError::Changed);
        }
        let info = ObjectInfo::new(object.metadata.clone(), object.data_timestamp, None);
        let name = self.check_name(location, &info.metadata)?;
        let info = check_metadata(info, stat.st_size as u64, options)?;
        let (content, is_checked) = self.read_content(disk, fd, &info, identity, options, look)?;
        let open = OpenObject {
            info,
            content,
            is_checked,
            seen: None,
        };
        Ok((name, open))
    }

    /// Checks that the stored name is the requested one or, if none was given, that it hashes to
    /// this directory.
    fn check_name(
        &self,
        location: &Location<'_>,
        metadata: &Metadata,
    ) -> Result<Arc<str>, OpenError> {
        let stored = metadata
            .get(NAME)
            .ok_or_else(|| OpenError::Broken("no name in the metadata".into()))?;
        let Some(asked) = location.name else {
            return Ok(self.checked_name(location, stored)?.into());
        };
        if stored != asked.as_bytes() {
            let stored = self.checked_name(location, stored)?;
            let asked = asked.to_string();
            tracing::error!(asked, stored, "two names with one hash");
            return Err(DiskError::Collision { asked, stored }.into());
        }
        Ok(asked.clone())
    }

    /// Checks that the name hashes to this directory: a damaged file system may have swapped two.
    fn checked_name(&self, location: &Location<'_>, stored: &[u8]) -> Result<String, OpenError> {
        let stored = String::from_utf8_lossy(stored).into_owned();
        let mut parts = stored.strip_prefix('/').unwrap_or("").splitn(3, '/');
        let account = parts.next().unwrap_or("");
        let hash = self.hash_path.hash(account, parts.next(), parts.next());
        if hash != location.hash {
            return Err(OpenError::Broken(
                "the name in the metadata belongs to another directory".into(),
            ));
        }
        Ok(stored)
    }

    /// The error for an object without data: deleted, with the tombstone's time, or nonexistent.
    fn deleted(
        &self,
        dir: BorrowedFd<'_>,
        location: &Location<'_>,
        files: &OnDiskFiles,
    ) -> OpenError {
        let Some(tombstone) = &files.tombstone else {
            return DiskError::NotExist.into();
        };
        let metadata = open_file(dir, tombstone)
            .and_then(|fd| read_metadata(dir, fd.as_fd(), tombstone))
            .and_then(|metadata| match metadata.get(NAME) {
                Some(_) => self.check_name(location, &metadata).map(|_| metadata),
                None => Ok(metadata),
            });
        match metadata {
            Ok(metadata) => DiskError::Deleted {
                timestamp: metadata
                    .timestamp("X-Timestamp")
                    .unwrap_or(tombstone.timestamp),
            }
            .into(),
            Err(failed) => failed,
        }
    }

    /// Reads or references the content; also returns whether it is verified.
    fn read_content(
        &self,
        disk: &Disk,
        fd: OwnedFd,
        info: &ObjectInfo,
        identity: FileIdentity,
        options: &OpenOptions,
        look: Lookup,
    ) -> Result<(Content, bool), OpenError> {
        if options.inline_limit == 0 {
            return Ok((Content::None, false));
        }
        let check = self.check_of(disk, &identity);
        let is_checked = check != Check::Nothing;
        if info.size > options.inline_limit {
            let file = StoredContent {
                source: Source::File {
                    file: Arc::new(fd),
                    offset: 0,
                },
                size: info.size,
                suspect: suspect(&identity),
                identity: Some(identity),
                check,
                page_cache: self.page_cache(info.size),
                gives_unsound: false,
            };
            return Ok((Content::Stored(file), is_checked));
        }
        let is_long = info.size > INLINE_HASH_MAX_BYTES || Heuristic::InlineHash.is_off();
        if look == Lookup::InMemory && check == Check::Md5 && is_long {
            return Err(OpenError::NotCached);
        }
        let bytes =
            look.read(disk, fd.as_fd(), info.size as usize)
                .map_err(|errno| match io_error("read", errno) {
                    OpenError::Unreadable(reason, _) => {
                        OpenError::Unreadable(reason, Some(suspect(&identity)))
                    }
                    failed => failed,
                })?;
        if bytes.len() as u64 != info.size {
            let reason = "the file became shorter".into();
            return Err(OpenError::Unsound(reason, suspect(&identity)));
        }
        if is_checked {
            let checksum = crc32fast::hash(&bytes);
            let is_like = |known| known == checksum || Plant::RereadUnchecked.is_on();
            if !matches!(check, Check::Crc32(known) if is_like(known)) {
                let md5 = xattr::hex(&xattr::md5(&bytes));
                if md5 != info.etag() && !Plant::ContentUnchecked.is_on() {
                    let etag = info.etag();
                    let reason = format!("ETag {etag} and file's md5 {md5} do not match");
                    return Err(OpenError::Unsound(reason, suspect(&identity)));
                }
                disk.state.verified.insert(&identity, checksum);
            }
        }
        Ok((Content::Inline(bytes), is_checked))
    }

    fn check_of(&self, disk: &Disk, identity: &FileIdentity) -> Check {
        let interval = self.config.etag_recheck_interval;
        match disk.state.verified.checksum(identity, interval) {
            Some(known) => Check::Crc32(known),
            None if self.samples_check() => Check::Md5,
            None => Check::Nothing,
        }
    }

    fn page_cache(&self, size: u64) -> PageCache {
        match self.config.keep_cache_size {
            0 => PageCache::Leaves,
            largest if size > largest => PageCache::StaysIfReadAgain,
            _ => PageCache::Stays,
        }
    }

    /// Decides at random whether this read verifies the content, by `etag_validate_pct`.
    fn samples_check(&self) -> bool {
        let percent = self.config.etag_validate_pct;
        percent >= 100.0 || (percent > 0.0 && random_percent() < percent)
    }
}

/// Identity of an open file, which no other file can have meanwhile.
fn suspect(file: &FileIdentity) -> Suspect {
    Suspect::At {
        place: file.device(),
        number: file.inode(),
    }
}

/// Uniform in 0..100, for sampling.
fn random_percent() -> f64 {
    static DICE: Mutex<SplitMix> = Mutex::new(SplitMix::new(0));
    let number = DICE.lock().number();
    (number >> 11) as f64 / (1u64 << 53) as f64 * 100.0
}

struct Location<'a> {
    policy: PolicyIndex,
    partition: u32,
    hash: ObjectHash,
    name: Option<&'a Arc<str>>,
}

impl Location<'_> {
    fn dir(&self) -> HashDir {
        HashDir {
            policy: self.policy,
            partition: self.partition,
            hash: self.hash,
        }
    }
}
