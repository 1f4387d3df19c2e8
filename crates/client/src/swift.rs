//! Session for one account: sends requests with its token, and logs in again when that has expired.

use std::sync::Arc;

use cairn_http::Response;
use http::header::{HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use parking_lot::RwLock;

use crate::error::{ClientError, LoginError};
use crate::login::Login;
use crate::payload::Payload;
use crate::transport::{Options, Repeat, Transport};
use crate::url::StoreUrl;

struct Inner {
    transport: Transport,
    login: Login,
    /// The account's URL.
    storage: StoreUrl,
    token: RwLock<HeaderValue>,
    /// Lock held by the caller that logs in again, while others wait.
    renewal: tokio::sync::Mutex<()>,
}

/// A session for one account. Cheap to clone; all clones share the token and connections.
#[derive(Clone)]
pub struct Swift(Arc<Inner>);

impl Swift {
    /// Logs in. `account` is the account's URL, if it is not the one in the login's response.
    ///
    /// # Errors
    /// [`LoginError`], which names the problem.
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
        let token = self.0.token.read();
        token.clone()
    }

    /// Sends a request below the account. `path` is an encoded `/container/object`, or empty;
    /// `query` is `?…`, or empty. Returns 2xx (or 304) responses only.
    ///
    /// # Errors
    /// [`ClientError`]; an error status is [`ClientError::Status`].
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        query: &str,
        headers: HeaderMap,
        payload: Payload,
    ) -> Result<Response, ClientError> {
        self.send(method, path, query, headers, payload, Repeat::Passing)
            .await
    }

    /// Sends a request like [`Swift::request`], repeated only after failures that `repeat` allows.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        query: &str,
        mut headers: HeaderMap,
        mut payload: Payload,
        repeat: Repeat,
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
                    .call(&url, method, query, &headers, &mut payload, repeat)
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

    /// Requests `/info` of the store, which needs no token.
    pub(crate) async fn request_info(&self) -> Result<Response, ClientError> {
        let url = self.0.storage.with_path("/info");
        let (headers, mut payload) = (HeaderMap::new(), Payload::Empty);
        let transport = &self.0.transport;
        let repeat = Repeat::Passing;
        let call = transport.call(&url, Method::GET, "", &headers, &mut payload, repeat);
        call.await
    }

    /// Obtains a token other than `old`.
    async fn renew(&self, old: &HeaderValue) -> Result<HeaderValue, LoginError> {
        let _turn = self.0.renewal.lock().await;
        let current = self.token();
        if current != *old {
            return Ok(current);
        }
        let signed_in = self.0.login.sign_in(&self.0.transport).await?;
        let mut token = self.0.token.write();
        *token = signed_in.token.clone();
        Ok(signed_in.token)
    }
}
