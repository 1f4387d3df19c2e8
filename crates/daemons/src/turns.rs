//! Turns at other servers' devices. An object server takes so many SSYNC requests at once on each
//! device, one by Swift's default; who comes beyond waits there, and is sent away in the end. So we
//! send one at a time to a device, and more once its server has said that it takes more.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At once to one device, whatever its server says.
const MOST: usize = 8;

/// Of one pass, by the devices' names (`ip:port/device`).
#[derive(Default)]
pub(crate) struct Turns(Mutex<BTreeMap<String, Turn>>);

struct Turn {
    free: Arc<Semaphore>,
    of: usize,
}

impl Turns {
    /// Waits for a turn; it lasts until dropped.
    pub(crate) async fn wait(&self, node: &str) -> Option<OwnedSemaphorePermit> {
        let free = self.change(node, |turn| turn.free.clone());
        free.acquire_owned().await.ok()
    }

    /// The node's server takes so many at once.
    pub(crate) fn allow(&self, node: &str, at_once: usize) {
        self.change(node, |turn| {
            let of = at_once.min(MOST);
            if of > turn.of {
                turn.free.add_permits(of - turn.of);
                turn.of = of;
            }
        });
    }

    fn change<T>(&self, node: &str, change: impl FnOnce(&mut Turn) -> T) -> T {
        let mut turns = self.0.lock();
        change(turns.entry(node.to_owned()).or_insert_with(|| Turn {
            free: Arc::new(Semaphore::new(1)),
            of: 1,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_more_once_that_is_allowed() {
        let turns = Turns::default();
        let first = turns.wait("a").now_or_never().unwrap();
        assert!(turns.wait("a").now_or_never().is_none());
        assert!(turns.wait("b").now_or_never().is_some());
        // A server that takes one says so, or nothing.
        turns.allow("a", 1);
        assert!(turns.wait("a").now_or_never().is_none());
        for _ in 0..2 {
            turns.allow("a", 3);
        }
        let more = (
            turns.wait("a").now_or_never(),
            turns.wait("a").now_or_never(),
        );
        assert!(more.0.is_some() && more.1.is_some());
        assert!(turns.wait("a").now_or_never().is_none());
        drop(first);
        assert!(turns.wait("a").now_or_never().is_some());
        // Nobody is asked to take all we have.
        turns.allow("a", 1000);
        let held: Vec<_> = (0..20)
            .filter_map(|_| turns.wait("a").now_or_never())
            .collect();
        assert_eq!(held.len(), MOST - 2);
        drop(more);
    }
}
