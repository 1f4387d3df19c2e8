//! Filter `tempurl`, temporary URLs: a signature in the query allows one kind of request to one
//! object, or to all objects with a prefix, until a time. Keys are metadata of the account
//! (`X-Account-Meta-Temp-URL-Key[-2]`) or the container; a container's key gives access to that
//! container only.
//!
//! The signature covers, one line each: `ip=RANGE` if the URL has a range, the method, the time in
//! seconds, the path (with `prefix:` before it if the URL is for a prefix). A signature for GET,
//! PUT or POST allows HEAD too.

mod disposition;
mod expires;
mod ip_range;

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::Params;
use cairn_http::{Clock, Handler, InfoSource, Request, Response, Service, ServiceFuture, respond};
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, EXPIRES};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;

use crate::header_list::Removal;
use crate::names::Names;
use crate::scope::Scope;
use crate::signature::{AllowedDigests, KeyOwner, Signature, keys};
use crate::status;
use crate::{FilterEnv, FilterError};
use expires::Expires;

const METHODS: &str = "GET HEAD PUT POST DELETE";
const INCOMING_REMOVE: &str = "x-timestamp x-open-expired";
const OUTGOING_REMOVE: &str = "x-object-meta-*";
const OUTGOING_ALLOW: &str = "x-object-meta-public-*";

/// Headers that name another object: the new object would be a copy of data that the signature does
/// not give access to, or a pointer to it, or would be written elsewhere.
const POINTERS: [&str; 7] = [
    "x-object-manifest",
    "x-symlink-target",
    "x-symlink-target-account",
    "x-copy-from",
    "x-copy-from-account",
    "destination",
    "destination-account",
];

struct TempUrl {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
    clock: Clock,
    digests: AllowedDigests,
    methods: Vec<String>,
    incoming: Removal,
    outgoing: Removal,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let digests = AllowedDigests::read(section)?;
    let words = |option: &str, default| -> Vec<String> {
        let words = section.str_or(option, default).split_whitespace();
        words.map(str::to_owned).collect()
    };
    let methods = words("methods", METHODS);
    env.swift_info.register(
        "tempurl",
        json!({
            "methods": methods,
            "incoming_remove_headers": words("incoming_remove_headers", INCOMING_REMOVE),
            "incoming_allow_headers": words("incoming_allow_headers", ""),
            "outgoing_remove_headers": words("outgoing_remove_headers", OUTGOING_REMOVE),
            "outgoing_allow_headers": words("outgoing_allow_headers", OUTGOING_ALLOW),
        }),
    );
    env.swift_info.register("tempurl", digests.info());
    Ok(Arc::new(TempUrl {
        next,
        info_source: env.info_source.clone(),
        clock: env.clock.clone(),
        digests,
        methods,
        incoming: Removal::read(section, "incoming", INCOMING_REMOVE, ""),
        outgoing: Removal::read(section, "outgoing", OUTGOING_REMOVE, OUTGOING_ALLOW),
    }))
}

/// Parameters of a temporary URL. In the extensions of a request with a valid signature, so that
/// pages with links to more objects can repeat them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) signature: Option<String>,
    /// The expiry as the client wrote it.
    pub(crate) expires: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) ip_range: Option<String>,
    filename: Option<String>,
    pub(crate) inline: bool,
}

impl Query {
    fn parse(query: Option<&str>) -> Query {
        let Ok(params) = Params::parse(query) else {
            // A text that is not UTF-8 cannot have been signed.
            let is_signed = query.unwrap_or("").contains("temp_url_sig");
            return Query {
                signature: is_signed.then(String::new),
                ..Query::default()
            };
        };
        // If a parameter is repeated, its first value counts.
        let get = |wanted: &str| {
            let found = params.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.to_owned())
        };
        Query {
            signature: get("temp_url_sig"),
            expires: get("temp_url_expires"),
            prefix: get("temp_url_prefix"),
            ip_range: get("temp_url_ip_range"),
            filename: get("filename").filter(|name| !name.is_empty()),
            inline: get("inline").is_some(),
        }
    }

    /// The part of a query that inner filters may see.
    fn encode(&self) -> String {
        let mut params = Params::default();
        let pairs = [
            ("temp_url_sig", &self.signature),
            ("temp_url_expires", &self.expires),
            ("temp_url_prefix", &self.prefix),
            ("temp_url_ip_range", &self.ip_range),
            ("filename", &self.filename),
        ];
        for (name, value) in pairs {
            if let Some(value) = value {
                params.set(name, value);
            }
        }
        if self.inline {
            params.set("inline", "");
        }
        params.encode()
    }
}

impl Service for TempUrl {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let query = request.uri().query().unwrap_or("");
        let may_be_signed = query.contains("temp_url_") || query.contains('%');
        if !may_be_signed || request.method() == Method::OPTIONS {
            return self.next.call(request);
        }
        let query = Query::parse(request.uri().query());
        if query.signature.is_none() && query.expires.is_none() {
            return self.next.call(request);
        }
        Box::pin(async move {
            match self.check(request, query).await {
                Ok(granted) => self.answer(granted).await,
                Err(refused) => refused,
            }
        })
    }
}

/// A request with a valid signature.
struct GrantedRequest {
    request: Request,
    query: Query,
    expires: Expires,
    /// The last segment of the path.
    name: String,
    /// No object is named: only a page made by `staticweb` may be returned.
    is_container: bool,
}

impl TempUrl {
    /// The request with its authorization; the error is the refusal.
    async fn check(&self, request: Request, mut query: Query) -> Result<GrantedRequest, Response> {
        let (mut parts, body) = request.into_parts();
        let method = parts.method.clone();
        let invalid = || invalid(&method);
        let (expires, signature) = self.read(&query).ok_or_else(invalid)?;
        let names = self.names(&parts, &query).ok_or_else(invalid)?;
        if !is_from_range(&parts, &query) {
            return Err(invalid());
        }
        let path = signed_path(&names, &query).ok_or_else(invalid)?;
        let scope = self
            .scope(&parts, &names, &signature, &query, expires, &path)
            .await
            .ok_or_else(invalid)?;
        refuse_pointers(&parts)?;
        self.incoming.clean(&mut parts.headers);

        query.signature = Some(signature.to_hex());
        let uri = format!("{}?{}", parts.uri.path(), query.encode());
        parts.uri = uri.parse().map_err(|_| status::path_too_long())?;
        let mut context = Context::of(&parts);
        context.authorizer = Some(Arc::new(scope));
        context.authorized = true;
        parts.extensions.insert(context);
        parts.extensions.insert(query.clone());
        let object = names.object.as_deref().unwrap_or("");
        let last = names.container.iter().map(String::as_str).chain([object]);
        let name = last
            .filter_map(|part| part.trim_end_matches('/').rsplit('/').next())
            .rfind(|name| !name.is_empty())
            .unwrap_or("")
            .to_owned();
        Ok(GrantedRequest {
            request: Request::from_parts(parts, body),
            query,
            expires,
            name,
            is_container: object.is_empty(),
        })
    }

    fn read(&self, query: &Query) -> Option<(Expires, Signature)> {
        let expires = Expires::parse(query.expires.as_deref()?, self.clock.now())?;
        let signature = Signature::parse(query.signature.as_deref()?)?;
        self.digests
            .allow(&signature)
            .then_some((expires, signature))
    }

    /// The requested object, for a method that can be signed; for `staticweb`, which may serve a
    /// container's root, only the container if the signature covers all of it.
    fn names(&self, parts: &Parts, query: &Query) -> Option<Names> {
        if !self.methods.iter().any(|m| m == parts.method.as_str()) {
            return None;
        }
        let reads = parts.method == Method::GET || parts.method == Method::HEAD;
        let allows_container = reads && query.prefix.as_deref() == Some("");
        let names = Names::of(parts.uri.path()).filter(|names| names.version == "v1")?;
        names.container.as_ref()?;
        let object = names.object.as_deref().unwrap_or("");
        (allows_container || !object.trim_matches('/').is_empty()).then_some(names)
    }

    /// Access given by the key that made the signature; `None` if no key matches.
    async fn scope(
        &self,
        parts: &Parts,
        names: &Names,
        signature: &Signature,
        query: &Query,
        expires: Expires,
        path: &str,
    ) -> Option<Scope> {
        let context = Context::of(parts);
        let container = names.container.as_deref()?;
        let account_info = self.info_source.account(&context, &names.account).await;
        let container_info = self
            .info_source
            .container(&context, &names.account, container)
            .await;
        let methods: &[&str] = if parts.method == Method::HEAD {
            &["HEAD", "GET", "POST", "PUT"]
        } else {
            &[parts.method.as_str()]
        };
        let range = query.ip_range.as_deref().filter(|range| !range.is_empty());
        let range = range.map_or_else(String::new, |range| format!("ip={range}\n"));
        for method in methods {
            let message = format!("{range}{method}\n{}\n{path}", expires.seconds());
            for (key, owner) in keys(&account_info, &container_info) {
                if signature.signs(key, message.as_bytes()) {
                    return Some(match owner {
                        KeyOwner::Account => Scope::account(&names.account),
                        KeyOwner::Container => Scope::container(&names.account, container),
                    });
                }
            }
        }
        None
    }

    async fn answer(&self, granted: GrantedRequest) -> Response {
        let method = granted.request.method().clone();
        let mut response = self.next.call(granted.request).await;
        self.outgoing.clean(response.headers_mut());
        let reads = method == Method::GET || method == Method::HEAD;
        if !reads || !response.status().is_success() {
            return response;
        }
        let headers = response.headers_mut();
        let is_page = respond::header(headers, "x-backend-content-generator") == Some("staticweb");
        if granted.is_container && !is_page {
            return invalid(&method);
        }
        let query = &granted.query;
        let filename = query.filename.as_deref();
        let value = if query.inline || is_page {
            Some(disposition::inline(filename))
        } else if let Some(filename) = filename {
            Some(disposition::attachment(filename))
        } else if headers.contains_key(CONTENT_DISPOSITION) {
            None
        } else {
            Some(disposition::attachment(&granted.name))
        };
        if let Some(value) = value {
            respond::set(headers, CONTENT_DISPOSITION.as_str(), value);
        }
        set_expires(headers, granted.expires);
        response
    }
}

fn set_expires(headers: &mut HeaderMap, expires: Expires) {
    let date = respond::http_date(expires.timestamp());
    respond::set(headers, EXPIRES.as_str(), date);
}

fn is_from_range(parts: &Parts, query: &Query) -> bool {
    match query.ip_range.as_deref().filter(|range| !range.is_empty()) {
        None => true,
        Some(range) => Context::of(parts)
            .remote
            .is_some_and(|remote| ip_range::contains(range, remote.ip())),
    }
}

/// The path as it was signed; `None` if the object does not have the prefix.
fn signed_path(names: &Names, query: &Query) -> Option<String> {
    let container = names.container.as_deref()?;
    let object = names.object.as_deref().unwrap_or("");
    let path = format!("/v1/{}/{container}/", names.account);
    match &query.prefix {
        None => Some(format!("{path}{object}")),
        Some(prefix) if object.starts_with(prefix.as_str()) => {
            Some(format!("prefix:{path}{prefix}"))
        }
        Some(_) => None,
    }
}

fn refuse_pointers(parts: &Parts) -> Result<(), Response> {
    if parts.method == Method::GET || parts.method == Method::HEAD {
        return Ok(());
    }
    match POINTERS
        .iter()
        .find(|name| parts.headers.contains_key(**name))
    {
        None => Ok(()),
        Some(name) => {
            let name = cairn_types::metadata::title_case(name);
            let message = format!("The header '{name}' is not allowed in this tempurl");
            let code = StatusCode::BAD_REQUEST;
            Err(respond::typed(code, respond::HTML, message))
        }
    }
}

/// A 401 that reveals neither the error nor anything about the account.
fn invalid(method: &Method) -> Response {
    let mut response = crate::resellers::unauthorized("unknown");
    if method != Method::HEAD {
        let text = "401 Unauthorized: Temp URL invalid\n";
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, text.len().into());
        *response.body_mut() = text.into();
    }
    response
}

#[cfg(test)]
mod tests;
