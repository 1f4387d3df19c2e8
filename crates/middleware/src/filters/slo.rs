//! Filter `slo`, static large objects: a manifest lists segments, and is read as their
//! concatenation.
//!
//! `PUT ?multipart-manifest=put` with a JSON list checks every segment and stores the manifest as
//! an object with these marks: `X-Static-Large-Object: True`, the large object's ETag and size in
//! `X-Object-Sysmeta-Slo-Etag` and `-Slo-Size`, and its size in the content type's `swift_bytes`,
//! which listings show. `GET` reads the segments, `?multipart-manifest=get` the manifest, `DELETE
//! ?multipart-manifest=delete` deletes both.

mod delete;
mod expire;
mod get;
mod input;
mod listing;
mod manifest;
mod put;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::{Params, is_true, split_path, unquote};
use cairn_http::{Clock, Handler, InfoSource, Request, Response, Service, ServiceFuture, respond};
use cairn_types::HashPath;
use http::header::HeaderName;
use http::{Method, StatusCode};
use serde_json::json;

use crate::api_path::ObjectPath;
use crate::random::Random;
use crate::segments::RateLimit;
use crate::{FilterEnv, FilterError};

const SOURCE: &str = "SLO";
const X_STATIC_LARGE_OBJECT: HeaderName = HeaderName::from_static("x-static-large-object");
const SYSMETA_SLO_ETAG: &str = "x-object-sysmeta-slo-etag";
const SYSMETA_SLO_SIZE: &str = "x-object-sysmeta-slo-size";

struct Slo(Arc<Inner>);

struct Inner {
    next: Handler,
    max_manifest_segments: usize,
    max_manifest_size: u64,
    yield_frequency: Duration,
    allow_async_delete: bool,
    max_get_time: Duration,
    rate: RateLimit,
    rate_limit_under_size: u64,
    concurrency: usize,
    delete_concurrency: usize,
    expirer: expire::Queue,
    info_source: Arc<dyn InfoSource>,
    hash_path: HashPath,
    clock: Clock,
    random: Random,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let concurrency = section.usize_or("concurrency", 2)?;
    let delete_concurrency = section.usize_or("delete_concurrency", concurrency)?;
    let yield_frequency = section.u64_or("yield_frequency", 10)?;
    let slo = Inner {
        next,
        max_manifest_segments: section.usize_or("max_manifest_segments", 1000)?,
        max_manifest_size: section.u64_or("max_manifest_size", 8 << 20)?,
        yield_frequency: Duration::from_secs(yield_frequency),
        allow_async_delete: section.bool_or("allow_async_delete", true),
        max_get_time: Duration::from_secs(section.u64_or("max_get_time", 86_400)?),
        rate: RateLimit::read(section)?,
        rate_limit_under_size: section.u64_or("rate_limit_under_size", 1 << 20)?,
        concurrency: concurrency.clamp(1, 1000),
        delete_concurrency: delete_concurrency.clamp(1, 1000),
        expirer: expire::Queue::read(section)?,
        info_source: env.info_source.clone(),
        hash_path: env.hash_path.clone(),
        clock: env.clock.clone(),
        random: env.random.clone(),
    };
    env.swift_info.register(
        "slo",
        json!({
            "max_manifest_segments": slo.max_manifest_segments,
            "max_manifest_size": slo.max_manifest_size,
            "yield_frequency": yield_frequency,
            "min_segment_size": 1,
            "allow_async_delete": slo.allow_async_delete,
        }),
    );
    Ok(Arc::new(Slo(Arc::new(slo))))
}

impl Service for Slo {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if Context::of_request(&request).slo_override {
            return self.0.next.call(request);
        }
        let method = request.method().clone();
        let Some(path) = ObjectPath::of(request.uri().path()) else {
            if method == Method::GET && is_container(request.uri().path()) {
                return Box::pin(listing::with_slo_etags(&self.0.next, request));
            }
            return self.0.next.call(request);
        };
        let params = Params::parse(request.uri().query()).unwrap_or_default();
        let mode = params.get("multipart-manifest");
        if method == Method::GET || method == Method::HEAD {
            return Box::pin(self.0.get_or_head(request, path));
        }
        if method == Method::PUT && mode == Some("put") {
            return Box::pin(self.0.clone().put(request, path, params));
        }
        if method == Method::DELETE && mode == Some("delete") {
            let is_async = params.get("async").is_some_and(is_true);
            if is_async && self.0.allow_async_delete {
                return Box::pin(self.0.delete_later(request, path, params));
            }
            return Box::pin(self.0.clone().delete(request, path, params));
        }
        if request.headers().contains_key(X_STATIC_LARGE_OBJECT) {
            return Box::pin(async { reserved_header() });
        }
        self.0.next.call(request)
    }
}

fn is_container(raw: &str) -> bool {
    let path = unquote(raw).unwrap_or_default();
    split_path(&path, 3, 4, true).is_some_and(|parts| parts[3].is_none())
}

fn reserved_header() -> Response {
    respond::text(
        StatusCode::BAD_REQUEST,
        "X-Static-Large-Object is a reserved header. To create a static large object add query \
         param multipart-manifest=put.",
    )
}

impl Inner {
    /// Maximum bytes read of a stored manifest: it may be larger than the client's form, and
    /// operators may have lowered the limit since.
    fn manifest_read_max(&self) -> u64 {
        self.max_manifest_size.saturating_mul(4).max(32 << 20)
    }
}

#[cfg(test)]
mod tests;
