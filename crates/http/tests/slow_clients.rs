//! Clients that occupy a server's connections: they read nothing of large responses, send their
//! bodies at a trickle, or send nothing at all, on three times as many connections as are served at
//! once. Other clients are answered all the same, health checks at once.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::{Body, Request, handler_fn, respond};
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

const SERVED: usize = 100;
const ATTACKERS: usize = 300;
/// Timeout of events that must happen.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Reports when a body is no longer read.
struct Watcher(mpsc::UnboundedSender<()>);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Serves large responses to GET and takes any body; counts large responses that ended.
async fn server(
    adapt: impl FnOnce(&mut ServeOptions),
) -> (SocketAddr, watch::Sender<bool>, mpsc::UnboundedReceiver<()>) {
    let listener = bind("127.0.0.1:0".parse().unwrap(), 1024).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let (ended, all_ended) = mpsc::unbounded_channel();
    let service = handler_fn(move |mut request: Request| {
        let watcher = Watcher(ended.clone());
        async move {
            if request.method() == Method::PUT {
                while let Some(chunk) = request.body_mut().next_chunk().await {
                    if chunk.is_err() {
                        break;
                    }
                }
            }
            if request.uri().path() != "/large" {
                return respond::text(StatusCode::OK, "small");
            }
            let chunk = Bytes::from(vec![7; 64 << 10]);
            let chunks = futures_util::stream::iter((0..320).map(move |_| {
                let _ = &watcher;
                Ok(chunk.clone())
            }));
            let mut answer = respond::empty(StatusCode::OK);
            *answer.body_mut() = Body::from_stream(chunks, Some(20 << 20));
            answer
        }
    });
    let mut options = ServeOptions::new("test");
    options.max_connections = SERVED;
    adapt(&mut options);
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
    (address, stop, all_ended)
}

async fn connect(address: SocketAddr, first: &[u8]) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    // The server may have closed the connection, which is what is tested.
    let _ = stream.write_all(first).await;
    stream
}

/// The status of a request on a new connection.
async fn ask(address: SocketAddr, path: &str) -> String {
    let asked = async {
        let get = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut stream = connect(address, get.as_bytes()).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    };
    tokio::time::timeout(TIMEOUT, asked).await.unwrap()
}

/// Others are answered while these clients occupy their connections.
async fn others_are_answered(first: &[u8], trickle: &[u8]) {
    let (address, _stop, _ended) = server(|_| {}).await;
    let mut attackers = Vec::new();
    for _ in 0..ATTACKERS {
        attackers.push(connect(address, first).await);
    }
    let trickle = trickle.to_vec();
    let slow = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            for one in &mut attackers {
                let _ = one.write_all(&trickle).await;
            }
        }
    });
    for _ in 0..20 {
        assert_eq!(ask(address, "/healthcheck").await, "HTTP/1.1 200 OK");
    }
    assert_eq!(ask(address, "/small").await, "HTTP/1.1 200 OK");
    slow.abort();
}

#[tokio::test]
async fn who_reads_nothing_holds_nobody_up() {
    others_are_answered(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", b"").await;
}

#[tokio::test]
async fn who_sends_at_a_trickle_holds_nobody_up() {
    let put = b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n";
    others_are_answered(put, b"x").await;
}

#[tokio::test]
async fn who_sends_nothing_holds_nobody_up() {
    others_are_answered(b"", b"").await;
}

#[tokio::test]
async fn half_a_head_holds_nobody_up() {
    others_are_answered(b"GET / HTTP/1.1\r\nX: ", b"x").await;
}

/// A client that reads nothing at all is disconnected even if there are free slots.
#[tokio::test]
async fn who_reads_nothing_is_cut_off() {
    let stall = Duration::from_millis(200);
    let (address, _stop, mut ended) = server(|options| options.stall_timeout = stall).await;
    let silent = connect(address, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
    tokio::time::timeout(TIMEOUT, ended.recv())
        .await
        .unwrap()
        .unwrap();
    drop(silent);
}

/// A client that sends nothing of a body is disconnected, even if the service has no timeout for
/// it.
#[tokio::test]
async fn who_sends_nothing_of_a_body_is_cut_off() {
    let stall = Duration::from_millis(200);
    let (address, _stop, mut ended) = server(|options| options.stall_timeout = stall).await;
    let put = b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n";
    let silent = connect(address, put).await;
    tokio::time::timeout(TIMEOUT, ended.recv())
        .await
        .unwrap()
        .unwrap();
    drop(silent);
}

/// A client that reads slowly is not disconnected while there are free slots.
#[tokio::test]
async fn who_reads_slowly_gets_everything() {
    let stall = Duration::from_millis(400);
    let (address, _stop, _ended) = server(|options| options.stall_timeout = stall).await;
    let get = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut stream = connect(address, get).await;
    let mut bytes = vec![0; 4 << 20];
    let mut all = 0;
    loop {
        let count = stream.read(&mut bytes).await.unwrap();
        if count == 0 {
            break;
        }
        all += count;
        if all % 5 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    assert!(all > 20 << 20, "{all}");
}
