//! The sender's side of a session, read by lines and by bytes.

use std::time::Duration;

use bytes::Bytes;
use cairn_http::lines::{BodyLines, LineError};
use cairn_http::{Body, BodyError};

use super::SessionError;

/// Minimum limit of a line, which may exceed a very small chunk size.
const LINE_MIN_BYTES: usize = 64 << 10;

pub(super) struct Input(BodyLines);

impl Input {
    pub(super) fn new(body: Body, chunk_size: usize, timeout: Duration) -> Self {
        Input(BodyLines::new(
            body,
            chunk_size.max(LINE_MIN_BYTES),
            timeout,
        ))
    }

    /// The next line; `None` at the end of the request. `reading` is for errors.
    pub(super) async fn line(
        &mut self,
        reading: &'static str,
    ) -> Result<Option<Bytes>, SessionError> {
        self.0.line().await.map_err(|error| broken(error, reading))
    }

    /// Next bytes of an object's content, at least one and at most `most`.
    pub(super) async fn content(&mut self, most: u64) -> Result<Bytes, SessionError> {
        let bytes = self.0.bytes(most).await;
        bytes.map_err(|error| broken(error, "updates content"))
    }

    /// Reads and discards the rest.
    pub(super) async fn drain(&mut self) {
        self.0.drain().await;
    }
}

fn broken(error: LineError, reading: &'static str) -> SessionError {
    match error {
        LineError::Body(BodyError::Timeout(after)) => SessionError::Timeout { after, reading },
        LineError::TooLong(_) => SessionError::Protocol(format!("{reading}: {error}")),
        error => SessionError::Disconnected(format!("{reading}: {error}")),
    }
}
