//! Writes: records handed to the committer, which answers when they are durable.

use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{AtHand, Known, Seen};
use cairn_disk::metadata::{FRAGMENT_INDEX, NAME};
use cairn_disk::owed::Debt;
use cairn_disk::staged_file::{Reserve, StagedFile, just_link};
use cairn_disk::steps::Step;
use cairn_disk::{
    Disk, DiskError, Durability, Metadata, ObjectEngine, ObjectKey, ObjectWriter, OpenObject,
    OpenOptions, Suspect,
};
use cairn_types::Timestamp;
use md5::{Digest, Md5};

use super::PebblesEngine;
use super::stores::Opened;
use super::uploads::InMemory;
use crate::error::PebblesError;
use crate::format::{BODY_MAX, Kind, NewRecord};
use crate::object::{Entry, EntryKind};
use crate::store::quarantine::large_name;
use crate::store::{Change, Outcome};

/// The metadata that says when an object expires.
const EXPIRY: &str = "X-Delete-At";

impl PebblesEngine {
    /// A record of an object, without a body.
    fn record(
        &self,
        key: &ObjectKey,
        kind: Kind,
        metadata: &Metadata,
    ) -> Result<NewRecord, DiskError> {
        let timestamp = metadata
            .timestamp("X-Timestamp")
            .ok_or_else(|| DiskError::Io {
                action: "write",
                path: key.name.to_string(),
                source: std::io::Error::other("no X-Timestamp in the metadata"),
            })?;
        let mut kept = metadata.clone();
        kept.remove(NAME);
        let is_lasting = kind == Kind::Data && kept.get_ignore_case(EXPIRY).is_none();
        let metadata = match kind {
            // Its time is in its header.
            Kind::Tombstone | Kind::Durable => Bytes::new(),
            _ => kept.to_pickle().into(),
        };
        Ok(NewRecord {
            kind,
            partition: key.partition,
            hash: key.hash,
            timestamp,
            fragment: None,
            is_durable: false,
            is_external: false,
            owes_row: false,
            is_lasting,
            name: Bytes::copy_from_slice(key.name.as_bytes()),
            metadata,
            body: match kind {
                Kind::Tombstone => vec![0; 8].into(),
                _ => Bytes::new(),
            },
        })
    }

    /// A PUT's record, without its body.
    fn data_record(
        &self,
        key: &ObjectKey,
        metadata: &Metadata,
        durability: Durability,
    ) -> Result<NewRecord, DiskError> {
        let mut record = self.record(key, Kind::Data, metadata)?;
        let Some(unique) = self.unique_fragments(key.policy) else {
            return Ok(record);
        };
        let text = metadata.get_str(FRAGMENT_INDEX).unwrap_or("");
        let index = text
            .trim()
            .parse()
            .ok()
            .filter(|index: &u16| u32::from(*index) < unique);
        record.fragment = Some(index.ok_or_else(|| DiskError::BadFragment {
            name: FRAGMENT_INDEX,
            value: text.to_owned(),
            last: unique.saturating_sub(1),
        })?);
        record.is_durable = durability == Durability::AtOnce;
        Ok(record)
    }

    fn write(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        record: NewRecord,
    ) -> Result<Step<()>, DiskError> {
        Ok(self.write_owing(disk, key, record)?.map(owes_nothing))
    }

    fn write_owing(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        record: NewRecord,
    ) -> Result<Step<Option<Debt>>, DiskError> {
        let opened = self.store(disk, key.policy)?;
        opened.touch();
        Ok(hand_then(opened, Change::Write(record), || {}))
    }

    fn tombstone(&self, key: &ObjectKey, timestamp: Timestamp) -> Result<NewRecord, DiskError> {
        let metadata = [("X-Timestamp", timestamp.internal())]
            .into_iter()
            .collect();
        self.record(key, Kind::Tombstone, &metadata)
    }
}

/// An upload goes on after its last chunk could not be moved to a file.
fn failed_before(key: &ObjectKey) -> DiskError {
    DiskError::Io {
        action: "write",
        path: key.name.to_string(),
        source: std::io::Error::other("a part of the upload could not be written before"),
    }
}

/// The end of a record without a row.
fn owes_nothing(debt: Option<Debt>) {
    debug_assert!(debt.is_none(), "a row is owed that nobody sends");
}

/// A write on its way to the committer.
fn hand(opened: Arc<Opened>, change: Change) -> Step<()> {
    hand_then(opened, change, || {}).map(owes_nothing)
}

/// As [`hand`], of a record that may owe a row; `then` is called when the write has ended.
fn hand_then(
    opened: Arc<Opened>,
    change: Change,
    then: impl FnOnce() + Send + 'static,
) -> Step<Option<Debt>> {
    Step::handed(move |completion| {
        let of_reply = opened.clone();
        let reply = Box::new(move |ended: Result<Outcome, _>, debt: Option<Debt>| {
            then();
            // Something newer being there is as good.
            completion.complete(match ended {
                Ok(_) => Ok(debt),
                Err(error) => Err(of_reply.disk_error(error)),
            });
        });
        opened.committer.submit(change, reply);
    })
}

impl ObjectEngine for PebblesEngine {
    fn open(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Result<OpenObject, DiskError> {
        let opened = self.open_any(disk, key.id(), Some(&key.name), options, true);
        opened.map(|(_, open)| open)
    }

    fn open_cached(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        options: &OpenOptions,
    ) -> Option<Result<OpenObject, DiskError>> {
        self.try_open_cached(disk, key, options)
    }

    fn has_index(&self) -> bool {
        true
    }

    fn create(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        size: Option<u64>,
        hash: bool,
    ) -> Result<Box<dyn ObjectWriter>, DiskError> {
        self.store(disk, key.policy)?.touch();
        let mut writer = Writer {
            engine: self.clone(),
            disk: disk.clone(),
            key: key.clone(),
            size,
            body: Body::Memory(InMemory::new(&self.inner.stores.uploads)),
            written: 0,
            md5: hash.then(Md5::new),
        };
        if size.is_some_and(|size| size > BODY_MAX as u64) {
            writer.begin_file()?;
        }
        Ok(Box::new(writer))
    }

    fn hands_writes_over(&self) -> bool {
        true
    }

    /// Those of a record.
    fn whole_max_bytes(&self) -> u64 {
        BODY_MAX as u64
    }

    /// Its index knows an object of a single record. While the engine that this gives is there, its volumes are
    /// handed over to no other process.
    fn at_hand(&self, disk: &Disk, key: &ObjectKey, bytes: usize) -> Option<AtHand> {
        let opened = self.inner.stores.opened(disk.name(), key.policy)?;
        let store = opened.store();
        if bytes > BODY_MAX || store.is_poisoned() {
            return None;
        }
        let known = match store.index().get(key.partition, key.hash)[..] {
            [] => Some(Known::Absent),
            [only] => match only.kind {
                EntryKind::Tombstone => Some(Known::Deleted(only.timestamp)),
                EntryKind::Data if only.is_lasting && only.external.is_none() => {
                    Some(Known::Lasting(only.timestamp))
                }
                _ => None,
            },
            _ => None,
        };
        let known = known?;
        let engine = Arc::new(self.holding(opened));
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
        if body.len() > BODY_MAX {
            let mut writer = self.create(disk, key, Some(body.len() as u64), false)?;
            writer.write(&[body])?;
            return writer.commit(metadata, durability);
        }
        let mut record = self.data_record(key, &metadata, durability)?;
        record.body = body;
        self.write(disk, key, record)
    }

    fn put_small_owing(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        body: Bytes,
        metadata: Metadata,
    ) -> Result<Step<Option<Debt>>, DiskError> {
        // A fragment's metadata is not that of the object's row, and a large body takes another way.
        if body.len() > BODY_MAX || self.unique_fragments(key.policy).is_some() {
            let put = self.put_small(disk, key, body, metadata, Durability::AtOnce)?;
            return Ok(put.map(|()| None));
        }
        let mut record = self.data_record(key, &metadata, Durability::AtOnce)?;
        record.body = body;
        record.owes_row = true;
        self.write_owing(disk, key, record)
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
        let opened = self.store(disk, key.policy)?;
        opened.touch();
        let entries = opened.store().index().get(key.partition, key.hash);
        let is_it = |entry: &Entry| {
            entry.timestamp == timestamp && entry.fragment().map(u32::from) == Some(fragment)
        };
        let Some(found) = entries.iter().find(|entry| is_it(entry)) else {
            let is_over = |entry: &Entry| match entry.kind {
                EntryKind::Tombstone | EntryKind::Durable => entry.timestamp >= timestamp,
                EntryKind::Fragment { is_durable, .. } => {
                    is_durable && entry.timestamp >= timestamp
                }
                _ => false,
            };
            return match entries.iter().any(is_over) {
                true => Ok(Step::Done(())),
                false => Err(DiskError::NotExist),
            };
        };
        let is_marked =
            |entry: &Entry| entry.kind == EntryKind::Durable && entry.timestamp == timestamp;
        let counts = matches!(
            found.kind,
            EntryKind::Fragment {
                is_durable: true,
                ..
            }
        );
        if counts || entries.iter().any(is_marked) {
            return Ok(Step::Done(()));
        }
        let metadata = [("X-Timestamp", timestamp.internal())]
            .into_iter()
            .collect();
        let record = self.record(key, Kind::Durable, &metadata)?;
        Ok(hand(opened, Change::Write(record)))
    }

    fn write_metadata(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        metadata: Metadata,
    ) -> Result<Step<()>, DiskError> {
        let mut record = self.record(key, Kind::Meta, &metadata)?;
        let content_type = metadata.timestamp("Content-Type-Timestamp");
        let ticks = content_type.map_or(0, Timestamp::ticks);
        record.body = ticks.to_le_bytes().to_vec().into();
        self.write(disk, key, record)
    }

    fn delete(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        _seen: Option<Seen>,
    ) -> Result<Step<()>, DiskError> {
        self.write(disk, key, self.tombstone(key, timestamp)?)
    }

    fn delete_owing(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        timestamp: Timestamp,
        _seen: Option<Seen>,
    ) -> Result<Step<Option<Debt>>, DiskError> {
        let mut record = self.tombstone(key, timestamp)?;
        record.owes_row = self.unique_fragments(key.policy).is_none();
        self.write_owing(disk, key, record)
    }

    fn quarantine(
        &self,
        disk: &Disk,
        key: &ObjectKey,
        suspect: &Suspect,
        reason: &str,
    ) -> Result<bool, DiskError> {
        let Some(opened) = self.store_if_there(disk, key.policy)? else {
            return Ok(false);
        };
        let entries = opened.store().index().get(key.partition, key.hash);
        let is_it = |entry: &&Entry| match *suspect {
            Suspect::At { place, number } => {
                (u64::from(entry.place.slot), entry.place.offset) == (place, number)
            }
            Suspect::Data {
                timestamp,
                fragment,
            } => {
                let of_entry = entry.fragment().map(u32::from);
                entry.is_content() && entry.timestamp == timestamp && of_entry == fragment
            }
        };
        let Some(entry) = entries.iter().find(is_it) else {
            return Ok(false);
        };
        let (partition, hash) = (key.partition, key.hash);
        let ended = opened
            .store()
            .quarantine(partition, hash, entry.place, reason);
        let outcome = ended.map_err(|error| opened.disk_error(error))?;
        Ok(outcome == Outcome::Written)
    }
}

/// The bytes of an upload so far.
enum Body {
    Memory(InMemory),
    /// It is larger than a record, or there was no memory for it.
    File(Box<StagedFile>),
    /// Between the two.
    Moving,
}

/// An upload under way. It takes as long as its client does: it keeps no store open.
struct Writer {
    engine: PebblesEngine,
    disk: Disk,
    key: ObjectKey,
    size: Option<u64>,
    body: Body,
    written: u64,
    md5: Option<Md5>,
}

impl Writer {
    fn begin_file(&mut self) -> Result<(), DiskError> {
        let reserve = Reserve::Keep { size: self.size };
        let dir = Opened::large_dir(self.key.policy);
        let mut staged = StagedFile::create(&self.disk, &dir, reserve)?;
        staged.write_directly();
        if let Body::Memory(so_far) = std::mem::replace(&mut self.body, Body::Moving) {
            let (bytes, _held) = so_far.finish();
            staged.write(&[bytes])?;
        }
        self.body = Body::File(Box::new(staged));
        Ok(())
    }
}

impl ObjectWriter for Writer {
    fn write(&mut self, chunks: &[Bytes]) -> Result<(), DiskError> {
        for chunk in chunks {
            if let Some(md5) = &mut self.md5 {
                md5.update(chunk);
            }
            self.written += chunk.len() as u64;
        }
        if self.written > BODY_MAX as u64 && matches!(self.body, Body::Memory(_)) {
            self.begin_file()?;
        }
        if let Body::Memory(so_far) = &mut self.body {
            if so_far.append(chunks, self.size) {
                return Ok(());
            }
            self.begin_file()?;
        }
        match &mut self.body {
            Body::File(staged) => staged.write(chunks),
            Body::Memory(_) | Body::Moving => Err(failed_before(&self.key)),
        }
    }

    fn written(&self) -> u64 {
        self.written
    }

    fn md5(&mut self) -> Option<[u8; 16]> {
        self.md5.as_ref().map(|md5| md5.clone().finalize().into())
    }

    fn commit(
        self: Box<Self>,
        metadata: Metadata,
        durability: Durability,
    ) -> Result<Step<()>, DiskError> {
        let mut record = self.engine.data_record(&self.key, &metadata, durability)?;
        let opened = self.engine.store(&self.disk, self.key.policy)?;
        opened.touch();
        match self.body {
            Body::Memory(in_memory) => {
                let (body, held) = in_memory.finish();
                record.body = body;
                let step = hand_then(opened, Change::Write(record), move || drop(held));
                Ok(step.map(owes_nothing))
            }
            Body::Moving => Err(failed_before(&self.key)),
            Body::File(mut staged) => {
                let number = opened.next_number();
                record.is_external = true;
                record.body = number.to_le_bytes().to_vec().into();
                staged.drop_cache_when_synced();
                let dir = Opened::large_dir(self.key.policy);
                let name = large_name(number);
                let published = staged.publish_steps(&dir, &name, just_link)?;
                Ok(published.end(move |_| hand_large(opened, record, number)))
            }
        }
    }
}

/// As [`hand`], of a body whose file is there: it goes where the record is not written.
fn hand_large(opened: Arc<Opened>, record: NewRecord, number: u64) -> Step<()> {
    Step::handed(move |completion| {
        let of_reply = opened.clone();
        let reply = Box::new(
            move |ended: Result<Outcome, PebblesError>, debt: Option<Debt>| {
                owes_nothing(debt);
                let is_unnamed = match &ended {
                    Ok(outcome) => *outcome == Outcome::Obsolete,
                    Err(error) => error.is_refusal(),
                };
                if is_unnamed {
                    of_reply.discard(number);
                }
                completion.complete(match ended {
                    Ok(_) => Ok(()),
                    Err(error) => Err(of_reply.disk_error(error)),
                });
            },
        );
        opened.committer.submit(Change::Write(record), reply);
    })
}
