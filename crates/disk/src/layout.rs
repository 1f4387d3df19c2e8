//! Swift's disk layout: the meaning of file names, and the choice of a hash directory's valid
//! files.
//!
//! ```text
//! <device>/objects[-N]/<partition>/<suffix>/<hash>/<timestamp>.data        content
//!                                                  <timestamp>[+<delta>].meta   a POST's metadata
//!                                                  <timestamp>.ts          tombstone
//!                                                  <timestamp>#<index>[#d].data  an EC fragment
//!                                                  <timestamp>.durable     old EC durable marker
//!                                                  <timestamp>_<hex>.overflow    see overflow.rs
//!                                    hashes.pkl, hashes.invalid, .lock     see suffix_hashes.rs
//!          tmp[-N]/  async_pending[-N]/<suffix>/<hash>-<timestamp>  quarantined/objects[-N]/<hash>
//! ```
//!
//! `suffix` is the hash's last three digits. The delta in a `.meta` name encodes the timestamp of
//! its content type. The newest `.data` or `.ts` wins; a `.meta` is valid if it is newer than the
//! `.data`. Rules for fragments are in `fragments.rs`. Pure: names in, a choice out.

mod fragments;
pub use fragments::{
    FragmentChoice, FragmentPreference, FragmentSet, Fragments, choose_fragments, fragment_name,
};

use cairn_types::timestamp::{decode_timestamps_explicit, encode_timestamps_explicit};
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};

/// `objects[-N]/<partition>`.
pub fn partition_dir(policy: PolicyIndex, partition: u32) -> String {
    format!("{}/{partition}", policy.dir("objects"))
}

/// `objects[-N]/<partition>/<suffix>/<hash>`.
pub fn hash_dir(policy: PolicyIndex, partition: u32, hash: ObjectHash) -> String {
    let hex = hash.hex();
    [
        &partition_dir(policy, partition),
        "/",
        &hex[29..],
        "/",
        &hex,
    ]
    .concat()
}

/// Kind of a file in a hash directory, by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    Data,
    /// `.data` of an erasure-coded policy.
    Fragment {
        index: u32,
        is_durable: bool,
    },
    Meta,
    Tombstone,
    /// `.durable`: marks the fragments of its timestamp, in Swift before 2.11.
    Durable,
    /// Metadata too large for extended attributes.
    Overflow,
    /// A timestamp with an unknown extension.
    Other,
}

/// One file of a hash directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub name: String,
    pub kind: FileKind,
    pub timestamp: Timestamp,
    /// Timestamp of the content type, for a `.meta` whose name has it.
    pub content_type_timestamp: Option<Timestamp>,
}

impl FileEntry {
    /// Parses a name; `None` for one that Swift does not write, which is left alone.
    pub fn parse(name: &str) -> Option<Self> {
        let (stem, extension) = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty())?;
        let mut content_type_timestamp = None;
        let (kind, timestamp) = match extension {
            "data" => parse_data_stem(stem)?,
            "meta" => {
                let (timestamp, content_type, _) = decode_timestamps_explicit(stem).ok()?;
                content_type_timestamp = content_type;
                (FileKind::Meta, timestamp)
            }
            _ => {
                let kind = match extension {
                    "ts" => FileKind::Tombstone,
                    "durable" => FileKind::Durable,
                    "overflow" => FileKind::Overflow,
                    // `1234.56789` has a dot but no extension: not ours.
                    other if other.bytes().all(|b| b.is_ascii_digit()) => return None,
                    _ => FileKind::Other,
                };
                (kind, Timestamp::parse(stem).ok()?)
            }
        };
        Some(FileEntry {
            name: name.to_owned(),
            kind,
            timestamp,
            content_type_timestamp,
        })
    }
}

fn parse_data_stem(stem: &str) -> Option<(FileKind, Timestamp)> {
    let mut parts = stem.split('#');
    let timestamp = Timestamp::parse(parts.next()?).ok()?;
    let kind = match parts.next() {
        None => FileKind::Data,
        Some(index) => FileKind::Fragment {
            index: index.parse().ok()?,
            is_durable: parts.next() == Some("d"),
        },
    };
    Some((kind, timestamp))
}

/// Name of a new `.data` file.
pub fn data_name(timestamp: Timestamp) -> String {
    format!("{}.data", timestamp.internal())
}

/// Name of a tombstone.
pub fn tombstone_name(timestamp: Timestamp) -> String {
    format!("{}.ts", timestamp.internal())
}

/// Name of a new `.meta` file. It includes the content type's timestamp: two files with one
/// timestamp but different content types then have different names, and both reach every replica.
pub fn meta_name(timestamp: Timestamp, content_type: Option<Timestamp>) -> String {
    match content_type {
        Some(_) => {
            let encoded = encode_timestamps_explicit(timestamp, content_type, None);
            format!("{encoded}.meta")
        }
        None => format!("{}.meta", timestamp.internal()),
    }
}

/// Choice of a hash directory's valid files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDiskFiles {
    pub data: Option<FileEntry>,
    /// The newest metadata; only with `data`.
    pub meta: Option<FileEntry>,
    /// The file with the newest content type, if that is newer than the data: `meta` itself or
    /// another.
    pub content_type: Option<FileEntry>,
    /// Only without `data`.
    pub tombstone: Option<FileEntry>,
    /// To be removed.
    pub obsolete: Vec<FileEntry>,
    /// To be removed after the reclaim age: metadata without data, fragments that did not become
    /// durable.
    pub reclaimable: Vec<FileEntry>,
    /// Overflow files that may belong to one of the above.
    pub overflow: Vec<FileEntry>,
    /// Fragments of an erasure-coded policy; `data` is one of them.
    pub fragments: Fragments,
}

impl OnDiskFiles {
    /// Chooses the files besides the data, which is set.
    fn fill(&mut self, files: SortedFiles) {
        if let Some(data) = &self.data {
            let last = files.metas.last();
            let is_newer = |e: &&FileEntry| {
                e.content_type_timestamp
                    .is_some_and(|time| time > data.timestamp)
            };
            self.content_type = last.filter(is_newer).cloned();
            self.meta = files.metas.into_iter().next();
        } else {
            self.tombstone = files.tombstones.into_iter().next();
        }
        self.overflow = files.others;
        self.overflow.retain(|e| e.kind == FileKind::Overflow);
    }
}

/// A directory's files by kind, newest first, without those that a tombstone or newer metadata
/// makes obsolete.
struct SortedFiles {
    /// `.data` of any policy.
    data: Vec<FileEntry>,
    metas: Vec<FileEntry>,
    tombstones: Vec<FileEntry>,
    others: Vec<FileEntry>,
}

impl SortedFiles {
    fn new(entries: impl IntoIterator<Item = FileEntry>, obsolete: &mut Vec<FileEntry>) -> Self {
        let mut files = SortedFiles {
            data: vec![],
            metas: vec![],
            tombstones: vec![],
            others: vec![],
        };
        for entry in entries {
            match entry.kind {
                FileKind::Data | FileKind::Fragment { .. } => files.data.push(entry),
                FileKind::Meta => files.metas.push(entry),
                FileKind::Tombstone => files.tombstones.push(entry),
                FileKind::Durable | FileKind::Overflow | FileKind::Other => {
                    files.others.push(entry);
                }
            }
        }
        for list in [
            &mut files.data,
            &mut files.metas,
            &mut files.tombstones,
            &mut files.others,
        ] {
            if list.len() > 1 {
                list.sort_by_key(|entry| std::cmp::Reverse(entry.timestamp));
            }
        }
        if let Some(newest) = files.tombstones.first().map(|e| e.timestamp) {
            for list in [&mut files.data, &mut files.metas, &mut files.others] {
                split_off_older(list, newest, obsolete);
            }
            obsolete.extend(files.tombstones.drain(1..));
        }
        retain_metas(&mut files.metas, obsolete);
        files
    }

    /// Moves files older than `time` to `older`.
    fn split_off_before(&mut self, time: Timestamp, older: &mut Vec<FileEntry>) {
        for list in [
            &mut self.data,
            &mut self.metas,
            &mut self.tombstones,
            &mut self.others,
        ] {
            let keep = list.iter().take_while(|e| e.timestamp >= time).count();
            older.extend(list.drain(keep..));
        }
    }
}

/// Chooses the valid files as Swift does for a replicated policy. EC fragments and unparsable names
/// are not ours: neither chosen nor obsolete.
pub fn choose_files(entries: impl IntoIterator<Item = FileEntry>) -> OnDiskFiles {
    let mut chosen = OnDiskFiles::default();
    let obsolete = &mut chosen.obsolete;
    let entries = entries.into_iter();
    let entries = entries.filter(|e| !matches!(e.kind, FileKind::Fragment { .. }));
    let mut files = SortedFiles::new(entries, obsolete);
    if let Some(newest) = files.data.first().map(|e| e.timestamp) {
        obsolete.extend(files.data.drain(1..));
        for list in [&mut files.metas, &mut files.tombstones, &mut files.others] {
            split_off_older(list, newest, obsolete);
        }
        chosen.data = files.data.pop();
    } else {
        chosen.reclaimable = std::mem::take(&mut files.metas);
    }
    chosen.fill(files);
    chosen
}

/// Moves files not newer than `than` to `older`; the list is sorted, newest first.
fn split_off_older(list: &mut Vec<FileEntry>, than: Timestamp, older: &mut Vec<FileEntry>) {
    let keep = list.iter().take_while(|e| e.timestamp > than).count();
    older.extend(list.drain(keep..));
}

/// Keeps the newest `.meta`, and the next one with a newer content type, if any.
fn retain_metas(metas: &mut Vec<FileEntry>, obsolete: &mut Vec<FileEntry>) {
    if metas.len() < 2 {
        return;
    }
    let content_type = |e: &FileEntry| e.content_type_timestamp.unwrap_or(Timestamp::ZERO);
    metas[1..].sort_by_key(|e| std::cmp::Reverse(content_type(e)));
    let mut retain = 1;
    if content_type(&metas[1]) > content_type(&metas[0]) {
        if metas[1].timestamp == metas[0].timestamp {
            metas.swap(0, 1);
        } else {
            retain = 2;
        }
    }
    obsolete.extend(metas.drain(retain..));
}

#[cfg(test)]
mod tests;
