//! Bodies of uploads that are read whole before a replica gets any of one, and the MD5 of all uploads.
//!
//! Small ones are always read whole. Longer ones, up to 1 MiB, are as long as there is memory for them: sent as a
//! whole they cost a third of what pieces for each replica cost. Where there is none they are streamed, so that slow
//! clients who hold this memory deny nobody an upload.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_http::{Body, BodyError};
use md5::{Digest, Md5};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes in memory at once of bodies that are read whole as long as there is memory.
const MEMORY_BYTES: usize = 64 << 20;
/// A permit's share of them.
const PERMIT_BYTES: usize = 1 << 10;
/// Maximum bytes of a chunk that is hashed on the event loop: 64 KiB take 0.1 ms.
const HASH_INLINE_MAX_BYTES: usize = 64 << 10;

/// The memory for bodies that are read whole.
pub(crate) struct WholeBodies(Arc<Semaphore>);

impl Default for WholeBodies {
    fn default() -> Self {
        WholeBodies(Arc::new(Semaphore::new(MEMORY_BYTES / PERMIT_BYTES)))
    }
}

impl WholeBodies {
    /// Memory for a body, if there is as much.
    pub(super) fn room(&self, bytes: u64) -> Option<Room> {
        let bytes = usize::try_from(bytes).ok()?;
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).ok()?;
        let permit = self.0.clone().try_acquire_many_owned(permits).ok()?;
        Some(Room { bytes, permit })
    }
}

/// Memory for one body.
pub(super) struct Room {
    bytes: usize,
    permit: OwnedSemaphorePermit,
}

impl Room {
    /// Reads a body into it; its MD5 too, if asked for.
    ///
    /// # Errors
    /// `TooLarge` where it is longer than announced, `Timeout` where no chunk comes for so long, or as the body's.
    pub(super) async fn fill(
        self,
        mut body: Body,
        hashes: bool,
        timeout: Duration,
    ) -> Result<(Bytes, Option<[u8; 16]>), BodyError> {
        let mut bytes = BytesMut::with_capacity(self.bytes);
        let mut hasher = hashes.then(Md5::new);
        let mut next = body.next_chunk_within(timeout).await.transpose()?;
        while let Some(chunk) = next {
            if bytes.len() + chunk.len() > self.bytes {
                return Err(BodyError::TooLarge(self.bytes as u64));
            }
            bytes.extend_from_slice(&chunk);
            let hashing = update(hasher.take(), chunk);
            let (received, hashed) = tokio::join!(body.next_chunk_within(timeout), hashing);
            next = received.transpose()?;
            hasher = hashed;
        }
        let held = Held {
            bytes: bytes.freeze(),
            _permit: self.permit,
        };
        let md5 = hasher.map(|md5| md5.finalize().into());
        Ok((Bytes::from_owner(held), md5))
    }
}

/// A body, whose memory is given back when the last one who has it has dropped it.
struct Held {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Permits for hashing, one for each processor.
fn hashing() -> &'static Semaphore {
    static TURNS: OnceLock<Semaphore> = OnceLock::new();
    TURNS.get_or_init(|| {
        let processors = std::thread::available_parallelism();
        Semaphore::new(processors.map_or(1, std::num::NonZero::get))
    })
}

/// Hashes a chunk, a long one on a thread that may block.
pub(super) async fn update(hasher: Option<Md5>, chunk: Bytes) -> Option<Md5> {
    let mut md5 = hasher?;
    if chunk.len() <= HASH_INLINE_MAX_BYTES {
        md5.update(&chunk);
        return Some(md5);
    }
    // More threads than processors would not hash faster, and each needs memory.
    let _turn = hashing().acquire().await.ok()?;
    let hashed = cairn_http::own_thread::blocking(move || {
        md5.update(&chunk);
        md5
    });
    hashed.await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn in_chunks(chunks: &'static [&'static [u8]]) -> Body {
        let chunks = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk)));
        Body::from_stream(futures_util::stream::iter(chunks), None)
    }

    #[tokio::test]
    async fn a_body_is_read_and_hashed() {
        let bodies = WholeBodies::default();
        let room = bodies.room(6).unwrap();
        let (body, md5) = room
            .fill(in_chunks(&[b"ab", b"cd", b"ef"]), true, MINUTE)
            .await
            .unwrap();
        assert_eq!(body, "abcdef");
        let whole: [u8; 16] = Md5::digest(b"abcdef").into();
        assert_eq!(md5, Some(whole));
        let room = bodies.room(5).unwrap();
        let long = room.fill(in_chunks(&[b"ab", b"cdef"]), true, MINUTE).await;
        assert!(matches!(long, Err(BodyError::TooLarge(5))));
    }

    #[tokio::test]
    async fn long_chunks_are_hashed_on_another_thread() {
        let long = vec![7; 3 * HASH_INLINE_MAX_BYTES];
        let room = WholeBodies::default().room(long.len() as u64).unwrap();
        let (body, md5) = room
            .fill(Body::full(long.clone()), true, MINUTE)
            .await
            .unwrap();
        assert_eq!(body, long);
        assert_eq!(md5, Some(Md5::digest(&long).into()));
    }

    #[tokio::test]
    async fn memory_is_bounded_and_given_back_with_the_last_copy() {
        let bodies = WholeBodies::default();
        let most = MEMORY_BYTES as u64;
        assert!(bodies.room(most + 1).is_none());
        let room = bodies.room(most).unwrap();
        assert!(bodies.room(1).is_none());
        let filled = room.fill(in_chunks(&[b"abc"]), false, MINUTE).await;
        let (body, md5) = filled.unwrap();
        assert_eq!(md5, None);
        let copy = body.slice(1..);
        drop(body);
        assert!(bodies.room(1).is_none());
        drop(copy);
        assert!(bodies.room(most).is_some());
    }
}
