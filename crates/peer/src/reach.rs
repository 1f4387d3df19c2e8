//! Reachability of servers: detects hosts that are lost and servers that hang. If a host has lost
//! power or the network drops its packets, each request on an existing connection would wait for a
//! whole `node_timeout`, and so would later requests. A server process that is stopped or stuck
//! accepts connections and then does not respond. Therefore, while a call is slow, its server is
//! probed in parallel: by a new connection and an `OPTIONS` request, which needs no disk.
//!
//! * No connection within `conn_timeout`: the host is lost. Calls waiting for it fail, and it gets
//!   no further calls until it accepts a connection again.
//! * A connection but no response within [`HANG_TIMEOUT`]: the server hangs and is asked last. Once
//!   it has hung for [`HUNG_AFTER`], calls that have an alternative stop waiting for it.
//!
//! Either kind is probed once a second until it responds. A server that responds to probes counts
//! as reachable, however long its other responses take.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_http::client::over;
use cairn_http::tls::ClientTls;
use cairn_types::dilation::dilated;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// Interval of probes of a host that does not respond.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a successful probe during which the host is not probed again.
const ANSWER_VALID: Duration = Duration::from_millis(250);
/// Time without a response to a probe after which its server counts as hanging.
const HANG_TIMEOUT: Duration = Duration::from_millis(250);
/// Time of hanging after which calls that have an alternative stop waiting.
const HUNG_AFTER: Duration = Duration::from_secs(1);
/// Minimum time given to a call to a hanging server.
const HUNG_CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// Time without calls after which an unreachable host is no longer probed.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// State of hosts that have been slow.
pub struct Reach {
    connect_timeout: Duration,
    tls: Option<ClientTls>,
    /// Number of hosts that do not respond: zero lets the common path skip the lock.
    amiss: AtomicUsize,
    hosts: Mutex<HashMap<SocketAddr, Host>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Answers,
    /// The server accepts connections; the time since which a probe has had no response.
    Hangs(Instant),
    Lost,
}

struct Host {
    state: watch::Sender<State>,
    is_probed: bool,
    /// Time of the last successful probe.
    answered: Option<Instant>,
    asked: Instant,
}

impl Reach {
    /// With `tls`, servers are probed by TLS.
    pub fn new(connect_timeout: Duration, tls: Option<ClientTls>) -> Arc<Self> {
        Arc::new(Reach {
            connect_timeout,
            tls,
            amiss: AtomicUsize::new(0),
            hosts: Mutex::default(),
        })
    }

    fn state(&self, address: SocketAddr) -> State {
        if self.amiss.load(Ordering::Relaxed) == 0 {
            return State::Answers;
        }
        let mut hosts = self.lock();
        let Some(host) = hosts.get_mut(&address) else {
            return State::Answers;
        };
        host.asked = Instant::now();
        *host.state.borrow()
    }

    /// Does this host accept no connections?
    pub fn is_lost(&self, address: SocketAddr) -> bool {
        self.state(address) == State::Lost
    }

    /// Is this host lost, or does its server hang, so that it should be asked last?
    pub fn is_silent(&self, address: SocketAddr) -> bool {
        self.state(address) != State::Answers
    }

    /// Has this host not responded for so long that waiting for it should end?
    pub fn is_hung(&self, address: SocketAddr) -> bool {
        match self.state(address) {
            State::Answers => false,
            State::Hangs(since) => since.elapsed() >= dilated(HUNG_AFTER),
            State::Lost => true,
        }
    }

    /// The future's output; `None` if the host is lost first.
    pub async fn unless_lost<T>(
        self: &Arc<Self>,
        address: SocketAddr,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(future);
        let patience = self.connect_timeout / 2;
        if let Ok(outcome) = tokio::time::timeout(patience, &mut future).await {
            return Some(outcome);
        }
        tokio::select! {
            biased;
            outcome = &mut future => Some(outcome),
            () = self.until_lost(address) => None,
        }
    }

    /// The future's output; `None` if the host is lost or its server hung first. The future has at
    /// least [`HUNG_CALL_TIMEOUT`].
    pub async fn unless_hung<T>(
        self: &Arc<Self>,
        address: SocketAddr,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            outcome = future => Some(outcome),
            () = self.until_hung_call(address) => None,
        }
    }

    /// Returns when a call that begins now should be abandoned: its host is lost or its server
    /// hung, and it has had [`HUNG_CALL_TIMEOUT`].
    pub async fn until_hung_call(self: &Arc<Self>, address: SocketAddr) {
        let patience = dilated(HUNG_CALL_TIMEOUT) / 2;
        tokio::time::sleep(patience).await;
        let at_least = tokio::time::sleep(dilated(HUNG_CALL_TIMEOUT) - patience);
        tokio::join!(self.until_hung(address), at_least);
    }

    /// Probes the host periodically, and returns when it is lost.
    pub async fn until_lost(self: &Arc<Self>, address: SocketAddr) {
        let mut state = self.watched(address);
        loop {
            if *state.borrow_and_update() == State::Lost {
                return;
            }
            let _ = tokio::time::timeout(dilated(PROBE_INTERVAL), state.changed()).await;
            state = self.watched(address);
        }
    }

    /// Probes the host periodically, and returns when it is lost or its server hung.
    pub async fn until_hung(self: &Arc<Self>, address: SocketAddr) {
        let mut state = self.watched(address);
        loop {
            let known = *state.borrow_and_update();
            let wait = match known {
                State::Answers => dilated(PROBE_INTERVAL),
                State::Hangs(since) => dilated(HUNG_AFTER).saturating_sub(since.elapsed()),
                State::Lost => return,
            };
            if wait.is_zero() {
                return;
            }
            let _ = tokio::time::timeout(wait, state.changed()).await;
            state = self.watched(address);
        }
    }

    /// Starts a probe of the host, unless one is running or has just succeeded.
    pub fn probe(self: &Arc<Self>, address: SocketAddr) {
        self.watched(address);
    }

    fn watched(self: &Arc<Self>, address: SocketAddr) -> watch::Receiver<State> {
        let mut hosts = self.lock();
        let now = Instant::now();
        let host = hosts.entry(address).or_insert_with(|| Host {
            state: watch::Sender::new(State::Answers),
            is_probed: false,
            answered: None,
            asked: now,
        });
        host.asked = now;
        let is_recent = host
            .answered
            .is_some_and(|at| now - at < dilated(ANSWER_VALID));
        if !host.is_probed && !is_recent {
            host.is_probed = true;
            let (timeout, tls) = (self.connect_timeout, self.tls.clone());
            tokio::spawn(watch_over(Arc::downgrade(self), address, timeout, tls));
        }
        host.state.subscribe()
    }

    /// Records the state; returns true if the host must be probed again.
    fn note(&self, address: SocketAddr, state: State) -> bool {
        let mut hosts = self.lock();
        let Some(host) = hosts.get_mut(&address) else {
            return false;
        };
        let before = *host.state.borrow();
        let state = match (before, state) {
            (State::Hangs(_), State::Hangs(_)) => before,
            _ => state,
        };
        host.state.send_replace(state);
        if before == State::Answers && state != State::Answers {
            self.amiss.fetch_add(1, Ordering::Relaxed);
        }
        match state {
            State::Answers => {
                if before != State::Answers {
                    self.amiss.fetch_sub(1, Ordering::Relaxed);
                    info!(%address, "host answers again");
                }
                host.is_probed = false;
                host.answered = Some(Instant::now());
                return false;
            }
            _ if before == state => {}
            State::Hangs(_) => {
                warn!(%address, "host takes connections but answers nothing; asked last until it does");
            }
            State::Lost => {
                warn!(%address, "host does not answer; left alone until it does");
            }
        }
        if host.asked.elapsed() > FORGET_AFTER {
            hosts.remove(&address);
            self.amiss.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Host>> {
        self.hosts.lock()
    }
}

/// Probes a host until it responds.
async fn watch_over(
    reach: Weak<Reach>,
    address: SocketAddr,
    timeout: Duration,
    tls: Option<ClientTls>,
) {
    let note = |state| reach.upgrade().is_some_and(|r| r.note(address, state));
    loop {
        let began = Instant::now();
        let socket = match connect_twice(address, timeout).await {
            Connected::No => {
                if !note(State::Lost) {
                    return;
                }
                tokio::time::sleep(dilated(PROBE_INTERVAL)).await;
                continue;
            }
            Connected::Refused => {
                note(State::Answers);
                return;
            }
            Connected::Yes(socket) => socket,
        };
        let mut answer = std::pin::pin!(answers(socket, address, tls.as_ref()));
        let is_prompt = tokio::time::timeout(dilated(HANG_TIMEOUT), answer.as_mut()).await;
        if is_prompt.is_err() {
            if !note(State::Hangs(began)) {
                return;
            }
            if tokio::time::timeout(dilated(PROBE_INTERVAL), answer)
                .await
                .is_err()
            {
                continue;
            }
        }
        note(State::Answers);
        return;
    }
}

enum Connected {
    Yes(TcpStream),
    /// Refused by the host, or failed by a local error.
    Refused,
    No,
}

/// Tries two connections, one shortly after the other, so that a single lost packet has no effect.
async fn connect_twice(address: SocketAddr, timeout: Duration) -> Connected {
    let first = connect(address, timeout);
    let second = async {
        tokio::time::sleep(timeout / 5).await;
        connect(address, timeout).await
    };
    tokio::pin!(first, second);
    tokio::select! {
        biased;
        connected = &mut first => match connected {
            Connected::No => second.await,
            connected => connected,
        },
        connected = &mut second => match connected {
            Connected::No => first.await,
            connected => connected,
        },
    }
}

async fn connect(address: SocketAddr, timeout: Duration) -> Connected {
    match tokio::time::timeout(timeout, TcpStream::connect(address)).await {
        Err(_) => Connected::No,
        Ok(Ok(socket)) => Connected::Yes(socket),
        Ok(Err(error)) => match error.kind() {
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut => {
                Connected::No
            }
            _ => Connected::Refused,
        },
    }
}

/// Returns when the server has sent anything or closed the connection.
async fn answers(socket: TcpStream, address: SocketAddr, tls: Option<&ClientTls>) {
    let Ok(mut stream) = over(socket, &address.ip().to_string(), tls).await else {
        return;
    };
    let request = format!("OPTIONS / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_ok() {
        let _ = stream.read(&mut [0; 64]).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    /// A server that responds to nothing and whose accept queue can be filled, so that new
    /// connections time out as with a lost host.
    async fn silent() -> (socket2::Socket, SocketAddr, Vec<TcpStream>) {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket
            .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
            .unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut held = Vec::new();
        while let Ok(Ok(stream)) = tokio::time::timeout(TIMEOUT, TcpStream::connect(address)).await
        {
            held.push(stream);
        }
        (socket, address, held)
    }

    #[tokio::test]
    async fn what_waits_for_a_silent_host_ends_and_later_goes_on() {
        let (socket, address, held) = silent().await;
        let reach = Reach::new(TIMEOUT, None);
        assert!(!reach.is_lost(address));
        let start = Instant::now();
        let waited = reach
            .unless_lost(address, std::future::pending::<()>())
            .await;
        assert!(waited.is_none());
        assert!(
            start.elapsed() < PROBE_INTERVAL * 10,
            "{:?}",
            start.elapsed()
        );
        assert!(reach.is_lost(address));
        // The accept queue has room again.
        drop(held);
        socket.set_nonblocking(true).unwrap();
        let found = async {
            while reach.is_lost(address) {
                while socket.accept().is_ok() {}
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(20), found).await;
        assert!(found.is_ok());
    }

    #[tokio::test]
    async fn slow_servers_and_closed_ports_are_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let slow = listener.local_addr().unwrap();
        let closed = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let reach = Reach::new(TIMEOUT, None);
        for address in [slow, closed] {
            let answer = async {
                tokio::time::sleep(TIMEOUT * 6).await;
                7
            };
            assert_eq!(reach.unless_lost(address, answer).await, Some(7));
            assert!(!reach.is_lost(address));
        }
    }

    #[tokio::test]
    async fn a_server_that_takes_connections_and_says_nothing_hangs_until_it_answers() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reach = Reach::new(TIMEOUT, None);
        let start = Instant::now();
        let waited = reach
            .unless_hung(address, std::future::pending::<()>())
            .await;
        assert!(waited.is_none());
        assert!(start.elapsed() < HUNG_AFTER * 2, "{:?}", start.elapsed());
        assert!(reach.is_silent(address) && reach.is_hung(address));
        assert!(!reach.is_lost(address), "it takes connections");
        // The server may still answer a call that has no alternative.
        let late = tokio::time::sleep(TIMEOUT / 4);
        assert!(reach.unless_hung(address, late).await.is_some());
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            }
        });
        let found = async {
            while reach.is_silent(address) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(5), found).await;
        assert!(found.is_ok());
        let answer = tokio::time::sleep(HUNG_AFTER * 2);
        assert!(reach.unless_hung(address, answer).await.is_some());
    }
}
