//! HTTP/1.1 framing of a two-phase upload. It deviates from HTTP, so it is written out here: after
//! the first chunked body has ended the server sends another `100 Continue`, and another chunked
//! body follows in the same request. The connection carries one upload.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use cairn_http::client::Stream;
use cairn_http::{Body, Response, respond};
use cairn_types::header_name;
use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Uri};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio::sync::mpsc;
use tracing::debug;

use super::{ANSWER_MAX_BYTES, Event};

/// Maximum bytes of a response's head.
const HEAD_MAX_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 256;

/// Data to send.
pub(super) enum Piece {
    Data(Bytes),
    /// The end of one chunked body.
    End,
}

/// The bytes of the request's head.
pub(super) fn head(address: SocketAddr, uri: &Uri, headers: &HeaderMap) -> Bytes {
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut head = format!("PUT {path} HTTP/1.1\r\nHost: {address}\r\n").into_bytes();
    for (name, value) in headers.iter().filter(|(name, _)| **name != HOST) {
        head.extend_from_slice(&header_name::unescape(name.as_str()));
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    head.into()
}

/// Sends the head and then the data from `pieces`, and reports each response received meanwhile,
/// until the final one. If the exchange breaks off, it ends without one.
pub(super) async fn converse(
    address: SocketAddr,
    connecting: impl Future<Output = io::Result<Stream>>,
    head: Bytes,
    pieces: mpsc::Receiver<Piece>,
    told: mpsc::UnboundedSender<Event>,
) {
    let stream = match connecting.await {
        Ok(stream) => stream,
        Err(error) => return debug!(%address, %error, "cannot connect for an upload"),
    };
    let (reader, writer) = tokio::io::split(stream);
    let writing = async {
        if let Err(error) = write(writer, head, pieces).await {
            debug!(%address, %error, "upload broke off");
        }
        // The data sent so far may be enough for a final response.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        read = read(reader, &told) => {
            if let Err(error) = read {
                debug!(%address, %error, "no answer to an upload");
            }
        }
        () = writing => {}
    }
}

async fn write(
    mut writer: WriteHalf<Stream>,
    head: Bytes,
    mut pieces: mpsc::Receiver<Piece>,
) -> io::Result<()> {
    writer.write_all(&head).await?;
    writer.flush().await?;
    while let Some(piece) = pieces.recv().await {
        match piece {
            Piece::Data(data) if data.is_empty() => {}
            Piece::Data(data) => {
                let size = Bytes::from(format!("{:x}\r\n", data.len()));
                let mut chunk = size.chain(data).chain(&b"\r\n"[..]);
                writer.write_all_buf(&mut chunk).await?;
                writer.flush().await?;
            }
            Piece::End => {
                writer.write_all(b"0\r\n\r\n").await?;
                writer.flush().await?;
            }
        }
    }
    // The sender has ended without closing: the response is still to come.
    std::future::pending().await
}

pub(super) async fn read(
    mut reader: impl AsyncRead + Unpin,
    told: &mpsc::UnboundedSender<Event>,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(4096);
    loop {
        let Some((status, headers, length)) = parse(&buffer)? else {
            if buffer.len() > HEAD_MAX_BYTES {
                return Err(io::Error::other("the head of the answer is too long"));
            }
            if reader.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        };
        buffer.advance(length);
        if (100..200).contains(&status) {
            let _ = told.send(Event::Continue(headers));
            continue;
        }
        let body = read_body(&mut reader, buffer, &headers).await?;
        let mut response = Response::new(Body::full(body));
        *response.status_mut() = respond::status(status);
        *response.headers_mut() = headers;
        let _ = told.send(Event::Answer(Box::new(response)));
        return Ok(());
    }
}

/// Parses a response's head: status, headers and its length; `None` while it is incomplete.
pub(super) fn parse(bytes: &[u8]) -> io::Result<Option<(u16, HeaderMap, usize)>> {
    let mut room = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut room);
    let length = match head.parse(bytes).map_err(io::Error::other)? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(io::Error::other)?;
        let value = HeaderValue::from_bytes(header.value).map_err(io::Error::other)?;
        headers.append(name, value);
    }
    Ok(Some((head.code.unwrap_or(500), headers, length)))
}

/// Reads a body of the declared length, or to the end of the connection.
async fn read_body(
    reader: &mut (impl AsyncRead + Unpin),
    mut body: BytesMut,
    headers: &HeaderMap,
) -> io::Result<Bytes> {
    let length = respond::header(headers, CONTENT_LENGTH.as_str())
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(ANSWER_MAX_BYTES)
        .min(ANSWER_MAX_BYTES) as usize;
    while body.len() < length {
        if reader.read_buf(&mut body).await? == 0 {
            break;
        }
    }
    body.truncate(length);
    Ok(body.freeze())
}
