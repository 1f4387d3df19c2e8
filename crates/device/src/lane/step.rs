//! Durable operations in steps: work, then a sync that many operations share, then more work.
//!
//! With one operation at hand it is as if that one had called fsync itself.

use std::io;

use futures_channel::oneshot;

use super::commits::{Advanced, Host, Operation};
use crate::syncs::SyncSet;

/// The tidying up that is done when everybody has been told: a crash may leave it undone.
pub type Afterwards = Box<dyn FnOnce() + Send>;
type Next<G, T> = Box<dyn FnOnce(&G) -> Result<Step<G, T>, <G as Ground>::Error> + Send>;

/// An open device, as operations in steps see it.
pub trait Ground: Sized {
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
}

/// How far an operation has come.
pub enum Step<G: Ground, T> {
    Done(T),
    /// Done, with something to tidy up.
    DoneThen(T, Afterwards),
    /// Everything in `set` has to be on disk before `next` runs.
    Sync {
        set: SyncSet,
        next: Next<G, T>,
    },
}

impl<G: Ground + 'static, T: Send + 'static> Step<G, T> {
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

    /// The same operation with its result turned into another.
    pub fn map<U: Send + 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Step<G, U> {
        match self {
            Step::Done(value) => Step::Done(f(value)),
            Step::DoneThen(value, afterwards) => Step::DoneThen(f(value), afterwards),
            Step::Sync { set, next } => Step::Sync {
                set,
                next: Box::new(move |ground| Ok(next(ground)?.map(f))),
            },
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
                next: Box::new(move |ground| Ok(next(ground)?.end(f))),
            },
        }
    }

    /// Runs all steps here and now.
    ///
    /// # Errors
    /// The operation's, or that of a sync.
    pub fn finish(mut self, ground: &G) -> Result<T, G::Error> {
        loop {
            match self {
                Step::Done(value) => return Ok(value),
                Step::DoneThen(value, afterwards) => {
                    afterwards();
                    return Ok(value);
                }
                Step::Sync { set, next } => {
                    ground.sync(&set)?;
                    self = next(ground)?;
                }
            }
        }
    }
}

/// An operation in steps on its way through a commit lane.
pub struct Run<G: Ground, T> {
    next: Option<Next<G, T>>,
    sender: Option<oneshot::Sender<Result<T, G::Error>>>,
}

impl<G: Ground + 'static, T: Send + 'static> Run<G, T> {
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
}

impl<H, G, T> Operation<H> for Run<G, T>
where
    H: Host<Ground = G>,
    G: Ground + 'static,
    G::Error: for<'e> From<&'e H::Error>,
    T: Send + 'static,
{
    fn advance(&mut self, ground: &G, is_alone: bool) -> Advanced {
        let Some(next) = self.next.take() else {
            return Advanced::Ended(None);
        };
        match next(ground) {
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
            Err(error) => {
                ground.note(&error);
                self.end(Err(error));
                Advanced::Ended(None)
            }
        }
    }

    fn sync_failed(&mut self, ground: &G, error: &io::Error) {
        drop(ground.sync_failed(error));
    }

    fn fail(&mut self, ground: &G, error: &io::Error) {
        let error = ground.sync_failed(error);
        self.end(Err(error));
    }

    fn refuse(&mut self, error: &H::Error) {
        self.end(Err(error.into()));
    }
}

/// A panic in it ends it, not the operation.
fn run_caught(tidy_up: Afterwards) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tidy_up));
}
