//! Those who wait for changes of databases: woken by every update of this process, whether it changed
//! rows or not. They hold no thread, connection or lease while they wait.
//!
//! Other processes wake nobody. Whoever waits for changes of a shared database looks at it from time
//! to time; [`Wait::takes_turn`] lets one of all that wait for the same database do so.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_channel::oneshot;

use crate::DbKey;
use crate::rank::{Rank, Ranked};

/// Waiters of all databases of a pool.
pub(crate) struct Waiters {
    /// Number of waiters: without any, updates take no lock.
    count: AtomicUsize,
    by_key: Ranked<HashMap<DbKey, Waiting>>,
}

/// Waiters of one database.
struct Waiting {
    senders: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
    /// Time at which one of them last took a turn to look.
    looked: Instant,
}

impl Waiters {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Waiters {
            count: AtomicUsize::new(0),
            by_key: Ranked::new(Rank::Waiters, HashMap::new()),
        })
    }

    /// Begins to wait: every later update wakes.
    pub(crate) fn wait(self: &Arc<Self>, key: &DbKey) -> Wait {
        let (sender, woken) = oneshot::channel();
        let mut by_key = self.by_key.lock();
        let waiting = by_key.entry(key.clone()).or_insert_with(|| Waiting {
            senders: BTreeMap::new(),
            next: 0,
            looked: Instant::now(),
        });
        let number = waiting.next;
        waiting.next += 1;
        waiting.senders.insert(number, sender);
        self.count.fetch_add(1, Ordering::SeqCst);
        Wait {
            waiters: Arc::clone(self),
            key: key.clone(),
            number,
            woken,
        }
    }

    /// Wakes all that wait for a database.
    pub(crate) fn wake(&self, key: &DbKey) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let woken = match self.by_key.lock().get_mut(key) {
            Some(waiting) => std::mem::take(&mut waiting.senders),
            None => return,
        };
        self.tell(woken);
    }

    /// Wakes everybody.
    pub(crate) fn wake_all(&self) {
        let all = std::mem::take(&mut *self.by_key.lock());
        all.into_values().for_each(|one| self.tell(one.senders));
    }

    fn tell(&self, woken: BTreeMap<u64, oneshot::Sender<()>>) {
        self.count.fetch_sub(woken.len(), Ordering::SeqCst);
        for sender in woken.into_values() {
            // Whoever waited may be gone.
            let _ = sender.send(());
        }
    }

    fn leave(&self, key: &DbKey, number: u64) {
        let mut by_key = self.by_key.lock();
        let Some(waiting) = by_key.get_mut(key) else {
            return;
        };
        if waiting.senders.remove(&number).is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        if waiting.senders.is_empty() {
            by_key.remove(key);
        }
    }
}

/// One wait for a change of a database, a future that ends with the next update.
pub struct Wait {
    waiters: Arc<Waiters>,
    key: DbKey,
    number: u64,
    woken: oneshot::Receiver<()>,
}

impl Wait {
    /// Whether it is this waiter's turn to look whether another process has changed the database:
    /// true for one of all that ask within `interval`.
    pub fn takes_turn(&self, interval: Duration) -> bool {
        let mut by_key = self.waiters.by_key.lock();
        let Some(waiting) = by_key.get_mut(&self.key) else {
            return true;
        };
        let is_due = waiting.looked.elapsed() >= interval;
        if is_due {
            waiting.looked = Instant::now();
        }
        is_due
    }

    /// Wakes the others that wait for this database: whoever took a turn found it changed.
    pub fn wake_others(&self) {
        self.waiters.wake(&self.key);
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.woken).poll(context).map(|_| ())
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waiters.leave(&self.key, self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::task::Waker;

    use cairn_types::HashPath;

    use super::*;
    use crate::DbKind;

    fn key(container: &str) -> DbKey {
        let hash = HashPath::new("", "x").hash("a", Some(container), None);
        DbKey::new("sda", "7", DbKind::Container, hash)
    }

    fn is_woken(wait: &mut Wait) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(wait).poll(&mut context).is_ready()
    }

    #[test]
    fn an_update_wakes_those_of_its_database() {
        let waiters = Waiters::new();
        let [mut one, mut other] = ["c", "d"].map(|name| waiters.wait(&key(name)));
        assert!(!is_woken(&mut one) && !is_woken(&mut other));
        waiters.wake(&key("c"));
        assert!(is_woken(&mut one) && !is_woken(&mut other));
        waiters.wake_all();
        assert!(is_woken(&mut other));
    }

    #[test]
    fn who_leaves_leaves_nothing() {
        let waiters = Waiters::new();
        let mut waits: Vec<Wait> = (0..5).map(|_| waiters.wait(&key("c"))).collect();
        drop(waits.split_off(2));
        assert_eq!(waiters.count.load(Ordering::SeqCst), 2);
        waiters.wake(&key("c"));
        waits.push(waiters.wait(&key("c")));
        drop(waits);
        assert_eq!(waiters.count.load(Ordering::SeqCst), 0);
        assert!(waiters.by_key.lock().is_empty());
    }

    #[test]
    fn one_of_many_takes_the_turn() {
        let waiters = Waiters::new();
        let waits: Vec<Wait> = (0..5).map(|_| waiters.wait(&key("c"))).collect();
        let hour = Duration::from_secs(3600);
        assert!(!waits.iter().any(|wait| wait.takes_turn(hour)));
        if let Some(waiting) = waiters.by_key.lock().get_mut(&key("c")) {
            waiting.looked = Instant::now() - 2 * hour;
        }
        let turns = waits.iter().filter(|wait| wait.takes_turn(hour));
        assert_eq!(turns.count(), 1);
    }
}
