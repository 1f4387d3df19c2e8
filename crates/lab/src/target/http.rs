//! A small HTTP/1.1 client for load: one connection per worker, nothing shared, no copy of a body
//! that is only counted.
//!
//! Own code, since what a general client does per request (pools, header maps, boxed bodies) would
//! be measured as the store's. Answers are read into one buffer per thread and pushed through
//! [`parse::Parser`]; a connection itself holds no buffer.

mod connection;
#[cfg(test)]
pub(super) mod memory;
mod parse;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_rustls::TlsConnector;

pub(super) use self::connection::Upload;
use self::connection::{Connection, ExchangeError};
pub(super) use self::parse::{Reply, Sink};
use super::url::Url;
use super::{TargetError, TargetOptions, tls};
use crate::record::ErrorKind;

/// A host and port, resolved once.
pub(super) struct Endpoint {
    pub(super) url: Url,
    addresses: Vec<SocketAddr>,
    tls: Option<(TlsConnector, rustls::pki_types::ServerName<'static>)>,
    /// A store within the test.
    #[cfg(test)]
    memory: Option<memory::Dial>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.url)
    }
}

impl Endpoint {
    /// Looks the host up; blocks while it does.
    pub(super) fn resolve(url: Url, options: &TargetOptions) -> Result<Arc<Self>, TargetError> {
        let unreachable = |why: String| TargetError::Unreachable {
            url: url.to_string(),
            why,
        };
        let host = url
            .host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let addresses: Vec<SocketAddr> = (host.as_str(), url.port)
            .to_socket_addrs()
            .map_err(|error| unreachable(error.to_string()))?
            .collect();
        if addresses.is_empty() {
            return Err(unreachable("the name has no address".into()));
        }
        let tls = if url.tls {
            let name = rustls::pki_types::ServerName::try_from(host)
                .map_err(|error| unreachable(error.to_string()))?;
            Some((TlsConnector::from(tls::client_config(options)?), name))
        } else {
            None
        };
        Ok(Arc::new(Self {
            url,
            addresses,
            tls,
            #[cfg(test)]
            memory: None,
        }))
    }
}

/// One worker's client of one endpoint.
#[derive(Debug)]
pub(super) struct Client {
    endpoint: Arc<Endpoint>,
    timeout: Duration,
    connection: Option<Connection>,
    /// The request's head; whoever builds it clears it first and ends it with an empty line.
    pub(super) head: Vec<u8>,
    piece: Vec<u8>,
    transaction: String,
    /// Why the last attempt to connect failed.
    refusal: Option<std::io::Error>,
}

impl Client {
    pub(super) fn new(endpoint: Arc<Endpoint>, timeout: Duration) -> Self {
        Self {
            endpoint,
            timeout,
            connection: None,
            head: Vec::with_capacity(512),
            piece: Vec::new(),
            transaction: String::new(),
            refusal: None,
        }
    }

    /// A failed exchange in words: more than its kind where no connection was to be had.
    pub(super) fn explain(&self, kind: &ErrorKind) -> String {
        match (&self.refusal, kind) {
            (Some(error), ErrorKind::Connect) => error.to_string(),
            (_, ErrorKind::Timeout) => format!("no answer in {} s", self.timeout.as_secs_f64()),
            (_, ErrorKind::Closed) => "it closed the connection without an answer".into(),
            (_, ErrorKind::Protocol) => "what answers does not speak HTTP".into(),
            (_, kind) => kind.to_string(),
        }
    }

    /// Connects, so that a store which is not there is told before load does so many times.
    pub(super) async fn probe(&mut self) -> Result<(), TargetError> {
        let kind = match tokio::time::timeout(self.timeout, self.connect()).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(kind)) => kind,
            Err(_) => ErrorKind::Timeout,
        };
        Err(TargetError::Unreachable {
            url: self.endpoint.url.to_string(),
            why: self.explain(&kind),
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The id the store gave the last request; empty if none.
    pub(super) fn transaction(&self) -> &str {
        &self.transaction
    }

    /// Sends the built head and `upload`, and reads the answer into `sink`. `bodiless`: the answer
    /// to a HEAD has none whatever its length says.
    pub(super) async fn exchange(
        &mut self,
        mut upload: Upload<'_>,
        sink: &mut Sink<'_>,
        bodiless: bool,
    ) -> Result<Reply, ErrorKind> {
        self.transaction.clear();
        let timeout = self.timeout;
        match tokio::time::timeout(timeout, self.attempt(&mut upload, sink, bodiless)).await {
            Ok(result) => result,
            Err(_) => {
                self.connection = None;
                Err(ErrorKind::Timeout)
            }
        }
    }

    async fn attempt(
        &mut self,
        upload: &mut Upload<'_>,
        sink: &mut Sink<'_>,
        bodiless: bool,
    ) -> Result<Reply, ErrorKind> {
        loop {
            let reused = self.connection.is_some();
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let sent = connection
                .send(&mut self.head, &mut self.piece, upload)
                .await;
            let result = match sent {
                Ok(()) => {
                    connection
                        .receive(sink, bodiless, &mut self.transaction)
                        .await
                }
                // A store may answer and close before it has read all: the answer is worth more.
                Err(error) if connection.is_open_for_reading() => connection
                    .receive(sink, bodiless, &mut self.transaction)
                    .await
                    .map_err(|_| ExchangeError {
                        kind: error,
                        answered: false,
                    })
                    .map(|mut reply| {
                        reply.keep_alive = false;
                        reply
                    }),
                Err(kind) => Err(ExchangeError {
                    kind,
                    answered: false,
                }),
            };
            match result {
                Ok(reply) => {
                    if reply.keep_alive {
                        self.connection = Some(connection);
                    }
                    return Ok(reply);
                }
                // Kept open since the last request and closed by the store meanwhile: not a fault.
                Err(error)
                    if reused
                        && !error.answered
                        && error.kind == ErrorKind::Closed
                        && upload.rewind() => {}
                Err(error) => return Err(error.kind),
            }
        }
    }

    async fn connect(&mut self) -> Result<Connection, ErrorKind> {
        #[cfg(test)]
        if let Some(dial) = &self.endpoint.memory {
            return Ok(Connection::over(dial()));
        }
        for address in &self.endpoint.addresses {
            match Connection::open(*address, self.endpoint.tls.as_ref()).await {
                Ok(connection) => return Ok(connection),
                Err(error) => self.refusal = Some(error),
            }
        }
        // So that a store that is gone is not asked as fast as the loop turns.
        tokio::time::sleep(Duration::from_millis(10)).await;
        Err(ErrorKind::Connect)
    }

    /// A whole exchange with headers and body in memory, for signing in.
    pub(super) async fn simple(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Simple, ErrorKind> {
        self.head.clear();
        let authority = self.endpoint.url.authority();
        let start = format!("{method} {path} HTTP/1.1\r\nHost: {authority}\r\n");
        self.head.extend_from_slice(start.as_bytes());
        for (name, value) in headers {
            push_header(&mut self.head, name, value);
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT") {
            push_header(&mut self.head, "Content-Length", &body.len().to_string());
        }
        self.head.extend_from_slice(b"\r\n");
        let mut kept = parse::Kept::default();
        let mut sink = Sink::Keep(&mut kept);
        let reply = self
            .exchange(Upload::bytes(body), &mut sink, method == "HEAD")
            .await?;
        Ok(Simple {
            status: reply.status,
            headers: kept.headers,
            body: kept.body,
        })
    }
}

/// An answer in memory.
#[derive(Debug)]
pub(super) struct Simple {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Simple {
    /// For an exchange whose headers or body somebody reads.
    pub(super) fn keeper() -> parse::Kept {
        parse::Kept::default()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// Appends a header; line ends within the value cannot smuggle another.
pub(super) fn push_header(head: &mut Vec<u8>, name: &str, value: &str) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend(value.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')));
    head.extend_from_slice(b"\r\n");
}

/// Appends a number in decimal digits.
pub(super) fn push_number(head: &mut Vec<u8>, number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    head.extend_from_slice(&digits[at..]);
}

/// Appends a path segment; a slash stays one.
pub(super) fn push_encoded(head: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                head.push(byte);
            }
            _ => head.extend_from_slice(&[
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]),
        }
    }
}

/// When the head of an answer, or its body's first byte, was there.
pub(super) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
