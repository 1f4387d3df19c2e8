//! Connections to servers, plain or TLS, behind one type.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use crate::tls::{ClientTls, ReadAhead, Slices};

/// A connection to a server.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<Slices<TlsStream<ReadAhead<TcpStream>>>>),
}

impl Stream {
    /// Has the server closed this idle connection, or sent data that was not requested?
    pub fn is_stale(&self) -> bool {
        let socket = match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => match stream.get_ref().get_ref().0 {
                socket if socket.has_bytes() => return true,
                socket => socket.get_ref(),
            },
        };
        let nothing_yet = socket.try_read(&mut [0]);
        !matches!(nothing_yet, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Connects to `address` within `timeout`; with TLS the server's certificate must be for `host`.
///
/// # Errors
/// `TimedOut` after `timeout`; else those of the lookup, the connection and [`over`].
pub async fn dial(
    address: impl ToSocketAddrs,
    host: &str,
    tls: Option<&ClientTls>,
    timeout: Duration,
) -> io::Result<Stream> {
    let connecting = async {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        over(socket, host, tls).await
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => {
            let reason = format!("no connection within {timeout:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, reason))
        }
    }
}

/// Wraps a connected socket to `host`, with TLS if configured.
///
/// # Errors
/// As [`ClientTls::connect`]; without TLS there is none.
pub async fn over(socket: TcpStream, host: &str, tls: Option<&ClientTls>) -> io::Result<Stream> {
    Ok(match tls {
        None => Stream::Plain(socket),
        Some(tls) => Stream::Tls(Box::new(tls.connect(host, socket).await?)),
    })
}

/// Opens connections for the pool.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Option<ClientTls>,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(timeout: Duration, tls: Option<ClientTls>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        tcp.enforce_http(false);
        Connector { tcp, tls, timeout }
    }
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_ready(cx).map_err(io::Error::other)
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let host = uri.host().unwrap_or_default().to_owned();
        let connecting = self.tcp.call(uri);
        let (tls, timeout) = (self.tls.clone(), self.timeout);
        Box::pin(async move {
            let socket = connecting.await.map_err(io::Error::other)?.into_inner();
            let speaking = over(socket, &host, tls.as_ref());
            match tokio::time::timeout(timeout, speaking).await {
                Ok(stream) => stream.map(TokioIo::new),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no TLS within {timeout:?}"),
                )),
            }
        })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Applies an expression to the pinned stream of either variant.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Plain(socket) => {
                let $inner = Pin::new(socket);
                $call
            }
            Stream::Tls(stream) => {
                let $inner = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, inner => inner.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, inner => inner.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, inner => inner.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => inner.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => inner.poll_shutdown(cx))
    }
}
