//! Reader of a tar archive from a request's body, compressed or not: its files, with their content
//! in chunks, in memory that does not depend on the sizes claimed by the archive.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use cairn_formats::tar::{self, BLOCK, Header, Kind, TarError};
use cairn_http::{Body, BodyError};
use thiserror::Error;

use super::unpack::{Packing, Unpacker};

/// Maximum bytes of a name, or of the records of a member.
const EXTENDED_MAX: u64 = 1 << 20;

#[derive(Debug, Error)]
pub(super) enum ArchiveError {
    /// The upload ended early.
    #[error("{0}")]
    Upload(#[from] BodyError),
    #[error("{0}")]
    Packed(String),
    #[error("{0}")]
    Tar(#[from] TarError),
    #[error("{0}")]
    Malformed(&'static str),
}

/// A file, or another member that may stand for one.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) size: u64,
    pub(super) is_file: bool,
    /// A file with holes, which cannot become an object.
    pub(super) is_sparse: bool,
    /// Extended records of the member, such as its extended attributes.
    pub(super) records: BTreeMap<String, Vec<u8>>,
}

pub(super) struct Archive {
    body: Body,
    unpacker: Option<Box<Unpacker>>,
    timeout: Duration,
    ready: Bytes,
    /// Unread bytes of the current member, and padding after them.
    left: u64,
    padding: u64,
    global: BTreeMap<String, Vec<u8>>,
    is_first: bool,
}

impl Archive {
    /// `max_ratio` is as for [`Unpacker::new`]; `timeout` bounds the wait for a client that sends
    /// nothing.
    pub(super) fn new(body: Body, packing: Packing, max_ratio: u64, timeout: Duration) -> Self {
        Archive {
            body,
            unpacker: Unpacker::new(packing, max_ratio).map(Box::new),
            timeout,
            ready: Bytes::new(),
            left: 0,
            padding: 0,
            global: BTreeMap::new(),
            is_first: true,
        }
    }

    /// Skips the rest of the current member and reads the next one; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut long_name = None;
        let mut records = self.global.clone();
        loop {
            let Some(header) = self.header().await? else {
                return Ok(None);
            };
            match header.kind {
                Kind::LongName => {
                    let content = self.small_content().await?;
                    long_name = Some(tar::text(&content).to_vec());
                }
                Kind::LongLink => {
                    self.small_content().await?;
                }
                Kind::Extended => {
                    let content = self.small_content().await?;
                    records.extend(tar::parse_extended(&content)?);
                }
                Kind::GlobalExtended => {
                    let content = self.small_content().await?;
                    self.global.extend(tar::parse_extended(&content)?);
                    if self.global.len() > 1000 {
                        return Err(ArchiveError::Malformed("too many global records"));
                    }
                    records.extend(self.global.clone());
                }
                Kind::File | Kind::Sparse | Kind::Other => {
                    return self.entry(header, long_name, records).map(Some);
                }
            }
        }
    }

    fn entry(
        &mut self,
        header: Header,
        long_name: Option<Vec<u8>>,
        records: BTreeMap<String, Vec<u8>>,
    ) -> Result<Entry, ArchiveError> {
        if let Some(size) = records.get("size") {
            let size = std::str::from_utf8(size).ok().and_then(|s| s.parse().ok());
            self.left = size.ok_or(ArchiveError::Malformed("invalid size in a header"))?;
            self.padding = tar::padding(self.left);
        }
        let holes = records.keys().any(|name| name.starts_with("GNU.sparse."));
        let name = records.get("path").cloned().or(long_name);
        Ok(Entry {
            name: name.unwrap_or(header.name),
            size: self.left,
            is_file: header.kind != Kind::Other,
            is_sparse: header.kind == Kind::Sparse || holes,
            records,
        })
    }

    /// Reads the next header; the content that it declares is still to be read.
    async fn header(&mut self) -> Result<Option<Header>, ArchiveError> {
        while self.left > 0 {
            self.content().await?;
        }
        let mut padding = std::mem::take(&mut self.padding);
        while padding > 0 {
            let zeros = self.take(padding).await?;
            let zeros = zeros.ok_or(ArchiveError::Malformed("unexpected end of data"))?;
            padding -= zeros.len() as u64;
        }
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.take((BLOCK - filled) as u64).await? {
                Some(bytes) => {
                    block[filled..filled + bytes.len()].copy_from_slice(&bytes);
                    filled += bytes.len();
                }
                None if filled > 0 => return Err(ArchiveError::Malformed("truncated header")),
                None if self.is_first => return Err(ArchiveError::Malformed("empty file")),
                // The final blocks are missing, but all members were there.
                None => return Ok(None),
            }
        }
        self.is_first = false;
        let header = tar::parse_header(&block)?;
        if let Some(header) = &header {
            self.left = header.size;
            self.padding = tar::padding(header.size);
        }
        Ok(header)
    }

    /// Reads the whole content of a header extension.
    async fn small_content(&mut self) -> Result<Vec<u8>, ArchiveError> {
        if self.left > EXTENDED_MAX {
            return Err(ArchiveError::Malformed("an extended header is too large"));
        }
        let mut all = Vec::new();
        while let Some(chunk) = self.content().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// The next bytes of the member; `None` at its end.
    pub(super) async fn content(&mut self) -> Result<Option<Bytes>, ArchiveError> {
        if self.left == 0 {
            return Ok(None);
        }
        match self.take(self.left).await? {
            Some(chunk) => {
                self.left -= chunk.len() as u64;
                Ok(Some(chunk))
            }
            None => Err(ArchiveError::Malformed("unexpected end of data")),
        }
    }

    /// At least one and up to `most` bytes of the archive.
    async fn take(&mut self, most: u64) -> Result<Option<Bytes>, ArchiveError> {
        while self.ready.is_empty() {
            if !self.fill().await? {
                return Ok(None);
            }
        }
        let taken = most.min(self.ready.len() as u64) as usize;
        Ok(Some(self.ready.split_to(taken)))
    }

    /// Fetches more input, possibly none yet; false at the end.
    async fn fill(&mut self) -> Result<bool, ArchiveError> {
        let Some(mut unpacker) = self.unpacker.take() else {
            return match self.body.next_chunk_within(self.timeout).await {
                Some(chunk) => {
                    self.ready = chunk?;
                    Ok(true)
                }
                None => Ok(false),
            };
        };
        let mut is_end = false;
        if unpacker.is_over() {
            self.unpacker = Some(unpacker);
            return Ok(false);
        }
        if unpacker.is_hungry() {
            match self.body.next_chunk_within(self.timeout).await {
                Some(chunk) => unpacker.feed(chunk?),
                None => is_end = true,
            }
        }
        // Off the event loop: a block of bzip2 takes tens of milliseconds.
        let stepped = tokio::task::spawn_blocking(move || {
            let made = if is_end {
                unpacker.finish()
            } else {
                unpacker.step()
            };
            (unpacker, made)
        });
        let (unpacker, made) = stepped
            .await
            .map_err(|_| ArchiveError::Packed("unpacking failed".into()))?;
        self.unpacker = Some(unpacker);
        self.ready = made.map_err(ArchiveError::Packed)?.into();
        Ok(true)
    }

    /// The unread rest of the upload.
    pub(super) fn into_body(self) -> Body {
        self.body
    }
}
