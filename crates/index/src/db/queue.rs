//! Queue of a database's updates; all that wait become one transaction.

use std::collections::VecDeque;
use std::time::Duration;

use cairn_types::heuristic::Heuristic;

use super::{Db, Update};
use crate::IndexError;

/// Maximum wait of a batch for more updates: a fraction of a sync's time.
const GATHER_MAX: Duration = Duration::from_micros(100);

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) updates: VecDeque<Box<dyn Update>>,
    /// Whether a thread has been scheduled to drain it.
    pub(crate) draining: bool,
    /// Sizes of the last two batches.
    last: [usize; 2],
    /// Number of updates that a thread waits for.
    awaited: Option<usize>,
}

impl Queue {
    /// Takes the updates of the next transaction.
    pub(super) fn take(&mut self, most: usize) -> Vec<Box<dyn Update>> {
        let count = self.updates.len().min(most.max(1));
        self.last = [self.last[1], count];
        self.updates.drain(..count).collect()
    }

    pub(crate) fn is_gathered(&self) -> bool {
        self.awaited
            .is_some_and(|count| self.updates.len() >= count)
    }
}

impl Db {
    /// Waits briefly for as many updates as recent batches had. Their clients were notified
    /// together and return at about the same time: a sync that started with the first would make
    /// the others wait for two.
    pub(crate) fn gather(&self) {
        if Heuristic::GatherUpdates.is_off() {
            return;
        }
        let mut queue = self.queue.lock();
        let count = queue.last.iter().sum::<usize>() / 2;
        if queue.updates.len() < count {
            queue.awaited = Some(count);
            queue.wait_while_for(&self.gathered, |queue| !queue.is_gathered(), GATHER_MAX);
            queue.awaited = None;
        }
    }

    /// Fails all queued updates: no thread can apply them.
    pub(crate) fn refuse_all(&self, error: impl Fn() -> IndexError) {
        let refused = {
            let mut queue = self.queue.lock();
            queue.draining = false;
            std::mem::take(&mut queue.updates)
        };
        for update in refused {
            update.finish(Err(error()));
        }
    }

    /// Whether updates are queued. If not, the next to queue one schedules a thread.
    pub(crate) fn has_more(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.draining = !queue.updates.is_empty();
        queue.draining
    }
}
