//! Host names that determine the account and container: they give nobody more rights, and lookups
//! of names that clients make up are bounded.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use parking_lot::Mutex;

use super::doors::Doors;
use super::tenants::{self, shows_the_secret};
use super::{Options, Store, all_held};
use cairn_testkit::wire::Connection;

/// Maximum number of CNAMEs that are followed.
pub(super) const DEPTH: usize = 3;
/// Maximum number of concurrent lookups.
const UNDER_WAY: usize = 64;

/// A name server: the CNAME of a name depends on its first label.
pub(super) struct Names {
    pub(super) port: u16,
    /// Number of queries by name.
    asked: Arc<Mutex<HashMap<String, usize>>>,
}

impl Names {
    pub(super) fn start() -> Result<Names> {
        let socket = UdpSocket::bind(("127.0.0.1", 0))?;
        let port = socket.local_addr()?.port();
        let asked: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
        let seen = asked.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                let Some(question) = Question::read(&bytes[..length]) else {
                    continue;
                };
                *seen.lock().entry(question.name.clone()).or_default() += 1;
                question.answer(&socket, from);
            }
        });
        Ok(Names { port, asked })
    }

    /// Number of queried names that end in `end`.
    fn asked(&self, end: &str) -> usize {
        let asked = self.asked.lock();
        let counts = asked.iter().filter(|(name, _)| name.ends_with(end));
        counts.map(|(_, count)| count).sum()
    }
}

struct Question {
    name: String,
    /// The query from the header to the end of the question.
    bytes: Vec<u8>,
}

impl Question {
    fn read(bytes: &[u8]) -> Option<Question> {
        let (mut labels, mut at) = (Vec::new(), 12);
        loop {
            let length = usize::from(*bytes.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(bytes.get(at..at + length)?).to_lowercase());
            at += length;
        }
        let bytes = bytes.get(..at + 4)?.to_vec();
        let name = labels.join(".");
        Some(Question { name, bytes })
    }

    /// An answer to this query with one CNAME record.
    fn packet(&self, to: &str) -> Vec<u8> {
        let mut packet = self.bytes.clone();
        // Header: response, recursion desired and available; one question, one answer.
        packet[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        let name = encoded(to);
        // Record: a pointer to the question's name, type CNAME, class IN, TTL 0.
        packet.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 0]);
        packet.extend((name.len() as u16).to_be_bytes());
        packet.extend(name);
        packet
    }

    /// An NXDOMAIN answer.
    fn nothing(&self) -> Vec<u8> {
        let mut packet = self.bytes.clone();
        packet[2..12].copy_from_slice(&[0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0]);
        packet
    }

    fn answer(&self, socket: &UdpSocket, to: SocketAddr) {
        let first = self.name.split('.').next().unwrap_or_default();
        let mut packet = self.packet("private.auth-test.example.com");
        match first.split_once('-').unwrap_or((first, "")) {
            ("victim", _) => (),
            // Forged answers: with another ID, with another name, or a query instead of an answer.
            ("id", _) => packet[1] ^= 1,
            ("other", _) => packet[13] = b'x',
            ("query", _) => packet[2] &= 0x7f,
            ("ping", _) => packet = self.packet("pong.circle.test"),
            ("pong", _) => packet = self.packet("ping.circle.test"),
            ("step", number) => {
                let next = number.parse::<u32>().unwrap_or(0) + 1;
                packet = self.packet(&format!("step-{next}.chain.test"));
            }
            ("made", _) => return,
            _ => packet = self.nothing(),
        }
        // The client may have gone.
        let _ = socket.send_to(&packet, to);
    }
}

fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// Status, and whether the secret is in the body, for a host and a token.
fn get(port: u16, host: &str, path: &str, token: Option<&str>) -> Result<(u16, bool)> {
    let mut headers = vec![("Host", host)];
    headers.extend(token.map(|token| ("X-Auth-Token", token)));
    let answer = Connection::new(port).call("GET", path, &headers, b"")?;
    Ok((answer.status, shows_the_secret(&answer.body)))
}

/// `domain_remap`: a host name is another way to write a path, and gives no right to it.
pub(super) fn remapped(store: &Store, _: &Options) -> Result<String> {
    let port = store.doors.hosts;
    let owner = tenants::owner(store)?;
    let stranger = tenants::stranger(store)?;
    let mut broken = Vec::new();
    for (host, path) in [
        ("private.AUTH-test.example.com", "/secret"),
        ("AUTH_test.example.com", "/private/secret"),
    ] {
        let (status, shown) = get(port, host, path, Some(&owner.token))?;
        ensure!(
            shown,
            "{host}{path} is not remapped for its owner: {status}"
        );
    }
    let hosts = [
        ("private.AUTH-test.example.com", "/secret"),
        ("PRIVATE.auth-test.example.com", "/secret"),
        ("private.auth_test.example.com:80", "/secret"),
        ("private.AUTH_test.example.com.", "/secret"),
        ("AUTH_test.example.com", "/private/secret"),
        ("AUTH_test2.example.com", "/../AUTH_test/private/secret"),
        ("AUTH_test2.example.com", "/%2e%2e/AUTH_test/private/secret"),
        ("AUTH_test2.example.com", "//v1/AUTH_test/private/secret"),
        ("AUTH_test2.example.com", "/v1/AUTH_test/private/secret"),
        (
            "mine.AUTH_test2.example.com",
            "/../../AUTH_test/private/secret",
        ),
        ("AUTH_test2/../AUTH_test.example.com", "/private/secret"),
        ("AUTH_test2%2f..%2fAUTH_test.example.com", "/private/secret"),
        ("AUTH_test/private.example.com", "/secret"),
        ("AUTH_test%2fprivate.example.com", "/secret"),
        (
            "x.AUTH_test2.example.com",
            "/%2e%2e%2f%2e%2e%2fAUTH_test%2fprivate%2fsecret",
        ),
        ("AUTH_test2?.example.com", "/private/secret"),
        ("AUTH_test2#.AUTH_test.example.com", "/private/secret"),
        ("user@AUTH_test.example.com", "/private/secret"),
    ];
    for (host, path) in hosts {
        for token in [Some(&*stranger.token), None] {
            // A closed connection counts as a refusal.
            let Ok((status, shown)) = get(port, host, path, token) else {
                continue;
            };
            if shown {
                broken.push(format!("{host}{path} shows the secret ({status})"));
            }
        }
    }
    all_held(broken, format!("{} hosts tried", hosts.len()))
}

/// `cname_lookup`: a CNAME, which anybody may set, gives no right; loops and long chains end,
/// forged answers are ignored, and the number of concurrent lookups is bounded however many hosts
/// are made up.
pub(super) fn looked_up(store: &Store, _: &Options) -> Result<String> {
    let doors = &store.doors;
    let port = doors.hosts;
    let owner = tenants::owner(store)?;
    let stranger = tenants::stranger(store)?;
    let (status, shown) = get(port, "victim.test", "/secret", Some(&owner.token))?;
    ensure!(shown, "a CNAME is not followed for the owner: {status}");
    let mut broken = Vec::new();
    for token in [Some(&*stranger.token), None] {
        let (status, shown) = get(port, "victim.test", "/secret", token)?;
        if shown {
            broken.push(format!("a CNAME shows a stranger the secret ({status})"));
        }
    }
    for (host, end) in [
        ("ping.circle.test", ".circle.test"),
        ("step-1.chain.test", ".chain.test"),
    ] {
        let (start, before) = (Instant::now(), doors.names.asked(end));
        let (status, _) = get(port, host, "/secret", Some(&owner.token))?;
        let asked = doors.names.asked(end) - before;
        if status != 400 || asked > DEPTH || start.elapsed() > Duration::from_secs(5) {
            broken.push(format!("{host}: {status} after {asked} questions"));
        }
    }
    let forged: Vec<_> = ["id.test", "other.test", "query.test"]
        .map(|host| {
            let token = owner.token.clone();
            (
                host,
                std::thread::spawn(move || get(port, host, "/secret", Some(&token))),
            )
        })
        .into();
    for (host, answer) in forged {
        // A closed connection or a timeout counts as a refusal.
        if let Ok(Ok((status, true))) = answer.join() {
            broken.push(format!(
                "the forged answer to {host} is believed ({status})"
            ));
        }
    }
    let most = flood(doors, &owner.token, &mut broken)?;
    all_held(broken, format!("{most} of {FLOOD} questions under way"))
}

const FLOOD: usize = 200;

/// Requests for made-up hosts, about which no name server answers; returns the number of concurrent
/// lookups.
fn flood(doors: &Doors, token: &str, broken: &mut Vec<String>) -> Result<usize> {
    let end = ".flood.test";
    let mut sockets = Vec::new();
    for number in 0..FLOOD {
        let mut socket = TcpStream::connect(("127.0.0.1", doors.hosts))?;
        let head = format!("GET /secret HTTP/1.1\r\nHost: made-up-{number}{end}\r\n\r\n");
        socket.write_all(head.as_bytes())?;
        sockets.push(socket);
    }
    std::thread::sleep(Duration::from_millis(700));
    let most = doors.names.asked(end);
    ensure!(most > 0, "nothing is asked at all");
    if most > UNDER_WAY {
        broken.push(format!("{most} questions are under way at once"));
    }
    let start = Instant::now();
    let (status, shown) = get(
        doors.hosts,
        "private.AUTH-test.example.com",
        "/secret",
        Some(token),
    )?;
    let waited = start.elapsed().as_secs_f64();
    if !shown || waited > 2.0 {
        broken.push(format!(
            "others beside made-up hosts: {status} after {waited:.1} s"
        ));
    }
    Ok(most)
}
