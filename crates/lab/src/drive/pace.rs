//! Pacing: times at which operations are due, and waiting with a precision better than millisecond
//! timers.

use std::os::fd::OwnedFd;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::plan::{Arrivals, Think};
use crate::rng::Rng;

/// The last part of a wait, spent spinning: a sleeping thread wakes up late.
const SPIN_TIME: Duration = Duration::from_micros(60);

/// Waits on a timer of its own.
#[derive(Debug)]
pub(crate) struct Waiter {
    timer: Option<AsyncFd<OwnedFd>>,
}

impl Waiter {
    /// Must be created within a runtime. Without a kernel timer it uses the runtime's.
    pub(crate) fn new() -> Self {
        #[cfg(test)]
        if tests::BY_RUNTIME.get() {
            return Self { timer: None };
        }
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags);
        // Deprecated for types that may lend their descriptor; this one owns it, and `unsafe` is
        // not used.
        #[allow(deprecated)]
        let timer = timer.ok().and_then(|timer| AsyncFd::new(timer).ok());
        Self { timer }
    }

    pub(crate) async fn until(&mut self, due: Instant) {
        if self.timer.is_none() {
            return tokio::time::sleep_until(due).await;
        }
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            if left > SPIN_TIME {
                self.sleep(left - SPIN_TIME).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn sleep(&mut self, time: Duration) {
        let Some(timer) = &self.timer else {
            return tokio::time::sleep(time).await;
        };
        let value = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        if timerfd_settime(timer, TimerfdTimerFlags::empty(), &once).is_err() {
            return tokio::time::sleep(time).await;
        }
        if let Ok(mut ready) = timer.readable().await {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(timer, &mut count);
            ready.clear_ready();
        }
    }
}

impl Default for Waiter {
    fn default() -> Self {
        Self::new()
    }
}

/// Arrivals of an open loop: number and time of the next one, for any worker.
#[derive(Debug)]
pub(crate) struct Schedule {
    inner: Mutex<Arrival>,
    gap: f64,
    arrivals: Arrivals,
}

#[derive(Debug)]
struct Arrival {
    number: u64,
    /// Time in seconds since the start.
    at: f64,
    rng: Rng,
}

impl Schedule {
    /// Arrivals at this driver's share of `rate` operations per second, beginning a fraction
    /// `phase` (0 to 1) of a gap after the start.
    pub(crate) fn new(rate: f64, arrivals: Arrivals, phase: f64, seed: u64) -> Self {
        let gap = 1.0 / rate;
        let arrival = Arrival {
            number: 0,
            at: gap * phase,
            rng: Rng::fork(seed, u64::MAX),
        };
        Self {
            inner: Mutex::new(arrival),
            gap,
            arrivals,
        }
    }

    /// Takes the next arrival: its number, and its due time after the start.
    pub(crate) fn next(&self) -> (u64, Duration) {
        let mut arrival = self.inner.lock();
        let taken = (arrival.number, Duration::from_secs_f64(arrival.at));
        arrival.number += 1;
        arrival.at += match self.arrivals {
            Arrivals::Constant => self.gap,
            Arrivals::Poisson => self.gap * arrival.rng.exponential(),
        };
        taken
    }
}

/// A random think time of the work.
pub(crate) fn think_time(think: &Think, rng: &mut Rng) -> Duration {
    match think {
        Think::Constant(time) => *time,
        Think::Uniform { low, high } => *low + high.saturating_sub(*low).mul_f64(rng.unit()),
        Think::Exponential { mean } => mean.mul_f64(rng.exponential()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    thread_local! {
        /// Waiters of this thread use the runtime's clock, which a test may have paused.
        pub(in crate::drive) static BY_RUNTIME: std::cell::Cell<bool> =
            const { std::cell::Cell::new(false) };
    }

    #[test]
    fn arrivals_have_their_rate() {
        for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
            let schedule = Schedule::new(1000.0, arrivals, 0.0, 1);
            let last = (0..100_000).map(|_| schedule.next()).last().unwrap();
            assert_eq!(last.0, 99_999);
            assert!(
                (99.0..101.0).contains(&last.1.as_secs_f64()),
                "{arrivals:?} {last:?}"
            );
        }
    }
}
