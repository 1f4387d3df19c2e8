//! Filter `symlink`: objects without content that stand for another. Reading a symlink returns its
//! target; a *static* link also records the target's expected ETag, a *dynamic* one does not.
//!
//! System metadata of a link: `X-Object-Sysmeta-Symlink-Target`, `-Target-Account`, `-Target-Etag`
//! and `-Target-Bytes`, and the same as parameters of the hash in the container's row (through
//! `X-Object-Sysmeta-Container-Update-Override-Etag`), for listings. Targets are percent-encoded.
//!
//! A link to an object's own latest version is trusted (`trust.rs`): with
//! `X-Object-Sysmeta-Allow-Reserved-Names` it is followed with the proxy's own authority, into
//! reserved names, and with `X-Object-Sysmeta-Symloop-Extend` it does not count for `symloop_max`.
//! Any other link with that metadata is followed like one made by a client.

mod listing;
mod put;

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::{Params, is_true, quote};
use cairn_http::{Body, Handler, Request, Response, Service, ServiceFuture, respond};
use http::header::{ETAG, HeaderName, LOCATION};
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::json;

use crate::api_path::{ApiPath, ObjectPath, names_object, set};
use crate::cause::drain;
use crate::status;
use crate::trust::{ALLOW_RESERVED_NAMES, SYMLOOP_EXTEND};
use crate::version_names::is_version_of;
use crate::{FilterEnv, FilterError};
pub(crate) use put::AskedBy;

const SOURCE: &str = "SYM";

pub(crate) const TARGET: HeaderName = HeaderName::from_static("x-symlink-target");
pub(crate) const TARGET_ACCOUNT: HeaderName = HeaderName::from_static("x-symlink-target-account");
pub(crate) const TARGET_ETAG: HeaderName = HeaderName::from_static("x-symlink-target-etag");
const TARGET_BYTES: HeaderName = HeaderName::from_static("x-symlink-target-bytes");

const STORED_TARGET: HeaderName = HeaderName::from_static("x-object-sysmeta-symlink-target");
const STORED_ACCOUNT: HeaderName =
    HeaderName::from_static("x-object-sysmeta-symlink-target-account");
pub(crate) const STORED_ETAG: HeaderName =
    HeaderName::from_static("x-object-sysmeta-symlink-target-etag");
pub(crate) const STORED_BYTES: HeaderName =
    HeaderName::from_static("x-object-sysmeta-symlink-target-bytes");
pub(crate) const BACKEND_ALLOW_RESERVED: HeaderName =
    HeaderName::from_static("x-backend-allow-reserved-names");

const IGNORE_RANGE: HeaderName =
    HeaderName::from_static("x-backend-ignore-range-if-metadata-present");
const CONTENT_LOCATION: HeaderName = HeaderName::from_static("content-location");

const SHOWN_AND_STORED: [(HeaderName, HeaderName); 4] = [
    (TARGET, STORED_TARGET),
    (TARGET_ACCOUNT, STORED_ACCOUNT),
    (TARGET_ETAG, STORED_ETAG),
    (TARGET_BYTES, STORED_BYTES),
];

struct Symlink {
    next: Handler,
    /// Maximum number of links followed by one request, not counting trusted ones.
    symloop_max: u64,
}

impl Symlink {
    /// Maximum number of all links followed. A trusted link leads to a version, which is not a
    /// trusted link, so at most every other one is trusted.
    fn steps_max(&self) -> u64 {
        self.symloop_max.saturating_mul(2)
    }
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let symloop_max = match section.u64_or("symloop_max", 2)? {
        0 => 2,
        given => given,
    };
    let details = json!({"symloop_max": symloop_max, "static_links": true});
    env.swift_info.register("symlink", details);
    Ok(Arc::new(Symlink { next, symloop_max }))
}

impl Service for Symlink {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let method = request.method();
        let of_object = names_object(request.uri().path());
        if of_object && (method == Method::GET || method == Method::HEAD) {
            return Box::pin(self.read(request));
        }
        if of_object && method == Method::PUT {
            let request = put::without_marks(request);
            return match request.headers().contains_key(TARGET) {
                true => Box::pin(self.put(request)),
                false => self.next.call(request),
            };
        }
        if of_object && method == Method::POST {
            return Box::pin(self.post(request));
        }
        if !of_object && method == Method::GET {
            return Box::pin(self.list(request));
        }
        self.next.call(request)
    }
}

/// The content of a link's system metadata.
struct Link {
    /// The target: its path as shown to clients, and the same parsed. No URI if the path is too
    /// long for one.
    path: String,
    uri: Option<Uri>,
    etag: Option<String>,
    /// It does not count for `symloop_max`.
    is_free: bool,
    /// It is followed with the proxy's own authority.
    is_trusted: bool,
}

impl Link {
    /// `from` is the link's own location.
    fn of(headers: &HeaderMap, from: &Uri) -> Option<Link> {
        let text = |name: HeaderName| respond::header(headers, name.as_str());
        let filled = |name| text(name).filter(|text| !text.is_empty());
        let target = filled(STORED_TARGET)?.trim_start_matches('/');
        let here = ApiPath::of(from.path())?;
        let account = match filled(STORED_ACCOUNT) {
            Some(account) => account.to_owned(),
            None => quote(&here.account),
        };
        let path = format!("/{}/{account}/{target}", here.version);
        let uri: Option<Uri> = path.parse().ok();
        let is_own_version = uri.as_ref().is_some_and(|uri| points_to_version(from, uri));
        let extends = text(SYMLOOP_EXTEND).is_some_and(is_true);
        Some(Link {
            etag: filled(STORED_ETAG).map(str::to_owned),
            is_free: is_own_version && extends,
            is_trusted: is_own_version && filled(ALLOW_RESERVED_NAMES).is_some(),
            path,
            uri,
        })
    }
}

/// Does a link point to a version of itself? Decided by the decoded names, which the proxy uses,
/// not by their encoding.
fn points_to_version(from: &Uri, to: &Uri) -> bool {
    match (ObjectPath::of(from.path()), ObjectPath::of(to.path())) {
        (Some(link), Some(target)) => is_version_of(&link, &target),
        _ => false,
    }
}

/// State of a read that follows links.
struct Walk {
    /// Number of links that count for `symloop_max`.
    steps: u64,
    all_steps: u64,
    /// Target of the last link.
    at: Option<String>,
    /// ETag expected by the last link, if it was a static one.
    expected: Option<String>,
    follows_dynamic: bool,
}

impl Walk {
    fn conflict(&self, message: String) -> Response {
        let mut response = respond::text(StatusCode::CONFLICT, message);
        self.tell_place(&mut response);
        response
    }

    fn tell_place(&self, response: &mut Response) {
        if let Some(at) = &self.at {
            set(response.headers_mut(), CONTENT_LOCATION, at);
        }
    }

    /// The response when there are no further links.
    fn arrive(self, mut response: Response) -> Response {
        let found = respond::header(response.headers(), ETAG.as_str());
        if let (Some(found), Some(expected)) = (found, &self.expected)
            && found != expected
        {
            // The body may be of any size: it is not read.
            return self.conflict(format!(
                "Object Etag '{found}' does not match X-Symlink-Target-Etag header '{expected}'"
            ));
        }
        self.tell_place(&mut response);
        response
    }
}

impl Symlink {
    async fn read(&self, request: Request) -> Response {
        if asks_for_link(&request) {
            let mut response = self.next.call(request).await;
            show_link(response.headers_mut());
            return response;
        }
        let walk = Walk {
            steps: 0,
            all_steps: 0,
            at: None,
            expected: None,
            follows_dynamic: true,
        };
        self.walk(request, walk).await
    }

    async fn walk(&self, mut request: Request, mut walk: Walk) -> Response {
        // A range applies to the target: a link is read as a whole.
        ignore_range_of_links(request.headers_mut());
        let asked = ReadRequest::of(&request);
        let mut here = request.uri().clone();
        loop {
            let response = self.next.call(request).await;
            let link = Link::of(response.headers(), &here);
            let Some(link) = link.filter(|l| l.etag.is_some() || walk.follows_dynamic) else {
                return walk.arrive(response);
            };
            let own_etag = respond::header(response.headers(), ETAG.as_str()).map(str::to_owned);
            Box::pin(drain(response)).await;
            let found = link.etag.clone().or(own_etag);
            if walk.expected.is_some() && walk.expected != found {
                return walk.conflict("X-Symlink-Target-Etag headers do not match".into());
            }
            if walk.steps >= self.symloop_max || walk.all_steps >= self.steps_max() {
                let most = self.symloop_max;
                return respond::text(
                    StatusCode::CONFLICT,
                    format!("Too many levels of symbolic links, maximum allowed is {most}"),
                );
            }
            let Some(next) = asked.again_at(&link) else {
                return status::path_too_long();
            };
            here = next.uri().clone();
            request = next;
            walk.steps += u64::from(!link.is_free);
            walk.all_steps += 1;
            walk.at = Some(link.path);
            walk.expected = link.etag;
            walk.follows_dynamic = true;
        }
    }

    async fn post(&self, request: Request) -> Response {
        if request.headers().contains_key(TARGET) {
            return respond::text(
                StatusCode::BAD_REQUEST,
                "A PUT request is required to set a symlink target",
            );
        }
        let uri = request.uri().clone();
        let response = self.next.call(request).await;
        let link = Link::of(response.headers(), &uri).filter(|_| response.status().is_success());
        let Some(link) = link else {
            return response;
        };
        // The object server cannot know better: the POST was applied to the link.
        let mut redirect = respond::typed(
            StatusCode::TEMPORARY_REDIRECT,
            respond::HTML,
            "The requested POST was applied to a symlink. POST directly to the target to apply \
             requested metadata.",
        );
        let headers = redirect.headers_mut();
        set(headers, LOCATION, &link.path);
        if let Some(etag) = &link.etag {
            set(headers, TARGET_ETAG, etag);
        }
        for (name, value) in response.headers() {
            if name.as_str().starts_with("x-object-sysmeta-") {
                headers.insert(name, value.clone());
            }
        }
        drain(response).await;
        redirect
    }
}

/// The client's read, to be repeated for targets.
struct ReadRequest {
    method: Method,
    query: String,
    headers: HeaderMap,
    context: Context,
}

impl ReadRequest {
    fn of(request: &Request) -> ReadRequest {
        ReadRequest {
            method: request.method().clone(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            headers: request.headers().clone(),
            context: Context::of_request(request),
        }
    }

    /// The same read of a link's target. The rights given by a trusted link apply to that step
    /// only: the next one has the client's rights again.
    fn again_at(&self, link: &Link) -> Option<Request> {
        let uri = if self.query.is_empty() {
            link.uri.clone()?
        } else {
            format!("{}?{}", link.path, self.query).parse().ok()?
        };
        let mut request = Request::new(Body::empty());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        headers.remove("x-backend-storage-policy-index");
        // A request for a reserved name is for the link, not for its target.
        headers.remove(BACKEND_ALLOW_RESERVED);
        let context = if link.is_trusted {
            set(headers, BACKEND_ALLOW_RESERVED, "true");
            self.context.pre_authorized(SOURCE)
        } else {
            self.context.subrequest(SOURCE)
        };
        request.extensions_mut().insert(context);
        Some(request)
    }
}

fn asks_for_link(request: &Request) -> bool {
    request
        .uri()
        .query()
        .filter(|query| query.contains("symlink"))
        .and_then(|query| Params::parse(Some(query)).ok())
        .is_some_and(|params| params.get("symlink") == Some("get"))
}

/// Shows a link's system metadata as its owner wrote it.
fn show_link(headers: &mut HeaderMap) {
    for (shown, stored) in SHOWN_AND_STORED {
        if let Some(value) = headers.remove(stored) {
            headers.insert(shown, value);
        }
    }
}

fn ignore_range_of_links(headers: &mut HeaderMap) {
    let names = match respond::header(headers, IGNORE_RANGE.as_str()) {
        Some(names) if !names.is_empty() => [names, ",", STORED_TARGET.as_str()].concat(),
        _ => STORED_TARGET.as_str().to_owned(),
    };
    set(headers, IGNORE_RANGE, &names);
}

#[cfg(test)]
mod tests;
