//! Scanner of a message head, fed in pieces of any size, that rewrites bytes which the HTTP parser
//! would reject.
//!
//! It also rejects heads that two programs on a request's way could parse differently (RFC 9112,
//! sections 2.2, 3.2 and 6.3), for which the parser is too lenient: lines that end in a bare LF, a
//! second `Host`, a second `Transfer-Encoding`, and `Content-Length` beside `Transfer-Encoding`.
//! Such a head is made unparseable; the parser then responds 400 and ends the connection.

use cairn_types::header_name;

/// Headers whose values are percent-encoded paths: a NUL in them, which begins a reserved name, can
/// be percent-encoded too.
const PATHS: [&str; 3] = ["x-symlink-target", "x-copy-from", "destination"];
/// Bytes of a header name that are kept for comparison; longer than all names of interest.
const NAME_KEPT_BYTES: usize = 20;
/// A byte that is illegal in a head, written to make the parser reject it.
const ILLEGAL_BYTE: u8 = 0;
/// Offset of the status in `HTTP/1.1 200 OK`.
const STATUS_OFFSET: usize = "HTTP/1.1 ".len();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first line; empty lines may precede a request.
    Before,
    First,
    LineStart,
    Name,
    Value,
    Ended,
}

pub(crate) struct Scanner {
    of_requests: bool,
    state: State,
    /// Bytes of the first line so far.
    first: usize,
    /// The head is that of an interim response, so another head follows.
    is_interim: bool,
    /// The beginning of the last header name.
    name: Vec<u8>,
    /// The previous byte.
    last: u8,
    seen: FramingHeaders,
}

/// Framing and routing headers of the current head.
#[derive(Clone, Copy, Default)]
struct FramingHeaders {
    host: bool,
    content_length: bool,
    transfer_encoding: bool,
}

impl FramingHeaders {
    /// Records a header; false if it is ambiguous beside earlier ones.
    fn note(&mut self, name: &[u8]) -> bool {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("host") {
            return !std::mem::replace(&mut self.host, true);
        }
        if is("content-length") {
            // The parser itself checks that repeated lengths are equal.
            self.content_length = true;
            return !self.transfer_encoding;
        }
        if is("transfer-encoding") {
            let is_second = std::mem::replace(&mut self.transfer_encoding, true);
            return !is_second && !self.content_length;
        }
        true
    }
}

impl Scanner {
    pub(crate) fn of_requests() -> Self {
        Scanner {
            of_requests: true,
            state: State::Before,
            first: 0,
            is_interim: false,
            name: Vec::new(),
            last: 0,
            seen: FramingHeaders::default(),
        }
    }

    pub(crate) fn of_responses() -> Self {
        Scanner {
            of_requests: false,
            ..Scanner::of_requests()
        }
    }

    /// Starts a head at the next bytes.
    pub(super) fn begin(&mut self) {
        self.state = State::Before;
        self.last = 0;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// The rewritten bytes; `None` if they need no change.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut changed = Changed { bytes, out: None };
        let mut at = 0;
        while at < bytes.len() {
            at = self.step(&mut changed, at);
            self.last = at.checked_sub(1).map_or(self.last, |at| bytes[at]);
        }
        changed.out
    }

    /// Scans a run of bytes from `at`; returns where the next run begins.
    fn step(&mut self, changed: &mut Changed<'_>, at: usize) -> usize {
        let rest = &changed.bytes[at..];
        match self.state {
            State::Ended => {
                changed.keep(at, rest.len());
                at + rest.len()
            }
            State::Before | State::LineStart => self.begin_line(changed, at, rest[0]),
            State::First => {
                let length = until(rest, |b| b == b'\n');
                self.note_status(&rest[..length]);
                match self.of_requests {
                    true => changed.each(at, length, is_illegal, percent),
                    false => changed.keep(at, length),
                }
                self.end_line(changed, at + length)
            }
            State::Name => {
                let length = until(rest, |b| b == b':' || b == b'\n');
                let room = NAME_KEPT_BYTES.saturating_sub(self.name.len()).min(length);
                self.name.extend_from_slice(&rest[..room]);
                let push = header_name::push_escaped;
                changed.each(at, length, header_name::is_escaped, push);
                if rest.get(length) == Some(&b':') {
                    if self.of_requests && !self.seen.note(&self.name) {
                        return self.refuse(changed, at + length);
                    }
                    self.state = State::Value;
                    changed.keep(at + length, 1);
                    return at + length + 1;
                }
                self.end_line(changed, at + length)
            }
            State::Value => {
                let length = until(rest, |b| b == b'\n');
                match self.is_path() {
                    true => changed.each(at, length, |b| b == 0, percent),
                    false => changed.keep(at, length),
                }
                self.end_line(changed, at + length)
            }
        }
    }

    /// Replaces the byte at `at` so that the parser rejects the head, and ends the scan.
    fn refuse(&mut self, changed: &mut Changed<'_>, at: usize) -> usize {
        changed.each(at, 1, |_| true, |out, _| out.push(ILLEGAL_BYTE));
        self.state = State::Ended;
        at + 1
    }

    /// Is the LF at `at` in a request without a CR before it?
    fn is_bare(&self, changed: &Changed<'_>, at: usize) -> bool {
        let before = at.checked_sub(1).map_or(self.last, |at| changed.bytes[at]);
        self.of_requests && before != b'\r'
    }

    /// Keeps the line end, if it is there.
    fn end_line(&mut self, changed: &mut Changed<'_>, at: usize) -> usize {
        if at == changed.bytes.len() {
            return at;
        }
        if self.is_bare(changed, at) {
            return self.refuse(changed, at);
        }
        self.state = State::LineStart;
        changed.keep(at, 1);
        at + 1
    }

    fn begin_line(&mut self, changed: &mut Changed<'_>, at: usize, byte: u8) -> usize {
        match (self.state, byte) {
            (_, b'\n') if self.is_bare(changed, at) => return self.refuse(changed, at),
            (State::Before, b'\r' | b'\n') | (_, b'\r') => {}
            (State::Before, _) => {
                self.state = State::First;
                (self.first, self.is_interim) = (0, false);
                self.seen = FramingHeaders::default();
                return at;
            }
            (_, b'\n') if self.is_interim => self.state = State::Before,
            (_, b'\n') => self.state = State::Ended,
            _ => {
                self.state = State::Name;
                self.name.clear();
                return at;
            }
        }
        changed.keep(at, 1);
        at + 1
    }

    fn note_status(&mut self, run: &[u8]) {
        let class = STATUS_OFFSET
            .checked_sub(self.first)
            .and_then(|i| run.get(i));
        self.is_interim |= !self.of_requests && class == Some(&b'1');
        self.first += run.len();
    }

    fn is_path(&self) -> bool {
        let is_it = |path: &&str| path.as_bytes().eq_ignore_ascii_case(&self.name);
        PATHS.iter().any(is_it)
    }
}

/// Length of the run before the first such byte.
fn until(bytes: &[u8], is_end: impl Fn(u8) -> bool) -> usize {
    let end = bytes.iter().position(|b| is_end(*b));
    end.unwrap_or(bytes.len())
}

/// Is this byte illegal in a request's target?
fn is_illegal(byte: u8) -> bool {
    byte >= 0x7f
        || matches!(
            byte,
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
        )
}

fn percent(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(format!("%{byte:02X}").as_bytes());
}

/// Input bytes and their rewritten form, copied from the first change on.
struct Changed<'a> {
    bytes: &'a [u8],
    out: Option<Vec<u8>>,
}

impl Changed<'_> {
    fn keep(&mut self, at: usize, length: usize) {
        if let Some(out) = &mut self.out {
            out.extend_from_slice(&self.bytes[at..at + length]);
        }
    }

    /// Rewrites those bytes of the run that `changes` selects by `push`, and keeps the others. The
    /// result for a byte must not depend on where its run was cut.
    fn each(
        &mut self,
        at: usize,
        length: usize,
        changes: impl Fn(u8) -> bool,
        push: impl Fn(&mut Vec<u8>, u8),
    ) {
        let run = &self.bytes[at..at + length];
        if !run.iter().any(|b| changes(*b)) {
            return self.keep(at, length);
        }
        let (bytes, room) = (self.bytes, self.bytes.len() + 64);
        let out = self.out.get_or_insert_with(|| {
            let mut out = Vec::with_capacity(room);
            out.extend_from_slice(&bytes[..at]);
            out
        });
        for byte in run {
            match changes(*byte) {
                true => push(out, *byte),
                false => out.push(*byte),
            }
        }
    }
}
