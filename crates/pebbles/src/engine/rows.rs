//! Rows that a store owes and nobody has any more: the process has ended, or a database did not take them.
//! They are made again from their records, and kept as async pendings for the object updater.

use cairn_disk::async_pending::write_async_update;
use cairn_disk::container_row::update_of;
use cairn_disk::owed::Owed;
use cairn_disk::{Disk, DiskError, Metadata};
use cairn_types::PolicyIndex;

use super::stores::Opened;
use crate::error::ReadError;
use crate::object::{Entry, EntryKind};
use crate::store::Stored;

/// Rows kept in one step: each is a file that is synced.
const ROWS_OF_STEP: usize = 32;

/// Rows are durable, or kept for later, in far less than this.
const OWED_SECS: u64 = 30;

impl Opened {
    /// Keeps all rows that nobody has: their records are about to go.
    pub(super) fn keep_all_rows(&self, disk: &Disk, policy: PolicyIndex) -> Result<(), DiskError> {
        while self.keep_rows(disk, policy)? {}
        Ok(())
    }

    /// Whether an object may be handed over: no row is owed that its record alone can make again.
    pub(super) fn is_settled(&self, disk: &Disk, entries: &[Entry]) -> bool {
        let newest = entries.iter().map(|entry| entry.timestamp.secs()).max();
        let age = super::now(disk).secs().saturating_sub(newest.unwrap_or(0));
        !self.store().owes_rows() || age > OWED_SECS
    }

    /// Keeps some of the rows that nobody has; false where there are none.
    pub(super) fn keep_rows(&self, disk: &Disk, policy: PolicyIndex) -> Result<bool, DiskError> {
        let failed = self.store().take_failed_rows(ROWS_OF_STEP);
        let is_some = !failed.is_empty();
        // One that cannot be kept now is owed still: its debt is dropped.
        for (owed, debt) in failed {
            self.keep_row(disk, policy, owed)?;
            debt.settle();
        }
        Ok(is_some)
    }

    fn keep_row(&self, disk: &Disk, policy: PolicyIndex, owed: Owed) -> Result<(), DiskError> {
        let Some((stored, is_put)) = self.record_of(owed)? else {
            return Ok(());
        };
        let metadata = match is_put {
            true => Metadata::from_pickle(&stored.metadata),
            false => Ok([("X-Timestamp", owed.timestamp.internal())]
                .into_iter()
                .collect()),
        };
        let name = std::str::from_utf8(&stored.name).ok();
        let update = metadata
            .ok()
            .and_then(|metadata| update_of(name?, policy, &metadata, is_put));
        let Some(update) = update else {
            let (device, hash) = (&self.device, owed.hash.hex());
            tracing::error!(device, hash, "the row of a record cannot be made");
            return Ok(());
        };
        write_async_update(disk, policy, owed.hash, owed.timestamp, &update)
    }

    /// The record whose row is owed, and whether it is a PUT's; `None` where it does not count any more: a
    /// newer one owes a row of its own.
    fn record_of(&self, owed: Owed) -> Result<Option<(Stored, bool)>, DiskError> {
        let store = self.store();
        let entries = store.index().get(owed.partition, owed.hash);
        let is_it = |kind: EntryKind| match kind {
            EntryKind::Data => Some(true),
            EntryKind::Tombstone => Some(false),
            _ => None,
        };
        let found = entries.iter().find_map(|entry| {
            let is_put = is_it(entry.kind).filter(|_| entry.timestamp == owed.timestamp)?;
            Some((entry.place, is_put))
        });
        let Some((place, is_put)) = found else {
            return Ok(None);
        };
        match store.read_head(owed.partition, owed.hash, place) {
            Ok(stored) => Ok(Some((stored, is_put))),
            Err(ReadError::Damaged(reason)) => {
                let (device, hash) = (&self.device, owed.hash.hex());
                tracing::error!(
                    device,
                    hash,
                    reason,
                    "the row of a damaged record is not made"
                );
                Ok(None)
            }
            Err(error) => Err(self.read_error(error)),
        }
    }
}
