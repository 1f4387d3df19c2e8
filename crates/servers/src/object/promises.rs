//! Promises: mutual exclusion of conditional writes on one server (`docs/conditional-writes.md`).
//!
//! A promise permits one proxy, identified by its token, to write one object with one timestamp.
//! While it is held no other is given; a write under it is carried out only while it is held.
//! Promises are kept in memory: after a start none are given until those of the previous process
//! have expired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Lease of a promise without a write.
const LEASE_DURATION: Duration = Duration::from_secs(5);
/// Maximum difference of a promise's timestamp from the server's clock.
const SKEW_TICKS: u64 = Timestamp::from_secs(5).ticks();
/// Time for which an expired promise, whose write may be on another server, is remembered.
const DOUBT_DURATION: Duration = Duration::from_secs(60);
/// Maximum objects with entries; beyond it, no promises are given.
const ENTRIES_MAX: usize = 128 << 10;
/// Minimum time for which an unused entry is kept: twice the skew, so that any later promise has a
/// newer timestamp.
const ENTRY_AGE_MIN: Duration = Duration::from_secs(10);
/// Interval of sweeps of old entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// An object on a device.
pub(super) type PromiseKey = (String, PolicyIndex, ObjectHash);

/// The table of a server's promises.
pub(super) struct Promises {
    table: Mutex<Table>,
    /// Start of the server, by its clock and by the monotonic clock.
    started: (Timestamp, Instant),
    /// Time after the start in which none are given.
    grace: Duration,
}

struct Table {
    entries: HashMap<PromiseKey, Entry>,
    swept: Instant,
}

struct Entry {
    held: Option<Held>,
    /// Newest timestamp ever promised or released.
    newest: Timestamp,
    /// Newest timestamp whose promise expired, or whose write may have succeeded elsewhere.
    in_doubt: Option<(Timestamp, Instant)>,
    /// Last write carried out under its promise, by token.
    carried_out: Option<(String, Timestamp)>,
    touched: Instant,
}

struct Held {
    token: String,
    timestamp: Timestamp,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Waiting for its write until the lease ends.
    Until(Instant),
    /// The write is in progress.
    Writing,
}

/// Reasons to refuse a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withheld {
    /// Another promise is held.
    Busy,
    /// A promise at least as new was given before.
    Older(Timestamp),
    /// The timestamp is too far from this server's clock.
    Clock,
    /// The server has just started.
    Started,
}

impl Promises {
    pub(super) fn new(now: Timestamp, grace: Duration) -> Self {
        let started = Instant::now();
        Promises {
            table: Mutex::new(Table {
                entries: HashMap::new(),
                swept: started,
            }),
            started: (now, started),
            grace,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Requests a promise of `timestamp`; `now` is the server's clock.
    pub(super) fn ask(
        &self,
        key: &PromiseKey,
        token: &str,
        timestamp: Timestamp,
        now: Timestamp,
    ) -> Result<(), Withheld> {
        if now.ticks().abs_diff(timestamp.ticks()) > SKEW_TICKS {
            return Err(Withheld::Clock);
        }
        if !self.grace.is_zero() {
            let (clock, at) = self.started;
            // Promises of the previous process have no later timestamps.
            if at.elapsed() < self.grace || timestamp <= clock.plus_ticks(SKEW_TICKS) {
                return Err(Withheld::Started);
            }
        }
        let mut table = self.table();
        table.sweep();
        if table.entries.len() >= ENTRIES_MAX && !table.entries.contains_key(key) {
            return Err(Withheld::Busy);
        }
        let entry = table.entry(key);
        if let Some(held) = &entry.held {
            let is_own = held.token == token && held.state != State::Writing;
            // A repeated request, for the same timestamp or, if that was abandoned, for a later
            // one.
            let excludes = !Plant::PromiseShared.is_on();
            if excludes && (!is_own || timestamp < held.timestamp) {
                return Err(Withheld::Busy);
            }
            if timestamp == held.timestamp {
                return Ok(());
            }
        }
        if timestamp <= entry.newest {
            return Err(Withheld::Older(entry.newest));
        }
        entry.newest = timestamp;
        entry.held = Some(Held {
            token: token.to_owned(),
            timestamp,
            state: State::Until(Instant::now() + LEASE_DURATION),
        });
        Ok(())
    }

    /// Releases a promise whose holder has sent no write.
    pub(super) fn release(&self, key: &PromiseKey, token: &str, timestamp: Timestamp) {
        let mut table = self.table();
        if table.entries.len() >= ENTRIES_MAX && !table.entries.contains_key(key) {
            return;
        }
        let entry = table.entry(key);
        // Invalidates a request for it that is still in flight.
        entry.newest = entry.newest.max(timestamp);
        let is_own = |held: &Held| {
            (&*held.token, held.timestamp) == (token, timestamp) && held.state != State::Writing
        };
        if entry.held.as_ref().is_some_and(is_own) {
            entry.held = None;
        }
    }

    /// Newest timestamp after `visible` whose write may be on another server, unknown here.
    pub(super) fn in_doubt(&self, key: &PromiseKey, visible: Timestamp) -> Option<Timestamp> {
        let mut table = self.table();
        let entry = table.entries.get_mut(key)?;
        entry.settle();
        let (timestamp, _) = entry.in_doubt?;
        (timestamp > visible).then_some(timestamp)
    }

    /// Begins the write under a promise.
    pub(super) fn begin(self: &Arc<Self>, key: &PromiseKey, token: &str) -> Begun {
        let mut table = self.table();
        let entry = table.entry(key);
        let held = entry.held.as_mut().filter(|held| held.token == token);
        let Some(held) = held.filter(|held| held.state != State::Writing) else {
            let carried_out = entry.carried_out.as_ref();
            let own = carried_out.filter(|(by, _)| by == token);
            return own.map_or(Begun::Lost, |(_, at)| Begun::CarriedOut(*at));
        };
        held.state = State::Writing;
        Begun::Writing(Writing {
            promises: self.clone(),
            key: key.clone(),
            timestamp: held.timestamp,
            outcome: Outcome::InDoubt,
        })
    }

    fn end(&self, key: &PromiseKey, timestamp: Timestamp, outcome: Outcome) {
        let mut table = self.table();
        let entry = table.entry(key);
        let is_own = |held: &mut Held| held.timestamp == timestamp && held.state == State::Writing;
        let ended = entry.held.take_if(is_own);
        match (outcome, ended) {
            (Outcome::Visible, Some(held)) => entry.carried_out = Some((held.token, timestamp)),
            (Outcome::InDoubt, _) => entry.doubt(timestamp, Instant::now()),
            _ => {}
        }
    }
}

impl Table {
    fn entry(&mut self, key: &PromiseKey) -> &mut Entry {
        let now = Instant::now();
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry {
            held: None,
            newest: Timestamp::ZERO,
            in_doubt: None,
            carried_out: None,
            touched: now,
        });
        entry.touched = now;
        entry.settle();
        entry
    }

    /// Drops entries that no longer matter.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now < self.swept + SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        self.entries.retain(|_, entry| {
            entry.settle();
            let is_young = now < entry.touched + ENTRY_AGE_MIN;
            entry.held.is_some() || entry.in_doubt.is_some() || is_young
        });
    }
}

impl Entry {
    /// Ends an expired lease and doubt.
    fn settle(&mut self) {
        let now = Instant::now();
        if self.in_doubt.is_some_and(|(_, until)| until <= now) {
            self.in_doubt = None;
        }
        let ran_out = |held: &Held| match held.state {
            State::Until(end) if end <= now => Some((held.timestamp, end)),
            _ => None,
        };
        if let Some((timestamp, end)) = self.held.as_ref().and_then(ran_out) {
            self.held = None;
            self.doubt(timestamp, end);
        }
    }

    fn doubt(&mut self, timestamp: Timestamp, from: Instant) {
        let before = self.in_doubt.map_or(Timestamp::ZERO, |(at, _)| at);
        let until = from + DOUBT_DURATION;
        if until > Instant::now() {
            self.in_doubt = Some((before.max(timestamp), until));
        }
    }
}

/// Result of beginning a write under a promise.
pub(super) enum Begun {
    Writing(Writing),
    /// It was carried out before, with this timestamp, and its response was lost.
    CarriedOut(Timestamp),
    /// The promise is no longer held, or never was.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Visible,
    NotWritten,
    /// It failed half way, or its outcome is unknown.
    InDoubt,
}

/// A write under a promise. No other promise is given meanwhile, however long the disk takes.
pub(super) struct Writing {
    promises: Arc<Promises>,
    key: PromiseKey,
    pub(super) timestamp: Timestamp,
    outcome: Outcome,
}

impl Writing {
    /// The object, or its tombstone, is durable.
    pub(super) fn is_visible(&mut self) {
        self.outcome = Outcome::Visible;
    }

    /// Nothing was written.
    pub(super) fn is_not_written(&mut self) {
        self.outcome = Outcome::NotWritten;
    }

    /// From here on the outcome depends on the disk.
    pub(super) fn goes_to_disk(&mut self) {
        self.outcome = Outcome::InDoubt;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.promises.end(&self.key, self.timestamp, self.outcome);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn key() -> PromiseKey {
        ("d".into(), PolicyIndex(0), ObjectHash([7; 16]))
    }

    fn promises() -> Arc<Promises> {
        Arc::new(Promises::new(at(1), Duration::ZERO))
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_and_newer_each_time() {
        let (promises, key) = (promises(), key());
        let ask = |token: &str, secs| promises.ask(&key, token, at(secs), at(100));
        assert_eq!(ask("a", 100), Ok(()));
        assert_eq!(ask("a", 100), Ok(()), "it is asked twice");
        assert_eq!(ask("b", 101), Err(Withheld::Busy));
        promises.release(&key, "b", at(101));
        assert_eq!(ask("c", 102), Err(Withheld::Busy), "it was not b's to give");
        promises.release(&key, "a", at(100));
        assert_eq!(ask("b", 101), Err(Withheld::Older(at(101))), "given back");
        assert_eq!(ask("b", 102), Ok(()));
        assert_eq!(ask("b", 103), Ok(()), "once more, later");
        promises.release(&key, "b", at(102));
        assert_eq!(ask("c", 104), Err(Withheld::Busy), "a late word");
        assert_eq!(promises.in_doubt(&key, at(0)), None);
        assert_eq!(ask("c", 94), Err(Withheld::Clock));
        assert_eq!(ask("c", 106), Err(Withheld::Clock));
    }

    #[tokio::test(start_paused = true)]
    async fn a_promise_runs_out_and_leaves_doubt() {
        let (promises, key) = (promises(), key());
        let ask = |token: &str, secs| promises.ask(&key, token, at(secs), at(100));
        assert_eq!(ask("a", 100), Ok(()));
        tokio::time::sleep(LEASE_DURATION).await;
        assert!(matches!(promises.begin(&key, "a"), Begun::Lost));
        assert_eq!(promises.in_doubt(&key, at(99)), Some(at(100)));
        assert_eq!(promises.in_doubt(&key, at(100)), None, "it has come");
        assert_eq!(ask("b", 100), Err(Withheld::Older(at(100))));
        assert_eq!(ask("b", 101), Ok(()));
        let Begun::Writing(mut writing) = promises.begin(&key, "b") else {
            panic!("it was promised");
        };
        assert_eq!(writing.timestamp, at(101));
        let twice = promises.begin(&key, "b");
        assert!(matches!(twice, Begun::Lost), "it comes twice");
        tokio::time::sleep(LEASE_DURATION * 2).await;
        assert_eq!(ask("c", 102), Err(Withheld::Busy), "a slow disk");
        writing.is_visible();
        drop(writing);
        let told = |token| match promises.begin(&key, token) {
            Begun::CarriedOut(at) => Some(at),
            _ => None,
        };
        assert_eq!(told("b"), Some(at(101)), "its answer was lost");
        assert_eq!(told("a"), None, "another's");
        assert_eq!(promises.in_doubt(&key, at(101)), None);
        assert_eq!(promises.in_doubt(&key, at(99)), Some(at(100)));
        assert_eq!(ask("c", 102), Ok(()));
        drop(promises.begin(&key, "c"));
        assert_eq!(promises.in_doubt(&key, at(101)), Some(at(102)));
        tokio::time::sleep(DOUBT_DURATION).await;
        assert_eq!(promises.in_doubt(&key, at(101)), None, "forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn none_are_given_after_a_start() {
        let promises = Promises::new(at(100), LEASE_DURATION);
        let key = key();
        let ask = |secs| promises.ask(&key, "a", at(secs), at(secs));
        assert_eq!(ask(100), Err(Withheld::Started));
        assert_eq!(ask(106), Err(Withheld::Started));
        tokio::time::sleep(LEASE_DURATION).await;
        assert_eq!(ask(105), Err(Withheld::Started), "the one before, ahead");
        assert_eq!(ask(106), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_bounded_and_forgotten() {
        let promises = promises();
        for number in 0..ENTRIES_MAX as u128 {
            let key = ("d".into(), PolicyIndex(0), ObjectHash(number.to_be_bytes()));
            assert_eq!(promises.ask(&key, "a", at(100), at(100)), Ok(()));
        }
        let one_more = ("e".into(), PolicyIndex(0), ObjectHash([7; 16]));
        let ask = |secs| promises.ask(&one_more, "a", at(secs), at(secs));
        assert_eq!(ask(100), Err(Withheld::Busy));
        tokio::time::sleep(LEASE_DURATION + DOUBT_DURATION + SECOND).await;
        assert_eq!(ask(170), Ok(()));
        assert_eq!(promises.table().entries.len(), 1);
    }
}
