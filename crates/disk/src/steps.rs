//! Durable operations in steps: work, then a sync that many operations share, then more work.
//!
//! A write thread takes all operations that wait for a device, runs each up to the point where it
//! needs something on disk, syncs once for all, and goes on with each. With one operation at hand
//! it is as if that one had called fsync itself.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_channel::oneshot;

use crate::device_pool::Disk;
use crate::error::{DeviceError, DiskError};

type Own = Box<dyn FnMut() -> io::Result<()> + Send>;
/// What is to be done when everybody has been told: it may be left undone by a crash.
pub(crate) type Afterwards = Box<dyn FnOnce() + Send>;
type Next<T> = Box<dyn FnOnce(&Disk) -> Result<Step<T>, DiskError> + Send>;

/// How far an operation has come.
pub enum Step<T> {
    Done(T),
    /// Done, with something to tidy up.
    DoneThen(T, Afterwards),
    /// What was written has to be on disk before `next` runs.
    Sync {
        /// Syncs what this operation wrote, where nothing else does it.
        own: Own,
        /// How many files and directories that is.
        weight: usize,
        next: Next<T>,
    },
    /// Handed to a thread of the engine's own, which completes it when it is durable.
    Handed(Handed<T>),
}

/// An operation that a thread of the engine's own carries on. It starts when it is given its
/// completion.
pub struct Handed<T>(Box<dyn FnOnce(Completion<T>) + Send>);

/// Where the result of a handed operation goes. Dropped, it is that of a device that has stopped.
pub struct Completion<T>(Box<dyn FnOnce(Result<T, DiskError>) + Send>);

impl<T> Completion<T> {
    fn new(complete: impl FnOnce(Result<T, DiskError>) + Send + 'static) -> Self {
        Completion(Box::new(complete))
    }

    /// To be called when the operation is durable, or has failed.
    pub fn complete(self, result: Result<T, DiskError>) {
        (self.0)(result);
    }
}

impl<T: Send + 'static> Step<T> {
    /// `weight`: how many files and directories `own` syncs one after the other.
    pub fn sync(
        weight: usize,
        own: impl FnMut() -> io::Result<()> + Send + 'static,
        next: impl FnOnce(&Disk) -> Result<Step<T>, DiskError> + Send + 'static,
    ) -> Self {
        Step::Sync {
            own: Box::new(own),
            weight,
            next: Box::new(next),
        }
    }

    /// `hand`: gives the operation to the thread that carries it on, which calls the completion.
    pub fn handed(hand: impl FnOnce(Completion<T>) + Send + 'static) -> Self {
        Step::Handed(Handed(Box::new(hand)))
    }

    /// The same operation with its result turned into another.
    pub fn map<U: Send + 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Step<U> {
        match self {
            Step::Done(value) => Step::Done(f(value)),
            Step::DoneThen(value, afterwards) => Step::DoneThen(f(value), afterwards),
            Step::Sync { own, weight, next } => Step::Sync {
                own,
                weight,
                next: Box::new(move |disk| Ok(next(disk)?.map(f))),
            },
            Step::Handed(Handed(hand)) => Step::handed(move |completion: Completion<U>| {
                hand(Completion::new(move |result: Result<T, DiskError>| {
                    completion.complete(result.map(f));
                }));
            }),
        }
    }

    /// The same operation with another end, in place of its own.
    pub fn end<U: Send + 'static>(
        self,
        f: impl FnOnce(T) -> Step<U> + Send + 'static,
    ) -> Step<U> {
        match self {
            Step::Done(value) | Step::DoneThen(value, _) => f(value),
            Step::Sync { own, weight, next } => Step::Sync {
                own,
                weight,
                next: Box::new(move |disk| Ok(next(disk)?.end(f))),
            },
            // It is waited for, and leaves nothing to sync.
            handed @ Step::Handed(_) => {
                Step::sync(0, || Ok(()), move |disk| Ok(f(handed.finish(disk)?)))
            }
        }
    }

    /// Runs all steps here and now.
    pub fn finish(mut self, disk: &Disk) -> Result<T, DiskError> {
        loop {
            match self {
                Step::Done(value) => return Ok(value),
                Step::DoneThen(value, afterwards) => {
                    afterwards();
                    return Ok(value);
                }
                Step::Sync { own, weight, next } => {
                    durable(disk, weight, own)?;
                    self = next(disk)?;
                }
                Step::Handed(Handed(hand)) => {
                    let (sender, receiver) = mpsc::sync_channel(1);
                    hand(Completion::new(move |result| _ = sender.send(result)));
                    let stopped = || Err(DeviceError::Stopped(disk.name().to_owned()).into());
                    return receiver.recv().unwrap_or_else(|_| stopped());
                }
            }
        }
    }
}

/// Syncs with whoever else syncs on the file system, or as `own` says. `weight`: how many
/// files and directories `own` would sync one after the other. A failure poisons the device: nobody knows then what is
/// on it.
pub(crate) fn durable(
    disk: &Disk,
    weight: usize,
    own: impl FnOnce() -> io::Result<()>,
) -> Result<(), DiskError> {
    if disk.config().unsafe_no_fsync {
        return Ok(());
    }
    let synced = match disk.machine() {
        Some(_) => own(),
        None => disk.group_sync().sync(weight, own),
    };
    synced.map_err(|source| {
        disk.poison("what was just written", &source);
        DiskError::Io {
            action: "fsync",
            path: disk.name().to_owned(),
            source,
        }
    })
}

/// An operation on its way through a write thread.
pub(crate) trait Operation: Send {
    /// Runs it up to its next sync; false when it has ended. `is_alone`: nobody else waits for the
    /// thread, so it may tidy up before it tells of its end.
    fn advance(&mut self, disk: &Disk, is_alone: bool) -> bool;
    /// Of one that has ended.
    fn afterwards(&mut self) -> Option<Afterwards>;
    fn sync_own(&mut self) -> io::Result<()>;
    /// How many files and directories `sync_own` syncs.
    fn weight(&self) -> usize;
    /// Ends it without success.
    fn fail(&mut self, error: DiskError);
}

pub(crate) struct Run<T> {
    next: Option<Next<T>>,
    own: Option<(Own, usize)>,
    afterwards: Option<Afterwards>,
    sender: Option<oneshot::Sender<Result<T, DiskError>>>,
}

impl<T: Send + 'static> Run<T> {
    pub(crate) fn new(first: Next<T>, sender: oneshot::Sender<Result<T, DiskError>>) -> Self {
        Run {
            next: Some(first),
            own: None,
            afterwards: None,
            sender: Some(sender),
        }
    }

    fn end(&mut self, result: Result<T, DiskError>) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(result);
        }
    }
}

impl<T: Send + 'static> Operation for Run<T> {
    fn advance(&mut self, disk: &Disk, is_alone: bool) -> bool {
        let Some(next) = self.next.take() else {
            return false;
        };
        // A panic ends its operation, not the device: whoever waits sees the channel closed.
        match std::panic::catch_unwind(AssertUnwindSafe(|| next(disk))) {
            Ok(Ok(Step::Sync { own, weight, next })) => {
                self.own = Some((own, weight));
                self.next = Some(next);
                true
            }
            Ok(Ok(Step::Handed(Handed(hand)))) => {
                if let Some(sender) = self.sender.take() {
                    let state = disk.state.clone();
                    hand(Completion::new(move |result| {
                        if let Err(error) = &result {
                            state.note(error);
                        }
                        let _ = sender.send(result);
                    }));
                }
                false
            }
            Ok(Ok(Step::Done(value))) => {
                self.end(Ok(value));
                false
            }
            Ok(Ok(Step::DoneThen(value, afterwards))) => {
                if is_alone {
                    run_afterwards(afterwards);
                } else {
                    self.afterwards = Some(afterwards);
                }
                self.end(Ok(value));
                false
            }
            Ok(Err(error)) => {
                disk.state.note(&error);
                self.end(Err(error));
                false
            }
            Err(_) => {
                self.sender = None;
                false
            }
        }
    }

    fn afterwards(&mut self) -> Option<Afterwards> {
        self.afterwards.take()
    }

    fn sync_own(&mut self) -> io::Result<()> {
        match &mut self.own {
            Some((own, _)) => own(),
            None => Ok(()),
        }
    }

    fn weight(&self) -> usize {
        self.own.as_ref().map_or(0, |(_, weight)| *weight)
    }

    fn fail(&mut self, error: DiskError) {
        self.end(Err(error));
    }
}

/// Runs operations to their ends, together; then what they leave to be tidied up. How long that took.
pub(crate) fn run_all(disk: &Disk, operations: Vec<Box<dyn Operation>>) -> Duration {
    let mut afterwards = Vec::new();
    run_to_end(disk, operations, &mut afterwards);
    let ended = Instant::now();
    for tidy_up in afterwards {
        run_afterwards(tidy_up);
    }
    ended.elapsed()
}

/// A panic in it ends it, not the device.
fn run_afterwards(tidy_up: Afterwards) {
    let _ = std::panic::catch_unwind(AssertUnwindSafe(tidy_up));
}

fn run_to_end(
    disk: &Disk,
    mut operations: Vec<Box<dyn Operation>>,
    afterwards: &mut Vec<Afterwards>,
) {
    loop {
        let is_alone = operations.len() == 1 && afterwards.is_empty();
        operations.retain_mut(|operation| {
            let goes_on = operation.advance(disk, is_alone);
            if !goes_on {
                afterwards.extend(operation.afterwards());
            }
            goes_on
        });
        if operations.is_empty() {
            return;
        }
        let weight = operations.iter().map(|o| o.weight()).sum();
        let own = || operations.iter_mut().try_for_each(|o| o.sync_own());
        if let Err(error) = durable(disk, weight, own) {
            let kind = io_kind(&error);
            for mut operation in operations {
                operation.fail(DiskError::Io {
                    action: "fsync",
                    path: disk.name().to_owned(),
                    source: kind.into(),
                });
            }
            return;
        }
    }
}

fn io_kind(error: &DiskError) -> io::ErrorKind {
    match error {
        DiskError::Io { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    }
}
