//! A load balancer for several proxies: each request goes to the next one in service; one that does
//! not listen is skipped. A proxy is taken out of service before it is stopped. Responses are
//! passed on as they are, and a broken connection is an error for the client.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, bail};

use cairn_testkit::process::wait_for;
use cairn_testkit::wire::{Connection, Response, Route};

struct Proxy {
    port: u16,
    in_service: AtomicBool,
    under_way: AtomicUsize,
}

pub(super) struct Balancer {
    proxies: Vec<Proxy>,
    turn: AtomicUsize,
}

impl Balancer {
    pub(super) fn new(ports: &[u16]) -> Balancer {
        let proxy = |port: &u16| Proxy {
            port: *port,
            in_service: AtomicBool::new(true),
            under_way: AtomicUsize::new(0),
        };
        Balancer {
            proxies: ports.iter().map(proxy).collect(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Takes a proxy out of service and waits for its requests in progress.
    pub(super) fn drain(&self, proxy: usize) -> Result<()> {
        let proxy = &self.proxies[proxy];
        proxy.in_service.store(false, Ordering::SeqCst);
        wait_for("a proxy without requests", 60, || {
            Ok(proxy.under_way.load(Ordering::SeqCst) == 0)
        })
    }

    pub(super) fn restore(&self, proxy: usize) {
        self.proxies[proxy].in_service.store(true, Ordering::SeqCst);
    }
}

impl Proxy {
    /// Begins a request, if the proxy is in service.
    fn enter(&self) -> Option<UnderWay<'_>> {
        let entered = UnderWay(&self.under_way);
        // The order of counting and checking ensures that a drain sees one or the other.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.in_service.load(Ordering::SeqCst).then_some(entered)
    }
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One client's connections, one to each proxy.
pub(super) struct Balanced {
    balancer: Arc<Balancer>,
    connections: Vec<Connection>,
}

impl Balanced {
    pub(super) fn new(balancer: Arc<Balancer>) -> Balanced {
        let proxies = balancer.proxies.iter();
        let connections = proxies.map(|proxy| Connection::new(proxy.port)).collect();
        Balanced {
            balancer,
            connections,
        }
    }
}

impl Route for Balanced {
    fn call(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let count = self.connections.len();
        let first = self.balancer.turn.fetch_add(1, Ordering::Relaxed);
        for index in (0..count).map(|n| (first + n) % count) {
            let Some(_under_way) = self.balancer.proxies[index].enter() else {
                continue;
            };
            let answer = self.connections[index].call(method, target, headers, body);
            if !matches!(&answer, Err(error) if refused(error)) {
                return answer;
            }
        }
        bail!("{method} {target}: no proxy is in service");
    }
}

/// Was the connection refused, so that the request was not sent?
fn refused(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;
    use cairn_testkit::process::free_ports;

    /// A server that responds 204 to everything.
    fn server() -> Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(&stream).lines();
                while let Some(Ok(line)) = lines.next() {
                    if line.is_empty() {
                        let _ = (&stream).write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
                    }
                }
            }
        });
        Ok(port)
    }

    #[test]
    fn goes_to_who_listens_and_is_in_service() -> Result<()> {
        let balancer = Arc::new(Balancer::new(&[free_ports(1)?[0], server()?]));
        let mut client = Balanced::new(balancer.clone());
        for _ in 0..4 {
            assert_eq!(client.call("GET", "/", &[], b"")?.status, 204);
        }
        balancer.drain(1)?;
        let error = client
            .call("GET", "/", &[], b"")
            .map(|answer| answer.status);
        assert!(error.is_err_and(|error| error.to_string().contains("no proxy is in service")));
        balancer.restore(1);
        assert_eq!(client.call("GET", "/", &[], b"")?.status, 204);
        Ok(())
    }
}
