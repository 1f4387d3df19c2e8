//! A relay between the lab and a store that records every request, so that these are known from the
//! wire, not from the lab's own results. One thread per connection.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;

/// A recorded request.
#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    /// Time at which its head had arrived, in seconds since 1970.
    pub(super) at: f64,
    pub(super) method: String,
    /// Path and query as sent.
    pub(super) target: String,
    /// Bytes of the request's body.
    pub(super) sent: u64,
    /// Status; 0 without a response.
    pub(super) status: u16,
    /// Bytes of the response's body.
    pub(super) received: u64,
}

pub(super) struct Relay {
    pub(super) port: u16,
    seen: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Relay {
    /// Relays connections on a new port to port `store` of this host. It listens until the process
    /// ends.
    pub(super) fn start(store: u16) -> Result<Relay> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let seen: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
        let of_threads = seen.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let seen = of_threads.clone();
                std::thread::spawn(move || {
                    // A broken connection is seen by the lab as well.
                    let _ = relay(client, (Ipv4Addr::LOCALHOST, store).into(), &seen);
                });
            }
        });
        Ok(Relay { port, seen })
    }

    /// Takes the recorded requests, in order.
    pub(super) fn take(&self) -> Vec<RecordedRequest> {
        let mut seen = self.seen.lock();
        let mut seen = std::mem::take(&mut *seen);
        seen.sort_by(|a, b| a.at.total_cmp(&b.at));
        seen
    }
}

/// A head as received, and the length of the body after it.
struct Head {
    bytes: Vec<u8>,
    first: String,
    length: Option<u64>,
    chunked: bool,
    closes: bool,
}

fn relay(client: TcpStream, store: SocketAddr, seen: &Mutex<Vec<RecordedRequest>>) -> Result<()> {
    let server = TcpStream::connect(store)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut to_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let mut client = BufReader::with_capacity(64 * 1024, client);
    let mut server = BufReader::with_capacity(64 * 1024, server);
    while let Some(head) = read_head(&mut client)? {
        let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let mut words = head.first.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let mut request = RecordedRequest {
            at,
            method: method.to_owned(),
            target: target.to_owned(),
            sent: 0,
            status: 0,
            received: 0,
        };
        let passed = exchange(
            &head,
            (&mut client, &mut to_server),
            (&mut server, &mut to_client),
            &mut request,
        );
        seen.lock().push(request);
        if passed? {
            return Ok(());
        }
    }
    Ok(())
}

type Way<'a> = (&'a mut BufReader<TcpStream>, &'a mut TcpStream);

/// Relays one request and its response; returns whether the connection ends with it.
fn exchange(
    head: &Head,
    up: Way<'_>,
    down: Way<'_>,
    request: &mut RecordedRequest,
) -> Result<bool> {
    up.1.write_all(&head.bytes)?;
    request.sent = if head.chunked {
        pass_chunks(up.0, up.1)?
    } else {
        pass(up.0, up.1, head.length.unwrap_or(0))?
    };
    let answer = loop {
        let answer = read_head(down.0)?.context("no answer")?;
        down.1.write_all(&answer.bytes)?;
        if status(&answer.first)? >= 200 {
            break answer;
        }
    };
    let code = status(&answer.first)?;
    let has_none = request.method == "HEAD" || matches!(code, 204 | 304);
    let (count, ends) = match (has_none, answer.chunked, answer.length) {
        (true, ..) => (0, false),
        (false, true, _) => (pass_chunks(down.0, down.1)?, false),
        (false, false, Some(length)) => (pass(down.0, down.1, length)?, false),
        (false, false, None) => (pass(down.0, down.1, u64::MAX)?, true),
    };
    (request.status, request.received) = (code, count);
    Ok(ends || head.closes || answer.closes)
}

fn status(line: &str) -> Result<u16> {
    let code = line.split(' ').nth(1).context("no status")?;
    Ok(code.parse()?)
}

fn read_head(from: &mut BufReader<TcpStream>) -> Result<Option<Head>> {
    let mut head = Head {
        bytes: Vec::new(),
        first: String::new(),
        length: None,
        chunked: false,
        closes: false,
    };
    loop {
        let start = head.bytes.len();
        match from.take(64 * 1024).read_until(b'\n', &mut head.bytes) {
            Ok(0) if start == 0 => return Ok(None),
            Ok(0) => bail!("an end within a head"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset && start == 0 => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        let line = String::from_utf8_lossy(&head.bytes[start..]);
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Some(head));
        }
        if start == 0 {
            head.first = line.to_owned();
            continue;
        }
        let (name, value) = line.split_once(':').context("no header")?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => head.length = Some(value.parse()?),
            "transfer-encoding" => head.chunked = value.eq_ignore_ascii_case("chunked"),
            "connection" => head.closes = value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
}

/// Relays `length` bytes, or all until the end if that is [`u64::MAX`].
fn pass(from: &mut impl BufRead, to: &mut TcpStream, length: u64) -> Result<u64> {
    let passed = std::io::copy(&mut from.take(length), to)?;
    ensure!(length == u64::MAX || passed == length, "a body ended early");
    Ok(passed)
}

/// Relays a chunked body unchanged; returns the number of bytes in it.
fn pass_chunks(from: &mut impl BufRead, to: &mut TcpStream) -> Result<u64> {
    let mut sum = 0;
    loop {
        let mut line = Vec::new();
        from.take(64 * 1024).read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line);
        let size = u64::from_str_radix(text.trim().split(';').next().unwrap_or(""), 16)?;
        to.write_all(&line)?;
        // The chunk and its line end; for the last chunk only that, as there are no trailers.
        pass(from, to, size + 2)?;
        sum += size;
        if size == 0 {
            return Ok(sum);
        }
    }
}

/// The entity of a request.
pub(super) struct Subject {
    pub(super) container: String,
    /// Name of the object; empty: the container itself.
    pub(super) object: String,
}

impl RecordedRequest {
    /// `None` for a login, or the account.
    pub(super) fn subject(&self) -> Option<Subject> {
        let path = self.target.split('?').next().unwrap_or("");
        let path = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
        if path.starts_with("/auth/") {
            return None;
        }
        let below = match path.strip_prefix("/v1/AUTH_") {
            Some(rest) => rest.split_once('/').map_or("", |(_, below)| below),
            // A path of S3.
            None => path.strip_prefix('/').unwrap_or(&path),
        };
        let (container, object) = below.split_once('/').unwrap_or((below, ""));
        (!container.is_empty()).then(|| Subject {
            container: container.to_owned(),
            object: object.to_owned(),
        })
    }

    pub(super) fn succeeded(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// The statuses of failed requests, for a message.
pub(super) fn statuses(seen: &[&RecordedRequest]) -> BTreeSet<u16> {
    let failed = seen.iter().filter(|seen| !seen.succeeded());
    failed.map(|seen| seen.status).collect()
}
