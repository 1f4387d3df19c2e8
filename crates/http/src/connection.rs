//! One connection: from its socket to responses, one request after the other.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_types::blocks::SIZE;
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use crate::body::{Body, Rest};
use crate::context::Context;
use crate::ending::{self, Ending};
use crate::forwarded::is_forwarded;
use crate::heads::Heads;
use crate::interim::InterimSocket;
use crate::metrics::Metrics;
use crate::options::{MetricsAccess, ServeOptions};
use crate::pieces::Pieces;
use crate::progress::{Answering, Progress, Watched};
use crate::proxy_line::{self, ProxyLine, ProxyLineError};
use crate::respond::{self, status};
use crate::service::{Handler, Request, Response};
use crate::slots::Slot;
use crate::tls::{ReadAhead, ServerTls, Slices};

/// Time for the first request of a client that connected just before a shutdown.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a further request that may already be on its way at a shutdown.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_millis(100);

/// Time for a refusal before the first request to reach the client.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes read from the client meanwhile.
const UNREAD_MAX_BYTES: u64 = 1 << 20;

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum bytes of encrypted records that wait for the socket: a whole block of a body is encrypted at
/// once, given back, and written by one system call.
const RECORDS_MAX_BYTES: usize = SIZE + (4 << 10);

/// Path that is answered on connections without a slot, too.
const HEALTH_CHECK_PATH: &str = "/healthcheck";

/// Maximum bytes queued in the kernel for a connection (`TCP_NOTSENT_LOWAT`). Without a bound each
/// large response fills megabytes long before they can be sent, and connections that share the link
/// wait as long for their turn.
const UNSENT_MAX_BYTES: u32 = 128 << 10;

/// State shared by all connections of a listener.
pub(crate) struct Shared {
    pub(crate) handler: Handler,
    pub(crate) options: ServeOptions,
    pub(crate) metrics: Arc<Metrics>,
}

/// The peer of a connection.
#[derive(Clone, Copy)]
struct Peer {
    /// Address of the connection itself.
    socket: SocketAddr,
    /// Client as reported by the PROXY line of a proxy in front of us.
    told: ProxyLine,
    is_tls: bool,
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

/// Sends a refusal and drains the input: a connection closed with unread input is reset, and the
/// response lost.
async fn refuse(stream: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(UNREAD_MAX_BYTES);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Reads the PROXY line; `None` if the connection is refused.
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
            let answer = bad_request(&format!("{error}\n"));
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, refuse(stream, answer.as_bytes())).await;
        }
    }
    None
}

/// Serves a connection to its end.
pub(crate) async fn connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
    slot: Slot,
    progress: Arc<Progress>,
) {
    // Small responses are sent at once.
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_MAX_BYTES);
    let _open = GaugeGuard::new(shared.metrics.connections(shared.options.server));
    let told = match shared.options.proxy_protocol {
        false => Some(ProxyLine::default()),
        true => tokio::select! {
            biased;
            told = told(&mut stream, peer, &shared.options) => told,
            () = ended_before_its_first(&mut stop) => None,
            () = slot.closes() => None,
        },
    };
    let Some(told) = told else { return };
    let tls = shared.options.tls.as_deref();
    let peer = Peer {
        socket: peer,
        told,
        is_tls: tls.is_some(),
    };
    slot.set_address(peer.client().ip());
    progress.set_address(peer.client().ip());
    let Some(tls) = tls else {
        let socket = Watched::new(stream, progress.clone());
        return requests(socket, peer, &shared, stop, &slot, &progress).await;
    };
    let socket = tokio::select! {
        biased;
        socket = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake(stream, tls, peer, &progress)) => socket,
        () = ended_before_its_first(&mut stop) => return,
        () = slot.closes() => return,
    };
    match socket {
        Ok(Some(socket)) => requests(socket, peer, &shared, stop, &slot, &progress).await,
        Ok(None) => {}
        Err(_) => debug!(peer = %peer.client(), "no TLS handshake within {HANDSHAKE_TIMEOUT:?}"),
    }
}

/// Performs the TLS handshake; `None` if it fails.
async fn handshake(
    mut stream: TcpStream,
    tls: &ServerTls,
    peer: Peer,
    progress: &Arc<Progress>,
) -> Option<Slices<TlsStream<ReadAhead<Watched<TcpStream>>>>> {
    let mut first = [0];
    if !matches!(stream.peek(&mut first).await, Ok(1)) {
        return None;
    }
    if first[0].is_ascii_alphabetic() {
        debug!(peer = %peer.client(), "a request without TLS; refused");
        let text = "This port speaks TLS: ask by https://\n";
        let answer = bad_request(text);
        let _ = tokio::time::timeout(REFUSAL_TIMEOUT, refuse(&mut stream, answer.as_bytes())).await;
        return None;
    }
    let socket = ReadAhead::new(Watched::new(stream, progress.clone()));
    let accept = tls.acceptor().accept_with(socket, |session| {
        session.set_buffer_limit(Some(RECORDS_MAX_BYTES));
    });
    match accept.await {
        Ok(socket) => Some(Slices::new(socket)),
        Err(error) => {
            debug!(peer = %peer.client(), %error, "TLS handshake failed");
            None
        }
    }
}

/// A response for a client that is refused before its first request.
fn bad_request(text: &str) -> String {
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    )
}

/// Serves the requests that arrive over a socket.
async fn requests<S: AsyncRead + AsyncWrite + Unpin>(
    socket: S,
    peer: Peer,
    shared: &Arc<Shared>,
    mut stop: watch::Receiver<bool>,
    slot: &Slot,
    progress: &Arc<Progress>,
) {
    let (socket, interims) = InterimSocket::new(Pieces::new(socket));
    let (socket, due, names) = Heads::of_requests(socket);
    let rest = &Rest::default();
    let activity = watch::Sender::new(Activity::default());
    let activity = &activity;
    let stopping = stop.clone();
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        activity.send_modify(|activity| {
            activity.requests += 1;
            activity.under_way = true;
        });
        let under_way = progress.begin_request();
        // This request's head was not scanned, since the body before it was abandoned after its
        // response had begun.
        let is_misplaced = rest.is_left();
        rest.begin();
        let names = names.clone();
        let mut request = request.map(|body| Body::of_request(body, &due, progress, rest));
        if ending::announces_wait(request.uri()) {
            request
                .extensions_mut()
                .insert(Ending::new(stopping.clone()));
        }
        let waits = request.headers().contains_key(EXPECT);
        let interims = waits.then(|| interims.clone());
        if let Some(interims) = &interims {
            request.extensions_mut().insert(interims.begin());
        }
        async move {
            let mut response = match is_misplaced {
                true => busy(&request, shared, Instant::now()),
                false => answer(request, peer, shared, slot).await,
            };
            // A client that waits for 100 Continue has not sent the body.
            if rest.is_left() && (waits || is_misplaced || !rest.read().await) {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            rest.answered();
            names.stand_in(response.headers_mut());
            if let Some(interims) = interims {
                interims.end();
            }
            activity.send_modify(|activity| activity.under_way = false);
            Ok::<_, Infallible>(response.map(|body| Answering::new(body, under_way)))
        }
    });
    let options = &shared.options;
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_buf_size(options.max_head)
        .max_headers(options.max_headers)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let mut closes = std::pin::pin!(slot.closes());
    let mut ends = std::pin::pin!(slot.ends());
    let mut silent = std::pin::pin!(progress.silent_for(options.stall_timeout));
    let mut ending = false;
    loop {
        tokio::select! {
            biased;
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
            () = ends.as_mut(), if !ending => {
                debug!(peer = %peer.client(), "connection ends: its address has most places");
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = closes.as_mut() => {
                debug!(peer = %peer.client(), "connection closed: its place is needed");
                break;
            }
            () = silent.as_mut() => {
                debug!(peer = %peer.client(), "connection closed: its client neither sends nor reads");
                break;
            }
        }
    }
}

/// Returns when a shutdown was requested and a client that connected just before it has had
/// [`FIRST_REQUEST_TIMEOUT`].
async fn ended_before_its_first(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(FIRST_REQUEST_TIMEOUT).await;
}

/// Requests that a connection has served and is serving.
#[derive(Clone, Copy, Default)]
struct Activity {
    requests: u64,
    under_way: bool,
}

/// Returns when a shutdown was requested and requests that the client may have sent before it have
/// arrived.
async fn may_end(stop: &mut watch::Receiver<bool>, activity: &watch::Sender<Activity>) {
    let _ = stop.wait_for(|stop| *stop).await;
    let mut changes = activity.subscribe();
    let now = *changes.borrow();
    let patience = match now.requests {
        _ if now.under_way => return,
        0 => FIRST_REQUEST_TIMEOUT,
        _ => NEXT_REQUEST_TIMEOUT,
    };
    let another = changes.wait_for(|activity| activity.requests > now.requests);
    let _ = tokio::time::timeout(patience, another).await;
}

async fn answer(mut request: Request, peer: Peer, shared: &Shared, slot: &Slot) -> Response {
    let options = &shared.options;
    if request.uri().path() == "/metrics" && request.method() == http::Method::GET {
        let allowed = match options.metrics {
            MetricsAccess::Nobody => false,
            MetricsAccess::Loopback => peer.is_local() && !is_forwarded(request.headers()),
            MetricsAccess::Everybody => true,
        };
        if allowed {
            return status::metrics(shared.metrics.encode());
        }
    }
    let started = Instant::now();
    let mut closes = false;
    if slot.is_waiting() {
        let is_health = request.uri().path() == HEALTH_CHECK_PATH;
        closes = is_health || !slot.get().await;
        if closes && !is_health {
            return busy(&request, shared, started);
        }
    }
    let _in_flight = GaugeGuard::new(shared.metrics.in_flight(options.server));
    let method = request.method().clone();
    let asks_keep_alive = respond::header(request.headers(), "connection")
        .is_some_and(|c| c.eq_ignore_ascii_case("keep-alive"));
    let context = Context {
        remote: Some(peer.client()),
        forwarded_for: options
            .trusted_proxies
            .client(peer.client().ip(), request.headers()),
        is_tls: peer.is_tls || peer.told.is_tls,
        ..Context::default()
    };
    request.extensions_mut().insert(context);
    let mut response = shared.handler.call(request).await;
    if closes {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    } else if asks_keep_alive {
        // Sent only to clients that asked for it, as Swift's server does.
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

/// The response for a request that got no slot.
fn busy(request: &Request, shared: &Shared, started: Instant) -> Response {
    let mut response = status::busy();
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    finish_head(request.method(), &mut response);
    let (server, status) = (shared.options.server, response.status().as_u16());
    let method = request.method();
    shared
        .metrics
        .answered(server, method, status, started.elapsed());
    response
}

/// Completes a response's head and body for the socket: a length if known, no body if the status
/// forbids one.
fn finish_head(method: &http::Method, response: &mut Response) {
    let status = response.status();
    if status == StatusCode::NOT_MODIFIED {
        *response.body_mut() = Body::empty();
        return;
    }
    if status == StatusCode::NO_CONTENT {
        // Swift sends a length of 0 here too, and clients read it.
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
