//! Encryption of an upload's body as it passes, and the metadata to store with it, which is known
//! at its end.

use std::sync::Arc;

use bytes::Bytes;
use cairn_formats::crypto_meta::{CryptoMeta, GCM_SEGMENTS, Iv, WrappedKey};
use cairn_http::{Body, BodyError, own_thread};
use futures_util::stream;
use parking_lot::{Mutex, MutexGuard};

use super::CryptoError;
use super::cipher::{CtrStream, ctr};
use super::keys::Key;
use super::md5_pair::Md5Pair;
use super::sealed::{self, SEGMENT_BYTES, Segments, TAG_BYTES};
use crate::Random;

fn failed() -> BodyError {
    BodyError::Source("encryption failed".into())
}

/// Maximum bytes of a chunk that is encrypted on the event loop: 64 KiB take 0.1 ms.
const INLINE_MAX_BYTES: usize = 64 << 10;

/// An upload in progress, shared by its body and by the conclusion.
#[derive(Clone)]
pub(super) struct Upload(Arc<Mutex<State>>);

struct State {
    random: Random,
    protection: Protection,
    /// Present from the first byte on; not while a chunk is being encrypted, nor after a failure.
    work: Option<Box<Work>>,
    has_begun: bool,
    /// The result, once requested.
    done: Option<Done>,
}

/// Method of encrypting an object's content, with the object's key, which wraps the content's key.
#[derive(Clone)]
pub(super) enum Protection {
    /// Counter mode, in Swift's format.
    Ctr(Key),
    /// Authenticated; with the path that the key is bound to.
    Sealed(Key, String),
}

struct Work {
    cipher: Cipher,
    meta: CryptoMeta,
}

enum Cipher {
    Ctr(Box<Counting>),
    Sealed(Box<Sealing>),
}

struct Counting {
    stream: CtrStream,
    sums: Md5Pair,
}

struct Sealing {
    segments: Segments,
    /// The segment to be sealed next, once it is known whether it is the last.
    pending: Vec<u8>,
    number: u64,
    /// MD5s of the content and of the sealed segments.
    sums: Md5Pair,
}

/// Metadata of content that was not empty.
#[derive(Clone)]
pub(super) struct Done {
    pub(super) plain_md5: [u8; 16],
    pub(super) cipher_md5: [u8; 16],
    pub(super) plain_length: u64,
    /// Number of bytes passed on.
    pub(super) length: u64,
    /// Crypto metadata of the content, with its key wrapped by the object's.
    pub(super) meta: CryptoMeta,
}

impl Work {
    fn new(random: &Random, protection: &Protection) -> Result<Self, CryptoError> {
        let key = Key::new(random.bytes());
        match protection {
            Protection::Ctr(wrapping) => {
                let (iv, key_iv): (Iv, Iv) = (random.bytes(), random.bytes());
                let mut meta = CryptoMeta::ctr(&iv);
                meta.body_key = Some(WrappedKey {
                    key: ctr(wrapping, &key_iv, key.bytes()),
                    iv: key_iv.to_vec(),
                });
                let stream = CtrStream::new(&key, &iv, 0);
                let sums = Md5Pair::new();
                let cipher = Cipher::Ctr(Box::new(Counting { stream, sums }));
                Ok(Work { cipher, meta })
            }
            Protection::Sealed(wrapping, path) => {
                let iv: [u8; sealed::NONCE_BYTES] = random.bytes();
                let place = sealed::place(super::BODY_META, path);
                let meta = CryptoMeta {
                    cipher: Some(GCM_SEGMENTS.to_owned()),
                    body_key: Some(WrappedKey {
                        key: sealed::seal(wrapping, iv, &place, key.bytes())?,
                        iv: iv.to_vec(),
                    }),
                    ..CryptoMeta::default()
                };
                let cipher = Cipher::Sealed(Box::new(Sealing {
                    segments: Segments::new(&key)?,
                    pending: Vec::with_capacity(SEGMENT_BYTES),
                    number: 0,
                    sums: Md5Pair::new(),
                }));
                Ok(Work { cipher, meta })
            }
        }
    }

    fn encrypt(&mut self, chunk: &[u8]) -> Result<Bytes, CryptoError> {
        match &mut self.cipher {
            Cipher::Ctr(counting) => {
                let mut encrypted = chunk.to_vec();
                counting.stream.apply(&mut encrypted);
                counting.sums.update(chunk, &encrypted);
                Ok(encrypted.into())
            }
            Cipher::Sealed(sealing) => sealing.add(chunk),
        }
    }

    fn done(self) -> Done {
        let sums = match self.cipher {
            Cipher::Ctr(counting) => counting.sums,
            Cipher::Sealed(sealing) => sealing.sums,
        };
        let [plain_length, length] = sums.lengths();
        let [plain_md5, cipher_md5] = sums.finish();
        Done {
            plain_md5,
            cipher_md5,
            plain_length,
            length,
            meta: self.meta,
        }
    }
}

impl Sealing {
    fn add(&mut self, mut chunk: &[u8]) -> Result<Bytes, CryptoError> {
        let mut out = Vec::with_capacity(chunk.len() + 2 * TAG_BYTES);
        while !chunk.is_empty() {
            if self.pending.len() == SEGMENT_BYTES {
                self.seal(false, &mut out)?;
            }
            let taken = (SEGMENT_BYTES - self.pending.len()).min(chunk.len());
            self.pending.extend_from_slice(&chunk[..taken]);
            chunk = &chunk[taken..];
        }
        Ok(out.into())
    }

    /// Seals the last segment.
    fn end(&mut self) -> Result<Bytes, CryptoError> {
        let mut out = Vec::with_capacity(self.pending.len() + TAG_BYTES);
        self.seal(true, &mut out)?;
        Ok(out.into())
    }

    fn seal(&mut self, is_last: bool, out: &mut Vec<u8>) -> Result<(), CryptoError> {
        let from = out.len();
        self.segments
            .seal(self.number, is_last, &self.pending, out)?;
        self.sums.update(&self.pending, &out[from..]);
        self.pending.clear();
        self.number += 1;
        Ok(())
    }
}

impl Upload {
    pub(super) fn new(random: Random, protection: Protection) -> Self {
        Upload(Arc::new(Mutex::new(State {
            random,
            protection,
            work: None,
            has_begun: false,
            done: None,
        })))
    }

    /// The body, encrypted while it is read.
    pub(super) fn encrypted(&self, body: Body) -> Body {
        let length = match (body.length(), &self.lock().protection) {
            (Some(length), Protection::Sealed(..)) => Some(sealed::sealed_length(length)),
            (length, _) => length,
        };
        if length == Some(0) {
            return body;
        }
        let upload = self.clone();
        let chunks = stream::unfold(Some(body), move |body| {
            let upload = upload.clone();
            async move {
                let mut body = body?;
                match body.next_chunk().await {
                    Some(Ok(chunk)) => Some((upload.encrypt(chunk).await, Some(body))),
                    Some(Err(error)) => Some((Err(error), None)),
                    None => upload.end().map(|last| (last, None)),
                }
            }
        });
        Body::from_stream(chunks, length)
    }

    /// The remaining bytes when the content has ended.
    fn end(&self) -> Option<Result<Bytes, BodyError>> {
        let mut state = self.lock();
        match &mut state.work.as_mut()?.cipher {
            Cipher::Ctr(_) => None,
            Cipher::Sealed(sealing) => Some(sealing.end().map_err(|_| failed())),
        }
    }

    async fn encrypt(&self, chunk: Bytes) -> Result<Bytes, BodyError> {
        let mut work = self.take().ok_or_else(failed)?;
        if chunk.len() <= INLINE_MAX_BYTES {
            let encrypted = work.encrypt(&chunk).map_err(|_| failed())?;
            self.lock().work = Some(work);
            return Ok(encrypted);
        }
        let encrypted = own_thread::blocking(move || {
            let encrypted = work.encrypt(&chunk);
            (work, encrypted)
        });
        let Some((work, encrypted)) = encrypted.await else {
            return Err(failed());
        };
        self.lock().work = Some(work);
        encrypted.map_err(|_| failed())
    }

    /// Takes the encryption state. One key encrypts the whole content: it is never replaced by a
    /// second one.
    fn take(&self) -> Option<Box<Work>> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.has_begun, true) {
            return state.work.take();
        }
        let work = Work::new(&state.random, &state.protection).ok()?;
        Some(Box::new(work))
    }

    /// The metadata; `None` if there was no content.
    pub(super) fn done(&self) -> Option<Done> {
        let mut state = self.lock();
        if let Some(work) = state.work.take() {
            state.done = Some(work.done());
        }
        state.done.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}
