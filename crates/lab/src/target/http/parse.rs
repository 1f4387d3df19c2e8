//! Answers as they arrive: head, then a body by length, in chunks, or up to the end.

use tokio::time::Instant;

use crate::record::ErrorKind;
use crate::target::content::Checker;

/// A head larger than this is refused.
const HEAD_BYTES: usize = 64 * 1024;
/// A body kept in memory is at most this long.
const KEPT_BYTES: usize = 4 << 20;
const HEADERS: usize = 96;

/// Destination of a body.
pub(in crate::target) enum Sink<'a> {
    Discard,
    Check(Checker),
    Keep(&'a mut Kept),
}

/// Headers and body of an answer that somebody reads.
#[derive(Debug, Default)]
pub(in crate::target) struct Kept {
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Kept {
    pub(in crate::target) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub(in crate::target) fn body(&self) -> &[u8] {
        &self.body
    }
}

/// The part of an answer that is known so far.
#[derive(Debug, Clone, Copy)]
pub(in crate::target) struct Reply {
    pub(in crate::target) status: u16,
    pub(in crate::target) first_byte: Instant,
    pub(in crate::target) bytes: u64,
    pub(super) keep_alive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    /// Before the first digit of a chunk's size.
    ChunkStart,
    ChunkSize(u64),
    /// The rest of a chunk's size line.
    ChunkLine(u64),
    ChunkData(u64),
    /// The line end after a chunk.
    ChunkEnd,
    /// Trailer lines; how many bytes the current one has.
    Trailer(u32),
    UntilClose,
    Done,
}

/// Pushed bytes become a [`Reply`].
#[derive(Debug)]
pub(super) struct Parser {
    state: State,
    /// A head that came in parts.
    partial: Vec<u8>,
    bodiless: bool,
    begun: bool,
    status: u16,
    keep_alive: bool,
    bytes: u64,
    first_byte: Option<Instant>,
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            state: State::Head,
            partial: Vec::new(),
            bodiless: false,
            begun: false,
            status: 0,
            keep_alive: false,
            bytes: 0,
            first_byte: None,
        }
    }
}

impl Parser {
    pub(super) fn start(&mut self, bodiless: bool) {
        let partial = std::mem::take(&mut self.partial);
        *self = Self {
            partial,
            bodiless,
            ..Self::default()
        };
        self.partial.clear();
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(super) fn reply(&self) -> Reply {
        Reply {
            status: self.status,
            first_byte: self.first_byte.unwrap_or_else(super::now),
            bytes: self.bytes,
            keep_alive: self.keep_alive,
        }
    }

    /// The store has ended the connection.
    pub(super) fn closed(&mut self) -> Result<Reply, ErrorKind> {
        if self.state == State::UntilClose {
            self.keep_alive = false;
            return Ok(self.reply());
        }
        Err(ErrorKind::Closed)
    }

    /// Takes what was read; true when the answer is whole.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        sink: &mut Sink<'_>,
        transaction: &mut String,
    ) -> Result<bool, ErrorKind> {
        self.begun = true;
        let mut rest = bytes;
        while self.state == State::Head {
            let used = if self.partial.is_empty() {
                self.parse_head(rest, sink, transaction)?
            } else {
                let before = self.partial.len();
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(rest);
                let used = self.parse_head(&whole, sink, transaction)?;
                if used.is_none() {
                    self.partial = whole;
                    return Ok(false);
                }
                used.map(|used| used - before)
            };
            match used {
                Some(used) => rest = &rest[used..],
                None => {
                    self.partial.extend_from_slice(rest);
                    return Ok(false);
                }
            }
        }
        self.feed_body(rest, sink)
    }

    /// Length of the head, if it is whole. An interim answer (1xx) leaves the state as it was.
    fn parse_head(
        &mut self,
        bytes: &[u8],
        sink: &mut Sink<'_>,
        transaction: &mut String,
    ) -> Result<Option<usize>, ErrorKind> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES => return Ok(None),
            _ => return Err(ErrorKind::Protocol),
        };
        self.status = response.code.unwrap_or(0);
        if (100..200).contains(&self.status) {
            return Ok(Some(length));
        }
        let mut content_length = None;
        let mut chunked = false;
        self.keep_alive = response.version == Some(1);
        for header in response.headers.iter() {
            match header.name.len() {
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    let value = length_of(header.value).ok_or(ErrorKind::Protocol)?;
                    // With two lengths, nobody knows where the next answer begins.
                    if content_length.replace(value).is_some_and(|v| v != value) {
                        return Err(ErrorKind::Protocol);
                    }
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    chunked = header.value.eq_ignore_ascii_case(b"chunked");
                }
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    if header.value.eq_ignore_ascii_case(b"close") {
                        self.keep_alive = false;
                    } else if header.value.eq_ignore_ascii_case(b"keep-alive") {
                        self.keep_alive = true;
                    }
                }
                10 | 16 | 22
                    if header.name.eq_ignore_ascii_case("x-trans-id")
                        || header.name.eq_ignore_ascii_case("x-amz-request-id")
                        || header.name.eq_ignore_ascii_case("x-openstack-request-id") =>
                {
                    transaction.clear();
                    transaction.extend(header.value.iter().take(100).map(|&byte| char::from(byte)));
                }
                _ => {}
            }
        }
        if let Sink::Keep(kept) = sink {
            kept.headers.extend(response.headers.iter().map(|header| {
                (
                    header.name.to_owned(),
                    String::from_utf8_lossy(header.value).into_owned(),
                )
            }));
        }
        let none = self.bodiless || matches!(self.status, 204 | 304);
        self.state = match (none, chunked, content_length) {
            (true, _, _) | (false, false, Some(0)) => State::Done,
            (false, true, _) => State::ChunkStart,
            (false, false, Some(length)) => State::Length(length),
            (false, false, None) => State::UntilClose,
        };
        if self.state == State::Done {
            self.first_byte = Some(super::now());
        }
        Ok(Some(length))
    }

    fn feed_body(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Result<bool, ErrorKind> {
        let mut rest = bytes;
        loop {
            if self.state == State::Done {
                // Bytes behind an answer nobody asked for cannot be kept apart from the next.
                self.keep_alive &= rest.is_empty();
                return Ok(true);
            }
            let Some(&byte) = rest.first() else {
                return Ok(false);
            };
            match self.state {
                State::Length(left) => {
                    let take = left.min(rest.len() as u64);
                    self.data(&rest[..take as usize], sink)?;
                    rest = &rest[take as usize..];
                    self.state = if take == left {
                        State::Done
                    } else {
                        State::Length(left - take)
                    };
                }
                State::ChunkData(left) => {
                    let take = left.min(rest.len() as u64);
                    self.data(&rest[..take as usize], sink)?;
                    rest = &rest[take as usize..];
                    self.state = if take == left {
                        State::ChunkEnd
                    } else {
                        State::ChunkData(left - take)
                    };
                }
                State::UntilClose => {
                    self.data(rest, sink)?;
                    rest = &[];
                }
                _ => {
                    self.state = self.frame(byte)?;
                    rest = &rest[1..];
                }
            }
        }
    }

    /// One byte of what frames chunks.
    fn frame(&mut self, byte: u8) -> Result<State, ErrorKind> {
        Ok(match (self.state, byte) {
            (State::ChunkStart | State::ChunkSize(_), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let size = match self.state {
                    State::ChunkSize(size) => size,
                    _ => 0,
                };
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let size = size.checked_mul(16).ok_or(ErrorKind::Protocol)?;
                State::ChunkSize(size + u64::from(digit))
            }
            (State::ChunkSize(size) | State::ChunkLine(size), b'\n') => match size {
                0 => State::Trailer(0),
                size => State::ChunkData(size),
            },
            (State::ChunkSize(size), b' ' | b'\t' | b';' | b'\r') | (State::ChunkLine(size), _) => {
                State::ChunkLine(size)
            }
            (State::ChunkEnd, b'\r') => State::ChunkEnd,
            (State::ChunkEnd, b'\n') => State::ChunkStart,
            (State::Trailer(0), b'\n') => {
                self.first_byte.get_or_insert_with(super::now);
                State::Done
            }
            (State::Trailer(_), b'\n') => State::Trailer(0),
            (State::Trailer(length), b'\r') => State::Trailer(length),
            (State::Trailer(length), _) if (length as usize) < HEAD_BYTES => {
                State::Trailer(length + 1)
            }
            _ => return Err(ErrorKind::Protocol),
        })
    }

    fn data(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), ErrorKind> {
        self.first_byte.get_or_insert_with(super::now);
        self.bytes += bytes.len() as u64;
        match sink {
            Sink::Discard => {}
            Sink::Check(checker) => checker.take(bytes),
            Sink::Keep(kept) => {
                if kept.body.len() + bytes.len() > KEPT_BYTES {
                    return Err(ErrorKind::Protocol);
                }
                kept.body.extend_from_slice(bytes);
            }
        }
        Ok(())
    }
}

/// A `Content-Length`: digits only.
fn length_of(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;
