//! Client of Keystone: logs in as the service user, keeps the token while it is valid, and
//! validates each uncached token by `GET /v3/auth/tokens`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::conditional::parse_iso_date;
use cairn_formats::ini::Section;
use cairn_http::client::{CallError, Client};
use cairn_http::tls::ClientTls;
use cairn_http::{Body, Clock, Request, Response, respond};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode, Uri};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::{Mutex, Semaphore};

use super::options::{Options, ServiceUser};
use crate::FilterError;
use crate::client_tls::client_tls;
use crate::keystone::{Holder, Named, Project};

/// Maximum concurrent requests to Keystone; further ones wait, at most for the timeout of one
/// request.
const CONCURRENT_REQUESTS_MAX: usize = 32;
/// Maximum bytes of a response: a catalog may be long.
const ANSWER_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Seconds before its expiry at which the service user's token is renewed.
const RENEW_BEFORE_SECONDS: u64 = 60;
const X_SUBJECT_TOKEN: HeaderName = HeaderName::from_static("x-subject-token");

/// Keystone's description of a token.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) holder: Arc<Holder>,
    /// Catalog in the format of v3.
    pub(super) catalog: Option<Value>,
    /// Authentication mechanisms that the token is bound to.
    pub(super) bind: Vec<String>,
    /// Access rules of an application credential, if it has any.
    pub(super) access_rules: Option<Vec<Value>>,
}

#[derive(Debug, Error)]
pub(super) enum AskError {
    #[error("Keystone does not know this token")]
    NoSuchToken,
    #[error("Keystone at {0}: the name has no address")]
    NoAddress(String),
    #[error("Keystone: {0}")]
    Call(#[from] CallError),
    #[error("Keystone: too many questions wait already")]
    Busy,
    #[error("Keystone refused the login of authtoken's user with {0}: check username and password")]
    Login(StatusCode),
    #[error("Keystone answered {status} to {question}")]
    Status {
        status: StatusCode,
        question: &'static str,
    },
    #[error("Keystone's answer to {0} cannot be read")]
    Answer(&'static str),
}

pub(super) struct Server {
    client: Client,
    host: String,
    port: u16,
    /// Path of the v3 API, without a trailing slash.
    path: String,
    login: Vec<u8>,
    own_token: Mutex<Option<OwnToken>>,
    permits: Semaphore,
    timeout: Duration,
    retries: u64,
    include_catalog: bool,
    clock: Clock,
}

#[derive(Clone)]
struct OwnToken {
    token: HeaderValue,
    expires: u64,
}

impl Server {
    pub(super) fn new(
        section: &Section,
        options: &Options,
        clock: Clock,
    ) -> Result<Server, FilterError> {
        let user = ServiceUser::read(section)?;
        let bad = |remedy: &str| FilterError::Conf(section.bad("auth_url", remedy));
        let uri: Uri = user
            .auth_url
            .parse()
            .map_err(|_| bad("expected a URL such as http://127.0.0.1:5000"))?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(tls(section)?),
            _ => return Err(bad("expected a URL that begins with http:// or https://")),
        };
        let default_port = if tls.is_some() { 443 } else { 80 };
        let host = uri.host().ok_or_else(|| bad("has no host"))?.to_owned();
        let base = uri.path().trim_end_matches('/');
        let base = ["/v3", "/v2.0"]
            .iter()
            .find_map(|version| base.strip_suffix(version))
            .unwrap_or(base);
        Ok(Server {
            client: Client::with_tls(options.timeout, 8, Duration::from_secs(15), tls),
            port: uri.port_u16().unwrap_or(default_port),
            host,
            path: format!("{base}/v3"),
            login: user.login.to_string().into_bytes(),
            own_token: Mutex::default(),
            permits: Semaphore::new(CONCURRENT_REQUESTS_MAX),
            timeout: options.timeout,
            retries: options.retries,
            include_catalog: options.include_service_catalog || options.service_type.is_some(),
            clock,
        })
    }

    /// Validates a token by Keystone and returns its description.
    pub(super) async fn describe(
        &self,
        token: &str,
        allow_expired: bool,
    ) -> Result<Described, AskError> {
        let Ok(token) = HeaderValue::from_str(token) else {
            return Err(AskError::NoSuchToken);
        };
        let _permit = match tokio::time::timeout(self.timeout, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            _ => return Err(AskError::Busy),
        };
        let mut answer = self.ask(&token, allow_expired).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            // Our own token is no longer valid; retried once with a new one.
            *self.own_token.lock().await = None;
            answer = self.ask(&token, allow_expired).await?;
        }
        match answer.status() {
            StatusCode::OK => {
                let question = "GET /v3/auth/tokens";
                let body = body_of(answer, question, self.timeout).await?;
                described(&body).ok_or(AskError::Answer(question))
            }
            StatusCode::NOT_FOUND => Err(AskError::NoSuchToken),
            status => Err(AskError::Status {
                status,
                question: "GET /v3/auth/tokens",
            }),
        }
    }

    async fn ask(&self, token: &HeaderValue, allow_expired: bool) -> Result<Response, AskError> {
        let own = self.own_token().await?;
        let mut path = format!("{}/auth/tokens", self.path);
        let mut separator = '?';
        for (wanted, parameter) in [
            (allow_expired, "allow_expired=1"),
            (!self.include_catalog, "nocatalog=1"),
        ] {
            if wanted {
                path.push(separator);
                path.push_str(parameter);
                separator = '&';
            }
        }
        self.call(Method::GET, &path, &[], |headers| {
            headers.insert("x-auth-token", own.clone());
            headers.insert(X_SUBJECT_TOKEN, token.clone());
        })
        .await
    }

    /// Our own token, renewed if it is missing or about to expire. Concurrent callers wait for the
    /// same login.
    async fn own_token(&self) -> Result<HeaderValue, AskError> {
        let mut own = self.own_token.lock().await;
        let now = self.clock.now().secs();
        if let Some(known) = &*own
            && known.expires > now.saturating_add(RENEW_BEFORE_SECONDS)
        {
            return Ok(known.token.clone());
        }
        let path = format!("{}/auth/tokens?nocatalog=1", self.path);
        let answer = self.call(Method::POST, &path, &self.login, |_| {}).await?;
        let question = "POST /v3/auth/tokens";
        match answer.status() {
            StatusCode::CREATED => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(AskError::Login(answer.status()));
            }
            status => return Err(AskError::Status { status, question }),
        }
        let mut token = answer
            .headers()
            .get(X_SUBJECT_TOKEN)
            .cloned()
            .ok_or(AskError::Answer(question))?;
        token.set_sensitive(true);
        let body = body_of(answer, question, self.timeout).await?;
        let expires = body["token"]["expires_at"]
            .as_str()
            .and_then(parse_iso_date);
        let expires = expires.ok_or(AskError::Answer(question))?;
        *own = Some(OwnToken {
            token: token.clone(),
            expires,
        });
        Ok(token)
    }

    /// Sends a request, repeated once if the connection failed.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: &[u8],
        fill: impl Fn(&mut http::HeaderMap),
    ) -> Result<Response, AskError> {
        let mut tries = 0;
        loop {
            let address = self.address().await?;
            let mut request = Request::new(Body::from(body.to_vec()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = path
                .parse()
                .map_err(|e: http::uri::InvalidUri| CallError::BadRequest(e.to_string()))?;
            let headers = request.headers_mut();
            fill(headers);
            respond::set(
                headers,
                HOST.as_str(),
                format!("{}:{}", self.host, self.port),
            );
            headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            headers.insert(USER_AGENT, HeaderValue::from_static("cairn authtoken"));
            if method == Method::POST {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            let client = &self.client;
            let call = client.call_by_name(&self.host, address, request, self.timeout);
            match call.await {
                Ok(response) => return Ok(response),
                Err(CallError::Connect { .. } | CallError::Broken { .. })
                    if tries < self.retries =>
                {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(50 << tries.min(5))).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn address(&self) -> Result<SocketAddr, AskError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let found = tokio::net::lookup_host((host, self.port));
        match tokio::time::timeout(self.timeout, found).await {
            Ok(Ok(mut found)) => found.next(),
            _ => None,
        }
        .ok_or_else(|| AskError::NoAddress(self.host.clone()))
    }
}

/// TLS to Keystone, by keystonemiddleware's options: `cafile` (default: the system's authorities),
/// `certfile` and `keyfile` (default: none).
fn tls(section: &Section) -> Result<ClientTls, FilterError> {
    if section.bool_or("insecure", false) {
        let remedy = "Keystone's certificate is always checked: name its authorities with cafile";
        return Err(section.bad("insecure", remedy).into());
    }
    client_tls(section, ["cafile", "certfile", "keyfile"])
}

/// Collects a response's body, up to `limit` bytes.
async fn body_of(
    answer: Response,
    question: &'static str,
    limit: Duration,
) -> Result<Value, AskError> {
    let body = answer.into_body().collect(ANSWER_MAX_BYTES);
    match tokio::time::timeout(limit, body).await {
        Ok(Ok(body)) => serde_json::from_slice(&body).map_err(|_| AskError::Answer(question)),
        _ => Err(AskError::Answer(question)),
    }
}

fn named(value: &Value) -> Option<Named> {
    Some(Named {
        id: value["id"].as_str().filter(|id| !id.is_empty())?.to_owned(),
        name: value["name"].as_str().unwrap_or("").to_owned(),
    })
}

/// Parses v3's `{"token": {…}}`.
pub(super) fn described(body: &Value) -> Option<Described> {
    let token = body.get("token")?;
    let user = &token["user"];
    let project = match token.get("project") {
        None | Some(Value::Null) => None,
        Some(project) => {
            let Named { id, name } = named(project)?;
            let domain = named(&project["domain"]).unwrap_or_default();
            Some(Project { id, name, domain })
        }
    };
    let roles = token["roles"].as_array();
    let roles = roles.into_iter().flatten();
    let credential = &token["application_credential"];
    Some(Described {
        holder: Arc::new(Holder {
            user: named(user)?,
            user_domain: named(&user["domain"]).unwrap_or_default(),
            project,
            domain: named(&token["domain"]),
            roles: roles
                .filter_map(|role| role["name"].as_str().map(str::to_owned))
                .collect(),
            is_system: token["system"]["all"].as_bool().unwrap_or(false),
            is_admin_project: token["is_admin_project"].as_bool().unwrap_or(true),
            expires: token["expires_at"].as_str().and_then(parse_iso_date)?,
        }),
        catalog: token.get("catalog").filter(|c| c.is_array()).cloned(),
        bind: token["bind"]
            .as_object()
            .map(|bind| bind.keys().cloned().collect())
            .unwrap_or_default(),
        access_rules: credential["access_rules"].as_array().cloned(),
    })
}
