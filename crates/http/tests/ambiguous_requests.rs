//! Requests that two programs on their way could parse differently are refused, and data after them
//! on the connection is not taken for a request.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, serve};
use cairn_http::{Request, handler_fn, respond};
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[tokio::test]
async fn they_are_refused_with_400() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_stop, stopped) = watch::channel(false);
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let service = handler_fn(move |request: Request| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            let _ = request.into_body().drain(1 << 20).await;
            respond::text(StatusCode::OK, "served")
        }
    });
    let options = ServeOptions::new("test");
    tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
    let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    for head in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nabcde",
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
        "PUT / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        served.store(0, Ordering::Relaxed);
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = stream.write_all(next.as_bytes()).await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        // The connection is reset if more was sent than read.
        let _ = tokio::time::timeout(Duration::from_secs(20), read)
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with("HTTP/1.1 400 "), "{head:?}: {text}");
        assert_eq!(served.load(Ordering::Relaxed), 0, "{head:?}");
    }
}
