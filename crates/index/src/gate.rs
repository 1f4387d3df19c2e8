//! Who may touch a database file that Swift's programs may open too: many readers, or the commit
//! of the one writer, in turns.
//!
//! SQLite's own locks would do it by trying again after longer and longer pauses. That is well
//! where a stranger has the file for once; between a server's own threads a long listing would
//! find the file free by chance alone. Here each commit lets in all readers that came during it,
//! and waits only for those that were in when it came.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    turn: Condvar,
}

#[derive(Default)]
struct State {
    /// Inside, or let in.
    readers: usize,
    /// For the end of a commit.
    waiting_readers: usize,
    commit: Commit,
    /// Commits that have ended.
    commits: u64,
}

#[derive(Default, PartialEq)]
enum Commit {
    #[default]
    None,
    Waits,
    Runs,
}

pub(crate) struct Reading<'g>(&'g Gate);

pub(crate) struct Committing<'g>(&'g Gate);

impl Gate {
    pub(crate) fn read(&self) -> Reading<'_> {
        let mut state = self.lock();
        if state.commit == Commit::None {
            state.readers += 1;
            return Reading(self);
        }
        state.waiting_readers += 1;
        let seen = state.commits;
        while state.commits == seen {
            state = self.wait(state);
        }
        // Counted in by the commit that let it in.
        Reading(self)
    }

    /// For one at a time: the caller has the right to write.
    pub(crate) fn commit(&self) -> Committing<'_> {
        let mut state = self.lock();
        state.commit = Commit::Waits;
        while state.readers > 0 {
            state = self.wait(state);
        }
        state.commit = Commit::Runs;
        Committing(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.turn
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.readers -= 1;
        if state.readers == 0 && state.commit == Commit::Waits {
            self.0.turn.notify_all();
        }
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.commit = Commit::None;
        state.commits += 1;
        state.readers += std::mem::take(&mut state.waiting_readers);
        if state.readers > 0 {
            self.0.turn.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn readers_and_commits_take_turns() {
        let gate = Gate::default();
        let (inside, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let reads: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|scope| {
            for count in &reads {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let reading = gate.read();
                        inside.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        count.fetch_add(1, Ordering::Relaxed);
                        drop(reading);
                    }
                });
            }
            let mut commits = 0;
            // Neither side can keep the other out: this ends.
            while reads.iter().any(|count| count.load(Ordering::Relaxed) < 50) || commits < 50 {
                let committing = gate.commit();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                std::thread::yield_now();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                drop(committing);
                commits += 1;
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(gate.lock().readers, 0);
    }
}
