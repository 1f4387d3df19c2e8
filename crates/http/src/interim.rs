//! Interim responses (`100 Continue`) with headers, possibly several for one request: an object
//! server sends them before and after it has received an upload, to announce its capabilities and
//! to acknowledge that it has everything.
//!
//! A caller that accepts them puts an [`Interim`] into the request's extensions. A service calls
//! [`Interim::send`], whether that is a callback in the same process ([`Interim::new`]) or goes out
//! on a socket: the accept loop adds an `Interim` to every request with `Expect: 100-continue`, and
//! [`crate::client::Client`] calls one for each interim response received.
//!
//! hyper writes one bare `100 Continue` of its own when the body is first polled. If the service
//! was faster, [`InterimSocket`] suppresses that one.
//!
//! Swift's two-phase PUT leaves HTTP here: its sender ends the chunked body, waits for another `100
//! Continue`, and sends a second chunked body within the same request. A service that supports this
//! calls [`Interim::join_bodies`] and reads one body.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use http::HeaderMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The interim response that hyper writes by itself.
const BARE_CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Sender of interim responses for one request. Cheap to clone.
#[derive(Clone)]
pub struct Interim {
    told: Arc<dyn Fn(&HeaderMap) + Send + Sync>,
    /// The socket's shared state and the request's number there; `None` inside a process.
    socket: Option<(Interims, u64)>,
}

impl Interim {
    /// `told` is called with the headers of each interim response, and must not block.
    pub fn new(told: impl Fn(&HeaderMap) + Send + Sync + 'static) -> Self {
        Interim {
            told: Arc::new(told),
            socket: None,
        }
    }

    pub fn send(&self, headers: &HeaderMap) {
        (self.told)(headers);
    }

    /// Reads the chunked body and the one that follows it as one body. Must be called before the
    /// first chunk is polled. No effect within a process, where there is only one body.
    pub fn join_bodies(&self) {
        if let Some((interims, request)) = &self.socket {
            let mut outbox = interims.lock();
            if outbox.request == *request {
                outbox.join = Some(ChunkScanner::default());
                interims.joins.store(true, Ordering::Release);
            }
        }
    }
}

impl std::fmt::Debug for Interim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interim")
    }
}

/// Output of a connection besides what hyper writes.
#[derive(Default)]
struct Outbox {
    /// Number of the current request: interim responses to an earlier one are dropped.
    request: u64,
    bytes: Vec<u8>,
    /// The service sent an interim response before hyper did, so hyper's is suppressed.
    keep_back: bool,
    /// Waker of the task that writes to the connection.
    waker: Option<Waker>,
    /// Finds the end of the first of two chunked bodies.
    join: Option<ChunkScanner>,
}

/// State of a connection that requests share with its socket.
#[derive(Clone, Default)]
pub(crate) struct Interims {
    outbox: Arc<Mutex<Outbox>>,
    /// Does the current request accept interim responses?
    is_open: Arc<AtomicBool>,
    /// Is there a scanner?
    joins: Arc<AtomicBool>,
}

impl Interims {
    fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock()
    }

    /// Begins a request with `Expect: 100-continue`.
    pub(crate) fn begin(&self) -> Interim {
        let mut outbox = self.lock();
        outbox.request += 1;
        outbox.keep_back = false;
        self.is_open.store(true, Ordering::Release);
        let (shared, request) = (self.clone(), outbox.request);
        let is_first = Mutex::new(true);
        let socket = Some((self.clone(), request));
        let told = move |headers: &HeaderMap| {
            let mut outbox = shared.lock();
            if outbox.request != request {
                return;
            }
            let mut is_first = is_first.lock();
            outbox.keep_back |= std::mem::take(&mut *is_first);
            write_head(&mut outbox.bytes, headers);
            if let Some(waker) = outbox.waker.take() {
                waker.wake();
            }
        };
        Interim {
            told: Arc::new(told),
            socket,
        }
    }

    /// Ends the request, which now has its response.
    pub(crate) fn end(&self) {
        let mut outbox = self.lock();
        outbox.request += 1;
        outbox.keep_back = false;
        outbox.join = None;
        // Output that was begun is written to its end.
        let is_open = !outbox.bytes.is_empty();
        self.is_open.store(is_open, Ordering::Release);
        self.joins.store(false, Ordering::Release);
    }
}

/// Finds the end of a chunked body as it is read, and removes its last chunk.
#[derive(Default)]
pub(crate) struct ChunkScanner {
    state: ChunkState,
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
}

#[derive(Default, PartialEq)]
enum ChunkState {
    /// In the line with a chunk's size.
    #[default]
    Size,
    /// Bytes left of a chunk, its line end included.
    Chunk(u64),
    /// In the lines after the last chunk.
    Trailers,
    Ended,
}

/// Maximum length of a line with a chunk's size.
const LINE_MAX_BYTES: usize = 4096;

impl ChunkScanner {
    /// Do the next `count` bytes all belong to the current chunk?
    pub(crate) fn passes(&mut self, count: usize) -> bool {
        match &mut self.state {
            ChunkState::Chunk(left) if *left > count as u64 => {
                *left -= count as u64;
                true
            }
            _ => false,
        }
    }

    /// The bytes to pass on; all bytes after the end are.
    pub(crate) fn scan(&mut self, mut bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(self.line.len() + bytes.len());
        while !bytes.is_empty() {
            match self.state {
                ChunkState::Ended => {
                    out.extend_from_slice(bytes);
                    break;
                }
                ChunkState::Chunk(left) => {
                    let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    out.extend_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    self.state = match left - count as u64 {
                        0 => ChunkState::Size,
                        left => ChunkState::Chunk(left),
                    };
                }
                ChunkState::Size | ChunkState::Trailers => {
                    let end = bytes.iter().position(|b| *b == b'\n').map(|at| at + 1);
                    let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
                    self.line.extend_from_slice(line);
                    bytes = rest;
                    if self.line.len() > LINE_MAX_BYTES {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    if end.is_some() {
                        self.take_line(&mut out)?;
                    }
                }
            }
        }
        Ok(out)
    }

    fn take_line(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let text = line.trim_ascii();
        if self.state == ChunkState::Trailers {
            if text.is_empty() {
                self.state = ChunkState::Ended;
            }
            return Ok(());
        }
        let size = text.split(|b| *b == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(size.trim_ascii()).ok();
        let size = size.and_then(|text| u64::from_str_radix(text, 16).ok());
        match size.and_then(|size| size.checked_add(2)) {
            None => return Err(io::ErrorKind::InvalidData.into()),
            Some(2) => self.state = ChunkState::Trailers,
            Some(size) => {
                self.state = ChunkState::Chunk(size);
                out.extend_from_slice(&line);
            }
        }
        Ok(())
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

/// A socket that inserts interim responses into hyper's output.
pub(crate) struct InterimSocket<S> {
    socket: S,
    interims: Interims,
    /// Bytes read and not yet taken.
    pending: Vec<u8>,
}

impl<S> InterimSocket<S> {
    pub(crate) fn new(socket: S) -> (Self, Interims) {
        let interims = Interims::default();
        let shared = interims.clone();
        let socket = InterimSocket {
            socket,
            interims,
            pending: Vec::new(),
        };
        (socket, shared)
    }
}

impl<S: AsyncWrite + Unpin> InterimSocket<S> {
    /// Writes pending output; ready when none is left.
    fn poll_outbox(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.interims.is_open.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
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

    /// Are these bytes hyper's own interim response, to be suppressed?
    fn keeps_back(&self, bytes: &[u8]) -> bool {
        self.interims.is_open.load(Ordering::Acquire)
            && bytes.starts_with(BARE_CONTINUE)
            && std::mem::take(&mut self.interims.lock().keep_back)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for InterimSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.pending.is_empty() {
                let count = this.pending.len().min(buf.remaining());
                buf.put_slice(&this.pending[..count]);
                this.pending.drain(..count);
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            std::task::ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
            let count = buf.filled().len() - before;
            if count == 0 || !this.interims.joins.load(Ordering::Acquire) {
                return Poll::Ready(Ok(()));
            }
            let mut outbox = this.interims.lock();
            let Some(scanner) = &mut outbox.join else {
                return Poll::Ready(Ok(()));
            };
            if scanner.passes(count) {
                return Poll::Ready(Ok(()));
            }
            this.pending = scanner.scan(&buf.filled()[before..])?;
            if scanner.state == ChunkState::Ended {
                outbox.join = None;
                this.interims.joins.store(false, Ordering::Release);
            }
            drop(outbox);
            buf.set_filled(before);
        }
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
            return Poll::Ready(Ok(BARE_CONTINUE.len()));
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
            return Poll::Ready(Ok(BARE_CONTINUE.len()));
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
        // Two requests over one connection.
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

    #[tokio::test]
    async fn a_second_chunked_body_is_part_of_the_first() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let service = handler_fn(|mut request: Request| async move {
            let interim = request.extensions_mut().remove::<Interim>().unwrap();
            interim.join_bodies();
            interim.send(&head("x-first"));
            let body = request.body_mut();
            let mut all = Vec::new();
            while all.len() < 6 {
                all.extend_from_slice(&body.next_chunk().await.unwrap().unwrap());
            }
            interim.send(&HeaderMap::new());
            while let Some(chunk) = body.next_chunk().await {
                all.extend_from_slice(&chunk.unwrap());
            }
            respond::text(StatusCode::CREATED, String::from_utf8(all).unwrap())
        });
        let options = ServeOptions::new("test");
        tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
        let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut answer = [0; 4096];
        for _ in 0..2 {
            let request = b"PUT /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
            socket.write_all(request).await.unwrap();
            let n = socket.read(&mut answer).await.unwrap();
            let first = b"HTTP/1.1 100 Continue\r\nx-first: yes\r\n\r\n";
            assert_eq!(&answer[..n], first);
            // In pieces of one byte.
            for byte in b"3\r\nabc\r\n3;x\r\ndef\r\n0\r\n\r\n" {
                socket.write_all(&[*byte]).await.unwrap();
            }
            let n = socket.read(&mut answer).await.unwrap();
            assert_eq!(&answer[..n], BARE_CONTINUE);
            socket.write_all(b"2\r\ngh\r\n0\r\n\r\n").await.unwrap();
            let n = socket.read(&mut answer).await.unwrap();
            let text = String::from_utf8_lossy(&answer[..n]);
            assert!(
                text.starts_with("HTTP/1.1 201") && text.ends_with("abcdefgh"),
                "{text}"
            );
        }
    }
}
