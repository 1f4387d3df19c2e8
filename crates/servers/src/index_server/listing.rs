//! Serialisation of listings: plain names, JSON or XML, page by page.
//!
//! A listing of one page is sent with its length; a longer one is streamed, each page read after
//! the previous one was consumed, so that ten thousand rows are never in memory at once. The bytes
//! equal those of Python's `json.dumps` and `ElementTree`, on which Swift's proxies and clients
//! rely.

use std::future::Future;

use bytes::Bytes;
use cairn_http::params::{NotUtf8, Params};
use cairn_http::{Body, BodyError};
use cairn_index::content_type::extract_swift_bytes;
use cairn_index::{
    ContainerEntry, IndexError, ListCursor, ListEntry, ListPage, ListQuery, ObjectEntry,
};
use cairn_types::json_text::push_string;
use cairn_types::{PolicyIndex, PolicySet};
use futures_util::stream;
use http::{HeaderMap, header};

use super::status::Refused;
use super::text;

/// Rows per page, which is one chunk of the body.
pub(crate) const PAGE_ROWS: usize = 1000;

/// Format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Plain,
    Json,
    Xml,
    TextXml,
}

impl Format {
    const ALL: [Format; 4] = [Format::Plain, Format::Json, Format::Xml, Format::TextXml];

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::Plain => "text/plain",
            Format::Json => "application/json",
            Format::Xml => "application/xml",
            Format::TextXml => "text/xml",
        }
    }

    /// Selected by `format=`, else by the `Accept` header.
    pub(crate) fn of(params: &Params, headers: &HeaderMap) -> Result<Format, Refused> {
        match params.get("format").filter(|format| !format.is_empty()) {
            Some(format) if format.eq_ignore_ascii_case("json") => Ok(Format::Json),
            Some(format) if format.eq_ignore_ascii_case("xml") => Ok(Format::Xml),
            Some(_) => Ok(Format::Plain),
            None => match headers.get(header::ACCEPT) {
                Some(_) => best_match(text(headers, "accept").unwrap_or("?")),
                None => Ok(Format::Plain),
            },
        }
    }
}

/// The first format that matches the best accepted type.
fn best_match(accept: &str) -> Result<Format, Refused> {
    if accept.is_empty() {
        return Ok(Format::Plain);
    }
    let invalid = || Refused::BadRequest("Invalid Accept header".into());
    let mut types = Vec::new();
    for accepted in accept.split(',') {
        types.push(accepted_type(accepted).ok_or_else(invalid)?);
    }
    // Exact types precede wildcards of the same quality; the sort is stable.
    types.sort_by(|a, b| {
        let exact = |(main, sub, _): &(&str, &str, f64)| *main != "*" && *sub != "*";
        b.2.total_cmp(&a.2).then(exact(b).cmp(&exact(a)))
    });
    let takes = |pattern: &str, part: &str| pattern == "*" || pattern == part;
    types
        .iter()
        .find_map(|(main, sub, _)| {
            Format::ALL.into_iter().find(|format| {
                let (format_main, format_sub) =
                    format.content_type().split_once('/').unwrap_or_default();
                takes(main, format_main) && takes(sub, format_sub)
            })
        })
        .ok_or(Refused::NotAcceptable)
}

/// Type, subtype and quality; none if malformed.
fn accepted_type(text: &str) -> Option<(&str, &str, f64)> {
    let is_token = |text: &str| {
        let ok = |c: char| !"()<>@,;:\"/[]?={}\u{7f}".contains(c) && c > ' ';
        !text.is_empty() && text.chars().all(ok)
    };
    let mut parts = text.split(';');
    let (main, sub) = parts.next()?.trim().split_once('/')?;
    if !is_token(main) || !is_token(sub) {
        return None;
    }
    let mut quality = None;
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        let quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
        if !is_token(name) || !(is_token(value) || quoted) {
            return None;
        }
        if name == "q" && quality.replace(value.parse::<f64>().ok()?).is_some() {
            return None;
        }
    }
    Some((main, sub, quality.unwrap_or(1.0)))
}

pub(crate) fn params(query: Option<&str>) -> Result<Params, Refused> {
    Params::parse(query)
        .map_err(|NotUtf8| Refused::BadRequest("query parameter not valid UTF-8".into()))
}

/// The query of a listing, without its policy.
pub(crate) fn list_query(
    params: &Params,
    headers: &HeaderMap,
    limit_max: usize,
) -> Result<ListQuery, Refused> {
    let text = |name: &str| params.get(name).unwrap_or("").to_owned();
    let given = params
        .get("limit")
        .filter(|limit| !limit.is_empty() && limit.bytes().all(|byte| byte.is_ascii_digit()));
    let limit = match given.map(str::parse::<usize>) {
        None => limit_max,
        Some(Ok(limit)) if limit <= limit_max => limit,
        Some(_) => return Err(Refused::LimitTooHigh { max: limit_max }),
    };
    Ok(ListQuery {
        limit,
        marker: text("marker"),
        end_marker: text("end_marker"),
        prefix: text("prefix"),
        delimiter: text("delimiter"),
        path: params.get("path").map(str::to_owned),
        reverse: params
            .get("reverse")
            .is_some_and(cairn_http::params::is_true),
        allow_reserved: super::is_yes(headers, "x-backend-allow-reserved-names"),
        storage_policy_index: 0,
    })
}

/// Serialisation of one kind of row.
pub(crate) trait Rows<R>: Send + 'static {
    /// The XML document's root element, and its `name`.
    fn root(&self) -> (&'static str, &str);
    fn name<'r>(&self, row: &'r R) -> &'r str;
    /// A JSON object.
    fn json(&self, out: &mut Vec<u8>, row: &R);
    /// An XML element.
    fn xml(&self, out: &mut Vec<u8>, row: &R);
    fn subdir_xml(&self, out: &mut Vec<u8>, name: &str);
    /// White space after the root's start tag and after each element.
    fn xml_space(&self) -> &'static [u8];
}

/// Body of all pages; none if the listing is empty (204).
pub(crate) fn body<R, W, F, Fut>(
    format: Format,
    rows: W,
    first: ListPage<R>,
    fetch: F,
) -> Option<Body>
where
    R: Send + 'static,
    W: Rows<R>,
    F: Fn(ListCursor) -> Fut + Send + 'static,
    Fut: Future<Output = Result<ListPage<R>, IndexError>> + Send + 'static,
{
    let mut writer = Writer {
        format,
        rows,
        entries: 0,
    };
    let mut chunk = Vec::with_capacity(256 + 192 * first.entries.len());
    writer.start(&mut chunk);
    writer.entries(&mut chunk, &first.entries);
    let Some(next) = first.next else {
        writer.end(&mut chunk);
        return (!chunk.is_empty()).then(|| Body::full(chunk));
    };
    let state = (Some(chunk), Some(next), writer, fetch);
    let stream = stream::unfold(state, |(chunk, next, mut writer, fetch)| async move {
        if let Some(chunk) = chunk {
            return Some((Ok(Bytes::from(chunk)), (None, next, writer, fetch)));
        }
        match fetch(next?).await {
            Ok(page) => {
                let mut chunk = Vec::with_capacity(64 + 192 * page.entries.len());
                writer.entries(&mut chunk, &page.entries);
                if page.next.is_none() {
                    writer.end(&mut chunk);
                }
                Some((Ok(Bytes::from(chunk)), (None, page.next, writer, fetch)))
            }
            Err(error) => {
                // The head was sent: breaking off the body is the only way to report it.
                tracing::error!(%error, "a listing broke off");
                let error = BodyError::Source(error.to_string());
                Some((Err(error), (None, None, writer, fetch)))
            }
        }
    });
    Some(Body::from_stream(stream, None))
}

struct Writer<W> {
    format: Format,
    rows: W,
    entries: usize,
}

impl<W> Writer<W> {
    fn start<R>(&self, out: &mut Vec<u8>)
    where
        W: Rows<R>,
    {
        match self.format {
            Format::Plain => {}
            Format::Json => out.push(b'['),
            Format::Xml | Format::TextXml => {
                let (element, name) = self.rows.root();
                out.extend_from_slice(b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<");
                out.extend_from_slice(element.as_bytes());
                push_attribute(out, "name", name);
            }
        }
    }

    fn entries<R>(&mut self, out: &mut Vec<u8>, entries: &[ListEntry<R>])
    where
        W: Rows<R>,
    {
        for entry in entries {
            match self.format {
                Format::Plain => {
                    let name = match entry {
                        ListEntry::Row(row) => self.rows.name(row),
                        ListEntry::Subdir(name) => name,
                    };
                    out.extend_from_slice(name.as_bytes());
                    out.push(b'\n');
                }
                Format::Json => {
                    if self.entries > 0 {
                        out.extend_from_slice(b", ");
                    }
                    match entry {
                        ListEntry::Row(row) => self.rows.json(out, row),
                        ListEntry::Subdir(name) => {
                            out.extend_from_slice(b"{\"subdir\": ");
                            push_string(out, name);
                            out.push(b'}');
                        }
                    }
                }
                Format::Xml | Format::TextXml => {
                    if self.entries == 0 {
                        out.push(b'>');
                        out.extend_from_slice(self.rows.xml_space());
                    }
                    match entry {
                        ListEntry::Row(row) => self.rows.xml(out, row),
                        ListEntry::Subdir(name) => self.rows.subdir_xml(out, name),
                    }
                    out.extend_from_slice(self.rows.xml_space());
                }
            }
            self.entries += 1;
        }
    }

    fn end<R>(&self, out: &mut Vec<u8>)
    where
        W: Rows<R>,
    {
        match self.format {
            Format::Plain => {}
            Format::Json => out.push(b']'),
            Format::Xml | Format::TextXml => {
                let space = self.rows.xml_space();
                if self.entries == 0 && space.is_empty() {
                    out.extend_from_slice(b" />");
                    return;
                }
                if self.entries == 0 {
                    out.push(b'>');
                    out.extend_from_slice(space);
                }
                out.extend_from_slice(b"</");
                out.extend_from_slice(self.rows.root().0.as_bytes());
                out.push(b'>');
            }
        }
    }
}

/// Serialisation of a container's objects.
pub(crate) struct Objects {
    pub(crate) container: String,
}

/// Size and content type shown to clients: a manifest has the size of its segments.
fn shown(row: &ObjectEntry) -> (i64, String) {
    let (content_type, swift_bytes) = extract_swift_bytes(&row.content_type);
    let size = swift_bytes.and_then(|bytes| bytes.parse().ok());
    (size.unwrap_or(row.size), content_type)
}

impl Rows<ObjectEntry> for Objects {
    fn root(&self) -> (&'static str, &str) {
        ("container", &self.container)
    }

    fn name<'r>(&self, row: &'r ObjectEntry) -> &'r str {
        &row.name
    }

    fn json(&self, out: &mut Vec<u8>, row: &ObjectEntry) {
        let (size, content_type) = shown(row);
        out.extend_from_slice(b"{\"bytes\": ");
        push_number(out, size);
        push_member(out, "hash", &row.etag);
        push_member(out, "name", &row.name);
        push_member(out, "content_type", &content_type);
        push_member(out, "last_modified", &row.modified.isoformat());
        out.push(b'}');
    }

    fn xml(&self, out: &mut Vec<u8>, row: &ObjectEntry) {
        let (size, content_type) = shown(row);
        out.extend_from_slice(b"<object>");
        push_element(out, "name", &row.name);
        push_element(out, "hash", &row.etag);
        push_element(out, "bytes", &size.to_string());
        push_element(out, "content_type", &content_type);
        push_element(out, "last_modified", &row.modified.isoformat());
        out.extend_from_slice(b"</object>");
    }

    fn subdir_xml(&self, out: &mut Vec<u8>, name: &str) {
        out.extend_from_slice(b"<subdir");
        push_attribute(out, "name", name);
        out.push(b'>');
        push_element(out, "name", name);
        out.extend_from_slice(b"</subdir>");
    }

    fn xml_space(&self) -> &'static [u8] {
        b""
    }
}

/// Serialisation of an account's containers.
pub(crate) struct Containers {
    pub(crate) account: String,
    pub(crate) policies: std::sync::Arc<PolicySet>,
}

impl Containers {
    fn policy(&self, row: &ContainerEntry) -> Option<&str> {
        let index = u32::try_from(row.storage_policy_index).ok()?;
        let policy = self.policies.by_index(PolicyIndex(index))?;
        Some(&policy.name)
    }
}

impl Rows<ContainerEntry> for Containers {
    fn root(&self) -> (&'static str, &str) {
        ("account", &self.account)
    }

    fn name<'r>(&self, row: &'r ContainerEntry) -> &'r str {
        &row.name
    }

    fn json(&self, out: &mut Vec<u8>, row: &ContainerEntry) {
        out.extend_from_slice(b"{\"name\": ");
        push_string(out, &row.name);
        out.extend_from_slice(b", \"count\": ");
        push_number(out, row.object_count);
        out.extend_from_slice(b", \"bytes\": ");
        push_number(out, row.bytes_used);
        push_member(out, "last_modified", &row.put_timestamp.isoformat());
        if let Some(policy) = self.policy(row) {
            push_member(out, "storage_policy", policy);
        }
        out.push(b'}');
    }

    fn xml(&self, out: &mut Vec<u8>, row: &ContainerEntry) {
        out.extend_from_slice(b"<container>");
        push_element(out, "name", &row.name);
        push_element(out, "count", &row.object_count.to_string());
        push_element(out, "bytes", &row.bytes_used.to_string());
        push_element(out, "last_modified", &row.put_timestamp.isoformat());
        if let Some(policy) = self.policy(row) {
            push_element(out, "storage_policy", policy);
        }
        out.extend_from_slice(b"</container>");
    }

    fn subdir_xml(&self, out: &mut Vec<u8>, name: &str) {
        out.extend_from_slice(b"<subdir");
        push_attribute(out, "name", name);
        out.extend_from_slice(b" />");
    }

    fn xml_space(&self) -> &'static [u8] {
        b"\n"
    }
}

fn push_number(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(number.to_string().as_bytes());
}

/// `, "name": "text"`
fn push_member(out: &mut Vec<u8>, name: &str, text: &str) {
    out.extend_from_slice(b", \"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\": ");
    push_string(out, text);
}

fn push_element(out: &mut Vec<u8>, name: &str, text: &str) {
    out.push(b'<');
    out.extend_from_slice(name.as_bytes());
    if text.is_empty() {
        out.extend_from_slice(b" />");
        return;
    }
    out.push(b'>');
    push_escaped(out, text, false);
    out.extend_from_slice(b"</");
    out.extend_from_slice(name.as_bytes());
    out.push(b'>');
}

/// ` name="text"`
fn push_attribute(out: &mut Vec<u8>, name: &str, text: &str) {
    out.push(b' ');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    push_escaped(out, text, true);
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, text: &str, attribute: bool) {
    for byte in text.bytes() {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' if attribute => out.extend_from_slice(b"&quot;"),
            b'\r' if attribute => out.extend_from_slice(b"&#13;"),
            b'\n' if attribute => out.extend_from_slice(b"&#10;"),
            b'\t' if attribute => out.extend_from_slice(b"&#09;"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn accept_headers() {
        for (accept, format) in [
            ("*/*", Some(Format::Plain)),
            ("application/json", Some(Format::Json)),
            ("application/*", Some(Format::Json)),
            ("text/xml, application/json;q=0.5", Some(Format::TextXml)),
            ("*/*, application/xml", Some(Format::Xml)),
            (
                "text/plain;q=0.1,application/json;q=0.9",
                Some(Format::Json),
            ),
            ("image/png", None),
        ] {
            assert_eq!(best_match(accept).ok(), format, "{accept}");
        }
        for accept in ["", "text", "text/plain;q=x", "a/b;q=1;q=1", "a b/c"] {
            let refused = best_match(accept).map_err(|refused| refused.into_response().status());
            let expected = if accept.is_empty() {
                Ok(Format::Plain)
            } else {
                Err(400.try_into().unwrap())
            };
            assert_eq!(refused, expected, "{accept:?}");
        }
    }
}
