//! Opening objects: one read of the disk for one that is not large.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{Content, InfoError, StoredContent};
use cairn_disk::layout::{FileEntry, OnDiskFiles};
use cairn_disk::metadata::NAME;
use cairn_disk::{
    Disk, DiskError, FragmentInfo, Metadata, ObjectId, ObjectInfo, ObjectKey, OpenObject,
    OpenOptions, Suspect,
};
use cairn_types::ObjectHash;
use md5::{Digest, Md5};

use super::PebblesEngine;
use super::stores::Opened;
use crate::error::ReadError;
use crate::object::{Entry, EntryKind};
use crate::place::Place;
use crate::store::{Outcome, Stored};

/// Records that move between look-up and reading are looked up again this often.
const ATTEMPTS: usize = 4;

/// The reason an attempt to open failed.
enum Failed {
    /// A record was not where the index said a moment ago.
    Moved,
    /// A record, or what it says, is damaged.
    Broken(Place, String),
    Final(DiskError),
}

impl From<DiskError> for Failed {
    fn from(error: DiskError) -> Self {
        Failed::Final(error)
    }
}

/// An object's parts, read.
struct Parts {
    info: ObjectInfo,
    data: Entry,
    stored: Stored,
}

impl PebblesEngine {
    /// Opens an object; one that is damaged is moved to quarantine.
    pub(super) fn open_any(
        &self,
        disk: &Disk,
        object: ObjectId,
        asked: Option<&Arc<str>>,
        options: &OpenOptions,
        is_client: bool,
    ) -> Result<(ObjectKey, OpenObject), DiskError> {
        let opened = self.store_if_there(disk, object.at.policy)?;
        let opened = opened.ok_or(DiskError::NotExist)?;
        if is_client {
            opened.touch();
        }
        for _ in 0..ATTEMPTS {
            match self.try_open(&opened, object, asked, options) {
                Ok(open) => return Ok(open),
                Err(Failed::Moved) => {}
                Err(Failed::Broken(place, reason)) => {
                    let (partition, hash) = (object.at.partition, object.hash);
                    let store = opened.store();
                    let ended = store.quarantine(partition, hash, place, &reason);
                    if ended.map_err(|error| opened.disk_error(error))? == Outcome::Written {
                        return Err(DiskError::Quarantined(reason));
                    }
                }
                Err(Failed::Final(error)) => return Err(error),
            }
        }
        Err(DiskError::StateChanged)
    }

    fn try_open(
        &self,
        opened: &Opened,
        object: ObjectId,
        asked: Option<&Arc<str>>,
        options: &OpenOptions,
    ) -> Result<(ObjectKey, OpenObject), Failed> {
        let parts = self.read_parts(opened, object, options)?;
        let place = parts.data.place;
        let name = self.name(object, asked, &parts.stored, place)?;
        let size = match parts.data.external {
            None => u64::from(parts.stored.header.body_len),
            Some(_) => external_size(&parts.info.metadata),
        };
        let info = parts
            .info
            .check(size, options)
            .map_err(|error| match error {
                InfoError::Expired(info) => DiskError::Expired(info).into(),
                InfoError::Broken(reason) => Failed::Broken(place, reason),
            })?;
        let content = match parts.data.external {
            _ if options.inline_limit == 0 => Content::None,
            Some(number) => external(opened, object, number, &info, &parts.data)?,
            None => self.content(parts.stored.body, &info, &parts.data, options)?,
        };
        let key = ObjectKey {
            policy: object.at.policy,
            partition: object.at.partition,
            hash: object.hash,
            name,
        };
        let open = OpenObject {
            info,
            is_checked: !matches!(content, Content::None),
            content,
            seen: None,
        };
        Ok((key, open))
    }

    /// Reads the records of an object that count.
    fn read_parts(
        &self,
        opened: &Opened,
        object: ObjectId,
        options: &OpenOptions,
    ) -> Result<Parts, Failed> {
        let store = opened.store();
        let (partition, hash) = (object.at.partition, object.hash);
        let entries = store.index().get(partition, hash);
        // Most objects are one record.
        if let [only] = entries[..]
            && only.kind == EntryKind::Data
        {
            let stored = read(opened, object, only, options.inline_limit > 0)?;
            let metadata = metadata_of(&stored, only.place)?;
            let time = metadata.timestamp("X-Timestamp").unwrap_or(only.timestamp);
            return Ok(Parts {
                info: ObjectInfo::new(metadata, time, None),
                data: only,
                stored,
            });
        }
        let (files, named) = store.rules().choose(&entries, &options.fragment);
        let entry = |file: &FileEntry| {
            let mut of_name = named.iter().filter(|(name, _)| *name == file.name);
            of_name.next().map(|(_, entry)| *entry).ok_or(Failed::Moved)
        };
        let Some(data) = &files.data else {
            return Err(missing(&files).into());
        };
        let data = entry(data)?;
        let stored = read(opened, object, data, options.inline_limit > 0)?;
        let metadata = metadata_of(&stored, data.place)?;
        let time = metadata.timestamp("X-Timestamp").unwrap_or(data.timestamp);
        let mut info = ObjectInfo::new(metadata, time, FragmentInfo::of(&files));
        if let Some(meta) = &files.meta {
            let post = |file: &FileEntry| -> Result<Metadata, Failed> {
                let entry = entry(file)?;
                metadata_of(&read(opened, object, entry, false)?, entry.place)
            };
            let newer = files.content_type.as_ref().filter(|file| *file != meta);
            let newer = newer.map(post).transpose()?;
            info = info.with_post(post(meta)?, newer.as_ref());
        }
        Ok(Parts { info, data, stored })
    }

    /// The stored name, which is the one asked for.
    fn name(
        &self,
        object: ObjectId,
        asked: Option<&Arc<str>>,
        stored: &Stored,
        place: Place,
    ) -> Result<Arc<str>, Failed> {
        let broken = |reason: &str| Failed::Broken(place, reason.to_owned());
        let stored = std::str::from_utf8(&stored.name).map_err(|_| broken("no name"))?;
        match asked {
            Some(asked) if **asked == *stored => return Ok(asked.clone()),
            Some(asked) => {
                let (asked, stored) = (asked.to_string(), stored.to_owned());
                return Err(DiskError::Collision { asked, stored }.into());
            }
            None => {}
        }
        let mut parts = stored.strip_prefix('/').unwrap_or("").splitn(3, '/');
        let account = parts.next().unwrap_or("");
        let hash = self
            .inner
            .hash_path
            .hash(account, parts.next(), parts.next());
        match hash == object.hash {
            true => Ok(stored.into()),
            false => Err(broken("a name of another hash")),
        }
    }

    /// A body of a record, whose checksum was right.
    fn content(
        &self,
        body: Bytes,
        info: &ObjectInfo,
        data: &Entry,
        options: &OpenOptions,
    ) -> Result<Content, Failed> {
        if self.is_audit {
            let md5 = ObjectHash(Md5::digest(&body).into()).hex();
            if md5 != info.etag() {
                let etag = info.etag();
                let reason = format!("ETag {etag} and the content's md5 {md5} do not match");
                return Err(Failed::Broken(data.place, reason));
            }
        }
        Ok(match body.len() as u64 <= options.inline_limit {
            true => Content::Inline(body),
            false => Content::Stored(StoredContent::in_memory(body, suspect(data), false)),
        })
    }

    /// Opens an object that lies in memory; `None` where it does not, or has more than one record.
    pub(super) fn try_open_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>> {
        let opened = self.inner.stores.opened(disk.name(), key.policy)?;
        opened.touch();
        let entries = opened.store().index().get(key.partition, key.hash);
        let only = match entries[..] {
            [] => return Some(Err(DiskError::NotExist)),
            [only] => only,
            _ => return None,
        };
        let timestamp = only.timestamp;
        match only.kind {
            EntryKind::Tombstone => return Some(Err(DiskError::Deleted { timestamp })),
            EntryKind::Data if only.external.is_none() => {}
            _ => return None,
        }
        let stored = opened.store().read_cached(key.hash, only.place)?;
        let metadata = metadata_of(&stored, only.place).ok()?;
        let time = metadata.timestamp("X-Timestamp").unwrap_or(timestamp);
        let name = self.name(key.id(), Some(&key.name), &stored, only.place);
        name.ok()?;
        let info = ObjectInfo::new(metadata, time, None);
        let size = u64::from(stored.header.body_len);
        let info = info.check(size, options).ok()?;
        let content = match options.inline_limit {
            0 => Content::None,
            _ => self.content(stored.body, &info, &only, options).ok()?,
        };
        Some(Ok(OpenObject {
            info,
            is_checked: !matches!(content, Content::None),
            content,
            seen: None,
        }))
    }

    /// The name in an object's tombstone.
    pub(super) fn tombstone_name(
        &self,
        disk: &Disk,
        object: ObjectId,
    ) -> Result<Option<Arc<str>>, DiskError> {
        let Some(opened) = self.store_if_there(disk, object.at.policy)? else {
            return Ok(None);
        };
        let entries = opened.store().index().get(object.at.partition, object.hash);
        let mut tombstones = entries.iter().filter(|e| e.kind == EntryKind::Tombstone);
        let Some(tombstone) = tombstones.next() else {
            return Ok(None);
        };
        match read(&opened, object, *tombstone, false) {
            Ok(stored) => Ok(std::str::from_utf8(&stored.name).ok().map(Into::into)),
            Err(Failed::Final(DiskError::Unreadable(_)) | Failed::Moved | Failed::Broken(..)) => {
                Ok(None)
            }
            Err(Failed::Final(error)) => Err(error),
        }
    }
}

fn missing(files: &OnDiskFiles) -> DiskError {
    match &files.tombstone {
        Some(tombstone) => DiskError::Deleted {
            timestamp: tombstone.timestamp,
        },
        None => DiskError::NotExist,
    }
}

fn read(opened: &Opened, object: ObjectId, entry: Entry, is_whole: bool) -> Result<Stored, Failed> {
    let (partition, hash) = (object.at.partition, object.hash);
    let store = opened.store();
    let stored = match is_whole && entry.external.is_none() {
        true => store.read(partition, hash, entry.place),
        false => store.read_head(partition, hash, entry.place),
    };
    stored.map_err(|error| match error {
        ReadError::Gone => Failed::Moved,
        ReadError::Damaged(reason) => Failed::Broken(entry.place, reason),
        error @ (ReadError::Unreadable(_) | ReadError::Io(_)) => {
            Failed::Final(opened.read_error(error))
        }
    })
}

fn metadata_of(stored: &Stored, place: Place) -> Result<Metadata, Failed> {
    let metadata = Metadata::from_pickle(&stored.metadata);
    let mut metadata = metadata.map_err(|error| Failed::Broken(place, error.to_string()))?;
    metadata.set(NAME, &stored.name[..]);
    Ok(metadata)
}

/// A large body's file, opened.
fn external(
    opened: &Opened,
    object: ObjectId,
    number: u64,
    info: &ObjectInfo,
    data: &Entry,
) -> Result<Content, Failed> {
    let file = match std::fs::File::open(opened.large_path(number)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Replaced a moment ago, or lost.
            let (partition, hash) = (object.at.partition, object.hash);
            let entries = opened.store().index().get(partition, hash);
            return match entries.contains(data) {
                true => Err(Failed::Broken(data.place, "its content is gone".to_owned())),
                false => Err(Failed::Moved),
            };
        }
        Err(error) => return Err(opened.read_error(ReadError::Io(error)).into()),
    };
    let size = file.metadata().map(|metadata| metadata.len());
    let size = size.map_err(|error| opened.read_error(ReadError::Io(error)))?;
    if size != info.size {
        let reason = format!("{} bytes of content, of {}", size, info.size);
        return Err(Failed::Broken(data.place, reason));
    }
    let file = Arc::new(OwnedFd::from(file));
    let content = StoredContent::in_file(file, 0, size, suspect(data), true);
    Ok(Content::Stored(content))
}

/// A large body's size is that of its file, which is held against this.
fn external_size(metadata: &Metadata) -> u64 {
    let length = metadata.get_str("Content-Length");
    length
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Content known again by where its record is.
fn suspect(data: &Entry) -> Suspect {
    Suspect::At {
        place: data.place.slot.into(),
        number: data.place.offset,
    }
}
