//! The queue of a database's updates, of which all that wait become one transaction.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use super::{Db, Update, lock};
use crate::IndexError;

/// How long a batch waits for more: a fraction of what a sync takes.
const GATHER_MAX: Duration = Duration::from_micros(100);

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) updates: VecDeque<Box<dyn Update>>,
    /// A thread has been asked to empty it.
    pub(crate) draining: bool,
    /// How many updates the last two batches had.
    last: [usize; 2],
    /// A thread waits for so many.
    awaited: Option<usize>,
}

impl Queue {
    /// The updates of the next transaction.
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
    /// Waits a moment for as many updates as came lately. Their clients were all told at once and
    /// come back at about the same time: a sync that begins with the first of them makes the
    /// others wait for two.
    pub(crate) fn gather(&self) {
        let mut queue = lock(&self.queue);
        let count = queue.last.iter().sum::<usize>() / 2;
        if queue.updates.len() < count {
            queue.awaited = Some(count);
            let gathered = self
                .gathered
                .wait_timeout_while(queue, GATHER_MAX, |queue| !queue.is_gathered());
            queue = gathered.unwrap_or_else(PoisonError::into_inner).0;
            queue.awaited = None;
        }
    }

    /// Tells all whose updates wait that nothing comes of them: there is nobody to make them.
    pub(crate) fn refuse_all(&self, error: impl Fn() -> IndexError) {
        let refused = {
            let mut queue = lock(&self.queue);
            queue.draining = false;
            std::mem::take(&mut queue.updates)
        };
        for update in refused {
            update.finish(Err(error()));
        }
    }

    /// Is there anything to drain? If not, whoever queues the next update asks a thread.
    pub(crate) fn has_more(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.draining = !queue.updates.is_empty();
        queue.draining
    }
}
