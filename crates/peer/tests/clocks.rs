//! Calls over the network to servers with different clocks. In a test program of its own, since the
//! counter and the log are per process.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use cairn_http::metrics::Metrics;
use cairn_http::{Body, Request};
use cairn_peer::Backends;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A server whose clock is `ahead` seconds ahead.
async fn server(ahead: i64) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await.unwrap();
            let by = Duration::from_secs(ahead.unsigned_abs());
            let now = SystemTime::now();
            let time = if ahead < 0 { now - by } else { now + by };
            let date = httpdate::fmt_http_date(time);
            let answer = format!(
                "HTTP/1.1 201 Created\r\nDate: {date}\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    address
}

fn counted() -> u64 {
    let text = Metrics::new().encode();
    let name = "cairn_clock_differences_total ";
    let count = text.lines().find_map(|line| line.strip_prefix(name));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_call_to_a_server_with_another_clock_is_counted_and_warned_of() {
    let lines = Lines::default();
    let into = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || into.clone())
        .with_ansi(false)
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let backends = Backends::new(Duration::from_secs(5));
    let call = async |address| {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = http::Method::PUT;
        *request.uri_mut() = "/d1/0/a/c/o".parse().unwrap();
        let answer = backends
            .call(address, request, Duration::from_secs(5))
            .await;
        assert_eq!(answer.unwrap().status(), 201);
    };
    call(server(0).await).await;
    assert_eq!(counted(), 0);
    for (number, ahead, words) in [(2, -120, "is ahead of"), (4, 120, "is behind of")] {
        let address = server(ahead).await;
        call(address).await;
        call(address).await;
        assert_eq!(counted(), number, "each time");
        let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let server = format!("server={address}");
        let warnings: Vec<_> = lines
            .lines()
            .filter(|line| line.contains(&server))
            .collect();
        assert!(
            matches!(warnings[..], [one] if one.contains(words)),
            "{lines}"
        );
    }
}
