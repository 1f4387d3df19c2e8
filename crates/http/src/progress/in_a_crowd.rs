//! Responses over real sockets while other connections have much unsent content.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::serve::{ServeOptions, bind, serve};
use crate::unsent::{self, tests::Crowd};
use crate::{Body, BodyError, Request, handler_fn, respond};

const PIECE_BYTES: usize = 50_000;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Responds to `/N` with N pieces, to `/304` with that status, and to `/broken` with a body that
/// breaks off.
async fn server() -> (SocketAddr, watch::Sender<bool>) {
    let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let service = handler_fn(|request: Request| async move {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let (pieces, breaks_off) = match path.parse() {
            Ok(304) => return respond::empty(StatusCode::NOT_MODIFIED),
            Ok(pieces) => (pieces, false),
            Err(_) => (3, true),
        };
        let piece = Bytes::from(vec![7; PIECE_BYTES]);
        let mut body: Vec<Result<Bytes, BodyError>> = Vec::new();
        body.resize_with(pieces, || Ok(piece.clone()));
        if breaks_off {
            body.push(Err(BodyError::Source("on purpose".into())));
        }
        let length = (body.len() * PIECE_BYTES) as u64;
        let mut answer = respond::empty(StatusCode::OK);
        *answer.body_mut() = Body::from_stream(futures_util::stream::iter(body), Some(length));
        answer
    });
    let listener = TcpListener::from_std(listener).unwrap();
    let options = ServeOptions::new("test");
    tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
    (address, stop)
}

/// Sends these requests at once; returns the number of bytes received until the connection ends.
async fn ask(address: SocketAddr, requests: &[&str]) -> usize {
    let text = requests.iter().enumerate().map(|(index, request)| {
        let is_last = index + 1 == requests.len();
        let close = if is_last { "Connection: close\r\n" } else { "" };
        format!("{request} HTTP/1.1\r\nHost: x\r\n{close}\r\n")
    });
    let text: String = text.collect();
    let asked = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers).await;
        answers.iter().filter(|byte| **byte == 7).count()
    };
    tokio::time::timeout(TIMEOUT, asked).await.unwrap()
}

#[tokio::test]
async fn answers_come_whole_and_leave_nothing_in_the_count() {
    let _alone = unsent::tests::ALONE.lock().await;
    let before = unsent::tests::unsent_bytes();
    let crowd = Crowd::gather([127, 0, 0, 1]);
    let (address, _stop) = server().await;
    let all = [
        "GET /40", "HEAD /5", "GET /304", "GET /0", "GET /1", "GET /40",
    ];
    assert_eq!(ask(address, &all).await, 81 * PIECE_BYTES);
    assert!(ask(address, &["GET /1", "GET /broken"]).await <= 4 * PIECE_BYTES);
    // A client that disconnects in the middle.
    let mut leaves = TcpStream::connect(address).await.unwrap();
    let request = b"GET /400 HTTP/1.1\r\nHost: x\r\n\r\n";
    leaves.write_all(request).await.unwrap();
    leaves.read_u8().await.unwrap();
    drop(leaves);
    drop(crowd);
    let begun = std::time::Instant::now();
    while unsent::tests::unsent_bytes() != before {
        assert!(begun.elapsed() < TIMEOUT, "bytes stay in the count");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
