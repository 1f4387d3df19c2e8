//! The thread that closes what nobody uses: an open file prevents the unmount of its file system, and a
//! lazy unmount completes when the last one is closed. It also lets other processes in that wait for volumes.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::stores::Stores;

const ROUND_INTERVAL_MIN: Duration = Duration::from_millis(10);
const ROUND_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// From one look for processes that wait to the next.
const LOOK_INTERVAL: Duration = Duration::from_millis(40);

/// Starts the thread; it ends when the stores are dropped.
pub(super) fn start(stores: &Arc<Stores>, idle_close: Duration) {
    let interval = (idle_close / 2).clamp(ROUND_INTERVAL_MIN, ROUND_INTERVAL_MAX);
    let stores = Arc::downgrade(stores);
    let thread = thread::Builder::new().name("p-idle".into());
    let spawned = thread.spawn(move || {
        let mut closed = Instant::now();
        loop {
            thread::sleep(interval.min(LOOK_INTERVAL));
            let Some(stores) = stores.upgrade() else {
                return;
            };
            stores.make_way();
            if closed.elapsed() >= interval {
                stores.close_unused();
                closed = Instant::now();
            }
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to close idle volumes");
    }
}
