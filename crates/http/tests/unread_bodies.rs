//! Requests answered before their bodies are read: no part of a body is taken for the next request
//! of its connection.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, serve};
use cairn_http::{Request, handler_fn, respond};
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

struct Server {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    _stop: watch::Sender<bool>,
}

impl Server {
    /// A server that refuses every PUT at once.
    async fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let paths = seen.clone();
        let service = handler_fn(move |request: Request| {
            paths.lock().unwrap().push(request.uri().path().to_owned());
            async move {
                match *request.method() == http::Method::PUT {
                    true => respond::standard(StatusCode::UNAUTHORIZED),
                    false => respond::text(StatusCode::OK, "served"),
                }
            }
        });
        let options = ServeOptions::new("test");
        tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
        Server {
            address,
            seen,
            _stop: stop,
        }
    }

    /// All output until the connection ended or was silent, and the paths that were served.
    async fn say(&self, pieces: &[&[u8]]) -> (String, Vec<String>) {
        self.seen.lock().unwrap().clear();
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        for piece in pieces {
            // A server that refused the request may have closed the connection.
            let _ = stream.write_all(piece).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut answers = Vec::new();
        let read = stream.read_to_end(&mut answers);
        let _ = tokio::time::timeout(Duration::from_secs(1), read).await;
        let seen = self.seen.lock().unwrap().clone();
        (String::from_utf8_lossy(&answers).into_owned(), seen)
    }
}

fn put(length: usize) -> String {
    format!("PUT /put HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")
}

const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn a_body_of_any_bytes_is_no_request() {
    let server = Server::new().await;
    // The escaping of heads would change each of the first bytes.
    let hidden = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut bodies = vec![[&[0xff_u8; 300][..], b"\r\n\r\n", hidden].concat()];
    for escaped in (0..hidden.len()).step_by(4) {
        bodies.push([&vec![b'|'; escaped][..], hidden].concat());
    }
    for body in bodies {
        let head = put(body.len());
        for pieces in [
            &[head.as_bytes(), &body, NEXT][..],
            &[&[head.as_bytes(), &body].concat(), NEXT],
            &[&[head.as_bytes(), &body, NEXT].concat()],
            &[head.as_bytes(), &[&body, NEXT].concat()],
        ] {
            let (answers, seen) = server.say(pieces).await;
            assert!(answers.contains("HTTP/1.1 200 OK"), "{answers}");
            assert_eq!(answers.matches("HTTP/1.1 ").count(), 2, "{answers}");
            assert_eq!(seen, ["/put", "/next"]);
        }
    }
}

#[tokio::test]
async fn a_large_body_ends_its_connection() {
    let server = Server::new().await;
    let body = vec![b'|'; 200_000];
    let (answers, seen) = server.say(&[put(body.len()).as_bytes(), &body, NEXT]).await;
    assert_eq!(seen, ["/put"]);
    if !answers.is_empty() {
        assert!(answers.contains("Connection: close"), "{answers}");
    }
}
