//! Other processes that wait for volumes of this one, and are let in.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::slot::Slot;
use super::stores::{Opened, Stores};

/// Operations under way are waited for when another process is to be let in; new ones wait meanwhile.
const DRAIN_MAX: Duration = Duration::from_millis(250);
const DRAIN_INTERVAL: Duration = Duration::from_millis(1);

impl Stores {
    /// Ends the stores that nothing uses, each with a checkpoint: another process may open them.
    pub(super) fn let_go(&self) {
        let open = self.open.lock();
        let all: Vec<_> = open
            .iter()
            .map(|(key, slot)| (key.clone(), slot.clone()))
            .collect();
        drop(open);
        for ((device, policy), slot) in all {
            // Whoever comes meanwhile waits, and opens it anew.
            let Some(mut open) = slot.opened.try_lock() else {
                continue;
            };
            // All users got it under this lock.
            if let Some(opened) = open.take_if(|opened| Arc::strong_count(opened) == 1) {
                opened.end(&device, policy);
                tracing::info!(device, %policy, "volumes are let go of");
            }
        }
    }

    /// Lets go of stores that other processes wait for, when it is their turn and what is under way has ended:
    /// what comes meanwhile waits.
    pub(super) fn make_way(&self) {
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        for slot in all {
            let Some(mut open) = slot.opened.try_lock() else {
                continue;
            };
            let is_due = |opened: &Arc<Opened>| opened.is_due_to_others(&slot);
            if !open.as_ref().is_some_and(is_due) {
                continue;
            }
            let begun = Instant::now();
            while open
                .as_ref()
                .is_some_and(|opened| Arc::strong_count(opened) > 1)
            {
                if begun.elapsed() >= DRAIN_MAX {
                    break;
                }
                std::thread::sleep(DRAIN_INTERVAL);
            }
            // All users got it under this lock.
            match open.take_if(|opened| Arc::strong_count(opened) == 1) {
                Some(opened) => {
                    let mark = opened.folder.mark();
                    opened.end_for_others();
                    slot.patience.made_way(mark);
                }
                None => slot.patience.disturbed(),
            }
        }
    }
}

impl Opened {
    /// Ends it for another process that waits. A checkpoint is worth its time where that process would read
    /// more of the log without it.
    fn end_for_others(&self) {
        self.committer.close();
        let is_worth_it = self.upkeep.lock().is_checkpoint_worth_it();
        if is_worth_it && !self.store().is_poisoned() {
            self.end(&self.device, self.policy);
        }
        tracing::debug!(device = self.device, policy = %self.policy, "volumes are handed over");
        self.folder.retire();
    }

    /// Whether another process waits for it, and it is that one's turn.
    pub(super) fn is_due_to_others(&self, slot: &Slot<Opened>) -> bool {
        let may_be = self.takes_turns
            && slot.patience.is_over(self.began.elapsed(), self.opening)
            && self.folder.is_open();
        let is_due = may_be && self.folder.is_wanted();
        self.is_wanted.store(is_due, Ordering::Release);
        is_due
    }
}
