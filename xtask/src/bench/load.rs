//! The load generator: a closed loop, one request at a time on each keep-alive connection, all on
//! one thread. As lean as possible, because it shares the machine with the servers: request heads
//! are formatted once and only the object's number is replaced, bodies are sent from one buffer and
//! read into one.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{IoSlice, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Join, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use cairn_testkit::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verb {
    Put,
    Get,
    Delete,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Put => "PUT",
            Verb::Get => "GET",
            Verb::Delete => "DELETE",
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) port: u16,
    pub(crate) token: String,
    /// Path before the container's digit.
    pub(crate) prefix: String,
    pub(crate) containers: u64,
    pub(crate) verb: Verb,
    pub(crate) size: u64,
    pub(crate) connections: usize,
    pub(crate) warm_up_seconds: u64,
    pub(crate) seconds: u64,
    /// PUT and DELETE use the objects from `first` on, at most `count`; GET any of them.
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// Additional header lines of each request, with line ends.
    #[serde(default)]
    pub(crate) headers: String,
    /// Use TLS, trusting this certificate.
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
}

/// Results for requests that started within the measurement, unless stated otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Number of requests started, warm-up included.
    pub(crate) started: u64,
    pub(crate) done: u64,
    /// Number of errors, warm-up included, so that no measurement with failing requests seems
    /// valid.
    pub(crate) errors: u64,
    /// Message of the first error.
    pub(crate) error: Option<String>,
    /// Seconds until the end of the last request.
    pub(crate) seconds: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// CPU time of the generator per request.
    pub(crate) generator_cpu_us: f64,
}

impl Outcome {
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.seconds.max(1e-9)
    }
}

const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of ciphertext read at once: four records. rustls by itself reads 4 KB, which is 250 system
/// calls per megabyte; plain connections read up to the sink's size.
const TLS_READ_BYTES: usize = 64 * 1024;
/// Number of digits of an object's number.
const NUMBER_DIGITS: usize = 10;

/// A connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<Join<ReadAhead, OwnedWriteHalf>>>),
}

impl Stream {
    /// Reads and discards at most `most` bytes; returns the number. Data decrypted by TLS is not
    /// copied.
    fn poll_drain(
        &mut self,
        cx: &mut std::task::Context<'_>,
        sink: &mut [u8],
        most: usize,
    ) -> Poll<std::io::Result<usize>> {
        match self {
            Stream::Plain(socket) => {
                let most = sink.len().min(most);
                let mut buffer = ReadBuf::new(&mut sink[..most]);
                ready!(Pin::new(socket).poll_read(cx, &mut buffer))?;
                Poll::Ready(Ok(buffer.filled().len()))
            }
            Stream::Tls(stream) => {
                let mut stream = Pin::new(&mut **stream);
                let count = ready!(stream.as_mut().poll_fill_buf(cx))?.len().min(most);
                stream.consume(count);
                Poll::Ready(Ok(count))
            }
        }
    }
}

/// Common operations of both kinds of connections.
trait Wire: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

impl Stream {
    fn wire(&mut self) -> &mut dyn Wire {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream,
        }
    }
}

struct Shared {
    job: Job,
    tls: Option<TlsConnector>,
    measured_from: Instant,
    end: Instant,
    body: Vec<u8>,
    /// Buffer into which responses are read, shared by all connections so that it stays in the
    /// CPU's cache.
    sink: RefCell<Vec<u8>>,
    state: RefCell<State>,
}

struct State {
    started: u64,
    errors: u64,
    error: Option<String>,
    latency_us: Histogram<u64>,
    last_end: Instant,
    random: Random,
}

pub(crate) fn main() -> Result<()> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let job: Job = serde_json::from_slice(&text)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = tokio::task::LocalSet::new().block_on(&runtime, run(job))?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

async fn run(job: Job) -> Result<Outcome> {
    let body = match job.verb {
        Verb::Put => Random::new(1).bytes(job.size as usize),
        _ => Vec::new(),
    };
    let connections = job.connections;
    let tls = job.ca.as_deref().map(connector).transpose()?;
    let start = Instant::now();
    let measured_from = start + Duration::from_secs(job.warm_up_seconds);
    let shared = Rc::new(Shared {
        measured_from,
        end: measured_from + Duration::from_secs(job.seconds),
        body,
        sink: RefCell::new(vec![0; 256 * 1024]),
        state: RefCell::new(State {
            started: 0,
            errors: 0,
            error: None,
            latency_us: Histogram::new_with_bounds(1, 600_000_000, 3)?,
            last_end: measured_from,
            random: Random::new(job.first ^ job.size),
        }),
        job,
        tls,
    });
    let tasks: Vec<_> = (0..connections)
        .map(|_| tokio::task::spawn_local(connection(shared.clone())))
        .collect();
    for task in tasks {
        task.await?;
    }
    let state = shared.state.borrow();
    let ms = |us: u64| us as f64 / 1000.0;
    Ok(Outcome {
        started: state.started,
        done: state.latency_us.len(),
        errors: state.errors,
        error: state.error.clone(),
        seconds: state.last_end.duration_since(measured_from).as_secs_f64(),
        p50_ms: ms(state.latency_us.value_at_quantile(0.5)),
        p99_ms: ms(state.latency_us.value_at_quantile(0.99)),
        max_ms: ms(state.latency_us.max()),
        generator_cpu_us: super::usage::cpu_seconds(&[std::process::id()]) * 1e6
            / state.started.max(1) as f64,
    })
}

fn connector(ca: &Path) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

thread_local! {
    /// Unused buffers. The one used last is reused first, as it is still in the CPU's cache.
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The reading side of a socket under TLS. It has a buffer only while that contains data.
struct ReadAhead {
    socket: OwnedReadHalf,
    /// Bytes read; those from `next` on have not been handed out.
    ahead: Vec<u8>,
    next: usize,
}

impl AsyncRead for ReadAhead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        if this.next == this.ahead.len() {
            let buffer = BUFFERS.with_borrow_mut(Vec::pop);
            this.next = 0;
            this.ahead = buffer.unwrap_or_else(|| Vec::with_capacity(TLS_READ_BYTES));
            let read = pin!(this.socket.read_buf(&mut this.ahead)).poll(cx);
            if !matches!(read, Poll::Ready(Ok(1..))) {
                this.give_back();
            }
            ready!(read)?;
        }
        let rest = &this.ahead[this.next..];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        this.next += count;
        if this.next == this.ahead.len() {
            this.give_back();
        }
        Poll::Ready(Ok(()))
    }
}

impl ReadAhead {
    fn give_back(&mut self) {
        let mut buffer = std::mem::take(&mut self.ahead);
        self.next = 0;
        buffer.clear();
        if buffer.capacity() > 0 {
            BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
        }
    }
}

async fn connect(shared: &Shared) -> Result<Stream> {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.job.port)).await?;
    socket.set_nodelay(true)?;
    Ok(match &shared.tls {
        None => Stream::Plain(socket),
        Some(tls) => {
            let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
            let (socket, writer) = socket.into_split();
            let reader = ReadAhead {
                socket,
                ahead: Vec::new(),
                next: 0,
            };
            let joined = tokio::io::join(reader, writer);
            Stream::Tls(Box::new(tls.connect(name, joined).await?))
        }
    })
}

/// One connection's loop, until the time or the objects are used up.
async fn connection(shared: Rc<Shared>) {
    let mut request = Head::new(&shared.job);
    let mut buffer = vec![0; 16 * 1024];
    let mut stream = None;
    while let Some(number) = shared.next() {
        request.set(number, number % shared.job.containers);
        let begin = Instant::now();
        let exchange = exchange(&shared, &mut stream, &request.bytes, &mut buffer);
        let result = match tokio::time::timeout(REQUEST_TIMEOUT, exchange).await {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("no answer within {REQUEST_TIMEOUT:?}")),
        };
        shared.record(begin, result.as_ref().err());
        if result.is_err() {
            stream = None;
            // An overloaded server must not be flooded with retries.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Shared {
    /// The number of the next object, while there is time and one is left.
    fn next(&self) -> Option<u64> {
        if Instant::now() >= self.end {
            return None;
        }
        let mut state = self.state.borrow_mut();
        let Job {
            first, count, verb, ..
        } = self.job;
        if verb != Verb::Get && state.started >= count {
            return None;
        }
        let number = match verb {
            Verb::Get => state.random.below(count),
            _ => state.started,
        };
        state.started += 1;
        Some(first + number)
    }

    fn record(&self, begin: Instant, error: Option<&anyhow::Error>) {
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        if let Some(error) = error {
            state.errors += 1;
            state.error.get_or_insert_with(|| format!("{error:#}"));
        } else if begin >= self.measured_from {
            let us = now.duration_since(begin).as_micros() as u64;
            state.latency_us.saturating_record(us.max(1));
            state.last_end = now;
        }
    }
}

/// A request's head with known positions of its variable digits.
struct Head {
    bytes: Vec<u8>,
    container_at: usize,
    number_at: usize,
}

impl Head {
    fn new(job: &Job) -> Head {
        let start = format!("{} {}", job.verb.as_str(), job.prefix);
        let container_at = start.len();
        let number_at = container_at + "0/o".len();
        let mut text = format!(
            "{start}0/o{:0NUMBER_DIGITS$} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nX-Auth-Token: {}\r\n",
            0, job.port, job.token
        );
        text.push_str(&job.headers);
        if job.verb == Verb::Put {
            text.push_str(&format!("Content-Length: {}\r\n", job.size));
        }
        text.push_str("\r\n");
        Head {
            bytes: text.into_bytes(),
            container_at,
            number_at,
        }
    }

    fn set(&mut self, mut number: u64, container: u64) {
        self.bytes[self.container_at] = b'0' + (container % 10) as u8;
        for digit in self.bytes[self.number_at..self.number_at + NUMBER_DIGITS]
            .iter_mut()
            .rev()
        {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

async fn exchange(
    shared: &Shared,
    slot: &mut Option<Stream>,
    head: &[u8],
    buffer: &mut [u8],
) -> Result<()> {
    if slot.is_none() {
        *slot = Some(connect(shared).await?);
    }
    let stream = slot.as_mut().context("connected above")?;
    send(stream.wire(), head, &shared.body).await?;
    let answer = read_head(stream.wire(), buffer).await?;
    let length = match (answer.length, answer.status) {
        (_, 204) => 0,
        (Some(length), _) => length,
        (None, status) => bail!("{status} without a length"),
    };
    let mut left = length
        .checked_sub(answer.read_of_body)
        .context("more than the body came")?;
    while left > 0 {
        let count = poll_fn(|cx| {
            let mut sink = shared.sink.borrow_mut();
            stream.poll_drain(cx, &mut sink, left)
        });
        match count.await? {
            0 => bail!("the body ended early"),
            count => left -= count,
        }
    }
    if answer.close {
        *slot = None;
    }
    let Job { verb, size, .. } = shared.job;
    match (verb, answer.status) {
        (Verb::Put, 201) | (Verb::Delete, 204) => Ok(()),
        (Verb::Get, 200) if length as u64 == size => Ok(()),
        (_, status) => bail!("{} answered {status}, {length} bytes", verb.as_str()),
    }
}

async fn send(stream: &mut dyn Wire, mut head: &[u8], mut body: &[u8]) -> Result<()> {
    while !head.is_empty() {
        let count = stream
            .write_vectored(&[IoSlice::new(head), IoSlice::new(body)])
            .await?;
        ensure!(count > 0, "the connection takes no more");
        let of_head = count.min(head.len());
        head = &head[of_head..];
        body = &body[count - of_head..];
    }
    stream.write_all(body).await?;
    stream.flush().await?;
    Ok(())
}

struct Answer {
    status: u16,
    length: Option<usize>,
    close: bool,
    /// Bytes of the body that arrived with the head.
    read_of_body: usize,
}

async fn read_head(stream: &mut dyn Wire, buffer: &mut [u8]) -> Result<Answer> {
    let mut filled = 0;
    loop {
        let count = stream.read(&mut buffer[filled..]).await?;
        ensure!(count > 0, "the connection ended before an answer");
        // The end of the head may be split between two reads.
        let from = filled.saturating_sub(3);
        filled += count;
        if let Some(at) = buffer[from..filled]
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
        {
            let end = from + at;
            let mut answer = parse_head(&buffer[..end])?;
            answer.read_of_body = filled - end - 4;
            return Ok(answer);
        }
        ensure!(filled < buffer.len(), "a head longer than {filled} bytes");
    }
}

fn parse_head(head: &[u8]) -> Result<Answer> {
    let mut lines = head.split(|b| *b == b'\n').map(<[u8]>::trim_ascii_end);
    let status = lines
        .next()
        .and_then(|line| line.get(9..12))
        .context("no status line")?;
    let status = std::str::from_utf8(status)?.parse()?;
    let mut answer = Answer {
        status,
        length: None,
        close: false,
        read_of_body: 0,
    };
    for line in lines {
        if let Some(value) = value_of(line, b"content-length:") {
            answer.length = Some(std::str::from_utf8(value)?.parse()?);
        } else if let Some(value) = value_of(line, b"connection:") {
            answer.close = value.eq_ignore_ascii_case(b"close");
        }
    }
    Ok(answer)
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let start = line.get(..name.len())?;
    start
        .eq_ignore_ascii_case(name)
        .then(|| line[name.len()..].trim_ascii())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let answer =
            parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 42\r\nConnection: Close").unwrap();
        assert_eq!(
            (answer.status, answer.length, answer.close),
            (200, Some(42), true)
        );
        assert!(parse_head(b"HTTP").is_err());
    }

    #[test]
    fn numbers_go_into_the_head() {
        let job = Job {
            port: 1,
            token: "t".into(),
            prefix: "/v1/a/bench-".into(),
            containers: 10,
            verb: Verb::Put,
            size: 5,
            connections: 1,
            warm_up_seconds: 0,
            seconds: 1,
            first: 0,
            count: 1,
            headers: String::new(),
            ca: None,
        };
        let mut head = Head::new(&job);
        head.set(1234, 4);
        let text = String::from_utf8(head.bytes).unwrap();
        assert!(
            text.starts_with("PUT /v1/a/bench-4/o0000001234 HTTP/1.1\r\n"),
            "{text}"
        );
        assert!(text.ends_with("Content-Length: 5\r\n\r\n"), "{text}");
    }
}
