//! `log_msg_template`: words in braces, each with an optional form (`{path.anonymized}`,
//! `{end_time.iso8601}`). A value is percent-encoded, so that a line splits at blanks; what is
//! empty or zero is `-`.

use std::fmt::Write;

use cairn_types::Timestamp;
use cairn_types::timestamp::TICKS_PER_SECOND;
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

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

/// Fields that tell about a person, and may be logged as a hash.
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

/// Where a line's values come from.
pub(super) trait Values {
    fn value(&self, field: Field) -> Option<String>;
    fn time(&self, field: Field) -> Timestamp;
}

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
        let mut out = String::with_capacity(384);
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Plain(field) => push(&mut out, values.value(*field)),
                Piece::Anonymized(field) => {
                    let value = values.value(*field).filter(|v| !v.is_empty());
                    push(&mut out, value.map(|v| anonymize.apply(&v)));
                }
                Piece::Time(field, form) => {
                    push(&mut out, Some(time_text(values.time(*field), *form)));
                }
            }
        }
        out
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

fn push(out: &mut String, value: Option<String>) {
    let Some(value) = value.filter(|v| !v.is_empty()) else {
        out.push('-');
        return;
    };
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~:/{}".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// How personal values become hashes: `{MD5}…`, with a salt `{SMD5}…`.
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
    digest
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment in UTC, in the forms of `strftime` and Swift's own.
fn time_text(time: Timestamp, form: Option<&str>) -> String {
    let seconds = time.secs();
    let nanos = time.ticks() % TICKS_PER_SECOND * 10_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let (year, month, day, of_year) = civil(days);
    let weekday = (days + 4) % 7;
    let (day_name, month_name) = (DAYS[weekday as usize], MONTHS[month as usize - 1]);
    let clock = format!("{hour:02}:{minute:02}:{second:02}");
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    match form {
        None => format!("{seconds}.{nanos:09}"),
        Some("datetime") => {
            format!(
                "{day:02}/{}/{year}/{hour:02}/{minute:02}/{second:02}",
                &month_name[..3]
            )
        }
        Some("iso8601") => format!("{year}-{month:02}-{day:02}T{clock}"),
        Some("asctime" | "c") => {
            format!(
                "{} {} {day:2} {clock} {year}",
                &day_name[..3],
                &month_name[..3]
            )
        }
        Some("ms") => format!("{:03}", nanos / 1_000_000),
        Some("us") => format!("{:06}", nanos / 1_000),
        Some("ns") => format!("{nanos:09}"),
        Some("s") => seconds.to_string(),
        Some("a") => day_name[..3].to_owned(),
        Some("A") => day_name.to_owned(),
        Some("b") => month_name[..3].to_owned(),
        Some("B") => month_name.to_owned(),
        Some("d") => format!("{day:02}"),
        Some("H") => format!("{hour:02}"),
        Some("I") => format!("{hour12:02}"),
        Some("j") => format!("{of_year:03}"),
        Some("m") => format!("{month:02}"),
        Some("M") => format!("{minute:02}"),
        Some("p") => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
        Some("S") => format!("{second:02}"),
        Some("U") => format!("{:02}", (of_year + 6 - weekday) / 7),
        Some("w") => weekday.to_string(),
        Some("W") => format!("{:02}", (of_year + 6 - (weekday + 6) % 7) / 7),
        Some("x") => format!("{month:02}/{day:02}/{:02}", year % 100),
        Some("X") => clock,
        Some("y") => format!("{:02}", year % 100),
        Some("Y") => year.to_string(),
        Some(_) => "UTC".to_owned(),
    }
}

/// Year, month, day and day of the year (from 1) of a day since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64, u64) {
    let is_leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    // Eras of 400 years have 146,097 days.
    let mut year = 1970 + days / 146_097 * 400;
    let mut left = days % 146_097;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let of_year = left + 1;
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1, of_year)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Fixed;
    impl Values for Fixed {
        fn value(&self, field: Field) -> Option<String> {
            match field {
                Field::Path => Some("/v1/a b/é?x=1".into()),
                Field::Source => Some(String::new()),
                _ => None,
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

    // As Python's strftime has them, for 2024-03-07 11:20:56 UTC, a Thursday.
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
        assert_eq!(civil(0), (1970, 1, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29, 60));
        assert_eq!(civil(47_541), (2100, 3, 1, 60));
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
