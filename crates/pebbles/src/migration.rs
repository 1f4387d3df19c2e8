//! Migration of a policy's objects on one device from an engine to another, in either direction.
//!
//! Each object is written to its new place and read again there before it is removed from the old
//! one. So a run that was killed is simply run again: what was copied and not removed is copied
//! once more, with the same timestamps. No server may use the device meanwhile: it would look for
//! objects in one of the two places only.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_disk::engine::{Content, ObjectState, Sendable};
use cairn_disk::layout::{FileEntry, FileKind};
use cairn_disk::metadata::NAME;
use cairn_disk::reader::block_on;
use cairn_disk::{
    Device, Disk, DiskError, Durability, Engine, FragmentChoice, FragmentInfo, FragmentPreference,
    Metadata, ObjectEngine, ObjectId, ObjectInfo, ObjectKey, ObjectReader, OpenObject,
    PartitionKey,
};
use cairn_formats::ssync::Offer;
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use md5::{Digest, Md5};
use parking_lot::Mutex;
use thiserror::Error;

/// Objects up to this size are read in one piece.
const INLINE_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: usize = 1 << 20;
/// Partitions worked on concurrently: durable writes of several objects share a sync.
const WORKERS: usize = 8;
/// The least `idle_close` of a device whose objects are moved: longer than any run, so that its
/// volumes stay locked.
pub const IDLE_CLOSE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Objects left behind that are named; of further ones there is the number.
const NAMED_MAX: usize = 100;

/// The reason that a migration stopped. It can be run again.
#[derive(Debug, Error)]
pub enum MigrationError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{name}: {read} of {size} bytes could be read")]
    Short {
        name: Arc<str>,
        read: u64,
        size: u64,
    },
    #[error("{name} was written, and is not the same where it is now: {what} differs")]
    Unlike { name: Arc<str>, what: &'static str },
    #[error("idle_close of the device is {0:?}: others could open its volumes meanwhile")]
    WouldLetGo(Duration),
    #[error("a thread of the migration ended early")]
    Thread,
}

/// A policy's objects on a device, and the engines from which and to which they are moved.
pub struct Migration {
    pub device: Arc<Device>,
    pub policy: PolicyIndex,
    pub from: Arc<dyn Engine>,
    pub to: Arc<dyn Engine>,
}

/// The account of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Objects and tombstones.
    pub moved: u64,
    /// Those that are where they were, or in quarantine.
    pub left: u64,
    /// The first of them: partition, hash and reason.
    pub named: Vec<(u32, ObjectHash, String)>,
}

impl Migrated {
    fn leave(&mut self, object: ObjectId, reason: String) {
        self.left += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push((object.at.partition, object.hash, reason));
        }
    }

    fn add(&mut self, other: Migrated) {
        self.moved += other.moved;
        self.left += other.left;
        let room = NAMED_MAX.saturating_sub(self.named.len());
        self.named.extend(other.named.into_iter().take(room));
    }
}

/// The outcome of one object.
enum Ended {
    Moved,
    /// There was nothing of it.
    Empty,
    Left(&'static str),
}

/// Content as it was copied.
struct Copied {
    choice: FragmentChoice,
    info: ObjectInfo,
    md5: [u8; 16],
}

impl Migration {
    /// Moves everything that is there.
    ///
    /// # Errors
    /// The device fails or is full, or something is not as it was written.
    pub fn run(&self) -> Result<Migrated, MigrationError> {
        let disk = self.device.disk().map_err(DiskError::from)?;
        let idle_close = disk.config().idle_close;
        if idle_close < IDLE_CLOSE {
            return Err(MigrationError::WouldLetGo(idle_close));
        }
        let partitions = self.from.partitions(&disk, self.policy)?;
        let queue = Mutex::new(partitions.into_iter());
        let ended: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|_| scope.spawn(|| self.work(&disk, &queue)))
                .collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, _>| worker.join();
            workers.into_iter().map(join).collect()
        });
        let mut migrated = Migrated::default();
        for worker in ended {
            migrated.add(worker.unwrap_or(Err(MigrationError::Thread))?);
        }
        Ok(migrated)
    }

    /// Takes partitions until there are none; after an error the other workers take none either.
    fn work(
        &self,
        disk: &Disk,
        queue: &Mutex<std::vec::IntoIter<u32>>,
    ) -> Result<Migrated, MigrationError> {
        let mut migrated = Migrated::default();
        loop {
            let next = queue.lock().next();
            let Some(partition) = next else {
                return Ok(migrated);
            };
            let at = PartitionKey::new(self.policy, partition);
            let ended = self.partition(disk, at, &mut migrated);
            if ended.is_err() {
                *queue.lock() = Vec::new().into_iter();
            }
            ended?;
        }
    }

    fn partition(
        &self,
        disk: &Disk,
        at: PartitionKey,
        migrated: &mut Migrated,
    ) -> Result<(), MigrationError> {
        let contents = self.from.contents(disk, at)?;
        let none = HashSet::new();
        for (_, hash, state) in contents.chosen(None, &none) {
            let object = at.object(hash);
            match self.object(disk, object, state) {
                Ok(Ended::Moved) => migrated.moved += 1,
                Ok(Ended::Empty) => {}
                Ok(Ended::Left(reason)) => migrated.leave(object, reason.to_owned()),
                // One object's; all others concern the device.
                Err(MigrationError::Disk(
                    error @ (DiskError::NotExist
                    | DiskError::Quarantined(_)
                    | DiskError::Unreadable(_)
                    | DiskError::Collision { .. }
                    | DiskError::BadFragment { .. }
                    | DiskError::StateChanged
                    | DiskError::Unlike),
                )) => migrated.leave(object, error.to_string()),
                Err(error) => return Err(error),
            }
        }
        self.from.remove_partition(disk, at)?;
        // Volumes are made ahead, and compacted.
        self.from.maintain(disk)?;
        self.to.maintain(disk)?;
        Ok(())
    }

    /// Moves one object.
    fn object(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<Ended, MigrationError> {
        let newest = FragmentChoice::even_not_durable(None);
        match self.open(&*self.from, disk, object, newest)? {
            Sendable::Nothing if self.is_remainder(disk, object, state)? => {
                self.from.remove_own(disk, object, state)?;
                return Ok(Ended::Empty);
            }
            Sendable::Nothing => {
                return Ok(Ended::Left(
                    "it has no version that counts, or was damaged and is in quarantine",
                ));
            }
            Sendable::Tombstone(name, timestamp) => {
                let key = key_of(object, name);
                self.delete(disk, &key, timestamp)?;
                self.verify_tombstone(disk, &key, timestamp)?;
            }
            Sendable::Object(key, open) => self.content(disk, &key, *open)?,
        }
        match self.from.remove_own(disk, object, state)? {
            true => Ok(Ended::Moved),
            false => Ok(Ended::Left(
                "it is at its new place; files that are not of this policy stay in its folder",
            )),
        }
    }

    /// Whether nothing of an object without a version has still to be moved: a run was killed
    /// while it removed the files of one that is at the new place. What belongs to content may be
    /// the last of it, or the empty folder.
    fn is_remainder(
        &self,
        disk: &Disk,
        object: ObjectId,
        state: &ObjectState,
    ) -> Result<bool, MigrationError> {
        if state.as_bytes().is_empty() {
            return Ok(true);
        }
        // Other engines remove an object in one write.
        let Some(files) = self.from.rsync() else {
            return Ok(false);
        };
        let mut newest = Timestamp::ZERO;
        let suffix = [object.hash.suffix()];
        for folder in files.sources(&self.device, object.at, &suffix) {
            let folder = folder.join(object.hash.hex());
            let error = |source| DiskError::Io {
                action: "list",
                path: folder.display().to_string(),
                source,
            };
            for entry in std::fs::read_dir(&folder).map_err(error)? {
                let name = entry.map_err(error)?.file_name();
                match name.to_str().and_then(FileEntry::parse) {
                    Some(file)
                        if matches!(
                            file.kind,
                            FileKind::Meta | FileKind::Overflow | FileKind::Durable
                        ) =>
                    {
                        newest = newest.max(file.timestamp);
                    }
                    _ => return Ok(false),
                }
            }
        }
        let offer = Offer {
            hash: object.hash,
            data: newest,
            meta: newest,
            content_type: newest,
            is_durable: true,
        };
        let held = self.to.held(disk, object.at, &offer, None)?;
        Ok(held.is_some_and(|held| held.meta.unwrap_or(held.data) >= newest))
    }

    fn open(
        &self,
        engine: &dyn Engine,
        disk: &Disk,
        object: ObjectId,
        choice: FragmentChoice,
    ) -> Result<Sendable, MigrationError> {
        Ok(engine.open_to_send(disk, object, INLINE_BYTES, choice)?)
    }

    fn delete(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
    ) -> Result<(), MigrationError> {
        let step = self.to.delete(disk, key, timestamp, None)?;
        Ok(step.finish(disk)?)
    }

    /// Copies all that counts, the older first, and reads it again.
    fn content(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        newest: OpenObject,
    ) -> Result<(), MigrationError> {
        let fragments = newest.info.fragments.clone();
        let deleted = fragments.as_ref().and_then(|fragments| fragments.deleted);
        if let Some(deleted) = deleted {
            self.delete(disk, key, deleted)?;
        }
        let mut copied = Vec::new();
        match &fragments {
            None => copied.push(self.copy(disk, key, newest, FragmentChoice::default())?),
            Some(fragments) => {
                for choice in choices(fragments) {
                    match self.open(&*self.from, disk, key.id(), choice.clone())? {
                        Sendable::Object(_, open) => {
                            copied.push(self.copy(disk, key, *open, choice)?);
                        }
                        Sendable::Nothing | Sendable::Tombstone(..) => {
                            return Err(DiskError::StateChanged.into());
                        }
                    }
                }
            }
        }
        // That of the durable fragments is hidden from newer ones.
        let mut metas = copied.iter().map(|copied| &copied.info.metafile_metadata);
        if let Some(meta) = metas.find_map(|meta| meta.as_ref()) {
            let step = self.to.write_metadata(disk, key, meta.clone())?;
            step.finish(disk)?;
        }
        for copied in &copied {
            self.verify(disk, key, copied, deleted)?;
        }
        Ok(())
    }

    fn copy(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        open: OpenObject,
        choice: FragmentChoice,
    ) -> Result<Copied, MigrationError> {
        let OpenObject { info, content, .. } = open;
        let mut writer = self.to.create(disk, key, Some(info.size), false)?;
        let md5 = self.read(&self.from, key, &info, content, |bytes| {
            writer.write(&[bytes])
        })?;
        let durability = match is_durable(&info) {
            true => Durability::AtOnce,
            false => Durability::Later,
        };
        let step = writer.commit(without_name(info.datafile_metadata()), durability)?;
        step.finish(disk)?;
        Ok(Copied { choice, info, md5 })
    }

    /// Reads the whole content, and gives its MD5.
    fn read(
        &self,
        engine: &Arc<dyn Engine>,
        key: &ObjectKey,
        info: &ObjectInfo,
        content: Content,
        mut each: impl FnMut(Bytes) -> Result<(), DiskError>,
    ) -> Result<[u8; 16], MigrationError> {
        let (mut md5, mut read) = (Md5::new(), 0);
        let mut take = |bytes: Bytes| {
            md5.update(&bytes);
            read += bytes.len() as u64;
            each(bytes)
        };
        match content {
            Content::None => {}
            Content::Inline(bytes) => take(bytes)?,
            Content::Stored(stored) => {
                let engine: Arc<dyn ObjectEngine> = engine.clone();
                let (device, etag) = (self.device.clone(), info.etag());
                let (key, range) = (key.clone(), 0..info.size);
                let mut reader =
                    ObjectReader::new(device, engine, key, etag, stored, range, CHUNK_BYTES);
                while let Some(bytes) = block_on(reader.next_chunk())? {
                    take(bytes)?;
                }
            }
        }
        match read == info.size {
            true => Ok(md5.finalize().into()),
            false => Err(MigrationError::Short {
                name: key.name.clone(),
                read,
                size: info.size,
            }),
        }
    }

    /// Holds what is at the new place against what was copied; something newer is as good.
    fn verify(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        copied: &Copied,
        deleted: Option<Timestamp>,
    ) -> Result<(), MigrationError> {
        let differs = |what| {
            let name = key.name.clone();
            Err(MigrationError::Unlike { name, what })
        };
        let was = &copied.info;
        let open = match self.open(&*self.to, disk, key.id(), copied.choice.clone())? {
            Sendable::Object(_, open) => *open,
            Sendable::Tombstone(_, at) if at >= was.data_timestamp => return Ok(()),
            Sendable::Tombstone(..) | Sendable::Nothing => return differs("whether it exists"),
        };
        let OpenObject { info, content, .. } = open;
        if info.timestamp() < was.timestamp() {
            return differs("the time of its metadata");
        }
        if let (Some(deleted), Some(fragments)) = (deleted, &info.fragments)
            && fragments.deleted.max(fragments.durable) < Some(deleted)
        {
            return differs("the time of its deletion");
        }
        if info.data_timestamp > was.data_timestamp {
            return Ok(());
        }
        if info.data_timestamp < was.data_timestamp {
            return differs("the time of its content");
        }
        if is_durable(was) && !is_durable(&info) {
            return differs("whether it is durable");
        }
        if items(Some(info.datafile_metadata())) != items(Some(was.datafile_metadata())) {
            return differs("the metadata of its content");
        }
        let is_of_time = info.timestamp() == was.timestamp();
        let metas = [&info.metafile_metadata, &was.metafile_metadata];
        let [meta, meta_was] = metas.map(|meta| items(meta.as_ref()));
        if is_of_time && meta != meta_was {
            return differs("its metadata");
        }
        match self.read(&self.to, key, &info, content, |_| Ok(()))? == copied.md5 {
            true => Ok(()),
            false => differs("its content"),
        }
    }

    fn verify_tombstone(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
    ) -> Result<(), MigrationError> {
        let newest = FragmentChoice::even_not_durable(None);
        let found = match self.open(&*self.to, disk, key.id(), newest)? {
            Sendable::Object(_, open) => {
                let fragments = open.info.fragments.as_ref();
                let deleted = fragments.and_then(|fragments| fragments.deleted);
                Some(deleted.unwrap_or(open.info.data_timestamp))
            }
            Sendable::Tombstone(_, at) => Some(at),
            Sendable::Nothing => None,
        };
        match found >= Some(timestamp) {
            true => Ok(()),
            false => Err(MigrationError::Unlike {
                name: key.name.clone(),
                what: "the time of its deletion",
            }),
        }
    }
}

fn key_of(object: ObjectId, name: Arc<str>) -> ObjectKey {
    ObjectKey {
        policy: object.at.policy,
        partition: object.at.partition,
        hash: object.hash,
        name,
    }
}

fn is_durable(info: &ObjectInfo) -> bool {
    let fragments = info.fragments.as_ref();
    fragments.is_none_or(|fragments| fragments.durable == Some(info.data_timestamp))
}

fn without_name(metadata: &Metadata) -> Metadata {
    let mut metadata = metadata.clone();
    metadata.remove(NAME);
    metadata
}

/// Metadata to be compared: in an order of its own, without the name, which is the key's.
fn items(metadata: Option<&Metadata>) -> BTreeMap<&str, &[u8]> {
    let items = metadata.into_iter().flat_map(Metadata::iter);
    items.filter(|(item, _)| *item != NAME).collect()
}

/// A choice for each fragment there is, the oldest first.
fn choices(fragments: &FragmentInfo) -> Vec<FragmentChoice> {
    let mut choices = Vec::new();
    for (timestamp, indices) in fragments.found.iter().rev() {
        for index in indices {
            let others = indices.iter().copied().filter(|other| other != index);
            choices.push(FragmentChoice {
                index: None,
                preferences: Some(vec![FragmentPreference {
                    timestamp: *timestamp,
                    exclude: others.collect(),
                }]),
            });
        }
    }
    choices
}

#[cfg(test)]
mod tests;
