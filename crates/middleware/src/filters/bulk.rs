//! Filter `bulk`: operations on many objects in one request. `PUT
//! ?extract-archive=tar|tar.gz|tar.bz2` creates an object for each file of an archive; `POST` (or
//! `DELETE`) `?bulk-delete` deletes the objects that its body lists, one per line.
//!
//! Both respond 200 in any case; the outcome is in the report in the body, as text, JSON or XML.
//! While an operation is slow, blanks are sent before the report.

mod archive;
mod delete;
mod extract;
mod names;
mod unpack;

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::params::{Params, split_path, unquote};
use cairn_http::{Handler, Request, Response, Service, ServiceFuture, respond};
use cairn_types::Constraints;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;

pub(crate) use delete::{Deleter, Deletion, NextDeletion, Targets, answer_deletion};
use unpack::Packing;

use crate::report::{self, Report};
use crate::subrequest::Subrequests;
use crate::{FilterEnv, FilterError};

/// The reason why the whole operation ended, for its report.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

impl Refusal {
    fn of(status: StatusCode) -> Self {
        Refusal {
            status,
            body: String::new(),
        }
    }

    fn bad(body: impl Into<String>) -> Self {
        Refusal {
            status: StatusCode::BAD_REQUEST,
            body: body.into(),
        }
    }
}

struct Bulk(Arc<Inner>);

struct Inner {
    next: Handler,
    constraints: Arc<Constraints>,
    max_containers_per_extraction: usize,
    max_failed_extractions: usize,
    max_deletes_per_request: usize,
    max_failed_deletes: usize,
    yield_frequency: Duration,
    delete_concurrency: usize,
    delete_container_retry_count: u32,
    max_expansion_ratio: u64,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let retries = section.u64_or("delete_container_retry_count", 0)?;
    let bulk = Inner {
        next,
        constraints: env.constraints.clone(),
        max_containers_per_extraction: section.usize_or("max_containers_per_extraction", 10_000)?,
        max_failed_extractions: section.usize_or("max_failed_extractions", 1000)?,
        max_deletes_per_request: section.usize_or("max_deletes_per_request", 10_000)?,
        max_failed_deletes: section.usize_or("max_failed_deletes", 1000)?,
        yield_frequency: Duration::from_secs(section.u64_or("yield_frequency", 10)?),
        delete_concurrency: section.usize_or("delete_concurrency", 2)?.clamp(1, 1000),
        delete_container_retry_count: u32::try_from(retries).unwrap_or(u32::MAX),
        max_expansion_ratio: section.u64_or("max_expansion_ratio", 1000)?,
    };
    env.swift_info.register(
        "bulk_upload",
        json!({
            "max_containers_per_extraction": bulk.max_containers_per_extraction,
            "max_failed_extractions": bulk.max_failed_extractions,
        }),
    );
    env.swift_info.register(
        "bulk_delete",
        json!({
            "max_deletes_per_request": bulk.max_deletes_per_request,
            "max_failed_deletes": bulk.max_failed_deletes,
        }),
    );
    Ok(Arc::new(Bulk(Arc::new(bulk))))
}

impl Service for Bulk {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let query = request.uri().query().unwrap_or("");
        // Most requests are passed on here.
        if !query.contains("extract-archive") && !query.contains("bulk-delete") {
            return self.0.next.call(request);
        }
        let params = Params::parse(Some(query)).unwrap_or_default();
        let method = request.method();
        let deletes = method == Method::POST || method == Method::DELETE;
        if deletes && params.contains("bulk-delete") {
            return Box::pin(self.0.clone().bulk_delete(request));
        }
        match params.get("extract-archive") {
            Some(kind) if method == Method::PUT => match Packing::of(kind) {
                Some(packing) => Box::pin(self.0.clone().extract_archive(request, packing)),
                None => Box::pin(async {
                    respond::text(StatusCode::BAD_REQUEST, "Unsupported archive format")
                }),
            },
            _ => self.0.next.call(request),
        }
    }
}

/// Decoded version, account, and the rest of the path.
struct AccountPath {
    version: String,
    account: String,
    rest: String,
}

impl AccountPath {
    fn of(parts: &Parts) -> Result<AccountPath, Refusal> {
        let not_found = || Refusal::of(StatusCode::NOT_FOUND);
        let path = unquote(parts.uri.path()).map_err(|_| not_found())?;
        let segments = split_path(&path, 2, 3, true).ok_or_else(not_found)?;
        Ok(AccountPath {
            version: segments[0].unwrap_or("").to_owned(),
            account: segments[1].unwrap_or("").to_owned(),
            rest: segments[2].unwrap_or("").to_owned(),
        })
    }
}

/// Checks that a body has a length or is chunked.
fn check_length(parts: &Parts) -> Result<(), Refusal> {
    let is_chunked = respond::header(&parts.headers, TRANSFER_ENCODING.as_str())
        .is_some_and(|t| t.eq_ignore_ascii_case("chunked"));
    if is_chunked || parts.headers.contains_key(CONTENT_LENGTH) {
        return Ok(());
    }
    Err(Refusal::of(StatusCode::LENGTH_REQUIRED))
}

fn wanted_format(parts: &Parts) -> Option<&'static str> {
    report::format_for(respond::header(&parts.headers, ACCEPT.as_str()))
}

/// The report of a refused operation.
fn failed(refusal: &Refusal) -> Report {
    let mut report = Report::default();
    report.set("Response Status", respond::status_line(refusal.status));
    report.set("Response Body", refusal.body.clone());
    report
}

fn answer(body: cairn_http::Body, format: &'static str) -> Response {
    let mut response = respond::typed(StatusCode::OK, format, body);
    let content_type = HeaderValue::from_static(format);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

impl Inner {
    /// Maximum length of a name in a list of names.
    fn max_path_length(&self) -> usize {
        self.constraints.max_object_name_length + self.constraints.max_container_name_length + 2
    }

    async fn bulk_delete(self: Arc<Self>, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let format = wanted_format(&parts);
        let deleter = Deleter {
            next: self.next.clone(),
            requests: Subrequests::of(&parts, "BD", "BulkDelete"),
            concurrency: self.delete_concurrency,
            max_failed: self.max_failed_deletes,
            retry_count: self.delete_container_retry_count,
            version: String::new(),
            account: String::new(),
        };
        let every = self.yield_frequency;
        let names = names::Names::new(self, parts, body);
        answer_deletion(deleter, names, format, every).await
    }
}

#[cfg(test)]
mod tests;
