//! Rows that a log owes to databases: it keeps the change that a row is about, and a row which is only
//! in memory can be made again from it, as long as the log remembers that it is owed.
//!
//! A log numbers its records and writes them in batches. [`Ledger::owe`] notes those of a batch whose
//! rows are owed, and gives a [`Debt`] for each. A debt is settled when the row is durable where it
//! belongs, or where it is kept for later. One that is dropped before that has failed: whoever
//! maintains the log takes it ([`Ledger::take_failed`]), keeps its row for later, and settles it.
//!
//! [`Ledger::mark`] is the number below which nothing is owed; the log writes it down with each batch,
//! and owes, when it is opened again, the rows of all records from there on. What it need not read again
//! then it writes down too ([`Ledger::owed_below`]).

use std::collections::VecDeque;
use std::sync::Arc;

use cairn_types::{ObjectHash, Timestamp};
use parking_lot::Mutex;

/// The change that a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// Number of its record.
    pub number: u64,
    pub partition: u32,
    pub hash: ObjectHash,
    pub timestamp: Timestamp,
}

/// The rows that a log owes.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Batches of which rows are owed, by the number of the first record.
    batches: VecDeque<Batch>,
    failed: Vec<Owed>,
}

#[derive(Debug)]
struct Batch {
    first: u64,
    /// The number behind the last record.
    end: u64,
    /// In the order of their numbers, and whether each is settled.
    rows: Vec<(Owed, bool)>,
    left: usize,
}

/// A row that is owed, until it is settled.
#[derive(Debug)]
pub struct Debt {
    ledger: Arc<Ledger>,
    owed: Option<Owed>,
}

impl Debt {
    /// The row is durable in its database, or kept for later.
    pub fn settle(mut self) {
        if let Some(owed) = self.owed.take() {
            self.ledger.settle(owed);
        }
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        if let Some(owed) = self.owed.take() {
            self.ledger.0.lock().failed.push(owed);
        }
    }
}

impl Ledger {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The number below which no row is owed; `None`: no row is.
    pub fn mark(&self) -> Option<u64> {
        self.0.lock().batches.front().map(|batch| batch.first)
    }

    /// Notes the rows of a batch of records, which are numbered from `first` to below `end`: behind those
    /// of all batches before. The debts come in the rows' order.
    pub fn owe(self: &Arc<Self>, first: u64, end: u64, rows: &[Owed]) -> Vec<Debt> {
        if !rows.is_empty() {
            let batch = Batch {
                first,
                end,
                rows: rows.iter().map(|owed| (*owed, false)).collect(),
                left: rows.len(),
            };
            self.0.lock().batches.push_back(batch);
        }
        let debt = |owed: &Owed| Debt {
            ledger: self.clone(),
            owed: Some(*owed),
        };
        rows.iter().map(debt).collect()
    }

    /// The rows owed of records with lower numbers, in their order.
    pub fn owed_below(&self, number: u64) -> Vec<Owed> {
        let state = self.0.lock();
        let batches = state.batches.iter();
        let rows = batches
            .take_while(|batch| batch.first < number)
            .flat_map(|batch| &batch.rows);
        let left = rows.filter(|(owed, is_settled)| !is_settled && owed.number < number);
        left.map(|(owed, _)| *owed).collect()
    }

    /// Takes rows that nobody has any more, at most so many.
    pub fn take_failed(self: &Arc<Self>, most: usize) -> Vec<(Owed, Debt)> {
        let mut state = self.0.lock();
        let count = state.failed.len().min(most);
        let taken = state.failed.drain(..count);
        let debt = |owed| Debt {
            ledger: self.clone(),
            owed: Some(owed),
        };
        taken.map(|owed| (owed, debt(owed))).collect()
    }

    fn settle(&self, owed: Owed) {
        let mut state = self.0.lock();
        let batches = &mut state.batches;
        let at = batches.partition_point(|batch| batch.end <= owed.number);
        if let Some(batch) = batches.get_mut(at) {
            let of_row = batch
                .rows
                .binary_search_by_key(&owed.number, |(owed, _)| owed.number);
            if let Ok(at) = of_row {
                batch.rows[at].1 = true;
            }
            batch.left = batch.left.saturating_sub(1);
            if batch.left == 0 {
                // It may have to wait for the ones in front of it.
                batch.rows = Vec::new();
            }
        }
        while batches.front().is_some_and(|batch| batch.left == 0) {
            batches.pop_front();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn owed(number: u64) -> Owed {
        Owed {
            number,
            partition: 1,
            hash: ObjectHash([number as u8; 16]),
            timestamp: Timestamp::from_secs(number),
        }
    }

    #[test]
    fn the_mark_is_that_of_the_oldest_batch_with_a_row_owed() {
        let ledger = Ledger::new();
        assert_eq!(ledger.mark(), None);
        let mut first = ledger.owe(10, 14, &[owed(10), owed(13)]);
        assert!(ledger.owe(14, 20, &[]).is_empty());
        let second = ledger.owe(20, 22, &[owed(21)]);
        assert_eq!(ledger.mark(), Some(10));
        first.pop().unwrap().settle();
        let below = |number| -> Vec<u64> {
            let owed = ledger.owed_below(number);
            owed.iter().map(|owed| owed.number).collect()
        };
        assert_eq!(
            (below(10), below(21), below(22)),
            (vec![], vec![10], vec![10, 21])
        );
        second.into_iter().for_each(Debt::settle);
        assert_eq!(ledger.mark(), Some(10), "one of the first batch is owed");
        first.pop().unwrap().settle();
        assert_eq!(ledger.mark(), None);
    }

    #[test]
    fn a_debt_that_is_dropped_is_owed_until_somebody_settles_it() {
        let ledger = Ledger::new();
        drop(ledger.owe(5, 8, &[owed(5), owed(6), owed(7)]));
        assert_eq!(ledger.mark(), Some(5));
        let (what, debt) = ledger.take_failed(1).pop().unwrap();
        assert_eq!(what, owed(5));
        drop(debt);
        let failed = ledger.take_failed(9);
        let numbers: Vec<_> = failed.iter().map(|(owed, _)| owed.number).collect();
        assert_eq!(numbers, [6, 7, 5]);
        failed.into_iter().for_each(|(_, debt)| debt.settle());
        assert_eq!((ledger.mark(), ledger.take_failed(9).len()), (None, 0));
    }
}
