//! Rows that records owe: made durable in part, and made again after a power cut.

use cairn_disk::owed::{Debt, Owed};
use cairn_pebbles::object::EntryKind;
use cairn_types::Timestamp;

use crate::model::{Key, Write};
use crate::world::{Checked, World};

impl World {
    /// Every row that is owed is made anew, unless its record counts no longer (the engine keeps an object for a
    /// while whose row may be owed, this is below it): then none is owed, also when a replicator brings the
    /// same record again. Some of the others are then durable.
    pub(super) fn check_owed(&mut self) -> Checked {
        let Some((store, _)) = &self.store else {
            return Ok(());
        };
        let store = store.clone();
        let made = store.take_failed_rows(usize::MAX);
        self.owed.retain(|(key, timestamp)| {
            let entries = store.index().get(key.0, key.1);
            entries.iter().any(|entry| {
                let is_of_row = matches!(entry.kind, EntryKind::Data | EntryKind::Tombstone);
                is_of_row && entry.timestamp == *timestamp
            })
        });
        for (key, timestamp) in &self.owed {
            let is_it =
                |(owed, _): &(Owed, Debt)| (owed.hash, owed.timestamp) == (key.1, *timestamp);
            if !made.iter().any(is_it) && !self.is_hit(*key) {
                let hash = key.1.0[0];
                return Err(format!(
                    "{hash:02x}: the row of {timestamp:?} is owed, and lost"
                ));
            }
        }
        let debts = made.into_iter();
        self.debts = debts
            .map(|(owed, debt)| (self.row_of(&owed), debt))
            .collect();
        self.settle_some();
        Ok(())
    }

    /// No row is owed any more of what was removed, though the same record may come again.
    pub(super) fn forget_rows(&mut self, key: Key, write: &Write) {
        if let Write::Remove(up_to, _) = write {
            self.owed.retain(|(of, at)| *of != key || at > up_to);
        }
    }

    /// Makes some rows durable that are owed; others are dropped, and taken again.
    pub(super) fn settle_some(&mut self) {
        let debts = std::mem::take(&mut self.debts);
        for (what, debt) in debts {
            match self.below(4) {
                0 | 1 => {
                    debt.settle();
                    self.owed.remove(&what);
                }
                2 => drop(debt),
                _ => self.debts.push((what, debt)),
            }
        }
        if let Some((store, _)) = &self.store {
            for (owed, debt) in store.take_failed_rows(2) {
                self.debts.push((self.row_of(&owed), debt));
            }
        }
    }

    fn row_of(&self, owed: &Owed) -> (Key, Timestamp) {
        (self.key_of(owed.partition, owed.hash), owed.timestamp)
    }
}
