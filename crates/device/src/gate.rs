//! A readers-writer turnstile for a database file that Swift's programs may open too: many readers, or
//! the commit of the one writer, in turns.
//!
//! SQLite's own locks would do it by trying again after longer and longer pauses. That is well
//! where a stranger has the file for once; between a server's own threads a long listing would
//! find the file free by chance alone. Here each commit lets in all readers that came during it,
//! and waits only for those that were in when it came.
//!
//! Readers and commits ask for their turns and take them later, so that a simulator's workers need not
//! wait on a thread. A turn that is given up is as one that has ended.

use std::sync::Arc;

use cairn_types::plant::Plant;

use crate::locks::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
pub struct Gate {
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

/// A reader that has asked for its turn, or has it.
pub struct Reading {
    gate: Arc<Gate>,
    /// Commits that had ended when it came, if it waits for the one after.
    waits_since: Option<u64>,
}

/// A commit that has asked for its turn, or has it.
pub struct Committing {
    gate: Arc<Gate>,
}

impl Gate {
    /// Waits for a reader's turn.
    pub fn read(self: &Arc<Self>) -> Reading {
        let mut reading = self.ask_to_read();
        while !reading.is_in() {
            let mut state = self.state.lock();
            if reading.waits(&state) {
                self.turn.wait(&mut state);
            }
        }
        reading
    }

    /// Asks for a reader's turn.
    pub fn ask_to_read(self: &Arc<Self>) -> Reading {
        let mut state = self.state.lock();
        let is_free = state.commit == Commit::None || Plant::ReaderLetInEarly.is_on();
        match is_free {
            true => state.readers += 1,
            false => state.waiting_readers += 1,
        }
        Reading {
            gate: self.clone(),
            waits_since: (!is_free).then_some(state.commits),
        }
    }

    /// Waits for a commit's turn: one at a time, for the caller has the right to write.
    pub fn commit(self: &Arc<Self>) -> Committing {
        let committing = self.ask_to_commit();
        let mut state = self.state.lock();
        while !committing.enter(&mut state) {
            self.turn.wait(&mut state);
        }
        drop(state);
        committing
    }

    /// Asks for a commit's turn: readers that come from now on wait for its end.
    pub fn ask_to_commit(self: &Arc<Self>) -> Committing {
        let mut state = self.state.lock();
        assert!(state.commit == Commit::None, "two commits at once");
        state.commit = Commit::Waits;
        Committing { gate: self.clone() }
    }
}

impl Reading {
    /// Whether it is this reader's turn.
    pub fn is_in(&mut self) -> bool {
        let gate = self.gate.clone();
        let state = gate.state.lock();
        if self.waits(&state) {
            return false;
        }
        // Counted in by the commit that let it in.
        self.waits_since = None;
        true
    }

    fn waits(&self, state: &State) -> bool {
        self.waits_since == Some(state.commits)
    }
}

impl Committing {
    /// Whether it is this commit's turn, from now on until it ends.
    pub fn is_in(&self) -> bool {
        self.enter(&mut self.gate.state.lock())
    }

    fn enter(&self, state: &mut MutexGuard<'_, State>) -> bool {
        if state.readers == 0 {
            state.commit = Commit::Runs;
        }
        state.commit == Commit::Runs
    }

    /// Ends the turn of a commit that was made.
    ///
    /// # Panics
    /// A reader was let in meanwhile.
    pub fn end(self) {
        let readers = self.gate.state.lock().readers;
        assert_eq!(readers, 0, "readers in a database while it was committed");
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        if self.waits(&state) {
            state.waiting_readers -= 1;
            return;
        }
        state.readers -= 1;
        if state.readers == 0 && state.commit == Commit::Waits {
            self.gate.turn.notify_all();
        }
    }
}

impl Drop for Committing {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        state.commit = Commit::None;
        state.commits += 1;
        state.readers += std::mem::take(&mut state.waiting_readers);
        if state.readers > 0 {
            self.gate.turn.notify_all();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn readers_and_commits_take_turns() {
        let gate = Arc::new(Gate::default());
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
                committing.end();
                commits += 1;
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(gate.state.lock().readers, 0);
    }

    #[test]
    fn a_turn_that_is_given_up_keeps_nobody_waiting() {
        let gate = Arc::new(Gate::default());
        let inside = gate.read();
        let waiting = gate.ask_to_commit();
        assert!(!waiting.is_in());
        let mut late = gate.ask_to_read();
        let given_up = gate.ask_to_read();
        assert!(!late.is_in());
        drop(given_up);
        drop(waiting);
        assert!(late.is_in(), "the commit was given up");
        drop((inside, late));
        let committing = gate.ask_to_commit();
        assert!(committing.is_in());
        // Let in by a commit that has ended, and given up before it looked.
        let let_in = gate.ask_to_read();
        committing.end();
        drop(let_in);
        assert!(gate.ask_to_commit().is_in());
    }
}
