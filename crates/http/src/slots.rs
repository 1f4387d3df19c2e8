//! The connections of a listener: a bounded number of places, and who gives up his when all are
//! taken.
//!
//! A listener always accepts, so that nobody waits behind others in the kernel's queue. A connection
//! that finds all places taken gets that of one whose client is waited for too long: one that sends
//! no request, or reads its answer or sends its body at a trickle; of the address that has most of
//! those, the slowest. While there is room nobody is closed for that. Where all places are used in
//! earnest the new connection is *waiting*: its health checks are answered, other requests get a
//! place when one is free, or 503. Those waiting are bounded, too: of the address that has most of
//! those, the longest waiting leaves first.
//!
//! Places are shared by address, and what a connection may have in flight is bounded: no address
//! keeps others out. A place that is free goes to the request whose address has the fewest; where
//! none is, the address with the most gives up one after the other, each with the answer that it is
//! on, until it has as many as the one that waits.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tracing::warn;

use crate::progress::{Progress, Waiting};

/// Without a request for this long, a connection may have to give up its place.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// The same for one whose client was waited for this long for the last few KiB.
const STALLED_MIN: Duration = Duration::from_secs(4);
/// So many give up their places at once: finding them means looking at all.
const AT_ONCE: usize = 16;
/// A request waits this long for a place.
const PATIENCE: Duration = Duration::from_secs(10);
/// A request that waits looks so often for connections that stall, and takes a place from an address
/// that has more of them.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Time between two looks at all connections that find none to close: each waiting request looks.
const LOOK_GAP: Duration = Duration::from_millis(10);
/// Time between lines in the log.
const WARNING_GAP: Duration = Duration::from_secs(60);

/// The connections of one listener.
pub(crate) struct Places {
    server: &'static str,
    seats: usize,
    waiting_max: usize,
    table: Mutex<Table>,
    /// Connections closed to make room, for the metrics.
    closed: Counter,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By age. Those that were told to give up their places are in neither.
    seated: BTreeMap<u64, Arc<Occupant>>,
    waiting: BTreeMap<u64, Arc<Occupant>>,
    /// Places of each address but for those whose connections are to end.
    held: HashMap<IpAddr, usize>,
    /// Places whose connections are to end with their answers.
    ending: usize,
    /// A look at all connections found none to close.
    looked: Option<Instant>,
    warned: Option<Instant>,
}

struct Occupant {
    address: Mutex<IpAddr>,
    progress: Arc<Progress>,
    /// To end, with what is under way.
    closes: Notify,
    /// To end when what is under way has ended.
    ends: Notify,
    is_seated: AtomicBool,
    is_ending: AtomicBool,
    /// A request waits for a place.
    is_asking: AtomicBool,
    /// It has a place, or was turned away.
    decided: Notify,
}

/// Of a connection; its place is free when this is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    occupant: Arc<Occupant>,
}

impl Places {
    /// `seats`: how many connections are served at once.
    pub(crate) fn new(server: &'static str, seats: usize, closed: Counter) -> Arc<Places> {
        Arc::new(Places {
            server,
            seats: seats.max(1),
            waiting_max: (seats / 8).clamp(16, 1024),
            table: Mutex::default(),
            closed,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// A new connection, with a place or waiting for one.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, progress: Arc<Progress>) -> Place {
        let occupant = Arc::new(Occupant {
            address: Mutex::new(group(address)),
            progress,
            closes: Notify::new(),
            ends: Notify::new(),
            is_seated: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_asking: AtomicBool::new(false),
            decided: Notify::new(),
        });
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        self.find_room(&mut table);
        if table.seated.len() < self.seats {
            table.seat(id, occupant.clone());
        } else {
            if table.waiting.len() >= self.waiting_max {
                self.send_away(&mut table);
            }
            table.waiting.insert(id, occupant.clone());
        }
        Place {
            places: self.clone(),
            id,
            occupant,
        }
    }

    /// Closes connections that are waited for, where all places are taken, and gives places to the
    /// requests that wait for one.
    fn find_room(&self, table: &mut Table) {
        let was_looked_at = table.looked.is_some_and(|at| at.elapsed() < LOOK_GAP);
        if table.seated.len() >= self.seats && !was_looked_at {
            self.make_room(table);
        }
        self.hand_out(table);
    }

    /// Gives what is free to requests that wait: of the address with the fewest places, the longest
    /// waiting.
    fn hand_out(&self, table: &mut Table) {
        while table.seated.len() < self.seats {
            let asking = table.waiting.iter().filter(|(_, one)| one.is_asking());
            let next = asking.min_by_key(|(id, one)| (table.held_by(one.address()), **id));
            let Some(id) = next.map(|(id, _)| *id) else {
                return;
            };
            if let Some(one) = table.waiting.remove(&id) {
                table.seat(id, one.clone());
                one.decided.notify_one();
            }
        }
    }

    /// A connection of the address with the most places is to end with its answer, where that has
    /// more than `address` with those that are about to be free.
    fn end_one(&self, table: &mut Table, address: IpAddr) {
        let most = table.held.iter().max_by_key(|(_, held)| **held);
        let Some((&most, &held)) = most else { return };
        if held <= table.held_by(address) + table.ending + 1 {
            return;
        }
        let one = table.seated.values().find(|one| {
            // One that sends or reads as fast as its network goes, too.
            one.progress.has_request() && !one.is_ending() && one.address() == most
        });
        if let Some(one) = one.cloned() {
            self.closed.inc();
            table.end(&one);
        }
    }

    /// One that waits leaves, of the address that most of them come from: rather one that has not
    /// asked for anything, then the longest waiting.
    fn send_away(&self, table: &mut Table) {
        let mut by_address: HashMap<IpAddr, usize> = HashMap::new();
        for one in table.waiting.values() {
            *by_address.entry(one.address()).or_default() += 1;
        }
        let first = table.waiting.iter().min_by_key(|(id, one)| {
            let many = by_address.get(&one.address());
            (std::cmp::Reverse(many), one.is_asking(), **id)
        });
        let Some(id) = first.map(|(id, _)| *id) else {
            return;
        };
        if let Some(one) = table.waiting.remove(&id) {
            self.closed.inc();
            match one.is_asking() {
                true => one.decided.notify_one(),
                false => one.closes.notify_one(),
            }
        }
    }

    /// Out of descriptors, say: one connection less is one more.
    pub(crate) fn close_slowest(&self) {
        self.make_room(&mut self.lock());
    }

    fn make_room(&self, table: &mut Table) {
        let slow = table.seated.iter().filter_map(|(id, one)| {
            let slowness = slowness(one.progress.waiting())?;
            Some((*id, slowness, one.address()))
        });
        let mut by_address: HashMap<IpAddr, Vec<(u64, Duration)>> = HashMap::new();
        for (id, slowness, address) in slow {
            by_address.entry(address).or_default().push((id, slowness));
        }
        let most = by_address.into_values().max_by_key(Vec::len);
        let Some(mut closing) = most else {
            table.looked = Some(Instant::now());
            return;
        };
        closing.sort_unstable_by_key(|(_, slowness)| std::cmp::Reverse(*slowness));
        closing.truncate(AT_ONCE.min(self.seats.div_ceil(8)));
        for (id, _) in &closing {
            if let Some(one) = table.unseat(*id) {
                self.closed.inc();
                one.closes.notify_one();
            }
        }
        if table.warned.is_none_or(|at| at.elapsed() >= WARNING_GAP) {
            table.warned = Some(Instant::now());
            warn!(
                server = self.server,
                max_clients = self.seats,
                "all places for clients are taken: connections that send no request, or take their \
                 answers too slowly, are closed"
            );
        }
    }
}

impl Table {
    fn seat(&mut self, id: u64, one: Arc<Occupant>) {
        one.is_seated.store(true, Ordering::Relaxed);
        *self.held.entry(one.address()).or_default() += 1;
        self.seated.insert(id, one);
    }

    fn unseat(&mut self, id: u64) -> Option<Arc<Occupant>> {
        let one = self.seated.remove(&id)?;
        match one.is_ending() {
            true => self.ending -= 1,
            false => self.no_longer_held(one.address()),
        }
        Some(one)
    }

    fn end(&mut self, one: &Occupant) {
        one.is_ending.store(true, Ordering::Relaxed);
        self.ending += 1;
        self.no_longer_held(one.address());
        one.ends.notify_one();
    }

    fn held_by(&self, address: IpAddr) -> usize {
        self.held.get(&address).copied().unwrap_or(0)
    }

    fn no_longer_held(&mut self, address: IpAddr) {
        if let Some(held) = self.held.get_mut(&address) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&address);
            }
        }
    }
}

impl Occupant {
    fn is_asking(&self) -> bool {
        self.is_asking.load(Ordering::Relaxed)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    fn address(&self) -> IpAddr {
        *self.address.lock()
    }
}

impl Place {
    /// Who the client is, where a proxy in front of us tells it.
    pub(crate) fn set_address(&self, address: IpAddr) {
        let address = group(address);
        if self.occupant.address() == address {
            return;
        }
        let mut table = self.places.lock();
        let is_held = table.seated.contains_key(&self.id) && !self.occupant.is_ending();
        if is_held {
            table.no_longer_held(self.occupant.address());
            *table.held.entry(address).or_default() += 1;
        }
        *self.occupant.address.lock() = address;
    }

    /// Comes back when the connection is to end at once.
    pub(crate) async fn closes(&self) {
        self.occupant.closes.notified().await;
    }

    /// Comes back when the connection is to end with the answer that is under way.
    pub(crate) async fn ends(&self) {
        self.occupant.ends.notified().await;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.occupant.is_seated.load(Ordering::Relaxed)
    }

    /// For a request of a connection that waits: whether it has a place now.
    pub(crate) async fn get(&self) -> bool {
        self.occupant.is_asking.store(true, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let has_place = loop {
            match self.try_get() {
                Some(has_place) => break has_place,
                None if tokio::time::Instant::now() >= deadline => break false,
                None => {}
            }
            tokio::select! {
                () = self.occupant.decided.notified() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        };
        self.occupant.is_asking.store(false, Ordering::Relaxed);
        has_place
    }

    /// `None`: not yet.
    fn try_get(&self) -> Option<bool> {
        let mut table = self.places.lock();
        if !table.waiting.contains_key(&self.id) {
            // Sent away, or has one.
            return Some(table.seated.contains_key(&self.id));
        }
        self.places.find_room(&mut table);
        if table.seated.contains_key(&self.id) {
            return Some(true);
        }
        self.places.end_one(&mut table, self.occupant.address());
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.places.lock();
        table.waiting.remove(&self.id);
        if table.unseat(self.id).is_some() {
            self.places.hand_out(&mut table);
        }
    }
}

/// How much rather than others a connection is to give up its place; `None`: not at all.
fn slowness(waiting: Waiting) -> Option<Duration> {
    match waiting {
        Waiting::No => None,
        Waiting::Idle(time) => (time >= IDLE_MIN).then_some(time),
        Waiting::Stalled(time) => (time >= STALLED_MIN).then_some(time),
    }
}

/// Who shares: an address, of IPv6 the network that one customer gets.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests;
