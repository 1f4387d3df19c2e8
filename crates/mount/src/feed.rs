//! The change feed: what other hosts change is asked for again at once, by the mount and by the kernel.
//!
//! It is a hint. Rows of a server that does not answer come late, and without a feed, or while it fails,
//! what is cached is valid for its second as ever.

use std::ffi::OsStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use crate::store::{News, Store, StoreError, Why};
use crate::time::Instant;
use crate::vfs::{Stale, Vfs};

/// Maximum time of one wait, of those that the store allows.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Pause after changes: those of the meantime come together. Each question has the container server merge
/// rows that would wait for more, also of the mount itself: with 10 ms a mount makes a fifth fewer files
/// in a second, sixteen at once, with 60 ms a tenth.
const PAUSE: Duration = Duration::from_millis(90);
/// Pause after a reset, and after an answer without changes that came too early.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after failures: the first, and the longest.
const FAILED_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Offset of an invalidation that keeps the page cache: the kernel drops pages by itself where it finds
/// another modification time or size.
const ATTRIBUTES_ALONE: i64 = -1;

/// The kernel, as it is told what to ask for again. Its calls may wait for requests in progress.
pub(crate) trait Kernel: Send + Sync + 'static {
    fn forget(&self, stale: &Stale);
}

impl Kernel for OnceLock<Notifier> {
    fn forget(&self, stale: &Stale) {
        let Some(notifier) = self.get() else { return };
        let told = match stale {
            Stale::Node(ino) => notifier.inval_inode(INodeNo(*ino), ATTRIBUTES_ALONE, 0),
            Stale::Name { parent, name } => {
                notifier.inval_entry(INodeNo(*parent), OsStr::new(name))
            }
        };
        if let Err(error) = told {
            // Mostly: the kernel does not know it.
            tracing::trace!(?stale, %error, "not invalidated");
        }
    }
}

/// Follows the change feed, if there is one. Returns where the store has none; else it runs until it is
/// dropped.
pub(crate) async fn follow<S: Store>(vfs: Arc<Vfs<S>>, kernel: Arc<impl Kernel>) {
    let Some(wait) = vfs.store().feed_wait() else {
        return;
    };
    let wait = wait.min(WAIT_MAX);
    let (mut cursor, mut failures) = (String::new(), 0);
    loop {
        let asked = Instant::now();
        let news = match vfs.store().changes(&cursor, wait).await {
            Ok(news) => news,
            Err(error) => {
                tokio::time::sleep(failed(&error, failures)).await;
                failures += 1;
                continue;
            }
        };
        if failures > 0 {
            tracing::info!("the change feed is there again");
            failures = 0;
        }
        cursor.clone_from(&news.cursor);
        let pause = pause(&news, asked.elapsed(), wait);
        let stale = vfs.confirmed(vfs.take_up(&news)).await;
        if !stale.is_empty() {
            tell(&kernel, stale).await;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Tells the kernel, on a thread that may wait: a directory is locked while a request in it is answered.
async fn tell(kernel: &Arc<impl Kernel>, stale: Vec<Stale>) {
    let kernel = kernel.clone();
    let told = tokio::task::spawn_blocking(move || {
        stale.iter().for_each(|stale| kernel.forget(stale));
    });
    if let Err(error) = told.await {
        tracing::debug!(%error, "the kernel was not told of changes");
    }
}

fn pause(news: &News, took: Duration, wait: Duration) -> Duration {
    match news.changed.is_empty() {
        false => PAUSE,
        true if news.is_reset || took < wait / 2 => LONG_PAUSE,
        true => Duration::ZERO,
    }
}

/// The pause after a failure, which is logged once in a row of them.
fn failed(error: &StoreError, failures: u32) -> Duration {
    if failures == 0 {
        tracing::warn!(
            %error,
            "no change feed: what other hosts change is seen within a second"
        );
    }
    let [first, last] = FAILED_PAUSES;
    match error.why {
        Why::Unavailable | Why::Timeout => last.min(first * 2_u32.saturating_pow(failures.min(6))),
        _ => last,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
