//! Data of one line: collected from the request and the response, cheap to hold (header values and
//! the URI are shared, not copied), written once.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use cairn_http::context::Context;
use cairn_http::params::{split_path, unquote};
use cairn_http::{Request, Response, respond};
use cairn_types::Timestamp;
use cairn_types::metadata::title_case;
use http::header::{ETAG, HOST, HeaderMap, HeaderName, HeaderValue, REFERER, USER_AGENT};
use http::{Method, Uri, Version};
use tracing::info;

use super::Format;
use super::template::{Encoder, Field, Values};
use crate::watch::{Ending, Received};

/// Headers with tokens and signatures: long, random, and valid for a limited time. Their prefixes
/// identify them.
const SENSITIVE_HEADERS: [&str; 5] = [
    "x-auth-token",
    "x-storage-token",
    "x-service-token",
    "x-subject-token",
    "authorization",
];
/// Headers with keys and passwords: of any length, and valid without limit. Nothing of them is
/// shown.
const SECRET_HEADERS: [&str; 7] = [
    "x-auth-key",
    "x-storage-pass",
    "x-container-sync-key",
    "x-account-meta-temp-url-key",
    "x-account-meta-temp-url-key-2",
    "x-container-meta-temp-url-key",
    "x-container-meta-temp-url-key-2",
];
const SENSITIVE_PARAMS: [&str; 4] = [
    "temp_url_sig",
    "Signature",
    "X-Amz-Signature",
    "swiftinfo_sig",
];
const POLICY_INDEX: HeaderName = HeaderName::from_static("x-backend-storage-policy-index");
const CLIENT_IP: HeaderName = HeaderName::from_static("x-cluster-client-ip");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const AUTH_TOKEN: HeaderName = HeaderName::from_static("x-auth-token");

pub(super) struct Entry {
    format: Arc<Format>,
    context: Context,
    method: Method,
    uri: Uri,
    version: Version,
    headers: Headers,
    /// All headers, if configured.
    all_headers: Option<HeaderMap>,
    received: Arc<Received>,
    started: Timestamp,
    first_byte: Option<Timestamp>,
    wire_status: Option<u16>,
    written: bool,
}

#[derive(Default)]
struct Headers {
    client_ip: Option<HeaderValue>,
    forwarded_for: Option<HeaderValue>,
    host: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    auth_token: Option<HeaderValue>,
    etag: Option<HeaderValue>,
    policy_index: Option<HeaderValue>,
}

impl Entry {
    pub(super) fn new(format: &Arc<Format>, request: &Request, received: Arc<Received>) -> Self {
        let headers = request.headers();
        Entry {
            format: format.clone(),
            context: Context::of_request(request),
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            headers: Headers {
                client_ip: headers.get(CLIENT_IP).cloned(),
                forwarded_for: headers.get(FORWARDED_FOR).cloned(),
                host: headers.get(HOST).cloned(),
                referer: headers.get(REFERER).cloned(),
                user_agent: headers.get(USER_AGENT).cloned(),
                auth_token: headers.get(AUTH_TOKEN).cloned(),
                etag: headers.get(ETAG).cloned(),
                policy_index: headers.get(POLICY_INDEX).cloned(),
            },
            all_headers: format.headers.is_some().then(|| headers.clone()),
            received,
            started: format.clock.now(),
            first_byte: None,
            wire_status: None,
            written: false,
        }
    }

    /// Records the response's head.
    pub(super) fn answered(&mut self, response: &Response) {
        self.wire_status = Some(response.status().as_u16());
        if self.method == Method::GET && self.format.template.uses(Field::Ttfb) {
            self.first_byte = Some(self.format.clock.now());
        }
        if let Some(index) = response.headers().get(POLICY_INDEX) {
            self.headers.policy_index = Some(index.clone());
        }
    }

    /// Records the end of the response's body, and writes the line.
    pub(super) fn finish(mut self, ending: Ending, sent: u64) {
        let status = match ending {
            _ if self.received.disconnected() => respond::CLIENT_DISCONNECT,
            Ending::Complete => self.wire_status.unwrap_or(0),
            Ending::Failed(_) => 500,
            Ending::Dropped => respond::CLIENT_DISCONNECT,
        };
        self.write(status, sent);
    }

    fn write(&mut self, status: u16, sent: u64) {
        self.written = true;
        let line = Line {
            entry: self,
            status,
            sent,
            ended: self.format.clock.now(),
        };
        let text = self.format.template.render(&line, &self.format.anonymize);
        info!(target: "access", "{text}");
    }

    fn write_obscured(&self, value: &str, to: &mut Encoder<'_>) {
        match value
            .char_indices()
            .nth(self.format.reveal_sensitive_prefix)
        {
            Some((cut, _)) => {
                to.text(&value[..cut]);
                to.text("...");
            }
            None => to.text(value),
        }
    }

    /// Path and query as received, with signatures truncated.
    fn write_path(&self, to: &mut Encoder<'_>) {
        to.text(self.uri.path());
        if let Some(query) = self.uri.query() {
            to.text("?");
            self.write_query(query, to);
        }
    }

    /// The `Referer`, which may be the URL of a page that was itself signed.
    fn write_referer(&self, to: &mut Encoder<'_>) {
        match text(&self.headers.referer).split_once('?') {
            None => to.text(text(&self.headers.referer)),
            Some((page, query)) => {
                to.text(page);
                to.text("?");
                self.write_query(query, to);
            }
        }
    }

    fn write_query(&self, query: &str, to: &mut Encoder<'_>) {
        for (at, pair) in query.split('&').enumerate() {
            if at > 0 {
                to.text("&");
            }
            match pair.split_once('=') {
                Some((name, value))
                    if unquote(name).is_ok_and(|n| SENSITIVE_PARAMS.contains(&n.as_str())) =>
                {
                    to.text(name);
                    to.text("=");
                    self.write_obscured(value, to);
                }
                _ => to.text(pair),
            }
        }
    }

    /// Account (0), container (1) or object (2) of the path; empty if it has none.
    fn segment(&self, index: usize) -> String {
        let path = unquote(self.uri.path()).unwrap_or_default();
        let versions = &self.format.constraints.valid_api_versions;
        match split_path(&path, 1, 4, true) {
            Some(parts) if parts[0].is_some_and(|v| versions.iter().any(|known| known == v)) => {
                parts[index + 1].unwrap_or("").to_owned()
            }
            _ => String::new(),
        }
    }

    fn logged_headers(&self) -> String {
        let (Some(all), Some(only)) = (&self.all_headers, &self.format.headers) else {
            return String::new();
        };
        let mut lines = String::new();
        for (name, value) in all {
            if !only.is_empty() && !only.iter().any(|o| o == name.as_str()) {
                continue;
            }
            if !lines.is_empty() {
                lines.push('\n');
            }
            lines.push_str(&title_case(name.as_str()));
            lines.push_str(": ");
            let value = String::from_utf8_lossy(value.as_bytes());
            let to = &mut Encoder::raw(&mut lines);
            match name.as_str() {
                name if SECRET_HEADERS.contains(&name) => to.text("..."),
                name if SENSITIVE_HEADERS.contains(&name) => self.write_obscured(&value, to),
                "referer" => self.write_referer(to),
                _ => to.text(&value),
            }
        }
        lines
    }

    fn write_remote_addr(&self, to: &mut Encoder<'_>) {
        match self.context.remote.map(|remote| remote.ip().to_canonical()) {
            Some(IpAddr::V4(address)) => {
                for (at, octet) in address.octets().into_iter().enumerate() {
                    if at > 0 {
                        to.text(".");
                    }
                    to.number(octet);
                }
            }
            // Writing to a line cannot fail.
            Some(IpAddr::V6(address)) => drop(write!(to, "{address}")),
            None => {}
        }
    }

    fn write_client_ip(&self, to: &mut Encoder<'_>) {
        let forwarded = text(&self.headers.forwarded_for).split(',').next();
        let named = [
            text(&self.headers.client_ip),
            forwarded.unwrap_or("").trim(),
        ];
        match named.into_iter().find(|address| !address.is_empty()) {
            Some(address) => to.text(address),
            None => self.write_remote_addr(to),
        }
    }

    fn domain(&self) -> &str {
        let host = text(&self.headers.host);
        host.rsplit_once(':').map_or(host, |(name, _)| name)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.written {
            // Cancelled before there was a response: the client disconnected.
            self.write(respond::CLIENT_DISCONNECT, 0);
        }
    }
}

/// A header's text; empty without one.
fn text(value: &Option<HeaderValue>) -> &str {
    value
        .as_ref()
        .and_then(|v| std::str::from_utf8(v.as_bytes()).ok())
        .unwrap_or("")
}

struct Line<'e> {
    entry: &'e Entry,
    status: u16,
    sent: u64,
    ended: Timestamp,
}

impl Values for Line<'_> {
    fn write(&self, field: Field, to: &mut Encoder<'_>) {
        let e = self.entry;
        match field {
            Field::ClientIp => e.write_client_ip(to),
            Field::RemoteAddr => e.write_remote_addr(to),
            Field::Domain => to.text(e.domain()),
            Field::Path => e.write_path(to),
            Field::Referer => e.write_referer(to),
            Field::UserAgent => to.text(text(&e.headers.user_agent)),
            Field::Headers => to.text(&e.logged_headers()),
            Field::ClientEtag => to.text(text(&e.headers.etag)),
            Field::Account => to.text(&e.segment(0)),
            Field::Container => to.text(&e.segment(1)),
            Field::Object => to.text(&e.segment(2)),
            Field::Method => to.text(e.method.as_str()),
            // Writing to a line cannot fail.
            Field::Protocol => drop(write!(to, "{:?}", e.version)),
            Field::StatusInt => to.number(self.status),
            Field::AuthToken => e.write_obscured(text(&e.headers.auth_token), to),
            Field::BytesRecvd => write_nonzero(e.received.bytes(), to),
            Field::BytesSent => write_nonzero(self.sent, to),
            Field::TransactionId => to.text(&e.context.trans_id),
            Field::RequestTime => write_elapsed(e.started, self.ended, to),
            Field::Source => to.text(e.context.source.unwrap_or("")),
            Field::LogInfo => to.text(&e.context.notes.log_info()),
            Field::PolicyIndex => to.text(text(&e.headers.policy_index)),
            Field::Ttfb => {
                if let Some(first) = e.first_byte {
                    let _ = write!(to, "{}", elapsed(e.started, first));
                }
            }
            Field::Pid => to.number(std::process::id()),
            Field::WireStatusInt => to.number(e.wire_status.unwrap_or(self.status)),
            Field::AccessUserId => to.text(e.context.notes.user().as_deref().unwrap_or("")),
            Field::StartTime | Field::EndTime => {}
        }
    }

    fn time(&self, field: Field) -> Timestamp {
        if field == Field::StartTime {
            self.entry.started
        } else {
            self.ended
        }
    }
}

fn write_nonzero(number: u64, to: &mut Encoder<'_>) {
    if number > 0 {
        to.number(number);
    }
}

/// A duration in seconds, to four decimal places.
fn write_elapsed(from: Timestamp, until: Timestamp, to: &mut Encoder<'_>) {
    let ticks = until.ticks().saturating_sub(from.ticks());
    let places = (ticks + 5) / 10;
    to.number(places / 10_000);
    to.text(".");
    to.padded(places % 10_000, 4);
}

fn elapsed(from: Timestamp, to: Timestamp) -> f64 {
    to.ticks().saturating_sub(from.ticks()) as f64 / cairn_types::timestamp::TICKS_PER_SECOND as f64
}
