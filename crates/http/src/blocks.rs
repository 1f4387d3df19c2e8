//! A body as aligned blocks: pieces of any size from the network are gathered into aligned memory
//! that a disk can take without another copy.
//!
//! This also bounds memory: a small piece keeps the whole read buffer of its connection alive, a
//! copy of it does not.

use std::time::Duration;

use bytes::Bytes;
use cairn_types::blocks::{self, Block, SIZE, is_aligned};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::body::{Body, BodyError};

/// Time after which a block is handed on although it is not full: its consumer has a timeout of its
/// own.
const FILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum wait for the previous block to be released while blocks are scarce: its holder may need
/// more data to proceed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads a body block by block.
pub struct Blocks {
    body: Body,
    /// The part of the last piece that did not fit into the block.
    rest: Bytes,
    /// The body has ended and must not be polled again.
    has_ended: bool,
    /// Maximum time without any data.
    timeout: Duration,
    /// Resolves when the last block handed on has been dropped.
    last: Option<oneshot::Receiver<()>>,
}

/// A block that reports when it is dropped.
struct TrackedBlock {
    block: Block,
    _gone: oneshot::Sender<()>,
}

impl AsRef<[u8]> for TrackedBlock {
    fn as_ref(&self) -> &[u8] {
        self.block.as_ref()
    }
}

impl Blocks {
    pub fn new(body: Body, timeout: Duration) -> Self {
        Blocks {
            body,
            rest: Bytes::new(),
            has_ended: false,
            timeout,
            last: None,
        }
    }

    /// The next full block, or a shorter one at the end of the body or after [`FILL_TIMEOUT`];
    /// `None` at the end.
    ///
    /// # Errors
    /// As [`Body::next_chunk_within`], and `Source` if there is no memory for a block.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        if self.rest.is_empty() && self.has_ended {
            return None;
        }
        self.wait_for_release().await;
        if self.rest.is_empty() {
            match self.body.next_chunk_within(self.timeout).await? {
                Ok(piece) => self.rest = piece,
                Err(error) => return Some(Err(error)),
            }
        }
        if self.rest.len() == SIZE && is_aligned(&self.rest) {
            return Some(Ok(std::mem::take(&mut self.rest)));
        }
        let block = Block::take().map_err(|error| BodyError::Source(error.to_string()));
        match block {
            Ok(block) => Some(self.fill(block).await),
            Err(error) => Some(Err(error)),
        }
    }

    async fn fill(&mut self, mut block: Block) -> Result<Bytes, BodyError> {
        let deadline = Instant::now() + FILL_TIMEOUT.min(self.timeout);
        loop {
            block.fill_from(&mut self.rest);
            if block.is_full() {
                break;
            }
            match timeout_at(deadline, self.body.next_chunk()).await {
                Ok(Some(piece)) => self.rest = piece?,
                Ok(None) => {
                    self.has_ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let (gone, last) = oneshot::channel();
        self.last = Some(last);
        Ok(Bytes::from_owner(TrackedBlock { block, _gone: gone }))
    }

    /// While many blocks are in use, waits until the previous block has been dropped.
    async fn wait_for_release(&mut self) {
        let last = self.last.take().filter(|_| blocks::are_crowded());
        if let Some(gone) = last {
            let _ = timeout(RELEASE_TIMEOUT, gone).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(sizes: &[usize]) -> Blocks {
        let pieces: Vec<Bytes> = sizes
            .iter()
            .map(|n| Bytes::from(vec![*n as u8; *n]))
            .collect();
        let pieces = pieces.into_iter().map(Ok);
        // A stream that must not be polled after its end.
        let stream = futures_util::stream::unfold(pieces, |mut pieces| async move {
            pieces.next().map(|piece| (piece, pieces))
        });
        let body = Body::from_stream(stream, None);
        Blocks::new(body, Duration::from_secs(60))
    }

    async fn lengths(mut blocks: Blocks) -> Vec<usize> {
        let mut lengths = Vec::new();
        while let Some(Ok(block)) = blocks.next().await {
            assert!(is_aligned(&block));
            lengths.push(block.len());
        }
        lengths
    }

    #[tokio::test]
    async fn pieces_of_any_size_become_blocks() {
        assert!(lengths(pieces(&[])).await.is_empty());
        assert_eq!(lengths(pieces(&[1, 2, 3])).await, [6]);
        assert_eq!(lengths(pieces(&[SIZE - 1, 3, SIZE])).await, [SIZE, SIZE, 2]);
        assert_eq!(lengths(pieces(&[3 * SIZE])).await, [SIZE; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_crowd_each_has_one_block() {
        let mut blocks = pieces(&[4 * SIZE]);
        let soon = Duration::from_millis(500);
        let first_two = (blocks.next().await, blocks.next().await);
        let mut crowd = Vec::new();
        while !blocks::are_crowded() {
            crowd.push(Block::take());
        }
        // Two new blocks take the place of the two that were dropped.
        crowd.extend([Block::take(), Block::take()]);
        let mut third = Box::pin(blocks.next());
        assert!(timeout(soon, &mut third).await.is_err());
        let dropped = Instant::now();
        drop(first_two);
        let third = third.await;
        assert_eq!(dropped.elapsed(), Duration::ZERO);
        // A consumer that needs more data to proceed gets it after a short wait.
        let (asked, _fourth) = (Instant::now(), blocks.next().await);
        assert_eq!(asked.elapsed(), RELEASE_TIMEOUT);
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_sender_is_not_waited_for_too_long() {
        let (sender, body) = Body::channel(None, 4);
        let mut blocks = Blocks::new(body, Duration::from_secs(60));
        assert!(sender.send(Bytes::from("some")).await);
        assert_eq!(
            blocks.next().await.map(|b| b.ok()),
            Some(Some(Bytes::from("some")))
        );
        let nothing = blocks.next().await;
        assert!(
            matches!(nothing, Some(Err(BodyError::Timeout(_)))),
            "{nothing:?}"
        );
    }
}
