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

/// The answer to a row that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Waits,
    /// The caller schedules a merge.
    IsToBeMerged,
}

impl Backed {
    pub(super) fn new() -> Self {
        Backed {
            rows: Ranked::new(Rank::Backed, Rows::default()),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Takes a row; gives it back where there are too many.
    #[allow(clippy::result_large_err, reason = "given back as it came")]
    pub(crate) fn take(&self, row: ObjectRow, debt: Debt) -> Result<Taken, (ObjectRow, Debt)> {
        let mut rows = self.rows.lock();
        if rows.waiting.len() + rows.shown.len() >= OWED_MAX {
            return Err((row, debt));
        }
        rows.waiting.push((row, debt));
        rows.since.get_or_insert_with(Instant::now);
        let count = rows.waiting.len();
        self.waiting.store(count, Ordering::Release);
        let is_due = count >= MERGED_AT && !rows.is_merge_scheduled;
        rows.is_merge_scheduled |= is_due;
        Ok(match is_due {
            true => Taken::IsToBeMerged,
            false => Taken::Waits,
        })
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
