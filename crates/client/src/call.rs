//! One request: its parts, and the answers that count as success.

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue};
use http::{Extensions, Method, StatusCode};

use cairn_http::{Request, Response};
use std::time::Duration;

use crate::error::ClientError;
use crate::payload::Payload;
use crate::retries::Repeat;
use crate::url::StoreUrl;

/// A request to a store, without its URL.
pub struct Call<'a> {
    pub method: Method,
    /// `?…`, or empty.
    pub query: &'a str,
    pub headers: HeaderMap,
    pub payload: Payload,
    /// Values for a service of this process; a network does not carry them.
    pub extensions: Extensions,
    pub accepts: Accepts<'a>,
    pub repeat: Repeat,
    /// Timeout of the answer, instead of that in [`Options`](crate::Options).
    pub timeout: Option<Duration>,
}

/// Answers that are returned; all others are [`ClientError::Status`].
#[derive(Clone, Copy)]
pub enum Accepts<'a> {
    /// 2xx.
    Success,
    /// 2xx, and these.
    Also(&'a [StatusCode]),
    If(fn(&Response) -> bool),
}

impl Accepts<'_> {
    pub(crate) fn covers(&self, answer: &Response) -> bool {
        let status = answer.status();
        match self {
            Accepts::Success => status.is_success(),
            Accepts::Also(others) => status.is_success() || others.contains(&status),
            Accepts::If(is_good) => is_good(answer),
        }
    }
}

impl Call<'_> {
    /// A request with nothing but a method.
    pub fn new(method: Method) -> Self {
        Call {
            method,
            query: "",
            headers: HeaderMap::new(),
            payload: Payload::Empty,
            extensions: Extensions::new(),
            accepts: Accepts::Success,
            repeat: Repeat::Always,
            timeout: None,
        }
    }

    /// The request for one attempt.
    pub(crate) fn request(&mut self, url: &StoreUrl) -> Result<Request, ClientError> {
        let length = self.payload.len();
        let body = self.payload.attempt().ok_or_else(|| ClientError::Broken {
            method: self.method.clone(),
            path: url.path.clone(),
            host: url.authority(),
            reason: "a stream is sent once".to_owned(),
        })?;
        let path = if url.path.is_empty() { "/" } else { &url.path };
        let invalid = |reason: String| ClientError::Invalid(format!("{path}: {reason}"));
        let target = format!("{path}{}", self.query);
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = target
            .parse()
            .map_err(|error: http::uri::InvalidUri| invalid(error.to_string()))?;
        *request.headers_mut() = self.headers.clone();
        *request.extensions_mut() = self.extensions.clone();
        let headers = request.headers_mut();
        // A store in this process may have no host.
        if !url.host.is_empty() {
            let host = HeaderValue::from_str(&url.authority());
            headers.insert(HOST, host.map_err(|error| invalid(error.to_string()))?);
        }
        if let Some(length) = length
            && (length > 0 || matches!(self.method, Method::PUT | Method::POST))
        {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        Ok(request)
    }
}
