//! Opening an object: which files count, what their metadata says together, and is it sound?

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, PolicyIndex};
use rustix::fs::RawDir;
use rustix::io::Errno;

use super::look::{Look, open_file};
use super::metadata::{check_metadata, io_error, merge, read_metadata};
use super::quarantine::{Goes, HashDir};
use super::{DiskFileEngine, SeenDir, is_broken_dir};
use crate::device_pool::Disk;
use crate::engine::{
    Check, Content, ObjectInfo, ObjectKey, OpenObject, OpenOptions, PageCache, Seen, Source,
    StoredContent, Suspect,
};
use crate::error::{DiskError, LIST};
use crate::known::KnownObject;
use crate::layout::{FileEntry, FragmentChoice, OnDiskFiles, hash_dir};
use crate::machine::wall_clock;
use crate::metadata::{Metadata, NAME};
use crate::recent::FileIdentity;
use crate::staged_file::open_dir;
use crate::xattr;

/// Files that vanish between listing and opening are looked for again this often.
const ATTEMPTS: usize = 3;

/// A directory's entries that parse, and the number of all.
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

/// Content that has to be hashed is read by a caller of its own accord only up to this size.
const HASHED_IN_PLACE: u64 = 16 << 10;

/// Why an attempt to open failed.
pub(super) enum Failed {
    /// It would have to be read from the disk.
    NotCached,
    /// A file was gone when it came to be opened: list again.
    Changed,
    /// The object is broken: it has to go, and this is why.
    Broken(String),
    /// The disk erred: if it still does later, the object has to go, or this file of it.
    Unreadable(String, Option<Suspect>),
    /// The content of this file is: it has to go, and what is sound beside it has not.
    Unsound(String, Suspect),
    Final(DiskError),
}

impl From<DiskError> for Failed {
    fn from(error: DiskError) -> Self {
        Failed::Final(error)
    }
}

impl DiskFileEngine {
    /// Which files of an object count, as they are.
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
        let place = Place {
            policy: key.policy,
            partition: key.partition,
            hash: key.hash,
            name: Some(&key.name),
        };
        self.open_place(disk, &place, options).map(|(_, open)| open)
    }

    /// As `open_object`, for what lies in memory.
    pub(super) fn open_object_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>> {
        let place = Place {
            policy: key.policy,
            partition: key.partition,
            hash: key.hash,
            name: Some(&key.name),
        };
        let dir = hash_dir(place.policy, place.partition, place.hash);
        match self.try_open(disk, &place, &dir, options, Look::InMemory) {
            Ok((_, open)) => Some(Ok(open)),
            Err(Failed::Final(error @ (DiskError::NotExist | DiskError::Deleted { .. }))) => {
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
        let place = Place {
            policy,
            partition,
            hash,
            name: None,
        };
        let (name, open) = self.open_place(disk, &place, options)?;
        let key = ObjectKey {
            policy,
            partition,
            hash,
            name,
        };
        Ok((key, open))
    }

    /// The name in an object's tombstone; `None` where it has none that counts.
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
            Err(Failed::Final(error)) => Err(error),
            Err(
                Failed::Changed
                | Failed::NotCached
                | Failed::Broken(_)
                | Failed::Unreadable(..)
                | Failed::Unsound(..),
            ) => Ok(None),
        }
    }

    fn open_place(
        &self,
        disk: &Disk,
        place: &Place<'_>,
        options: &OpenOptions,
    ) -> Result<(Arc<str>, OpenObject), DiskError> {
        let dir = hash_dir(place.policy, place.partition, place.hash);
        for _ in 0..ATTEMPTS {
            let failed = match self.try_open(disk, place, &dir, options, Look::OnDisk) {
                Ok(open) => {
                    disk.state.touched.mark(&place.hash);
                    return Ok(open);
                }
                Err(Failed::Unreadable(reason, suspect)) => {
                    if !disk.state.unreadable.is_confirmed(place.hash, disk.now()) {
                        return Err(DiskError::Unreadable(reason));
                    }
                    match suspect {
                        Some(suspect) => Failed::Unsound(reason, suspect),
                        None => Failed::Broken(reason),
                    }
                }
                Err(failed) => failed,
            };
            match failed {
                Failed::Changed | Failed::NotCached | Failed::Unreadable(..) => {}
                Failed::Broken(reason) => {
                    let again = || self.try_open(disk, place, &dir, options, Look::OnDisk);
                    let is_gone = place.dir().quarantine(disk, &reason, || {
                        Ok(match again() {
                            Err(Failed::Broken(_) | Failed::Unreadable(..)) => Goes::Whole,
                            _ => Goes::Nothing,
                        })
                    })?;
                    if is_gone {
                        return Err(DiskError::Quarantined(reason));
                    }
                }
                Failed::Unsound(reason, suspect) => {
                    let dir = place.dir();
                    let is_gone =
                        dir.quarantine(disk, &reason, || dir.with_suspect(disk, &suspect))?;
                    if is_gone {
                        return Err(DiskError::Quarantined(reason));
                    }
                }
                Failed::Final(error) => return Err(error),
            }
        }
        Err(DiskError::StateChanged)
    }

    fn try_open(
        &self,
        disk: &Disk,
        place: &Place<'_>,
        dir: &str,
        options: &OpenOptions,
        look: Look,
    ) -> Result<(Arc<str>, OpenObject), Failed> {
        let dir_fd = match look.open_dir(disk, dir) {
            Ok(fd) => fd,
            Err(Errno::AGAIN) => return Err(Failed::NotCached),
            Err(Errno::NOENT) => return Err(DiskError::NotExist.into()),
            Err(errno) if is_broken_dir(errno) => {
                return Err(Failed::Broken(format!("the hash directory: {errno}")));
            }
            Err(errno) => return Err(DiskError::from_errno("open", dir, errno).into()),
        };
        let known = self.known_in(dir_fd.as_fd(), place, look);
        if let Some((dir, Some(object))) = &known {
            let open = self.open_known(disk, place, dir_fd.as_fd(), object, options);
            if matches!(open, Err(Failed::Changed)) {
                self.known.forget(dir);
            }
            return open;
        }
        let listing = list_entries(dir_fd.as_fd()).map_err(|errno| match errno {
            errno if is_broken_dir(errno) => Failed::Broken(format!("not listable: {errno}")),
            errno => DiskError::from_errno(LIST, dir, errno).into(),
        })?;
        let count = listing.count;
        let files = self.choose(place.policy, listing.entries, &options.fragment);
        let Some(data) = &files.data else {
            return Err(self.deleted(dir_fd.as_fd(), place, &files));
        };
        if look == Look::InMemory && files.meta.is_some() {
            // Seldom, and more files.
            return Err(Failed::NotCached);
        }
        let fd = look.open_file(disk, dir_fd.as_fd(), data)?;
        let datafile = read_metadata(dir_fd.as_fd(), fd.as_fd(), data)?;
        let data_timestamp = datafile.timestamp("X-Timestamp").unwrap_or(data.timestamp);
        let info = merge(dir_fd.as_fd(), &files, datafile, data_timestamp)?;
        let name = self.check_name(place, &info.metadata)?;
        let stat = rustix::fs::fstat(&fd)
            .map_err(|errno| Failed::Broken(format!("not stat-able: {errno}")))?;
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

    /// The directory as it is now, and what is known of the object in it. None: it is not to be
    /// known, as there may be more to it than one file.
    fn known_in(
        &self,
        dir: BorrowedFd<'_>,
        place: &Place<'_>,
        look: Look,
    ) -> Option<(FileIdentity, Option<Arc<KnownObject>>)> {
        if look != Look::InMemory || self.unique_fragments(place.policy).is_some() {
            return None;
        }
        let dir = FileIdentity::of(&rustix::fs::fstat(dir).ok()?);
        let object = self.known.get(&dir);
        Some((dir, object))
    }

    fn open_known(
        &self,
        disk: &Disk,
        place: &Place<'_>,
        dir: BorrowedFd<'_>,
        object: &KnownObject,
        options: &OpenOptions,
    ) -> Result<(Arc<str>, OpenObject), Failed> {
        let look = Look::InMemory;
        let fd = look.open_file(disk, dir, &object.data)?;
        let stat = rustix::fs::fstat(&fd).map_err(|_| Failed::Changed)?;
        let identity = FileIdentity::of(&stat);
        if identity != object.file {
            return Err(Failed::Changed);
        }
        let info = ObjectInfo::new(object.metadata.clone(), object.data_timestamp, None);
        let name = self.check_name(place, &info.metadata)?;
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

    /// The stored name must be the one asked for, or, where none is known, one that hashes to
    /// this directory.
    fn check_name(&self, place: &Place<'_>, metadata: &Metadata) -> Result<Arc<str>, Failed> {
        let stored = metadata
            .get(NAME)
            .ok_or_else(|| Failed::Broken("no name in the metadata".into()))?;
        let Some(asked) = place.name else {
            return Ok(self.is_in_its_place(place, stored)?.into());
        };
        if stored != asked.as_bytes() {
            let stored = self.is_in_its_place(place, stored)?;
            let asked = asked.to_string();
            tracing::error!(asked, stored, "two names with one hash");
            return Err(DiskError::Collision { asked, stored }.into());
        }
        Ok(asked.clone())
    }

    /// The name, which hashes to this directory: a damaged file system may have swapped two.
    fn is_in_its_place(&self, place: &Place<'_>, stored: &[u8]) -> Result<String, Failed> {
        let stored = String::from_utf8_lossy(stored).into_owned();
        let mut parts = stored.strip_prefix('/').unwrap_or("").splitn(3, '/');
        let account = parts.next().unwrap_or("");
        let hash = self.hash_path.hash(account, parts.next(), parts.next());
        if hash != place.hash {
            return Err(Failed::Broken(
                "the name in the metadata belongs to another directory".into(),
            ));
        }
        Ok(stored)
    }

    /// There is no data: is there a tombstone to tell when it went?
    fn deleted(&self, dir: BorrowedFd<'_>, place: &Place<'_>, files: &OnDiskFiles) -> Failed {
        let Some(tombstone) = &files.tombstone else {
            return DiskError::NotExist.into();
        };
        let metadata = open_file(dir, tombstone)
            .and_then(|fd| read_metadata(dir, fd.as_fd(), tombstone))
            .and_then(|metadata| match metadata.get(NAME) {
                Some(_) => self.check_name(place, &metadata).map(|_| metadata),
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

    /// The content, and whether it is held against its ETag.
    fn read_content(
        &self,
        disk: &Disk,
        fd: OwnedFd,
        info: &ObjectInfo,
        identity: FileIdentity,
        options: &OpenOptions,
        look: Look,
    ) -> Result<(Content, bool), Failed> {
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
        if look == Look::InMemory && check == Check::Md5 && info.size > HASHED_IN_PLACE {
            return Err(Failed::NotCached);
        }
        let bytes =
            look.read(disk, fd.as_fd(), info.size as usize)
                .map_err(|errno| match io_error("read", errno) {
                    Failed::Unreadable(reason, _) => {
                        Failed::Unreadable(reason, Some(suspect(&identity)))
                    }
                    failed => failed,
                })?;
        if bytes.len() as u64 != info.size {
            let reason = "the file became shorter".into();
            return Err(Failed::Unsound(reason, suspect(&identity)));
        }
        if is_checked {
            let checksum = crc32fast::hash(&bytes);
            let is_like = |known| known == checksum || Plant::RereadUnchecked.is_on();
            if !matches!(check, Check::Like(known) if is_like(known)) {
                let md5 = xattr::hex(&xattr::md5(&bytes));
                if md5 != info.etag() && !Plant::ContentUnchecked.is_on() {
                    let etag = info.etag();
                    let reason = format!("ETag {etag} and file's md5 {md5} do not match");
                    return Err(Failed::Unsound(reason, suspect(&identity)));
                }
                disk.state.verified.insert(&identity, checksum);
            }
        }
        Ok((Content::Inline(bytes), is_checked))
    }

    fn check_of(&self, disk: &Disk, identity: &FileIdentity) -> Check {
        let interval = self.config.etag_recheck_interval;
        match disk.state.verified.checksum(identity, interval) {
            Some(known) => Check::Like(known),
            None if self.draws_a_check() => Check::Md5,
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

    /// Chance decides whether this read checks the content, where not every one does.
    fn draws_a_check(&self) -> bool {
        let percent = self.config.etag_validate_pct;
        percent >= 100.0 || (percent > 0.0 && random_percent() < percent)
    }
}

/// A file while it is open: nothing else has its number meanwhile.
fn suspect(file: &FileIdentity) -> Suspect {
    Suspect::At {
        place: file.device(),
        number: file.inode(),
    }
}

/// Evenly spread over 0..100; sampling needs no better.
fn random_percent() -> f64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    let x = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64 * 100.0
}

struct Place<'a> {
    policy: PolicyIndex,
    partition: u32,
    hash: ObjectHash,
    name: Option<&'a Arc<str>>,
}

impl Place<'_> {
    fn dir(&self) -> HashDir {
        HashDir {
            policy: self.policy,
            partition: self.partition,
            hash: self.hash,
        }
    }
}
