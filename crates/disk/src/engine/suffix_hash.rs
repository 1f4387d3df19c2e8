//! Suffix hashes: an MD5 over the timestamps of a suffix's valid files, in Swift's format, so that
//! nodes can compare theirs whatever their engines.

use std::collections::BTreeMap;

use cairn_formats::pickle::Value;
use cairn_types::Timestamp;
use md5::{Digest, Md5};

use crate::layout::OnDiskFiles;
use crate::xattr;

/// Hashes of a suffix in an erasure-coded policy, instead of one MD5: for each index that of its
/// fragments' timestamps, and under `None` that of the common parts (durable timestamps, metadata,
/// tombstones).
pub type FragmentHashes = BTreeMap<Option<u32>, String>;

/// The hash of one suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuffixHash {
    Whole(String),
    Fragments(FragmentHashes),
}

impl SuffixHash {
    /// The hash in a replicated policy.
    pub fn whole(&self) -> Option<&str> {
        match self {
            SuffixHash::Whole(hash) => Some(hash),
            SuffixHash::Fragments(_) => None,
        }
    }

    /// The hashes in an erasure-coded policy.
    pub fn fragments(&self) -> Option<&FragmentHashes> {
        match self {
            SuffixHash::Whole(_) => None,
            SuffixHash::Fragments(hashes) => Some(hashes),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            SuffixHash::Whole(hash) => hash.is_empty(),
            SuffixHash::Fragments(hashes) => hashes.is_empty(),
        }
    }

    /// The value in `hashes.pkl` and in responses to REPLICATE.
    pub fn to_value(&self) -> Value {
        match self {
            SuffixHash::Whole(hash) => Value::str(hash),
            SuffixHash::Fragments(hashes) => {
                let pair = |(index, hash): (&Option<u32>, &String)| {
                    let index = index.map_or(Value::None, |index| Value::Int(index.into()));
                    (index, Value::str(hash))
                };
                Value::Dict(hashes.iter().map(pair).collect())
            }
        }
    }

    /// Parses a value; `None` if it is not a hash.
    pub fn from_value(value: &Value) -> Option<Self> {
        let Some(pairs) = value.as_dict() else {
            return Some(SuffixHash::Whole(value.as_str()?.to_owned()));
        };
        let pair = |(index, hash): &(Value, Value)| {
            let index = match index {
                Value::None => None,
                index => Some(u32::try_from(index.as_int()?).ok()?),
            };
            Some((index, hash.as_str()?.to_owned()))
        };
        let pairs: Option<FragmentHashes> = pairs.iter().map(pair).collect();
        pairs.map(SuffixHash::Fragments)
    }
}

/// A partition's suffix hashes, and the number that had to be recomputed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashed {
    pub hashes: BTreeMap<String, SuffixHash>,
    pub hashed: u64,
}

/// Part of an object that is hashed, except fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Data,
    /// The newest POST.
    Meta,
    Tombstone,
    /// The content type, if newer than the content.
    ContentType,
    /// The durable fragments, of any index.
    Durable,
}

impl Counted {
    fn text(self) -> &'static str {
        match self {
            Counted::Data => ".data",
            Counted::Meta => ".meta",
            Counted::Tombstone => ".ts",
            Counted::ContentType => "_ctype",
            Counted::Durable => ".durable",
        }
    }
}

/// Incremental hash of a suffix. Objects must be added in the order of their hashes, and the parts
/// of each as: metadata, tombstone, data or fragments (newest timestamp first, indices in order),
/// durable, content type.
#[derive(Default)]
pub struct SuffixHasher {
    common: Md5,
    is_used: bool,
    by_index: BTreeMap<u32, Md5>,
}

impl SuffixHasher {
    pub fn new() -> Self {
        SuffixHasher::default()
    }

    pub fn add(&mut self, what: Counted, time: Timestamp) {
        self.common.update(time.internal().as_bytes());
        self.common.update(what.text().as_bytes());
        self.is_used = true;
    }

    pub fn add_fragment(&mut self, index: u32, time: Timestamp) {
        let md5 = self.by_index.entry(index).or_default();
        md5.update(time.internal().as_bytes());
    }

    /// Adds the valid files of one object in Swift's order.
    pub fn add_object(&mut self, files: &OnDiskFiles) {
        if let Some(entry) = &files.meta {
            self.add(Counted::Meta, entry.timestamp);
        }
        if let Some(entry) = &files.tombstone {
            self.add(Counted::Tombstone, entry.timestamp);
        }
        match &files.data {
            Some(entry) if entry.fragment_index().is_none() => {
                self.add(Counted::Data, entry.timestamp);
            }
            _ => {
                for set in &files.fragments.sets {
                    for index in set.indices() {
                        self.add_fragment(index, set.timestamp);
                    }
                }
                // Whether by file name or by marker.
                if let Some(durable) = files.fragments.durable {
                    self.add(Counted::Durable, durable);
                }
            }
        }
        let content_type = files.content_type.as_ref();
        if let Some(time) = content_type.and_then(|e| e.content_type_timestamp) {
            self.add(Counted::ContentType, time);
        }
    }

    /// The result; `has_fragments` for an erasure-coded policy.
    pub fn finish(self, has_fragments: bool) -> SuffixHash {
        if !has_fragments {
            return SuffixHash::Whole(hex_of(self.common));
        }
        let common = self.is_used.then(|| (None, hex_of(self.common)));
        let by_index = self.by_index.into_iter();
        let by_index = by_index.map(|(index, md5)| (Some(index), hex_of(md5)));
        SuffixHash::Fragments(common.into_iter().chain(by_index).collect())
    }
}

fn hex_of(md5: Md5) -> String {
    xattr::hex(&md5.finalize().into())
}
