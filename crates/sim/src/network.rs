//! The network: every call between machines as messages that are delayed, lost, duplicated,
//! partitioned or cut off.
//!
//! A request and its response have independent delays, so that later ones overtake earlier ones. A
//! lost message is silence, ended by the caller's timeout; a machine that is down refuses
//! connections. An abandoned request is cut off, or continues. Only requests with a body of one
//! piece are duplicated.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, BodyError, Handler, Interim, Request, Response};
use cairn_peer::{Answered, CallError, Network};
use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::shared::Shared;

/// The server at an address.
#[derive(Clone)]
struct Server {
    machine: usize,
    handler: Handler,
    alive: Arc<AtomicBool>,
}

/// All servers of the cluster.
pub(crate) struct Wires {
    shared: Arc<Shared>,
    servers: Mutex<BTreeMap<SocketAddr, Server>>,
}

/// One machine's end of the network, for one of its lives.
pub(crate) struct Port {
    pub(crate) wires: Arc<Wires>,
    pub(crate) machine: usize,
    pub(crate) alive: Arc<AtomicBool>,
}

/// One hop of a message: its direction and latency.
#[derive(Clone, Copy)]
struct Hop {
    from: usize,
    to: usize,
    latency: Duration,
}

/// The faults of one call.
struct Fate {
    request_lost: bool,
    response_lost: bool,
    is_duplicated: bool,
    /// Bytes of a body after which it breaks off.
    request_breaks: Option<u64>,
    response_breaks: Option<u64>,
    request_latency: Duration,
    response_latency: Duration,
    duplicate_latency: Duration,
    outlives_caller: bool,
}

impl Wires {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Wires {
            shared,
            servers: Mutex::default(),
        })
    }

    pub(crate) fn register(
        &self,
        address: SocketAddr,
        machine: usize,
        handler: Handler,
        alive: Arc<AtomicBool>,
    ) {
        let server = Server {
            machine,
            handler,
            alive,
        };
        self.servers.lock().insert(address, server);
    }

    /// Removes all servers, which hold references to the network.
    pub(crate) fn end(&self) {
        let servers = std::mem::take(&mut *self.servers.lock());
        drop(servers);
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.shared.cut.lock()[from][to]
    }

    fn fate(&self) -> Fate {
        let faults = *self.shared.network.lock();
        let dice = &self.shared.network_dice;
        let breaks = || dice.per_mille(faults.break_off).then(|| dice.below(20_000));
        Fate {
            request_lost: dice.per_mille(faults.drop),
            response_lost: dice.per_mille(faults.drop),
            is_duplicated: dice.per_mille(faults.duplicate),
            request_breaks: breaks(),
            response_breaks: breaks(),
            request_latency: dice.micros(faults.delay.max(300)),
            response_latency: dice.micros(faults.delay.max(300)),
            duplicate_latency: dice.micros(faults.delay.max(300) * 4),
            outlives_caller: dice.coin(),
        }
    }

    async fn carry(
        self: Arc<Self>,
        from: usize,
        caller: Arc<AtomicBool>,
        address: SocketAddr,
        request: Request,
    ) -> Result<Response, CallError> {
        let broken = |reason: &str| CallError::Broken {
            address,
            reason: reason.to_owned(),
        };
        if !caller.load(Ordering::Relaxed) {
            return Err(broken("this machine is down"));
        }
        let Some(server) = self.servers.lock().get(&address).cloned() else {
            return Err(broken("nobody has this address"));
        };
        let fate = self.fate();
        let to = server.machine;
        let what = format!(
            "m{from}>m{to} {} {}",
            request.method(),
            request.uri().path()
        );
        sleep(fate.request_latency).await;
        if self.is_cut(from, to) || fate.request_lost {
            self.shared.log(|| format!("{what} lost"));
            return std::future::pending().await;
        }
        if !server.alive.load(Ordering::Relaxed) {
            return Err(CallError::Connect {
                address,
                reason: "connection refused".to_owned(),
            });
        }
        let interim = request.extensions().get::<Interim>().cloned();
        let mut request = over_the_wire(request, fate.request_breaks);
        if fate.is_duplicated {
            self.send_again(&server, &request, fate.duplicate_latency);
        }
        let is_silent = Arc::new(AtomicBool::new(false));
        if let Some(interim) = interim {
            let hop = Hop {
                from: to,
                to: from,
                latency: fate.response_latency,
            };
            let interim = self.clone().interims(interim, hop, &server, &is_silent);
            request.extensions_mut().insert(interim);
            request = self.clone().while_connected(request, from, to);
        }
        let alive = server.alive.clone();
        let called = async move { server.handler.call(request).await };
        let task = tokio::spawn(called);
        let _guard = BreaksOff {
            task: task.abort_handle(),
            is_on: !fate.outlives_caller,
        };
        let response = task.await;
        if !alive.load(Ordering::Relaxed) {
            return Err(broken("connection reset"));
        }
        let response = response.map_err(|_| broken("the server failed"))?;
        self.shared
            .log(|| format!("{what} {}", response.status().as_u16()));
        sleep(fate.response_latency).await;
        if self.is_cut(to, from) || fate.response_lost || is_silent.load(Ordering::Relaxed) {
            self.shared.log(|| format!("{what} answer lost"));
            return std::future::pending().await;
        }
        let (parts, body) = response.into_parts();
        let body = until_down(broken_after(body, fate.response_breaks), alive);
        Ok(Response::from_parts(parts, body))
    }

    /// Forwards interim responses with the response's delay, and loses them with it; nothing
    /// follows a lost one.
    fn interims(
        self: Arc<Self>,
        caller: Interim,
        hop: Hop,
        server: &Server,
        is_silent: &Arc<AtomicBool>,
    ) -> Interim {
        let (alive, is_silent) = (server.alive.clone(), is_silent.clone());
        Interim::new(move |headers| {
            let (wires, alive, is_silent) = (self.clone(), alive.clone(), is_silent.clone());
            let (caller, headers) = (caller.clone(), headers.clone());
            let drop = wires.shared.network.lock().drop;
            let is_lost = wires.shared.network_dice.per_mille(drop);
            tokio::spawn(async move {
                sleep(hop.latency).await;
                if wires.is_cut(hop.from, hop.to) || is_lost || !alive.load(Ordering::Relaxed) {
                    is_silent.store(true, Ordering::Relaxed);
                }
                if !is_silent.load(Ordering::Relaxed) {
                    caller.send(&headers);
                }
            });
        })
    }

    /// Streams a body for as long as the two machines are connected.
    fn while_connected(self: Arc<Self>, request: Request, from: usize, to: usize) -> Request {
        request.map(|body| {
            let length = body.length();
            let pieces = chunks(body).then(move |piece| {
                let wires = self.clone();
                async move {
                    if wires.is_cut(from, to) {
                        std::future::pending::<()>().await;
                    }
                    piece
                }
            });
            Body::from_stream(Box::pin(pieces), length)
        })
    }

    fn send_again(&self, server: &Server, request: &Request, after: Duration) {
        let Some(bytes) = request.body().as_full() else {
            return;
        };
        let mut again = Request::new(Body::full(bytes));
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.headers_mut() = request.headers().clone();
        let (server, shared) = (server.clone(), self.shared.clone());
        tokio::spawn(async move {
            sleep(after).await;
            if server.alive.load(Ordering::Relaxed) {
                shared.log(|| format!("again {} {}", again.method(), again.uri().path()));
                // Nobody waits for the response.
                let answer = server.handler.call(again).await;
                answer.into_body().drain(1 << 20).await;
            }
        });
    }
}

/// A request as a socket transmits it: without extensions.
fn over_the_wire(request: Request, breaks: Option<u64>) -> Request {
    let (parts, body) = request.into_parts();
    let mut sent = Request::new(broken_after(body, breaks));
    *sent.method_mut() = parts.method;
    *sent.uri_mut() = parts.uri;
    *sent.headers_mut() = parts.headers;
    sent
}

fn chunks(body: Body) -> impl futures_util::Stream<Item = Result<Bytes, BodyError>> + Send {
    stream::unfold(body, |mut body| async move {
        let chunk = body.next_chunk().await?;
        Some((chunk, body))
    })
}

fn broken_after(body: Body, limit: Option<u64>) -> Body {
    let Some(limit) = limit.filter(|limit| body.length().is_none_or(|n| n > *limit)) else {
        return body;
    };
    let length = body.length();
    let mut seen = 0;
    let cut = Box::pin(chunks(body)).scan(false, move |over, chunk| {
        let next = if *over {
            None
        } else {
            seen += chunk.as_ref().map_or(0, |c| c.len() as u64);
            *over = seen > limit;
            Some(if *over {
                Err(BodyError::Disconnected)
            } else {
                chunk
            })
        };
        std::future::ready(next)
    });
    Body::from_stream(cut, length)
}

/// A streamed body that ends with its machine.
fn until_down(body: Body, alive: Arc<AtomicBool>) -> Body {
    if body.as_full().is_some() {
        return body;
    }
    let length = body.length();
    let watched = chunks(body).map(move |chunk| match alive.load(Ordering::Relaxed) {
        true => chunk,
        false => Err(BodyError::Disconnected),
    });
    Body::from_stream(watched, length)
}

struct BreaksOff {
    task: AbortHandle,
    is_on: bool,
}

impl Drop for BreaksOff {
    fn drop(&mut self) {
        if self.is_on {
            self.task.abort();
        }
    }
}

impl Network for Port {
    fn call(&self, address: SocketAddr, request: Request) -> Answered {
        let call = self
            .wires
            .clone()
            .carry(self.machine, self.alive.clone(), address, request);
        Box::pin(call)
    }
}
