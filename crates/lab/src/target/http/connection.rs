//! One connection: sends a request, reads its answer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::parse::{Parser, Reply, Sink};
use crate::plan::Content;
use crate::record::ErrorKind;
use crate::target::content;

/// Bodies up to this travel in one write with the head.
const TOGETHER: u64 = 16 * 1024;
/// Larger ones are made and sent in pieces of this size.
const PIECE: usize = 64 * 1024;
/// Largest read; one buffer per thread.
const SCRATCH: usize = 256 * 1024;

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH]);
}

/// The body of a request.
#[derive(Debug)]
pub(in crate::target) enum Upload<'a> {
    None,
    Bytes(&'a [u8]),
    /// Content that follows from a key, from `offset` on.
    Made {
        content: Content,
        key: u64,
        offset: u64,
        size: u64,
        chunked: bool,
    },
    File(&'a std::fs::File, u64),
}

impl<'a> Upload<'a> {
    pub(in crate::target) fn bytes(bytes: &'a [u8]) -> Self {
        if bytes.is_empty() {
            Self::None
        } else {
            Self::Bytes(bytes)
        }
    }

    /// Back to the start for another attempt.
    pub(super) fn rewind(&mut self) -> bool {
        use std::io::Seek;
        match self {
            Self::File(file, _) => file.rewind().is_ok(),
            _ => true,
        }
    }
}

/// An exchange that failed; `answered`: after part of an answer had come.
#[derive(Debug)]
pub(super) struct ExchangeError {
    pub(super) kind: ErrorKind,
    pub(super) answered: bool,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(test)]
    Memory(tokio::io::DuplexStream),
}

impl Stream {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
            #[cfg(test)]
            Self::Memory(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => stream.write_all(bytes).await,
            #[cfg(test)]
            Self::Memory(stream) => stream.write_all(bytes).await,
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        match self {
            // Nothing is held back there.
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
            #[cfg(test)]
            Self::Memory(_) => Ok(()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    parser: Parser,
}

fn failure(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::TimedOut => ErrorKind::Timeout,
        io::ErrorKind::InvalidData => ErrorKind::Protocol,
        _ => ErrorKind::Closed,
    }
}

impl Connection {
    pub(super) async fn open(
        address: SocketAddr,
        tls: Option<&(TlsConnector, ServerName<'static>)>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = match tls {
            None => Stream::Plain(stream),
            Some((connector, name)) => {
                Stream::Tls(Box::new(connector.connect(name.clone(), stream).await?))
            }
        };
        Ok(Self {
            stream,
            parser: Parser::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn over(stream: tokio::io::DuplexStream) -> Self {
        Self {
            stream: Stream::Memory(stream),
            parser: Parser::default(),
        }
    }

    pub(super) fn is_open_for_reading(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.peer_addr().is_ok(),
            Stream::Tls(stream) => stream.get_ref().0.peer_addr().is_ok(),
            #[cfg(test)]
            Stream::Memory(_) => true,
        }
    }

    pub(super) async fn send(
        &mut self,
        head: &mut Vec<u8>,
        piece: &mut Vec<u8>,
        upload: &mut Upload<'_>,
    ) -> Result<(), ErrorKind> {
        let sent = match *upload {
            Upload::None => self.stream.write_all(head).await,
            Upload::Bytes(bytes) => match self.stream.write_all(head).await {
                Ok(()) => self.stream.write_all(bytes).await,
                failed => failed,
            },
            Upload::Made {
                content,
                key,
                offset,
                size,
                chunked: false,
            } if size <= TOGETHER => {
                let start = head.len();
                head.resize(start + size as usize, 0);
                content::fill(content, key, offset, &mut head[start..]);
                let sent = self.stream.write_all(head).await;
                head.truncate(start);
                sent
            }
            Upload::Made {
                content,
                key,
                offset,
                size,
                chunked,
            } => {
                self.send_made(head, piece, content, key, offset, size, chunked)
                    .await
            }
            Upload::File(file, size) => self.send_file(head, piece, file, size).await,
        };
        match sent {
            Ok(()) => self.stream.flush().await,
            failed => failed,
        }
        .map_err(|error| failure(&error))
    }

    #[allow(clippy::too_many_arguments)]
    async fn send_made(
        &mut self,
        head: &[u8],
        piece: &mut Vec<u8>,
        content: Content,
        key: u64,
        offset: u64,
        size: u64,
        chunked: bool,
    ) -> io::Result<()> {
        self.stream.write_all(head).await?;
        let mut sent = 0;
        while sent < size {
            let take = (size - sent).min(PIECE as u64) as usize;
            piece.clear();
            if chunked {
                piece.extend_from_slice(format!("{take:x}\r\n").as_bytes());
            }
            let start = piece.len();
            piece.resize(start + take, 0);
            content::fill(content, key, offset + sent, &mut piece[start..]);
            if chunked {
                piece.extend_from_slice(b"\r\n");
            }
            self.stream.write_all(piece).await?;
            sent += take as u64;
        }
        if chunked {
            self.stream.write_all(b"0\r\n\r\n").await
        } else {
            Ok(())
        }
    }

    async fn send_file(
        &mut self,
        head: &[u8],
        piece: &mut Vec<u8>,
        mut file: &std::fs::File,
        size: u64,
    ) -> io::Result<()> {
        use std::io::Read;
        self.stream.write_all(head).await?;
        let mut left = size;
        while left > 0 {
            piece.resize(left.min(PIECE as u64) as usize, 0);
            let read = file.read(piece)?;
            if read == 0 {
                // It has become shorter since its size was told to the store.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.stream.write_all(&piece[..read]).await?;
            left -= read as u64;
        }
        Ok(())
    }

    pub(super) async fn receive(
        &mut self,
        sink: &mut Sink<'_>,
        bodiless: bool,
        transaction: &mut String,
    ) -> Result<Reply, ExchangeError> {
        let Self { stream, parser } = self;
        parser.start(bodiless);
        poll_fn(|cx| {
            READ_BUFFER.with_borrow_mut(|buffer| {
                loop {
                    let mut room = ReadBuf::new(buffer);
                    match stream.poll_read(cx, &mut room) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(failure(&error))),
                        Poll::Ready(Ok(())) => {}
                    }
                    if room.filled().is_empty() {
                        return Poll::Ready(parser.closed());
                    }
                    if parser.feed(room.filled(), sink, transaction)? {
                        return Poll::Ready(Ok(parser.reply()));
                    }
                }
            })
        })
        .await
        .map_err(|kind| ExchangeError {
            kind,
            answered: parser.has_begun(),
        })
    }
}
