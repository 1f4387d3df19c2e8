//! Reservations of memory for parts of responses, shared between addresses.
//!
//! An address may hold as much as it leaves free: alone half of all, and where n addresses hold
//! all they may, each the (n+1)th part of it, so something is left for the next. One that holds
//! nothing may take the last. Among responses that wait, that of the address with the least comes
//! first, and those of one address come in order of arrival.
//!
//! While a response waits, connections whose clients have read next to nothing for some seconds
//! are closed (`progress.rs`): those of addresses that hold no less than the one that waits.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::addresses::customer;

/// Maximum bytes reserved at once.
const RESERVED_MAX_BYTES: usize = 128 << 20;
/// Maximum wait of a response for its turn: as long as a client may keep a server waiting.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

static TABLE: Mutex<Table> = Mutex::new(Table::new());
/// Number of responses that wait for their turn, to be read without the lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A client's address; `None` for all callers within the process together.
type Client = Option<IpAddr>;

struct Table {
    /// Bytes reserved by all.
    used: usize,
    next: u64,
    /// Clients that hold memory or wait for it.
    clients: BTreeMap<Client, Share>,
}

#[derive(Default)]
struct Share {
    held: usize,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    id: u64,
    bytes: usize,
    granted: Arc<Notify>,
}

impl Share {
    /// May the client have these bytes, as soon as they are free?
    fn allows(&self, bytes: usize, free: usize) -> bool {
        self.held == 0 || self.held + bytes <= free.saturating_sub(bytes)
    }
}

impl Table {
    const fn new() -> Table {
        Table {
            used: 0,
            next: 0,
            clients: BTreeMap::new(),
        }
    }

    fn free(&self) -> usize {
        RESERVED_MAX_BYTES.saturating_sub(self.used)
    }

    fn held_by(&self, client: Client) -> usize {
        self.clients.get(&client).map_or(0, |share| share.held)
    }

    /// Reserves at once, if nobody waits.
    fn try_take(&mut self, client: Client, bytes: usize) -> bool {
        let free = self.free();
        if bytes > free || WAITING.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let share = self.clients.entry(client).or_default();
        let is_allowed = share.allows(bytes, free);
        if is_allowed {
            share.held += bytes;
            self.used += bytes;
        }
        is_allowed
    }

    /// Enters a response among those that wait; returns its id, and how it is notified.
    fn wait(&mut self, client: Client, bytes: usize) -> (u64, Arc<Notify>) {
        let id = self.next;
        self.next += 1;
        let granted = Arc::<Notify>::default();
        let share = self.clients.entry(client).or_default();
        share.waiting.push_back(Waiter {
            id,
            bytes,
            granted: granted.clone(),
        });
        WAITING.fetch_add(1, Ordering::Relaxed);
        self.hand_out();
        (id, granted)
    }

    /// Reserves for responses that wait. One that may have its bytes is not passed by others while
    /// these are not free yet.
    fn hand_out(&mut self) {
        while WAITING.load(Ordering::Relaxed) > 0 {
            let free = self.free();
            let first = self.clients.iter().filter_map(|(client, share)| {
                let waiter = share.waiting.front()?;
                let is_allowed = share.allows(waiter.bytes, free);
                is_allowed.then_some((share.held, waiter.id, waiter.bytes, *client))
            });
            let Some((_, _, bytes, client)) = first.min().filter(|first| first.2 <= free) else {
                return;
            };
            let Some(share) = self.clients.get_mut(&client) else {
                return;
            };
            if let Some(waiter) = share.waiting.pop_front() {
                WAITING.fetch_sub(1, Ordering::Relaxed);
                share.held += bytes;
                self.used += bytes;
                waiter.granted.notify_one();
            }
        }
    }

    fn release(&mut self, client: Client, bytes: usize) {
        if let Some(share) = self.clients.get_mut(&client) {
            share.held -= bytes;
            self.used -= bytes;
        }
        self.left(client);
    }

    /// Removes a response that waits; false if it has its bytes already.
    fn dismiss(&mut self, client: Client, id: u64) -> bool {
        let Some(share) = self.clients.get_mut(&client) else {
            return false;
        };
        let waiting = share.waiting.len();
        share.waiting.retain(|waiter| waiter.id != id);
        if share.waiting.len() == waiting {
            return false;
        }
        WAITING.fetch_sub(1, Ordering::Relaxed);
        self.left(client);
        true
    }

    /// A client holds less, or waits for less, than before.
    fn left(&mut self, client: Client) {
        let share = self.clients.get(&client);
        if share.is_some_and(|share| share.held == 0 && share.waiting.is_empty()) {
            self.clients.remove(&client);
        }
        self.hand_out();
    }
}

/// Does a response wait for memory whose client holds no more than this address?
pub(crate) fn is_needed(address: Client) -> bool {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let table = TABLE.lock();
    let held = table.held_by(address);
    let mut shares = table.clients.values();
    shares.any(|share| !share.waiting.is_empty() && share.held <= held)
}

/// Reserved memory; released when dropped.
#[derive(Debug, Default)]
pub struct Reserved {
    client: Client,
    bytes: usize,
    /// Id among those that wait, until the response knows that it has its turn.
    waits_as: Option<u64>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut table = TABLE.lock();
        let waited = self
            .waits_as
            .is_some_and(|id| table.dismiss(self.client, id));
        if !waited {
            table.release(self.client, self.bytes);
        }
    }
}

/// No memory became free in time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("answers that their clients have not read hold all memory for parts of objects")]
pub struct NoRoom;

impl Reserved {
    /// Reserves this many bytes for a client, which is `None` for a caller within the process. A
    /// part larger than half of the maximum reserves that half.
    ///
    /// # Errors
    /// `NoRoom` if its turn does not come in time.
    pub async fn take(client: Option<IpAddr>, bytes: usize) -> Result<Reserved, NoRoom> {
        let client = client.map(customer);
        let bytes = bytes.min(RESERVED_MAX_BYTES / 2);
        let mut reserved = Reserved {
            client,
            bytes,
            waits_as: None,
        };
        let granted = {
            let mut table = TABLE.lock();
            if bytes == 0 || table.try_take(client, bytes) {
                return Ok(reserved);
            }
            let (id, granted) = table.wait(client, bytes);
            reserved.waits_as = Some(id);
            granted
        };
        let turn = tokio::time::timeout(TURN_TIMEOUT, granted.notified()).await;
        turn.map_err(|_| NoRoom)?;
        reserved.waits_as = None;
        Ok(reserved)
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt;

    use super::*;
    use crate::unsent::tests::ALONE;

    const PART: usize = 1 << 20;

    fn client(last: u8) -> Client {
        Some([192, 0, 2, last].into())
    }

    /// Reserves everything, for two addresses.
    pub(crate) async fn reserve_all() -> [Reserved; 2] {
        let half = async |last| {
            let reserved = Reserved::take(client(last), RESERVED_MAX_BYTES).await;
            reserved.unwrap_or_default()
        };
        [half(101).await, half(102).await]
    }

    fn used() -> usize {
        TABLE.lock().used
    }

    /// Reserves parts until the client has to wait.
    fn take_parts(client: Client) -> Vec<Reserved> {
        let part = || Reserved::take(client, PART).now_or_never()?.ok();
        std::iter::from_fn(part).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_memory_and_not_for_ever() {
        let _alone = ALONE.lock().await;
        let all = reserve_all().await;
        assert_eq!(Reserved::take(None, 1).await.map(|_| ()), Err(NoRoom));
        let begun = tokio::time::Instant::now();
        let waits = tokio::spawn(Reserved::take(None, 1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(is_needed(None) && !waits.is_finished());
        drop(all);
        assert!(waits.await.is_ok_and(|reserved| reserved.is_ok()));
        assert!(begun.elapsed() < TURN_TIMEOUT && !is_needed(None));
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn the_next_part_comes_after_those_that_wait() {
        let _alone = ALONE.lock().await;
        let [mine, others] = reserve_all().await;
        let mut waits = Box::pin(Reserved::take(client(1), RESERVED_MAX_BYTES));
        assert!(waits.as_mut().now_or_never().is_none());
        let mut next = Box::pin(Reserved::take(client(2), 1));
        assert!(next.as_mut().now_or_never().is_none());
        drop(mine);
        assert!(
            next.as_mut().now_or_never().is_none(),
            "it was not its turn"
        );
        let waited = waits.now_or_never().unwrap();
        drop(others);
        assert!(next.now_or_never().is_some_and(|taken| taken.is_ok()));
        drop(waited);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn an_address_holds_as_much_as_it_leaves_free() {
        let _alone = ALONE.lock().await;
        let one = take_parts(client(1));
        assert_eq!(one.len() * PART, RESERVED_MAX_BYTES / 2);
        // Callers within the process are like an address of their own.
        let within = take_parts(None);
        assert_eq!(within.len() * PART, RESERVED_MAX_BYTES / 4);
        let other = take_parts(client(2));
        assert_eq!(other.len() * PART, RESERVED_MAX_BYTES / 8);
        drop((one, within));
        assert_eq!(used(), other.len() * PART);
        drop(other);
        assert_eq!(used(), 0);
        assert!(TABLE.lock().clients.is_empty());
    }

    #[tokio::test]
    async fn who_waits_beyond_a_share_is_passed_by_others() {
        let _alone = ALONE.lock().await;
        let mut held = take_parts(client(1));
        let mut waits = Box::pin(Reserved::take(client(1), PART));
        assert!(waits.as_mut().now_or_never().is_none());
        let mut after = Box::pin(Reserved::take(client(1), 1));
        assert!(after.as_mut().now_or_never().is_none());
        let others = take_parts(client(2));
        assert_eq!(others.len() * PART, RESERVED_MAX_BYTES / 4);
        // Only those that hold at least as much keep memory from the one that waits.
        assert!(is_needed(client(1)) && !is_needed(client(2)) && !is_needed(None));
        drop(others);
        held.truncate(held.len() - 2);
        assert!(waits.now_or_never().is_some_and(|taken| taken.is_ok()));
        assert!(after.now_or_never().is_some_and(|taken| taken.is_ok()));
        drop(held);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn the_address_with_the_least_comes_first() {
        let _alone = ALONE.lock().await;
        let [one, two] = reserve_all().await;
        let mut more = Box::pin(Reserved::take(client(102), PART));
        let mut none = Box::pin(Reserved::take(client(3), PART));
        for waits in [&mut more, &mut none] {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        drop(one);
        let got = none.now_or_never().unwrap().unwrap();
        assert!(more.as_mut().now_or_never().is_none());
        drop(two);
        drop((got, more.now_or_never().unwrap()));
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn a_response_that_ends_while_it_waits_leaves_nothing_behind() {
        let _alone = ALONE.lock().await;
        let all = reserve_all().await;
        let mut leaves = Box::pin(Reserved::take(client(1), RESERVED_MAX_BYTES));
        let mut granted = Box::pin(Reserved::take(client(2), RESERVED_MAX_BYTES));
        let mut next = Box::pin(Reserved::take(client(3), RESERVED_MAX_BYTES));
        for waits in [&mut leaves, &mut granted, &mut next] {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        drop(leaves);
        drop(all);
        // It has its turn, but ends before it sees that.
        drop(granted);
        assert_eq!(used(), RESERVED_MAX_BYTES / 2);
        drop(next.now_or_never().unwrap());
        assert_eq!((used(), WAITING.load(Ordering::Relaxed)), (0, 0));
        assert!(TABLE.lock().clients.is_empty());
    }

    #[test]
    fn a_network_of_one_customer_is_one_client() {
        let of = |text: &str| customer(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
