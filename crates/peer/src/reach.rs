//! Whether a server's host answers. A host that lost its power, or a network that swallows packets,
//! is silent: requests on connections made before would wait for a whole `node_timeout`, each of
//! them, and the next ones as well. A server that was stopped, or is stuck, takes connections and
//! then says nothing. So while a call is slow its server is probed beside it: a connection, and on
//! it an `OPTIONS` request, which needs no disk.
//!
//! * No connection within `conn_timeout`: the host is lost. What waits for it ends, and it is asked
//!   no more until it takes a connection again.
//! * A connection and no answer within [`HANG_TIMEOUT`]: the server hangs. It is asked last. Once it
//!   has hung for [`HUNG_AFTER`], what can go on without it does.
//!
//! Either is probed once a second until it answers. A server that answers the probe is there: how
//! long its other answers take is the caller's affair.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_http::client::over;
use cairn_http::tls::ClientTls;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// Between two probes of a host that does not answer.
const INTERVAL: Duration = Duration::from_secs(1);
/// A host that answered a probe is not probed again within this time.
const ANSWER_VALID: Duration = Duration::from_millis(250);
/// A probe unanswered for this long marks its server as hanging.
const HANG_TIMEOUT: Duration = Duration::from_millis(250);
/// A probe unanswered for this long ends the waiting for its server, where there is another way.
const HUNG_AFTER: Duration = Duration::from_secs(1);
/// Least time that a call to a server that hangs is given.
const HUNG_CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// A host amiss that nobody has asked for so long is probed no more.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The state of hosts that have been slow.
pub struct Reach {
    connect_timeout: Duration,
    tls: Option<ClientTls>,
    /// How many hosts do not answer: zero lets the common path skip the lock.
    amiss: AtomicUsize,
    hosts: Mutex<HashMap<SocketAddr, Host>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Answers,
    /// It takes connections; since when a probe is unanswered.
    Hangs(Instant),
    Lost,
}

struct Host {
    state: watch::Sender<State>,
    is_probed: bool,
    /// When it last answered a probe.
    answered: Option<Instant>,
    asked: Instant,
}

impl Reach {
    /// With `tls`, servers speak it to whoever probes them.
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

    /// Is this host known to take no connections?
    pub fn is_lost(&self, address: SocketAddr) -> bool {
        self.state(address) == State::Lost
    }

    /// Is this host lost, or does its server hang? It is asked last then.
    pub fn is_silent(&self, address: SocketAddr) -> bool {
        self.state(address) != State::Answers
    }

    /// Has this host been silent for so long that waiting for it is to end?
    pub fn is_hung(&self, address: SocketAddr) -> bool {
        match self.state(address) {
            State::Answers => false,
            State::Hangs(since) => since.elapsed() >= HUNG_AFTER,
            State::Lost => true,
        }
    }

    /// The future's outcome; `None` when the host is lost before that.
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

    /// The future's outcome; `None` when the host is lost or its server hung before that. The future
    /// has [`HUNG_CALL_TIMEOUT`] in any case.
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

    /// Ends when a call that begins now is to be given up: its host is lost or its server hung, and
    /// it has had [`HUNG_CALL_TIMEOUT`].
    pub async fn until_hung_call(self: &Arc<Self>, address: SocketAddr) {
        let patience = HUNG_CALL_TIMEOUT / 2;
        tokio::time::sleep(patience).await;
        let at_least = tokio::time::sleep(HUNG_CALL_TIMEOUT - patience);
        tokio::join!(self.until_hung(address), at_least);
    }

    /// Probes the host now and then, and ends when it is lost.
    pub async fn until_lost(self: &Arc<Self>, address: SocketAddr) {
        let mut state = self.watched(address);
        loop {
            if *state.borrow_and_update() == State::Lost {
                return;
            }
            let _ = tokio::time::timeout(INTERVAL, state.changed()).await;
            state = self.watched(address);
        }
    }

    /// Probes the host now and then, and ends when it is lost or its server is hung.
    pub async fn until_hung(self: &Arc<Self>, address: SocketAddr) {
        let mut state = self.watched(address);
        loop {
            let known = *state.borrow_and_update();
            let wait = match known {
                State::Answers => INTERVAL,
                State::Hangs(since) => HUNG_AFTER.saturating_sub(since.elapsed()),
                State::Lost => return,
            };
            if wait.is_zero() {
                return;
            }
            let _ = tokio::time::timeout(wait, state.changed()).await;
            state = self.watched(address);
        }
    }

    /// Has the host probed, unless that is under way or was a moment ago.
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
        let is_recent = host.answered.is_some_and(|at| now - at < ANSWER_VALID);
        if !host.is_probed && !is_recent {
            host.is_probed = true;
            let (timeout, tls) = (self.connect_timeout, self.tls.clone());
            tokio::spawn(watch_over(Arc::downgrade(self), address, timeout, tls));
        }
        host.state.subscribe()
    }

    /// True when the host is to be probed again.
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
        if host.asked.elapsed() > FORGOTTEN {
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

/// Probes a host until it answers.
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
                tokio::time::sleep(INTERVAL).await;
                continue;
            }
            Connected::Refused => {
                note(State::Answers);
                return;
            }
            Connected::Yes(socket) => socket,
        };
        let mut answer = std::pin::pin!(answers(socket, address, tls.as_ref()));
        let is_prompt = tokio::time::timeout(HANG_TIMEOUT, answer.as_mut()).await;
        if is_prompt.is_err() {
            if !note(State::Hangs(began)) {
                return;
            }
            if tokio::time::timeout(INTERVAL, answer).await.is_err() {
                continue;
            }
        }
        note(State::Answers);
        return;
    }
}

enum Connected {
    Yes(TcpStream),
    /// By the host itself, or by a fault of ours.
    Refused,
    No,
}

/// Two connections, one a moment after the other: a single lost packet says nothing.
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

/// Ends when the server has said anything, closing the connection included.
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

    const PATIENCE: Duration = Duration::from_millis(100);

    /// A server that answers nothing, and whose queue of connections can be filled: a host that is
    /// then silent to new ones.
    async fn silent() -> (socket2::Socket, SocketAddr, Vec<TcpStream>) {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket
            .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
            .unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut held = Vec::new();
        while let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await
        {
            held.push(stream);
        }
        (socket, address, held)
    }

    #[tokio::test]
    async fn what_waits_for_a_silent_host_ends_and_later_goes_on() {
        let (socket, address, held) = silent().await;
        let reach = Reach::new(PATIENCE, None);
        assert!(!reach.is_lost(address));
        let start = Instant::now();
        let waited = reach
            .unless_lost(address, std::future::pending::<()>())
            .await;
        assert!(waited.is_none());
        assert!(start.elapsed() < INTERVAL * 10, "{:?}", start.elapsed());
        assert!(reach.is_lost(address));
        // Its queue has room again.
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
        let reach = Reach::new(PATIENCE, None);
        for address in [slow, closed] {
            let answer = async {
                tokio::time::sleep(PATIENCE * 6).await;
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
        let reach = Reach::new(PATIENCE, None);
        let start = Instant::now();
        let waited = reach
            .unless_hung(address, std::future::pending::<()>())
            .await;
        assert!(waited.is_none());
        assert!(start.elapsed() < HUNG_AFTER * 2, "{:?}", start.elapsed());
        assert!(reach.is_silent(address) && reach.is_hung(address));
        assert!(!reach.is_lost(address), "it takes connections");
        // It may still answer a call that has nowhere else to go.
        let late = tokio::time::sleep(PATIENCE / 4);
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
