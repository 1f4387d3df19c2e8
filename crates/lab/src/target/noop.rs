//! No store at all: every request succeeds at once. Measures the generator.

use tokio::time::Instant;

use super::{Done, Failure, Request, TargetError, Verb, number};
use crate::plan::Settings;

/// COSBench's `mock` and `none`.
#[derive(Debug, Clone)]
pub struct Noop {
    /// Bytes that a read is said to return.
    read_bytes: u64,
    performed: u32,
}

impl Noop {
    pub(crate) fn empty() -> Self {
        Self {
            read_bytes: 0,
            performed: 0,
        }
    }

    pub(crate) fn new(settings: &Settings) -> Result<Self, TargetError> {
        let read_bytes = number(&settings.config, "size")?.unwrap_or(0);
        Ok(Self {
            read_bytes,
            performed: 0,
        })
    }

    #[inline]
    pub(crate) async fn perform(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        // Nothing else would ever let the thread's other workers have their turn.
        self.performed = self.performed.wrapping_add(1);
        if self.performed.is_multiple_of(16) {
            tokio::task::yield_now().await;
        }
        let bytes = match request.verb {
            Verb::Read => self.read_bytes,
            Verb::Write => request.size,
            _ => 0,
        };
        Ok(Done {
            first_byte: Instant::now(),
            bytes,
            checked: false,
        })
    }
}
