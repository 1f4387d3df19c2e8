//! Permits for SSYNC sessions at other servers' devices. An object server limits concurrent
//! sessions per device, by Swift's default to one; further ones wait there, and are finally
//! refused. So we run one at a time per device, and more once its server has announced a higher
//! limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum concurrent sessions per device, whatever its server announces.
const SESSIONS_MAX: usize = 8;

/// Permits of one pass, by device (`ip:port/device`).
#[derive(Default)]
pub(crate) struct SessionPermits(Mutex<BTreeMap<String, DevicePermits>>);

struct DevicePermits {
    free: Arc<Semaphore>,
    of: usize,
}

impl SessionPermits {
    /// Acquires a permit, held until dropped.
    pub(crate) async fn wait(&self, node: &str) -> Option<OwnedSemaphorePermit> {
        let free = self.change(node, |permits| permits.free.clone());
        free.acquire_owned().await.ok()
    }

    /// Raises the limit to that announced by the node's server.
    pub(crate) fn allow(&self, node: &str, at_once: usize) {
        self.change(node, |permits| {
            let of = at_once.min(SESSIONS_MAX);
            if of > permits.of {
                permits.free.add_permits(of - permits.of);
                permits.of = of;
            }
        });
    }

    fn change<T>(&self, node: &str, change: impl FnOnce(&mut DevicePermits) -> T) -> T {
        let mut by_device = self.0.lock();
        change(
            by_device
                .entry(node.to_owned())
                .or_insert_with(|| DevicePermits {
                    free: Arc::new(Semaphore::new(1)),
                    of: 1,
                }),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_more_once_that_is_allowed() {
        let permits = SessionPermits::default();
        let first = permits.wait("a").now_or_never().unwrap();
        assert!(permits.wait("a").now_or_never().is_none());
        assert!(permits.wait("b").now_or_never().is_some());
        // A server with a limit of one announces it, or nothing.
        permits.allow("a", 1);
        assert!(permits.wait("a").now_or_never().is_none());
        for _ in 0..2 {
            permits.allow("a", 3);
        }
        let more = (
            permits.wait("a").now_or_never(),
            permits.wait("a").now_or_never(),
        );
        assert!(more.0.is_some() && more.1.is_some());
        assert!(permits.wait("a").now_or_never().is_none());
        drop(first);
        assert!(permits.wait("a").now_or_never().is_some());
        // Capped at our own maximum.
        permits.allow("a", 1000);
        let held: Vec<_> = (0..20)
            .filter_map(|_| permits.wait("a").now_or_never())
            .collect();
        assert_eq!(held.len(), SESSIONS_MAX - 2);
        drop(more);
    }
}
