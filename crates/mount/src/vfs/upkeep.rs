//! Work that a mount does from time to time: it tells sweeps which files it holds, removes segments of
//! superseded versions, and finishes renames that broke off.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Vfs;
use crate::error::FsResult;
use crate::intents::BROKEN_AFTER;
use crate::store::{Result, Store};

/// A file that was opened is pinned within that time; far below the grace period of any sweep.
const INTERVAL: Duration = Duration::from_secs(30);
/// Pins count for an hour, and are written again long before.
const RENEWAL: Duration = Duration::from_secs(600);

/// The pins that are on the store.
#[derive(Default)]
pub(super) struct Pins {
    ids: BTreeSet<String>,
    written: Option<Instant>,
}

impl<S: Store> Vfs<S> {
    /// Runs until it is dropped.
    pub(crate) async fn upkeep(&self) {
        if self.options.is_read_only {
            return;
        }
        loop {
            if let Err(error) = self.resume_renames(BROKEN_AFTER).await {
                tracing::warn!(%error, "a rename that broke off is not finished");
            }
            tokio::time::sleep(INTERVAL).await;
            self.remove_segments(self.committer.superseded.take_due());
            if let Err(error) = self.pin_held().await {
                tracing::warn!(%error, "sweeps are not told which files are open here");
            }
        }
    }

    /// Writes the pins where they have changed.
    pub(super) async fn pin_held(&self) -> Result<()> {
        let ids = self.tree.lock().held_files();
        let mut pins = self.pins.lock().await;
        let is_written = pins.written.is_some_and(|at| at.elapsed() < RENEWAL);
        if ids == pins.ids && (ids.is_empty() || is_written) {
            return Ok(());
        }
        self.committer.pin(&ids).await?;
        *pins = Pins {
            ids,
            written: Some(Instant::now()),
        };
        Ok(())
    }

    /// Nothing is held here any more.
    pub(crate) async fn unpin(&self) -> FsResult<()> {
        let mut pins = self.pins.lock().await;
        if !pins.ids.is_empty() {
            self.committer.pin(&BTreeSet::new()).await?;
            *pins = Pins::default();
        }
        Ok(())
    }
}
