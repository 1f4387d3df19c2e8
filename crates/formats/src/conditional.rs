//! Conditional requests: `If-Match`, `If-None-Match`, `If-Modified-Since`, `If-Unmodified-Since`,
//! evaluated in Swift's order.

use std::time::UNIX_EPOCH;

use cairn_types::calendar;

/// The tags of an `If-[None-]Match` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityTags<'a>(&'a str);

impl<'a> EntityTags<'a> {
    pub fn parse(header: &'a str) -> Self {
        EntityTags(header)
    }

    /// Is the list `*`, or does it contain this tag? Quotes are ignored.
    pub fn contains(&self, etag: &str) -> bool {
        self.has_any() || self.tags().any(|tag| tag == normalize_etag(etag))
    }

    /// Does the list contain `*`?
    pub fn has_any(&self) -> bool {
        self.tags().any(|tag| tag == "*")
    }

    /// All tags, without quotes.
    pub fn tags(&self) -> impl Iterator<Item = &'a str> {
        let tags = self.0.split(',').map(str::trim);
        tags.filter(|tag| !tag.is_empty()).map(normalize_etag)
    }
}

/// An ETag without its quotes.
pub fn normalize_etag(etag: &str) -> &str {
    etag.strip_prefix('"')
        .and_then(|inner| inner.strip_suffix('"'))
        .unwrap_or(etag)
}

/// The conditions of a request; a missing header is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions<'a> {
    pub if_match: Option<&'a str>,
    pub if_none_match: Option<&'a str>,
    pub if_modified_since: Option<&'a str>,
    pub if_unmodified_since: Option<&'a str>,
}

/// The outcome of evaluating the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Proceed,
    /// 304.
    NotModified,
    /// 412.
    PreconditionFailed,
}

impl Conditions<'_> {
    pub fn is_empty(&self) -> bool {
        *self == Conditions::default()
    }

    /// Evaluates the conditions for existing content with this ETag, last modified at that second
    /// since the epoch.
    pub fn check(&self, etag: Option<&str>, last_modified: Option<u64>) -> Verdict {
        let matches = |header: Option<&str>| {
            let tags = EntityTags::parse(header?);
            etag.map(|etag| tags.contains(etag))
        };
        if matches(self.if_none_match) == Some(true) {
            return Verdict::NotModified;
        }
        if matches(self.if_match) == Some(false) {
            return Verdict::PreconditionFailed;
        }
        let since = |header: Option<&str>| last_modified.zip(header.and_then(parse_date));
        if since(self.if_modified_since).is_some_and(|(modified, since)| modified <= since) {
            return Verdict::NotModified;
        }
        if since(self.if_unmodified_since).is_some_and(|(modified, since)| modified > since) {
            return Verdict::PreconditionFailed;
        }
        Verdict::Proceed
    }

    /// Evaluates the conditions for content that does not exist: only `If-Match: *` can fail.
    pub fn check_missing(&self) -> Verdict {
        match self.if_match.map(EntityTags::parse) {
            Some(tags) if tags.has_any() => Verdict::PreconditionFailed,
            _ => Verdict::Proceed,
        }
    }
}

/// Parses an HTTP date into seconds since the epoch; `None` if it is invalid, and the condition
/// then has no effect. As upstream, the day of the week and the time zone are not checked.
pub fn parse_date(text: &str) -> Option<u64> {
    if let Ok(time) = httpdate::parse_http_date(text.trim()) {
        return time.duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs());
    }
    let (_, rest) = text.split_once(',').unwrap_or(("", text));
    let mut words = rest.split_ascii_whitespace();
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?.get(..3)?.to_ascii_lowercase();
    let month = MONTHS.iter().position(|m| *m == month)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':').map(|t| t.parse::<u64>().ok());
    let (hour, minute) = (clock.next()??, clock.next()??);
    let second = clock.next().unwrap_or(Some(0))?;
    let is_date = (1970..10_000).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    is_date.then(|| ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Parses `2026-01-02T03:04:05.000000Z` into seconds since the epoch; fractions are dropped.
pub fn parse_iso_date(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|n| n.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let whole = time.split('.').next()?;
    let mut clock = whole.split(':').map(|n| n.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let is_date = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    is_date.then(|| ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];

/// Days from 1970-01-01 to a date in 1970 or later.
fn days(year: u64, month: u64, day: u64) -> u64 {
    calendar::days_of(year as i64, month as i64, day as i64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_dates() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00.000000Z", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2023-11-14T22:13:20.999999Z", 1_700_000_000),
            ("2099-12-31T23:59:59.000000Z", 4_102_444_799),
        ] {
            assert_eq!(parse_iso_date(text), Some(seconds));
        }
        for text in [
            "",
            "2023-11-14",
            "2023-13-01T00:00:00Z",
            "x-y-zT1:2:3Z",
            "2023-11-14T22Z",
        ] {
            assert_eq!(parse_iso_date(text), None, "{text}");
        }
    }

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn tags() {
        let tags = EntityTags::parse("\"a\", b ,, W/\"c\"");
        assert!(tags.contains("a") && tags.contains("\"a\"") && tags.contains("b"));
        assert!(!tags.contains("c") && !tags.contains(""));
        assert!(EntityTags::parse("x, *").contains("anything"));
        assert!(!EntityTags::parse("").contains(""));
    }

    #[test]
    fn dates() {
        for lenient in [
            DATE,
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "06 Nov 1994 08:49:37",
            "Sun, 6 november 1994 08:49:37 +0200",
        ] {
            assert_eq!(parse_date(lenient), Some(784_111_777), "{lenient}");
        }
        assert_eq!(parse_date("Sat, 01 Jan 1970 00:00:00 X"), Some(0));
        assert_eq!(parse_date("1 Mar 2000 00:00:00"), Some(951_868_800));
        for wrong in [
            "",
            "x",
            "Sun, 06 Nov",
            "99 Nov 1994 08:49:37",
            "1 Jan 1 1:1:1",
        ] {
            assert_eq!(parse_date(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn verdicts() {
        let none = Conditions::default();
        type Case<'a> = (Conditions<'a>, u64, Verdict);
        let cases: [Case; 9] = [
            (none, 5, Verdict::Proceed),
            (
                Conditions {
                    if_none_match: Some("e"),
                    ..none
                },
                5,
                Verdict::NotModified,
            ),
            (
                Conditions {
                    if_none_match: Some("*"),
                    ..none
                },
                5,
                Verdict::NotModified,
            ),
            (
                Conditions {
                    if_match: Some("\"e\""),
                    ..none
                },
                5,
                Verdict::Proceed,
            ),
            (
                Conditions {
                    if_match: Some("f"),
                    ..none
                },
                5,
                Verdict::PreconditionFailed,
            ),
            (
                Conditions {
                    if_modified_since: Some(DATE),
                    ..none
                },
                784_111_777,
                Verdict::NotModified,
            ),
            (
                Conditions {
                    if_modified_since: Some(DATE),
                    ..none
                },
                784_111_778,
                Verdict::Proceed,
            ),
            (
                Conditions {
                    if_unmodified_since: Some(DATE),
                    ..none
                },
                784_111_778,
                Verdict::PreconditionFailed,
            ),
            (
                Conditions {
                    if_unmodified_since: Some("junk"),
                    ..none
                },
                784_111_778,
                Verdict::Proceed,
            ),
        ];
        for (conditions, modified, verdict) in cases {
            assert_eq!(
                conditions.check(Some("e"), Some(modified)),
                verdict,
                "{conditions:?}"
            );
        }
        let any = Conditions {
            if_match: Some("*"),
            ..none
        };
        assert_eq!(any.check_missing(), Verdict::PreconditionFailed);
        assert_eq!(none.check_missing(), Verdict::Proceed);
        assert_eq!(any.check(None, None), Verdict::Proceed);
    }
}
