//! Requests over connections outside of the pool: those with header names that are not tokens, and
//! repeats of those whose response had such names. The escaping needs to know where a head begins,
//! which is certain only if the connection carries a single exchange.

use std::error::Error;
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Method, Uri};
use hyper::client::conn::http1;
use hyper_util::client::legacy;
use hyper_util::rt::TokioIo;

use super::{CallError, HEADERS_MAX, Own, dial};
use crate::body::Body;
use crate::heads::Heads;
use crate::service::{Request, Response};

/// A copy of a read request, to repeat it if the response cannot be parsed; `None` for other
/// methods.
pub(super) fn copy(request: &Request) -> Option<Request> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read || !request.body().is_empty() {
        return None;
    }
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// Did the call fail because the response's head could not be parsed?
pub(super) fn is_parse(error: &legacy::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_parse)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

pub(super) async fn call(
    own: Own<'_>,
    request: Request,
    timeout: Duration,
) -> Result<Response, CallError> {
    let address = own.address;
    match tokio::time::timeout(timeout, exchange(own, request)).await {
        Ok(answer) => answer,
        Err(_) => Err(CallError::Timeout {
            address,
            after: timeout,
        }),
    }
}

async fn exchange(own: Own<'_>, mut request: Request) -> Result<Response, CallError> {
    let address = own.address;
    let host = own.host.unwrap_or_else(|| address.ip().to_string());
    let stream = dial(address, &host, own.tls, own.connect_timeout)
        .await
        .map_err(|error| CallError::Connect {
            address,
            reason: error.to_string(),
        })?;
    let (socket, names) = Heads::of_one_response(stream);
    let broken = |error: hyper::Error| CallError::Broken {
        address,
        reason: error.to_string(),
    };
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .max_headers(HEADERS_MAX)
        .handshake(TokioIo::new(socket))
        .await
        .map_err(broken)?;
    // The connection is driven to the end of the response's body.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let target = request.uri().path_and_query().cloned();
    *request.uri_mut() = target.map_or_else(|| Uri::from_static("/"), Uri::from);
    let host = HeaderValue::try_from(address.to_string()).ok();
    let headers = request.headers_mut();
    if let Some(host) = host.filter(|_| !headers.contains_key(HOST)) {
        headers.insert(HOST, host);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    names.stand_in(headers);
    let answer = sender.send_request(request).await.map_err(broken)?;
    Ok(answer.map(Body::incoming))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::StatusCode;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;

    use crate::client::Client;
    use crate::metrics::Metrics;
    use crate::serve::{ServeOptions, serve};
    use crate::service::handler_fn;
    use crate::{Request, respond};

    use super::*;

    const NAME: &str = "x-object-meta-fr\u{e8}^d";

    /// A service that echoes the requested header and sends a body.
    #[tokio::test]
    async fn names_of_any_bytes_go_both_ways() {
        let name = cairn_types::header_name::escape_text(NAME).into_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let (known, value) = (name.clone(), HeaderValue::from_static("yes"));
        let service = handler_fn(move |request: Request| {
            let given = request.headers().get(known.as_str()).cloned();
            let answered = given.unwrap_or_else(|| HeaderValue::from_static("no"));
            let name = http::HeaderName::from_bytes(known.as_bytes()).unwrap();
            async move {
                let mut response = respond::text(StatusCode::OK, "^195 body");
                response.headers_mut().insert(name, answered);
                response
            }
        });
        let options = ServeOptions::new("test");
        tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
        let second = Duration::from_secs(5);
        let client = Client::new(second, 1, second);
        for (gives, expected) in [(true, "yes"), (false, "no")] {
            let mut request = http::Request::get("/x").body(Body::empty()).unwrap();
            if gives {
                let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
                request.headers_mut().insert(name, value.clone());
            }
            let answer = client.call(address, request, second).await.unwrap();
            assert_eq!(answer.headers()[name.as_str()], expected);
            let body = answer.into_body().collect(100).await.unwrap();
            assert_eq!(body, "^195 body");
        }
    }

    /// The wire carries the raw bytes.
    #[tokio::test]
    async fn the_wire_has_raw_bytes() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let service = handler_fn(|request: Request| async move {
            let mut response = respond::empty(StatusCode::NO_CONTENT);
            *response.headers_mut() = request.headers().clone();
            response
        });
        let options = ServeOptions::new("test");
        tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
        let mut socket = TcpStream::connect(address).await.unwrap();
        let mut answer = vec![0; 4096];
        // Two requests over one connection, the first with a body.
        for (n, body) in [(4, "body"), (0, "")] {
            let request = format!(
                "PUT /x HTTP/1.1\r\nX-A: 1\r\nContent-Length: {n}\r\n{NAME}: v\r\n\r\n{body}"
            );
            socket.write_all(request.as_bytes()).await.unwrap();
            let n = socket.read(&mut answer).await.unwrap();
            let text = std::str::from_utf8(&answer[..n]).unwrap();
            assert!(text.starts_with("HTTP/1.1 204"), "{text}");
            assert!(
                text.contains("\r\nX-Object-Meta-Fr\u{e8}^D: v\r\n"),
                "{text}"
            );
        }
    }
}
