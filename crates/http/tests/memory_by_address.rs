//! Memory for parts of responses is shared between addresses: one that asks for large responses on
//! many connections and does not read them leaves others theirs.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_http::context::Context;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::unsent::Reserved;
use cairn_http::{Body, BodyError, Request, handler_fn, respond};
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

const PART_BYTES: usize = 1 << 20;
const PARTS: usize = 20;
const ATTACKERS: usize = 200;
/// Maximum time of a response to another address: less than that after which clients that read
/// nothing are disconnected.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Serves responses whose parts are reserved, as those of erasure-coded objects are; counts parts.
async fn server() -> (SocketAddr, watch::Sender<bool>, Arc<AtomicUsize>) {
    let listener = bind("127.0.0.1:0".parse().unwrap(), 1024).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let parts = Arc::new(AtomicUsize::new(0));
    let counted = parts.clone();
    let part = Bytes::from(vec![7; PART_BYTES]);
    let service = handler_fn(move |request: Request| {
        let client = Context::of_request(&request).remote.unwrap().ip();
        let (counted, part) = (counted.clone(), part.clone());
        async move {
            let begin = (0, Reserved::default());
            let content = futures_util::stream::unfold(begin, move |(sent, reserved)| {
                let (counted, part) = (counted.clone(), part.clone());
                async move {
                    drop(reserved);
                    if sent == PARTS {
                        return None;
                    }
                    let reserved = match Reserved::take(Some(client), PART_BYTES).await {
                        Ok(reserved) => reserved,
                        Err(error) => {
                            let error = BodyError::Source(error.to_string());
                            return Some((Err(error), (PARTS, Reserved::default())));
                        }
                    };
                    counted.fetch_add(1, Ordering::Relaxed);
                    Some((Ok(part), (sent + 1, reserved)))
                }
            });
            let mut answer = respond::empty(StatusCode::OK);
            let length = (PARTS * PART_BYTES) as u64;
            *answer.body_mut() = Body::from_stream(Box::pin(content), Some(length));
            answer
        }
    });
    let listener = TcpListener::from_std(listener).unwrap();
    let options = ServeOptions::new("test");
    tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
    (address, stop, parts)
}

async fn ask(server: SocketAddr, from: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let get = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(get).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_reads_nothing_leaves_memory_for_others() {
    let (server, _stop, parts) = server().await;
    let mut attackers = Vec::new();
    for _ in 0..ATTACKERS {
        attackers.push(ask(server, [127, 0, 0, 2]).await);
    }
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        match parts.load(Ordering::Relaxed) {
            now if now == before && now > 0 => break,
            now => before = now,
        }
    }
    assert!(before < ATTACKERS, "all attackers were served");
    let begun = Instant::now();
    let mut answer = Vec::new();
    let mut stream = ask(server, [127, 0, 0, 3]).await;
    let read = tokio::time::timeout(AT_ONCE, stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok_and(|read| read.is_ok()), "{:?}", begun.elapsed());
    assert!(answer.len() > PARTS * PART_BYTES);
    // The memory of those that leave comes back, to others of their address, too.
    drop(attackers);
    let mut stream = ask(server, [127, 0, 0, 2]).await;
    answer.clear();
    let read = tokio::time::timeout(AT_ONCE, stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok_and(|read| read.is_ok()));
    assert!(answer.len() > PARTS * PART_BYTES);
}
