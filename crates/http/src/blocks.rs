//! A body in blocks: what comes from a network in pieces of any size, gathered into aligned
//! memory that a disk can take as it is.
//!
//! It also bounds memory. A small piece keeps the whole buffer alive that a connection read it
//! into; copied, it does not.

use std::time::Duration;

use bytes::Bytes;
use cairn_types::blocks::{self, Block, SIZE, is_aligned};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::body::{Body, BodyError};

/// A block that is not full by then is handed on: whoever waits for it has a time limit too.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whoever has a block may need more than that to go on.
const PATIENCE_IN_A_CROWD: Duration = Duration::from_secs(1);

/// Reads a body block by block.
pub struct Blocks {
    body: Body,
    /// Of the last piece, what did not fit.
    rest: Bytes,
    /// A body that has ended is not asked again.
    has_ended: bool,
    /// How long nothing may come.
    timeout: Duration,
    /// Told when the last block that was handed on is gone.
    last: Option<oneshot::Receiver<()>>,
}

/// A block, and who is told when it is gone.
struct Followed {
    block: Block,
    _gone: oneshot::Sender<()>,
}

impl AsRef<[u8]> for Followed {
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

    /// The next full block, or what there was at the end, or after a while; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        if self.rest.is_empty() && self.has_ended {
            return None;
        }
        self.turn().await;
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
        let patience = Instant::now() + PATIENCE.min(self.timeout);
        loop {
            block.fill_from(&mut self.rest);
            if block.is_full() {
                break;
            }
            match timeout_at(patience, self.body.next_chunk()).await {
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
        Ok(Bytes::from_owner(Followed { block, _gone: gone }))
    }

    /// While many blocks are in use, the next one waits until the last is gone.
    async fn turn(&mut self) {
        let last = self.last.take().filter(|_| blocks::are_crowded());
        if let Some(gone) = last {
            let _ = timeout(PATIENCE_IN_A_CROWD, gone).await;
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
        // One that must not be polled after its end.
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
        // In the places of the two, when they have gone.
        crowd.extend([Block::take(), Block::take()]);
        let mut third = Box::pin(blocks.next());
        assert!(timeout(soon, &mut third).await.is_err());
        let dropped = Instant::now();
        drop(first_two);
        let third = third.await;
        assert_eq!(dropped.elapsed(), Duration::ZERO);
        // One who cannot go on without more is not left alone for long.
        let (asked, _fourth) = (Instant::now(), blocks.next().await);
        assert_eq!(asked.elapsed(), PATIENCE_IN_A_CROWD);
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
