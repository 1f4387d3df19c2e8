//! Reads of ranges from the socket into the caller's buffer: without a buffer in between, from which each
//! byte would be copied, and without a task of the connection. Only a plain answer of the length that was
//! asked for is read so; all else is left to the ordinary way, which sends the request again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BufMut;
use cairn_http::Request;
use cairn_http::client::{Stream, dial};
use http::StatusCode;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Maximum bytes of a response's head, with the first bytes of the body behind it.
const HEAD_MAX_BYTES: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Maximum number of idle connections to one address.
const IDLE_MAX: usize = 32;

/// Outcome of a read.
pub(super) enum Outcome {
    Read,
    /// Nothing is known of the answer but that it is not a plain one: the request may be sent again.
    Ordinary,
    /// The connection broke behind the answer's head.
    Broken(String),
    Late(Duration),
}

/// Time limits of a read.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    /// Until the answer's head has arrived.
    pub(super) answer: Duration,
    /// Between two pieces of the body.
    pub(super) stall: Duration,
    /// Age at which an idle connection is not used any more.
    pub(super) idle: Duration,
}

/// Connections for such reads.
#[derive(Default)]
pub(super) struct Direct {
    idle: Mutex<HashMap<SocketAddr, Vec<(Stream, Instant)>>>,
}

impl Direct {
    fn take(&self, address: SocketAddr, age_max: Duration) -> Option<Stream> {
        let mut idle = self.idle.lock();
        let streams = idle.get_mut(&address)?;
        // The last one first: those that are not needed grow old.
        while let Some((stream, since)) = streams.pop() {
            if since.elapsed() < age_max && !stream.is_stale() {
                return Some(stream);
            }
        }
        None
    }

    fn put_back(&self, address: SocketAddr, stream: Stream, age_max: Duration) {
        let mut idle = self.idle.lock();
        let streams = idle.entry(address).or_default();
        streams.retain(|(_, since)| since.elapsed() < age_max);
        if streams.len() < IDLE_MAX {
            streams.push((stream, Instant::now()));
        }
    }

    /// Sends a GET of a range of `length` bytes, and reads its body into `buffer`, which is empty.
    pub(super) async fn read(
        &self,
        address: SocketAddr,
        request: &Request,
        length: usize,
        buffer: &mut Vec<u8>,
        patience: Patience,
    ) -> Outcome {
        let stream = match self.take(address, patience.idle) {
            Some(stream) => Ok(stream),
            None => dial(address, "", None, patience.connect).await,
        };
        let Ok(mut stream) = stream else {
            return Outcome::Ordinary;
        };
        let head = exchange(&mut stream, request, length, buffer);
        let is_kept = match timeout(patience.answer, head).await {
            Ok(Some(head)) => head,
            Ok(None) => return Outcome::Ordinary,
            Err(_) => return Outcome::Late(patience.answer),
        };
        buffer.reserve_exact(length - buffer.len());
        while buffer.len() < length {
            let missing = length - buffer.len();
            let mut rest = (&mut *buffer).limit(missing);
            match timeout(patience.stall, stream.read_buf(&mut rest)).await {
                Ok(Ok(0)) => return Outcome::Broken("the body ends too early".to_owned()),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Outcome::Broken(error.to_string()),
                Err(_) => return Outcome::Late(patience.stall),
            }
        }
        if is_kept {
            self.put_back(address, stream, patience.idle);
        }
        Outcome::Read
    }
}

fn head_of(request: &Request) -> Vec<u8> {
    let target = request.uri().path_and_query().map_or("/", |at| at.as_str());
    let mut head = format!("{} {target} HTTP/1.1\r\n", request.method()).into_bytes();
    for (name, value) in request.headers() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Sends a request and reads the answer's head; bytes behind it go into `buffer`. Returns whether the
/// connection can be used again behind the body; `None` for an answer that is no plain one.
async fn exchange(
    stream: &mut Stream,
    request: &Request,
    length: usize,
    buffer: &mut Vec<u8>,
) -> Option<bool> {
    stream.write_all(&head_of(request)).await.ok()?;
    let mut text = [0; HEAD_MAX_BYTES];
    let mut came = 0;
    loop {
        let count = stream.read(&mut text[came..]).await.ok()?;
        if count == 0 {
            return None;
        }
        came += count;
        match parse(&text[..came], length) {
            Parsed::More => {}
            Parsed::Other => return None,
            Parsed::Plain { end, is_kept } => {
                let body = &text[end..came];
                if body.len() > length {
                    return None;
                }
                buffer.extend_from_slice(body);
                return Some(is_kept);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    More,
    /// The head of a range of the right length, and where it ends.
    Plain {
        end: usize,
        is_kept: bool,
    },
    Other,
}

fn parse(text: &[u8], length: usize) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let end = match head.parse(text) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Parsed::More,
        Err(_) => return Parsed::Other,
    };
    if head.code != Some(StatusCode::PARTIAL_CONTENT.as_u16()) {
        return Parsed::Other;
    }
    let (mut told, mut is_kept) = (None, head.version == Some(1));
    for header in head.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let number = std::str::from_utf8(header.value).ok();
            let number = number.and_then(|number| number.trim().parse::<usize>().ok());
            // Twice the same is once too often.
            if told.replace(number).is_some() || number != Some(length) {
                return Parsed::Other;
            }
        } else if is("transfer-encoding") {
            return Parsed::Other;
        } else if is("connection") {
            is_kept &= !header.value.eq_ignore_ascii_case(b"close");
        }
    }
    match told {
        Some(_) => Parsed::Plain { end, is_kept },
        None => Parsed::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_answers_of_the_right_length_are_taken() {
        let plain = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\n";
        let (end, is_kept) = (plain.len(), true);
        let with_body = format!("{plain}abc");
        assert_eq!(
            parse(with_body.as_bytes(), 5),
            Parsed::Plain { end, is_kept }
        );
        assert_eq!(parse(&plain.as_bytes()[..end - 1], 5), Parsed::More);
        let closing = plain.replace("\r\n\r\n", "\r\nConnection: Close\r\n\r\n");
        assert!(matches!(
            parse(closing.as_bytes(), 5),
            Parsed::Plain { is_kept: false, .. }
        ));
        let older = plain.replace("1.1", "1.0");
        assert!(matches!(
            parse(older.as_bytes(), 5),
            Parsed::Plain { is_kept: false, .. }
        ));
        for (from, to) in [
            ("206", "200"),
            ("206", "401"),
            (": 5", ": 6"),
            (": 5", ": x"),
            (": 5", ": 5\r\nContent-Length: 5"),
            (": 5", ": 5\r\nTransfer-Encoding: chunked"),
            ("Content-Length", "X-Length"),
            ("HTTP/1.1", "SPDY"),
        ] {
            let other = plain.replace(from, to);
            assert_eq!(parse(other.as_bytes(), 5), Parsed::Other, "{other}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_head_or_not(text in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            if let Parsed::Plain { end, .. } = parse(&text, 5) {
                proptest::prop_assert!(end <= text.len());
            }
        }
    }
}
