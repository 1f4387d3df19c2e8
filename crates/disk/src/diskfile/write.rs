//! Writing an object's files: content, POST metadata, tombstones.

use std::os::fd::AsFd;

use bytes::Bytes;
use cairn_types::Timestamp;
use cairn_types::plant::Plant;
use md5::{Digest, Md5};
use rustix::io::Errno;

use super::{DiskFileEngine, SeenDir};
use crate::device_pool::Disk;
use crate::device_pool::steps::Step;
use crate::diskfile::suffix_hashes::{invalidating, list};
use crate::engine::{Durability, ObjectKey, ObjectWriter};
use crate::error::DiskError;
use crate::layout::{
    FileEntry, FragmentChoice, data_name, fragment_name, hash_dir, meta_name, partition_dir,
    tombstone_name,
};
use crate::metadata::{FRAGMENT_INDEX, Metadata, NAME, OVERFLOW};
use crate::overflow;
use crate::staged_file::{
    Published, Renamed, Reserve, StagedFile, open_dir, remove_file, rename_in,
};

impl DiskFileEngine {
    pub(super) fn create_data(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        size: Option<u64>,
        hash: bool,
    ) -> Result<Box<dyn ObjectWriter>, DiskError> {
        let reserve = Reserve::Keep { size };
        let mut staged = stage(disk, key, reserve)?;
        let from = self.config.direct_io_from;
        if from > 0 && size.is_none_or(|size| size >= from) {
            staged.write_directly();
        }
        Ok(Box::new(DataWriter {
            engine: self.clone(),
            disk: disk.clone(),
            key: key.clone(),
            staged,
            md5: hash.then(Md5::new),
            checksum: crc32fast::Hasher::new(),
            synced: 0,
        }))
    }

    pub(super) fn put_small_steps(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        body: Bytes,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError> {
        let name = self.content_name(key, &metadata, durability)?;
        let size = Some(body.len() as u64);
        let mut staged = stage(disk, key, Reserve::Keep { size })?;
        let checksum = crc32fast::hash(&body);
        staged.write(&[body])?;
        let what = NewFile::Content { checksum };
        self.finish(disk, key, staged, &name, metadata, what)
    }

    /// File name of new content.
    fn content_name(
        &self,
        key: &ObjectKey,
        metadata: &Metadata,
        durability: Durability,
    ) -> Result<String, DiskError> {
        let timestamp = timestamp_of(metadata)?;
        let Some(unique) = self.unique_fragments(key.policy) else {
            return Ok(data_name(timestamp));
        };
        let index = metadata.get(FRAGMENT_INDEX).unwrap_or_default();
        let index = String::from_utf8_lossy(index);
        let parsed = index.trim().parse().ok().filter(|index| *index < unique);
        let parsed = parsed.ok_or_else(|| DiskError::BadFragment {
            name: FRAGMENT_INDEX,
            value: index.into_owned(),
            last: unique.saturating_sub(1),
        })?;
        let is_durable = durability == Durability::AtOnce;
        Ok(fragment_name(timestamp, parsed, is_durable))
    }

    /// Renames a fragment to its durable name.
    pub(super) fn durable_steps(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        fragment: u32,
    ) -> Result<Step<()>, DiskError> {
        if self.unique_fragments(key.policy).is_none() {
            return Ok(Step::Done(()));
        }
        let dir = hash_dir(key.policy, key.partition, key.hash);
        let partition = partition_dir(key.policy, key.partition);
        let from = fragment_name(timestamp, fragment, false);
        let to = fragment_name(timestamp, fragment, true);
        let suffix = key.hash.suffix();
        let (lock, noted) = disk.with_room(|| invalidating(disk, &partition, &suffix))?;
        let renamed = match open_dir(disk, &dir) {
            Ok(fd) => rename_in(disk, fd, noted, &from, &to),
            Err(errno) => Err(errno),
        };
        drop(lock);
        let renamed: Renamed = match renamed {
            Ok(renamed) => renamed,
            Err(Errno::NOENT) if self.is_superseded(disk, key, timestamp)? => {
                return Ok(Step::Done(()));
            }
            Err(Errno::NOENT) => return Err(DiskError::NotExist),
            Err(errno) => {
                return Err(DiskError::from_errno(
                    "rename",
                    format!("{dir}/{from}"),
                    errno,
                ));
            }
        };
        let (engine, key) = (self.clone(), key.clone());
        let dir = renamed.dir();
        let after = move |disk: &Disk| {
            let disk = disk.clone();
            let clean_up = move || engine.clean_up_after(&disk, &key, dir.as_fd());
            Ok(Step::DoneThen((), Box::new(clean_up)))
        };
        Ok(Step::sync(renamed.to_sync(), after))
    }

    /// Whether a version at least as new is already valid: a concurrent writer won, and cleaned up.
    fn is_superseded(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
    ) -> Result<bool, DiskError> {
        let choice = FragmentChoice::default();
        let files = self.look(disk, key.policy, key.partition, key.hash, &choice)?;
        let is_deleted = files.tombstone.is_some_and(|ts| ts.timestamp > timestamp);
        Ok(is_deleted || files.fragments.durable.is_some_and(|at| at >= timestamp))
    }

    pub(super) fn meta_file_steps(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        metadata: Metadata,
    ) -> Result<Step<()>, DiskError> {
        let timestamp = timestamp_of(&metadata)?;
        let content_type = metadata.timestamp("Content-Type-Timestamp");
        let reserve = Reserve::Keep { size: None };
        let staged = stage(disk, key, reserve)?;
        let name = meta_name(timestamp, content_type);
        self.finish(disk, key, staged, &name, metadata, NewFile::Metadata)
    }

    pub(super) fn tombstone_steps(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        seen: Option<SeenDir>,
    ) -> Result<Step<()>, DiskError> {
        match self.tombstone_once(disk, key, timestamp, seen) {
            // A tombstone without data to remove would only consume the reserve.
            Err(DiskError::NoSpace) if self.has_data(disk, key)? => {
                disk.spend_room();
                self.tombstone_once(disk, key, timestamp, None)
            }
            other => other,
        }
    }

    fn has_data(&self, disk: &Disk, key: &ObjectKey) -> Result<bool, DiskError> {
        let choice = FragmentChoice::default();
        let files = self.look(disk, key.policy, key.partition, key.hash, &choice)?;
        Ok(files.data.is_some() || !files.fragments.sets.is_empty())
    }

    fn tombstone_once(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        seen: Option<SeenDir>,
    ) -> Result<Step<()>, DiskError> {
        let metadata = [("X-Timestamp", timestamp.internal())]
            .into_iter()
            .collect();
        // A tombstone older than the reclaim age may itself be removed.
        let is_young =
            !overflow::is_older_than(disk.now(), timestamp.secs() as i64, self.config.reclaim_age);
        let mut replaced = None;
        let staged = match seen.filter(|_| is_young) {
            Some(seen) => {
                let staged = StagedFile::create_in_open(disk, seen.dir)?;
                replaced = staged.is_some().then_some(seen.data);
                staged
            }
            None => None,
        };
        let staged = match staged {
            Some(staged) => staged,
            None => stage(disk, key, Reserve::Ignore)?,
        };
        let name = tombstone_name(timestamp);
        let what = NewFile::Tombstone { replaced };
        self.finish(disk, key, staged, &name, metadata, what)
    }

    /// Writes attributes, publishes the file durably, and cleans up.
    fn finish(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        staged: StagedFile,
        file_name: &str,
        mut metadata: Metadata,
        what: NewFile,
    ) -> Result<Step<()>, DiskError> {
        let timestamp = timestamp_of(&metadata)?;
        if let NewFile::Content { .. } = what {
            check_length(&metadata, staged.written())?;
        }
        metadata.remove(OVERFLOW);
        metadata.set(NAME, key.name.as_bytes());
        let dir = hash_dir(key.policy, key.partition, key.hash);
        overflow::write_metadata(disk, key.policy, &dir, &staged, timestamp, &metadata)?;
        let partition = partition_dir(key.policy, key.partition);
        let suffix = key.hash.suffix();
        let co_synced = staged.co_synced();
        let around = move |disk: &Disk, link: &mut dyn FnMut() -> Result<(), Errno>| {
            let (_lock, noted) = invalidating(disk, &partition, &suffix)?;
            co_synced.sync(noted);
            Ok(link())
        };
        let published = if matches!(what, NewFile::Tombstone { .. }) {
            // The object it removes is still there until the tombstone is durable: a torn one is a
            // delete that was not acknowledged.
            staged.publish_in_one_step(&dir, file_name, around)?
        } else {
            staged.publish_steps(&dir, file_name, around)?
        };
        let (engine, key, disk) = (self.clone(), key.clone(), disk.clone());
        // A fragment obsoletes others only once it is durable.
        let counts = FileEntry::parse(file_name).is_none_or(|entry| entry.is_durable());
        let file_name = file_name.to_owned();
        Ok(published.end(move |published| {
            // Content hashed while it was written counts as verified.
            if let (NewFile::Content { checksum }, Some(file)) = (&what, published.identity) {
                disk.state.verified.insert(&file, *checksum);
            }
            if planted(&disk, &key, &file_name, &published) || !counts || published.is_new_dir {
                return Step::Done(());
            }
            // Readers ignore obsolete files, so no one waits for their removal.
            let clean_up = move || match what {
                NewFile::Tombstone {
                    replaced: Some(name),
                } => drop(remove_file(published.dir.as_fd(), &name)),
                _ => engine.clean_up_after(&disk, &key, published.dir.as_fd()),
            };
            Step::DoneThen((), Box::new(clean_up))
        }))
    }
}

/// Kind of file being written.
enum NewFile {
    /// An object or a fragment, with the CRC-32 of its content.
    Content {
        checksum: u32,
    },
    Metadata,
    /// A tombstone, with the only file that it makes obsolete, if known.
    Tombstone {
        replaced: Option<String>,
    },
}

fn stage(disk: &Disk, key: &ObjectKey, reserve: Reserve) -> Result<StagedFile, DiskError> {
    let dir = hash_dir(key.policy, key.partition, key.hash);
    StagedFile::create_in(disk, &key.policy.dir("tmp"), &dir, reserve)
}

/// Two of the simulator's planted bugs.
fn planted(disk: &Disk, key: &ObjectKey, file_name: &str, published: &Published) -> bool {
    let is_tombstone = file_name.ends_with(".ts");
    if Plant::NoTombstone.is_on() && is_tombstone {
        let dir = hash_dir(key.policy, key.partition, key.hash);
        for name in list(disk, &dir).unwrap_or_default() {
            let _ = remove_file(published.dir.as_fd(), &name);
        }
        return true;
    }
    if Plant::OlderWins.is_on() {
        let dir = hash_dir(key.policy, key.partition, key.hash);
        for name in list(disk, &dir).unwrap_or_default() {
            if name != file_name && !file_name.ends_with(".meta") {
                let _ = remove_file(published.dir.as_fd(), &name);
            }
        }
    }
    false
}

fn timestamp_of(metadata: &Metadata) -> Result<Timestamp, DiskError> {
    metadata
        .timestamp("X-Timestamp")
        .ok_or_else(|| DiskError::Io {
            action: "write",
            path: "an object".into(),
            source: std::io::Error::other("no X-Timestamp in the metadata"),
        })
}

/// The counterpart of the check when an object is opened, which would quarantine it: content is not
/// published with metadata of another length.
fn check_length(metadata: &Metadata, written: u64) -> Result<(), DiskError> {
    let stated = metadata.get_str("Content-Length").map(str::trim);
    match stated.map(str::parse::<u64>) {
        Some(Ok(length)) if length == written => Ok(()),
        _ => Err(DiskError::Io {
            action: "write",
            path: "an object".into(),
            source: std::io::Error::other(format!(
                "its metadata has Content-Length {stated:?}, and {written} bytes were written"
            )),
        }),
    }
}

struct DataWriter {
    engine: DiskFileEngine,
    disk: Disk,
    key: ObjectKey,
    staged: StagedFile,
    md5: Option<Md5>,
    checksum: crc32fast::Hasher,
    /// Bytes flushed so far.
    synced: u64,
}

impl ObjectWriter for DataWriter {
    fn write(&mut self, chunks: &[Bytes]) -> Result<(), DiskError> {
        if let Some(md5) = &mut self.md5 {
            for chunk in chunks {
                md5.update(chunk);
            }
        }
        for chunk in chunks {
            self.checksum.update(chunk);
        }
        self.staged.write(chunks)?;
        // Dirty pages of a large upload must not accumulate until its end.
        if self.staged.written() - self.synced >= self.engine.config.bytes_per_sync {
            self.staged.sync()?;
            self.staged.drop_cache();
            self.synced = self.staged.written();
        }
        Ok(())
    }

    fn written(&self) -> u64 {
        self.staged.written()
    }

    fn md5(&mut self) -> Option<[u8; 16]> {
        self.md5.as_ref().map(|md5| md5.clone().finalize().into())
    }

    fn commit(
        self: Box<Self>,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError> {
        let name = self.engine.content_name(&self.key, &metadata, durability)?;
        let mut this = *self;
        if this.staged.written() > this.engine.config.keep_cache_size {
            this.staged.drop_cache_when_synced();
        }
        let disk = this.disk.clone();
        let what = NewFile::Content {
            checksum: this.checksum.finalize(),
        };
        this.engine
            .finish(&disk, &this.key, this.staged, &name, metadata, what)
    }
}
