//! Durable operations in steps: work, then a sync that many operations share, then more work.
//!
//! With one operation at hand it is as if that one had called fsync itself.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use futures_channel::oneshot;

use super::commits::{Advanced, Host, Operation};
use crate::syncs::SyncSet;

/// The tidying up that is done when everybody has been told: a crash may leave it undone.
pub type Afterwards = Box<dyn FnOnce() + Send>;
type Next<G, T> = Box<dyn FnOnce(&G) -> Result<Step<G, T>, <G as OpenDevice>::Error> + Send>;

/// Tells a device of an operation that has failed.
pub type FailureReporter<E> = Box<dyn FnOnce(&E) + Send>;

/// An open device, as operations in steps see it.
pub trait OpenDevice: Sized {
    type Error: Send;

    /// Syncs a set here and now.
    ///
    /// # Errors
    /// Nobody knows what of it is on disk. The device has been told.
    fn sync(&self, set: &SyncSet) -> Result<(), Self::Error>;
    /// A sync has failed: the device's own view of that, told of each operation.
    fn sync_failed(&self, error: &io::Error) -> Self::Error;
    /// An operation has failed by itself.
    fn note(&self, error: &Self::Error);
    /// [`OpenDevice::note`] for an operation that ends on another thread.
    fn failure_reporter(&self) -> FailureReporter<Self::Error>;
    /// The error of an operation whose thread has ended without completing it.
    fn stopped(&self) -> Self::Error;
}

/// The end of an operation that was handed to another thread. Dropped without a result, the operation
/// has failed because its device has stopped.
pub struct Completion<T, E>(Box<dyn FnOnce(Result<T, E>) + Send>);

impl<T, E> Completion<T, E> {
    pub(super) fn new(complete: impl FnOnce(Result<T, E>) + Send + 'static) -> Self {
        Completion(Box::new(complete))
    }

    /// The operation is durable, or has failed. A panic of whoever waits ends there, and not the
    /// engine's thread.
    pub fn complete(self, result: Result<T, E>) {
        let complete = AssertUnwindSafe(|| (self.0)(result));
        if catch_unwind(complete).is_err() {
            tracing::error!("the end of an operation panicked");
        }
    }
}

/// An operation that a thread of its own carries on, from when it is given its completion.
pub struct Handed<T, E>(Box<dyn FnOnce(Completion<T, E>) + Send>);

/// How far an operation has come.
pub enum Step<G: OpenDevice, T> {
    Done(T),
    /// Done, with something to tidy up.
    DoneThen(T, Afterwards),
    /// Everything in `set` has to be on disk before `next` runs.
    Sync {
        set: SyncSet,
        next: Next<G, T>,
    },
    /// Handed to another thread, which completes it when it is durable. Nothing else waits for it.
    Handed(Handed<T, G::Error>),
}

impl<G: OpenDevice + 'static, T: Send + 'static> Step<G, T> {
    /// Everything that `set` names has to be on disk before `next` runs.
    pub fn sync(
        set: SyncSet,
        next: impl FnOnce(&G) -> Result<Self, G::Error> + Send + 'static,
    ) -> Self {
        Step::Sync {
            set,
            next: Box::new(next),
        }
    }

    /// `hand`: gives the operation to the thread that carries it on, which calls the completion.
    pub fn handed(hand: impl FnOnce(Completion<T, G::Error>) + Send + 'static) -> Self {
        Step::Handed(Handed(Box::new(hand)))
    }

    /// The same operation with its result turned into another.
    pub fn map<U: Send + 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Step<G, U> {
        match self {
            Step::Done(value) => Step::Done(f(value)),
            Step::DoneThen(value, afterwards) => Step::DoneThen(f(value), afterwards),
            Step::Sync { set, next } => Step::Sync {
                set,
                next: Box::new(move |opened| Ok(next(opened)?.map(f))),
            },
            Step::Handed(Handed(hand)) => Step::handed(move |completion| {
                let mapped = |result: Result<T, G::Error>| completion.complete(result.map(f));
                hand(Completion::new(mapped));
            }),
        }
    }

    /// The same operation with another end, in place of its own.
    pub fn end<U: Send + 'static>(
        self,
        f: impl FnOnce(T) -> Step<G, U> + Send + 'static,
    ) -> Step<G, U> {
        match self {
            Step::Done(value) | Step::DoneThen(value, _) => f(value),
            Step::Sync { set, next } => Step::Sync {
                set,
                next: Box::new(move |opened| Ok(next(opened)?.end(f))),
            },
            // Only steps of files have another end, and these are done by the device's own threads.
            Step::Handed(_) => unreachable!("an operation that was handed over has its own end"),
        }
    }

    /// Runs all steps here and now.
    ///
    /// # Errors
    /// The operation's, or that of a sync.
    pub fn finish(mut self, opened: &G) -> Result<T, G::Error> {
        loop {
            match self {
                Step::Done(value) => return Ok(value),
                Step::DoneThen(value, afterwards) => {
                    afterwards();
                    return Ok(value);
                }
                Step::Sync { set, next } => {
                    opened.sync(&set)?;
                    self = next(opened)?;
                }
                Step::Handed(Handed(hand)) => {
                    let (sender, receiver) = mpsc::sync_channel(1);
                    hand(Completion::new(move |result| _ = sender.send(result)));
                    return receiver.recv().unwrap_or_else(|_| Err(opened.stopped()));
                }
            }
        }
    }
}

/// An operation in steps on its way through a commit lane.
pub struct Run<G: OpenDevice, T> {
    next: Option<Next<G, T>>,
    sender: Option<oneshot::Sender<Result<T, G::Error>>>,
}

impl<G: OpenDevice + 'static, T: Send + 'static> Run<G, T> {
    pub fn new(
        first: impl FnOnce(&G) -> Result<Step<G, T>, G::Error> + Send + 'static,
        sender: oneshot::Sender<Result<T, G::Error>>,
    ) -> Self {
        Run {
            next: Some(Box::new(first)),
            sender: Some(sender),
        }
    }

    fn end(&mut self, result: Result<T, G::Error>) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(result);
        }
    }

    /// Hands it to the thread that carries it on and tells of its end.
    fn hand(
        &mut self,
        handed: Handed<T, G::Error>,
        opened: &G,
        then: impl FnOnce() + Send + 'static,
    ) {
        let Some(sender) = self.sender.take() else {
            return;
        };
        let note = opened.failure_reporter();
        (handed.0)(Completion::new(move |result| {
            if let Err(error) = &result {
                note(error);
            }
            then();
            let _ = sender.send(result);
        }));
    }

    /// An operation whose first step its caller has taken. `None` where that ended it, or handed it to
    /// another thread, which calls `then` when it has ended; else the rest, for a lane.
    pub fn begun(
        first: Result<Step<G, T>, G::Error>,
        opened: &G,
        sender: oneshot::Sender<Result<T, G::Error>>,
        then: impl FnOnce() + Send + 'static,
    ) -> Option<Self> {
        let mut run = Run {
            next: None,
            sender: Some(sender),
        };
        match first {
            Ok(Step::Done(value)) => run.end(Ok(value)),
            Ok(Step::Handed(handed)) => run.hand(handed, opened, then),
            Err(error) => {
                opened.note(&error);
                run.end(Err(error));
            }
            Ok(step @ (Step::Sync { .. } | Step::DoneThen(..))) => {
                run.next = Some(Box::new(move |_| Ok(step)));
                return Some(run);
            }
        }
        None
    }
}

impl<H, G, T> Operation<H> for Run<G, T>
where
    H: Host<OpenDevice = G>,
    G: OpenDevice + 'static,
    G::Error: for<'e> From<&'e H::Error>,
    T: Send + 'static,
{
    fn advance(&mut self, opened: &G, is_alone: bool) -> Advanced {
        let Some(next) = self.next.take() else {
            return Advanced::Ended(None);
        };
        match next(opened) {
            Ok(Step::Sync { set, next }) => {
                self.next = Some(next);
                Advanced::Sync(set)
            }
            Ok(Step::Done(value)) => {
                self.end(Ok(value));
                Advanced::Ended(None)
            }
            Ok(Step::DoneThen(value, afterwards)) => {
                let mut left = Some(afterwards);
                if is_alone && let Some(afterwards) = left.take() {
                    run_caught(afterwards);
                }
                self.end(Ok(value));
                Advanced::Ended(left)
            }
            Ok(Step::Handed(handed)) => {
                self.hand(handed, opened, || {});
                Advanced::Ended(None)
            }
            Err(error) => {
                opened.note(&error);
                self.end(Err(error));
                Advanced::Ended(None)
            }
        }
    }

    fn sync_failed(&mut self, opened: &G, error: &io::Error) {
        drop(opened.sync_failed(error));
    }

    fn fail(&mut self, opened: &G, error: &io::Error) {
        let error = opened.sync_failed(error);
        self.end(Err(error));
    }

    fn refuse(&mut self, error: &H::Error) {
        self.end(Err(error.into()));
    }
}

/// A panic in it ends it, not the operation.
fn run_caught(tidy_up: Afterwards) {
    let _ = catch_unwind(AssertUnwindSafe(tidy_up));
}
