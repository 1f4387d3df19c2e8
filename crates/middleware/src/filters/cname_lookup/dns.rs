//! DNS client for CNAME queries: one datagram each way, a timeout, and a bounded cache of answers
//! for as long as their TTL. The codec is `simple-dns`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use cairn_http::Clock;
use cairn_types::Timestamp;
use parking_lot::Mutex;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use crate::Random;

const TIMEOUT: Duration = Duration::from_secs(2);
const SERVERS_MAX: usize = 3;
/// Maximum number of cached names.
const NAMES_MAX: usize = 10_000;
/// Maximum concurrent queries. Host names come from clients, and each query holds a socket; further
/// queries wait, no longer than for an answer.
const CONCURRENT_QUERIES_MAX: usize = 64;
/// Time in seconds for which the absence of a CNAME is cached.
const NEGATIVE_TTL_SECONDS: u32 = 60;
const TTL_MAX_SECONDS: u32 = 86_400;

pub(super) struct Resolver {
    servers: Vec<SocketAddr>,
    clock: Clock,
    random: Random,
    /// The answer for each name, and its expiry.
    known: Mutex<HashMap<String, (Option<String>, Timestamp)>>,
    under_way: Semaphore,
}

/// A server's answer, with its TTL in seconds.
struct Answer {
    cname: Option<String>,
    ttl: u32,
}

impl Resolver {
    pub(super) fn new(mut servers: Vec<SocketAddr>, clock: Clock, random: Random) -> Self {
        servers.truncate(SERVERS_MAX);
        Resolver {
            servers,
            clock,
            random,
            known: Mutex::default(),
            under_way: Semaphore::new(CONCURRENT_QUERIES_MAX),
        }
    }

    /// The name's CNAME; `None` if it has none, or no server answers.
    pub(super) async fn cname(&self, name: &str) -> Option<String> {
        let now = self.clock.now();
        let known = self.known.lock().get(name).cloned();
        if let Some((cname, _)) = known.filter(|(_, until)| *until > now) {
            return cname;
        }
        for server in &self.servers {
            match self.ask(*server, name).await {
                Ok(Some(answer)) => {
                    self.remember(name, &answer, now);
                    return answer.cname;
                }
                Ok(None) => debug!(%server, name, "a name server refused to answer"),
                Err(error) => warn!(%server, name, %error, "a name server did not answer"),
            }
        }
        None
    }

    fn remember(&self, name: &str, answer: &Answer, now: Timestamp) {
        let ttl = answer.ttl.min(TTL_MAX_SECONDS);
        let until = Timestamp::from_secs(now.secs() + u64::from(ttl));
        let mut known = self.known.lock();
        if known.len() >= NAMES_MAX {
            known.retain(|_, (_, until)| *until > now);
            if known.len() >= NAMES_MAX {
                known.clear();
            }
        }
        known.insert(name.to_owned(), (answer.cname.clone(), until));
    }

    async fn ask(&self, server: SocketAddr, name: &str) -> std::io::Result<Option<Answer>> {
        let id = u16::from_be_bytes(self.random.bytes());
        let Some(question) = question(id, name) else {
            // The name cannot be queried.
            return Ok(Some(none()));
        };
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let exchange = async {
            // The semaphore is never closed, so this cannot fail.
            let _turn = self.under_way.acquire().await;
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(server).await?;
            socket.send(&question).await?;
            let mut bytes = [0; 4096];
            loop {
                let length = socket.recv(&mut bytes).await?;
                // Datagrams that do not answer this query are ignored.
                if let Some(answer) = read(&bytes[..length], id, name) {
                    return Ok(answer);
                }
            }
        };
        match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }
}

fn none() -> Answer {
    Answer {
        cname: None,
        ttl: NEGATIVE_TTL_SECONDS,
    }
}

fn question(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).ok()?;
    let question = Question::new(name, TYPE::CNAME.into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    packet.build_bytes_vec().ok()
}

/// `None`: not an answer to the query. `Some(None)`: the server failed.
fn read(bytes: &[u8], id: u16, name: &str) -> Option<Option<Answer>> {
    let packet = Packet::parse(bytes).ok()?;
    let asked = packet.questions.first()?.qname.to_string();
    let is_ours = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && asked.eq_ignore_ascii_case(name.trim_end_matches('.'));
    if !is_ours {
        return None;
    }
    Some(match packet.rcode() {
        RCODE::NoError => {
            let cname = packet
                .answers
                .iter()
                .find_map(|record| match &record.rdata {
                    RData::CNAME(cname) => Some((cname.0.to_string(), record.ttl)),
                    _ => None,
                });
            Some(cname.map_or_else(none, |(cname, ttl)| Answer {
                cname: Some(cname),
                ttl,
            }))
        }
        RCODE::NameError => Some(none()),
        _ => None,
    })
}

/// Parses an address with an optional port.
pub(super) fn address(text: &str) -> Option<SocketAddr> {
    let bare = || {
        text.trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
    };
    text.parse()
        .ok()
        .or_else(|| Some((bare().ok()?, 53).into()))
}

/// The servers in `/etc/resolv.conf`, or the one on this host.
pub(super) fn system_servers() -> Vec<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let mut servers: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("nameserver")?
                .trim()
                .parse::<IpAddr>()
                .ok()
        })
        .map(|ip| (ip, 53).into())
        .collect();
    if servers.is_empty() {
        servers.push((Ipv4Addr::LOCALHOST, 53).into());
    }
    servers
}
