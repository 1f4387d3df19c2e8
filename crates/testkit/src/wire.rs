//! A small blocking HTTP/1.1 client with Swift's API on top: enough to write, read and compare.
//!
//! Raw answers are its point, so it is not the client of the workspace (`crates/client`): that one
//! shares its heads, bodies and connections with the servers, whose faults it might repeat or heal;
//! it tries again where here a request whose answer is lost must stay in doubt, and it answers with
//! types where here each status, header and byte is held against OpenStack Swift's. Heads that no
//! client may send are written by hand where they are tried (`security/heads.rs` of xtask).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Percent-encodes a name, keeping its slashes.
pub fn quote(name: &str) -> String {
    utf8_percent_encode(name, NAME).to_string()
}

/// A whole response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header names in lower case and values, in the order received.
    pub headers: Vec<(String, String)>,
    /// The body, without the framing of chunks.
    pub body: Vec<u8>,
}

impl Response {
    /// The first value of a header, whose name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// Is the status one of 2xx?
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Takes requests to a store: one connection, or a choice among several.
pub trait Route: Send + Sync {
    /// Sends one request, at most once, and reads its whole response.
    ///
    /// # Errors
    /// The request cannot be sent, or its response does not come whole. It may have been executed.
    fn call(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response>;
}

/// One keep-alive connection, reopened when the server closed it between two requests.
pub struct Connection {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Connection {
    /// To a port of 127.0.0.1; connects at the first request.
    pub fn new(port: u16) -> Self {
        Connection::to((Ipv4Addr::LOCALHOST, port).into())
    }

    /// To any address; connects at the first request.
    pub fn to(address: SocketAddr) -> Self {
        Connection {
            address,
            stream: None,
        }
    }

    fn open(&self) -> Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        Ok(BufReader::with_capacity(64 * 1024, stream))
    }

    /// Sends one request (its `Host` is among the headers, or else the address) and reads its whole
    /// response. Never sends twice: a caller that counts acknowledged writes must know that a
    /// failed request may or may not have been executed.
    ///
    /// # Errors
    /// The server refuses the connection or takes 5 seconds for it, sending or reading stands still
    /// for 60, or the response breaks off, is no HTTP, or has neither a length nor chunks.
    pub fn call(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let mut stream = match self.stream.take() {
            Some(stream) if still_open(&stream) => stream,
            _ => self.open()?,
        };
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || matches!(method, "PUT" | "POST") {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        stream.get_mut().write_all(head.as_bytes())?;
        stream.get_mut().write_all(body)?;
        let response =
            read_response(&mut stream, method).with_context(|| format!("{method} {target}"))?;
        if !response
            .header("connection")
            .is_some_and(|c| c.eq_ignore_ascii_case("close"))
        {
            self.stream = Some(stream);
        }
        Ok(response)
    }
}

impl Route for Connection {
    fn call(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        Connection::call(self, method, target, headers, body)
    }
}

/// Whether an idle connection is still open: one that the server closed returns end-of-file.
fn still_open(stream: &BufReader<TcpStream>) -> bool {
    let socket = stream.get_ref();
    if socket.set_nonblocking(true).is_err() {
        return false;
    }
    let nothing_yet =
        matches!(socket.peek(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
    socket.set_nonblocking(false).is_ok() && nothing_yet
}

fn read_line(stream: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    stream.take(64 * 1024).read_until(b'\n', &mut line)?;
    ensure!(
        line.ends_with(b"\n"),
        "the connection ended in the middle of a response"
    );
    Ok(String::from_utf8_lossy(&line)
        .trim_end_matches(['\r', '\n'])
        .to_owned())
}

fn read_response(stream: &mut BufReader<TcpStream>, method: &str) -> Result<Response> {
    let (status, headers) = loop {
        let line = read_line(stream)?;
        let status: u16 = line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("no status line: {line:?}"))?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(stream)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line
                .split_once(':')
                .with_context(|| format!("no header: {line:?}"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        if status >= 200 {
            break (status, headers);
        }
    };
    let mut response = Response {
        status,
        headers,
        body: Vec::new(),
    };
    if method == "HEAD" || status == 204 || status == 304 {
        return Ok(response);
    }
    if response
        .header("transfer-encoding")
        .is_some_and(|t| t.eq_ignore_ascii_case("chunked"))
    {
        loop {
            let line = read_line(stream)?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or("").trim(), 16)?;
            let start = response.body.len();
            response.body.resize(start + size, 0);
            stream.read_exact(&mut response.body[start..])?;
            read_line(stream)?;
            if size == 0 {
                return Ok(response);
            }
        }
    }
    let length: usize = response
        .header("content-length")
        .context("neither a length nor chunks")?
        .parse()?;
    response.body.resize(length, 0);
    stream
        .read_exact(&mut response.body)
        .context("the body ended early")?;
    Ok(response)
}

/// Swift's API with a token, on one connection.
pub struct Account {
    /// Port of the proxy that was logged in to.
    pub port: u16,
    /// The token of each request.
    pub token: String,
    /// Path of the account: `/v1/AUTH_…`.
    pub path: String,
    address: SocketAddr,
    route: Box<dyn Route>,
}

impl Account {
    /// Logs in by TempAuth as test:tester, a user that every store here has.
    ///
    /// # Errors
    /// See [`Account::login_to`].
    pub fn login(port: u16) -> Result<Account> {
        Account::login_as(port, "test:tester", "testing")
    }

    /// Logs in by TempAuth.
    ///
    /// # Errors
    /// See [`Account::login_to`].
    pub fn login_as(port: u16, user: &str, key: &str) -> Result<Account> {
        Account::login_to((Ipv4Addr::LOCALHOST, port).into(), user, key)
    }

    /// The same, at any address and for any user.
    ///
    /// # Errors
    /// A request fails ([`Connection::call`]), the login is refused (a 5xx only after 90 seconds),
    /// or the answer has no token, or no storage URL with a path.
    pub fn login_to(address: SocketAddr, user: &str, key: &str) -> Result<Account> {
        // A store that a benchmark has just overloaded answers 503 for a while.
        let deadline = Instant::now() + Duration::from_secs(90);
        let (connection, response) = loop {
            let mut connection = Connection::to(address);
            let user = ("X-Auth-User", user);
            let response =
                connection.call("GET", "/auth/v1.0", &[user, ("X-Auth-Key", key)], b"")?;
            if response.status < 500 || Instant::now() >= deadline {
                break (connection, response);
            }
            std::thread::sleep(Duration::from_secs(2));
        };
        ensure!(
            response.is_success(),
            "login: {} {}",
            response.status,
            response.text()
        );
        let token = response
            .header("x-auth-token")
            .context("no token")?
            .to_owned();
        let url = response.header("x-storage-url").context("no storage URL")?;
        let path = url
            .splitn(4, '/')
            .nth(3)
            .context("a storage URL without a path")?;
        Ok(Account {
            port: address.port(),
            token,
            path: format!("/{path}"),
            address,
            route: Box::new(connection),
        })
    }

    /// The same login on a connection of its own.
    pub fn another(&self) -> Account {
        self.routed(Connection::to(self.address))
    }

    /// The same login, whose requests go by another route: to one of several proxies.
    pub fn routed(&self, route: impl Route + 'static) -> Account {
        Account {
            port: self.port,
            token: self.token.clone(),
            path: self.path.clone(),
            address: self.address,
            route: Box::new(route),
        }
    }

    /// Sends a request; `path` is below the account and encoded here (`""`, `/c`, `/c/o`), `query`
    /// includes its `?`.
    ///
    /// # Errors
    /// Those of the route: see [`Route::call`]. Any status is an answer, and no error.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let target = format!("{}{}{query}", self.path, quote(path));
        let mut all = vec![("X-Auth-Token", self.token.as_str())];
        all.extend_from_slice(headers);
        self.route.call(method, &target, &all, body)
    }

    /// Like [`Account::call`], for a request that must succeed.
    ///
    /// # Errors
    /// The request fails ([`Account::call`]), or its status is not one of 2xx.
    pub fn must(
        &mut self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let response = self.call(method, path, query, headers, body)?;
        if !response.is_success() {
            bail!(
                "{method} {path}{query}: {} {}",
                response.status,
                response.text()
            );
        }
        Ok(response)
    }

    /// The body of a GET, piece by piece, on a connection of its own.
    ///
    /// # Errors
    /// The connection cannot be opened, breaks off or stands still for 60 seconds, the status is
    /// not 200, the answer has no length, or `piece` fails.
    pub fn stream(&mut self, path: &str, mut piece: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut stream = Connection::to(self.address).open()?;
        let target = format!("{}{}", self.path, quote(path));
        let head = format!(
            "GET {target} HTTP/1.1\r\nHost: {}\r\nX-Auth-Token: {}\r\n\r\n",
            self.address, self.token
        );
        stream.get_mut().write_all(head.as_bytes())?;
        let line = read_line(&mut stream)?;
        ensure!(line.contains(" 200 "), "GET {path}: {line}");
        let mut length = None;
        loop {
            let line = read_line(&mut stream)?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse::<u64>()?);
            }
        }
        let mut left = length.context("no length")?;
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            let most = buffer.len().min(left as usize);
            let count = stream.read(&mut buffer[..most])?;
            ensure!(count > 0, "GET {path}: {left} bytes are missing");
            piece(&buffer[..count])?;
            left -= count as u64;
        }
        Ok(())
    }

    /// A whole JSON listing (of the account for `""`, of a container for `/c`), page by page.
    ///
    /// # Errors
    /// A page cannot be had ([`Account::must`]), or is no JSON array.
    pub fn listing(&mut self, path: &str) -> Result<Vec<serde_json::Value>> {
        let mut all: Vec<serde_json::Value> = Vec::new();
        loop {
            let marker = all.last().and_then(|e| e["name"].as_str()).unwrap_or("");
            let query = format!(
                "?format=json&limit=1000&marker={}",
                quote(marker).replace('/', "%2F")
            );
            let page: Vec<serde_json::Value> =
                serde_json::from_slice(&self.must("GET", path, &query, &[], b"")?.body)?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }
}
