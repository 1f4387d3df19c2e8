//! Servers that stop responding during an upload.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::hosts::tests::ring_of;
use crate::rings::LoadedRing;

/// Timeout far longer than the detection of a hanging server takes.
const TIMEOUT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(4);

const READY: &[u8] = b"HTTP/1.1 100 Continue\r\nX-Obj-Metadata-Footer: yes\r\n\
    X-Obj-Multiphase-Commit: yes\r\n\r\n";

/// Step at which the server's process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    AtOnce,
    /// It has requested the body, and reads nothing of it.
    BeforeBody,
    BeforePrepared,
    BeforeCommitted,
}

/// The address of a server that accepts connections, and on all but the first responds up to this
/// step.
async fn server(stopped: Stopped) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        if stopped != Stopped::AtOnce {
            socket.write_all(READY).await.unwrap();
        }
        if matches!(stopped, Stopped::BeforePrepared | Stopped::BeforeCommitted) {
            let mut read = Vec::new();
            while !read.windows(5).any(|end| end == b"0\r\n\r\n") {
                assert_ne!(socket.read_buf(&mut read).await.unwrap(), 0);
            }
            if stopped == Stopped::BeforeCommitted {
                socket.write_all(READY).await.unwrap();
            }
        }
        std::future::pending::<()>().await;
        drop((socket, listener));
    });
    address
}

/// The step at which the upload fails, and how long that takes.
async fn upload(stopped: Stopped) -> (&'static str, Duration) {
    let ring = LoadedRing::new(Arc::new(ring_of(&[("127.0.0.1", "127.0.0.1")])));
    let mut node = ring.primaries(0).remove(0);
    node.address = server(stopped).await;
    let backends = Backends::new(Duration::from_secs(1));
    let start = Instant::now();
    let uri = Uri::from_static("/sda/0/a/c/o");
    let (headers, boundary) = (HeaderMap::new(), documents::boundary());
    let opened = TwoPhasePut::open(&backends, node, uri, headers, boundary, TIMEOUT).await;
    let Ok(mut put) = opened else {
        return ("open", start.elapsed());
    };
    // More than socket buffers can hold.
    let chunks = match stopped {
        Stopped::BeforeBody => 64,
        _ => 1,
    };
    for _ in 0..chunks {
        put.send(Bytes::from(vec![b'x'; 1 << 20]), TIMEOUT).await;
    }
    if put.failed() {
        return ("send", start.elapsed());
    }
    put.end_content("{}", TIMEOUT).await;
    if let Some(answer) = put.prepared(TIMEOUT).await {
        assert_eq!(answer.status, 503);
        return ("prepared", start.elapsed());
    }
    let answer = put.commit(TIMEOUT).await;
    assert_eq!(answer.status, 503);
    ("commit", start.elapsed())
}

#[tokio::test]
async fn a_server_that_stops_during_an_upload_is_not_waited_for() {
    for (stopped, expected) in [
        (Stopped::AtOnce, "open"),
        (Stopped::BeforeBody, "send"),
        (Stopped::BeforePrepared, "prepared"),
        (Stopped::BeforeCommitted, "commit"),
    ] {
        let (failed, took) = upload(stopped).await;
        assert_eq!(failed, expected);
        assert!(took < LIMIT, "{stopped:?}: {took:?}");
    }
}
