//! Metadata and times of an object, merged from its PUT and its POSTs, and checked, by the same
//! rules for every engine.

use cairn_types::metadata::is_sys_meta;
use cairn_types::{ServerKind, Timestamp};

use crate::layout::{FragmentChoice, OnDiskFiles};
use crate::metadata::{Metadata, NAME};

/// Options for opening an object.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Time compared with `X-Delete-At`.
    pub now: Timestamp,
    /// Opens expired objects, too.
    pub open_expired: bool,
    /// Maximum size in bytes of objects that are read and verified on opening.
    pub inline_limit: u64,
    /// Fragment wanted, in an erasure-coded policy.
    pub fragment: FragmentChoice,
}

impl OpenOptions {
    /// Options for metadata only.
    pub fn metadata(now: Timestamp) -> Self {
        OpenOptions {
            now,
            open_expired: false,
            inline_limit: 0,
            fragment: FragmentChoice::default(),
        }
    }
}

/// The fragments of one object on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentInfo {
    /// Index of the open fragment.
    pub index: u32,
    /// Timestamp of the durable version here.
    pub durable: Option<Timestamp>,
    /// Timestamp of the deletion, unless a later version is durable.
    pub deleted: Option<Timestamp>,
    /// All fragments, from the newest to the durable ones.
    pub found: Vec<(Timestamp, Vec<u32>)>,
}

impl FragmentInfo {
    /// Fragments beside the chosen one; `None` if none was chosen.
    pub fn of(files: &OnDiskFiles) -> Option<Box<Self>> {
        let index = files.data.as_ref()?.fragment_index()?;
        let sets = files.fragments.sets.iter();
        Some(Box::new(FragmentInfo {
            index,
            durable: files.fragments.durable,
            deleted: files.fragments.deleted,
            found: sets
                .map(|set| (set.timestamp, set.indices().collect()))
                .collect(),
        }))
    }
}

/// Metadata and times of an object, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Metadata of the PUT, with the user's items replaced by the newest POST's.
    pub metadata: Metadata,
    /// Metadata of the PUT; `None` if equal to `metadata`.
    pub datafile_metadata: Option<Metadata>,
    /// Metadata of the newest POST, without `name`.
    pub metafile_metadata: Option<Metadata>,
    /// Timestamp of the content.
    pub data_timestamp: Timestamp,
    pub size: u64,
    /// Fragments here, in an erasure-coded policy.
    pub fragments: Option<Box<FragmentInfo>>,
}

impl ObjectInfo {
    /// Timestamp of the last write of any part.
    pub fn timestamp(&self) -> Timestamp {
        self.metadata
            .timestamp("X-Timestamp")
            .unwrap_or(self.data_timestamp)
    }

    /// Timestamp of the content type.
    pub fn content_type_timestamp(&self) -> Timestamp {
        self.metadata
            .timestamp("Content-Type-Timestamp")
            .unwrap_or(self.data_timestamp)
    }

    pub fn datafile_metadata(&self) -> &Metadata {
        self.datafile_metadata.as_ref().unwrap_or(&self.metadata)
    }

    pub fn etag(&self) -> &str {
        self.metadata.get_str("ETag").unwrap_or("")
    }
}

/// Reasons why an object cannot be opened with its metadata.
#[derive(Debug)]
pub enum InfoError {
    Expired(Box<ObjectInfo>),
    /// The metadata is damaged or belongs to other content, with the reason.
    Broken(String),
}

impl ObjectInfo {
    /// Creates the info of a PUT, before any POST.
    pub fn new(
        metadata: Metadata,
        data_timestamp: Timestamp,
        fragments: Option<Box<FragmentInfo>>,
    ) -> Self {
        ObjectInfo {
            metadata,
            datafile_metadata: None,
            metafile_metadata: None,
            data_timestamp,
            size: 0,
            fragments,
        }
    }

    /// Adds the metadata of the newest POST, and the content type of another if that is newer.
    pub fn with_post(mut self, mut metafile: Metadata, newer_type: Option<&Metadata>) -> Self {
        let data_timestamp = self.data_timestamp;
        if let Some(newer) = newer_type {
            merge_content_type(&mut metafile, newer, data_timestamp);
        }
        let datafile = std::mem::take(&mut self.metadata);
        let mut merged = metafile.clone();
        for (name, value) in datafile.iter().filter(|(name, _)| is_of_put(name)) {
            merged.set(name, value);
        }
        let content_type_timestamp = metafile.timestamp("Content-Type-Timestamp");
        if let Some(content_type) = datafile.get("Content-Type")
            && content_type_timestamp.is_none_or(|time| data_timestamp > time)
        {
            merged.set("Content-Type", content_type);
            merged.remove("Content-Type-Timestamp");
        }
        metafile.remove(NAME);
        self.metadata = merged;
        self.datafile_metadata = Some(datafile);
        self.metafile_metadata = Some(metafile);
        self
    }

    /// Compares the metadata with the size of the content and the time.
    ///
    /// # Errors
    /// It has expired, or its metadata does not belong to this content.
    pub fn check(mut self, size: u64, options: &OpenOptions) -> Result<Self, InfoError> {
        let number = |name: &str, metadata: &Metadata| -> Result<Option<i64>, InfoError> {
            let Some(text) = metadata.get(name) else {
                return Ok(None);
            };
            let number = std::str::from_utf8(text).ok();
            let number = number.and_then(|t| t.trim().parse().ok());
            number.map(Some).ok_or_else(|| {
                let text = String::from_utf8_lossy(text).into_owned();
                InfoError::Broken(format!("bad metadata {name} value {text}"))
            })
        };
        let delete_at = number("X-Delete-At", &self.metadata)?;
        let promised = number("Content-Length", &self.metadata)?;
        self.size = size;
        if let Some(delete_at) = delete_at.filter(|_| !options.open_expired) {
            let is_due =
                u64::try_from(delete_at).map_or(true, |at| Timestamp::from_secs(at) <= options.now);
            if is_due {
                return Err(InfoError::Expired(Box::new(self)));
            }
        }
        match promised {
            None => Err(InfoError::Broken(
                "no content-length in the metadata".into(),
            )),
            Some(promised) if u64::try_from(promised) == Ok(size) => Ok(self),
            Some(promised) => Err(InfoError::Broken(format!(
                "metadata content-length {promised} does not match actual object size {size}"
            ))),
        }
    }
}

/// Adopts the content type of another POST if that is newer.
fn merge_content_type(metafile: &mut Metadata, newer: &Metadata, data_timestamp: Timestamp) {
    let time = |m: &Metadata| m.timestamp("Content-Type-Timestamp");
    let (Some(content_type), Some(newer_time)) = (newer.get("Content-Type"), time(newer)) else {
        return;
    };
    if time(metafile).is_none_or(|t| newer_time > t) && newer_time > data_timestamp {
        metafile.set("Content-Type", content_type);
        metafile.set("Content-Type-Timestamp", newer_time.internal());
    }
}

/// Whether only a PUT sets this metadata.
fn is_of_put(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    matches!(
        lower.as_str(),
        "content-length" | "deleted" | "etag" | "x-static-large-object"
    ) || is_sys_meta(ServerKind::Object, &lower)
}
