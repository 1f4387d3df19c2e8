//! Interim answers (`100 Continue`) with headers, and more than one of them to a request: how an
//! object server tells, before and after it has taken an upload, what it can do and that it has
//! everything.
//!
//! Whoever may be told puts an [`Interim`] into the request's extensions. A service says
//! [`Interim::send`] and need not know whether that calls back into the same process
//! ([`Interim::new`]) or goes out on a socket: the accept loop adds one to every request that
//! expects to be told to go on, and [`crate::client::Client`] calls one with what comes back.
//!
//! hyper writes one bare `100 Continue` of its own, when the body is first asked for. Where the
//! service was faster, [`InterimSocket`] keeps that one back.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What hyper writes by itself.
const BARE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Tells the sender of a request to go on. Cheap to clone.
#[derive(Clone)]
pub struct Interim(Arc<dyn Fn(&HeaderMap) + Send + Sync>);

impl Interim {
    /// `told` is called with the headers of each interim answer, and must not wait.
    pub fn new(told: impl Fn(&HeaderMap) + Send + Sync + 'static) -> Self {
        Interim(Arc::new(told))
    }

    pub fn send(&self, headers: &HeaderMap) {
        (self.0)(headers);
    }
}

impl std::fmt::Debug for Interim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interim")
    }
}

/// What is to go out on a connection besides what hyper writes.
#[derive(Default)]
struct Outbox {
    /// Counts requests: an answer to one that has ended goes nowhere.
    request: u64,
    bytes: Vec<u8>,
    /// The service told the sender to go on before hyper did.
    keep_back: bool,
    /// Of the task that writes to the connection.
    waker: Option<Waker>,
}

/// The side of a connection that requests share with its socket.
#[derive(Clone, Default)]
pub(crate) struct Interims(Arc<Mutex<Outbox>>);

impl Interims {
    fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a request that expects to be told to go on.
    pub(crate) fn begin(&self) -> Interim {
        let mut outbox = self.lock();
        outbox.request += 1;
        outbox.keep_back = false;
        let (shared, request) = (self.clone(), outbox.request);
        let is_first = Mutex::new(true);
        Interim::new(move |headers| {
            let mut outbox = shared.lock();
            if outbox.request != request {
                return;
            }
            let mut is_first = is_first.lock().unwrap_or_else(PoisonError::into_inner);
            outbox.keep_back |= std::mem::take(&mut *is_first);
            write_head(&mut outbox.bytes, headers);
            if let Some(waker) = outbox.waker.take() {
                waker.wake();
            }
        })
    }

    /// The request has its answer.
    pub(crate) fn end(&self) {
        let mut outbox = self.lock();
        outbox.request += 1;
        outbox.bytes.clear();
        outbox.keep_back = false;
    }
}

fn write_head(bytes: &mut Vec<u8>, headers: &HeaderMap) {
    bytes.extend_from_slice(b"HTTP/1.1 100 Continue\r\n");
    for (name, value) in headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
}

/// A socket that writes interim answers between what hyper writes.
pub(crate) struct InterimSocket<S> {
    socket: S,
    interims: Interims,
}

impl<S> InterimSocket<S> {
    pub(crate) fn new(socket: S) -> (Self, Interims) {
        let interims = Interims::default();
        let shared = interims.clone();
        (InterimSocket { socket, interims }, shared)
    }
}

impl<S: AsyncWrite + Unpin> InterimSocket<S> {
    /// Writes what waits; ready when nothing does.
    fn poll_outbox(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outbox = self.interims.lock();
        while !outbox.bytes.is_empty() {
            let socket = Pin::new(&mut self.socket);
            let count = std::task::ready!(socket.poll_write(cx, &outbox.bytes))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            outbox.bytes.drain(..count);
        }
        if !matches!(&outbox.waker, Some(waker) if waker.will_wake(cx.waker())) {
            outbox.waker = Some(cx.waker().clone());
        }
        Poll::Ready(Ok(()))
    }

    /// Whether these are the bytes to be kept back.
    fn keeps_back(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(BARE) && std::mem::take(&mut self.interims.lock().keep_back)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for InterimSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for InterimSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_outbox(cx))?;
        if self.keeps_back(buf) {
            return Poll::Ready(Ok(BARE.len()));
        }
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_outbox(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_outbox(cx))?;
        let first = bufs.iter().find(|buf| !buf.is_empty());
        if first.is_some_and(|buf| self.keeps_back(buf)) {
            return Poll::Ready(Ok(BARE.len()));
        }
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::StatusCode;
    use http::header::{EXPECT, HeaderValue};
    use tokio::net::TcpListener;
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::client::Client;
    use crate::metrics::Metrics;
    use crate::serve::{ServeOptions, serve};
    use crate::service::{Request, handler_fn};
    use crate::{Body, respond};

    fn head(name: &'static str) -> HeaderMap {
        [(
            http::HeaderName::from_static(name),
            HeaderValue::from_static("yes"),
        )]
        .into_iter()
        .collect()
    }

    #[tokio::test]
    async fn two_continues_over_a_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let service = handler_fn(|mut request: Request| async move {
            let interim = request.extensions_mut().remove::<Interim>().unwrap();
            interim.send(&head("x-first"));
            let body = request.body_mut();
            assert_eq!(body.next_chunk().await.unwrap().unwrap(), "data");
            interim.send(&HeaderMap::new());
            assert_eq!(body.next_chunk().await.unwrap().unwrap(), "commit");
            respond::text(StatusCode::CREATED, "done")
        });
        tokio::spawn(serve(
            listener,
            service,
            ServeOptions::new("test"),
            Metrics::new(),
            stopped,
        ));
        let client = Client::new(Duration::from_secs(5), 1, Duration::from_secs(5));
        // Twice, over one connection.
        for _ in 0..2 {
            let (told_tx, mut told) = mpsc::unbounded_channel();
            let (sender, body) = Body::channel(None, 1);
            let mut request = http::Request::put("/x").body(body).unwrap();
            let headers = request.headers_mut();
            headers.insert(EXPECT, HeaderValue::from_static("100-continue"));
            request
                .extensions_mut()
                .insert(Interim::new(move |headers| {
                    let _ = told_tx.send(headers.clone());
                }));
            let feed = async move {
                assert!(told.recv().await.unwrap().contains_key("x-first"));
                sender.send(Bytes::from_static(b"data")).await;
                assert!(told.recv().await.unwrap().is_empty());
                sender.send(Bytes::from_static(b"commit")).await;
                sender.finish().await;
                assert!(told.recv().await.is_none());
            };
            let call = client.call(address, request, Duration::from_secs(5));
            let ((), answer) = tokio::time::timeout(Duration::from_secs(9), async {
                tokio::join!(feed, async {
                    let answer = call.await.unwrap();
                    let status = answer.status();
                    answer.into_body().collect(100).await.unwrap();
                    status
                })
            })
            .await
            .unwrap();
            assert_eq!(answer, StatusCode::CREATED);
        }
    }
}
