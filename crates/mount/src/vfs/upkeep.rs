//! Periodic work of a mount: publishes pins of the files that it holds, removes segments of superseded
//! versions, and completes interrupted renames.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Vfs;
use crate::error::FsResult;
use crate::intents::BROKEN_AFTER;
use crate::store::{Result, Store};
use crate::time::Instant;

/// Interval of this work: an opened file is pinned within it, far below a sweep's grace period.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Age at which pins are renewed, far below their validity of an hour.
const PIN_RENEWAL_AGE: Duration = Duration::from_secs(600);

/// The pins on the store.
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
                tracing::warn!(%error, "renames that broke off are not finished");
            }
            tokio::time::sleep(UPKEEP_INTERVAL).await;
            self.remove_segments(self.committer.superseded.take_due());
            if let Err(error) = self.pin_held().await {
                tracing::warn!(%error, "sweeps are not told which files are open here");
            }
        }
    }

    /// Writes the pins if they have changed.
    pub(super) async fn pin_held(&self) -> Result<()> {
        let ids = self.tree.lock().held_files();
        let mut pins = self.pins.lock().await;
        let is_written = pins
            .written
            .is_some_and(|at| at.elapsed() < PIN_RENEWAL_AGE);
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

    /// Removes the pins.
    pub(crate) async fn unpin(&self) -> FsResult<()> {
        let mut pins = self.pins.lock().await;
        if !pins.ids.is_empty() {
            self.committer.pin(&BTreeSet::new()).await?;
            *pins = Pins::default();
        }
        Ok(())
    }
}
