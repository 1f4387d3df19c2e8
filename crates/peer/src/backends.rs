//! Calls to backend servers: in this process if the server runs here, otherwise over HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant, SystemTime};

use cairn_http::client::{CallError, Client, Stream, dial};
use cairn_http::tls::ClientTls;
use cairn_http::{Handler, Request, Response, Service};
use parking_lot::RwLock;

use crate::calls::TakesCalls;
use crate::clocks::Clocks;
use crate::hedging::Hedging;
use crate::reach::Reach;

/// A simulated network, which carries every call to servers of this process.
pub trait Network: Send + Sync {
    /// Calls the server at `address`. Dropping the future means that the caller disconnects.
    fn call(&self, address: SocketAddr, request: Request) -> Answered;
}

/// A pending response.
pub type Answered = Pin<Box<dyn Future<Output = Result<Response, CallError>> + Send>>;

/// Connections to all backend servers of this process's cluster.
pub struct Backends {
    /// If set, used instead of everything else.
    network: Option<Arc<dyn Network>>,
    /// In the order of their addresses, of which there are few: compared sooner than hashed.
    local: RwLock<BTreeMap<SocketAddr, Handler>>,
    /// Object servers of this process that take requests by a call.
    takers: RwLock<BTreeMap<SocketAddr, Arc<dyn TakesCalls>>>,
    client: Client,
    tls: Option<ClientTls>,
    connect_timeout: Duration,
    reach: Arc<Reach>,
    clocks: Clocks,
    hedging: Hedging,
    /// Bytes of request bodies that are still being sent to replicas after their requests were
    /// answered.
    pub(crate) left_behind: AtomicUsize,
}

impl Backends {
    /// `connect_timeout` is Swift's `conn_timeout`.
    pub fn new(connect_timeout: Duration) -> Arc<Self> {
        Backends::with_tls(connect_timeout, None)
    }

    /// With `tls`, servers in other processes are called by TLS.
    pub fn with_tls(connect_timeout: Duration, tls: Option<ClientTls>) -> Arc<Self> {
        let idle = Duration::from_secs(30);
        let client = Client::with_tls(connect_timeout, 256, idle, tls.clone());
        let reach = Reach::new(connect_timeout, tls.clone());
        Arc::new(Backends {
            network: None,
            local: RwLock::default(),
            takers: RwLock::default(),
            client,
            tls,
            connect_timeout,
            reach,
            clocks: Clocks::default(),
            hedging: Hedging::default(),
            left_behind: AtomicUsize::new(0),
        })
    }

    /// Backends whose every call goes through `network`.
    pub fn simulated(network: Arc<dyn Network>) -> Arc<Self> {
        Arc::new(Backends {
            network: Some(network),
            local: RwLock::default(),
            takers: RwLock::default(),
            client: Client::new(Duration::from_secs(1), 1, Duration::from_secs(1)),
            tls: None,
            connect_timeout: Duration::from_secs(1),
            reach: Reach::new(Duration::from_secs(1), None),
            clocks: Clocks::default(),
            hedging: Hedging::default(),
            left_behind: AtomicUsize::new(0),
        })
    }

    /// Are calls to `address` handled without a socket?
    pub fn is_in_process(&self, address: SocketAddr) -> bool {
        self.network.is_some() || self.is_local(address)
    }

    /// Whether calls to `address` are answered by a server of this process, without a simulated network.
    pub fn is_local(&self, address: SocketAddr) -> bool {
        self.local.read().contains_key(&address)
    }

    /// Opens a connection that will not return to the pool.
    pub(crate) async fn connect(&self, address: SocketAddr) -> std::io::Result<Stream> {
        let host = address.ip().to_string();
        dial(address, &host, self.tls.as_ref(), self.connect_timeout).await
    }

    /// Handles calls to `address` by `handler` from now on, without a socket.
    pub fn register_local(&self, address: SocketAddr, handler: Handler) {
        self.local.write().insert(address, handler);
    }

    pub fn local(&self, address: SocketAddr) -> Option<Handler> {
        self.local.read().get(&address).cloned()
    }

    /// Has the object server at `address`, which is of this process, take requests by a call from now on.
    pub fn register_calls(&self, address: SocketAddr, server: Arc<dyn TakesCalls>) {
        self.takers.write().insert(address, server);
    }

    /// The object server at `address` that takes requests by a call.
    pub fn taker(&self, address: SocketAddr) -> Option<Arc<dyn TakesCalls>> {
        self.takers.read().get(&address).cloned()
    }

    /// The hosts' state of reachability.
    pub fn reach(&self) -> &Arc<Reach> {
        &self.reach
    }

    /// The output of a future that waits for the server at `address`; `None` if its host is lost
    /// first.
    pub async fn unless_lost<T>(
        &self,
        address: SocketAddr,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match self.is_in_process(address) {
            true => Some(future.await),
            false => self.reach.unless_lost(address, future).await,
        }
    }

    /// The output of a future that waits for the server at `address`; `None` if its host is lost or
    /// hung first.
    pub async fn unless_hung<T>(
        &self,
        address: SocketAddr,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match self.is_in_process(address) {
            true => Some(future.await),
            false => self.reach.unless_hung(address, future).await,
        }
    }

    /// Is the server at `address` known to hang, so that callers with an alternative should not
    /// wait for it?
    pub fn is_hung(&self, address: SocketAddr) -> bool {
        self.reach.is_hung(address)
    }

    /// The timing and budget of hedged reads.
    pub fn hedging(&self) -> &Hedging {
        &self.hedging
    }

    /// Calls the server at `address`; the request's URI is a path and query. `timeout` bounds the
    /// wait for the response's head, from now. Dropping the future cancels the request.
    ///
    /// # Errors
    /// `Timeout` without a response in time; over the network as [`CallError`] says, and at once
    /// `Connect` for a host known to be lost.
    pub async fn call(
        &self,
        address: SocketAddr,
        request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        if let Some(network) = &self.network {
            let answer = tokio::time::timeout(timeout, network.call(address, request)).await;
            return answer.unwrap_or(Err(CallError::Timeout {
                address,
                after: timeout,
            }));
        }
        match self.local(address) {
            Some(handler) => tokio::time::timeout(timeout, handler.call(request))
                .await
                .map_err(|_| CallError::Timeout {
                    address,
                    after: timeout,
                }),
            // Boxed: in-process calls are frequent and long-lived, and must not carry the size of a
            // network call's future.
            None => Box::pin(self.call_over_network(address, request, timeout)).await,
        }
    }

    async fn call_over_network(
        &self,
        address: SocketAddr,
        request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        if self.reach.is_lost(address) {
            let reason = "the host does not answer".to_owned();
            return Err(CallError::Connect { address, reason });
        }
        let start = Instant::now();
        let call = self.client.call(address, request, timeout);
        let answer = self.reach.unless_lost(address, call).await;
        if let Some(Ok(response)) = &answer {
            let now = SystemTime::now();
            self.clocks.compare(address, response, now);
        }
        answer.unwrap_or_else(|| {
            Err(CallError::Timeout {
                address,
                after: start.elapsed(),
            })
        })
    }
}
