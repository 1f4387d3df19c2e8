//! What one line tells: gathered from the request and the answer, cheap to hold (header values
//! and the URI are shared, not copied), written once.

use std::net::IpAddr;
use std::sync::Arc;

use cairn_http::context::Context;
use cairn_http::params::{split_path, unquote};
use cairn_http::{Request, Response, respond};
use cairn_types::Timestamp;
use cairn_types::metadata::title_case;
use http::header::{ETAG, HOST, HeaderMap, HeaderValue, REFERER, USER_AGENT};
use http::{Method, Uri, Version};
use tracing::info;

use super::Format;
use super::template::{Field, Values};
use crate::watch::{Ending, Received};

/// Tokens and signatures: long, random, and of use for a while. Their beginnings tell them apart.
const SENSITIVE_HEADERS: [&str; 5] = [
    "x-auth-token",
    "x-storage-token",
    "x-service-token",
    "x-subject-token",
    "authorization",
];
/// Keys and passwords: of any length, and of use for ever. Not one letter of them is shown.
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
const POLICY_INDEX: &str = "x-backend-storage-policy-index";

pub(super) struct Entry {
    format: Arc<Format>,
    context: Context,
    method: Method,
    uri: Uri,
    version: Version,
    headers: Headers,
    /// All of them, where the conf asks for it.
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
                client_ip: headers.get("x-cluster-client-ip").cloned(),
                forwarded_for: headers.get("x-forwarded-for").cloned(),
                host: headers.get(HOST).cloned(),
                referer: headers.get(REFERER).cloned(),
                user_agent: headers.get(USER_AGENT).cloned(),
                auth_token: headers.get("x-auth-token").cloned(),
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

    /// The answer's head is known.
    pub(super) fn answered(&mut self, response: &Response) {
        self.wire_status = Some(response.status().as_u16());
        if self.method == Method::GET && self.format.template.uses(Field::Ttfb) {
            self.first_byte = Some(self.format.clock.now());
        }
        if let Some(index) = response.headers().get(POLICY_INDEX) {
            self.headers.policy_index = Some(index.clone());
        }
    }

    /// The answer's body has ended.
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

    fn obscured(&self, value: &str) -> String {
        let limit = self.format.reveal_sensitive_prefix;
        match value.char_indices().nth(limit) {
            Some((cut, _)) => format!("{}...", &value[..cut]),
            None => value.to_owned(),
        }
    }

    /// Path and query as they came, with signatures cut.
    fn path(&self) -> String {
        match self.uri.query() {
            None => self.uri.path().to_owned(),
            Some(query) => format!("{}?{}", self.uri.path(), self.query(query)),
        }
    }

    /// Where the client says it comes from: perhaps from a page whose URL was signed too.
    fn referer(&self) -> Option<String> {
        let referer = text(&self.headers.referer)?;
        Some(match referer.split_once('?') {
            None => referer.to_owned(),
            Some((page, query)) => format!("{page}?{}", self.query(query)),
        })
    }

    fn query(&self, query: &str) -> String {
        let pairs: Vec<String> = query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some((name, value))
                    if unquote(name).is_ok_and(|n| SENSITIVE_PARAMS.contains(&n.as_str())) =>
                {
                    format!("{name}={}", self.obscured(value))
                }
                _ => pair.to_owned(),
            })
            .collect();
        pairs.join("&")
    }

    /// Account (0), container (1) or object (2) of the path.
    fn segment(&self, index: usize) -> Option<String> {
        let path = unquote(self.uri.path()).ok()?;
        let parts = split_path(&path, 1, 4, true)?;
        let versions = &self.format.constraints.valid_api_versions;
        if !parts[0].is_some_and(|version| versions.iter().any(|v| v == version)) {
            return None;
        }
        parts[index + 1].map(str::to_owned)
    }

    fn logged_headers(&self) -> Option<String> {
        let (all, only) = (self.all_headers.as_ref()?, self.format.headers.as_ref()?);
        let mut lines = Vec::new();
        for (name, value) in all {
            if !only.is_empty() && !only.iter().any(|o| o == name.as_str()) {
                continue;
            }
            let value = String::from_utf8_lossy(value.as_bytes());
            let value = match name.as_str() {
                name if SECRET_HEADERS.contains(&name) => "...".to_owned(),
                name if SENSITIVE_HEADERS.contains(&name) => self.obscured(&value),
                "referer" => self.referer().unwrap_or_default(),
                _ => value.into_owned(),
            };
            lines.push(format!("{}: {value}", title_case(name.as_str())));
        }
        Some(lines.join("\n"))
    }

    fn remote_addr(&self) -> Option<String> {
        self.context.remote.map(|r| match r.ip() {
            IpAddr::V6(v6) => v6
                .to_ipv4_mapped()
                .map_or(v6.to_string(), |v4| v4.to_string()),
            v4 => v4.to_string(),
        })
    }

    fn client_ip(&self) -> Option<String> {
        let forwarded = || {
            let first = text(&self.headers.forwarded_for)?
                .split(',')
                .next()?
                .trim()
                .to_owned();
            Some(first).filter(|f| !f.is_empty())
        };
        text(&self.headers.client_ip)
            .filter(|ip| !ip.is_empty())
            .map(str::to_owned)
            .or_else(forwarded)
            .or_else(|| self.remote_addr())
    }

    fn domain(&self) -> Option<String> {
        let host = text(&self.headers.host)?;
        Some(
            host.rsplit_once(':')
                .map_or(host, |(name, _)| name)
                .to_owned(),
        )
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.written {
            // Cancelled before there was an answer: the client has gone.
            self.write(respond::CLIENT_DISCONNECT, 0);
        }
    }
}

fn text(value: &Option<HeaderValue>) -> Option<&str> {
    value
        .as_ref()
        .and_then(|v| std::str::from_utf8(v.as_bytes()).ok())
}

struct Line<'e> {
    entry: &'e Entry,
    status: u16,
    sent: u64,
    ended: Timestamp,
}

impl Values for Line<'_> {
    fn value(&self, field: Field) -> Option<String> {
        let e = self.entry;
        let owned = |value: &Option<HeaderValue>| text(value).map(str::to_owned);
        match field {
            Field::ClientIp => e.client_ip(),
            Field::RemoteAddr => e.remote_addr(),
            Field::Domain => e.domain(),
            Field::Path => Some(e.path()),
            Field::Referer => e.referer(),
            Field::UserAgent => owned(&e.headers.user_agent),
            Field::Headers => e.logged_headers(),
            Field::ClientEtag => owned(&e.headers.etag),
            Field::Account => e.segment(0),
            Field::Container => e.segment(1),
            Field::Object => e.segment(2),
            Field::Method => Some(e.method.to_string()),
            Field::Protocol => Some(format!("{:?}", e.version)),
            Field::StatusInt => Some(self.status.to_string()),
            Field::AuthToken => text(&e.headers.auth_token).map(|t| e.obscured(t)),
            Field::BytesRecvd => nonzero(e.received.bytes()),
            Field::BytesSent => nonzero(self.sent),
            Field::TransactionId => Some(e.context.trans_id.to_string()),
            Field::RequestTime => Some(format!("{:.4}", elapsed(e.started, self.ended))),
            Field::Source => e.context.source.map(str::to_owned),
            Field::LogInfo => Some(e.context.notes.log_info().join(",")),
            Field::PolicyIndex => owned(&e.headers.policy_index),
            Field::Ttfb => e
                .first_byte
                .map(|first| elapsed(e.started, first).to_string()),
            Field::Pid => Some(std::process::id().to_string()),
            Field::WireStatusInt => Some(e.wire_status.unwrap_or(self.status).to_string()),
            Field::AccessUserId => e.context.notes.user().map(|u| u.to_string()),
            Field::StartTime | Field::EndTime => None,
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

fn nonzero(number: u64) -> Option<String> {
    (number > 0).then(|| number.to_string())
}

fn elapsed(from: Timestamp, to: Timestamp) -> f64 {
    to.ticks().saturating_sub(from.ticks()) as f64 / cairn_types::timestamp::TICKS_PER_SECOND as f64
}
