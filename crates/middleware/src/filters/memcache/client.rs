//! Client of the memcached servers shared by all proxies of a cluster: JSON values under the MD5 of
//! their keys, each on the server that OpenStack Swift's proxies choose for it.
//!
//! Consistent hashing: every server has fifty points on a circle of MD5 sums; a key belongs to the
//! second point after its own sum, then to the following points of other servers. Values on
//! unreachable servers count as missing.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use cairn_http::client::{Stream, dial};
use cairn_http::tls::ClientTls;
use cairn_types::hex;
use md5::{Digest, Md5};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream};
use tokio::time::{Instant, timeout};
use tracing::warn;

const POINTS: usize = 50;
/// Flag of a value in JSON.
const JSON: &str = "2";
/// Longer expiry times would be interpreted as absolute times.
const RELATIVE_LIFE_MAX_SECONDS: u64 = 30 * 24 * 3600;
/// Maximum bytes of a value, and of a response line.
const VALUE_MAX_BYTES: usize = 1 << 20;
const LINE_MAX_BYTES: u64 = 1024;
/// Time during which a failed server is not used.
const SUSPENSION: Duration = Duration::from_secs(5);

pub(super) struct Timeouts {
    pub(super) connect: Duration,
    pub(super) io: Duration,
}

pub(crate) struct Memcached {
    servers: Vec<Server>,
    /// Index of the server at each point.
    circle: BTreeMap<String, usize>,
    timeouts: Timeouts,
    /// Maximum number of servers tried for one key.
    tries: usize,
    /// Idle connections kept to each server.
    connections: usize,
    tls: Option<ClientTls>,
}

struct Server {
    /// Address, `host:port`.
    address: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<BufStream<Stream>>,
    suspended_until: Option<Instant>,
}

enum Command<'a> {
    Get,
    Set { value: &'a [u8], life: u64 },
    Delete,
}

impl Memcached {
    /// `names` are as configured, possibly without a port.
    pub(super) fn new(
        names: &[String],
        tries: usize,
        connections: usize,
        timeouts: Timeouts,
    ) -> Memcached {
        let mut names = names.to_vec();
        names.sort();
        let mut circle = BTreeMap::new();
        for (index, name) in names.iter().enumerate() {
            for place in 0..POINTS {
                circle.insert(md5_text(&format!("{name}-{place}")), index);
            }
        }
        let servers = names.iter().map(|name| Server {
            address: with_port(name),
            state: Mutex::default(),
        });
        Memcached {
            servers: servers.collect(),
            circle,
            timeouts,
            tries,
            connections,
            tls: None,
        }
    }

    /// Connects to servers by TLS.
    pub(super) fn over_tls(self, tls: Option<ClientTls>) -> Memcached {
        Memcached { tls, ..self }
    }

    pub(crate) async fn get(&self, key: &str) -> Option<Value> {
        let value = self.ask(key, &Command::Get).await??;
        serde_json::from_slice(&value).ok()
    }

    /// Stores a value for `life` seconds from `now`.
    pub(crate) async fn set(&self, key: &str, value: &Value, life: u64, now: u64) {
        let value = value.to_string().into_bytes();
        let life = match life {
            long if long > RELATIVE_LIFE_MAX_SECONDS => now.saturating_add(long),
            life => life,
        };
        let value = &value;
        self.ask(key, &Command::Set { value, life }).await;
    }

    pub(crate) async fn delete(&self, key: &str) {
        self.ask(key, &Command::Delete).await;
    }

    /// Sends a command: `None` if no server responds; otherwise the value, for a command that reads
    /// one.
    async fn ask(&self, key: &str, command: &Command<'_>) -> Option<Option<Vec<u8>>> {
        let key = md5_text(key);
        for server in self.servers_of(&key) {
            let server = &self.servers[server];
            if server.is_suspended() {
                continue;
            }
            match self.ask_one(server, &key, command).await {
                Ok(answer) => return Some(answer),
                Err(error) => {
                    warn!(server = server.address, %error, "memcached does not answer");
                    server.suspend();
                }
            }
        }
        None
    }

    fn servers_of(&self, key: &str) -> Vec<usize> {
        let after = self
            .circle
            .range::<str, _>((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded));
        let mut found = Vec::new();
        for (_, server) in after.chain(&self.circle).skip(1) {
            if !found.contains(server) {
                found.push(*server);
            }
            if found.len() >= self.tries {
                break;
            }
        }
        found
    }

    async fn ask_one(
        &self,
        server: &Server,
        key: &str,
        command: &Command<'_>,
    ) -> io::Result<Option<Vec<u8>>> {
        if let Some(mut idle) = server.idle()
            && let Ok(answer) = self.exchange(&mut idle, key, command).await
        {
            server.put_back(idle, self.connections);
            return Ok(answer);
        }
        let address = &server.address;
        let host = address
            .rsplit_once(':')
            .map_or(&**address, |(host, _)| host);
        let stream = dial(&**address, host, self.tls.as_ref(), self.timeouts.connect).await?;
        let mut stream = BufStream::new(stream);
        let answer = self.exchange(&mut stream, key, command).await?;
        server.put_back(stream, self.connections);
        Ok(answer)
    }

    async fn exchange(
        &self,
        stream: &mut BufStream<Stream>,
        key: &str,
        command: &Command<'_>,
    ) -> io::Result<Option<Vec<u8>>> {
        timeout(self.timeouts.io, exchange(stream, key, command)).await?
    }
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn is_suspended(&self) -> bool {
        let until = self.state().suspended_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Existing connections are dropped too.
    fn suspend(&self) {
        let mut state = self.state();
        state.idle.clear();
        state.suspended_until = Some(Instant::now() + SUSPENSION);
    }

    /// An idle connection that the server has not closed.
    fn idle(&self) -> Option<BufStream<Stream>> {
        let mut state = self.state();
        while let Some(stream) = state.idle.pop() {
            if !stream.get_ref().is_stale() {
                return Some(stream);
            }
        }
        None
    }

    fn put_back(&self, stream: BufStream<Stream>, most: usize) {
        let mut state = self.state();
        if state.idle.len() < most {
            state.idle.push(stream);
        }
    }
}

async fn exchange(
    stream: &mut BufStream<Stream>,
    key: &str,
    command: &Command<'_>,
) -> io::Result<Option<Vec<u8>>> {
    match command {
        Command::Get => {
            stream
                .write_all(format!("get {key}\r\n").as_bytes())
                .await?;
            stream.flush().await?;
            read_value(stream, key).await
        }
        Command::Set { value, life } => {
            let head = format!("set {key} {JSON} {life} {}\r\n", value.len());
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(value).await?;
            stream.write_all(b"\r\n").await?;
            expect(stream, &["STORED"]).await
        }
        Command::Delete => {
            let line = format!("delete {key}\r\n");
            stream.write_all(line.as_bytes()).await?;
            expect(stream, &["DELETED", "NOT_FOUND"]).await
        }
    }
}

async fn expect(stream: &mut BufStream<Stream>, expected: &[&str]) -> io::Result<Option<Vec<u8>>> {
    stream.flush().await?;
    let line = read_line(stream).await?;
    match expected.contains(&line.as_str()) {
        true => Ok(None),
        false => Err(unexpected(&line)),
    }
}

/// Reads `VALUE key flags length`, the value, `END`; or `END` alone. A value that is not JSON is
/// skipped. A value of another key is rejected: it could be another user's token.
async fn read_value(stream: &mut BufStream<Stream>, key: &str) -> io::Result<Option<Vec<u8>>> {
    let mut found = None;
    loop {
        let line = read_line(stream).await?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["END"] => return Ok(found),
            ["VALUE", name, flags, length, ..] if name == key && found.is_none() => {
                let length: usize = length.parse().map_err(|_| unexpected(&line))?;
                if length > VALUE_MAX_BYTES {
                    return Err(unexpected(&line));
                }
                let mut value = vec![0; length + 2];
                stream.read_exact(&mut value).await?;
                value.truncate(length);
                found = (flags == JSON).then_some(value);
            }
            _ => return Err(unexpected(&line)),
        }
    }
}

async fn read_line(
    stream: &mut BufStream<impl AsyncRead + AsyncWrite + Unpin>,
) -> io::Result<String> {
    let mut line = Vec::new();
    stream
        .take(LINE_MAX_BYTES)
        .read_until(b'\n', &mut line)
        .await?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn unexpected(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it says {line:?}"))
}

pub(crate) fn md5_text(text: &str) -> String {
    hex::encode(Md5::digest(text.as_bytes()))
}

fn with_port(name: &str) -> String {
    let has_port = match name.rsplit_once(']') {
        Some((_, rest)) => rest.starts_with(':'),
        None => name.contains(':'),
    };
    match has_port {
        true => name.to_owned(),
        false => format!("{name}:11211"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use cairn_formats::ini::Section;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::client_tls::client_tls;
    use crate::testing::Certificate;

    fn timeouts() -> Timeouts {
        let second = Duration::from_secs(1);
        Timeouts {
            connect: second,
            io: second,
        }
    }

    /// A server's values by the MD5 of their keys.
    type Values = Arc<Mutex<HashMap<String, Vec<u8>>>>;

    /// A fake memcached server with the commands needed here; returns its name.
    pub(crate) async fn fake() -> (String, Values) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = listener.local_addr().unwrap().to_string();
        let values = Values::default();
        let of_server = values.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(BufStream::new(stream), of_server.clone()));
            }
        });
        (name, values)
    }

    async fn serve(mut stream: BufStream<impl AsyncRead + AsyncWrite + Unpin>, values: Values) {
        while let Ok(line) = read_line(&mut stream).await {
            let words: Vec<&str> = line.split(' ').collect();
            let answer = match words[..] {
                ["get", key] => match values.lock().get(key) {
                    Some(value) => {
                        let text = String::from_utf8(value.clone()).unwrap();
                        format!("VALUE {key} 2 {}\r\n{text}\r\nEND\r\n", text.len())
                    }
                    None => "END\r\n".to_owned(),
                },
                ["set", key, "2", _, length] => {
                    let mut value = vec![0; length.parse::<usize>().unwrap() + 2];
                    stream.read_exact(&mut value).await.unwrap();
                    value.truncate(value.len() - 2);
                    values.lock().insert(key.to_owned(), value);
                    "STORED\r\n".to_owned()
                }
                ["delete", key] => match values.lock().remove(key) {
                    Some(_) => "DELETED\r\n".to_owned(),
                    None => "NOT_FOUND\r\n".to_owned(),
                },
                _ => "ERROR\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
    }

    /// The expected servers are output of swift.common.memcached.
    #[test]
    fn keys_are_where_swift_looks_for_them() {
        let names = ["10.0.0.1:11211", "cache-b", "10.0.0.3:11212", "[::1]:11211"];
        let ring = Memcached::new(&names.map(str::to_owned), 3, 2, timeouts());
        for (key, servers) in [
            ("AUTH_/token/AUTH_tk0", [2, 1, 0]),
            ("container/AUTH_a/c", [3, 1, 0]),
            ("a", [3, 1, 2]),
            ("b", [0, 2, 1]),
            ("e", [0, 2, 3]),
            // Just before the circle's end, and after its last point.
            ("k11", [0, 3, 2]),
            ("k51", [3, 2, 0]),
        ] {
            let found = ring.servers_of(&md5_text(key));
            let found: Vec<&str> = found
                .iter()
                .map(|server| ring.servers[*server].address.as_str())
                .collect();
            let expected = servers.map(|server| with_port(names[server]));
            assert_eq!(found, expected, "{key}");
        }
    }

    #[tokio::test]
    async fn values_come_back() {
        let (name, values) = fake().await;
        let memcached = Memcached::new(&[name], 3, 2, timeouts());
        assert_eq!(memcached.get("a").await, None);
        memcached.set("a", &json!([1, "é"]), 60, 0).await;
        assert_eq!(memcached.get("a").await, Some(json!([1, "é"])));
        memcached.delete("a").await;
        memcached.delete("a").await;
        assert_eq!(memcached.get("a").await, None);
        values.lock().insert(md5_text("b"), b"{".to_vec());
        assert_eq!(memcached.get("b").await, None);
    }

    /// A server that responds with another key, or with more than requested, is not trusted.
    #[tokio::test]
    async fn answers_to_other_questions_are_none() {
        let key = md5_text("a");
        let other = md5_text("b");
        for answer in [
            format!("VALUE {other} 2 1\r\n1\r\nEND\r\n"),
            format!("VALUE {key} 2 1\r\n1\r\nVALUE {key} 2 1\r\n2\r\nEND\r\n"),
            format!("VALUE {key} 2 99999999999\r\n"),
            format!("VALUE {key} 2 -1\r\n"),
            format!("{}\r\n", "x".repeat(5000)),
            "\r\n".to_owned(),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let name = listener.local_addr().unwrap().to_string();
            let said = answer.clone();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let mut asked = [0; 512];
                    let _ = stream.read(&mut asked).await;
                    let _ = stream.write_all(said.as_bytes()).await;
                }
            });
            let memcached = Memcached::new(&[name], 3, 2, timeouts());
            assert_eq!(memcached.get("a").await, None, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn values_come_back_over_tls() {
        let certificate = Certificate::of("127.0.0.1");
        let acceptor = certificate.served().acceptor();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let values = Values::default();
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(stream) = acceptor.accept(stream).await {
                    tokio::spawn(serve(BufStream::new(stream), values.clone()));
                }
            }
        });
        let cafile = certificate.cert.to_str().unwrap();
        let section = Section::from_pairs("filter:cache", &[("tls_cafile", cafile)]);
        let tls = client_tls(&section, ["tls_cafile", "tls_certfile", "tls_keyfile"]).unwrap();
        let memcached = Memcached::new(std::slice::from_ref(&name), 3, 2, timeouts());
        let memcached = memcached.over_tls(Some(tls));
        memcached.set("a", &json!(7), 60, 0).await;
        assert_eq!(memcached.get("a").await, Some(json!(7)));
        assert_eq!(memcached.get("a").await, Some(json!(7)));
        // A plain connection does not understand the TLS server.
        let plain = Memcached::new(&[name], 3, 2, timeouts());
        assert_eq!(plain.get("a").await, None);
    }

    #[tokio::test]
    async fn another_server_takes_the_place_of_one_that_is_gone() {
        let (name, _) = fake().await;
        let gone = "127.0.0.1:1".to_owned();
        let memcached = Memcached::new(&[gone, name], 3, 2, timeouts());
        for number in 0..20 {
            let key = format!("k{number}");
            memcached.set(&key, &json!(number), 60, 0).await;
            assert_eq!(memcached.get(&key).await, Some(json!(number)));
        }
        let memcached = Memcached::new(&["127.0.0.1:1".to_owned()], 3, 2, timeouts());
        memcached.set("a", &json!(1), 60, 0).await;
        assert_eq!(memcached.get("a").await, None);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;
