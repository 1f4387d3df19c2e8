//! Memory for response content that clients have not taken yet: counted for the whole process, and
//! bounded.
//!
//! From [`CROWD_BYTES`] on, a response continues only when its socket has taken all previous
//! content (`progress.rs`), so each holds one piece. Content that is produced in large parts, from
//! fragments, reserves its memory first ([`Reserved::take`]), in order of arrival. If all is
//! reserved, connections whose clients have read next to nothing for some seconds are closed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Unsent bytes of all responses above which each may have only one piece.
const CROWD_BYTES: usize = 24 << 20;
/// Maximum bytes reserved at once.
const RESERVED_MAX_BYTES: usize = 128 << 20;
/// Bytes per semaphore permit.
const UNIT_BYTES: usize = 1 << 10;
const RESERVED_MAX_UNITS: usize = RESERVED_MAX_BYTES / UNIT_BYTES;
/// Maximum wait of a response for its turn: as long as a client may keep a server waiting.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

static UNSENT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Reservations. The semaphore is fair: a response that wants its next part queues behind all that
/// wait.
static ROOM: Semaphore = Semaphore::const_new(RESERVED_MAX_UNITS);
/// Number of responses that wait for their turn.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Counts content that was handed to a connection.
pub(crate) fn add(bytes: usize) {
    UNSENT_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// Subtracts content that a socket took, or whose connection has ended.
pub(crate) fn remove(bytes: usize) {
    UNSENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}

/// Is so much unsent that each response may have only one piece?
pub(crate) fn is_crowded() -> bool {
    UNSENT_BYTES.load(Ordering::Relaxed) >= CROWD_BYTES
}

/// Does a response wait for memory?
pub(crate) fn is_needed() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

/// Reserved memory; released when dropped.
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

/// No memory became free in time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("answers that their clients have not read hold all memory for parts of objects")]
pub struct NoRoom;

impl Reserved {
    /// Reserves this many bytes, after all earlier requests. A part larger than half of the maximum
    /// reserves that half.
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

    /// Lock for tests that fill the memory shared by the process.
    pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    pub(crate) fn unsent_bytes() -> usize {
        UNSENT_BYTES.load(Ordering::Relaxed)
    }

    /// Unsent content of other connections, until it is dropped.
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

    /// Reserves everything.
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
