//! The accept loop of a listener: serves connections by one service until shutdown, then lets
//! requests in progress finish within the grace time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use crate::connection::{Shared, connection};
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::service::Handler;
use crate::slots::Slots;

pub use crate::forwarded::{NoNetwork, TrustedProxies};
pub use crate::options::{MetricsAccess, ServeOptions};

/// TCP congestion control of our sockets. Within one host there is no congestion, and a pacing
/// algorithm (BBR), if it is the system's default, would spend a third of a large response's CPU on
/// timers. Every Linux kernel has this one.
const CONGESTION_CONTROL: &[u8] = b"reno";

/// Binds an address; the error names it, and the remedy for a port in use.
///
/// # Errors
/// The socket's, with the address: a port in use, one that needs privileges, a foreign address.
pub fn bind(address: SocketAddr, backlog: i32) -> Result<std::net::TcpListener, BindError> {
    let attempt = || -> std::io::Result<std::net::TcpListener> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        if address.ip().is_loopback() {
            // Set on the listener, before the first client: a connected socket would stay paced.
            let _ = socket.set_tcp_congestion(CONGESTION_CONTROL);
        }
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        Ok(socket.into())
    };
    attempt().map_err(|source| BindError { address, source })
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{}", hint(source))]
pub struct BindError {
    pub address: SocketAddr,
    pub source: std::io::Error,
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program has this port: stop it, or choose another port"
        }
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        std::io::ErrorKind::AddrNotAvailable => "; this address is not one of this machine's",
        _ => "",
    }
}

/// Serves until `stop` turns true (or its sender is gone); then lets requests in progress finish.
pub async fn serve(
    listener: TcpListener,
    handler: Handler,
    options: ServeOptions,
    metrics: Arc<Metrics>,
    mut stop: watch::Receiver<bool>,
) {
    let closed = metrics.closed_for_room(options.server);
    let slots = Slots::new(options.server, options.max_connections, closed);
    let mut connections = JoinSet::new();
    let mut following = JoinSet::new();
    if let Some(tls) = &options.tls {
        following.spawn(tls.clone().follow());
    }
    let shared = Arc::new(Shared {
        handler,
        options,
        metrics,
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|s| *s) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let progress = Progress::new();
                let slot = slots.enter(peer.ip(), progress.clone());
                let shared = shared.clone();
                connections.spawn(connection(
                    stream,
                    peer,
                    shared,
                    stop.clone(),
                    slot,
                    progress,
                ));
            }
            Err(error) => {
                // For example, the process is out of file descriptors: accepting again at once
                // would spin.
                warn!(server = shared.options.server, %error, "cannot accept a connection");
                slots.close_slowest();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let finish = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(shared.options.grace, finish)
        .await
        .is_err()
    {
        warn!(
            server = shared.options.server,
            "requests still under way after the grace; cut off"
        );
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::client::Client;
    use crate::service::handler_fn;
    use crate::{Body, Context, Request, respond};

    #[tokio::test]
    async fn answers_within_the_host_are_not_paced() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let address = listener.local_addr().unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let named = socket2::SockRef::from(&accepted).tcp_congestion().unwrap();
        assert!(named.starts_with(CONGESTION_CONTROL), "{named:?}");
    }

    #[tokio::test]
    async fn requests_under_way_finish_and_the_port_is_free_again() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let address = listener.local_addr().unwrap();
        let taken = bind(address, 16).unwrap_err().to_string();
        assert!(taken.contains("another program has this port"), "{taken}");
        let (stop_tx, stop) = watch::channel(false);
        let slow = handler_fn(|_| async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            respond::text(StatusCode::OK, "done")
        });
        let server = tokio::spawn(serve(
            TcpListener::from_std(listener).unwrap(),
            slow,
            ServeOptions::new("test"),
            Metrics::new(),
            stop,
        ));
        let client = Client::new(Duration::from_secs(5), 4, Duration::from_secs(5));
        let call = tokio::spawn(async move {
            let request = http::Request::get("/x").body(Body::empty()).unwrap();
            let response = client
                .call(address, request, Duration::from_secs(5))
                .await
                .unwrap();
            response.into_body().collect(100).await.unwrap()
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop_tx.send(true).unwrap();
        assert_eq!(call.await.unwrap(), "done");
        server.await.unwrap();
        bind(address, 16).unwrap();
    }

    #[tokio::test]
    async fn a_proxy_in_front_tells_who_asks() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let who = handler_fn(|request: Request| async move {
            let Context { remote, is_tls, .. } = Context::of_request(&request);
            respond::text(StatusCode::OK, format!("{} {is_tls}", remote.unwrap()))
        });
        let mut options = ServeOptions::new("test");
        options.proxy_protocol = true;
        let listener = TcpListener::from_std(listener).unwrap();
        tokio::spawn(serve(listener, who, options, Metrics::new(), stopped));
        let ask = async |first: &str, path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let get = format!("{first}GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            stream.write_all(get.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let far = "PROXY TCP4 192.0.2.7 192.0.2.1 51234 443\r\n";
        let answer = ask(far, "/").await;
        assert!(answer.ends_with("192.0.2.7:51234 true"), "{answer}");
        let answer = ask("PROXY UNKNOWN\r\n", "/").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(" false"),
            "{answer}"
        );
        // A remote client cannot read the metrics through the proxy.
        let figures = ask(far, "/metrics").await;
        assert!(figures.contains("192.0.2.7"), "{figures}");
        let refused = ask("", "/").await;
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
        assert!(refused.contains("Invalid PROXY line"), "{refused}");
    }

    #[tokio::test]
    async fn a_trusted_proxy_reports_the_client_and_others_do_not() {
        for (trusted, client) in [("127.0.0.1", "192.0.2.7"), ("10.0.0.1", "127.0.0.1")] {
            let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
            let address = listener.local_addr().unwrap();
            let (_stop, stopped) = watch::channel(false);
            let who = handler_fn(|request: Request| async move {
                let context = Context::of_request(&request);
                let [client, remote] = [context.client(), context.remote.map(|r| r.ip())];
                respond::text(StatusCode::OK, format!("{client:?} {remote:?}"))
            });
            let mut options = ServeOptions::new("test");
            options.trusted_proxies = trusted.parse().unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            tokio::spawn(serve(listener, who, options, Metrics::new(), stopped));
            let mut stream = TcpStream::connect(address).await.unwrap();
            let get = b"GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.7\r\n\
                        Connection: close\r\n\r\n";
            stream.write_all(get).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            let expected = format!("Some({client}) Some(127.0.0.1)");
            assert!(answer.ends_with(&expected), "{trusted}: {answer}");
        }
    }
}
