//! The committer's thread, and the bounded queue before it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::PebblesError;
use crate::format::{BATCH_SOFT_MAX, Class, NewRecord};
use crate::store::{Change, Reply, Store};

/// Writes that may wait; together with [`WAITING_BYTES`].
const WAITING_MAX: usize = 4096;
const WAITING_BYTES: usize = 64 << 20;
/// Turns of the processor that are left to other threads before the committer sleeps. Whoever waits for what
/// was just written comes back with the next write: to wake a thread for it costs both more.
const YIELDS: usize = 4;

struct Waiting {
    changes: VecDeque<(Change, Reply, usize)>,
    bytes: usize,
    is_closed: bool,
}

struct Queue {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

/// A store with its committer running.
pub struct Committer {
    store: Arc<Store>,
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Committer {
    /// Starts the thread; `name` is in its own name.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(store: Arc<Store>, name: &str) -> std::io::Result<Self> {
        let queue = Arc::new(Queue {
            waiting: Mutex::new(Waiting {
                changes: VecDeque::new(),
                bytes: 0,
                is_closed: false,
            }),
            more: Condvar::new(),
        });
        let (of_thread, its_store) = (queue.clone(), store.clone());
        let thread = std::thread::Builder::new()
            .name(format!("p-{name}"))
            .spawn(move || run(&its_store, &of_thread))?;
        Ok(Committer {
            store,
            queue,
            thread: Mutex::new(Some(thread)),
        })
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Queues a write; `reply` is called when it is durable, or has failed.
    pub fn submit(&self, change: Change, reply: Reply) {
        let bytes = match &change {
            Change::Write(record) | Change::Copy { record, .. } => weight(record),
            Change::Remove { .. } | Change::MoveRemoval { .. } => 256,
        };
        let mut waiting = self.queue.waiting.lock();
        let refused = match waiting.is_closed {
            true => Some(PebblesError::Closed),
            false
                if waiting.changes.len() >= WAITING_MAX
                    || waiting.bytes + bytes > WAITING_BYTES =>
            {
                Some(PebblesError::Busy)
            }
            false => None,
        };
        if let Some(error) = refused {
            drop(waiting);
            return reply(Err(error), None);
        }
        waiting.bytes += bytes;
        waiting.changes.push_back((change, reply, bytes));
        drop(waiting);
        self.queue.more.notify_one();
    }

    /// Writes that wait.
    pub fn waiting(&self) -> usize {
        self.queue.waiting.lock().changes.len()
    }

    /// Carries out all that waits, and ends the thread.
    pub fn close(&self) {
        self.queue.waiting.lock().is_closed = true;
        self.queue.more.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.close();
    }
}

fn weight(record: &NewRecord) -> usize {
    256 + record.name.len() + record.metadata.len() + record.body.len()
}

fn run(store: &Store, queue: &Queue) {
    loop {
        let taken: Vec<_> = {
            let mut waiting = queue.waiting.lock();
            let mut yields = 0;
            while waiting.changes.is_empty() {
                if waiting.is_closed {
                    return;
                }
                if yields < YIELDS {
                    yields += 1;
                    MutexGuard::unlocked(&mut waiting, std::thread::yield_now);
                    continue;
                }
                queue.more.wait(&mut waiting);
                yields = YIELDS;
            }
            // A batch: whoever waits for the next one is not waited for.
            let mut bytes = 0;
            let mut taken = Vec::new();
            while bytes < BATCH_SOFT_MAX
                && let Some(change) = waiting.changes.pop_front()
            {
                bytes += change.2;
                taken.push(change);
            }
            waiting.bytes -= bytes;
            taken
        };
        let mut replies = Vec::with_capacity(taken.len());
        let mut changes = Vec::with_capacity(taken.len());
        for (change, reply, _) in taken {
            changes.push(change);
            replies.push(reply);
        }
        // A panic ends the store, not the process: whoever waits sees its channel closed.
        let commit = || store.commit_owing(Class::Fresh, changes);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit)) {
            Ok(ended) => {
                for (reply, (ended, debt)) in replies.into_iter().zip(ended) {
                    reply(ended, debt);
                }
            }
            Err(_) => store.poison(),
        }
    }
}
