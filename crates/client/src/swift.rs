//! An account that is logged in to: sends requests with its token, logs in again when that has
//! expired, and repeats what failed for a passing reason, a bounded number of times.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cairn_http::client::{CallError, Client};
use cairn_http::tls::{ClientTls, Trust};
use cairn_http::{Request, Response};
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use rand::RngExt;

use crate::error::{ClientError, LoginError, is_passing};
use crate::login::Login;
use crate::payload::Payload;
use crate::url::StoreUrl;

/// How long things may take, and how often they are tried.
#[derive(Clone, Debug)]
pub struct Options {
    pub connect_timeout: Duration,
    /// From a request's first byte to its answer's head; uploads have more, at the rate of
    /// [`UPLOAD_BYTES_PER_SECOND`].
    pub answer_timeout: Duration,
    /// Between two pieces of an answer's body.
    pub stall_timeout: Duration,
    /// Times that a request is sent at most when it fails for a passing reason.
    pub attempts: u32,
    /// Connections that are kept without use.
    pub idle_connections: usize,
    /// A file of certificates (PEM) that are trusted in place of the system's.
    pub authorities: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            attempts: 4,
            idle_connections: 64,
            authorities: None,
        }
    }
}

/// An upload that is slower than that is given up.
const UPLOAD_BYTES_PER_SECOND: u64 = 1 << 20;

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before the second attempt; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// As much of a refusal's body is read for its reason.
const REASON_MAX_BYTES: u64 = 16 << 10;
const REASON_MAX_CHARS: usize = 200;

/// Connections, and requests over them with retries; knows no tokens.
#[derive(Clone)]
pub(crate) struct Transport {
    plain: Client,
    tls: Client,
    options: Options,
}

impl Transport {
    fn new(options: &Options, needs_tls: bool) -> Result<Transport, LoginError> {
        let tls = match needs_tls {
            false => None,
            true => {
                let trust = options
                    .authorities
                    .clone()
                    .map_or(Trust::System, Trust::File);
                let wrong = |error: cairn_http::tls::TlsError| LoginError::Url {
                    url: "https://".to_owned(),
                    reason: error.to_string(),
                };
                Some(ClientTls::new(&trust, None).map_err(wrong)?)
            }
        };
        let client = |tls| {
            Client::with_tls(
                options.connect_timeout,
                options.idle_connections,
                IDLE_TIMEOUT,
                tls,
            )
        };
        Ok(Transport {
            plain: client(None),
            tls: client(tls),
            options: options.clone(),
        })
    }

    /// Sends a request to `url` with `query` (`?…` or nothing) behind its path, until there is an
    /// answer that does not ask to come again.
    pub(crate) async fn call(
        &self,
        url: &StoreUrl,
        method: Method,
        query: &str,
        headers: &HeaderMap,
        payload: &mut Payload,
    ) -> Result<Response, ClientError> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let result = self.attempt(url, &method, query, headers, payload).await;
            let error = match result {
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                // Of a GET: nothing has changed.
                Ok(answer) if answer.status() == StatusCode::NOT_MODIFIED => return Ok(answer),
                Ok(answer) => {
                    let (status, reason) = (answer.status(), reason(answer).await);
                    let error = ClientError::Status {
                        method: method.clone(),
                        path: url.path.clone(),
                        status,
                        reason,
                    };
                    if !is_passing(status) {
                        return Err(error);
                    }
                    error
                }
                Err(error) if error.is_passing() => error,
                Err(error) => return Err(error),
            };
            if attempt >= self.options.attempts || !payload.can_repeat() {
                return Err(error);
            }
            tracing::debug!(attempt, %error, "a request failed, it is sent again");
            // Clients that were thrown off together do not all come back together.
            let jitter = rand::rng().random_range(0.5..1.0);
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            pause = (pause * 2).min(PAUSE_MAX);
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        url: &StoreUrl,
        method: &Method,
        query: &str,
        headers: &HeaderMap,
        payload: &mut Payload,
    ) -> Result<Response, ClientError> {
        let broken = |reason: String| ClientError::Broken {
            method: method.clone(),
            path: url.path.clone(),
            host: url.authority(),
            reason,
        };
        let length = payload.len();
        let body = payload.attempt();
        let body = body.ok_or_else(|| broken("a stream is sent once".to_owned()))?;
        let path = if url.path.is_empty() { "/" } else { &url.path };
        let invalid = |error: http::Error| ClientError::Invalid(format!("{path}: {error}"));
        let mut request: Request = http::Request::builder()
            .method(method.clone())
            .uri(format!("{path}{query}"))
            .body(body)
            .map_err(invalid)?;
        *request.headers_mut() = headers.clone();
        let host = HeaderValue::from_str(&url.authority());
        let host = host.map_err(|error| ClientError::Invalid(error.to_string()))?;
        request.headers_mut().insert(HOST, host);
        if let (Some(length), &Method::PUT | &Method::POST) = (length, method) {
            request.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        let address = self.resolve(url, method).await?;
        let upload = Duration::from_secs(length.unwrap_or(0) / UPLOAD_BYTES_PER_SECOND);
        let timeout = self.options.answer_timeout + upload;
        let called = match url.tls {
            true => {
                self.tls
                    .call_by_name(&url.host, address, request, timeout)
                    .await
            }
            false => self.plain.call(address, request, timeout).await,
        };
        called.map_err(|error| match error {
            CallError::Connect { reason, .. } => ClientError::Connect {
                method: method.clone(),
                path: url.path.clone(),
                host: url.authority(),
                reason,
            },
            CallError::Timeout { after, .. } => ClientError::Timeout {
                method: method.clone(),
                path: url.path.clone(),
                host: url.authority(),
                after,
            },
            CallError::Broken { reason, .. } => broken(reason),
            CallError::BadRequest(reason) => ClientError::Invalid(format!("{path}: {reason}")),
        })
    }

    async fn resolve(&self, url: &StoreUrl, method: &Method) -> Result<SocketAddr, ClientError> {
        if let Ok(ip) = url.host.parse() {
            return Ok(SocketAddr::new(ip, url.port));
        }
        let failed = |reason: String| ClientError::Connect {
            method: method.clone(),
            path: url.path.clone(),
            host: url.authority(),
            reason,
        };
        let looking = tokio::net::lookup_host((url.host.as_str(), url.port));
        match tokio::time::timeout(self.options.connect_timeout, looking).await {
            Ok(Ok(mut addresses)) => {
                let first = addresses.next();
                first.ok_or_else(|| failed("the name has no address".to_owned()))
            }
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("the name was not resolved in time".to_owned())),
        }
    }
}

/// The first line of a refusal's body.
async fn reason(answer: Response) -> String {
    let reading = answer.into_body().collect(REASON_MAX_BYTES);
    let Ok(Ok(body)) = tokio::time::timeout(Duration::from_secs(1), reading).await else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&body);
    let line = text.trim().lines().next().unwrap_or_default();
    // A page of HTML says in tags what the status has said.
    match line.starts_with('<') {
        true => String::new(),
        false => line.chars().take(REASON_MAX_CHARS).collect(),
    }
}

struct Inner {
    transport: Transport,
    login: Login,
    /// The account.
    storage: StoreUrl,
    token: RwLock<HeaderValue>,
    /// One caller logs in anew, others wait for it.
    renewal: tokio::sync::Mutex<()>,
}

/// An account of a store. Cheap to clone; all clones share token and connections.
#[derive(Clone)]
pub struct Swift(Arc<Inner>);

impl Swift {
    /// Logs in. `account`: its URL, where it is not the one that the login names.
    ///
    /// # Errors
    /// [`LoginError`], which names what is wrong.
    pub async fn connect(
        login: Login,
        account: Option<StoreUrl>,
        options: &Options,
    ) -> Result<Swift, LoginError> {
        let login_tls = match &login {
            Login::Tempauth { url, .. } => url.tls,
            Login::Keystone(keystone) => keystone.url.tls,
            Login::Token { storage, .. } => storage.tls,
        };
        let needs_tls = login_tls || account.as_ref().is_some_and(|account| account.tls);
        let mut transport = Transport::new(options, needs_tls)?;
        let signed_in = login.sign_in(&transport).await?;
        let storage = account.unwrap_or(signed_in.storage);
        if storage.tls && !needs_tls {
            transport = Transport::new(options, true)?;
        }
        Ok(Swift(Arc::new(Inner {
            transport,
            login,
            storage,
            token: RwLock::new(signed_in.token),
            renewal: tokio::sync::Mutex::new(()),
        })))
    }

    /// The account's URL.
    pub fn account(&self) -> &StoreUrl {
        &self.0.storage
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.transport.options
    }

    fn token(&self) -> HeaderValue {
        let token = self.0.token.read().unwrap_or_else(PoisonError::into_inner);
        token.clone()
    }

    /// Sends a request below the account. `path`: `/container/object`, encoded, or nothing; `query`:
    /// `?…` or nothing. Answers with 2xx (or 304) alone.
    ///
    /// # Errors
    /// [`ClientError`]; a status that says no is [`ClientError::Status`].
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        query: &str,
        mut headers: HeaderMap,
        mut payload: Payload,
    ) -> Result<Response, ClientError> {
        let inner = &self.0;
        let url = inner
            .storage
            .with_path(&format!("{}{path}", inner.storage.path));
        let used = self.token();
        headers.insert("x-auth-token", used.clone());
        let call = |headers: HeaderMap, mut payload: Payload, method: Method| {
            let url = url.clone();
            async move {
                let transport = &inner.transport;
                let answer = transport
                    .call(&url, method, query, &headers, &mut payload)
                    .await;
                (answer, payload, headers)
            }
        };
        let answer;
        (answer, payload, headers) = call(headers, payload, method.clone()).await;
        let is_expired = |error: &ClientError| error.status() == Some(StatusCode::UNAUTHORIZED);
        match answer {
            Err(error) if is_expired(&error) && inner.login.can_renew() && payload.can_repeat() => {
                headers.insert("x-auth-token", self.renew(&used).await?);
                call(headers, payload, method).await.0
            }
            answer => answer,
        }
    }

    /// A token that is not `old`.
    async fn renew(&self, old: &HeaderValue) -> Result<HeaderValue, LoginError> {
        let _turn = self.0.renewal.lock().await;
        let current = self.token();
        if current != *old {
            return Ok(current);
        }
        let signed_in = self.0.login.sign_in(&self.0.transport).await?;
        let mut token = self.0.token.write().unwrap_or_else(PoisonError::into_inner);
        *token = signed_in.token.clone();
        Ok(signed_in.token)
    }
}
