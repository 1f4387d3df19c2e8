//! Slots of a listener's connections: a bounded number, and the rules by which connections give up
//! theirs.
//!
//! A listener always accepts, so that no client waits in the kernel's queue behind others. If all
//! slots are taken, a new connection gets the slot of one whose client keeps the server waiting: it
//! sends no request, or reads its response or sends its body at a trickle. Among those the address
//! with the most is chosen, and of that the slowest. While slots are free, no connection is closed
//! for being slow. If all slots are in real use, the new connection *waits*: its health checks are
//! answered, other requests get a slot when one is free, or 503. Waiting connections are bounded
//! too: of the address with the most of them, the longest waiting is dismissed first.
//!
//! Slots are shared fairly between addresses, so that none keeps others out. A free slot goes to
//! the request whose address has the fewest. If none is free, connections of the address with the
//! most slots are ended one after the other, each after its current response, until it has as many
//! as the waiting request's address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tracing::warn;

use crate::addresses::customer;
use crate::progress::{Progress, Waiting};

/// Minimum time without a request after which a connection may lose its slot.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// Minimum time for which a client has been waited for during the last few KiB after which its
/// connection may lose its slot.
const STALLED_MIN: Duration = Duration::from_secs(4);
/// Maximum connections closed in one scan, since a scan visits all of them.
const CLOSED_AT_ONCE_MAX: usize = 16;
/// Maximum wait of a request for a slot.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a waiting request scans for stalled connections, and ends one of an address
/// with more slots.
const RESCAN_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum time between scans of all connections that find none to close, since each waiting
/// request scans.
const SCAN_GAP: Duration = Duration::from_millis(10);
/// Minimum time between log lines.
const WARNING_GAP: Duration = Duration::from_secs(60);

/// The connections of one listener.
pub(crate) struct Slots {
    server: &'static str,
    slots_max: usize,
    waiting_max: usize,
    table: Mutex<Table>,
    /// Counts connections closed to make room.
    closed: Counter,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// Connections with a slot, by age. Those that were told to close are in neither map.
    with_slot: BTreeMap<u64, Arc<Occupant>>,
    waiting: BTreeMap<u64, Arc<Occupant>>,
    /// Slots held by each address, without connections that are ending.
    held: HashMap<IpAddr, usize>,
    /// Slots whose connections end after their current response.
    ending: usize,
    /// Time of the last scan that found no connection to close.
    scanned: Option<Instant>,
    warned: Option<Instant>,
}

struct Occupant {
    address: Mutex<IpAddr>,
    progress: Arc<Progress>,
    /// Notified to end the connection at once.
    closes: Notify,
    /// Notified to end the connection after its current response.
    ends: Notify,
    has_slot: AtomicBool,
    is_ending: AtomicBool,
    /// A request waits for a slot.
    is_asking: AtomicBool,
    /// Notified when the request has a slot, or was dismissed.
    decided: Notify,
}

/// A connection's entry; its slot is free when this is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    occupant: Arc<Occupant>,
}

impl Slots {
    /// `slots_max` is the number of connections served at once.
    pub(crate) fn new(server: &'static str, slots_max: usize, closed: Counter) -> Arc<Slots> {
        Arc::new(Slots {
            server,
            slots_max: slots_max.max(1),
            waiting_max: (slots_max / 8).clamp(16, 1024),
            table: Mutex::default(),
            closed,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Registers a new connection, with a slot or waiting for one.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, progress: Arc<Progress>) -> Slot {
        let occupant = Arc::new(Occupant {
            address: Mutex::new(customer(address)),
            progress,
            closes: Notify::new(),
            ends: Notify::new(),
            has_slot: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_asking: AtomicBool::new(false),
            decided: Notify::new(),
        });
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        self.find_room(&mut table);
        if table.with_slot.len() < self.slots_max {
            table.assign(id, occupant.clone());
        } else {
            if table.waiting.len() >= self.waiting_max {
                self.dismiss(&mut table);
            }
            table.waiting.insert(id, occupant.clone());
        }
        Slot {
            slots: self.clone(),
            id,
            occupant,
        }
    }

    /// If all slots are taken, closes connections whose clients are slow; then gives free slots to
    /// waiting requests.
    fn find_room(&self, table: &mut Table) {
        let was_scanned = table.scanned.is_some_and(|at| at.elapsed() < SCAN_GAP);
        if table.with_slot.len() >= self.slots_max && !was_scanned {
            self.make_room(table);
        }
        self.hand_out(table);
    }

    /// Gives free slots to waiting requests: the longest waiting one of the address with the fewest
    /// slots.
    fn hand_out(&self, table: &mut Table) {
        while table.with_slot.len() < self.slots_max {
            let asking = table.waiting.iter().filter(|(_, one)| one.is_asking());
            let next = asking.min_by_key(|(id, one)| (table.held_by(one.address()), **id));
            let Some(id) = next.map(|(id, _)| *id) else {
                return;
            };
            if let Some(one) = table.waiting.remove(&id) {
                table.assign(id, one.clone());
                one.decided.notify_one();
            }
        }
    }

    /// Ends one connection of the address with the most slots after its current response, if that
    /// address has more slots than `address` will have with those that are about to be free.
    fn end_one(&self, table: &mut Table, address: IpAddr) {
        let most = table.held.iter().max_by_key(|(_, held)| **held);
        let Some((&most, &held)) = most else { return };
        if held <= table.held_by(address) + table.ending + 1 {
            return;
        }
        let one = table.with_slot.values().find(|one| {
            // A connection in progress is ended even if it is as fast as its network.
            one.progress.has_request() && !one.is_ending() && one.address() == most
        });
        if let Some(one) = one.cloned() {
            self.closed.inc();
            table.end(&one);
        }
    }

    /// Dismisses one waiting connection of the address that most of them come from: preferably one
    /// without a request, then the longest waiting.
    fn dismiss(&self, table: &mut Table) {
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

    /// Closes slow connections, for example when the process is out of file descriptors.
    pub(crate) fn close_slowest(&self) {
        self.make_room(&mut self.lock());
    }

    fn make_room(&self, table: &mut Table) {
        let slow = table.with_slot.iter().filter_map(|(id, one)| {
            let slowness = slowness(one.progress.waiting())?;
            Some((*id, slowness, one.address()))
        });
        let mut by_address: HashMap<IpAddr, Vec<(u64, Duration)>> = HashMap::new();
        for (id, slowness, address) in slow {
            by_address.entry(address).or_default().push((id, slowness));
        }
        let most = by_address.into_values().max_by_key(Vec::len);
        let Some(mut closing) = most else {
            table.scanned = Some(Instant::now());
            return;
        };
        closing.sort_unstable_by_key(|(_, slowness)| std::cmp::Reverse(*slowness));
        closing.truncate(CLOSED_AT_ONCE_MAX.min(self.slots_max.div_ceil(8)));
        for (id, _) in &closing {
            if let Some(one) = table.release(*id) {
                self.closed.inc();
                one.closes.notify_one();
            }
        }
        if table.warned.is_none_or(|at| at.elapsed() >= WARNING_GAP) {
            table.warned = Some(Instant::now());
            warn!(
                server = self.server,
                max_clients = self.slots_max,
                "all places for clients are taken: connections that send no request, or take their \
                 answers too slowly, are closed"
            );
        }
    }
}

impl Table {
    fn assign(&mut self, id: u64, one: Arc<Occupant>) {
        one.has_slot.store(true, Ordering::Relaxed);
        *self.held.entry(one.address()).or_default() += 1;
        self.with_slot.insert(id, one);
    }

    fn release(&mut self, id: u64) -> Option<Arc<Occupant>> {
        let one = self.with_slot.remove(&id)?;
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

impl Slot {
    /// Sets the client's address, if a proxy in front of us reports it.
    pub(crate) fn set_address(&self, address: IpAddr) {
        let address = customer(address);
        if self.occupant.address() == address {
            return;
        }
        let mut table = self.slots.lock();
        let is_held = table.with_slot.contains_key(&self.id) && !self.occupant.is_ending();
        if is_held {
            table.no_longer_held(self.occupant.address());
            *table.held.entry(address).or_default() += 1;
        }
        *self.occupant.address.lock() = address;
    }

    /// Returns when the connection must end at once.
    pub(crate) async fn closes(&self) {
        self.occupant.closes.notified().await;
    }

    /// Returns when the connection must end after its current response.
    pub(crate) async fn ends(&self) {
        self.occupant.ends.notified().await;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.occupant.has_slot.load(Ordering::Relaxed)
    }

    /// Waits for a slot for a request; false if there is none in time.
    pub(crate) async fn get(&self) -> bool {
        self.occupant.is_asking.store(true, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + SLOT_TIMEOUT;
        let has_slot = loop {
            match self.try_get() {
                Some(has_slot) => break has_slot,
                None if tokio::time::Instant::now() >= deadline => break false,
                None => {}
            }
            tokio::select! {
                () = self.occupant.decided.notified() => {}
                () = tokio::time::sleep(RESCAN_INTERVAL) => {}
            }
        };
        self.occupant.is_asking.store(false, Ordering::Relaxed);
        has_slot
    }

    /// The outcome; `None`: not decided yet.
    fn try_get(&self) -> Option<bool> {
        let mut table = self.slots.lock();
        if !table.waiting.contains_key(&self.id) {
            // Dismissed, or has a slot.
            return Some(table.with_slot.contains_key(&self.id));
        }
        self.slots.find_room(&mut table);
        if table.with_slot.contains_key(&self.id) {
            return Some(true);
        }
        self.slots.end_one(&mut table, self.occupant.address());
        None
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.slots.lock();
        table.waiting.remove(&self.id);
        if table.release(self.id).is_some() {
            self.slots.hand_out(&mut table);
        }
    }
}

/// Slowness of a connection, by which it loses its slot before others; `None`: it keeps its slot.
fn slowness(waiting: Waiting) -> Option<Duration> {
    match waiting {
        Waiting::No => None,
        Waiting::Idle(time) => (time >= IDLE_MIN).then_some(time),
        Waiting::Stalled(time) => (time >= STALLED_MIN).then_some(time),
    }
}

#[cfg(test)]
mod tests;
