//! Uploads to a backend behave alike in this process and over a socket.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::service::handler_fn;
use cairn_http::{Handler, Interim, Request, respond};
use cairn_peer::put::{OpenError, Putter};
use cairn_peer::{Backends, Node};
use cairn_ring::Device;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::watch;

const WAIT: Duration = Duration::from_secs(5);

fn node(address: SocketAddr) -> Node {
    let device = Device::at(0, address);
    Node {
        device: Arc::new(device),
        address,
        replication_address: address,
        index: 0,
        handoff: false,
    }
}

/// The same handler twice: in this process, and over a socket. The watch keeps the server alive.
async fn both(handler: Handler) -> (Vec<(Arc<Backends>, Node)>, watch::Sender<bool>) {
    let (stop, stopped) = watch::channel(false);
    let listener = bind("127.0.0.1:0".parse().unwrap(), 64).unwrap();
    let remote = listener.local_addr().unwrap();
    let options = ServeOptions::new("test");
    tokio::spawn(serve(
        TcpListener::from_std(listener).unwrap(),
        handler.clone(),
        options,
        Metrics::new(),
        stopped,
    ));
    let called = Backends::new(WAIT);
    let local: SocketAddr = "127.0.0.1:1".parse().unwrap();
    called.register_local(local, handler);
    (
        vec![(called, node(local)), (Backends::new(WAIT), node(remote))],
        stop,
    )
}

async fn open(backends: &Arc<Backends>, node: &Node, length: Option<u64>) -> Putter {
    let request = http::Request::put("/d0/1/a/c/o");
    let (headers, extensions) = (HeaderMap::new(), http::Extensions::new());
    Putter::open(
        backends,
        node.clone(),
        request,
        headers,
        length,
        extensions,
        WAIT,
    )
    .await
    .unwrap()
}

#[tokio::test]
async fn bodies_arrive_whole_with_and_without_a_length() {
    let echo = handler_fn(|request: Request| async {
        match request.into_body().collect(1 << 20).await {
            Ok(body) => respond::text(StatusCode::CREATED, body.len().to_string()),
            Err(_) => respond::standard(respond::status(499)),
        }
    });
    let (targets, _stop) = both(echo).await;
    for (backends, node) in &targets {
        for length in [Some(30_000), None] {
            let mut putter = open(backends, node, length).await;
            assert!(putter.early.is_none());
            for _ in 0..30 {
                putter.send(Bytes::from(vec![7; 1000]), WAIT).await;
            }
            putter.finish(WAIT).await;
            let response = putter.answer(WAIT).await.unwrap();
            assert_eq!(response.status(), StatusCode::CREATED);
            assert_eq!(response.into_body().collect(100).await.unwrap(), "30000");
        }
    }
}

#[tokio::test]
async fn a_backend_that_refuses_answers_before_the_body() {
    let refuse = handler_fn(|_| async { respond::standard(StatusCode::PRECONDITION_FAILED) });
    let (targets, _stop) = both(refuse).await;
    for (backends, node) in &targets {
        let putter = open(backends, node, Some(1 << 30)).await;
        assert_eq!(putter.early.as_ref().unwrap().0, 412);
    }
}

#[tokio::test]
async fn an_upload_given_up_is_seen_as_broken() {
    let (seen_tx, mut seen) = tokio::sync::mpsc::channel(4);
    let watcher = handler_fn(move |request: Request| {
        let seen_tx = seen_tx.clone();
        async move {
            let whole = request.into_body().collect(1 << 20).await.is_ok();
            seen_tx.send(whole).await.unwrap();
            respond::standard(respond::status(499))
        }
    });
    let (targets, _stop) = both(watcher).await;
    for (backends, node) in &targets {
        let mut putter = open(backends, node, None).await;
        putter.send(Bytes::from_static(b"half"), WAIT).await;
        drop(putter);
        let whole = tokio::time::timeout(WAIT, seen.recv())
            .await
            .unwrap()
            .unwrap();
        assert!(!whole, "half an upload must not look whole");
    }
}

#[tokio::test]
async fn footers_follow_content_where_they_are_understood() {
    let able = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let knows = able.clone();
    let echo = handler_fn(move |mut request: Request| {
        let knows = knows.clone();
        async move {
            if knows.load(std::sync::atomic::Ordering::Relaxed)
                && let Some(interim) = request.extensions_mut().remove::<Interim>()
            {
                let mut able = HeaderMap::new();
                respond::set(&mut able, "x-obj-metadata-footer", "yes");
                interim.send(&able);
            }
            match request.into_body().collect(1 << 20).await {
                Ok(body) => respond::typed(StatusCode::CREATED, "text/plain", body),
                Err(_) => respond::standard(respond::status(499)),
            }
        }
    });
    let (targets, _stop) = both(echo).await;
    let (backends, node) = &targets[1];
    let open = || {
        let mut headers = HeaderMap::new();
        respond::set(&mut headers, "x-backend-obj-multipart-mime-boundary", "xyz");
        respond::set(&mut headers, "x-backend-obj-metadata-footer", "yes");
        let request = http::Request::put("/d0/1/a/c/o");
        let extensions = http::Extensions::new();
        Putter::open(
            backends,
            node.clone(),
            request,
            headers,
            None,
            extensions,
            WAIT,
        )
    };
    for content in ["", "content"] {
        let mut putter = open().await.unwrap();
        if !content.is_empty() {
            putter.send(Bytes::from(content), WAIT).await;
        }
        putter.end_content("{\"Etag\":\"e\"}", WAIT).await;
        putter.finish(WAIT).await;
        let response = putter.answer(WAIT).await.unwrap();
        let text = response.into_body().collect(1000).await.unwrap();
        let expected = format!(
            "--xyz\r\nX-Document: object body\r\n\r\n{content}\r\n--xyz\r\n\
             X-Document: object metadata\r\nContent-MD5: 3c283b3bbdd7f3c37446b9b6fb927f67\r\n\r\n\
             {{\"Etag\":\"e\"}}\r\n--xyz--"
        );
        assert_eq!(text, expected);
    }
    // A server that does not support footers would store them.
    able.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(open().await, Err(OpenError::NoFooters)));
}
