//! The share of a device that background work may take: everything while no client wants it, and less the
//! longer clients' operations take beside it.
//!
//! For each lane the times of clients' operations, from queued to done, are averaged over windows of
//! a tenth of a second and compared with what is usual there. Where they take much longer, the share
//! of background work is halved; else it grows again, step by step. A share of 8 is eight operations at
//! once on the device; a share below one is one at a time, with rests between. What is usual is learnt
//! quickly while no background work runs, slowly beside it; of a device that has known nothing else
//! it is taken for little.

use std::time::{Duration, Instant};

use crate::locks::{Mutex, MutexGuard};

/// Share of background work while no client uses the device, in operations at once.
pub(crate) const SHARE_MAX: f64 = 64.0;
/// Minimum share: repair goes on under any load.
const SHARE_MIN: f64 = 0.25;
const WINDOW: Duration = Duration::from_millis(100);
/// Minimum operations of an average.
const SAMPLES_MIN: u32 = 3;
/// Time without clients' operations after which background work gets [`SHARE_MAX`].
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// Maximum time of clients' operations beside background work, as a multiple of the usual one; and
/// the seconds beyond it that are tolerated in any case, because nobody would notice.
const SLOWDOWN_FACTOR_MAX: f64 = 3.0;
const SLOWDOWN_SECONDS_MIN: f64 = 0.02;
/// Maximum usual time, in seconds, of a device that has always had background work.
const USUAL_MAX: f64 = 0.02;
/// Maximum wait of a background operation: then it goes ahead of clients' operations.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(100);

/// The side an operation is for: clients, or background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Client,
    Background,
}

/// The lanes of a device, whose usual times differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read = 0,
    Write = 1,
    Commit = 2,
}

/// The share of one device.
#[derive(Debug)]
pub struct Share(Mutex<State>);

#[derive(Debug)]
struct State {
    share: f64,
    last_client: Option<Instant>,
    last_background: Option<Instant>,
    tracks: [Track; 3],
    background_done: u64,
    background_seconds: f64,
}

/// Clients' operations of one lane.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    begun: Option<Instant>,
    seconds: f64,
    count: u32,
    usual: Option<f64>,
}

/// How things stand on a device, for monitoring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackgroundShare {
    /// Background operations that may run at once; below one: this part of the time.
    pub share: f64,
    /// Background operations done, and how long they took from queued to done, in seconds.
    pub done: u64,
    pub seconds: f64,
}

impl Default for Share {
    fn default() -> Self {
        Share::new()
    }
}

impl Share {
    fn new() -> Self {
        Share(Mutex::new(State {
            share: SHARE_MAX,
            last_client: None,
            last_background: None,
            tracks: [Track::default(); 3],
            background_done: 0,
            background_seconds: 0.0,
        }))
    }

    /// Operations ended, `count` of them, the first of which was queued at `queued`.
    pub(crate) fn done(
        &self,
        class: Class,
        kind: Kind,
        count: usize,
        queued: Instant,
        now: Instant,
    ) {
        match class {
            Class::Client => self.client_done(kind, queued, now),
            Class::Background => self.background_done(count, queued, now),
        }
    }

    /// Operations of clients ended, the slowest of which was queued at `queued`.
    pub fn client_done(&self, kind: Kind, queued: Instant, now: Instant) {
        let mut state = self.lock();
        state.last_client = Some(now);
        let is_beside = state.is_background_active(now);
        let track = &mut state.tracks[kind as usize];
        track.seconds += now.saturating_duration_since(queued).as_secs_f64();
        track.count += 1;
        let begun = *track.begun.get_or_insert(now);
        if track.count < SAMPLES_MIN || now.saturating_duration_since(begun) < WINDOW {
            return;
        }
        let mean = track.seconds / f64::from(track.count);
        // A disk that is new and filled again has never been seen without background work.
        let first = if is_beside { mean.min(USUAL_MAX) } else { mean };
        let usual = track.usual.unwrap_or(first);
        let learnt = if is_beside && mean > usual { 0.01 } else { 0.2 };
        *track = Track {
            usual: Some(usual + (mean - usual) * learnt),
            ..Track::default()
        };
        if is_beside && mean > (usual * SLOWDOWN_FACTOR_MAX).max(usual + SLOWDOWN_SECONDS_MIN) {
            state.share = (state.share / 2.0).max(SHARE_MIN);
        } else if state.share < 1.0 {
            state.share *= 2.0;
        } else {
            state.share = (state.share + 1.0).min(SHARE_MAX);
        }
    }

    /// Operations of background work ended, `count` of them, the first of which was queued at `queued`.
    pub(crate) fn background_done(&self, count: usize, queued: Instant, now: Instant) {
        let mut state = self.lock();
        state.last_background = Some(now);
        state.background_done += count as u64;
        state.background_seconds +=
            count as f64 * now.saturating_duration_since(queued).as_secs_f64();
    }

    /// The share that background work may take now.
    pub(crate) fn now(&self, now: Instant) -> f64 {
        let mut state = self.lock();
        if !state.has_clients(now) {
            state.share = SHARE_MAX;
        }
        state.share
    }

    /// Whether clients have used the device lately: then a thread of each lane is kept for them.
    pub fn has_clients(&self, now: Instant) -> bool {
        self.lock().has_clients(now)
    }

    /// The state at `now`, for monitoring.
    pub fn status(&self, now: Instant) -> BackgroundShare {
        let share = self.now(now);
        let state = self.lock();
        BackgroundShare {
            share,
            done: state.background_done,
            seconds: state.background_seconds,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn has_clients(&self, now: Instant) -> bool {
        let last = self.last_client;
        last.is_some_and(|at| now.saturating_duration_since(at) < IDLE_AFTER)
    }

    fn is_background_active(&self, now: Instant) -> bool {
        let last = self.last_background;
        last.is_some_and(|at| now.saturating_duration_since(at) < WINDOW * 2)
    }
}

/// How long background work rests after an operation that took `took`, at this share.
pub(crate) fn rest(share: f64, took: Duration) -> Duration {
    if share >= 1.0 {
        return Duration::ZERO;
    }
    took.mul_f64(1.0 / share.max(SHARE_MIN) - 1.0).min(WAIT_MAX)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A second of clients' reads, one every ten milliseconds, each so long; with background work
    /// beside them or not.
    fn second(share: &Share, from: Instant, took: Duration, is_beside: bool) -> Instant {
        for step in 1..=100 {
            let now = from + MS * 10 * step;
            if is_beside {
                share.background_done(1, now, now);
            }
            share.client_done(Kind::Read, now - took, now);
        }
        from + MS * 1000
    }

    #[test]
    fn slow_clients_take_it_away_and_quick_ones_give_it_back() {
        let share = Share::new();
        let mut now = Instant::now();
        assert_eq!(share.now(now), SHARE_MAX);
        now = second(&share, now, MS, false);
        assert_eq!(share.now(now), SHARE_MAX);
        // Beside background work nearly as quick as before.
        now = second(&share, now, MS * 15, true);
        assert_eq!(share.now(now), SHARE_MAX);
        now = second(&share, now, MS * 50, true);
        assert_eq!(share.now(now), SHARE_MIN);
        now = second(&share, now, MS, true);
        assert!((1.0..SHARE_MAX).contains(&share.now(now)), "{share:?}");
        for _ in 0..7 {
            now = second(&share, now, MS, true);
        }
        assert_eq!(share.now(now), SHARE_MAX);
    }

    #[test]
    fn a_load_that_is_slow_by_itself_takes_nothing_away() {
        let share = Share::new();
        let mut now = second(&share, Instant::now(), MS, false);
        now = second(&share, now, MS * 20, false);
        now = second(&share, now, MS * 20, true);
        assert_eq!(share.now(now), SHARE_MAX);
    }

    #[test]
    fn what_is_slow_on_a_new_device_is_not_taken_for_usual() {
        let share = Share::new();
        let now = Instant::now();
        share.background_done(1, now, now);
        let now = second(&share, now, MS * 100, true);
        assert_eq!(share.now(now), SHARE_MIN);
        // On one that is quick enough, nothing is taken away.
        let share = Share::new();
        share.background_done(1, now, now);
        let now = second(&share, now, MS * 50, true);
        assert_eq!(share.now(now), SHARE_MAX);
    }

    #[test]
    fn nobody_there_leaves_all_of_it() {
        let share = Share::new();
        let mut now = second(&share, Instant::now(), MS, false);
        now = second(&share, now, MS * 50, true);
        assert_eq!(share.now(now), SHARE_MIN);
        assert!(share.has_clients(now));
        assert_eq!(share.now(now + MS * 600), SHARE_MAX);
        assert!(!share.has_clients(now + MS * 600));
    }

    #[test]
    fn rests() {
        assert_eq!(rest(2.0, MS * 10), Duration::ZERO);
        assert_eq!(rest(0.5, MS * 10), MS * 10);
        assert_eq!(rest(0.25, MS), MS * 3);
        assert_eq!(rest(0.0, MS * 1000), WAIT_MAX);
    }
}
