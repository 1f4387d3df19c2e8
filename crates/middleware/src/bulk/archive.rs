//! A tar archive read from a request's body, packed or not: its files, and their content in
//! chunks, in memory that does not grow with what the archive claims.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use cairn_formats::tar::{self, BLOCK, Header, Kind, TarError};
use cairn_http::{Body, BodyError};
use thiserror::Error;

use super::unpack::{Packing, Unpacker};

/// The most that a name or the records about a member may take.
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

/// A file, or what a client may take for one.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) size: u64,
    pub(super) is_file: bool,
    /// A file with holes, which cannot be made an object of.
    pub(super) is_sparse: bool,
    /// Records about it, such as its extended attributes.
    pub(super) records: BTreeMap<String, Vec<u8>>,
}

pub(super) struct Archive {
    body: Body,
    unpacker: Option<Box<Unpacker>>,
    patience: Duration,
    ready: Bytes,
    /// Bytes of the member under way, and zeros after them.
    left: u64,
    padding: u64,
    global: BTreeMap<String, Vec<u8>>,
    is_first: bool,
}

impl Archive {
    /// `max_ratio`: as of [`Unpacker::new`]. `patience`: with a client that sends nothing.
    pub(super) fn new(body: Body, packing: Packing, max_ratio: u64, patience: Duration) -> Self {
        Archive {
            body,
            unpacker: Unpacker::new(packing, max_ratio).map(Box::new),
            patience,
            ready: Bytes::new(),
            left: 0,
            padding: 0,
            global: BTreeMap::new(),
            is_first: true,
        }
    }

    /// The next member, whatever is left of this one skipped; `None` at the end.
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

    /// The next header; what it announces is left to be read.
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
                // Without its last blocks; all members were there.
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

    /// The whole content of a header's extension.
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

    /// Up to `most` bytes of the archive, at least one.
    async fn take(&mut self, most: u64) -> Result<Option<Bytes>, ArchiveError> {
        while self.ready.is_empty() {
            if !self.fill().await? {
                return Ok(None);
            }
        }
        let taken = most.min(self.ready.len() as u64) as usize;
        Ok(Some(self.ready.split_to(taken)))
    }

    /// Gets more ready, or nothing yet; false at the end.
    async fn fill(&mut self) -> Result<bool, ArchiveError> {
        let Some(mut unpacker) = self.unpacker.take() else {
            return match self.body.next_chunk_within(self.patience).await {
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
            match self.body.next_chunk_within(self.patience).await {
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

    /// The upload, for what nobody wants of it any more.
    pub(super) fn into_body(self) -> Body {
        self.body
    }
}
