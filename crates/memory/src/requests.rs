//! Requests: objects opened, written and deleted.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{AtHand, Content, InfoError, Known, Seen, StoredContent};
use cairn_disk::layout::{FileKind, OnDiskFiles};
use cairn_disk::metadata::{FRAGMENT_INDEX, NAME};
use cairn_disk::steps::Step;
use cairn_disk::{
    Disk, DiskError, Durability, FragmentChoice, FragmentInfo, Metadata, ObjectEngine, ObjectId,
    ObjectInfo, ObjectKey, ObjectWriter, OpenObject, OpenOptions, Suspect,
};
use cairn_types::Timestamp;
use md5::{Digest, Md5};

use crate::objects::{Object, Record};
use crate::{COMMIT_WINDOW, MemoryEngine, RECLAIM_AGE, State};

impl MemoryEngine {
    /// Opens an object, and moves it to quarantine where it is broken.
    pub(crate) fn open_any(
        &self,
        disk: &Disk,
        object: ObjectId,
        asked: Option<&Arc<str>>,
        options: &OpenOptions,
    ) -> Result<(ObjectKey, OpenObject), DiskError> {
        let mut state = self.0.state.lock();
        let found = state.object(disk.name(), object);
        let found = found.ok_or(DiskError::NotExist)?;
        let files = found.choose(self.unique_fragments(object.at.policy), &options.fragment);
        match self.open_chosen(found, &files, object, asked, options) {
            Ok(open) => Ok(open),
            Err(Failed::Final(error)) => Err(error),
            Err(Failed::Broken(reason)) => {
                state.quarantine(disk.name(), object);
                Err(DiskError::Quarantined(reason))
            }
        }
    }

    fn open_chosen(
        &self,
        found: &Object,
        files: &OnDiskFiles,
        object: ObjectId,
        asked: Option<&Arc<str>>,
        options: &OpenOptions,
    ) -> Result<(ObjectKey, OpenObject), Failed> {
        let record = |entry| found.record(entry).ok_or(DiskError::StateChanged);
        let Some(data) = &files.data else {
            return Err(match &files.tombstone {
                Some(tombstone) => DiskError::Deleted {
                    timestamp: tombstone.timestamp,
                },
                None => DiskError::NotExist,
            }
            .into());
        };
        let data = record(data)?;
        let fragments = FragmentInfo::of(files);
        let mut info = ObjectInfo::new(data.metadata.clone(), data.timestamp, fragments);
        if let Some(meta) = &files.meta {
            let other = files.content_type.as_ref().filter(|entry| *entry != meta);
            let other = other.map(record).transpose()?;
            let post = record(meta)?.metadata.clone();
            info = info.with_post(post, other.map(|other| &other.metadata));
        }
        let name = self.name(object, asked, &info.metadata)?;
        let size = data.content.len() as u64;
        let info = info.check(size, options).map_err(|error| match error {
            InfoError::Expired(info) => DiskError::Expired(info).into(),
            InfoError::Broken(reason) => Failed::Broken(reason),
        })?;
        let content = data.content.clone();
        let suspect = Suspect::Data {
            timestamp: data.timestamp,
            fragment: info.fragments.as_ref().map(|fragments| fragments.index),
        };
        let content = if options.inline_limit == 0 {
            Content::None
        } else if size > options.inline_limit {
            Content::Stored(StoredContent::in_memory(content, suspect, true))
        } else {
            check_content(&content, info.etag())?;
            Content::Inline(content)
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

    /// The stored name, which is the one asked for.
    fn name(
        &self,
        object: ObjectId,
        asked: Option<&Arc<str>>,
        metadata: &Metadata,
    ) -> Result<Arc<str>, Failed> {
        let stored = metadata.get_str(NAME);
        let stored = stored.ok_or_else(|| Failed::Broken("no name in the metadata".into()))?;
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
        let hash = self.0.hash_path.hash(account, parts.next(), parts.next());
        match hash == object.hash {
            true => Ok(stored.into()),
            false => Err(Failed::Broken("a name of another hash".into())),
        }
    }

    /// A PUT's record.
    fn put_record(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        content: Bytes,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Record, DiskError> {
        let kind = match self.unique_fragments(key.policy) {
            None => FileKind::Data,
            Some(unique) => {
                let text = metadata.get_str(FRAGMENT_INDEX).unwrap_or("");
                let index = text.trim().parse().ok().filter(|index| *index < unique);
                FileKind::Fragment {
                    index: index.ok_or_else(|| DiskError::BadFragment {
                        name: FRAGMENT_INDEX,
                        value: text.to_owned(),
                        last: unique.saturating_sub(1),
                    })?,
                    is_durable: durability == Durability::AtOnce,
                }
            }
        };
        record(disk, key, kind, content, metadata)
    }

    /// Adds a record, as a committer would once it is durable.
    fn commit(&self, disk: &Disk, key: &ObjectKey, record: Record) -> Step<()> {
        let (engine, id) = (self.clone(), key.id());
        let disk = disk.clone();
        Step::handed(move |completion| {
            let mut state = engine.0.state.lock();
            state.change(disk.name(), id).add(record);
            engine.clean_up(&mut state, &disk, id);
            drop(state);
            completion.complete(Ok(()));
        })
    }

    /// Removes what does not count, and the object where nothing is left of it. Returns what counts.
    pub(crate) fn clean_up(&self, state: &mut State, disk: &Disk, object: ObjectId) -> OnDiskFiles {
        let version = state.changes;
        let unique = self.unique_fragments(object.at.policy);
        let Some(found) = state.object_mut(disk.name(), object) else {
            return OnDiskFiles::default();
        };
        let mut files = found.choose(unique, &FragmentChoice::default());
        let is_old = |time: Timestamp| Self::is_older_than(disk, time.secs() as i64, RECLAIM_AGE);
        let old = files.tombstone.take_if(|entry| is_old(entry.timestamp));
        files.obsolete.extend(old);
        let (old, young) = std::mem::take(&mut files.reclaimable)
            .into_iter()
            .partition(|entry| {
                let written = found.record(entry).map_or(0, |record| record.written);
                let is_settled = Self::is_older_than(disk, written, COMMIT_WINDOW);
                is_old(entry.timestamp) && (entry.is_durable() || is_settled)
            });
        files.reclaimable = young;
        files.obsolete.extend::<Vec<_>>(old);
        found.remove(&files.obsolete);
        found.version = version;
        let obsolete = &files.obsolete;
        files.fragments.sets.retain_mut(|set| {
            set.entries.retain(|entry| !obsolete.contains(entry));
            !set.entries.is_empty()
        });
        if found.is_empty() {
            state.remove(disk.name(), object);
        }
        files
    }
}

impl State {
    /// Moves an object away; false where there is none.
    pub(crate) fn quarantine(&mut self, device: &str, object: ObjectId) -> bool {
        let is_there = self.remove(device, object).is_some();
        if is_there {
            self.quarantined.push(object);
        }
        is_there
    }
}

/// Why an object was not opened.
enum Failed {
    Broken(String),
    Final(DiskError),
}

impl From<DiskError> for Failed {
    fn from(error: DiskError) -> Self {
        Failed::Final(error)
    }
}

fn check_content(content: &Bytes, etag: &str) -> Result<(), Failed> {
    let md5 = hex(&Md5::digest(content).into());
    match md5 == etag {
        true => Ok(()),
        false => Err(Failed::Broken(format!(
            "ETag {etag} and the content's md5 {md5} do not match"
        ))),
    }
}

fn hex(md5: &[u8; 16]) -> String {
    cairn_types::ObjectHash(*md5).hex()
}

fn record(
    disk: &Disk,
    key: &ObjectKey,
    kind: FileKind,
    content: Bytes,
    mut metadata: Metadata,
) -> Result<Record, DiskError> {
    let missing = || DiskError::Io {
        action: "write",
        path: key.name.to_string(),
        source: io::Error::other("no X-Timestamp in the metadata"),
    };
    metadata.set(NAME, key.name.as_bytes());
    let content_type_timestamp = match kind {
        FileKind::Meta => metadata.timestamp("Content-Type-Timestamp"),
        _ => None,
    };
    Ok(Record {
        kind,
        timestamp: metadata.timestamp("X-Timestamp").ok_or_else(missing)?,
        content_type_timestamp,
        metadata,
        content,
        written: disk.now(),
    })
}

impl ObjectEngine for MemoryEngine {
    fn open(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Result<OpenObject, DiskError> {
        let opened = self.open_any(disk, key.id(), Some(&key.name), options);
        opened.map(|(_, open)| open)
    }

    fn open_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>> {
        Some(self.open(disk, key, options))
    }

    fn has_index(&self) -> bool {
        true
    }

    fn create(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        _size: Option<u64>,
        hash: bool,
    ) -> Result<Box<dyn ObjectWriter>, DiskError> {
        Ok(Box::new(Writer {
            engine: self.clone(),
            disk: disk.clone(),
            key: key.clone(),
            content: Vec::new(),
            md5: hash.then(Md5::new),
        }))
    }

    fn hands_writes_over(&self) -> bool {
        true
    }

    fn at_hand(&self, disk: &Disk, key: &ObjectKey, _bytes: usize) -> Option<AtHand> {
        if self.unique_fragments(key.policy).is_some() {
            return None;
        }
        let options = OpenOptions::metadata(Timestamp::ZERO);
        let known = match self.open_any(disk, key.id(), Some(&key.name), &options) {
            Ok((_, open)) => {
                let info = open.info;
                let at = info.data_timestamp;
                let is_plain = info.timestamp() == at && info.metadata.get("X-Delete-At").is_none();
                is_plain.then_some(Known::Lasting(at))
            }
            Err(DiskError::NotExist) => Some(Known::Absent),
            Err(DiskError::Deleted { timestamp }) => Some(Known::Deleted(timestamp)),
            Err(_) => None,
        };
        let known = known?;
        let engine = Arc::new(self.clone());
        Some(AtHand { engine, known })
    }

    fn put_small(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        body: Bytes,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError> {
        let record = self.put_record(disk, key, body, metadata, durability)?;
        Ok(self.commit(disk, key, record))
    }

    fn make_durable(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        fragment: u32,
    ) -> Result<Step<()>, DiskError> {
        if self.unique_fragments(key.policy).is_none() {
            return Ok(Step::Done(()));
        }
        let (engine, id, disk) = (self.clone(), key.id(), disk.clone());
        Ok(Step::handed(move |completion| {
            let mut state = engine.0.state.lock();
            let is_there = state
                .change(disk.name(), id)
                .make_durable(timestamp, fragment);
            let files = engine.clean_up(&mut state, &disk, id);
            drop(state);
            let newest = files.tombstone.as_ref().map(|ts| ts.timestamp);
            let newest = newest.max(files.fragments.durable);
            completion.complete(match is_there || newest >= Some(timestamp) {
                true => Ok(()),
                false => Err(DiskError::NotExist),
            });
        }))
    }

    fn write_metadata(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        metadata: Metadata,
    ) -> Result<Step<()>, DiskError> {
        let record = record(disk, key, FileKind::Meta, Bytes::new(), metadata)?;
        Ok(self.commit(disk, key, record))
    }

    fn delete(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        _seen: Option<Seen>,
    ) -> Result<Step<()>, DiskError> {
        let metadata = [("X-Timestamp", timestamp.internal())]
            .into_iter()
            .collect();
        let record = record(disk, key, FileKind::Tombstone, Bytes::new(), metadata)?;
        Ok(self.commit(disk, key, record))
    }

    fn quarantine(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        suspect: &Suspect,
        _reason: &str,
    ) -> Result<bool, DiskError> {
        let mut state = self.0.state.lock();
        let Some(found) = state.object(disk.name(), key.id()) else {
            return Ok(false);
        };
        let Suspect::Data {
            timestamp,
            fragment,
        } = suspect
        else {
            return Ok(false);
        };
        let choice = FragmentChoice::even_not_durable(*fragment);
        let files = found.choose(self.unique_fragments(key.policy), &choice);
        let is_it = files.data.is_some_and(|data| data.timestamp == *timestamp);
        Ok(is_it && state.quarantine(disk.name(), key.id()))
    }
}

/// An upload under way.
struct Writer {
    engine: MemoryEngine,
    disk: Disk,
    key: ObjectKey,
    content: Vec<u8>,
    md5: Option<Md5>,
}

impl ObjectWriter for Writer {
    fn write(&mut self, chunks: &[Bytes]) -> Result<(), DiskError> {
        for chunk in chunks {
            if let Some(md5) = &mut self.md5 {
                md5.update(chunk);
            }
            self.content.extend_from_slice(chunk);
        }
        Ok(())
    }

    fn written(&self) -> u64 {
        self.content.len() as u64
    }

    fn md5(&mut self) -> Option<[u8; 16]> {
        self.md5.as_ref().map(|md5| md5.clone().finalize().into())
    }

    fn commit(
        self: Box<Self>,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError> {
        let content = Bytes::from(self.content);
        let record = self
            .engine
            .put_record(&self.disk, &self.key, content, metadata, durability)?;
        Ok(self.engine.commit(&self.disk, &self.key, record))
    }
}
