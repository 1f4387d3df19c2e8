//! Is a server's host there at all? A host that lost its power, or a network that swallows packets,
//! is silent: requests on connections made before would wait for a whole `node_timeout`, each of
//! them, and the next ones as well. So while a call is slow its host is connected to beside it. One
//! that takes no connection in `conn_timeout` is lost: what waits for it ends, and nobody else waits
//! for it, until a connection is made again, which is tried once a second.
//!
//! A host that answers, refusals too, is there: how long its answers take is the caller's affair.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// Between two looks at the same host.
const INTERVAL: Duration = Duration::from_secs(1);
/// A lost host that nobody has asked for so long is looked at no more.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// What is known of the hosts that have been slow.
pub struct Reach {
    connect_timeout: Duration,
    /// How many are lost: zero lets the common path skip the lock.
    lost: AtomicUsize,
    hosts: Mutex<HashMap<SocketAddr, Host>>,
}

struct Host {
    lost: watch::Sender<bool>,
    is_looked_at: bool,
    /// When it was last found to be there.
    found: Option<Instant>,
    asked: Instant,
}

impl Reach {
    pub fn new(connect_timeout: Duration) -> Arc<Self> {
        Arc::new(Reach {
            connect_timeout,
            lost: AtomicUsize::new(0),
            hosts: Mutex::default(),
        })
    }

    /// Is this host known to be lost?
    pub fn is_lost(&self, address: SocketAddr) -> bool {
        if self.lost.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.lock().get_mut(&address).is_some_and(|host| {
            host.asked = Instant::now();
            *host.lost.borrow()
        })
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

    /// Looks at the host now and then, and ends when it is lost.
    pub async fn until_lost(self: &Arc<Self>, address: SocketAddr) {
        let mut lost = self.look(address);
        loop {
            if *lost.borrow_and_update() {
                return;
            }
            let _ = tokio::time::timeout(INTERVAL, lost.changed()).await;
            lost = self.look(address);
        }
    }

    /// Has the host looked at, unless that is under way or was a moment ago.
    fn look(self: &Arc<Self>, address: SocketAddr) -> watch::Receiver<bool> {
        let mut hosts = self.lock();
        let now = Instant::now();
        let host = hosts.entry(address).or_insert_with(|| Host {
            lost: watch::Sender::new(false),
            is_looked_at: false,
            found: None,
            asked: now,
        });
        host.asked = now;
        let is_recent = host.found.is_some_and(|at| now - at < INTERVAL);
        if !host.is_looked_at && !is_recent {
            host.is_looked_at = true;
            let (reach, timeout) = (Arc::downgrade(self), self.connect_timeout);
            tokio::spawn(watch_over(reach, address, timeout));
        }
        host.lost.subscribe()
    }

    /// True when the host is to be looked at again.
    fn note(&self, address: SocketAddr, is_there: bool) -> bool {
        let mut hosts = self.lock();
        let Some(host) = hosts.get_mut(&address) else {
            return false;
        };
        let was_lost = host.lost.send_replace(!is_there);
        match (was_lost, is_there) {
            (false, false) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                warn!(%address, "host does not answer; left alone until it does");
            }
            (true, true) => {
                self.lost.fetch_sub(1, Ordering::Relaxed);
                info!(%address, "host answers again");
            }
            _ => {}
        }
        if is_there {
            host.is_looked_at = false;
            host.found = Some(Instant::now());
            return false;
        }
        if host.asked.elapsed() > FORGOTTEN {
            hosts.remove(&address);
            self.lost.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Host>> {
        self.hosts.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Looks at a host until it is there.
async fn watch_over(reach: Weak<Reach>, address: SocketAddr, timeout: Duration) {
    loop {
        let is_there = answers(address, timeout).await;
        let Some(known) = reach.upgrade() else { return };
        if !known.note(address, is_there) {
            return;
        }
        drop(known);
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Two connections, one a moment after the other: a single lost packet says nothing.
async fn answers(address: SocketAddr, timeout: Duration) -> bool {
    let first = connects(address, timeout);
    let second = async {
        tokio::time::sleep(timeout / 5).await;
        connects(address, timeout).await
    };
    tokio::pin!(first, second);
    tokio::select! {
        is_there = &mut first => is_there || second.await,
        is_there = &mut second => is_there || first.await,
    }
}

async fn connects(address: SocketAddr, timeout: Duration) -> bool {
    match tokio::time::timeout(timeout, TcpStream::connect(address)).await {
        Err(_) => false,
        Ok(Ok(_)) => true,
        // Refused: by the host itself. Anything else is a fault of ours.
        Ok(Err(error)) => !matches!(
            error.kind(),
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut
        ),
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
        let reach = Reach::new(PATIENCE);
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
        let reach = Reach::new(PATIENCE);
        for address in [slow, closed] {
            let answer = async {
                tokio::time::sleep(PATIENCE * 6).await;
                7
            };
            assert_eq!(reach.unless_lost(address, answer).await, Some(7));
            assert!(!reach.is_lost(address));
        }
    }
}
