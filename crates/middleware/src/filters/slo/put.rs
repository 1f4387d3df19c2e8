//! PUT of a manifest: every segment is checked by HEAD, a few at a time, and compared with the
//! client's values; then the manifest is stored with the marks of a large object.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cairn_formats::conditional::{normalize_etag, parse_date};
use cairn_formats::content_type;
use cairn_http::context::Context;
use cairn_http::params::{Params, is_true, quote_path};
use cairn_http::{Body, BodyError, Request, Response, respond};
use cairn_types::{Timestamp, hex};
use futures_util::stream::{self, StreamExt};
use http::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LAST_MODIFIED,
    TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use md5::{Digest, Md5};

use super::input::{self, Wanted, WantedObject};
use super::manifest::{self, Stored};
use super::{Inner, SOURCE, SYSMETA_SLO_ETAG, SYSMETA_SLO_SIZE, X_STATIC_LARGE_OBJECT};
use crate::api_path::ObjectPath;
use crate::heartbeat::{self, Beats};
use crate::report::{self, Report};
use crate::subrequest::Subrequests;

const ETAG_OVERRIDE: &str = "x-object-sysmeta-container-update-override-etag";
const TOO_SMALL: &str = "Too small; each segment must be at least 1 byte.";
/// Maximum bytes reported of an inner response's body.
const BODY_MAX: u64 = 64 << 10;

/// Result of a segment's HEAD.
struct Found {
    status: StatusCode,
    length: u64,
    etag: String,
    content_type: String,
    last_modified: String,
    is_manifest: bool,
}

/// A manifest being stored.
struct Upload {
    parts: Parts,
    path: ObjectPath,
    wanted: Vec<Wanted>,
}

/// The outcome.
enum Outcome {
    /// Segments do not match: quoted names and errors.
    Problems(Vec<(String, String)>),
    /// The client's ETag does not match.
    WrongEtag,
    Stored {
        response: Response,
    },
}

impl Inner {
    pub(super) async fn put(
        self: Arc<Self>,
        request: Request,
        path: ObjectPath,
        params: Params,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let wanted = match self.read_input(&parts, body, &path).await {
            Ok(wanted) => wanted,
            Err(refused) => return refused,
        };
        let accept = respond::header(&parts.headers, ACCEPT.as_str());
        let format = report::format_for(accept).unwrap_or(report::FORMATS[0]);
        let upload = Upload {
            parts,
            path,
            wanted,
        };
        if !params.get("heartbeat").is_some_and(is_true) {
            return answer(self.store(upload).await, format);
        }
        let beats = Beats {
            every: self.yield_frequency,
            first: " ",
            at_once: true,
            separator: "\r\n\r\n",
        };
        let job = async move {
            let report = tell(self.store(upload).await).await;
            report.render(format, "upload")
        };
        let mut response = Response::new(heartbeat::body(job, beats).await);
        *response.status_mut() = StatusCode::ACCEPTED;
        let content_type = HeaderValue::from_static(format);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }

    /// Parses the client's list; the error is the refusal.
    async fn read_input(
        &self,
        parts: &Parts,
        body: Body,
        path: &ObjectPath,
    ) -> Result<Vec<Wanted>, Response> {
        if parts
            .headers
            .get("x-copy-from")
            .is_some_and(|v| !v.is_empty())
        {
            let text = "Multipart Manifest PUTs cannot be COPY requests";
            return Err(respond::text(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        let most = self.max_manifest_size;
        let too_large = || {
            let text = format!("Manifest File > {most} bytes");
            respond::text(StatusCode::PAYLOAD_TOO_LARGE, text)
        };
        let length = respond::header(&parts.headers, CONTENT_LENGTH.as_str());
        let is_chunked = respond::header(&parts.headers, TRANSFER_ENCODING.as_str())
            .is_some_and(|t| t.eq_ignore_ascii_case("chunked"));
        match length.map(|l| l.trim().parse::<u64>()) {
            None if !is_chunked => return Err(respond::standard(StatusCode::LENGTH_REQUIRED)),
            Some(Ok(length)) if length > most => return Err(too_large()),
            _ => {}
        }
        let bytes = body.collect(most).await.map_err(|error| match error {
            BodyError::TooLarge(_) => too_large(),
            _ => respond::standard(respond::status(respond::CLIENT_DISCONNECT)),
        })?;
        let account = format!("/{}/{}", path.version, path.account);
        let wanted = input::parse(&bytes, &path.path(), &account)
            .map_err(|complaints| respond::text(StatusCode::BAD_REQUEST, complaints))?;
        let objects = wanted.iter().filter(|w| matches!(w, Wanted::Object(_)));
        if objects.count() > self.max_manifest_segments {
            let text = format!(
                "Number of object-backed segments must be <= {}",
                self.max_manifest_segments
            );
            return Err(respond::text(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        Ok(wanted)
    }

    async fn store(&self, upload: Upload) -> Outcome {
        let found = self.look_at_segments(&upload).await;
        let mut problems = Vec::new();
        let mut stored = Vec::with_capacity(upload.wanted.len());
        let mut size: u64 = 0;
        let last = upload.wanted.len().saturating_sub(1);
        for (index, wanted) in upload.wanted.iter().enumerate() {
            match wanted {
                Wanted::Inline(data) => {
                    size = size.saturating_add(data.len() as u64);
                    stored.push(Stored {
                        data: Some(BASE64_STANDARD.encode(data)),
                        ..Stored::default()
                    });
                }
                Wanted::Object(object) => {
                    let Some(found) = found.get(object.path.as_str()) else {
                        continue;
                    };
                    let (length, entry) = check(object, found, index == last, &mut problems);
                    size = size.saturating_add(length);
                    stored.push(entry);
                }
            }
        }
        if size > i64::MAX as u64 {
            let name = quote_path(&upload.path.object);
            problems.push((name, "The large object would be too large".into()));
        }
        if !problems.is_empty() {
            return Outcome::Problems(problems);
        }
        let etag = manifest::etag(&stored);
        let client = respond::header(&upload.parts.headers, ETAG.as_str()).map(normalize_etag);
        if client.is_some_and(|client| !client.is_empty() && client != etag) {
            return Outcome::WrongEtag;
        }
        let json = serde_json::to_vec(&stored).unwrap_or_default();
        let request = storing_request(upload, json, &etag, size);
        let mut response = self.next.call(request).await;
        if response.status().is_success() {
            let value = format!("\"{etag}\"");
            respond::set(response.headers_mut(), ETAG.as_str(), value);
        }
        Outcome::Stored { response }
    }

    /// Sends a HEAD for every distinct object.
    async fn look_at_segments(&self, upload: &Upload) -> BTreeMap<String, Found> {
        let requests = Subrequests::of(&upload.parts, SOURCE, "SLO MultipartPUT");
        let mut paths: Vec<&str> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for wanted in &upload.wanted {
            if let Wanted::Object(object) = wanted
                && seen.insert(object.path.as_str())
            {
                paths.push(&object.path);
            }
        }
        let heads = paths.into_iter().map(|name| {
            let path = upload.path.sibling(name);
            let request = requests.request(Method::HEAD, &path, None);
            async move {
                let response = match (request, ObjectPath::of(&quote_path(&path))) {
                    // Through this filter, so that a nested manifest has the large object's length
                    // and ETag.
                    (Some(request), Some(path)) => self.get_or_head(request, path).await,
                    _ => respond::standard(StatusCode::BAD_REQUEST),
                };
                (name.to_owned(), Found::of(&response))
            }
        });
        // Boxed, because this future contains futures of its own type.
        let heads = heads.map(
            |head| -> std::pin::Pin<Box<dyn Future<Output = _> + Send + '_>> { Box::pin(head) },
        );
        let heads: Vec<_> = heads.collect();
        stream::iter(heads)
            .buffer_unordered(self.concurrency)
            .collect()
            .await
    }
}

impl Found {
    fn of(response: &Response) -> Found {
        let text = |name: &HeaderName| respond::header(response.headers(), name.as_str());
        let modified = text(&LAST_MODIFIED).and_then(parse_date).unwrap_or(0);
        let length = text(&CONTENT_LENGTH).and_then(|l| l.parse().ok());
        Found {
            status: response.status(),
            length: length.unwrap_or(0),
            etag: normalize_etag(text(&ETAG).unwrap_or("")).to_owned(),
            content_type: text(&CONTENT_TYPE).unwrap_or("").to_owned(),
            last_modified: Timestamp::from_secs(modified).isoformat(),
            is_manifest: text(&X_STATIC_LARGE_OBJECT).is_some_and(is_true),
        }
    }
}

/// The segment in its stored form, and its length; an error is added to `problems`.
fn check(
    wanted: &WantedObject,
    found: &Found,
    is_last: bool,
    problems: &mut Vec<(String, String)>,
) -> (u64, Stored) {
    let mut problem = |text: String| problems.push((quote_path(&wanted.path), text));
    if !found.status.is_success() {
        problem(respond::status_line(found.status));
        return (0, Stored::default());
    }
    let (mut length, mut range) = (found.length, None);
    if let Some(asked) = &wanted.range {
        match asked.for_length(found.length).first() {
            None => problem("Unsatisfiable Range".into()),
            // The whole object.
            Some(all) if *all == (0..found.length) => {}
            Some(part) => {
                length = part.end - part.start;
                range = Some(format!("{}-{}", part.start, part.end.saturating_sub(1)));
            }
        }
    }
    if length < 1 && !is_last {
        problem(TOO_SMALL.into());
    }
    if wanted
        .size
        .is_some_and(|size| u64::try_from(size) != Ok(found.length))
    {
        problem("Size Mismatch".into());
    }
    if wanted.etag.as_ref().is_some_and(|etag| *etag != found.etag) {
        problem("Etag Mismatch".into());
    }
    let entry = Stored {
        name: Some(format!("/{}", wanted.path.trim_start_matches('/'))),
        bytes: Some(found.length),
        hash: Some(found.etag.clone()),
        content_type: Some(found.content_type.clone()),
        last_modified: Some(found.last_modified.clone()),
        range,
        sub_slo: found.is_manifest.then_some(true),
        data: None,
    };
    (length, entry)
}

/// The PUT of the manifest as an object.
fn storing_request(upload: Upload, json: Vec<u8>, etag: &str, size: u64) -> Request {
    let Upload { parts, path, .. } = upload;
    let mut context = Context::of(&parts);
    context.content_type_overridden = true;
    let mut headers = parts.headers;
    set_content_type(&mut headers, &path.object, size);
    let json_md5 = hex::encode(Md5::digest(&json));
    headers.remove(TRANSFER_ENCODING);
    headers.insert(CONTENT_LENGTH, json.len().into());
    respond::set(&mut headers, ETAG.as_str(), &json_md5);
    respond::set(&mut headers, SYSMETA_SLO_ETAG, etag);
    respond::set(&mut headers, SYSMETA_SLO_SIZE, size.to_string());
    respond::set(&mut headers, X_STATIC_LARGE_OBJECT.as_str(), "True");
    // The container's row has both ETags; a filter before this one may have set the first.
    let given = respond::header(&headers, ETAG_OVERRIDE).unwrap_or("");
    let (own, rest) = match given.split_once(';') {
        Some((own, rest)) => (own, format!(";{rest}")),
        None => (given, String::new()),
    };
    let own = if own.is_empty() { &json_md5 } else { own };
    let value = format!("{own}{rest}; slo_etag={etag}");
    respond::set(&mut headers, ETAG_OVERRIDE, value);

    let mut request = Request::new(Body::full(json));
    *request.method_mut() = parts.method;
    *request.uri_mut() = parts.uri;
    *request.version_mut() = parts.version;
    *request.headers_mut() = headers;
    *request.extensions_mut() = parts.extensions;
    request.extensions_mut().insert(context);
    request
}

/// Sets the client's content type, or one guessed from the name, with the large object's size.
fn set_content_type(headers: &mut HeaderMap, object: &str, size: u64) {
    let detect = headers.remove("x-detect-content-type");
    let detect = detect.is_some_and(|v| v.to_str().is_ok_and(is_true));
    let given = respond::header(headers, CONTENT_TYPE.as_str());
    let own = match given.filter(|given| !given.is_empty() && !detect) {
        Some(given) => given,
        None => content_type::guess(object),
    };
    let value = format!("{own};swift_bytes={size}");
    respond::set(headers, CONTENT_TYPE.as_str(), value);
}

fn answer(outcome: Outcome, format: &'static str) -> Response {
    match outcome {
        Outcome::Stored { response } => response,
        Outcome::WrongEtag => respond::standard(StatusCode::UNPROCESSABLE_ENTITY),
        Outcome::Problems(errors) => {
            let report = Report {
                errors,
                ..Report::default()
            };
            let text = report.render(format, "upload");
            respond::typed(StatusCode::BAD_REQUEST, format, text)
        }
    }
}

async fn tell(outcome: Outcome) -> Report {
    let mut report = Report::default();
    let refused = |report: &mut Report, status: StatusCode| {
        report.set("Response Status", respond::status_line(status));
        report.set("Response Body", respond::explain(status));
    };
    match outcome {
        Outcome::Problems(errors) => {
            refused(&mut report, StatusCode::BAD_REQUEST);
            report.errors = errors;
        }
        Outcome::WrongEtag => refused(&mut report, StatusCode::UNPROCESSABLE_ENTITY),
        Outcome::Stored { response } => {
            let (head, body) = response.into_parts();
            report.set("Response Status", respond::status_line(head.status));
            if head.status.is_success() {
                for (fact, name) in [("Etag", ETAG), ("Last Modified", LAST_MODIFIED)] {
                    let value = respond::header(&head.headers, name.as_str());
                    report.set(fact, value.unwrap_or(""));
                }
            }
            let body = body.collect(BODY_MAX).await.unwrap_or_default();
            report.set("Response Body", String::from_utf8_lossy(&body).into_owned());
        }
    }
    report
}
