//! Reads of long ranges, against a server that answers in several ways.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_client::{ClientError, GetQuery, Login, Options, StoreUrl, Swift};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LENGTH: usize = 1 << 20;

/// How the server answers a GET.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    /// Without an end of the connection, so that only the next request finds it gone.
    PlainThenGone,
    /// The connection ends in the middle.
    Half,
    /// Nothing more comes, in the middle.
    Stall,
    Silence,
    Chunked,
    Busy,
    Expired,
    Gone,
    Longer,
}

struct Server {
    url: String,
    ways: Arc<Mutex<VecDeque<Way>>>,
    /// Connections on which a GET came, one entry for each GET.
    on: Arc<Mutex<Vec<usize>>>,
}

fn content() -> Vec<u8> {
    (0..LENGTH).map(|i| (i * i % 251) as u8).collect()
}

impl Server {
    async fn start(ways: &[Way]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server {
            url: format!("http://{}", listener.local_addr().unwrap()),
            ways: Arc::new(Mutex::new(ways.iter().copied().collect())),
            on: Arc::default(),
        };
        let (url, ways, on) = (server.url.clone(), server.ways.clone(), server.on.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                let (url, ways, on) = (url.clone(), ways.clone(), on.clone());
                tokio::spawn(async move {
                    let mut socket = socket;
                    while let Some(head) = head(&mut socket).await {
                        if head.contains("auth/v1.0") {
                            login(&mut socket, &url).await;
                            continue;
                        }
                        assert!(head.contains("range: bytes=7-1048582"), "{head}");
                        on.lock().unwrap().push(number);
                        let way = ways.lock().unwrap().pop_front().unwrap();
                        if !answer(&mut socket, way).await {
                            return;
                        }
                    }
                });
            }
        });
        server
    }

    async fn swift(&self) -> Swift {
        let login = Login::Tempauth {
            url: StoreUrl::parse(&format!("{}/auth/v1.0", self.url)).unwrap(),
            user: "a:u".into(),
            key: "k".into(),
        };
        let options = Options {
            answer_timeout: Duration::from_millis(300),
            stall_timeout: Duration::from_millis(300),
            ..Options::default()
        };
        Swift::connect(login, None, &options).await.unwrap()
    }
}

/// The head of a request, in small letters; `None` at the end of the connection.
async fn head(socket: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(socket.read_u8().await.ok()?);
    }
    Some(String::from_utf8(text).unwrap().to_lowercase())
}

async fn login(socket: &mut TcpStream, url: &str) {
    let answer = format!(
        "HTTP/1.1 200 OK\r\nX-Auth-Token: T\r\nX-Storage-Url: {url}/v1/AUTH_a\r\n\
         Content-Length: 0\r\n\r\n"
    );
    socket.write_all(answer.as_bytes()).await.unwrap();
}

/// Answers a GET; returns whether the connection goes on.
async fn answer(socket: &mut TcpStream, way: Way) -> bool {
    let plain = format!("HTTP/1.1 206 Partial\r\nContent-Length: {LENGTH}\r\n\r\n").into_bytes();
    let (mut text, body) = (plain.clone(), content());
    let half = LENGTH / 2;
    let end = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes();
    match way {
        Way::Plain | Way::PlainThenGone => text.extend(body),
        Way::Half | Way::Stall => text.extend(&body[..half]),
        Way::Silence => text.clear(),
        Way::Chunked => {
            text = b"HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            text.extend(format!("{LENGTH:x}\r\n").as_bytes());
            text.extend(body);
            text.extend(b"\r\n0\r\n\r\n");
        }
        Way::Busy => text = end("503 Busy"),
        Way::Expired => text = end("401 Unauthorized"),
        Way::Gone => text = end("404 Not Found"),
        Way::Longer => {
            let length = LENGTH + 1;
            text = format!("HTTP/1.1 206 Partial\r\nContent-Length: {length}\r\n\r\n").into_bytes();
            text.extend(body);
            text.push(b'x');
        }
    }
    let sent = socket.write_all(&text).await;
    if matches!(way, Way::Stall | Way::Silence) {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    sent.is_ok() && !matches!(way, Way::Half | Way::PlainThenGone | Way::Stall)
}

async fn read(swift: &Swift) -> Result<Vec<u8>, ClientError> {
    let query = GetQuery {
        range: Some((7, LENGTH as u64)),
        ..GetQuery::default()
    };
    let mut buffer = b"something".to_vec();
    swift.get_range("c", "o", query, &mut buffer).await?;
    Ok(buffer)
}

#[tokio::test]
async fn a_connection_is_used_again_and_nothing_is_copied_on_the_way() {
    let server = Server::start(&[Way::Plain, Way::Plain, Way::PlainThenGone, Way::Plain]).await;
    let swift = server.swift().await;
    for _ in 0..4 {
        assert!(read(&swift).await.unwrap() == content());
    }
    let on = server.on.lock().unwrap().clone();
    assert_eq!(on[0], on[1]);
    assert!(on[0] == on[2] && on[2] != on[3], "{on:?}");
}

#[tokio::test]
async fn whatever_is_no_plain_answer_is_asked_for_in_the_ordinary_way() {
    for (ways, requests) in [
        (vec![Way::Chunked, Way::Chunked], 2),
        (vec![Way::Busy, Way::Busy, Way::Plain], 3),
        (vec![Way::Expired, Way::Expired, Way::Plain], 3),
        (vec![Way::Half, Way::Plain], 2),
        (vec![Way::Stall, Way::Plain], 2),
        (vec![Way::Silence, Way::Plain], 2),
    ] {
        let server = Server::start(&ways).await;
        let swift = server.swift().await;
        assert!(read(&swift).await.unwrap() == content(), "{ways:?}");
        assert_eq!(server.on.lock().unwrap().len(), requests, "{ways:?}");
    }
}

#[tokio::test]
async fn failures_are_told_as_those_of_other_calls() {
    let server = Server::start(&[Way::Gone, Way::Gone]).await;
    let error = read(&server.swift().await).await.unwrap_err();
    assert!(error.is_not_found());
    let server = Server::start(&[Way::Longer, Way::Longer]).await;
    let error = read(&server.swift().await).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
    let server = Server::start(&[Way::Silence; 20]).await;
    let error = read(&server.swift().await).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert_eq!(server.on.lock().unwrap().len(), 4);
}
