//! Filter `formpost`: uploads from browsers' forms. A POST of `multipart/form-data` to a container,
//! or a prefix in it, becomes a PUT of each file. The form's fields state what is allowed, and are
//! signed by a temporary-URL key of the account or container: `max_file_size`, `max_file_count`,
//! `expires`, `redirect`; unsigned are `x_delete_at`, `x_delete_after`, `content-type`,
//! `content-encoding`. A field applies to the files after it.
//!
//! The signature covers, one line each: path, redirect, max_file_size, max_file_count, expires.
//! Option: `allowed_digests`. Files are streamed: only fields are held in memory, 4 KiB of each.

mod attributes;
mod multipart;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::{quote_path, unquote};
use cairn_http::{
    Body, BodyError, BodySender, Clock, Handler, InfoSource, Request, Response, Service,
    ServiceFuture, respond,
};
use cairn_types::{Constraints, Timestamp};
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
    TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use thiserror::Error;

use crate::names::Names;
use crate::signature::{AllowedDigests, Signature, keys};
use crate::status;
use crate::subrequest::subrequest;
use crate::{FilterEnv, FilterError};
use multipart::{Multipart, MultipartError, PartHeaders};

/// Maximum bytes of a field's value; the rest is dropped.
const VALUE_MAX_BYTES: usize = 4096;
const FIELDS_MAX: usize = 256;
/// Maximum bytes of an error body that are passed on.
const REFUSAL_MAX_BYTES: u64 = 64 << 10;

struct FormPost {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
    constraints: Arc<Constraints>,
    clock: Clock,
    digests: AllowedDigests,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let digests = AllowedDigests::read(section)?;
    env.swift_info.register("formpost", digests.info());
    Ok(Arc::new(FormPost {
        next,
        info_source: env.info_source.clone(),
        constraints: env.constraints.clone(),
        clock: env.clock.clone(),
        digests,
    }))
}

impl Service for FormPost {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if request.method() != Method::POST {
            return self.next.call(request);
        }
        let content_type = respond::header(request.headers(), CONTENT_TYPE.as_str()).unwrap_or("");
        let (kind, attributes) = attributes::parse(content_type);
        match attributes::get(&attributes, "boundary") {
            Some(boundary) if kind == "multipart/form-data" => {
                let boundary = boundary.to_owned();
                Box::pin(async move {
                    let (parts, body) = request.into_parts();
                    match self.translate(&parts, body, &boundary).await {
                        Ok(response) => response,
                        Err(error) => error.response(),
                    }
                })
            }
            _ => self.next.call(request),
        }
    }
}

/// Reasons why a form is refused.
#[derive(Debug, Error)]
enum FormError {
    #[error("FormPost: {0}")]
    Invalid(&'static str),
    #[error("FormPost: {0}")]
    Unauthorized(&'static str),
    #[error("FormPost: {0}")]
    Multipart(#[from] MultipartError),
}

impl FormError {
    fn response(&self) -> Response {
        let text = self.to_string();
        match self {
            FormError::Unauthorized(_) => {
                let mut response = crate::resellers::unauthorized("unknown");
                let headers = response.headers_mut();
                headers.insert(CONTENT_LENGTH, text.len().into());
                *response.body_mut() = text.into();
                response
            }
            FormError::Multipart(MultipartError::Body(error)) => status::broken_body(error),
            FormError::Invalid(_) | FormError::Multipart(_) => plain(StatusCode::BAD_REQUEST, text),
        }
    }
}

fn plain(code: StatusCode, text: impl Into<Body>) -> Response {
    respond::typed(code, "text/plain", text)
}

/// Outcome of storing the form's files.
enum Outcome {
    NoFiles,
    TooManyFiles,
    /// The last file's response; an error ended the form.
    Answered(Answer),
}

struct Answer {
    status: StatusCode,
    /// CORS headers of the response.
    cors: HeaderMap,
    /// Body of an error response.
    body: Bytes,
}

/// The form's fields so far, with names in lower case.
#[derive(Clone, Default)]
struct Fields(BTreeMap<String, String>);

impl Fields {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A field that is present and not empty.
    fn some(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &str, complaint: &'static str) -> Result<i64, FormError> {
        let text = self.some(name).unwrap_or("0");
        text.trim()
            .parse()
            .map_err(|_| FormError::Invalid(complaint))
    }
}

impl FormPost {
    async fn translate(
        &self,
        parts: &Parts,
        body: Body,
        boundary: &str,
    ) -> Result<Response, FormError> {
        let mut form = Multipart::start(body, boundary).await?;
        let mut fields = Fields::default();
        let mut outcome = Outcome::NoFiles;
        let mut cors = HeaderMap::new();
        let mut files = 0;
        while let Some(headers) = form.next_part().await? {
            let (kind, attributes) =
                attributes::parse(headers.get("content-disposition").unwrap_or(""));
            let filename = attributes::get(&attributes, "filename").filter(|f| !f.is_empty());
            match filename {
                Some(filename) if kind == "form-data" => {
                    files += 1;
                    let most = fields.number("max_file_count", "max_file_count not an integer")?;
                    if files > most {
                        outcome = Outcome::TooManyFiles;
                        break;
                    }
                    let answer = self
                        .file(parts, &fields, &headers, filename, &mut form)
                        .await?;
                    let stored = answer.status.is_success();
                    cors.clone_from(&answer.cors);
                    outcome = Outcome::Answered(answer);
                    if !stored {
                        break;
                    }
                }
                _ => field(&mut form, &mut fields, attributes::get(&attributes, "name")).await?,
            }
        }
        let mut response = respond_to(outcome, fields.some("redirect"))?;
        response.headers_mut().extend(cors);
        Ok(response)
    }

    /// Stores one file, if the fields before it allow that.
    async fn file(
        &self,
        parts: &Parts,
        fields: &Fields,
        headers: &PartHeaders,
        filename: &str,
        form: &mut Multipart,
    ) -> Result<Answer, FormError> {
        let max_file_size = fields.number("max_file_size", "max_file_size not an integer")?;
        let request_headers = object_headers(fields, headers)?;
        self.authorize(parts, fields).await?;
        let path = unquote(parts.uri.path()).unwrap_or_default();
        let is_container = !path.ends_with('/') && path.matches('/').count() < 4;
        let slash = if is_container { "/" } else { "" };
        let context = Context::of(parts).pre_authorized("FP");
        let path = format!("{path}{slash}{filename}");
        let put = subrequest(parts, Method::PUT, &path, None, "FormPost", context);
        let Some(mut put) = put else {
            return Err(FormError::Invalid("the file's name is too long"));
        };
        put.headers_mut().extend(request_headers);
        let max_file_size = u64::try_from(max_file_size).unwrap_or(0);
        let response = self.send(put, form, max_file_size).await?;
        let (head, body) = response.into_parts();
        let body = if head.status.is_success() {
            Bytes::new()
        } else {
            body.collect(REFUSAL_MAX_BYTES).await.unwrap_or_default()
        };
        Ok(Answer {
            status: head.status,
            cors: cors_headers(&head.headers),
            body,
        })
    }

    /// Streams the current part into a PUT.
    async fn send(
        &self,
        mut put: Request,
        form: &mut Multipart,
        most: u64,
    ) -> Result<Response, FormError> {
        let (sender, body) = Body::channel(None, 2);
        *put.body_mut() = body;
        let mut call = pin!(self.next.call(put));
        let mut pumped = pin!(pump(form, sender, most));
        tokio::select! {
            biased;
            response = &mut call => {
                // The response came before the file's end: either it is an error and the body was
                // dropped, or the end is about to be seen.
                if response.status().is_success() {
                    pumped.await?;
                }
                Ok(response)
            }
            pumped = &mut pumped => {
                let response = call.await;
                pumped.map(|()| response)
            }
        }
    }

    /// Is the form signed by a key of the account or the container, and not expired?
    async fn authorize(&self, parts: &Parts, fields: &Fields) -> Result<(), FormError> {
        let bad = FormError::Unauthorized("Invalid Signature");
        let names = Names::of_api(parts.uri.path(), &self.constraints);
        let Some((names, container)) = names.and_then(|n| Some((n.clone(), n.container?))) else {
            return Err(bad);
        };
        let context = Context::of(parts);
        let account_info = self.info_source.account(&context, &names.account).await;
        let container_info = self
            .info_source
            .container(&context, &names.account, &container)
            .await;
        let keys = keys(&account_info, &container_info);
        if keys.is_empty() {
            return Err(bad);
        }
        let expires = fields.number("expires", "expired not an integer")?;
        let expires = u64::try_from(expires).unwrap_or(0);
        if Timestamp::from_secs(expires) < self.clock.now() {
            return Err(FormError::Unauthorized("Form Expired"));
        }
        let signature = Signature::parse(fields.get("signature").unwrap_or(""));
        let Some(signature) = signature.filter(|signature| self.digests.allow(signature)) else {
            return Err(bad);
        };
        let message = format!(
            "{}\n{}\n{}\n{}\n{}",
            unquote(parts.uri.path()).unwrap_or_default(),
            fields.get("redirect").unwrap_or(""),
            fields.some("max_file_size").unwrap_or("0"),
            fields.some("max_file_count").unwrap_or("0"),
            fields.some("expires").unwrap_or("0"),
        );
        // All keys are tried, so that the time taken reveals nothing.
        let valid = keys
            .iter()
            .filter(|(key, _)| signature.signs(key, message.as_bytes()))
            .count();
        if valid == 0 { Err(bad) } else { Ok(()) }
    }
}

/// Passes a part on until its end, until its reader is dropped, or up to one byte more than
/// allowed.
async fn pump(form: &mut Multipart, sender: BodySender, most: u64) -> Result<(), FormError> {
    let mut sent = 0;
    loop {
        match form.chunk().await {
            Ok(Some(chunk)) => {
                sent += chunk.len() as u64;
                if sent > most {
                    sender.fail(BodyError::TooLarge(most)).await;
                    return Err(FormError::Invalid("max_file_size exceeded"));
                }
                if !sender.send(chunk).await {
                    return Ok(());
                }
            }
            Ok(None) => {
                sender.finish().await;
                return Ok(());
            }
            Err(error) => {
                sender.fail(BodyError::Disconnected).await;
                return Err(error.into());
            }
        }
    }
}

/// Headers of the object for a file.
fn object_headers(fields: &Fields, part: &PartHeaders) -> Result<HeaderMap, FormError> {
    let mut headers = HeaderMap::new();
    headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    for (field, name, complaint) in [
        (
            "x_delete_at",
            "x-delete-at",
            "x_delete_at not an integer: Unix timestamp required.",
        ),
        (
            "x_delete_after",
            "x-delete-after",
            "x_delete_after not an integer: Number of seconds required.",
        ),
    ] {
        if let Some(text) = fields.get(field) {
            let number: i64 = text
                .trim()
                .parse()
                .map_err(|_| FormError::Invalid(complaint))?;
            headers.insert(HeaderName::from_static(name), number.into());
        }
    }
    let content_type = fields
        .get("content-type")
        .or_else(|| part.get("content-type"));
    if let Some(text) = content_type {
        let text = if text.is_empty() {
            "application/octet-stream"
        } else {
            text
        };
        respond::set(&mut headers, CONTENT_TYPE.as_str(), text);
    }
    let encoding = fields
        .get("content-encoding")
        .or_else(|| part.get("content-encoding"));
    if let Some(text) = encoding {
        respond::set(&mut headers, CONTENT_ENCODING.as_str(), text);
    }
    Ok(headers)
}

/// Stores the value of a part that is not a file.
async fn field(
    form: &mut Multipart,
    fields: &mut Fields,
    name: Option<&str>,
) -> Result<(), FormError> {
    let mut value = Vec::new();
    while let Some(chunk) = form.chunk().await? {
        let room = VALUE_MAX_BYTES - value.len();
        value.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    let Some(name) = name else { return Ok(()) };
    if fields.0.len() >= FIELDS_MAX {
        return Err(FormError::Invalid("too many fields"));
    }
    let value = match String::from_utf8(value) {
        Ok(value) => value,
        Err(_) => return Err(FormError::Invalid("a field's value is not UTF-8")),
    };
    let value = value.trim_end_matches(['\r', '\n', '-']).to_owned();
    fields.0.insert(name.to_lowercase(), value);
    Ok(())
}

fn respond_to(outcome: Outcome, redirect: Option<&str>) -> Result<Response, FormError> {
    let (status, message, answer) = match outcome {
        Outcome::NoFiles => (StatusCode::BAD_REQUEST, "no files to process", None),
        Outcome::TooManyFiles => (StatusCode::BAD_REQUEST, "max file count exceeded", None),
        Outcome::Answered(answer) => (answer.status, "", Some(answer)),
    };
    let response = match redirect {
        Some(redirect) => redirection(redirect, status, message)?,
        None => {
            let line = status_line(status);
            let refusal = answer.as_ref().map(|answer| &answer.body);
            match refusal.filter(|body| !body.is_empty()) {
                Some(body) => plain(status, body.clone()),
                None if message.is_empty() => plain(status, line),
                None => plain(status, format!("{line}\r\nFormPost: {}", title(message))),
            }
        }
    };
    Ok(response)
}

fn cors_headers(headers: &HeaderMap) -> HeaderMap {
    let shown = |name: &HeaderName| name.as_str().starts_with("access-control");
    let pairs = headers.iter().filter(|(name, _)| shown(name));
    pairs
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn status_line(status: StatusCode) -> String {
    let reason = status.canonical_reason().unwrap_or("");
    format!("{} {reason}", status.as_u16())
        .trim_end()
        .to_owned()
}

fn title(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        format!("{}{rest}", first.to_uppercase())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Redirects the browser, with status and message in the query.
fn redirection(to: &str, status: StatusCode, message: &str) -> Result<Response, FormError> {
    let mark = if to.contains('?') { '&' } else { '?' };
    let (status, message) = (status.as_u16(), quote_path(message));
    let url = format!("{to}{mark}status={status}&message={message}");
    let Some(location) = respond::value(&url) else {
        return Err(FormError::Invalid(
            "the redirect cannot be sent in a header",
        ));
    };
    let link = crate::html::escape(&url);
    let page =
        format!("<html><body><p><a href=\"{link}\">Click to continue...</a></p></body></html>");
    let mut response = respond::typed(StatusCode::SEE_OTHER, respond::HTML, page);
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

#[cfg(test)]
mod tests;
