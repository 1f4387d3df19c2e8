//! Request and response bodies: nothing, bytes in memory, or a stream with or without a known
//! length. One type on both sides, so that a body passes between servers without being copied.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::heads::{DueAtEnd, HeadDue};
use crate::progress::Progress;

/// Maximum unread bytes of a request body that are read after an early response, so that the
/// connection can be kept.
const UNREAD_MAX_BYTES: u64 = 64 << 10;
const UNREAD_TIMEOUT: Duration = Duration::from_millis(500);

/// Reasons why a body ended early.
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the sender went away before the end of the body")]
    Disconnected,
    #[error("no data for {0:?}")]
    Timeout(Duration),
    #[error("the body is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the body is malformed: {0}")]
    Malformed(String),
    #[error("{0}")]
    Source(String),
}

type BoxBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>;

enum Kind {
    Full(Option<Bytes>),
    /// A body received from a socket.
    Incoming(FromSocket),
    /// A stream in memory. The mutex is never locked: it makes a body `Sync`, so that requests can
    /// be borrowed across awaits.
    Stream {
        inner: Mutex<BoxBody>,
        remaining: Option<u64>,
    },
}

/// A body received from a socket.
struct FromSocket {
    /// `None` once the body has been abandoned.
    incoming: Option<hyper::body::Incoming>,
    /// `None` for a response, and for a request's body that has been read to its end.
    of_request: Option<OfRequest>,
}

/// State of the connection that a request's body reports to.
struct OfRequest {
    /// Reports that the next message is due, at the body's end.
    due: Option<DueAtEnd>,
    /// Notes when more of the body is awaited.
    progress: Arc<Progress>,
    /// Receives the unread rest if the body is abandoned.
    rest: Rest,
}

impl Drop for FromSocket {
    fn drop(&mut self) {
        if let (Some(incoming), Some(mut of_request)) =
            (self.incoming.take(), self.of_request.take())
            && let Some(due) = of_request.due.take()
        {
            of_request.rest.leave(incoming, due);
        }
    }
}

impl FromSocket {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let frame = http_body::Body::poll_frame(Pin::new(&mut *incoming), cx);
        if let Some(OfRequest { progress, .. }) = &self.of_request {
            note_progress(progress, &frame);
        }
        let frame = std::task::ready!(frame);
        if frame.is_none() || http_body::Body::is_end_stream(incoming) {
            let due = self.of_request.take().and_then(|mut of| of.due.take());
            if let Some(due) = due {
                due.ended();
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|e| incoming_error(&e))))
    }
}

/// The part of the last request's body on a connection that its handler left unread.
#[derive(Clone, Default)]
pub(crate) struct Rest(Arc<Mutex<UnreadBody>>);

#[derive(Default)]
struct UnreadBody {
    /// Held only while it may still be read: hyper keeps a connection open as long as this exists.
    incoming: Option<hyper::body::Incoming>,
    due: Option<DueAtEnd>,
    /// The response has begun: from now on nothing is read to keep the connection usable.
    is_answered: bool,
}

impl Rest {
    fn lock(&self) -> MutexGuard<'_, UnreadBody> {
        self.0.lock()
    }

    fn leave(&self, incoming: hyper::body::Incoming, due: DueAtEnd) {
        let mut left = self.lock();
        left.due = Some(due);
        left.incoming = (!left.is_answered).then_some(incoming);
    }

    pub(crate) fn begin(&self) {
        self.lock().is_answered = false;
    }

    /// Drops the rest, so that the connection ends.
    pub(crate) fn answered(&self) {
        let mut left = self.lock();
        left.is_answered = true;
        left.incoming = None;
    }

    pub(crate) fn is_left(&self) -> bool {
        self.lock().due.is_some()
    }

    /// Reads the rest, so that the connection can be reused. Returns false if it is too large, or
    /// takes too long.
    pub(crate) async fn read(&self) -> bool {
        let (incoming, due) = {
            let mut left = self.lock();
            (left.incoming.take(), left.due.take())
        };
        let Some(due) = due else { return true };
        let Some(mut incoming) = incoming else {
            self.lock().due = Some(due);
            return false;
        };
        let is_large = |size: &SizeHint| size.lower() > UNREAD_MAX_BYTES;
        let reading = async {
            let mut bytes = 0;
            while bytes <= UNREAD_MAX_BYTES && !is_large(&http_body::Body::size_hint(&incoming)) {
                let next = incoming.frame().await;
                match next {
                    None => return true,
                    Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, |d| d.len() as u64),
                    Some(Err(_)) => return false,
                }
            }
            false
        };
        let all = tokio::time::timeout(UNREAD_TIMEOUT, reading).await;
        if matches!(all, Ok(true)) {
            due.ended();
            return true;
        }
        self.leave(incoming, due);
        false
    }
}

impl Drop for OfRequest {
    fn drop(&mut self) {
        self.progress.forget_body();
    }
}

/// A request or response body: poll it as an `http_body::Body`, or pull chunks with
/// [`Body::next_chunk`].
pub struct Body(Kind);

impl Body {
    pub const fn empty() -> Self {
        Body(Kind::Full(None))
    }

    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Body(Kind::Full(if bytes.is_empty() {
            None
        } else {
            Some(bytes)
        }))
    }

    /// A body that arrives in chunks. `length` is the total number of bytes, if known; a stream
    /// that ends short of it or exceeds it is an error for the reader.
    pub fn from_stream<S>(stream: S, length: Option<u64>) -> Self
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + 'static,
    {
        // Readers may poll again after the end.
        let inner: BoxBody = Box::pin(StreamBody(Box::pin(stream.fuse())));
        Body(Kind::Stream {
            inner: Mutex::new(inner),
            remaining: length,
        })
    }

    /// A body written through a bounded channel of `depth` chunks.
    pub fn channel(length: Option<u64>, depth: usize) -> (BodySender, Self) {
        let (tx, mut rx) = mpsc::channel(depth.max(1));
        let stream = futures_util::stream::poll_fn(move |cx| rx.poll_recv(cx));
        // A sender dropped without `finish` has failed.
        let stream = CutOff {
            inner: stream,
            finished: false,
        };
        (BodySender(tx), Body::from_stream(stream, length))
    }

    pub fn incoming(incoming: hyper::body::Incoming) -> Self {
        Body(Kind::Incoming(FromSocket {
            incoming: Some(incoming),
            of_request: None,
        }))
    }

    /// A request's body. It reports to `due` when it has been read to its end, and to `progress`
    /// while more of it is awaited; if abandoned before, its rest goes to `rest`.
    pub(crate) fn of_request(
        incoming: hyper::body::Incoming,
        due: &HeadDue,
        progress: &Arc<Progress>,
        rest: &Rest,
    ) -> Self {
        let due = due.begin();
        // A body without content counts as read.
        let of_request = match http_body::Body::is_end_stream(&incoming) {
            true => {
                due.ended();
                progress.forget_body();
                None
            }
            false => Some(OfRequest {
                due: Some(due),
                progress: progress.clone(),
                rest: rest.clone(),
            }),
        };
        Body(Kind::Incoming(FromSocket {
            incoming: Some(incoming),
            of_request,
        }))
    }

    /// Number of remaining bytes, if known.
    pub fn length(&self) -> Option<u64> {
        match &self.0 {
            Kind::Full(bytes) => Some(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Incoming(from) => match &from.incoming {
                Some(incoming) => http_body::Body::size_hint(incoming).exact(),
                None => Some(0),
            },
            Kind::Stream { remaining, .. } => *remaining,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.length() == Some(0)
    }

    /// The whole body, if it is already in memory.
    pub fn as_full(&self) -> Option<Bytes> {
        match &self.0 {
            Kind::Full(bytes) => Some(bytes.clone().unwrap_or_default()),
            _ => None,
        }
    }

    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// Those of the connection or stream; also `Disconnected` if it ends before its length.
    pub async fn next_chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            match self.frame().await? {
                Ok(frame) => {
                    if let Some(data) = frame.into_data().ok().filter(|d| !d.is_empty()) {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The next chunk, with an error if none arrives within `timeout`.
    pub async fn next_chunk_within(
        &mut self,
        timeout: Duration,
    ) -> Option<Result<Bytes, BodyError>> {
        match tokio::time::timeout(timeout, self.next_chunk()).await {
            Ok(chunk) => chunk,
            Err(_) => Some(Err(BodyError::Timeout(timeout))),
        }
    }

    /// Collects the whole body in memory; an error beyond `limit` bytes.
    ///
    /// # Errors
    /// `TooLarge` beyond `limit`; else as [`Body::next_chunk`].
    pub async fn collect(mut self, limit: u64) -> Result<Bytes, BodyError> {
        if let Kind::Full(bytes) = &mut self.0 {
            let bytes = bytes.take().unwrap_or_default();
            return if bytes.len() as u64 > limit {
                Err(BodyError::TooLarge(limit))
            } else {
                Ok(bytes)
            };
        }
        if self.length().is_some_and(|n| n > limit) {
            return Err(BodyError::TooLarge(limit));
        }
        let Some(first) = self.next_chunk().await.transpose()? else {
            return Ok(Bytes::new());
        };
        if first.len() as u64 > limit {
            return Err(BodyError::TooLarge(limit));
        }
        let Some(second) = self.next_chunk().await.transpose()? else {
            return Ok(first);
        };
        let mut all = BytesMut::with_capacity(
            self.length().unwrap_or(0) as usize + first.len() + second.len(),
        );
        all.extend_from_slice(&first);
        all.extend_from_slice(&second);
        while all.len() as u64 <= limit {
            match self.next_chunk().await.transpose()? {
                Some(chunk) => all.extend_from_slice(&chunk),
                None => return Ok(all.freeze()),
            }
        }
        Err(BodyError::TooLarge(limit))
    }

    /// Reads and drops the rest, up to `limit` bytes; true if the end was reached. This keeps a
    /// connection usable after an early response.
    pub async fn drain(mut self, limit: u64) -> bool {
        let mut seen = 0;
        while let Some(chunk) = self.next_chunk().await {
            match chunk {
                Ok(chunk) => seen += chunk.len() as u64,
                Err(_) => return false,
            }
            if seen > limit {
                return false;
            }
        }
        true
    }
}

impl Default for Body {
    fn default() -> Self {
        Body::empty()
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({:?} bytes)", self.length())
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body::full(bytes)
    }
}
impl From<String> for Body {
    fn from(text: String) -> Self {
        Body::full(text)
    }
}
impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Body::full(bytes)
    }
}
impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Body::full(text)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Kind::Incoming(from) => from.poll_frame(cx),
            Kind::Stream { inner, remaining } => {
                let inner = inner.get_mut();
                let frame = std::task::ready!(inner.as_mut().poll_frame(cx));
                Poll::Ready(match (frame, remaining) {
                    (Some(Ok(frame)), Some(left)) => {
                        let n = frame.data_ref().map_or(0, |d| d.len() as u64);
                        if n > *left {
                            Some(Err(BodyError::Source("more bytes than announced".into())))
                        } else {
                            *left -= n;
                            Some(Ok(frame))
                        }
                    }
                    (None, Some(left)) if *left > 0 => Some(Err(BodyError::Disconnected)),
                    (frame, _) => frame,
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(bytes) => bytes.is_none(),
            Kind::Incoming(from) => match &from.incoming {
                Some(incoming) => http_body::Body::is_end_stream(incoming),
                None => true,
            },
            // Not even with 0 bytes remaining: the consumer may wait for the source's own end.
            Kind::Stream { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.length() {
            Some(n) => SizeHint::with_exact(n),
            None => SizeHint::default(),
        }
    }
}

fn note_progress<E>(progress: &Progress, frame: &Poll<Option<Result<Frame<Bytes>, E>>>) {
    match frame {
        Poll::Pending => progress.awaits_body(),
        Poll::Ready(Some(Ok(frame))) => {
            progress.got_body(frame.data_ref().map_or(0, |data| data.len()));
        }
        Poll::Ready(_) => {}
    }
}

fn incoming_error(error: &hyper::Error) -> BodyError {
    if error.is_parse() || error.is_parse_too_large() {
        BodyError::Malformed(error.to_string())
    } else if error.is_timeout() {
        BodyError::Timeout(Duration::ZERO)
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        BodyError::Disconnected
    } else {
        // A malformed chunked body: hyper reports it as an invalid input of the reader.
        let io = std::error::Error::source(error).and_then(|e| e.downcast_ref::<std::io::Error>());
        match io.map(std::io::Error::kind) {
            Some(std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData) => {
                BodyError::Malformed(error.to_string())
            }
            _ => BodyError::Disconnected,
        }
    }
}

struct StreamBody<S>(Pin<Box<S>>);

impl<S: Stream<Item = Result<Bytes, BodyError>>> http_body::Body for StreamBody<S> {
    type Data = Bytes;
    type Error = BodyError;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0
            .as_mut()
            .poll_next(cx)
            .map(|item| item.map(|chunk| chunk.map(Frame::data)))
    }
}

enum Fed {
    Chunk(Bytes),
    End,
    Failed(BodyError),
}

struct CutOff<S> {
    inner: S,
    finished: bool,
}

impl<S: Stream<Item = Fed> + Unpin> Stream for CutOff<S> {
    type Item = Result<Bytes, BodyError>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.finished {
            return Poll::Ready(None);
        }
        let fed = std::task::ready!(Pin::new(&mut self.inner).poll_next(cx));
        self.finished = !matches!(fed, Some(Fed::Chunk(_)));
        Poll::Ready(match fed {
            Some(Fed::Chunk(chunk)) => Some(Ok(chunk)),
            Some(Fed::End) => None,
            Some(Fed::Failed(error)) => Some(Err(error)),
            None => Some(Err(BodyError::Disconnected)),
        })
    }
}

/// The writing end of [`Body::channel`]. If it is dropped without [`BodySender::finish`], the
/// reader gets [`BodyError::Disconnected`].
#[derive(Clone)]
pub struct BodySender(mpsc::Sender<Fed>);

impl BodySender {
    /// Sends a chunk, waiting for room in the channel; false if the reader has been dropped.
    pub async fn send(&self, chunk: Bytes) -> bool {
        self.0.send(Fed::Chunk(chunk)).await.is_ok()
    }

    /// Ends the body successfully.
    pub async fn finish(self) -> bool {
        self.0.send(Fed::End).await.is_ok()
    }

    /// Ends the body with an error.
    pub async fn fail(self, error: BodyError) {
        let _ = self.0.send(Fed::Failed(error)).await;
    }

    /// Returns when the reader has been dropped.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn collect_honours_the_limit() {
        assert_eq!(Body::full("abc").collect(3).await.unwrap(), "abc");
        assert!(matches!(
            Body::full("abcd").collect(3).await,
            Err(BodyError::TooLarge(3))
        ));
        let (tx, body) = Body::channel(None, 1);
        let feed = async {
            for _ in 0..4 {
                tx.send(Bytes::from_static(b"xy")).await;
            }
            tx.finish().await;
        };
        let (_, all) = tokio::join!(feed, body.collect(8));
        assert_eq!(all.unwrap(), "xyxyxyxy");
    }

    #[tokio::test]
    async fn a_dropped_sender_is_an_error() {
        let (tx, mut body) = Body::channel(None, 2);
        tx.send(Bytes::from_static(b"x")).await;
        drop(tx);
        assert_eq!(body.next_chunk().await.unwrap().unwrap(), "x");
        assert!(matches!(
            body.next_chunk().await,
            Some(Err(BodyError::Disconnected))
        ));
        assert!(body.next_chunk().await.is_none());
    }

    #[tokio::test]
    async fn announced_length_is_kept() {
        let short = futures_util::stream::iter([Ok(Bytes::from_static(b"ab"))]);
        assert!(Body::from_stream(short, Some(3)).collect(10).await.is_err());
        let long = futures_util::stream::iter([Ok(Bytes::from_static(b"abcd"))]);
        assert!(Body::from_stream(long, Some(3)).collect(10).await.is_err());
    }
}
