//! Access to the store's content through its Swift API: a signed-in page requests
//! `/swift/v1/ACCOUNT/…` here, which is forwarded to the proxy of this process in the user's name:
//! sign-ins by `cairn_client`, pages' own requests as they came, with bodies, statuses and headers
//! that no client of ours has asked for.
//!
//! Object content is untrusted. It is sent as a download, in a sandbox, with sniffing disabled: a
//! page stored as an object never runs with the console's rights.

use std::net::SocketAddr;
use std::time::Duration;

use cairn_client::{Login, LoginError, Options, Retries, StoreUrl, Transport};
use cairn_http::{Body, Context, Request, Response};
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HOST, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
};
use http::{Method, StatusCode};

use crate::files::disposition;
use crate::session::StoreUser;
use crate::status::{Answer, Refusal, no_store};
use crate::store::Store;

/// Path prefix of forwarded requests.
pub(crate) const PREFIX: &str = "/swift";

/// Timeout of a sign-in, which may wait for others'.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests a token from the store's TempAuth.
pub(crate) async fn sign_in(
    store: &Store,
    user: &str,
    key: &str,
    remote: Option<SocketAddr>,
) -> Result<StoreUser, Refusal> {
    for (field, text) in [("user", user), ("key", key)] {
        if text.is_empty() || text.len() > 1024 || HeaderValue::from_str(text).is_err() {
            let words = format!("{field}: expected text on one line");
            return Err(Refusal::field(field, words));
        }
    }
    let failed = |error: LoginError| refusal(&error);
    let login = Login::Tempauth {
        url: StoreUrl::parse(&format!("{}/auth/v1.0", store.view.endpoint)).map_err(failed)?,
        user: user.to_owned(),
        key: key.to_owned(),
    };
    let options = Options {
        answer_timeout: SIGN_IN_TIMEOUT,
        retries: Retries::none(),
        ..Options::default()
    };
    let transport = Transport::in_process(store.view.swift.clone(), context(remote), &options);
    let signed_in = login.sign_in(&transport).await.map_err(failed)?;
    Ok(StoreUser {
        name: user.to_owned(),
        token: signed_in.token,
        account: signed_in.storage.path,
    })
}

fn refusal(error: &LoginError) -> Refusal {
    let words = match error {
        LoginError::Refused { status, .. } if *status == StatusCode::UNAUTHORIZED => {
            "the store knows no such user with this key".to_owned()
        }
        LoginError::Refused { status, .. } | LoginError::Status { status, .. } => {
            format!("the store's sign-in answered {status}")
        }
        error => {
            let words = format!("the store's sign-in: {error}");
            return Refusal::store_failed(words);
        }
    };
    Refusal::wrong_key(words)
}

fn context(remote: Option<SocketAddr>) -> Context {
    Context {
        remote,
        ..Context::default()
    }
}

fn request(
    store: &Store,
    method: Method,
    path: &str,
    remote: Option<SocketAddr>,
) -> Result<Request, Refusal> {
    let bad = |error: http::Error| Refusal::malformed(format!("path: {error}"));
    let endpoint = &store.view.endpoint;
    let host = endpoint
        .split_once("://")
        .map_or(&**endpoint, |(_, host)| host);
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, host)
        .body(Body::empty())
        .map_err(bad)?;
    request.extensions_mut().insert(context(remote));
    Ok(request)
}

/// Forwards a page's request in the name of `user`.
pub(crate) async fn pass(
    store: &Store,
    user: &StoreUser,
    request: Request,
    remote: Option<SocketAddr>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let full = parts.uri.path_and_query().map_or("", |p| p.as_str());
    let full = full.strip_prefix(PREFIX).unwrap_or_default();
    let path = full.split('?').next().unwrap_or_default();
    let below = path.strip_prefix(&*user.account);
    let Some(below) = below.filter(|b| b.is_empty() || b.starts_with('/')) else {
        return Err(Refusal::outside_account(&user.account));
    };
    let allowed = [
        Method::GET,
        Method::HEAD,
        Method::PUT,
        Method::POST,
        Method::DELETE,
    ];
    if !allowed.contains(&parts.method) {
        return Err(Refusal::not_offered(&parts.method));
    }
    let object = below
        .trim_start_matches('/')
        .split_once('/')
        .map(|(_, object)| object.to_owned())
        .filter(|object| !object.is_empty());
    let mut inner = self::request(store, parts.method.clone(), full, remote)?;
    for (name, value) in &parts.headers {
        if goes_on(name) {
            inner.headers_mut().append(name.clone(), value.clone());
        }
    }
    inner
        .headers_mut()
        .insert("x-auth-token", user.token.clone());
    *inner.body_mut() = body;
    let mut response = store.view.swift.call(inner).await;
    let headers = std::mem::take(response.headers_mut());
    *response.headers_mut() = headers
        .into_iter()
        .scan(None, |last: &mut Option<HeaderName>, (name, value)| {
            // A repeated header is iterated without its name.
            *last = name.or(last.take());
            Some((last.clone()?, value))
        })
        .filter(|(name, _)| comes_back(name))
        .collect::<HeaderMap>();
    if let Some(object) = object {
        protect(&mut response, &object);
    }
    no_store(&mut response);
    Ok(response)
}

/// May this header of a page's request be forwarded to the store?
fn goes_on(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "content-type"
            | "content-length"
            | "content-encoding"
            | "accept"
            | "range"
            | "etag"
            | "if-match"
            | "if-none-match"
            | "if-modified-since"
            | "if-unmodified-since"
            | "x-delete-at"
            | "x-delete-after"
            | "x-storage-policy"
    ) || [
        "x-object-meta-",
        "x-container-meta-",
        "x-container-read",
        "x-container-write",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// May this header of the store's response be passed to the page? Cookies, challenges and CORS
/// permissions may not.
fn comes_back(name: &HeaderName) -> bool {
    [
        CONTENT_TYPE,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        ACCEPT_RANGES,
        ETAG,
        LAST_MODIFIED,
    ]
    .contains(name)
        || [
            "x-account-",
            "x-container-",
            "x-object-",
            "x-timestamp",
            "x-trans-id",
            "x-delete-at",
            "x-storage-policy",
            "x-static-large-object",
        ]
        .iter()
        .any(|prefix| name.as_str().starts_with(prefix))
}

fn protect(response: &mut Response, object: &str) {
    let name = object
        .rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or("object");
    let name = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
    disposition(response, &name, true);
    response.headers_mut().insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'"),
    );
}
