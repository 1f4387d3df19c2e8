//! Bodies of uploads that are read whole before a replica gets any of one.
//!
//! Small ones are always read whole. Longer ones, up to 1 MiB, are as long as there is memory for them: sent as a
//! whole they cost a third of what pieces for each replica cost. Where there is none they are streamed, so that slow
//! clients who hold this memory deny nobody an upload.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_http::{Body, BodyError, LaneMd5};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes in memory at once of bodies that are read whole as long as there is memory.
const MEMORY_BYTES: usize = 64 << 20;
/// A permit's share of them.
const PERMIT_BYTES: usize = 1 << 10;
/// Bytes that are hashed while more arrive.
const HASHED_BYTES: usize = 256 << 10;

/// The memory for bodies that are read whole.
pub(crate) struct WholeBodies(Arc<Semaphore>);

impl Default for WholeBodies {
    fn default() -> Self {
        WholeBodies(Arc::new(Semaphore::new(MEMORY_BYTES / PERMIT_BYTES)))
    }
}

impl WholeBodies {
    /// Memory for a body, if there is as much.
    pub(crate) fn room(&self, bytes: u64) -> Option<Room> {
        let bytes = usize::try_from(bytes).ok()?;
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).ok()?;
        let permit = self.0.clone().try_acquire_many_owned(permits).ok()?;
        Some(Room { bytes, permit })
    }
}

/// Memory for one body.
pub(crate) struct Room {
    bytes: usize,
    permit: OwnedSemaphorePermit,
}

impl Room {
    /// Reads a body into it; its MD5 too, if asked for.
    ///
    /// # Errors
    /// `TooLarge` where it is longer than its memory, `Timeout` where no chunk comes for so long, or as the body's.
    pub(crate) async fn fill(
        self,
        mut body: Body,
        hashes: bool,
        timeout: Duration,
    ) -> Result<(Bytes, Option<[u8; 16]>), BodyError> {
        let mut arriving = BytesMut::with_capacity(self.bytes);
        let mut whole = BytesMut::new();
        let mut md5 = hashes.then(LaneMd5::new);
        let (mut hashed, mut is_ended) = (BytesMut::new(), false);
        loop {
            let most = self.bytes - whole.len() - hashed.len();
            let receiving = async {
                match is_ended {
                    true => Ok(true),
                    false => receive(&mut body, &mut arriving, most, timeout).await,
                }
            };
            let (received, updated) = tokio::join!(receiving, update(md5, hashed));
            is_ended = received?;
            (md5, hashed) = updated?;
            // Parts of the same memory: nothing is copied.
            whole.unsplit(hashed);
            if is_ended && arriving.is_empty() {
                break;
            }
            hashed = arriving.split();
        }
        let held = Held {
            bytes: whole.freeze(),
            _permit: self.permit,
        };
        Ok((Bytes::from_owner(held), md5.map(LaneMd5::finish)))
    }
}

/// Hashes a part of a body, and gives it back.
async fn update(
    md5: Option<LaneMd5>,
    part: BytesMut,
) -> Result<(Option<LaneMd5>, BytesMut), BodyError> {
    let Some(md5) = md5 else {
        return Ok((None, part));
    };
    let lost = || BodyError::Source("its MD5 could not be computed".to_owned());
    let (md5, part) = md5.update(part).await.ok_or_else(lost)?;
    Ok((Some(md5), part))
}

/// Appends what arrives, at most so many bytes, until there is enough to be hashed; true where the body has ended.
async fn receive(
    body: &mut Body,
    into: &mut BytesMut,
    most: usize,
    timeout: Duration,
) -> Result<bool, BodyError> {
    while into.len() < HASHED_BYTES {
        let Some(chunk) = body.next_chunk_within(timeout).await.transpose()? else {
            return Ok(true);
        };
        if into.len() + chunk.len() > most {
            return Err(BodyError::TooLarge(most as u64));
        }
        into.extend_from_slice(&chunk);
    }
    Ok(false)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use md5::{Digest, Md5};

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
        assert!(matches!(long, Err(BodyError::TooLarge(_))));
    }

    #[tokio::test]
    async fn a_long_body_is_hashed_while_it_arrives() {
        let long: Vec<u8> = (0..900_001_u32).map(|n| (n % 251) as u8).collect();
        for piece in [7_000, 100_000, 300_000, 1_000_000] {
            let chunks: Vec<_> = long.chunks(piece).map(Bytes::copy_from_slice).collect();
            let chunks = futures_util::stream::iter(chunks.into_iter().map(Ok));
            let room = WholeBodies::default().room(long.len() as u64).unwrap();
            let body = Body::from_stream(chunks, None);
            let (body, md5) = room.fill(body, true, MINUTE).await.unwrap();
            assert!(body == long, "in pieces of {piece}");
            assert_eq!(md5, Some(Md5::digest(&long).into()));
        }
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
