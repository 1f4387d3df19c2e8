//! Second half of SSYNC: the sender's PUT, POST and DELETE requests for the wanted objects, handled
//! by the object server like any other.
//!
//! Small ones run concurrently, so that they share syncs; those of one object keep their order.

use std::collections::HashSet;

use bytes::{Bytes, BytesMut};
use cairn_formats::ssync::{UPDATES_END, UPDATES_START};
use cairn_http::{Body, Request, Service};
use cairn_types::header_name;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri};
use tokio::task::JoinSet;

use super::input::Input;
use super::missing::expect;
use super::{Receiver, SessionError};
use crate::object::ObjectServer;

/// Maximum content in bytes that is read before it is written, concurrently with others.
const SMALL_UPDATE_MAX_BYTES: u64 = 64 << 10;
/// Maximum concurrent small updates: twice a disk's batch per sync, so that the next batch is ready
/// when it ends; and the total of their content in bytes.
const UPDATES_MAX: usize = 128;
const UPDATE_BYTES_MAX: u64 = 4 << 20;
const HEADERS_MAX: usize = 512;

/// One request of the sender, without its content.
struct Update {
    method: Method,
    path: String,
    headers: HeaderMap,
    content_length: u64,
}

impl Update {
    fn is_small(&self) -> bool {
        self.content_length <= SMALL_UPDATE_MAX_BYTES
    }
}

#[derive(Default)]
struct Tally {
    successes: usize,
    failures: usize,
}

/// Small updates in progress.
#[derive(Default)]
struct InFlight {
    tasks: JoinSet<Ended>,
    paths: HashSet<String>,
    bytes: u64,
}

struct Ended {
    path: String,
    content_length: u64,
    status: StatusCode,
}

impl InFlight {
    /// Whether one of these must end before the update may begin.
    fn must_end_before(&self, update: &Update) -> bool {
        let is_full = self.tasks.len() >= UPDATES_MAX || self.bytes >= UPDATE_BYTES_MAX;
        let is_alone = !update.is_small();
        !self.tasks.is_empty() && (is_full || is_alone || self.paths.contains(&update.path))
    }
}

impl Receiver {
    pub(super) async fn updates(&self, input: &mut Input) -> Result<(), SessionError> {
        expect(input, "updates start", UPDATES_START).await?;
        let mut tally = Tally::default();
        let mut in_flight = InFlight::default();
        while let Some(update) = self.read_update(input).await? {
            while in_flight.must_end_before(&update) {
                self.finish_one(&mut in_flight, &mut tally).await?;
            }
            if update.is_small() {
                self.begin_small(update, input, &mut in_flight).await?;
            } else {
                let path = update.path.clone();
                let status = self.carry_out_large(update, input).await?;
                self.count(&path, status, &mut tally)?;
            }
        }
        while !in_flight.tasks.is_empty() {
            self.finish_one(&mut in_flight, &mut tally).await?;
        }
        if tally.failures > 0 {
            return Err(SessionError::Failures(tally.failures, tally.successes));
        }
        self.send_line(UPDATES_START).await?;
        self.send_line(UPDATES_END).await
    }

    /// The head of the next update; `None` after the last.
    async fn read_update(&self, input: &mut Input) -> Result<Option<Update>, SessionError> {
        let Some(line) = input.line("updates line").await? else {
            return Ok(None);
        };
        if line == UPDATES_END.as_bytes() {
            return Ok(None);
        }
        let context = String::from_utf8_lossy(&line).into_owned();
        let wrong = |reason: &str| SessionError::Protocol(format!("{reason} for {context:.1024}"));
        let (method, path) = context
            .split_once(' ')
            .ok_or_else(|| wrong("no method and path"))?;
        let method = match method {
            "PUT" => Method::PUT,
            "POST" => Method::POST,
            "DELETE" => Method::DELETE,
            _ => return Err(wrong("Invalid subrequest method")),
        };
        let mut headers = HeaderMap::new();
        let mut replicated = Vec::new();
        loop {
            let line = input.line("updates line").await?;
            let line = line.ok_or_else(|| wrong("Got no headers"))?;
            if line.is_empty() {
                break;
            }
            if replicated.len() >= HEADERS_MAX {
                return Err(wrong("Too many headers"));
            }
            let (name, value) = header(&line).ok_or_else(|| wrong("Bad header"))?;
            // All headers are stored, except those computed by the server.
            if name != "etag" && name != "x-backend-no-commit" {
                replicated.push(name.as_str().to_owned());
            }
            headers.insert(name, value);
        }
        let length = headers.get(CONTENT_LENGTH).map(|value| {
            let text = value.to_str().ok().map(str::trim);
            text.and_then(|text| text.parse::<u64>().ok())
        });
        let content_length = match (length, &method) {
            (Some(None), _) => return Err(wrong("Bad content-length")),
            (Some(Some(length)), &Method::PUT) => length,
            (None, &Method::PUT) => return Err(wrong("No content-length sent")),
            (Some(Some(0)) | None, _) => 0,
            (Some(Some(_)), _) => return Err(wrong("subrequest with content-length")),
        };
        self.add_backend_headers(&mut headers, &replicated);
        let path = path.to_owned();
        Ok(Some(Update {
            method,
            path,
            headers,
            content_length,
        }))
    }

    fn add_backend_headers(&self, headers: &mut HeaderMap, replicated: &[String]) {
        let set = |headers: &mut HeaderMap, name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        };
        set(
            headers,
            "x-backend-storage-policy-index",
            self.policy.to_string(),
        );
        set(headers, "x-backend-replication", "True".into());
        if let Some(index) = self.frag_index {
            set(headers, "x-backend-ssync-frag-index", index.to_string());
        }
        if !replicated.is_empty() {
            set(
                headers,
                "x-backend-replication-headers",
                replicated.join(" "),
            );
        }
    }

    fn request(&self, update: Update, body: Body) -> Result<Request, SessionError> {
        let uri = format!("/{}/{}{}", self.device.name(), self.partition, update.path);
        let uri: Uri = uri
            .parse()
            .map_err(|_| SessionError::Protocol(format!("no path: {:.1024}", update.path)))?;
        let mut request = Request::new(body);
        *request.method_mut() = update.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = update.headers;
        Ok(request)
    }

    async fn begin_small(
        &self,
        update: Update,
        input: &mut Input,
        in_flight: &mut InFlight,
    ) -> Result<(), SessionError> {
        let content_length = update.content_length;
        let mut left = content_length;
        let mut content = BytesMut::new();
        let mut whole = Bytes::new();
        while left > 0 {
            let bytes = input.content(left).await?;
            left -= bytes.len() as u64;
            if left == 0 && content.is_empty() {
                whole = bytes;
            } else {
                content.extend_from_slice(&bytes);
            }
        }
        if !content.is_empty() {
            whole = content.freeze();
        }
        let path = update.path.clone();
        let request = self.request(update, Body::full(whole))?;
        in_flight.paths.insert(path.clone());
        in_flight.bytes += content_length;
        let server = ObjectServer(self.inner.clone());
        in_flight.tasks.spawn(async move {
            let status = server.call(request).await.status();
            Ended {
                path,
                content_length,
                status,
            }
        });
        Ok(())
    }

    async fn finish_one(
        &self,
        in_flight: &mut InFlight,
        tally: &mut Tally,
    ) -> Result<(), SessionError> {
        match in_flight.tasks.join_next().await {
            Some(Ok(ended)) => {
                in_flight.paths.remove(&ended.path);
                in_flight.bytes -= ended.content_length;
                self.count(&ended.path, ended.status, tally)
            }
            Some(Err(error)) => Err(SessionError::Protocol(format!("an update failed: {error}"))),
            None => Ok(()),
        }
    }

    /// Streams the content to the object server. Content it does not read is drained, as the next
    /// update follows.
    async fn carry_out_large(
        &self,
        update: Update,
        input: &mut Input,
    ) -> Result<StatusCode, SessionError> {
        let length = update.content_length;
        let (sender, body) = Body::channel(Some(length), 4);
        let request = self.request(update, body)?;
        let feed = async {
            let mut left = length;
            let mut is_taken = true;
            while left > 0 {
                let bytes = input.content(left).await?;
                left -= bytes.len() as u64;
                is_taken = is_taken && sender.send(bytes).await;
            }
            sender.finish().await;
            Ok::<_, SessionError>(())
        };
        let server = ObjectServer(self.inner.clone());
        let (response, fed) = tokio::join!(server.call(request), feed);
        fed?;
        Ok(response.status())
    }

    /// Counts a result; too many failures end the session.
    fn count(&self, path: &str, status: StatusCode, tally: &mut Tally) -> Result<(), SessionError> {
        if status.is_success() || status == StatusCode::NOT_FOUND {
            tally.successes += 1;
            return Ok(());
        }
        let (device, partition) = (self.device.name(), self.partition);
        tracing::warn!(device, partition, path, %status, "ssync subrequest failed");
        tally.failures += 1;
        let Tally {
            successes,
            failures,
        } = *tally;
        let config = &self.inner.config;
        let ratio = failures as f64 / successes as f64;
        let is_too_many = successes == 0 || ratio > config.replication_failure_ratio;
        if failures >= config.replication_failure_threshold && is_too_many {
            return Err(SessionError::TooManyFailures(failures, successes));
        }
        Ok(())
    }
}

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let at = line.iter().position(|b| *b == b':')?;
    let name = HeaderName::from_bytes(&header_name::escape(line[..at].trim_ascii())).ok()?;
    let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?;
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(path: &str, content_length: u64) -> Update {
        Update {
            method: Method::PUT,
            path: path.into(),
            headers: HeaderMap::new(),
            content_length,
        }
    }

    #[tokio::test]
    async fn a_conversation_has_little_under_way() {
        let mut in_flight = InFlight::default();
        let begin = |in_flight: &mut InFlight, path: &str, content_length: u64| {
            in_flight.paths.insert(path.into());
            in_flight.bytes += content_length;
            in_flight.tasks.spawn(std::future::pending());
        };
        let large = update("/a/c/large", SMALL_UPDATE_MAX_BYTES + 1);
        assert!(!in_flight.must_end_before(&large), "nobody is there");
        begin(&mut in_flight, "/a/c/o", 1);
        assert!(in_flight.must_end_before(&large), "it goes alone");
        let other = update("/a/c/other", SMALL_UPDATE_MAX_BYTES);
        assert!(!in_flight.must_end_before(&other));
        assert!(
            in_flight.must_end_before(&update("/a/c/o", 1)),
            "in their order"
        );
        in_flight.bytes = UPDATE_BYTES_MAX;
        assert!(in_flight.must_end_before(&other), "too much content");
        in_flight.bytes = 1;
        for number in 1..UPDATES_MAX {
            assert!(!in_flight.must_end_before(&other));
            begin(&mut in_flight, &format!("/a/c/{number}"), 0);
        }
        assert!(in_flight.must_end_before(&other), "too many");
    }
}
