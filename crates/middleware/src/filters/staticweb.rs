//! Filter `staticweb`: serves a container as a web site, for requests without a token (or with
//! `X-Web-Mode: true`): index files for folders, error pages, listings. The container's metadata
//! configures it: `Web-Index`, `Web-Error`, `Web-Listings`, `Web-Listings-CSS`,
//! `Web-Listings-Label`, `Web-Directory-Type`. With a temporary URL for a prefix, listings are
//! limited to that prefix, and their links carry the signature.
//!
//! Option: `url_base`, whose scheme and host replace `http` and the request's host in redirects.

mod listing;
mod site;

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::{is_true, quote_path, unquote, with_path};
use cairn_http::{Body, Handler, InfoSource, Request, Response, Service, ServiceFuture, respond};
use http::header::LOCATION;
use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;
use tracing::warn;

use crate::filters::tempurl;
use crate::names::Names;
use crate::subrequest::subrequest;
use crate::{FilterEnv, FilterError};
use site::Site;

const SOURCE: &str = "SW";
const AGENT: &str = "StaticWeb";

struct StaticWeb {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
    url_scheme: Option<String>,
    url_host: Option<String>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    env.swift_info.register("staticweb", json!({}));
    let base = section.str_or("url_base", "");
    let (scheme, rest) = base.split_once("://").unwrap_or(("", base));
    let host = if base.contains("//") {
        rest.trim_start_matches('/').split('/').next().unwrap_or("")
    } else {
        ""
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(Arc::new(StaticWeb {
        next,
        info_source: env.info_source.clone(),
        url_scheme: some(scheme),
        url_host: some(host),
    }))
}

fn web_mode(parts: &Parts) -> bool {
    respond::header(&parts.headers, "x-web-mode").is_some_and(is_true)
}

/// A request for a page of a site.
struct Visit {
    parts: Parts,
    names: Names,
    container: String,
}

impl Service for StaticWeb {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return self.next.call(request);
        }
        let context = Context::of_request(&request);
        if context.authorizer.is_none() {
            if !context.authorized {
                warn!("no authentication stands before staticweb, which does nothing then");
            }
            return self.next.call(request);
        }
        let is_signed = request.extensions().get::<tempurl::Query>().is_some();
        let (parts, body) = request.into_parts();
        let is_visitor = context.notes.user().is_none() || is_signed || web_mode(&parts);
        let names = is_visitor.then(|| Names::of(parts.uri.path())).flatten();
        let container = names.as_ref().and_then(|names| names.container.clone());
        let (Some(names), Some(container)) = (names, container) else {
            return self.next.call(Request::from_parts(parts, body));
        };
        let visit = Visit {
            parts,
            names,
            container,
        };
        Box::pin(async move {
            match visit.names.object.clone() {
                Some(object) => self.object(visit, &object).await,
                None => self.container(visit).await,
            }
        })
    }
}

impl StaticWeb {
    /// The site configuration of the visited container.
    async fn site(&self, visit: &Visit) -> (Site, Option<String>) {
        let context = Context::of(&visit.parts).subrequest(SOURCE);
        let account = &visit.names.account;
        let info = self
            .info_source
            .container(&context, account, &visit.container)
            .await;
        (Site::of(&info), info.read_acl.clone())
    }

    async fn container(&self, visit: Visit) -> Response {
        let (site, acl) = self.site(&visit).await;
        let context = Context::of(&visit.parts);
        if let Err(denied) = context.authorize(&visit.parts, acl.as_deref()).await {
            return self.error_page(&visit, &site, denied).await;
        }
        if site.listings.is_empty() && site.index.is_empty() {
            if web_mode(&visit.parts) {
                return respond::standard(StatusCode::NOT_FOUND);
            }
            let asked = Request::from_parts(visit.parts, Body::empty());
            return self.next.call(asked).await;
        }
        if !visit.path().ends_with('/') {
            return self.redirect_with_slash(&visit);
        }
        if site.index.is_empty() {
            return self.listing(&visit, &site, "").await;
        }
        let path = format!("{}{}", visit.path(), site.index);
        let response = self.next.call(again(&visit, Some(&path))).await;
        let status = response.status();
        if status == StatusCode::NOT_FOUND {
            self.listing(&visit, &site, "").await
        } else if status.is_success() || status.is_redirection() {
            response
        } else {
            self.error_page(&visit, &site, response).await
        }
    }

    async fn object(&self, visit: Visit, object: &str) -> Response {
        let response = self.next.call(again(&visit, None)).await;
        let status = response.status();
        let is_found = status.is_success() || status.is_redirection();
        if is_found && !may_be_directory(&response) {
            return response;
        }
        let (site, _) = self.site(&visit).await;
        let content_type = respond::header(response.headers(), "content-type");
        if is_found && content_type != Some(site.directory_type()) {
            return response;
        }
        // Error pages are only for missing objects; other errors stay unchanged.
        if !is_found && status != StatusCode::NOT_FOUND {
            return response;
        }
        if site.listings.is_empty() && site.index.is_empty() {
            return response;
        }
        let has_slash = visit.path().ends_with('/');
        if !site.index.is_empty() {
            let slash = if has_slash { "" } else { "/" };
            let path = format!("{}{slash}{}", visit.path(), site.index);
            let index = self.next.call(again(&visit, Some(&path))).await;
            let status = index.status();
            if status.is_success() || status.is_redirection() {
                if !has_slash {
                    return self.redirect_with_slash(&visit);
                }
                return index;
            }
            if status != StatusCode::NOT_FOUND {
                return index;
            }
        }
        if has_slash {
            return self.listing(&visit, &site, object).await;
        }
        if self.is_folder(&visit, object).await {
            return self.redirect_with_slash(&visit);
        }
        let missing = respond::standard(StatusCode::NOT_FOUND);
        self.error_page(&visit, &site, missing).await
    }

    /// Is there an object whose name begins with this one and a slash?
    async fn is_folder(&self, visit: &Visit, object: &str) -> bool {
        let prefix = format!("{object}/");
        let found = self.entries(visit, &prefix, Some(1)).await;
        found.is_ok_and(|entries| !entries.is_empty())
    }

    /// The site's own page for an error, if it has one, with the error's status.
    async fn error_page(&self, visit: &Visit, site: &Site, error: Response) -> Response {
        if site.error.is_empty() {
            return error;
        }
        let status = error.status();
        let path = format!(
            "{}/{}{}",
            visit.container_path(),
            status.as_u16(),
            site.error
        );
        let Some(request) = self.get(visit, &path, None) else {
            return error;
        };
        let mut page = self.next.call(request).await;
        if !page.status().is_success() {
            return error;
        }
        *page.status_mut() = status;
        page
    }

    /// A GET for the visitor, with none of the request's own headers.
    fn get(&self, visit: &Visit, path: &str, query: Option<&str>) -> Option<Request> {
        let context = Context::of(&visit.parts).subrequest(SOURCE);
        subrequest(&visit.parts, Method::GET, path, query, AGENT, context)
    }

    /// Redirects to the same path with a trailing slash, so that relative links work. A signature
    /// is not carried along: one that needs this redirect covers too much.
    fn redirect_with_slash(&self, visit: &Visit) -> Response {
        let path = quote_path(&format!("{}/", visit.path()));
        let host = respond::header(&visit.parts.headers, "host");
        let location = match self.url_host.as_deref().or(host) {
            None => path,
            Some(host) => {
                let context = Context::of(&visit.parts);
                let scheme = self.url_scheme.as_deref().unwrap_or(context.scheme());
                format!("{scheme}://{host}{path}")
            }
        };
        let mut response = respond::standard(StatusCode::MOVED_PERMANENTLY);
        respond::set(response.headers_mut(), LOCATION.as_str(), location);
        response
    }
}

impl Visit {
    /// The decoded path.
    fn path(&self) -> String {
        unquote(self.parts.uri.path()).unwrap_or_default()
    }

    fn container_path(&self) -> String {
        let Names {
            version, account, ..
        } = &self.names;
        format!("/{version}/{account}/{}", self.container)
    }
}

/// The visitor's own request, optionally for another path.
fn again(visit: &Visit, path: Option<&str>) -> Request {
    let mut parts = visit.parts.clone();
    let uri = path.and_then(|path| with_path(&parts.uri, path));
    if let Some(uri) = uri {
        parts.uri = uri;
    }
    let context = Context::of(&parts).subrequest(SOURCE);
    parts.extensions.insert(context);
    let agent = respond::header(&parts.headers, "user-agent").unwrap_or("");
    let agent = format!("{agent} {AGENT}");
    respond::set(&mut parts.headers, "user-agent", agent.trim());
    Request::from_parts(parts, Body::empty())
}

/// May it be a directory marker, which is an object with little or no content?
fn may_be_directory(response: &Response) -> bool {
    let length = respond::header(response.headers(), "content-length");
    length.is_none_or(|text| text.parse::<u64>().is_ok_and(|length| length <= 1))
}

#[cfg(test)]
mod tests;
