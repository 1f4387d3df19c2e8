//! Calls of the kernel as tasks. A call begins in the thread that received it, and many end there. Where one
//! waits, it is woken by what it waits for: it is not handed to another thread before, which would be
//! woken to find that there is nothing to do yet.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Maximum number of times that a call goes on at once because it woke itself.
const TURNS_MAX: u32 = 8;

enum State {
    /// It waits to be woken.
    Waiting(Running),
    /// It was woken, and nobody runs it yet.
    Woken(Running),
    /// A thread runs it; it may be woken meanwhile.
    Runs {
        is_woken: bool,
    },
    Ended,
}

/// A call.
struct Task {
    state: Mutex<State>,
    runtime: Handle,
}

/// Runs a call, in this thread until it waits, and in those of the runtime from then on.
pub(super) fn run(runtime: &Handle, running: impl Future<Output = ()> + Send + 'static) {
    let task = Arc::new(Task {
        state: Mutex::new(State::Woken(Box::pin(running))),
        runtime: runtime.clone(),
    });
    let _runtime = runtime.enter();
    task.go_on();
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Ended) {
                State::Waiting(running) => *state = State::Woken(running),
                State::Runs { .. } => {
                    *state = State::Runs { is_woken: true };
                    return;
                }
                other => {
                    *state = other;
                    return;
                }
            }
        }
        self.hand_on();
    }
}

impl Task {
    fn hand_on(self: Arc<Self>) {
        let task = self.clone();
        self.runtime.spawn(async move { task.go_on() });
    }

    /// Runs the call until it waits or ends.
    fn go_on(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        for _ in 0..TURNS_MAX {
            let mut running = {
                let mut state = self.state.lock();
                match std::mem::replace(&mut *state, State::Runs { is_woken: false }) {
                    State::Woken(running) => running,
                    other => {
                        *state = other;
                        return;
                    }
                }
            };
            let has_ended = running.as_mut().poll(&mut context).is_ready();
            let mut state = self.state.lock();
            let is_woken = matches!(*state, State::Runs { is_woken: true });
            *state = match (has_ended, is_woken) {
                (true, _) => State::Ended,
                (false, true) => State::Woken(running),
                (false, false) => State::Waiting(running),
            };
            if has_ended || !is_woken {
                return;
            }
        }
        self.hand_on();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn a_call_that_need_not_wait_ends_in_its_thread() {
        let runtime = runtime();
        let (sender, ended) = mpsc::channel();
        run(runtime.handle(), async move {
            // It wakes itself.
            tokio::task::yield_now().await;
            sender.send(std::thread::current().id()).unwrap();
        });
        let by = ended.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(by, std::thread::current().id());
    }

    #[test]
    fn calls_that_wait_and_wake_each_other_all_end() {
        let runtime = runtime();
        let (sender, ended) = mpsc::channel();
        let lock = Arc::new(tokio::sync::Mutex::new(0));
        for number in 0..200u64 {
            let (sender, lock) = (sender.clone(), lock.clone());
            run(runtime.handle(), async move {
                for _ in 0..20 {
                    let mut count = lock.lock().await;
                    tokio::task::yield_now().await;
                    *count += 1;
                }
                tokio::time::sleep(Duration::from_millis(number % 5)).await;
                let spawned = tokio::spawn(async move { number });
                sender.send(spawned.await.unwrap()).unwrap();
            });
        }
        let wait = || ended.recv_timeout(Duration::from_secs(20)).unwrap();
        let mut all: Vec<u64> = (0..200).map(|_| wait()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..200));
        assert_eq!(*runtime.block_on(lock.lock()), 4000);
    }

    #[test]
    fn a_call_is_dropped_with_its_last_waker() {
        let runtime = runtime();
        let held = Arc::new(());
        let in_call = held.clone();
        run(runtime.handle(), async move {
            std::future::pending::<()>().await;
            drop(in_call);
        });
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
