//! The connections of a listener: a bounded number of places, and who gives up his when all are
//! taken.
//!
//! A listener always accepts, so that nobody waits behind others in the kernel's queue. A connection
//! that finds all places taken gets that of one whose client is waited for too long: one that sends
//! no request, or reads its answer or sends its body at a trickle; of the address that has most of
//! those, the slowest. While there is room nobody is closed for that. Where all places are used in
//! earnest the new connection is *waiting*: its health checks are answered, other requests get a
//! place when one is free, or 503. Those waiting are bounded, too: the longest waiting leaves first.

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
/// A connection that stalls longer gives up its place within this time after somebody waits for it.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Time between lines in the log.
const WARNING_GAP: Duration = Duration::from_secs(60);

/// The connections of one listener.
pub(crate) struct Places {
    server: &'static str,
    seats: usize,
    waiting_max: usize,
    table: Mutex<Table>,
    /// A place is free.
    freed: Notify,
    /// Connections closed to make room, for the metrics.
    closed: Counter,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By age. Those that were told to give up their places are in neither.
    seated: BTreeMap<u64, Arc<Occupant>>,
    waiting: BTreeMap<u64, Arc<Occupant>>,
    warned: Option<Instant>,
}

struct Occupant {
    address: Mutex<IpAddr>,
    progress: Arc<Progress>,
    /// To end, with what is under way.
    closes: Notify,
    is_seated: AtomicBool,
    /// A request waits for a place.
    is_asking: AtomicBool,
    turned_away: Notify,
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
            freed: Notify::new(),
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
            is_seated: AtomicBool::new(false),
            is_asking: AtomicBool::new(false),
            turned_away: Notify::new(),
        });
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        if self.has_room(&mut table) {
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

    /// Closes connections that are waited for, where all places are taken.
    fn has_room(&self, table: &mut Table) -> bool {
        if table.seated.len() >= self.seats {
            self.make_room(table);
        }
        table.seated.len() < self.seats
    }

    /// The longest waiting leaves; rather one that has not asked for anything.
    fn send_away(&self, table: &mut Table) {
        let silent = table.waiting.iter().find(|(_, one)| !one.is_asking());
        let one = silent.or_else(|| table.waiting.iter().next());
        let Some(id) = one.map(|(id, _)| *id) else {
            return;
        };
        if let Some(one) = table.waiting.remove(&id) {
            self.closed.inc();
            match one.is_asking() {
                true => one.turned_away.notify_one(),
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
        let Some(mut closing) = most else { return };
        closing.sort_unstable_by_key(|(_, slowness)| std::cmp::Reverse(*slowness));
        closing.truncate(AT_ONCE.min(self.seats.div_ceil(8)));
        for (id, _) in &closing {
            if let Some(one) = table.seated.remove(id) {
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
        self.seated.insert(id, one);
    }
}

impl Occupant {
    fn is_asking(&self) -> bool {
        self.is_asking.load(Ordering::Relaxed)
    }

    fn address(&self) -> IpAddr {
        *self.address.lock()
    }
}

impl Place {
    /// Who the client is, where a proxy in front of us tells it.
    pub(crate) fn set_address(&self, address: IpAddr) {
        let known = &self.occupant.address;
        *known.lock() = group(address);
    }

    /// Comes back when the connection is to end at once.
    pub(crate) async fn closes(&self) {
        self.occupant.closes.notified().await;
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
                () = self.occupant.turned_away.notified() => break false,
                () = self.places.freed.notified() => {}
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
        if !self.places.has_room(&mut table) {
            return None;
        }
        let one = table.waiting.remove(&self.id)?;
        table.seat(self.id, one);
        Some(true)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.places.lock();
        table.waiting.remove(&self.id);
        if table.seated.remove(&self.id).is_some() {
            self.places.freed.notify_one();
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
