//! Error limiting: nodes that fail too often are not tried for a while (`error_suppression_*`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::warn;

use crate::node::Node;
use crate::reach::Reach;

/// Counts errors per device; more than `limit` of them suppress the device for `interval` after the
/// last. A device on a host that is lost or hangs is suppressed as long as that lasts, without
/// counting errors.
pub struct ErrorLimiter {
    interval: Duration,
    limit: u32,
    reach: Option<Arc<Reach>>,
    /// Number of devices with errors: zero lets the common path skip the lock.
    noted: AtomicUsize,
    errors: Mutex<HashMap<(std::net::SocketAddr, String), Errors>>,
}

struct Errors {
    count: u32,
    last: Instant,
}

impl ErrorLimiter {
    pub fn new(interval: Duration, limit: u32) -> Self {
        ErrorLimiter {
            interval,
            limit,
            reach: None,
            noted: AtomicUsize::new(0),
            errors: Mutex::default(),
        }
    }

    /// Also suppresses devices on hosts that are lost or hang.
    pub fn with_reach(mut self, reach: Arc<Reach>) -> Self {
        self.reach = Some(reach);
        self
    }

    fn is_silent(&self, node: &Node) -> bool {
        let reach = self.reach.as_ref();
        reach.is_some_and(|reach| reach.is_silent(node.address))
    }

    /// Is this device suppressed now?
    pub fn is_limited(&self, node: &Node) -> bool {
        if self.is_silent(node) {
            return true;
        }
        if self.noted.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut errors = self.lock();
        let key = (node.address, node.device.device.clone());
        let Some(noted) = errors.get(&key) else {
            return false;
        };
        if noted.last.elapsed() >= self.interval {
            errors.remove(&key);
            self.noted.store(errors.len(), Ordering::Relaxed);
            return false;
        }
        noted.count > self.limit
    }

    /// Counts an error.
    pub fn increment(&self, node: &Node, what: &str) {
        if self.is_silent(node) {
            return;
        }
        let count = self.note(node, 1);
        if count <= self.limit {
            warn!(node = %node.name(), what, count, "a node failed");
        } else if count == self.limit + 1 {
            warn!(node = %node.name(), what, "node failed too often; left alone for a while");
        }
    }

    /// Suppresses the device at once, as for one that reports not to be mounted.
    pub fn limit_now(&self, node: &Node, what: &str) {
        if self.note(node, self.limit + 1) == self.limit + 1 {
            warn!(node = %node.name(), what, "node left alone for a while");
        }
    }

    fn note(&self, node: &Node, by: u32) -> u32 {
        let mut errors = self.lock();
        let key = (node.address, node.device.device.clone());
        let now = Instant::now();
        let noted = errors.entry(key).or_insert(Errors {
            count: 0,
            last: now,
        });
        if noted.last.elapsed() >= self.interval {
            noted.count = 0;
        }
        noted.count = noted.count.saturating_add(by);
        noted.last = now;
        let count = noted.count;
        self.noted.store(errors.len(), Ordering::Relaxed);
        count
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(std::net::SocketAddr, String), Errors>> {
        self.errors.lock()
    }
}
