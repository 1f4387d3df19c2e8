//! Metadata and times of an object: put together from its PUT and its POSTs, and
//! checked, by rules that are the same for every engine.

use cairn_types::metadata::is_sys_meta;
use cairn_types::{ServerKind, Timestamp};

use crate::layout::{FragmentChoice, OnDiskFiles};
use crate::metadata::{Metadata, NAME};

/// How to open an object.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The moment against which `X-Delete-At` is held.
    pub now: Timestamp,
    /// Open it even when it has expired.
    pub open_expired: bool,
    /// Objects up to this size are read along, and checked.
    pub inline_limit: u64,
    /// Fragments, in an erasure-coded policy.
    pub fragment: FragmentChoice,
}

impl OpenOptions {
    /// Metadata only.
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
    /// The open one.
    pub index: u32,
    /// When the object was written that is durable here.
    pub durable: Option<Timestamp>,
    /// When the object was deleted, where nothing has become durable since.
    pub deleted: Option<Timestamp>,
    /// All there are, from the newest to the durable ones.
    pub found: Vec<(Timestamp, Vec<u32>)>,
}

impl FragmentInfo {
    /// The fragments beside the chosen one; `None`: no fragment was chosen.
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

/// All that is known about an object besides its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The PUT's, with the user's part replaced by the newest POST's.
    pub metadata: Metadata,
    /// The PUT's; `None` where that is `metadata`.
    pub datafile_metadata: Option<Metadata>,
    /// The newest POST's, without `name`.
    pub metafile_metadata: Option<Metadata>,
    /// When the content was written.
    pub data_timestamp: Timestamp,
    pub size: u64,
    /// Of an erasure-coded policy.
    pub fragments: Option<Box<FragmentInfo>>,
}

impl ObjectInfo {
    /// When anything of it was written last.
    pub fn timestamp(&self) -> Timestamp {
        self.metadata
            .timestamp("X-Timestamp")
            .unwrap_or(self.data_timestamp)
    }

    /// When the content type was set last.
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

/// Why an object is not to be opened as its metadata has it.
#[derive(Debug)]
pub enum InfoError {
    Expired(Box<ObjectInfo>),
    /// Its metadata is damaged, or not of this content; and why.
    Broken(String),
}

impl ObjectInfo {
    /// The object of a PUT, before any POST.
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

    /// With the metadata of the newest POST, and that of another with a newer content type.
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

    /// Holds it against the size of the content, and against the time.
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

/// Takes the content type of another POST, where that is newer.
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

/// Metadata that only a PUT sets.
fn is_of_put(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    matches!(
        lower.as_str(),
        "content-length" | "deleted" | "etag" | "x-static-large-object"
    ) || is_sys_meta(ServerKind::Object, &lower)
}
