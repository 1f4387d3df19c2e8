//! Observation of bodies as they pass: number of bytes, and how they ended.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use cairn_http::{Body, BodyError};
use futures_util::Stream;

/// End of a body.
pub(crate) enum Ending {
    /// It was read completely.
    Complete,
    /// Its source failed.
    Failed(String),
    /// Its reader was dropped.
    Dropped,
}

/// Calls `done` once, with the number of bytes passed. `length` is the required length of a body
/// without one: a body that ends short of it, or exceeds it, fails.
pub(crate) fn watch<F>(body: Body, length: Option<u64>, done: F) -> Body
where
    F: FnOnce(Ending, u64) + Send + Unpin + 'static,
{
    let length = body.length().or(length);
    if length == Some(0) {
        done(Ending::Complete, 0);
        return body;
    }
    let watched = Watched {
        inner: body,
        length,
        bytes: 0,
        done: Some(done),
    };
    Body::from_stream(watched, length)
}

struct Watched<F: FnOnce(Ending, u64)> {
    inner: Body,
    length: Option<u64>,
    bytes: u64,
    done: Option<F>,
}

impl<F: FnOnce(Ending, u64)> Watched<F> {
    fn end(&mut self, ending: Ending) {
        if let Some(done) = self.done.take() {
            done(ending, self.bytes);
        }
    }
}

impl<F: FnOnce(Ending, u64)> Drop for Watched<F> {
    fn drop(&mut self) {
        self.end(Ending::Dropped);
    }
}

impl<F: FnOnce(Ending, u64) + Unpin> Stream for Watched<F> {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let item = std::task::ready!(poll_chunk(&mut this.inner, cx));
        match &item {
            Some(Ok(chunk)) => {
                this.bytes += chunk.len() as u64;
                // A reader that knows the length does not poll after the last byte.
                match this.length {
                    Some(length) if this.bytes == length => this.end(Ending::Complete),
                    Some(length) if this.bytes > length => {
                        this.bytes = length;
                        this.end(Ending::Failed("more bytes than announced".into()));
                    }
                    _ => {}
                }
            }
            Some(Err(error)) => this.end(Ending::Failed(error.to_string())),
            None => match this.length {
                Some(length) if this.bytes < length => {
                    let missing = length - this.bytes;
                    this.end(Ending::Failed(format!(
                        "{missing} bytes fewer than announced"
                    )));
                }
                _ => this.end(Ending::Complete),
            },
        }
        Poll::Ready(item)
    }
}

fn poll_chunk(body: &mut Body, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
    loop {
        let frame = std::task::ready!(http_body::Body::poll_frame(Pin::new(body), cx));
        return Poll::Ready(match frame {
            None => None,
            Some(Err(error)) => Some(Err(error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => Some(Ok(data)),
                Err(_) => continue, // trailers
            },
        });
    }
}

/// Bytes received of a request's body, readable while it is being received.
#[derive(Default)]
pub(crate) struct Received {
    bytes: AtomicU64,
    disconnected: AtomicBool,
}

impl Received {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The client disconnected before the end.
    pub(crate) fn disconnected(&self) -> bool {
        self.disconnected.load(Ordering::Relaxed)
    }
}

/// Counts a request's body in `received`.
pub(crate) fn count(body: Body, received: &Arc<Received>) -> Body {
    if let Some(whole) = body.as_full() {
        received.bytes.store(whole.len() as u64, Ordering::Relaxed);
        return body;
    }
    let length = body.length();
    if length == Some(0) {
        return body;
    }
    Body::from_stream(
        Counted {
            inner: body,
            received: received.clone(),
        },
        length,
    )
}

struct Counted {
    inner: Body,
    received: Arc<Received>,
}

impl Stream for Counted {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let item = std::task::ready!(poll_chunk(&mut this.inner, cx));
        match &item {
            Some(Ok(chunk)) => {
                this.received
                    .bytes
                    .fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
            Some(Err(BodyError::Disconnected)) => {
                this.received.disconnected.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        Poll::Ready(item)
    }
}

/// The body as a stream of chunks with the given length.
pub(crate) fn with_length(body: Body, length: u64) -> Body {
    if body.length().is_some() {
        return body;
    }
    let mut body = body;
    Body::from_stream(
        futures_util::stream::poll_fn(move |cx| poll_chunk(&mut body, cx)),
        Some(length),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    type Endings = Arc<Mutex<Vec<(String, u64)>>>;

    fn watched(body: Body, length: Option<u64>) -> (Body, Endings) {
        let log = Endings::default();
        let into = log.clone();
        let body = watch(body, length, move |ending, bytes| {
            let name = match ending {
                Ending::Complete => "complete".to_owned(),
                Ending::Failed(why) => why,
                Ending::Dropped => "dropped".to_owned(),
            };
            into.lock().unwrap().push((name, bytes));
        });
        (body, log)
    }

    fn chunks(parts: &[&'static str], length: Option<u64>) -> Body {
        let parts: Vec<_> = parts
            .iter()
            .map(|p| Ok(Bytes::from_static(p.as_bytes())))
            .collect();
        Body::from_stream(futures_util::stream::iter(parts), length)
    }

    #[tokio::test]
    async fn endings() {
        let (body, log) = watched(chunks(&["ab", "c"], None), None);
        assert_eq!(body.collect(10).await.unwrap(), "abc");
        assert_eq!(*log.lock().unwrap(), [("complete".to_owned(), 3)]);

        let (mut body, log) = watched(chunks(&["ab", "c"], Some(3)), None);
        body.next_chunk().await.unwrap().unwrap();
        drop(body);
        assert_eq!(*log.lock().unwrap(), [("dropped".to_owned(), 2)]);

        let (body, log) = watched(chunks(&["ab"], None), Some(5));
        assert!(body.collect(10).await.is_err());
        assert_eq!(
            *log.lock().unwrap(),
            [("3 bytes fewer than announced".to_owned(), 2)]
        );

        let (body, log) = watched(chunks(&["ab"], None), Some(1));
        assert!(body.collect(10).await.is_err());
        assert_eq!(
            *log.lock().unwrap(),
            [("more bytes than announced".to_owned(), 1)]
        );

        let (_, log) = watched(Body::empty(), None);
        assert_eq!(*log.lock().unwrap(), [("complete".to_owned(), 0)]);
    }

    #[tokio::test]
    async fn counts_what_comes() {
        let received = Arc::default();
        count(chunks(&["ab", "c"], None), &received)
            .collect(10)
            .await
            .unwrap();
        assert_eq!(received.bytes(), 3);
        let received = Arc::default();
        let (sender, body) = Body::channel(Some(9), 1);
        drop(sender);
        assert!(count(body, &received).collect(10).await.is_err());
        assert!(received.disconnected());
    }
}
