//! One address that uses all of a server's connections for real requests: others get their share.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::{Request, handler_fn, respond};
use http::StatusCode;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

const SERVED: usize = 8;
/// Connections of the busy address: a third is served, the others wait.
const BUSY_CONNECTIONS: usize = 24;
const TIMEOUT: Duration = Duration::from_secs(60);

async fn server() -> (SocketAddr, watch::Sender<bool>) {
    let listener = bind("127.0.0.1:0".parse().unwrap(), 1024).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let service = handler_fn(|_: Request| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        respond::text(StatusCode::OK, "done")
    });
    let mut options = ServeOptions::new("test");
    options.max_connections = SERVED;
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
    (address, stop)
}

async fn connect(from: &str, to: SocketAddr) -> std::io::Result<BufReader<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(format!("{from}:0").parse().unwrap())?;
    Ok(BufReader::new(socket.connect(to).await?))
}

/// The status of one request.
async fn ask(stream: &mut BufReader<TcpStream>) -> std::io::Result<u16> {
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.get_mut().write_all(request).await?;
    let mut status = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if status.is_empty() {
            status = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(status.parse().unwrap())
}

/// Sends requests without a pause, on connections kept as long as possible.
async fn keep_busy(to: SocketAddr) {
    loop {
        let Ok(mut stream) = connect("127.0.0.1", to).await else {
            continue;
        };
        while ask(&mut stream).await.is_ok() {}
    }
}

#[tokio::test]
async fn an_address_that_uses_all_places_leaves_others_their_share() {
    let (address, _stop) = server().await;
    let busy: Vec<_> = (0..BUSY_CONNECTIONS)
        .map(|_| tokio::spawn(keep_busy(address)))
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let others = async {
        for _ in 0..5 {
            let mut stream = connect("127.0.0.2", address).await.unwrap();
            assert_eq!(ask(&mut stream).await.unwrap(), 200);
        }
    };
    tokio::time::timeout(TIMEOUT, others).await.unwrap();
    busy.iter().for_each(tokio::task::JoinHandle::abort);
}
