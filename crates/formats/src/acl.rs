//! Access control lists: the header form of containers (`.r:*,.rlistings,account:user`) and the
//! JSON form of accounts (`X-Account-Access-Control`).
//!
//! [`clean_acl`] normalises a list before it is stored, [`Acl::parse`] reads it to decide on a
//! request; both must interpret a list alike.

use cairn_types::json_text::to_ascii;
use serde_json::{Map, Value};
use thiserror::Error;

/// Reasons why a container's ACL is refused; the text is sent to the client.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum AclError {
    #[error("Referrers not allowed in write ACL: {0}")]
    ReferrerInWrite(String),
    #[error("No host/domain value after referrer designation in ACL: {0}")]
    NoHost(String),
    #[error("Unknown designator {0} in ACL: {1}")]
    UnknownDesignator(String, String),
}

/// Normalises a list to its shortest form. `header` is the name of its header; one with "write" in
/// it may not contain referrers.
///
/// # Errors
/// `UnknownDesignator` for an item that begins with a dot and is no referrer, `ReferrerInWrite` for
/// a referrer in a write ACL, `NoHost` for one without host.
pub fn clean_acl(header: &str, value: &str) -> Result<String, AclError> {
    let is_write = header.to_ascii_lowercase().contains("write");
    let mut items = Vec::new();
    for raw in value.split(',').map(str::trim).filter(|i| !i.is_empty()) {
        items.push(clean_item(is_write, raw)?);
    }
    Ok(items.join(","))
}

fn clean_item(is_write: bool, raw: &str) -> Result<String, AclError> {
    let Some((first, second)) = raw.split_once(':') else {
        return Ok(raw.to_owned());
    };
    let (first, mut second) = (first.trim(), second.trim());
    if !first.starts_with('.') {
        return Ok(raw.to_owned());
    }
    if ![".r", ".ref", ".referer", ".referrer"].contains(&first) {
        return Err(AclError::UnknownDesignator(repr(first), repr(raw)));
    }
    if is_write {
        return Err(AclError::ReferrerInWrite(repr(raw)));
    }
    let mut sign = "";
    if let Some(host) = second.strip_prefix('-') {
        sign = "-";
        second = host.trim();
    }
    if let Some(host) = second.strip_prefix('*').filter(|h| !h.is_empty()) {
        second = host.trim();
    }
    if second.is_empty() || second == "." {
        return Err(AclError::NoHost(repr(raw)));
    }
    Ok(format!(".r:{sign}{second}"))
}

/// A text in quotes, in the form of Python's `repr`.
pub fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// A container's ACL, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// Host patterns after `.r:`, in order; a leading `-` denies.
    pub referrers: Vec<String>,
    /// Groups and users, percent-decoded; `.rlistings` is among them.
    pub groups: Vec<String>,
}

impl Acl {
    pub fn parse(list: Option<&str>) -> Acl {
        let mut acl = Acl::default();
        for item in list
            .filter(|l| !l.is_empty())
            .into_iter()
            .flat_map(|l| l.split(','))
        {
            match item.strip_prefix(".r:") {
                Some(host) => acl.referrers.push(host.to_owned()),
                None => acl.groups.push(unquote(item)),
            }
        }
        acl
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Does the list admit a request with this `Referer`? The last matching pattern decides.
    pub fn referrer_allowed(&self, referer: Option<&str>) -> bool {
        if self.referrers.is_empty() {
            return false;
        }
        let host = referer
            .and_then(hostname)
            .unwrap_or_else(|| "unknown".to_owned());
        let matches = |pattern: &str| {
            pattern == host || (pattern.starts_with('.') && host.ends_with(pattern))
        };
        let mut allowed = false;
        for pattern in &self.referrers {
            match pattern.strip_prefix('-') {
                Some(denied) => allowed &= !matches(denied),
                None => allowed |= pattern == "*" || matches(pattern),
            }
        }
        allowed
    }
}

/// The host of a URL in lower case, without user and port; `None` without `//`.
fn hostname(url: &str) -> Option<String> {
    let after_scheme = match url.split_once(':') {
        Some((scheme, rest))
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) =>
        {
            rest
        }
        _ => url,
    };
    let rest = after_scheme.strip_prefix("//")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    let host_port = authority.rsplit_once('@').map_or(authority, |(_, h)| h);
    let host = match host_port.strip_prefix('[') {
        Some(v6) => v6.split_once(']')?.0,
        None => host_port.split(':').next().unwrap_or(""),
    };
    Some(host.to_lowercase()).filter(|h| !h.is_empty())
}

/// Percent-decoding that leaves invalid escapes as they are; bytes that are not UTF-8 become
/// U+FFFD, which no group name contains.
fn unquote(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes
            .get(i + 1..i + 3)
            .filter(|h| h.iter().all(u8::is_ascii_hexdigit));
        match (bytes[i], hex.and_then(|h| std::str::from_utf8(h).ok())) {
            (b'%', Some(hex)) => {
                out.push(u8::from_str_radix(hex, 16).unwrap_or(b'%'));
                i += 3;
            }
            (byte, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// An account's ACL: groups with read, write or admin access to the whole account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountAcl {
    pub admin: Vec<String>,
    pub read_write: Vec<String>,
    pub read_only: Vec<String>,
}

const ACCOUNT_KEYS: [&str; 3] = ["admin", "read-write", "read-only"];

impl AccountAcl {
    /// Parses the stored JSON; `None` if there is none, if it is invalid, or if it names no group.
    pub fn from_sysmeta(stored: Option<&str>) -> Option<AccountAcl> {
        let map = parse_account_acl(stored?)?;
        let members = |key: &str| match map.get(key) {
            Some(Value::Array(all)) => all
                .iter()
                .filter_map(|m| m.as_str().map(str::to_owned))
                .collect(),
            _ => Vec::new(),
        };
        let acl = AccountAcl {
            admin: members("admin"),
            read_write: members("read-write"),
            read_only: members("read-only"),
        };
        (acl != AccountAcl::default()).then_some(acl)
    }
}

/// Parses the JSON form; an empty text is an empty map, and anything but an object is `None`.
pub fn parse_account_acl(text: &str) -> Option<Map<String, Value>> {
    if text.is_empty() {
        return Some(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Some(map),
        _ => None,
    }
}

/// The header form: ASCII, keys sorted, no blanks.
pub fn format_account_acl(map: &Map<String, Value>) -> String {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort();
    let items: Vec<String> = keys
        .iter()
        .map(|key| format!("{}:{}", Value::from(key.as_str()), map[key.as_str()]))
        .collect();
    to_ascii(format!("{{{}}}", items.join(",")))
}

/// Validates a client's `X-Account-Access-Control`.
///
/// # Errors
/// A description for the client.
pub fn check_account_acl(text: &str) -> Result<(), String> {
    let Some(map) = parse_account_acl(text) else {
        return Err(format!("Syntax error in input ({})", repr(text)));
    };
    let shown = |key: &str| to_ascii(Value::from(key).to_string());
    if let Some(unknown) = map.keys().find(|k| !ACCOUNT_KEYS.contains(&k.as_str())) {
        return Err(format!("Key {} not recognized", shown(unknown)));
    }
    for key in ACCOUNT_KEYS {
        match map.get(key) {
            None => {}
            Some(Value::Array(all)) if all.iter().all(Value::is_string) => {}
            Some(Value::Array(_)) => {
                return Err(format!("Elements of {} list must be strings", shown(key)));
            }
            Some(_) => return Err(format!("Value for key {} must be a list", shown(key))),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cleans_as_upstream() {
        for (value, cleaned) in [
            ("bob, sue", "bob,sue"),
            ("bob , sue", "bob,sue"),
            ("bob,,,sue", "bob,sue"),
            (".referrer : *", ".r:*"),
            (".ref:*.example.com", ".r:.example.com"),
            (".r:*, .rlistings", ".r:*,.rlistings"),
            (".r:- *.x.com", ".r:-.x.com"),
            (".r : -  foo", ".r:-foo"),
            ("acc:user , *:*", "acc:user,*:*"),
            ("", ""),
        ] {
            assert_eq!(clean_acl("X-Container-Read", value).unwrap(), cleaned);
        }
        for (value, error) in [
            (
                ".r:",
                "No host/domain value after referrer designation in ACL: '.r:'",
            ),
            (
                ".r:-",
                "No host/domain value after referrer designation in ACL: '.r:-'",
            ),
            (
                ".r: .",
                "No host/domain value after referrer designation in ACL: '.r: .'",
            ),
            (
                "a:b, .r:*.",
                "No host/domain value after referrer designation in ACL: '.r:*.'",
            ),
            (".x:y", "Unknown designator '.x' in ACL: '.x:y'"),
        ] {
            assert_eq!(
                clean_acl("X-Container-Read", value)
                    .unwrap_err()
                    .to_string(),
                error
            );
        }
        assert_eq!(
            clean_acl("X-Container-Write", ".r:*")
                .unwrap_err()
                .to_string(),
            "Referrers not allowed in write ACL: '.r:*'"
        );
    }

    #[test]
    fn referrers_as_upstream() {
        for (referer, list, allowed) in [
            (
                Some("http://www.example.com/index.html"),
                ".r:.example.com",
                true,
            ),
            (
                Some("http://user@www.example.com:80/i"),
                ".r:.example.com",
                true,
            ),
            (
                Some("http://www.example.com"),
                ".r:.example.com,.r:-www.example.com",
                false,
            ),
            (Some("http://Example.COM/"), ".r:example.com", true),
            (Some("example.com/x"), ".r:example.com", false),
            (Some("//example.com/x"), ".r:example.com", true),
            (Some("http://[::1]:80/"), ".r:::1", true),
            (Some(""), ".r:*", true),
            (None, ".r:unknown", true),
            (None, "a:b", false),
            (None, "", false),
        ] {
            let acl = Acl::parse(Some(list));
            assert_eq!(acl.referrer_allowed(referer), allowed, "{referer:?} {list}");
        }
        assert_eq!(
            Acl::parse(Some("a%3Ab,.rlistings")).groups,
            ["a:b", ".rlistings"]
        );
        assert_eq!(
            Acl::parse(Some("100%,%zz,%ff")).groups,
            ["100%", "%zz", "\u{fffd}"]
        );
    }

    #[test]
    fn account_lists() {
        let stored = r#"{"admin":["a"],"read-only":["é"],"read-write":7}"#;
        let acl = AccountAcl::from_sysmeta(Some(stored)).unwrap();
        assert_eq!(
            (acl.admin, acl.read_only),
            (vec!["a".to_owned()], vec!["é".to_owned()])
        );
        for nothing in [
            None,
            Some(""),
            Some("{}"),
            Some("[]"),
            Some("x"),
            Some(r#"{"admin":[]}"#),
        ] {
            assert_eq!(AccountAcl::from_sysmeta(nothing), None);
        }
        for (text, error) in [
            ("", None),
            (r#"{"admin":["a","b"]}"#, None),
            ("[]", Some("Syntax error in input ('[]')")),
            (r#"{"other":[]}"#, Some(r#"Key "other" not recognized"#)),
            (
                r#"{"admin":"a"}"#,
                Some(r#"Value for key "admin" must be a list"#),
            ),
            (
                r#"{"admin":[1]}"#,
                Some(r#"Elements of "admin" list must be strings"#),
            ),
        ] {
            assert_eq!(check_account_acl(text).err().as_deref(), error, "{text}");
        }
        let map = parse_account_acl(r#"{"read-write":["é"],"admin":["a", "b"]}"#).unwrap();
        assert_eq!(
            format_account_acl(&map),
            r#"{"admin":["a","b"],"read-write":["\u00e9"]}"#
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_gets_an_answer(text: String, referer: String) {
            if let Ok(cleaned) = clean_acl("X-Container-Read", &text) {
                let again = clean_acl("X-Container-Read", &cleaned);
                assert!(again.is_ok(), "{cleaned}");
            }
            Acl::parse(Some(&text)).referrer_allowed(Some(&referer));
            let _ = check_account_acl(&text);
            AccountAcl::from_sysmeta(Some(&text));
        }
    }
}
