//! Metrics restricted to loopback are not shown to clients of a proxy on the same host.

#![allow(clippy::unwrap_used)]

use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, serve};
use cairn_http::{Request, handler_fn, respond};
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[tokio::test]
async fn forwarded_requests_are_not_of_this_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_stop, stopped) = watch::channel(false);
    let service =
        handler_fn(|_: Request| async { respond::text(StatusCode::NOT_FOUND, "no metrics") });
    let options = ServeOptions::new("test");
    tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
    for (header, status) in [
        ("Accept: */*", "200"),
        ("X-Forwarded-For: 192.0.2.1", "404"),
        ("x-forwarded-for:", "404"),
        ("Forwarded: for=192.0.2.1", "404"),
        ("X-Real-IP: 192.0.2.1", "404"),
        ("Via: 1.1 proxy", "404"),
        ("X-Forwarded-Host: store.example", "404"),
        ("X-Forwarded-Proto: https", "404"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head =
            format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{header}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{header}: {answer}");
    }
}
