//! The accept loop: connections of one listener to one service, until told to end; then
//! requests under way finish, for as long as the grace lasts.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::body::Body;
use crate::context::Context;
use crate::heads::Heads;
use crate::interim::InterimSocket;
use crate::metrics::Metrics;
use crate::pieces::Pieces;
use crate::proxy_line::{self, ProxyLine, ProxyLineError};
use crate::respond;
use crate::service::{Handler, Request, Response};

/// So long a client that was let in just before the end has for its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// And one that has had answers, for a request that is on its way.
const NEXT_REQUEST: Duration = Duration::from_millis(100);

/// Who is refused before there is a request may take so long to hear why.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// So much of what it sends is read meanwhile.
const UNREAD_MAX: u64 = 1 << 20;

/// How a listener treats its clients.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The server's name in metrics: `proxy`, `object`, …
    pub server: &'static str,
    /// Connections served at once; more wait to be accepted.
    pub max_connections: usize,
    /// Within this time a request's head must have come, idle time included.
    pub header_timeout: Duration,
    /// Bytes in a request's head.
    pub max_head: usize,
    pub max_headers: usize,
    /// How long requests under way may take to finish after the end was asked for.
    pub grace: Duration,
    /// Who may read `/metrics` on this listener.
    pub metrics: MetricsAccess,
    /// Each connection begins with a line of the PROXY protocol (`proxy_line.rs`).
    pub proxy_protocol: bool,
}

/// Who may read `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAccess {
    Nobody,
    Loopback,
    Everybody,
}

impl ServeOptions {
    pub fn new(server: &'static str) -> Self {
        ServeOptions {
            server,
            max_connections: 4096,
            header_timeout: Duration::from_secs(60),
            max_head: 64 * 1024,
            max_headers: 256,
            grace: Duration::from_secs(60),
            metrics: MetricsAccess::Loopback,
            proxy_protocol: false,
        }
    }
}

/// Within one host nothing is congested, and a system's choice that paces what it sends (BBR) would
/// spend a third of a large answer's CPU on timers. Every Linux has this one.
const UNPACED: &[u8] = b"reno";

/// Binds an address; the error says which, and what to do about a port in use.
pub fn bind(address: SocketAddr, backlog: i32) -> Result<std::net::TcpListener, BindError> {
    let attempt = || -> std::io::Result<std::net::TcpListener> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        if address.ip().is_loopback() {
            // Before the first client: a socket that is connected would be paced on.
            let _ = socket.set_tcp_congestion(UNPACED);
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

/// Serves until `stop` turns true (or its sender is gone), then lets requests finish.
pub async fn serve(
    listener: TcpListener,
    handler: Handler,
    options: ServeOptions,
    metrics: Arc<Metrics>,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(options.max_connections));
    let mut connections = JoinSet::new();
    let shared = Arc::new(Shared {
        handler,
        options,
        metrics,
    });
    loop {
        let permit = tokio::select! {
            permit = room.clone().acquire_owned() => permit,
            _ = stop.wait_for(|s| *s) => break,
        };
        let Ok(permit) = permit else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|s| *s) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let shared = shared.clone();
                connections.spawn(connection(stream, peer, shared, stop.clone(), permit));
            }
            Err(error) => {
                // Out of file descriptors, say: accepting at once again would spin.
                warn!(server = shared.options.server, %error, "cannot accept a connection");
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

/// Bytes that wait in the kernel for a connection's turn to be sent. Without a bound each large
/// answer fills megabytes, long before they are of use, and those who share the link take turns as
/// long.
const UNSENT_MAX: u32 = 128 << 10;

struct Shared {
    handler: Handler,
    options: ServeOptions,
    metrics: Arc<Metrics>,
}

/// Who is at the other end.
#[derive(Clone, Copy)]
struct Peer {
    /// Of the connection itself.
    socket: SocketAddr,
    /// As a proxy in front of us tells.
    told: ProxyLine,
}

impl Peer {
    fn client(&self) -> SocketAddr {
        self.told.client.unwrap_or(self.socket)
    }

    fn is_local(&self) -> bool {
        let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
        is_loopback(self.socket) && is_loopback(self.client())
    }
}

/// Answers, and reads what is still sent: a connection closed before it was read is reset, and the
/// answer lost.
async fn refuse(stream: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(UNREAD_MAX);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

/// What a proxy in front of us says of its client; none where the connection is refused.
async fn told(
    stream: &mut TcpStream,
    peer: SocketAddr,
    options: &ServeOptions,
) -> Option<ProxyLine> {
    let line = tokio::time::timeout(options.header_timeout, proxy_line::read(stream)).await;
    match line {
        Ok(Ok(line)) => return Some(line),
        Ok(Err(ProxyLineError::Io(error))) => debug!(%peer, %error, "connection ended early"),
        Err(_) => debug!(%peer, "no PROXY line came"),
        Ok(Err(error)) => {
            warn!(server = options.server, %peer, %error, "require_proxy_protocol: refused");
            let text = format!("{error}\n");
            let answer = format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{text}",
                text.len()
            );
            let _ = tokio::time::timeout(LAST_WORDS, refuse(stream, answer.as_bytes())).await;
        }
    }
    None
}

async fn connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
) {
    // Small answers leave at once.
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_MAX);
    let open = GaugeGuard::new(shared.metrics.connections(shared.options.server));
    let told = match shared.options.proxy_protocol {
        false => Some(ProxyLine::default()),
        true => tokio::select! {
            biased;
            told = told(&mut stream, peer, &shared.options) => told,
            () = ended_before_its_first(&mut stop) => None,
        },
    };
    let Some(told) = told else { return };
    let peer = Peer { socket: peer, told };
    let (reader, writer) = stream.into_split();
    let socket = tokio::io::join(Pieces::new(reader), writer);
    let (socket, interims) = InterimSocket::new(socket);
    let (socket, due, names) = Heads::of_requests(socket);
    let activity = watch::Sender::new(Activity::default());
    let activity = &activity;
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        activity.send_modify(|activity| {
            activity.requests += 1;
            activity.under_way = true;
        });
        let (shared, due, names) = (shared.clone(), due.clone(), names.clone());
        let mut request = request.map(|body| Body::of_request(body, &due));
        let waits = request.headers().contains_key(EXPECT);
        let interims = waits.then(|| interims.clone());
        if let Some(interims) = &interims {
            request.extensions_mut().insert(interims.begin());
        }
        async move {
            let mut response = answer(request, peer, &shared).await;
            names.stand_in(response.headers_mut());
            if let Some(interims) = interims {
                interims.end();
            }
            activity.send_modify(|activity| activity.under_way = false);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.options.header_timeout)
        .max_buf_size(shared.options.max_head)
        .max_headers(shared.options.max_headers)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let mut ending = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    debug!(peer = %peer.client(), %error, "connection ended early");
                }
                break;
            }
            () = may_end(&mut stop, activity), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
    drop(open);
}

/// Comes back when the end was asked for and who was let in just before has had its time.
async fn ended_before_its_first(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(FIRST_REQUEST).await;
}

/// What a connection has done.
#[derive(Clone, Copy, Default)]
struct Activity {
    requests: u64,
    under_way: bool,
}

/// Comes back when the end was asked for and what the client may have sent before has come.
async fn may_end(stop: &mut watch::Receiver<bool>, activity: &watch::Sender<Activity>) {
    let _ = stop.wait_for(|stop| *stop).await;
    let mut changes = activity.subscribe();
    let now = *changes.borrow();
    let patience = match now.requests {
        _ if now.under_way => return,
        0 => FIRST_REQUEST,
        _ => NEXT_REQUEST,
    };
    let another = changes.wait_for(|activity| activity.requests > now.requests);
    let _ = tokio::time::timeout(patience, another).await;
}

async fn answer(mut request: Request, peer: Peer, shared: &Shared) -> Response {
    let options = &shared.options;
    if request.uri().path() == "/metrics" && request.method() == http::Method::GET {
        let allowed = match options.metrics {
            MetricsAccess::Nobody => false,
            MetricsAccess::Loopback => peer.is_local(),
            MetricsAccess::Everybody => true,
        };
        if allowed {
            let text = shared.metrics.encode();
            return respond::typed(StatusCode::OK, Metrics::CONTENT_TYPE, text);
        }
    }
    let started = Instant::now();
    let _in_flight = GaugeGuard::new(shared.metrics.in_flight(options.server));
    let method = request.method().clone();
    let asks_keep_alive = respond::header(request.headers(), "connection")
        .is_some_and(|c| c.eq_ignore_ascii_case("keep-alive"));
    request.extensions_mut().insert(Context {
        remote: Some(peer.client()),
        is_tls: peer.told.is_tls,
        ..Context::default()
    });
    let mut response = shared.handler.call(request).await;
    if asks_keep_alive {
        // Said to those who asked, as Swift's server does.
        response
            .headers_mut()
            .entry(CONNECTION)
            .or_insert(HeaderValue::from_static("keep-alive"));
    }
    finish_head(&method, &mut response);
    shared.metrics.answered(
        options.server,
        &method,
        response.status().as_u16(),
        started.elapsed(),
    );
    response
}

/// What the socket needs and services need not think of: a length where it is known, none where
/// the status forbids a body.
fn finish_head(method: &http::Method, response: &mut Response) {
    let status = response.status();
    if status == StatusCode::NOT_MODIFIED {
        *response.body_mut() = Body::empty();
        return;
    }
    if status == StatusCode::NO_CONTENT {
        // Swift tells the length of nothing here too, and clients look for it.
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        *response.body_mut() = Body::from_stream(futures_util::stream::empty(), Some(0));
        return;
    }
    if method == http::Method::HEAD {
        *response.body_mut() = Body::empty();
    } else if let Some(length) = response.body().length() {
        response
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert(HeaderValue::from(length));
    }
}

struct GaugeGuard(prometheus_client::metrics::gauge::Gauge);

impl GaugeGuard {
    fn new(gauge: prometheus_client::metrics::gauge::Gauge) -> Self {
        gauge.inc();
        GaugeGuard(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::service::handler_fn;

    #[tokio::test]
    async fn answers_within_the_host_are_not_paced() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
        let address = listener.local_addr().unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let named = socket2::SockRef::from(&accepted).tcp_congestion().unwrap();
        assert!(named.starts_with(UNPACED), "{named:?}");
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
        // Nobody from afar reads the figures by way of the proxy.
        let figures = ask(far, "/metrics").await;
        assert!(figures.contains("192.0.2.7"), "{figures}");
        let refused = ask("", "/").await;
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
        assert!(refused.contains("Invalid PROXY line"), "{refused}");
    }
}
