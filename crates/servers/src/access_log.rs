//! Access log of a storage server: one line per request received over a socket, when its response
//! begins, in the format of OpenStack Swift's servers (their default `log_format`):
//!
//! ```text
//! remote_addr - - [DD/Mon/YYYY:HH:MM:SS +0000] "method path" status content_length "referer"
//! "transaction id" "user agent" seconds "-" pid policy_index
//! ```
//!
//! Lines have the tracing target `access`, which a log prints without a prefix of its own. Unknown
//! and zero values are `-`. Replicators' requests are logged at the level debug. Calls from a proxy
//! of the same process are not logged here, but in the proxy's own line.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cairn_http::context::Context;
use cairn_http::params::{quote_path, unquote};
use cairn_http::{Clock, Handler, Request, Response, Service, ServiceFuture, respond};
use http::request::Parts;
use tracing::{Level, debug, info};

const POLICY_INDEX: &str = "x-backend-storage-policy-index";

/// Service that logs every request answered by `server`.
pub struct AccessLog {
    server: Handler,
    clock: Clock,
}

impl AccessLog {
    pub fn around(server: Handler, clock: Clock) -> Handler {
        Arc::new(AccessLog { server, clock })
    }

    async fn logged(&self, request: Request, remote: std::net::SocketAddr) -> Response {
        let (parts, body) = request.into_parts();
        let asked = LoggedRequest::of(&parts);
        let started = self.clock.now().as_f64();
        let response = self.server.call(Request::from_parts(parts, body)).await;
        let ended = self.clock.now().as_f64();
        let line = asked.line(&remote.ip().to_string(), &response, ended, ended - started);
        match asked.is_background {
            true => debug!(target: "access", "{line}"),
            false => info!(target: "access", "{line}"),
        }
        response
    }
}

impl Service for AccessLog {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let remote = Context::of_request(&request).remote;
        match remote.filter(|_| tracing::enabled!(target: "access", Level::INFO)) {
            Some(remote) => Box::pin(self.logged(request, remote)),
            None => self.server.call(request),
        }
    }
}

/// The request's part of a line.
struct LoggedRequest {
    method: String,
    path: String,
    referer: String,
    transaction: String,
    user_agent: String,
    policy_index: String,
    is_background: bool,
}

impl LoggedRequest {
    fn of(parts: &Parts) -> LoggedRequest {
        let header = |name: &str| respond::header(&parts.headers, name).unwrap_or_default();
        let path = parts.uri.path();
        let method = parts.method.as_str();
        let is_replication = matches!(method, "REPLICATE" | "SSYNC");
        LoggedRequest {
            method: method.to_owned(),
            path: unquote(path).map_or_else(|_| path.to_owned(), |p| quote_path(&p)),
            referer: header("referer").to_owned(),
            transaction: header("x-trans-id").to_owned(),
            user_agent: header("user-agent").to_owned(),
            policy_index: header(POLICY_INDEX).to_owned(),
            is_background: is_replication || parts.headers.contains_key("x-backend-replication"),
        }
    }

    /// The line; `unix` is the time of the response, `took` the duration of the request. In
    /// seconds.
    fn line(&self, remote: &str, response: &Response, unix: f64, took: f64) -> String {
        let headers = response.headers();
        let told = respond::header(headers, "content-length").and_then(|l| l.parse().ok());
        let length = told.or_else(|| response.body().length()).unwrap_or(0);
        let policy = respond::header(headers, POLICY_INDEX).unwrap_or(&self.policy_index);
        // Swift writes the line before it gives an error its standard body.
        let length = match length {
            _ if respond::has_standard_body(response) => "-".to_owned(),
            0 => "-".to_owned(),
            bytes => bytes.to_string(),
        };
        format!(
            "{remote} - - [{} +0000] \"{} {}\" {} {length} \"{}\" \"{}\" \"{}\" {:.4} \"-\" {} {}",
            moment(unix),
            self.method,
            self.path,
            response.status().as_u16(),
            shown(&self.referer),
            shown(&self.transaction),
            shown(&self.user_agent),
            took.max(0.0),
            std::process::id(),
            shown(policy),
        )
    }
}

fn shown(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// `24/Nov/2026:04:40:46`, from HTTP's `Tue, 24 Nov 2026 04:40:46 GMT`.
fn moment(unix: f64) -> String {
    let since = Duration::try_from_secs_f64(unix).unwrap_or_default();
    let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since);
    let mut words = date.split(' ').skip(1);
    let mut next = || words.next().unwrap_or_default();
    let (day, month, year, time) = (next(), next(), next(), next());
    format!("{day}/{month}/{year}:{time}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_http::Body;
    use http::StatusCode;

    use super::*;

    fn line(method: &str, uri: &str, headers: &[(&str, &str)], response: &Response) -> String {
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, _) = request.body(Body::empty()).unwrap().into_parts();
        LoggedRequest::of(&parts).line("10.0.0.7", response, 1_795_495_246.5, 0.012_345)
    }

    /// Lines written by OpenStack Swift's `get_log_line` for these requests.
    #[test]
    fn lines_are_swifts() {
        let pid = std::process::id();
        let mut response = respond::empty(StatusCode::CREATED);
        let put = line(
            "PUT",
            "/sdb1/12/AUTH_a/c/%C3%BC%20%7e?x=y",
            &[
                ("x-trans-id", "tx1"),
                ("user-agent", "proxy-server 7"),
                ("referer", "PUT http://h/v1/AUTH_a/c/o"),
                ("x-backend-storage-policy-index", "0"),
            ],
            &response,
        );
        assert_eq!(
            put,
            format!(
                "10.0.0.7 - - [24/Nov/2026:04:40:46 +0000] \"PUT /sdb1/12/AUTH_a/c/%C3%BC%20~\" 201 - \
                 \"PUT http://h/v1/AUTH_a/c/o\" \"tx1\" \"proxy-server 7\" 0.0123 \"-\" {pid} 0"
            )
        );
        respond::set(response.headers_mut(), "content-length", "77");
        respond::set(response.headers_mut(), POLICY_INDEX, "3");
        let head = line("HEAD", "/sdb1/12/a", &[], &response);
        assert_eq!(
            head,
            format!(
                "10.0.0.7 - - [24/Nov/2026:04:40:46 +0000] \"HEAD /sdb1/12/a\" 201 77 \"-\" \"-\" \"-\" \
                 0.0123 \"-\" {pid} 3"
            )
        );
        let missing = respond::standard(StatusCode::NOT_FOUND);
        let get = line("GET", "/sdb1/12/a/c/o", &[], &missing);
        assert_eq!(
            get,
            format!(
                "10.0.0.7 - - [24/Nov/2026:04:40:46 +0000] \"GET /sdb1/12/a/c/o\" 404 - \"-\" \"-\" \"-\" \
                 0.0123 \"-\" {pid} -"
            )
        );
    }
}
