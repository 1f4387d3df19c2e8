//! The body of an upload, encrypted as it passes, and what is to be stored with it, which is known
//! at its end.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cairn_formats::crypto_meta::{CryptoMeta, Iv, WrappedKey};
use cairn_http::{Body, BodyError, own_thread};
use futures_util::stream;

use super::cipher::{CtrStream, ctr};
use super::keys::Key;
use super::md5_pair::Md5Pair;
use crate::Random;

/// Chunks larger than this are encrypted off the event loop: 64 KiB take 0.1 ms.
const INLINE: usize = 64 << 10;

/// An upload under way: shared by its body and by whoever concludes it.
#[derive(Clone)]
pub(super) struct Upload(Arc<Mutex<State>>);

struct State {
    random: Random,
    wrapping: Key,
    /// From the first byte on; not while a chunk is being encrypted, nor after a failure.
    work: Option<Box<Work>>,
    has_begun: bool,
    /// What became of it, once asked.
    done: Option<Done>,
}

struct Work {
    stream: CtrStream,
    sums: Md5Pair,
    meta: CryptoMeta,
}

/// What is known at the end of content that was not empty.
#[derive(Clone)]
pub(super) struct Done {
    pub(super) plain_md5: [u8; 16],
    pub(super) cipher_md5: [u8; 16],
    pub(super) length: u64,
    /// How the content was encrypted, and its key encrypted with the object's.
    pub(super) meta: CryptoMeta,
}

impl Work {
    fn new(random: &Random, wrapping: &Key) -> Self {
        let key = Key::new(random.bytes());
        let (iv, key_iv): (Iv, Iv) = (random.bytes(), random.bytes());
        let mut meta = CryptoMeta::ctr(&iv);
        meta.body_key = Some(WrappedKey {
            key: ctr(wrapping, &key_iv, key.bytes()),
            iv: key_iv.to_vec(),
        });
        Work {
            stream: CtrStream::new(&key, &iv, 0),
            sums: Md5Pair::new(),
            meta,
        }
    }

    fn encrypt(&mut self, chunk: &[u8]) -> Bytes {
        let mut encrypted = chunk.to_vec();
        self.stream.apply(&mut encrypted);
        self.sums.update(chunk, &encrypted);
        encrypted.into()
    }
}

impl Upload {
    /// `wrapping`: the object's key.
    pub(super) fn new(random: Random, wrapping: Key) -> Self {
        Upload(Arc::new(Mutex::new(State {
            random,
            wrapping,
            work: None,
            has_begun: false,
            done: None,
        })))
    }

    /// The body, encrypted while it is read.
    pub(super) fn encrypted(&self, body: Body) -> Body {
        let length = body.length();
        if length == Some(0) {
            return body;
        }
        let upload = self.clone();
        let chunks = stream::unfold(body, move |mut body| {
            let upload = upload.clone();
            async move {
                let chunk = match body.next_chunk().await? {
                    Ok(chunk) => upload.encrypt(chunk).await,
                    Err(error) => Err(error),
                };
                Some((chunk, body))
            }
        });
        Body::from_stream(chunks, length)
    }

    async fn encrypt(&self, chunk: Bytes) -> Result<Bytes, BodyError> {
        let failed = || BodyError::Source("encryption failed".into());
        let mut work = self.take().ok_or_else(failed)?;
        if chunk.len() <= INLINE {
            let encrypted = work.encrypt(&chunk);
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
        Ok(encrypted)
    }

    /// One key encrypts all of it: a second one is never begun.
    fn take(&self) -> Option<Box<Work>> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.has_begun, true) {
            return state.work.take();
        }
        Some(Box::new(Work::new(&state.random, &state.wrapping)))
    }

    /// What was encrypted; none where there was no content.
    pub(super) fn done(&self) -> Option<Done> {
        let mut state = self.lock();
        if let Some(work) = state.work.take() {
            let length = work.sums.length();
            let [plain_md5, cipher_md5] = work.sums.finish();
            state.done = Some(Done {
                plain_md5,
                cipher_md5,
                length,
                meta: work.meta,
            });
        }
        state.done.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
