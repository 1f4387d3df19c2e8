//! Session for one account: sends requests with its token, and logs in again when that has expired.

use std::sync::Arc;

use cairn_http::Response;
use http::header::{HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use parking_lot::RwLock;

use crate::call::{Accepts, Call};
use crate::error::{ClientError, LoginError};
use crate::login::Login;
use crate::payload::Payload;
use crate::retries::Repeat;
use crate::transport::{Options, Transport};
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
    /// Logs in over HTTP. `account` is the account's URL, if it is not the one in the login's
    /// response.
    ///
    /// # Errors
    /// [`LoginError`], which names the problem.
    pub async fn connect(
        login: Login,
        account: Option<StoreUrl>,
        options: &Options,
    ) -> Result<Swift, LoginError> {
        Swift::over(Transport::network(options), login, account).await
    }

    /// Logs in like [`Swift::connect`], over any transport.
    ///
    /// # Errors
    /// [`LoginError`], which names the problem.
    pub async fn over(
        transport: Transport,
        login: Login,
        account: Option<StoreUrl>,
    ) -> Result<Swift, LoginError> {
        let signed_in = login.sign_in(&transport).await?;
        let storage = account.unwrap_or(signed_in.storage);
        // A host without an address now may have one when requests are sent.
        if let Err(ClientError::Tls(reason)) = transport.check(&storage).await {
            return Err(LoginError::Tls(reason));
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

    /// Number of requests so far that were sent again.
    pub fn repeats(&self) -> u64 {
        self.0.transport.repeats()
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
        self.send(method, path, query, headers, payload, Repeat::Always)
            .await
    }

    /// Sends a request like [`Swift::request`], repeated only after failures that `repeat` allows.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        query: &str,
        headers: HeaderMap,
        payload: Payload,
        repeat: Repeat,
    ) -> Result<Response, ClientError> {
        let call = Call {
            query,
            headers,
            payload,
            // The response to a conditional GET of unchanged content.
            accepts: Accepts::Also(&[StatusCode::NOT_MODIFIED]),
            repeat,
            ..Call::new(method)
        };
        self.send_call(path, call).await
    }

    /// Sends a call below the account, by the session's token.
    pub(crate) async fn send_call(
        &self,
        path: &str,
        mut call: Call<'_>,
    ) -> Result<Response, ClientError> {
        let inner = &self.0;
        let url = inner.storage.below(path);
        let used = self.token();
        call.headers.insert("x-auth-token", used.clone());
        let answer = inner.transport.call(&url, &mut call).await;
        let is_expired = |error: &ClientError| error.status() == Some(StatusCode::UNAUTHORIZED);
        let can_repeat = inner.login.can_renew() && call.payload.can_repeat();
        match answer {
            Err(error) if is_expired(&error) && can_repeat => {
                call.headers
                    .insert("x-auth-token", self.renew(&used).await?);
                inner.transport.call(&url, &mut call).await
            }
            answer => answer,
        }
    }

    /// Makes one attempt to read a range below the account into an empty buffer; `None` if it has to be
    /// sent as a call.
    pub(crate) async fn read_range(
        &self,
        path: &str,
        headers: HeaderMap,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Result<(), ClientError>> {
        let inner = &self.0;
        let mut call = Call {
            headers,
            ..Call::new(Method::GET)
        };
        call.headers.insert("x-auth-token", self.token());
        let url = inner.storage.below(path);
        let read = inner.transport.read_range(&url, &mut call, length, buffer);
        read.await
    }

    /// Requests `/info` of the store, which needs no token.
    pub(crate) async fn request_info(&self) -> Result<Response, ClientError> {
        let url = self.0.storage.with_path("/info");
        let mut call = Call::new(Method::GET);
        self.0.transport.call(&url, &mut call).await
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
