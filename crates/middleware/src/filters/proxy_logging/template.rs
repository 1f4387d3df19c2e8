//! Parser of `log_msg_template`: fields in braces, each with an optional format
//! (`{path.anonymized}`, `{end_time.iso8601}`). Values are percent-encoded, so that a line can be
//! split at blanks; an empty or zero value is `-`.

use std::fmt::Write;

use cairn_types::{Timestamp, hex};
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

use super::moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    ClientIp,
    RemoteAddr,
    Domain,
    Path,
    Referer,
    UserAgent,
    Headers,
    ClientEtag,
    Account,
    Container,
    Object,
    Method,
    Protocol,
    StatusInt,
    AuthToken,
    BytesRecvd,
    BytesSent,
    TransactionId,
    RequestTime,
    Source,
    LogInfo,
    PolicyIndex,
    Ttfb,
    Pid,
    WireStatusInt,
    AccessUserId,
    StartTime,
    EndTime,
}

const FIELDS: [(&str, Field); 28] = [
    ("client_ip", Field::ClientIp),
    ("remote_addr", Field::RemoteAddr),
    ("domain", Field::Domain),
    ("path", Field::Path),
    ("referer", Field::Referer),
    ("user_agent", Field::UserAgent),
    ("headers", Field::Headers),
    ("client_etag", Field::ClientEtag),
    ("account", Field::Account),
    ("container", Field::Container),
    ("object", Field::Object),
    ("method", Field::Method),
    ("protocol", Field::Protocol),
    ("status_int", Field::StatusInt),
    ("auth_token", Field::AuthToken),
    ("bytes_recvd", Field::BytesRecvd),
    ("bytes_sent", Field::BytesSent),
    ("transaction_id", Field::TransactionId),
    ("request_time", Field::RequestTime),
    ("source", Field::Source),
    ("log_info", Field::LogInfo),
    ("policy_index", Field::PolicyIndex),
    ("ttfb", Field::Ttfb),
    ("pid", Field::Pid),
    ("wire_status_int", Field::WireStatusInt),
    ("access_user_id", Field::AccessUserId),
    ("start_time", Field::StartTime),
    ("end_time", Field::EndTime),
];

/// Fields with personal data, which can be logged as a hash.
const PERSONAL: [Field; 12] = [
    Field::ClientIp,
    Field::RemoteAddr,
    Field::Domain,
    Field::Path,
    Field::Referer,
    Field::UserAgent,
    Field::Headers,
    Field::ClientEtag,
    Field::Account,
    Field::Container,
    Field::Object,
    Field::AccessUserId,
];

const TIME_FORMS: [&str; 28] = [
    "asctime", "datetime", "iso8601", "ms", "us", "ns", "s", "a", "A", "b", "B", "c", "d", "H",
    "I", "j", "m", "M", "p", "S", "U", "w", "W", "x", "X", "y", "Y", "Z",
];

enum Piece {
    Text(String),
    Plain(Field),
    Anonymized(Field),
    Time(Field, Option<&'static str>),
}

pub(super) struct Template(Vec<Piece>);

/// Source of a line's values.
pub(super) trait Values {
    /// Writes the field's value; nothing if there is none.
    fn write(&self, field: Field, to: &mut Encoder<'_>);
    fn time(&self, field: Field) -> Timestamp;
}

/// Appends percent-encoded values to a line.
pub(super) struct Encoder<'l> {
    line: &'l mut String,
    /// Values are not encoded, since their hash will be logged.
    raw: bool,
}

impl<'l> Encoder<'l> {
    fn of(line: &'l mut String) -> Self {
        Encoder { line, raw: false }
    }

    pub(super) fn raw(line: &'l mut String) -> Self {
        Encoder { line, raw: true }
    }

    pub(super) fn text(&mut self, text: &str) {
        if self.raw {
            self.line.push_str(text);
            return;
        }
        let mut from = 0;
        for (at, byte) in text.bytes().enumerate() {
            if PLAIN[usize::from(byte)] {
                continue;
            }
            // Both ends are character boundaries: all bytes between them are ASCII.
            if from < at {
                self.line.push_str(&text[from..at]);
            }
            from = at + 1;
            self.line.push('%');
            for digit in [byte >> 4, byte & 15] {
                self.line.push(char::from(HEX[usize::from(digit)]));
            }
        }
        if from < text.len() {
            self.line.push_str(&text[from..]);
        }
    }

    pub(super) fn number(&mut self, number: impl Into<u64>) {
        self.padded(number, 1);
    }

    /// Writes a number with at least `digits` digits. Every line has a dozen of them, so this
    /// avoids the generic formatting machinery.
    pub(super) fn padded(&mut self, number: impl Into<u64>, digits: usize) {
        let mut text = [b'0'; 20];
        let (mut rest, mut at) = (number.into(), text.len());
        while rest > 0 {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let from = at.min(text.len() - digits.min(text.len()));
        // Digits need no encoding, and are UTF-8.
        self.line
            .push_str(std::str::from_utf8(&text[from..]).unwrap_or_default());
    }
}

impl Write for Encoder<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.text(text);
        Ok(())
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Bytes that need no encoding.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let b = byte as u8;
        plain[byte] = b.is_ascii_alphanumeric()
            || matches!(b, b'_' | b'.' | b'-' | b'~' | b':' | b'/' | b'{' | b'}');
        byte += 1;
    }
    plain
};

impl Template {
    pub(super) fn parse(text: &str) -> Result<Template, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..];
            if brace.starts_with("{{") || brace.starts_with("}}") {
                literal.push_str(&brace[..1]);
                rest = &brace[2..];
                continue;
            }
            let word = brace
                .strip_prefix('{')
                .and_then(|b| b.split_once('}'))
                .ok_or("a brace without its other")?;
            pieces.push(Piece::Text(std::mem::take(&mut literal)));
            pieces.push(piece(word.0)?);
            rest = word.1;
        }
        literal.push_str(rest);
        pieces.push(Piece::Text(literal));
        Ok(Template(pieces))
    }

    pub(super) fn uses(&self, field: Field) -> bool {
        self.0.iter().any(|p| match p {
            Piece::Text(_) => false,
            Piece::Plain(f) | Piece::Anonymized(f) | Piece::Time(f, _) => *f == field,
        })
    }

    pub(super) fn render(&self, values: &dyn Values, anonymize: &Anonymize) -> String {
        let mut line = String::with_capacity(512);
        for piece in &self.0 {
            let before = line.len();
            match piece {
                Piece::Text(text) => {
                    line.push_str(text);
                    continue;
                }
                Piece::Plain(field) => values.write(*field, &mut Encoder::of(&mut line)),
                Piece::Anonymized(field) => {
                    let mut value = String::new();
                    values.write(*field, &mut Encoder::raw(&mut value));
                    if !value.is_empty() {
                        Encoder::of(&mut line).text(&anonymize.apply(&value));
                    }
                }
                Piece::Time(field, form) => {
                    moment::write(values.time(*field), *form, &mut Encoder::of(&mut line));
                }
            }
            if line.len() == before {
                line.push('-');
            }
        }
        line
    }
}

fn piece(word: &str) -> Result<Piece, String> {
    let (name, form) = match word.split_once('.') {
        Some((name, form)) => (name, Some(form)),
        None => (word, None),
    };
    let field = FIELDS
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, f)| *f)
        .ok_or_else(|| format!("there is no field {{{name}}}"))?;
    let is_time = matches!(field, Field::StartTime | Field::EndTime);
    match form {
        None if is_time => Ok(Piece::Time(field, None)),
        None => Ok(Piece::Plain(field)),
        Some(form) if is_time => match TIME_FORMS.iter().find(|f| **f == form) {
            Some(form) => Ok(Piece::Time(field, Some(form))),
            None => Err(format!("there is no form of a time named {form:?}")),
        },
        Some("anonymized") if PERSONAL.contains(&field) => Ok(Piece::Anonymized(field)),
        Some(form) => Err(format!("the field {{{name}}} has no form {form:?}")),
    }
}

/// Hashing of personal values: `{MD5}…`, with a salt `{SMD5}…`.
pub(super) struct Anonymize {
    method: String,
    salt: String,
    hash: fn(&[&[u8]]) -> String,
}

impl Anonymize {
    pub(super) fn new(method: &str, salt: &str) -> Option<Anonymize> {
        let hash: fn(&[&[u8]]) -> String = match method.to_ascii_lowercase().as_str() {
            "md5" => hex_hash::<Md5>,
            "sha1" => hex_hash::<Sha1>,
            "sha224" => hex_hash::<Sha224>,
            "sha256" => hex_hash::<Sha256>,
            "sha384" => hex_hash::<Sha384>,
            "sha512" => hex_hash::<Sha512>,
            _ => return None,
        };
        Some(Anonymize {
            method: method.to_ascii_uppercase(),
            salt: salt.to_owned(),
            hash,
        })
    }

    fn apply(&self, value: &str) -> String {
        let salted = if self.salt.is_empty() { "" } else { "S" };
        let hash = (self.hash)(&[self.salt.as_bytes(), value.as_bytes()]);
        format!("{{{salted}{}}}{hash}", self.method)
    }
}

fn hex_hash<D: Digest>(parts: &[&[u8]]) -> String {
    let mut digest = D::new();
    for part in parts {
        digest.update(part);
    }
    hex::encode(digest.finalize())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Fixed;
    impl Values for Fixed {
        fn write(&self, field: Field, to: &mut Encoder<'_>) {
            match field {
                Field::Path => to.text("/v1/a b/é?x=1"),
                Field::Source => to.text(""),
                _ => {}
            }
        }
        fn time(&self, _: Field) -> Timestamp {
            Timestamp::from_ticks(170_981_045_612_345)
        }
    }

    fn render(template: &str) -> String {
        let anonymize = Anonymize::new("SHA256", "salt").unwrap();
        Template::parse(template)
            .unwrap()
            .render(&Fixed, &anonymize)
    }

    // The expected values are Python's strftime for 2024-03-07 11:20:56 UTC, a Thursday.
    #[test]
    fn times() {
        assert_eq!(
            render("{end_time} {end_time.datetime}"),
            "1709810456.123450000 07/Mar/2024/11/20/56"
        );
        assert_eq!(
            render("{start_time.iso8601}|{end_time.asctime}"),
            "2024-03-07T11:20:56|Thu%20Mar%20%207%2011:20:56%202024"
        );
        assert_eq!(
            render("{end_time.ms} {end_time.us} {end_time.ns} {end_time.s}"),
            "123 123450 123450000 1709810456"
        );
        assert_eq!(
            render(
                "{end_time.a} {end_time.A} {end_time.b} {end_time.B} {end_time.d} {end_time.H} \
                    {end_time.I} {end_time.j} {end_time.m} {end_time.M} {end_time.p} {end_time.S} \
                    {end_time.U} {end_time.w} {end_time.W} {end_time.x} {end_time.X} {end_time.y} \
                    {end_time.Y} {end_time.Z}"
            ),
            "Thu Thursday Mar March 07 11 11 067 03 20 AM 56 09 4 10 03/07/24 11:20:56 24 2024 UTC"
        );
    }

    #[test]
    fn values_are_quoted_or_a_dash() {
        assert_eq!(
            render("{{{path}}} {source} {method}"),
            "{/v1/a%20b/%C3%A9%3Fx%3D1} - -"
        );
        assert!(render("{path.anonymized}").starts_with("{SSHA256}"));
        assert_eq!(render("{referer.anonymized}"), "-");
    }

    #[test]
    fn mistakes_are_named() {
        for bad in [
            "{nonsense}",
            "{path",
            "path}",
            "{method.anonymized}",
            "{end_time.Q}",
            "{}",
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
        assert!(Anonymize::new("rot13", "").is_none());
    }
}
