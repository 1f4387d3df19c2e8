//! Records of one object: PUTs, POSTs and a DELETE, and which of them count.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::layout::{FileEntry, FileKind, OnDiskFiles, choose_files, choose_fragments};
use cairn_disk::{FragmentChoice, Metadata};
use cairn_types::Timestamp;

/// All records of one object.
#[derive(Debug, Default)]
pub(crate) struct Object {
    /// By number, in the order in which they came.
    records: BTreeMap<u64, Record>,
    /// Number of the next record.
    next: u64,
    /// The number of the change that made it what it is.
    pub(crate) version: u64,
}

/// One PUT, POST or DELETE.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) kind: FileKind,
    pub(crate) timestamp: Timestamp,
    pub(crate) content_type_timestamp: Option<Timestamp>,
    /// With the object's name.
    pub(crate) metadata: Metadata,
    pub(crate) content: Bytes,
    /// When it came, in seconds since the epoch.
    pub(crate) written: i64,
}

impl Record {
    fn is_content(&self) -> bool {
        matches!(self.kind, FileKind::Data | FileKind::Fragment { .. })
    }
}

impl Object {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn has_content(&self) -> bool {
        self.records.values().any(Record::is_content)
    }

    /// The record that a choice refers to.
    pub(crate) fn record(&self, chosen: &FileEntry) -> Option<&Record> {
        self.records.get(&chosen.name.parse().ok()?)
    }

    /// Adds a record in place of one that says the same.
    pub(crate) fn add(&mut self, record: Record) {
        self.records.retain(|_, other| {
            let is_same = is_same_kind(&other.kind, &record.kind)
                && other.timestamp == record.timestamp
                && other.content_type_timestamp == record.content_type_timestamp;
            !is_same
        });
        self.records.insert(self.next, record);
        self.next += 1;
    }

    /// Makes a fragment durable; false where it is not there.
    pub(crate) fn make_durable(&mut self, timestamp: Timestamp, fragment: u32) -> bool {
        let mut all = self.records.values_mut();
        let found = all.find(|record| {
            let is_it =
                matches!(record.kind, FileKind::Fragment { index, .. } if index == fragment);
            is_it && record.timestamp == timestamp
        });
        let Some(found) = found else {
            return false;
        };
        found.kind = FileKind::Fragment {
            index: fragment,
            is_durable: true,
        };
        true
    }

    /// Which records count; `unique`: of an erasure-coded policy.
    pub(crate) fn choose(&self, unique: Option<u32>, choice: &FragmentChoice) -> OnDiskFiles {
        let entries = self.records.iter().map(|(number, record)| FileEntry {
            name: number.to_string(),
            kind: record.kind,
            timestamp: record.timestamp,
            content_type_timestamp: record.content_type_timestamp,
        });
        match unique {
            Some(unique) => choose_fragments(entries, unique, choice),
            None => choose_files(entries),
        }
    }

    pub(crate) fn remove(&mut self, entries: &[FileEntry]) {
        for number in entries.iter().filter_map(|entry| entry.name.parse().ok()) {
            self.records.remove::<u64>(&number);
        }
    }

    /// Removes the records for which `goes` holds.
    pub(crate) fn remove_where(&mut self, goes: impl Fn(&Record) -> bool) {
        self.records.retain(|_, record| !goes(record));
    }

    /// The times of all fragments.
    pub(crate) fn fragment_times(&self) -> Vec<Timestamp> {
        let records = self.records.values();
        let fragments = records.filter(|r| matches!(r.kind, FileKind::Fragment { .. }));
        fragments.map(|record| record.timestamp).collect()
    }

    pub(crate) fn name(&self) -> Option<Arc<str>> {
        let metadata = self.records.values().next().map(|r| &r.metadata)?;
        metadata.get_str("name").map(Into::into)
    }

    pub(crate) fn damage(&mut self, content: &[u8]) -> bool {
        let mut records = self.records.values_mut();
        let data = records.rfind(|record| record.is_content());
        let Some(data) = data else {
            return false;
        };
        data.content = Bytes::copy_from_slice(content);
        true
    }
}

fn is_same_kind(one: &FileKind, other: &FileKind) -> bool {
    match (one, other) {
        (FileKind::Fragment { index: one, .. }, FileKind::Fragment { index: other, .. }) => {
            one == other
        }
        (one, other) => one == other,
    }
}
