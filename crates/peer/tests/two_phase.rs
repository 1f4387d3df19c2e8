//! Two-phase uploads behave alike in this process and over a socket.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::service::handler_fn;
use cairn_http::{Handler, Interim, Request, respond};
use cairn_peer::two_phase::{OpenError, TwoPhasePut};
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
    let listener = TcpListener::from_std(listener).unwrap();
    let options = ServeOptions::new("test");
    tokio::spawn(serve(
        listener,
        handler.clone(),
        options,
        Metrics::new(),
        stopped,
    ));
    let called = Backends::new(WAIT);
    let local: SocketAddr = "127.0.0.1:1".parse().unwrap();
    called.register_local(local, handler);
    let both = vec![(called, node(local)), (Backends::new(WAIT), node(remote))];
    (both, stop)
}

async fn open(backends: &Arc<Backends>, node: &Node) -> Result<TwoPhasePut, OpenError> {
    let (uri, headers) = ("/d0/1/a/c/o".parse().unwrap(), HeaderMap::new());
    TwoPhasePut::open(backends, node.clone(), uri, headers, "xyz".into(), WAIT).await
}

/// A server that records what it received in each phase.
fn server(got: Arc<Mutex<Vec<String>>>) -> Handler {
    handler_fn(move |mut request: Request| {
        let got = got.clone();
        async move {
            let interim = request.extensions_mut().remove::<Interim>().unwrap();
            interim.join_bodies();
            let mut able = HeaderMap::new();
            respond::set(&mut able, "x-obj-metadata-footer", "yes");
            respond::set(&mut able, "x-obj-multiphase-commit", "yes");
            interim.send(&able);
            let mut text = String::new();
            while let Some(Ok(chunk)) = request.body_mut().next_chunk().await {
                text.push_str(std::str::from_utf8(&chunk).unwrap());
                if text.ends_with("}\r\n--xyz\r\n") {
                    got.lock().unwrap().push(std::mem::take(&mut text));
                    interim.send(&HeaderMap::new());
                }
            }
            got.lock().unwrap().push(text);
            respond::empty(StatusCode::CREATED)
        }
    })
}

#[tokio::test]
async fn content_footers_and_commit_arrive() {
    let got: Arc<Mutex<Vec<String>>> = Arc::default();
    let (both, _stop) = both(server(got.clone())).await;
    for (backends, node) in both {
        let mut put = open(&backends, &node).await.unwrap();
        put.send(Bytes::from_static(b"some "), WAIT).await;
        put.send(Bytes::from_static(b"content"), WAIT).await;
        put.end_content("{\"Etag\":\"e\"}", WAIT).await;
        assert!(put.prepared(WAIT).await.is_none());
        let answer = put.commit(WAIT).await;
        assert_eq!(answer.status, 201);
        assert_eq!(
            std::mem::take(&mut *got.lock().unwrap()),
            [
                "--xyz\r\nX-Document: object body\r\n\r\nsome content\r\n--xyz\r\n\
                 X-Document: object metadata\r\n\
                 Content-MD5: 3c283b3bbdd7f3c37446b9b6fb927f67\r\n\r\n{\"Etag\":\"e\"}\r\n--xyz\r\n",
                "X-Document: put commit\r\n\r\nput_commit_confirmation\r\n--xyz--",
            ]
        );
    }
}

#[tokio::test]
async fn an_answer_may_come_at_any_time() {
    let refusing = handler_fn(|_| async { respond::text(StatusCode::CONFLICT, "newer") });
    let (both, _stop) = both(refusing).await;
    for (backends, node) in both {
        let mut put = open(&backends, &node).await.unwrap();
        let early = put.early.as_ref().unwrap();
        assert_eq!((early.status, &early.body[..]), (409, &b"newer"[..]));
        put.send(Bytes::from_static(b"content"), WAIT).await;
        assert_eq!(put.prepared(WAIT).await.unwrap().status, 409);
    }
    let full = handler_fn(|mut request: Request| async move {
        let interim = request.extensions_mut().remove::<Interim>().unwrap();
        interim.join_bodies();
        let mut able = HeaderMap::new();
        respond::set(&mut able, "x-obj-metadata-footer", "yes");
        respond::set(&mut able, "x-obj-multiphase-commit", "yes");
        interim.send(&able);
        let mut text = Vec::new();
        while !text.ends_with(b"content") {
            text.extend(request.body_mut().next_chunk().await.unwrap().unwrap());
        }
        respond::standard(StatusCode::INSUFFICIENT_STORAGE)
    });
    let (both, _stop) = self::both(full).await;
    for (backends, node) in both {
        let mut put = open(&backends, &node).await.unwrap();
        put.send(Bytes::from_static(b"content"), WAIT).await;
        assert_eq!(put.prepared(WAIT).await.unwrap().status, 507);
    }
}

#[tokio::test]
async fn servers_that_can_not_are_not_used() {
    let old = handler_fn(|mut request: Request| async move {
        let interim = request.extensions_mut().remove::<Interim>().unwrap();
        interim.join_bodies();
        interim.send(&HeaderMap::new());
        std::future::pending().await
    });
    let (both, _stop) = both(old).await;
    for (backends, node) in both {
        let opened = open(&backends, &node).await.err();
        assert!(matches!(opened, Some(OpenError::Unsupported)), "{opened:?}");
    }
    let nobody = node("127.0.0.1:1".parse().unwrap());
    let opened = open(&Backends::new(WAIT), &nobody).await.err();
    assert!(matches!(opened, Some(OpenError::Broken)), "{opened:?}");
}
