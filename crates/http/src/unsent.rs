//! Memory for content that was read for answers and that clients have not taken yet: counted for the
//! whole process, and bounded.
//!
//! From [`CROWD_BYTES`] on an answer goes on only when its socket has taken what it had
//! (`progress.rs`): each has one piece. Content that is made in large parts, of fragments, reserves
//! its memory before it is made ([`Reserved::take`]), in turn. Where all is taken, connections whose
//! clients have read next to nothing for some seconds are closed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Unsent content of all answers above which each of them has one piece under way.
const CROWD_BYTES: usize = 24 << 20;
/// All that is reserved at once.
const RESERVED_MAX_BYTES: usize = 128 << 20;
/// Bytes of one permit.
const UNIT_BYTES: usize = 1 << 10;
const RESERVED_MAX_UNITS: usize = RESERVED_MAX_BYTES / UNIT_BYTES;
/// An answer's wait for its turn: as long as a client may keep a server waiting.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

static UNSENT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Fair: one that wants its next part comes after all that wait.
static ROOM: Semaphore = Semaphore::const_new(RESERVED_MAX_UNITS);
/// Answers that wait for their turn.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Content was handed to a connection.
pub(crate) fn add(bytes: usize) {
    UNSENT_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// A socket took it, or its connection has ended.
pub(crate) fn remove(bytes: usize) {
    UNSENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}

/// Whether so much is unsent that each answer is to have one piece under way.
pub(crate) fn is_crowded() -> bool {
    UNSENT_BYTES.load(Ordering::Relaxed) >= CROWD_BYTES
}

/// Whether an answer waits for memory.
pub(crate) fn is_needed() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

/// Memory that is reserved; free when dropped.
#[derive(Debug, Default)]
pub struct Reserved {
    _permit: Option<SemaphorePermit<'static>>,
}

impl From<SemaphorePermit<'static>> for Reserved {
    fn from(permit: SemaphorePermit<'static>) -> Self {
        Reserved {
            _permit: Some(permit),
        }
    }
}

/// There is no memory, and none came free in time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("answers that their clients have not read hold all memory for parts of objects")]
pub struct NoRoom;

impl Reserved {
    /// Reserves so much, after all that have asked before. A part that is larger than half of all
    /// there is takes that half.
    pub async fn take(bytes: usize) -> Result<Reserved, NoRoom> {
        let units = bytes.div_ceil(UNIT_BYTES).min(RESERVED_MAX_UNITS / 2);
        let units = u32::try_from(units).map_err(|_| NoRoom)?;
        if let Ok(permit) = ROOM.try_acquire_many(units) {
            return Ok(permit.into());
        }
        let _waiting = Waiting::begin();
        let permit = tokio::time::timeout(TURN_TIMEOUT, ROOM.acquire_many(units)).await;
        match permit {
            Ok(Ok(permit)) => Ok(permit.into()),
            Ok(Err(_)) | Err(_) => Err(NoRoom),
        }
    }
}

struct Waiting;

impl Waiting {
    fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// For tests that fill memory which all of the process share.
    pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    pub(crate) fn unsent_bytes() -> usize {
        UNSENT_BYTES.load(Ordering::Relaxed)
    }

    /// Unsent content of others, until it is dropped.
    pub(crate) struct Crowd;

    impl Crowd {
        pub(crate) fn gather() -> Crowd {
            add(CROWD_BYTES);
            Crowd
        }
    }

    impl Drop for Crowd {
        fn drop(&mut self) {
            remove(CROWD_BYTES);
        }
    }

    /// All that can be reserved.
    pub(crate) async fn reserve_all() -> [Reserved; 2] {
        let half = || async { Reserved::take(RESERVED_MAX_BYTES).await.unwrap_or_default() };
        [half().await, half().await]
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_memory_and_not_for_ever() {
        let _alone = ALONE.lock().await;
        let all = reserve_all().await;
        assert_eq!(Reserved::take(1).await.map(|_| ()), Err(NoRoom));
        let begun = tokio::time::Instant::now();
        let waits = tokio::spawn(Reserved::take(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(is_needed() && !waits.is_finished());
        drop(all);
        assert!(waits.await.is_ok_and(|reserved| reserved.is_ok()));
        assert!(begun.elapsed() < TURN_TIMEOUT && !is_needed());
    }

    #[tokio::test]
    async fn the_next_part_comes_after_those_that_wait() {
        let _alone = ALONE.lock().await;
        let [mine, others] = reserve_all().await;
        let mut waits = Box::pin(Reserved::take(RESERVED_MAX_BYTES));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(mine);
        let mut next = Box::pin(Reserved::take(1));
        assert!(
            next.as_mut().now_or_never().is_none(),
            "it was not its turn"
        );
        assert!(waits.now_or_never().is_some_and(|taken| taken.is_ok()));
        assert!(next.now_or_never().is_some_and(|taken| taken.is_ok()));
        drop(others);
    }
}
