//! Internal client: requests to a proxy's pipeline in this process, without authentication and with
//! access to reserved names; servers are reached over the replication network. Server errors are
//! retried.

use std::time::Duration;

use bytes::Bytes;
use cairn_http::context::Context;
use cairn_http::params::{quote, with_path_and_query};
use cairn_http::rekey::{Rekey, Rekeyed};
use cairn_http::{Body, Handler, Request, Response, Service};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use serde_json::Value;
use thiserror::Error;
use tokio::time::{sleep, timeout};

/// Maximum listing: 10,000 names of at most a few kilobytes each.
const LISTING_MAX_BYTES: u64 = 128 << 20;
/// Maximum bytes read of other responses, whose bodies are ignored.
const RESPONSE_MAX_BYTES: u64 = 64 << 10;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Reasons why a response is unusable.
#[derive(Debug, Error)]
pub enum InternalClientError {
    #[error("{method} {path}: answered with {status}")]
    Status {
        method: Method,
        path: String,
        status: StatusCode,
    },
    #[error("{method} {path}: {problem}")]
    Unusable {
        method: Method,
        path: String,
        problem: &'static str,
    },
}

impl InternalClientError {
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            InternalClientError::Status { status, .. } => Some(*status),
            InternalClientError::Unusable { .. } => None,
        }
    }
}

/// A pipeline that ends in a proxy, without filters for clients.
#[derive(Clone)]
pub struct InternalClient {
    pipeline: Handler,
    agent: &'static str,
    tries: u32,
}

impl InternalClient {
    /// Creates a client; `tries` is the maximum attempts of each request.
    pub fn new(pipeline: Handler, agent: &'static str, tries: u32) -> InternalClient {
        InternalClient {
            pipeline,
            agent,
            tries: tries.max(1),
        }
    }

    /// Sends a request; `path` is decoded. Accepts 2xx and `also`; discards the body.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        also: &[StatusCode],
    ) -> Result<(StatusCode, HeaderMap), InternalClientError> {
        let (status, headers, _) = self
            .try_often(
                &method,
                path,
                None,
                headers,
                Bytes::new(),
                also,
                RESPONSE_MAX_BYTES,
            )
            .await?;
        Ok((status, headers))
    }

    /// One page of a listing after `marker`; empty at its end, or if there is none.
    pub(crate) async fn page(
        &self,
        path: &str,
        marker: &str,
        also: &[StatusCode],
    ) -> Result<Vec<Value>, InternalClientError> {
        let query = format!("format=json&marker={}", quote(marker));
        self.rows(path, &query, also).await
    }

    /// Opens an object for reading. Accepts 2xx and 4xx; the body of a 4xx is meaningless.
    pub(crate) async fn open(
        &self,
        path: &str,
        query: Option<&str>,
        headers: &[(&'static str, String)],
    ) -> Result<Response, InternalClientError> {
        let method = Method::GET;
        let mut attempt = 1;
        loop {
            let outcome = match self.request(&method, path, query, headers) {
                None => Err(self.unusable(&method, path, "too long for a request")),
                Some(request) => {
                    match timeout(REQUEST_TIMEOUT, self.pipeline.call(request)).await {
                        Err(_) => Err(self.unusable(&method, path, "no answer in time")),
                        Ok(response) => Ok(response),
                    }
                }
            };
            match outcome {
                Ok(response) if !response.status().is_server_error() => return Ok(response),
                Ok(response) if attempt >= self.tries => {
                    return Err(InternalClientError::Status {
                        method,
                        path: path.to_owned(),
                        status: response.status(),
                    });
                }
                Err(error) if attempt >= self.tries => return Err(error),
                _ => {}
            }
            sleep(Duration::from_secs(1 << attempt.min(6))).await;
            attempt += 1;
        }
    }

    /// Uploads an object in one attempt, as its body cannot be read again. Accepts 2xx.
    pub(crate) async fn upload(
        &self,
        path: &str,
        headers: HeaderMap,
        body: Body,
    ) -> Result<StatusCode, InternalClientError> {
        let method = Method::PUT;
        let mut request = self
            .request(&method, path, None, &[])
            .ok_or_else(|| self.unusable(&method, path, "too long for a request"))?;
        for (name, value) in &headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        *request.body_mut() = body;
        let status = self.pipeline.call(request).await.status();
        match status.is_success() {
            true => Ok(status),
            false => Err(InternalClientError::Status {
                method,
                path: path.to_owned(),
                status,
            }),
        }
    }

    fn unusable(&self, method: &Method, path: &str, problem: &'static str) -> InternalClientError {
        InternalClientError::Unusable {
            method: method.clone(),
            path: path.to_owned(),
            problem,
        }
    }

    /// Re-keys an object or a container through the filter `encryption`.
    pub(crate) async fn rekey(
        &self,
        path: &str,
        order: Rekey,
    ) -> Result<Rekeyed, InternalClientError> {
        let method = Method::POST;
        let mut attempt = 1;
        loop {
            let mut request = self
                .request(&method, path, None, &[])
                .ok_or_else(|| self.unusable(&method, path, "too long for a request"))?;
            request.extensions_mut().insert(order);
            let (status, outcome) = match timeout(REQUEST_TIMEOUT, self.pipeline.call(request))
                .await
            {
                Err(_) => return Err(self.unusable(&method, path, "no answer in time")),
                Ok(mut answer) => (answer.status(), answer.extensions_mut().remove::<Rekeyed>()),
            };
            match outcome {
                Some(outcome) => return Ok(outcome),
                None if status.is_success() => {
                    return Err(self.unusable(&method, path, "no filter encryption answered"));
                }
                None if attempt >= self.tries || !status.is_server_error() => {
                    return Err(InternalClientError::Status {
                        method,
                        path: path.to_owned(),
                        status,
                    });
                }
                None => {}
            }
            sleep(Duration::from_secs(1 << attempt.min(6))).await;
            attempt += 1;
        }
    }

    /// Sends a GET; returns headers and body.
    pub(crate) async fn get(
        &self,
        path: &str,
        query: &str,
        headers: &[(&'static str, String)],
    ) -> Result<(HeaderMap, Bytes), InternalClientError> {
        let (_, headers, body) = self
            .try_often(
                &Method::GET,
                path,
                Some(query),
                headers,
                Bytes::new(),
                &[],
                LISTING_MAX_BYTES,
            )
            .await?;
        Ok((headers, body))
    }

    /// Updates a container with rows, as JSON, in one request. Accepts 2xx.
    pub(crate) async fn update(
        &self,
        path: &str,
        headers: &[(&'static str, String)],
        rows: Bytes,
    ) -> Result<(), InternalClientError> {
        let method = Method::from_bytes(b"UPDATE").unwrap_or_default();
        self.try_often(&method, path, None, headers, rows, &[], RESPONSE_MAX_BYTES)
            .await?;
        Ok(())
    }

    /// The rows of a JSON listing with this query; none if the status is in `also`.
    pub(crate) async fn rows(
        &self,
        path: &str,
        query: &str,
        also: &[StatusCode],
    ) -> Result<Vec<Value>, InternalClientError> {
        let method = Method::GET;
        let nothing = Bytes::new();
        let (status, _, body) = self
            .try_often(
                &method,
                path,
                Some(query),
                &[],
                nothing,
                also,
                LISTING_MAX_BYTES,
            )
            .await?;
        if status != StatusCode::OK {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&body)
            .map_err(|_| self.unusable(&method, path, "no listing in JSON"))
    }

    #[allow(clippy::too_many_arguments)]
    async fn try_often(
        &self,
        method: &Method,
        path: &str,
        query: Option<&str>,
        headers: &[(&'static str, String)],
        content: Bytes,
        also: &[StatusCode],
        limit: u64,
    ) -> Result<(StatusCode, HeaderMap, Bytes), InternalClientError> {
        let unusable = |problem| self.unusable(method, path, problem);
        let mut outcome = Err(unusable("not asked"));
        for attempt in 1..=self.tries {
            let mut request = self
                .request(method, path, query, headers)
                .ok_or_else(|| unusable("too long for a request"))?;
            if !content.is_empty() {
                request
                    .headers_mut()
                    .insert(CONTENT_LENGTH, content.len().into());
                *request.body_mut() = Body::full(content.clone());
            }
            let answer = async {
                let (head, body) = self.pipeline.call(request).await.into_parts();
                (head, body.collect(limit).await)
            };
            outcome = match timeout(REQUEST_TIMEOUT, answer).await {
                Err(_) => Err(unusable("no answer in time")),
                Ok((head, body)) if head.status.is_success() || also.contains(&head.status) => {
                    match body {
                        Ok(body) => return Ok((head.status, head.headers, body)),
                        Err(_) => Err(unusable("the answer broke off")),
                    }
                }
                Ok((head, _)) => Err(InternalClientError::Status {
                    method: method.clone(),
                    path: path.to_owned(),
                    status: head.status,
                }),
            };
            // Retrying does not help if the request is at fault.
            let hopeless = |status: StatusCode| !status.is_server_error();
            if outcome
                .as_ref()
                .is_err_and(|e| e.status().is_some_and(hopeless))
            {
                break;
            }
            if attempt < self.tries {
                sleep(Duration::from_secs(1 << attempt.min(6))).await;
            }
        }
        outcome
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        query: Option<&str>,
        headers: &[(&'static str, String)],
    ) -> Option<Request> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method.clone();
        *request.uri_mut() = with_path_and_query(path, query)?;
        let map = request.headers_mut();
        for (name, value) in headers {
            map.insert(
                HeaderName::from_static(name),
                HeaderValue::from_str(value).ok()?,
            );
        }
        map.insert(USER_AGENT, HeaderValue::from_static(self.agent));
        for name in [
            "x-backend-allow-reserved-names",
            "x-backend-use-replication-network",
        ] {
            map.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static("true"),
            );
        }
        request.extensions_mut().insert(Context {
            allow_reserved: true,
            ..Context::default()
        });
        Some(request)
    }
}
