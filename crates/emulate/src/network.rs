//! An emulated network: each host is a network namespace with a TUN device, and a router in this
//! process forwards packets when they are due: after transmission on the sender's link, half a
//! round trip, and transmission on the receiver's link. This process's own namespace is a host too
//! (`outside`), for clients.
//!
//! Addresses are in a /24 of 198.18.0.0/15, which is reserved for benchmarks (RFC 2544): `.1` is
//! outside, hosts begin at `.10`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use tappers::{Interface, Tun};
use thiserror::Error;

use crate::host::{self, ProgramError};
use crate::lateness::{Lateness, wait_until};
use crate::names;

/// Specification of a host, with its link in this host's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostSpec {
    pub name: String,
    /// Row and column in the matrix of round-trip times.
    pub site: usize,
    /// Link rate in each direction; `None`: unlimited.
    pub mb_per_s: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkSpec {
    pub hosts: Vec<HostSpec>,
    /// Site of the clients outside.
    pub outside_site: usize,
    /// Round-trip times between and within sites.
    pub rtt_us: Vec<Vec<f64>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkCounts {
    pub packets: u64,
    pub bytes: u64,
    /// Number of packets dropped by full links.
    pub dropped: u64,
    pub lateness: Lateness,
}

#[derive(Debug, Error)]
pub enum NetworkError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("device {name}: {source}")]
    Device { name: String, source: io::Error },
    #[error("{0} hosts are more than an emulated network has addresses for (200)")]
    TooMany(usize),
    #[error("all of 198.18.0.0/16 is in use here")]
    NoSubnet,
    #[error("host {name}: no round-trip times for site {site}")]
    Site { name: String, site: usize },
}

/// Maximum packet size in bytes: large, for few packets.
const MTU: usize = 9000;
const FIRST_ADDRESS: u8 = 10;
const HOSTS_MAX: usize = 200;
/// Maximum queue of a link in bytes; further packets are dropped.
const QUEUE_BYTES_MAX: f64 = 4e6;
/// Maximum number of packets in transit, which bounds the queue of a link without a rate.
const PACKETS_MAX: usize = 16_384;

struct Line {
    tun: Arc<Tun>,
    site: usize,
    ns_per_byte: f64,
}

struct Packet {
    to: usize,
    asked: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    /// Times until which each link is busy sending, and receiving.
    sends_until: Vec<f64>,
    receives_until: Vec<f64>,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    packets: BTreeMap<u64, Packet>,
    next: u64,
    counts: NetworkCounts,
}

struct Router {
    lines: Vec<Line>,
    one_way_ns: Vec<Vec<f64>>,
    origin: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

/// Hosts and router; the namespaces are removed when it is dropped, the threads end with the
/// process.
pub struct Network {
    namespaces: Vec<String>,
    hosts: BTreeMap<String, (String, String)>,
    outside: String,
    router: Arc<Router>,
}

impl Network {
    /// Creates the hosts' namespaces and links, and starts the router.
    ///
    /// # Errors
    /// `TooMany` or `Site` for an invalid specification, `NoSubnet` if no addresses are free,
    /// `Device` or `Program` if a link cannot be created or configured.
    pub fn create(spec: &NetworkSpec) -> Result<Network, NetworkError> {
        if spec.hosts.len() > HOSTS_MAX {
            return Err(NetworkError::TooMany(spec.hosts.len()));
        }
        let sites = spec.rtt_us.len();
        let is_square = spec.rtt_us.iter().all(|row| row.len() == sites);
        let mut places = spec.hosts.iter().map(|h| (h.name.as_str(), h.site));
        let mut all = places.by_ref().chain([("outside", spec.outside_site)]);
        if let Some((name, site)) = all.find(|(_, site)| *site >= sites || !is_square) {
            let name = name.to_owned();
            return Err(NetworkError::Site { name, site });
        }
        let subnet = free_subnet()?;
        let mut network = Network {
            namespaces: Vec::new(),
            hosts: BTreeMap::new(),
            outside: format!("198.18.{subnet}.1"),
            router: Arc::new(Router::new(&spec.rtt_us)),
        };
        let mut lines = vec![network.line_outside(subnet, spec.outside_site)?];
        for (number, host) in (FIRST_ADDRESS..).zip(&spec.hosts) {
            lines.push(network.line_of(host, subnet, number)?);
        }
        let router = Router {
            lines,
            ..Router::new(&spec.rtt_us)
        };
        network.router = Arc::new(router);
        Router::start(&network.router);
        Ok(network)
    }

    /// Namespace and address of each host, by name.
    pub fn hosts(&self) -> BTreeMap<String, (String, String)> {
        self.hosts.clone()
    }

    pub fn outside(&self) -> String {
        self.outside.clone()
    }

    pub fn counts(&self) -> NetworkCounts {
        self.router.state.lock().counts
    }

    fn line_outside(&self, subnet: u8, site: usize) -> Result<Line, NetworkError> {
        let device = format!("ce{}o", std::process::id());
        let tun = open(&device)?;
        configure(&[], &device, &format!("198.18.{subnet}.1/24"))?;
        Ok(Line {
            tun: Arc::new(tun),
            site,
            ns_per_byte: 0.0,
        })
    }

    fn line_of(&mut self, host: &HostSpec, subnet: u8, number: u8) -> Result<Line, NetworkError> {
        let namespace = format!("{}-{}", names::tag(), host.name);
        host::run("ip", &["netns", "add", &namespace])?;
        self.namespaces.push(namespace.clone());
        let device = format!("ce{}n{number}", std::process::id());
        let tun = open(&device)?;
        host::run("ip", &["link", "set", &device, "netns", &namespace])?;
        let address = format!("198.18.{subnet}.{number}");
        let within = ["-n", namespace.as_str()];
        host::run("ip", &["-n", &namespace, "link", "set", "lo", "up"])?;
        configure(&within, &device, &format!("{address}/24"))?;
        self.hosts.insert(host.name.clone(), (namespace, address));
        let rate = host.mb_per_s.filter(|rate| *rate > 0.0);
        Ok(Line {
            tun: Arc::new(tun),
            site: host.site,
            ns_per_byte: rate.map_or(0.0, |rate| 1e3 / rate),
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            remove(namespace);
        }
    }
}

fn open(device: &str) -> Result<Tun, NetworkError> {
    let made = Interface::new(device).and_then(Tun::new_named);
    made.map_err(|source| NetworkError::Device {
        name: device.to_owned(),
        source,
    })
}

fn configure(within: &[&str], device: &str, address: &str) -> Result<(), ProgramError> {
    let ip = |rest: &[&str]| host::run("ip", &[within, rest].concat());
    ip(&["addr", "add", address, "dev", device])?;
    ip(&[
        "link",
        "set",
        device,
        "mtu",
        &MTU.to_string(),
        "txqueuelen",
        "1000",
        "up",
    ])?;
    Ok(())
}

fn remove(namespace: &str) {
    let pids = host::run("ip", &["netns", "pids", namespace]).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.trim().parse().ok()) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let _ = host::run("ip", &["netns", "del", namespace]);
}

/// Removes namespaces of emulators that have ended.
pub(crate) fn sweep() {
    let list = host::run("ip", &["netns", "list"]).unwrap_or_default();
    let names = list.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| names::is_dead(name)).for_each(remove);
}

/// A third address byte for which there is no route.
fn free_subnet() -> Result<u8, NetworkError> {
    let routes = host::run("ip", &["route", "show"])?;
    let first = std::process::id();
    (0..=255)
        .map(|number| ((first + number) % 256) as u8)
        .find(|subnet| !routes.contains(&format!("198.18.{subnet}.")))
        .ok_or(NetworkError::NoSubnet)
}

/// The destination link of a packet, by the address's last byte; 0 is outside.
fn destination(packet: &[u8], lines: usize) -> Option<usize> {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let last = *packet.get(19).filter(|_| is_v4)?;
    let line = match last {
        1 => 0,
        _ => usize::from(last.checked_sub(FIRST_ADDRESS)?) + 1,
    };
    (line < lines).then_some(line)
}

impl Router {
    fn new(rtt_us: &[Vec<f64>]) -> Router {
        let one_way = |row: &Vec<f64>| row.iter().map(|us| us * 500.0).collect();
        Router {
            lines: Vec::new(),
            one_way_ns: rtt_us.iter().map(one_way).collect(),
            origin: Instant::now(),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        }
    }

    fn start(router: &Arc<Router>) {
        let lines = router.lines.len();
        {
            let mut state = router.state.lock();
            state.sends_until = vec![0.0; lines];
            state.receives_until = vec![0.0; lines];
        }
        for from in 0..lines {
            let router = router.clone();
            std::thread::spawn(move || router.receive(from));
        }
        let router = router.clone();
        std::thread::spawn(move || router.send());
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Receives packets of one host until its namespace is gone.
    fn receive(&self, from: usize) {
        let mut buffer = vec![0; MTU + 64];
        while let Ok(bytes) = self.lines[from].tun.recv(&mut buffer) {
            let packet = &buffer[..bytes];
            if let Some(to) = destination(packet, self.lines.len()) {
                self.take(from, to, packet);
            }
        }
    }

    fn take(&self, from: usize, to: usize, packet: &[u8]) {
        let asked = self.now();
        let (sender, receiver) = (&self.lines[from], &self.lines[to]);
        let delay = self.one_way_ns[sender.site][receiver.site];
        let bytes = packet.len() as f64;
        let mut state = self.state.lock();
        let waits = (state.sends_until[from] - asked as f64).max(0.0);
        let is_full = sender.ns_per_byte > 0.0 && waits > QUEUE_BYTES_MAX * sender.ns_per_byte;
        if is_full || state.packets.len() >= PACKETS_MAX {
            state.counts.dropped += 1;
            return;
        }
        let sent = asked as f64 + waits + bytes * sender.ns_per_byte;
        state.sends_until[from] = sent;
        // The receiver's link transmits a packet while it arrives; only packets from other senders
        // delay it.
        let arrives = (sent + delay).max(state.receives_until[to] + bytes * receiver.ns_per_byte);
        state.receives_until[to] = arrives;
        let id = state.next;
        state.next += 1;
        state.due.push(Reverse((arrives as u64, id)));
        let bytes = packet.to_vec();
        state.packets.insert(id, Packet { to, asked, bytes });
        drop(state);
        self.changed.notify_one();
    }

    fn send(&self) {
        let mut state = self.state.lock();
        loop {
            let now = self.now();
            match state.due.peek().copied() {
                Some(Reverse((due, id))) if due <= now => {
                    state.due.pop();
                    let Some(packet) = state.packets.remove(&id) else {
                        continue;
                    };
                    let counts = &mut state.counts;
                    counts.packets += 1;
                    counts.bytes += packet.bytes.len() as u64;
                    counts.lateness.record(packet.asked, due, now);
                    parking_lot::MutexGuard::unlocked(&mut state, || {
                        // A host that is gone receives nothing.
                        let _ = self.lines[packet.to].tun.send(&packet.bytes);
                    });
                }
                Some(Reverse((due, _))) => {
                    let until = self.origin + Duration::from_nanos(due);
                    wait_until(&self.changed, &mut state, until);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_go_by_their_destination() {
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[19] = 11;
        assert_eq!(destination(&packet, 3), Some(2));
        assert_eq!(destination(&packet, 2), None);
        packet[19] = 1;
        assert_eq!(destination(&packet, 1), Some(0));
        packet[19] = 5;
        assert_eq!(destination(&packet, 3), None);
        packet[0] = 0x60;
        assert_eq!(destination(&packet, 3), None);
    }

    proptest::proptest! {
        #[test]
        fn no_packet_is_too_odd(packet in proptest::collection::vec(0u8.., 0..60), lines in 0usize..9) {
            let to = destination(&packet, lines);
            proptest::prop_assert!(to.is_none_or(|to| to < lines));
        }
    }
}
