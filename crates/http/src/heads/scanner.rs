//! Follows a head as it comes in, in pieces that end anywhere, and changes what the parser would
//! not take.
//!
//! The other way round, what two programs on a request's way could read differently (RFC 9112,
//! sections 2.2, 3.2 and 6.3) is made unparseable, for the parser is lenient: lines that end in a bare
//! LF, a second `Host`, a second `Transfer-Encoding`, and `Content-Length` beside
//! `Transfer-Encoding`. The parser then answers 400 and ends the connection.

use cairn_types::header_name;

/// Headers whose values are percent-encoded paths: there a NUL, which begins a reserved name, can
/// be written so as well.
const PATHS: [&str; 3] = ["x-symlink-target", "x-copy-from", "destination"];
/// Longer than any of these.
const NAME_KEPT: usize = 20;
/// No head has it, so the parser refuses a head that does.
const REFUSED: u8 = 0;
/// Where the status begins in `HTTP/1.1 200 OK`.
const STATUS_AT: usize = "HTTP/1.1 ".len();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Empty lines may come before a request.
    Before,
    First,
    LineStart,
    Name,
    Value,
    Ended,
}

pub(crate) struct Scanner {
    of_requests: bool,
    place: Place,
    /// Of the first line: bytes so far.
    first: usize,
    /// The head is that of an interim answer, and another one follows it.
    is_interim: bool,
    /// The beginning of the name that was read last.
    name: Vec<u8>,
    /// The byte before the next one.
    last: u8,
    seen: Seen,
}

/// Headers that decide where a request goes and where it ends.
#[derive(Clone, Copy, Default)]
struct Seen {
    host: bool,
    content_length: bool,
    transfer_encoding: bool,
}

impl Seen {
    /// Takes note of a header; false where it must not follow those before.
    fn note(&mut self, name: &[u8]) -> bool {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("host") {
            return !std::mem::replace(&mut self.host, true);
        }
        if is("content-length") {
            // That two are the same the parser checks.
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
            place: Place::Before,
            first: 0,
            is_interim: false,
            name: Vec::new(),
            last: 0,
            seen: Seen::default(),
        }
    }

    pub(crate) fn of_responses() -> Self {
        Scanner {
            of_requests: false,
            ..Scanner::of_requests()
        }
    }

    /// The next bytes begin a head.
    pub(super) fn begin(&mut self) {
        self.place = Place::Before;
        self.last = 0;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.place == Place::Ended
    }

    /// The bytes as the parser takes them; `None` where they are such.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut changed = Changed { bytes, out: None };
        let mut at = 0;
        while at < bytes.len() {
            at = self.step(&mut changed, at);
            self.last = at.checked_sub(1).map_or(self.last, |at| bytes[at]);
        }
        changed.out
    }

    /// Takes a run of bytes from `at`; returns where the next one begins.
    fn step(&mut self, changed: &mut Changed<'_>, at: usize) -> usize {
        let rest = &changed.bytes[at..];
        match self.place {
            Place::Ended => {
                changed.keep(at, rest.len());
                at + rest.len()
            }
            Place::Before | Place::LineStart => self.begin_line(changed, at, rest[0]),
            Place::First => {
                let length = until(rest, |b| b == b'\n');
                self.note_status(&rest[..length]);
                match self.of_requests {
                    true => changed.each(at, length, is_illegal, percent),
                    false => changed.keep(at, length),
                }
                self.end_line(changed, at + length)
            }
            Place::Name => {
                let length = until(rest, |b| b == b':' || b == b'\n');
                let room = NAME_KEPT.saturating_sub(self.name.len()).min(length);
                self.name.extend_from_slice(&rest[..room]);
                let push = header_name::push_escaped;
                changed.each(at, length, header_name::is_escaped, push);
                if rest.get(length) == Some(&b':') {
                    if self.of_requests && !self.seen.note(&self.name) {
                        return self.refuse(changed, at + length);
                    }
                    self.place = Place::Value;
                    changed.keep(at + length, 1);
                    return at + length + 1;
                }
                self.end_line(changed, at + length)
            }
            Place::Value => {
                let length = until(rest, |b| b == b'\n');
                match self.is_path() {
                    true => changed.each(at, length, |b| b == 0, percent),
                    false => changed.keep(at, length),
                }
                self.end_line(changed, at + length)
            }
        }
    }

    /// Makes the head unparseable in place of the byte at `at`; what follows is nobody's.
    fn refuse(&mut self, changed: &mut Changed<'_>, at: usize) -> usize {
        changed.each(at, 1, |_| true, |out, _| out.push(REFUSED));
        self.place = Place::Ended;
        at + 1
    }

    /// Whether the LF at `at` has no CR before it, in a request.
    fn is_bare(&self, changed: &Changed<'_>, at: usize) -> bool {
        let before = at.checked_sub(1).map_or(self.last, |at| changed.bytes[at]);
        self.of_requests && before != b'\r'
    }

    /// Keeps the line's end, if it has come.
    fn end_line(&mut self, changed: &mut Changed<'_>, at: usize) -> usize {
        if at == changed.bytes.len() {
            return at;
        }
        if self.is_bare(changed, at) {
            return self.refuse(changed, at);
        }
        self.place = Place::LineStart;
        changed.keep(at, 1);
        at + 1
    }

    fn begin_line(&mut self, changed: &mut Changed<'_>, at: usize, byte: u8) -> usize {
        match (self.place, byte) {
            (_, b'\n') if self.is_bare(changed, at) => return self.refuse(changed, at),
            (Place::Before, b'\r' | b'\n') | (_, b'\r') => {}
            (Place::Before, _) => {
                self.place = Place::First;
                (self.first, self.is_interim) = (0, false);
                self.seen = Seen::default();
                return at;
            }
            (_, b'\n') if self.is_interim => self.place = Place::Before,
            (_, b'\n') => self.place = Place::Ended,
            _ => {
                self.place = Place::Name;
                self.name.clear();
                return at;
            }
        }
        changed.keep(at, 1);
        at + 1
    }

    fn note_status(&mut self, run: &[u8]) {
        let class = STATUS_AT.checked_sub(self.first).and_then(|i| run.get(i));
        self.is_interim |= !self.of_requests && class == Some(&b'1');
        self.first += run.len();
    }

    fn is_path(&self) -> bool {
        let is_it = |path: &&str| path.as_bytes().eq_ignore_ascii_case(&self.name);
        PATHS.iter().any(is_it)
    }
}

/// The length of the run that ends before such a byte.
fn until(bytes: &[u8], is_end: impl Fn(u8) -> bool) -> usize {
    let end = bytes.iter().position(|b| is_end(*b));
    end.unwrap_or(bytes.len())
}

/// Not to stand in a request's target.
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

/// Bytes and what becomes of them, copied from the first that changes.
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

    /// Writes the bytes of the run that change by `push`, and keeps the others: what becomes of a
    /// byte does not depend on where its run was cut.
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
