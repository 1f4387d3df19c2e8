//! Encoder of an upload: reads content segment by segment, codes it into fragments, and computes
//! all MD5s.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, BodyError, own_thread};
use md5::{Digest, Md5};

use crate::erasure::Erasure;

/// Maximum bytes of a segment that is coded and hashed on the event loop.
const INLINE_MAX_BYTES: usize = 16 * 1024;

/// Reads an upload and codes it.
pub(super) struct Encoder {
    erasure: Arc<Erasure>,
    body: Body,
    timeout: Duration,
    /// Maximum size of the object in bytes.
    limit: u64,
    /// The part of the last piece that belongs to the next segment.
    rest: Bytes,
    ended: bool,
    /// Bytes of the object read so far.
    pub(super) length: u64,
    sums: Option<Box<Sums>>,
}

/// MD5 states of the object, and of each fragment's archive.
struct Sums {
    object: Md5,
    archives: Vec<Md5>,
}

/// MD5s of a finished upload, in hex.
pub(super) struct Etags {
    pub(super) object: String,
    pub(super) archives: Vec<String>,
}

impl Encoder {
    /// `timeout` is the maximum time without data.
    pub(super) fn new(erasure: Arc<Erasure>, body: Body, timeout: Duration, limit: u64) -> Self {
        let sums = Sums {
            object: Md5::new(),
            archives: vec![Md5::new(); erasure.scheme.unique()],
        };
        Encoder {
            erasure,
            body,
            timeout,
            limit,
            rest: Bytes::new(),
            ended: false,
            length: 0,
            sums: Some(Box::new(sums)),
        }
    }

    /// The fragments of the next segment, in order of their indexes; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<Bytes>, BodyError>> {
        let segment = match self.segment().await {
            Ok(segment) if segment.is_empty() => return None,
            Ok(segment) => segment,
            Err(error) => return Some(Err(error)),
        };
        let mut sums = self.sums.take()?;
        if segment.len() <= INLINE_MAX_BYTES {
            let fragments = sums.code(&self.erasure, &segment);
            self.sums = Some(sums);
            return Some(Ok(fragments));
        }
        let erasure = self.erasure.clone();
        let coded = own_thread::blocking(move || {
            let fragments = sums.code(&erasure, &segment);
            (sums, fragments)
        });
        let Some((sums, fragments)) = coded.await else {
            let error = "this server failed to code a segment";
            return Some(Err(BodyError::Source(error.to_owned())));
        };
        self.sums = Some(sums);
        Some(Ok(fragments))
    }

    /// Reads the content of one segment, which is shorter at the end.
    async fn segment(&mut self) -> Result<Vec<u8>, BodyError> {
        let size = self.erasure.scheme.segment_size();
        let mut segment = Vec::new();
        while segment.len() < size {
            if self.rest.is_empty() {
                if self.ended {
                    break;
                }
                match self.body.next_chunk_within(self.timeout).await {
                    Some(piece) => self.rest = piece?,
                    None => self.ended = true,
                }
                self.length += self.rest.len() as u64;
                if self.length > self.limit {
                    return Err(BodyError::TooLarge(self.limit));
                }
            }
            let wanted = (size - segment.len()).min(self.rest.len());
            segment.extend_from_slice(&self.rest.split_to(wanted));
        }
        Ok(segment)
    }

    /// The final MD5s; call at the end.
    pub(super) fn etags(&mut self) -> Etags {
        let sums = self.sums.take().unwrap_or_default();
        Etags {
            object: hex(sums.object),
            archives: sums.archives.into_iter().map(hex).collect(),
        }
    }
}

impl Default for Sums {
    fn default() -> Self {
        Sums {
            object: Md5::new(),
            archives: Vec::new(),
        }
    }
}

impl Sums {
    fn code(&mut self, erasure: &Erasure, segment: &[u8]) -> Vec<Bytes> {
        self.object.update(segment);
        let fragments = erasure.codec.encode(segment);
        for (sum, fragment) in self.archives.iter_mut().zip(&fragments) {
            sum.update(fragment);
        }
        fragments.into_iter().map(Bytes::from).collect()
    }
}

fn hex(sum: Md5) -> String {
    cairn_types::hex::encode(sum.finalize())
}
