//! Rows of an exclusive database that are in memory alone, and that a log of objects owes until they are
//! merged durably ([`Debt`]): they need no entry in the pending file, and no sync of their own.
//!
//! They are merged with the log, for readers and before any other change, and by themselves when there are
//! many or the first has waited a while. A row that is dropped is owed still: the log of objects makes it
//! anew. So whatever fails here loses none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cairn_device::Debt;

use crate::ObjectRow;
use crate::rank::{Rank, Ranked};

/// Rows that are merged at once.
const MERGED_AT: usize = 2000;
/// Rows that may be owed; further ones are logged.
const OWED_MAX: usize = 6000;
/// The longest that a row waits for others.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Rows that could not be merged for so long are left to the log of objects.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Backed {
    rows: Ranked<Rows>,
    /// Rows that readers do not see.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Rows {
    waiting: Vec<(ObjectRow, Debt)>,
    /// Debts of rows that are merged, and not durable.
    shown: Vec<Debt>,
    /// When the first of them came.
    since: Option<Instant>,
    is_merge_scheduled: bool,
}

impl Backed {
    pub(super) fn new() -> Self {
        Backed {
            rows: Ranked::new(Rank::Backed, Rows::default()),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Takes a row; gives it back where there are too many. Beside that, whether a merge is to be scheduled by
    /// the caller: also by one whose row is not taken, since rows that came during the last merge may be so
    /// many that none of those which follow is.
    pub(crate) fn take(&self, row: ObjectRow, debt: Debt) -> (Result<(), (ObjectRow, Debt)>, bool) {
        let mut rows = self.rows.lock();
        let is_full = rows.waiting.len() + rows.shown.len() >= OWED_MAX;
        let taken = match is_full {
            true => Err((row, debt)),
            false => {
                rows.waiting.push((row, debt));
                rows.since.get_or_insert_with(Instant::now);
                self.waiting.store(rows.waiting.len(), Ordering::Release);
                Ok(())
            }
        };
        let is_due = (is_full || rows.waiting.len() >= MERGED_AT) && !rows.is_merge_scheduled;
        rows.is_merge_scheduled |= is_due;
        (taken, is_due)
    }

    /// Whether there are rows that readers do not see.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether no row is owed.
    pub(super) fn is_empty(&self) -> bool {
        let rows = self.rows.lock();
        rows.waiting.is_empty() && rows.shown.is_empty()
    }

    /// Whether a row has waited for long; true once until they are taken.
    pub(crate) fn is_old(&self) -> bool {
        let mut rows = self.rows.lock();
        let is_old = rows.since.is_some_and(|since| since.elapsed() >= AGE_MAX);
        let is_due = is_old && !rows.is_merge_scheduled;
        rows.is_merge_scheduled |= is_due;
        is_due
    }

    /// Takes the rows to be merged, with their debts.
    pub(super) fn take_all(&self) -> (Vec<ObjectRow>, Vec<Debt>) {
        let mut rows = self.rows.lock();
        self.waiting.store(0, Ordering::Release);
        if rows.shown.is_empty() {
            rows.since = None;
        }
        std::mem::take(&mut rows.waiting).into_iter().unzip()
    }

    /// Rows are merged, and not durable.
    pub(super) fn note_shown(&self, mut debts: Vec<Debt>) {
        if !debts.is_empty() {
            let mut rows = self.rows.lock();
            rows.shown.append(&mut debts);
            rows.since.get_or_insert_with(Instant::now);
        }
    }

    /// Takes the debts of rows that are merged: what follows makes them durable.
    pub(super) fn take_shown(&self) -> Vec<Debt> {
        let mut rows = self.rows.lock();
        rows.is_merge_scheduled = false;
        if rows.waiting.is_empty() {
            rows.since = None;
        }
        std::mem::take(&mut rows.shown)
    }

    /// A merge has failed. Rows that have waited for too long are left to the log of objects, which owes
    /// them; so are all where `is_gone`: there is no such database.
    pub(crate) fn give_up(&self, is_gone: bool) {
        let mut rows = self.rows.lock();
        rows.is_merge_scheduled = false;
        if is_gone || rows.since.is_some_and(|since| since.elapsed() >= PATIENCE) {
            let left = std::mem::take(&mut *rows);
            self.waiting.store(0, Ordering::Release);
            drop(rows);
            drop(left);
        }
    }

    /// The database is closed without a sync of its last merges: their rows are owed.
    pub(super) fn forget_shown(&self) {
        drop(self.take_shown());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_device::{Ledger, Owed};
    use cairn_types::{ObjectHash, Timestamp};

    use super::*;

    fn given(backed: &Backed) -> (bool, bool) {
        let timestamp = Timestamp::from_secs(1);
        let owed = Owed {
            number: 0,
            partition: 0,
            hash: ObjectHash([0; 16]),
            timestamp,
        };
        let debt = Ledger::new().owe(0, 1, &[owed]).pop().unwrap();
        let row = ObjectRow::tombstone("o".into(), timestamp, 0);
        let (taken, is_due) = backed.take(row, debt);
        (taken.is_ok(), is_due)
    }

    #[test]
    fn a_merge_is_scheduled_once_for_many_rows() {
        let backed = Backed::new();
        let due: Vec<usize> = (1..=OWED_MAX).filter(|_| given(&backed).1).collect();
        assert_eq!(due, [MERGED_AT]);
        assert_eq!(given(&backed), (false, false));
    }

    #[test]
    fn rows_that_came_during_a_merge_are_merged_though_no_more_are_taken() {
        let backed = Backed::new();
        while !given(&backed).1 {}
        let merging = backed.take_all();
        while given(&backed) == (true, false) {}
        assert!(backed.take_shown().is_empty());
        drop(merging);
        assert_eq!(given(&backed), (false, true));
        assert_eq!(given(&backed), (false, false));
    }

    #[test]
    fn rows_that_are_shown_and_not_durable_are_merged_before_there_is_room() {
        let backed = Backed::new();
        for _ in 0..OWED_MAX {
            given(&backed);
        }
        // For a reader, while the scheduled merge has not begun; another change ended that merge.
        let (_, debts) = backed.take_all();
        backed.take_shown();
        backed.note_shown(debts);
        assert_eq!(given(&backed), (false, true));
    }
}
