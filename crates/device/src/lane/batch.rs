//! Durable operations that go together: each is run to its next sync, which is then done once for all
//! of them, until the last has ended; then comes what they leave to tidy up.
//!
//! A batch goes by steps (an operation advances, a thing is synced), so that a simulator can have
//! something fail between any two. Whatever happens, each operation hears once how it ended: where a
//! sync fails or panics, all that wait for it are told so, and where an operation panics, its own
//! waiter sees a closed channel and the others go on.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use cairn_types::plant::Plant;

use super::Progress;
use super::commits::{Advanced, Host, Operation};
use super::step::Afterwards;
use crate::syncs::{Patience, SyncSet, Syncing};

pub(crate) struct Batch<H: Host> {
    operations: Vec<Box<dyn Operation<H>>>,
    /// Nobody else waited when it was taken.
    is_all: bool,
    /// The device, opened for all of them.
    ground: Option<H::Ground>,
    stage: Stage,
    /// The sets of those that have advanced, by file system.
    sets: Vec<SyncSet>,
    afterwards: Vec<Afterwards>,
    tidies_since: Option<Instant>,
    tidied: Option<Duration>,
}

enum Stage {
    Begin,
    /// The operation of this number is next; `is_alone`: nobody else waits for the thread.
    Advance {
        at: usize,
        is_alone: bool,
    },
    Sync(Syncing),
    Tidy,
    /// Syncs what has been answered already: a bug on purpose.
    Late,
}

impl<H: Host> Batch<H> {
    pub(crate) fn new(operations: Vec<Box<dyn Operation<H>>>, is_all: bool) -> Self {
        Batch {
            operations,
            is_all,
            ground: None,
            stage: Stage::Begin,
            sets: Vec::new(),
            afterwards: Vec::new(),
            tidies_since: None,
            tidied: None,
        }
    }

    /// How long tidying up took, of a batch that was not refused.
    pub(crate) fn tidied(&self) -> Option<Duration> {
        self.tidied
    }

    pub(crate) fn step(
        &mut self,
        host: &H,
        patience: Patience,
        now: &dyn Fn() -> Instant,
    ) -> Progress {
        let stage = std::mem::replace(&mut self.stage, Stage::Tidy);
        match stage {
            Stage::Begin => return self.begin(host),
            Stage::Advance { at, is_alone } => self.advance(at, is_alone),
            Stage::Sync(mut sync) => match sync.step(patience) {
                None => self.stage = Stage::Sync(sync),
                Some(synced) => match synced.err().or_else(|| host.broken()) {
                    None => self.sync_next(),
                    Some(error) => self.fail(&error),
                },
            },
            Stage::Tidy => return self.tidy(now),
            Stage::Late => return self.sync_late(),
        }
        Progress::Goes
    }

    fn begin(&mut self, host: &H) -> Progress {
        match host.begin() {
            Ok(ground) => {
                self.ground = Some(ground);
                self.next_round();
                Progress::Goes
            }
            Err(error) => {
                for mut operation in self.operations.drain(..) {
                    caught(|| operation.refuse(&error));
                }
                Progress::Done
            }
        }
    }

    fn next_round(&mut self) {
        let is_alone = self.is_all && self.operations.len() == 1 && self.afterwards.is_empty();
        self.stage = Stage::Advance { at: 0, is_alone };
    }

    fn advance(&mut self, at: usize, is_alone: bool) {
        let Some(ground) = &self.ground else { return };
        let mut next = at;
        if let Some(operation) = self.operations.get_mut(at) {
            let advanced = catch_unwind(AssertUnwindSafe(|| operation.advance(ground, is_alone)));
            match advanced {
                Ok(Advanced::Sync(set)) => {
                    add(&mut self.sets, set);
                    next += 1;
                }
                Ok(Advanced::Ended(afterwards)) => {
                    self.afterwards.extend(afterwards);
                    drop(self.operations.remove(at));
                }
                Err(_) => {
                    tracing::error!("a durable operation panicked");
                    let panicked = self.operations.remove(at);
                    caught(|| drop(panicked));
                }
            }
        }
        if next < self.operations.len() {
            self.stage = Stage::Advance { at: next, is_alone };
        } else if self.operations.is_empty() {
            self.stage = Stage::Tidy;
        } else if Plant::AnswersBeforeSync.is_on() {
            self.next_round();
        } else {
            self.sync_next();
        }
    }

    /// Syncs what is still to be synced for all, or goes on with each.
    fn sync_next(&mut self) {
        match self.sets.pop() {
            Some(set) => self.stage = Stage::Sync(Syncing::new(set)),
            None => self.next_round(),
        }
    }

    /// Nobody knows what is on disk of what they wrote.
    fn fail(&mut self, error: &io::Error) {
        let Some(ground) = &self.ground else { return };
        self.sets.clear();
        for operation in &mut self.operations {
            caught(|| operation.sync_failed(ground, error));
        }
        for mut operation in self.operations.drain(..) {
            caught(|| operation.fail(ground, error));
        }
        self.stage = Stage::Tidy;
    }

    fn tidy(&mut self, now: &dyn Fn() -> Instant) -> Progress {
        let since = *self.tidies_since.get_or_insert_with(now);
        if !self.afterwards.is_empty() {
            caught(self.afterwards.remove(0));
            return Progress::Goes;
        }
        self.tidied = Some(now().saturating_duration_since(since));
        if Plant::AnswersBeforeSync.is_on() && !self.sets.is_empty() {
            self.stage = Stage::Late;
            return Progress::Goes;
        }
        Progress::Done
    }

    fn sync_late(&mut self) -> Progress {
        if let Some(set) = self.sets.pop() {
            let _ = set.file_system.sync(&set);
            self.stage = Stage::Late;
            return Progress::Goes;
        }
        Progress::Done
    }
}

/// Adds what an operation needs to be synced to what others of its batch do.
fn add(sets: &mut Vec<SyncSet>, set: SyncSet) {
    match sets.iter_mut().find(|known| known.is_mergeable(&set)) {
        Some(known) => known.merge(set),
        None => sets.push(set),
    }
}

/// A panic ends the one thing that panicked.
fn caught(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("a durable operation panicked");
    }
}
