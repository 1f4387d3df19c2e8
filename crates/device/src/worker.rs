//! Workers of lanes that a machine runs in the place of threads, step by step.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// Gives workers their turns.
pub trait Employer {
    /// Takes a worker in a thread's place. One that is dropped is as a thread that has ended.
    fn employ(&self, worker: Box<dyn Worker>);
}

/// A worker of a lane, as a machine runs it.
pub trait Worker: Send {
    /// Does one step. `waker`: to be woken when there is work again, after [`Next::Idle`].
    fn step(&mut self, waker: &Waker) -> Next;
}

/// The state of a worker after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is more to do.
    Works,
    /// Nothing to do before it is woken, or for so long.
    Idle(Duration),
    /// As a thread that has ended.
    Ended,
}

/// Runs each worker at once, on the thread that had work for it, until there is none: for tests.
#[derive(Clone, Copy, Debug)]
pub struct AtOnce;

impl Employer for AtOnce {
    fn employ(&self, mut worker: Box<dyn Worker>) {
        struct Nobody;
        impl Wake for Nobody {
            fn wake(self: Arc<Self>) {}
        }
        let waker = Waker::from(Arc::new(Nobody));
        while worker.step(&waker) == Next::Works {}
    }
}
