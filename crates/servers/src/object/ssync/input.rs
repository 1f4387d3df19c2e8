//! The sender's side of the conversation, read by lines and by bytes.

use std::time::Duration;

use bytes::Bytes;
use cairn_http::lines::{BodyLines, LineError};
use cairn_http::{Body, BodyError};

use super::Broken;

/// A line may be longer than a piece of content where that is set very small.
const LINE_MIN: usize = 64 << 10;

pub(super) struct Input(BodyLines);

impl Input {
    pub(super) fn new(body: Body, chunk_size: usize, timeout: Duration) -> Self {
        Input(BodyLines::new(body, chunk_size.max(LINE_MIN), timeout))
    }

    /// The next line; `None` at the end of the request. `reading`: for errors.
    pub(super) async fn line(&mut self, reading: &'static str) -> Result<Option<Bytes>, Broken> {
        self.0.line().await.map_err(|error| broken(error, reading))
    }

    /// Some bytes of an object's content, at most `most`; never none.
    pub(super) async fn content(&mut self, most: u64) -> Result<Bytes, Broken> {
        let bytes = self.0.bytes(most).await;
        bytes.map_err(|error| broken(error, "updates content"))
    }

    /// Reads and drops what is left.
    pub(super) async fn drain(&mut self) {
        self.0.drain().await;
    }
}

fn broken(error: LineError, reading: &'static str) -> Broken {
    match error {
        LineError::Body(BodyError::Timeout(after)) => Broken::Timeout { after, reading },
        LineError::TooLong(_) => Broken::Protocol(format!("{reading}: {error}")),
        error => Broken::Disconnected(format!("{reading}: {error}")),
    }
}
