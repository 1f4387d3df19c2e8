//! Promises: how conditional writes exclude each other on one server (`docs/conditional-writes.md`).
//!
//! A promise lets one proxy, known by its token, write one object with one timestamp. While it is
//! held no other is given; a write under it is carried out only while it is held. Promises are kept
//! in memory: after a start none are given until those of the process before have run out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// How long a promise is held when no write comes.
const LEASE: Duration = Duration::from_secs(5);
/// A promised time is no further than this from the server's clock.
const SKEW_TICKS: u64 = Timestamp::from_secs(5).ticks();
/// How long it is remembered that a promise ran out and its write may be on another server.
const DOUBT: Duration = Duration::from_secs(60);
/// Objects that promises are known of; beyond, none are given.
const ENTRIES_MAX: usize = 128 << 10;
/// How long it is remembered what was promised last. Twice the skew: whatever can be promised after
/// that is newer.
const KEPT: Duration = Duration::from_secs(10);
/// How often old entries are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// An object on a device.
pub(super) type Place = (String, PolicyIndex, ObjectHash);

/// All promises of a server.
pub(super) struct Promises {
    table: Mutex<Table>,
    /// When the server started, by its clock and by the time that only passes.
    started: (Timestamp, Instant),
    /// None are given for so long after the start.
    grace: Duration,
}

struct Table {
    entries: HashMap<Place, Entry>,
    swept: Instant,
}

struct Entry {
    held: Option<Held>,
    /// The newest time that was asked for and granted, or given back.
    newest: Timestamp,
    /// The newest time whose promise ran out, with or without a write elsewhere.
    in_doubt: Option<(Timestamp, Instant)>,
    /// The last write that was carried out under its promise.
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
    /// Waits for its write.
    Until(Instant),
    /// Its write is on its way to the disk.
    Writing,
}

/// Why there is no promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withheld {
    /// Another one is held.
    Busy,
    /// One as new or newer was given before.
    Older(Timestamp),
    /// The time asked for is too far from this server's clock.
    Clock,
    /// The server started a moment ago.
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

    /// Asks for a promise of `timestamp`. `now`: the server's clock.
    pub(super) fn ask(
        &self,
        place: &Place,
        token: &str,
        timestamp: Timestamp,
        now: Timestamp,
    ) -> Result<(), Withheld> {
        if now.ticks().abs_diff(timestamp.ticks()) > SKEW_TICKS {
            return Err(Withheld::Clock);
        }
        if !self.grace.is_zero() {
            let (clock, at) = self.started;
            // Promises of the process before are no newer than that.
            if at.elapsed() < self.grace || timestamp <= clock.plus_ticks(SKEW_TICKS) {
                return Err(Withheld::Started);
            }
        }
        let mut table = self.table();
        table.sweep();
        if table.entries.len() >= ENTRIES_MAX && !table.entries.contains_key(place) {
            return Err(Withheld::Busy);
        }
        let entry = table.entry(place);
        if let Some(held) = &entry.held {
            let is_own = held.token == token && held.state != State::Writing;
            // Asked once more, for the same time or, the first having been given up, for a newer one.
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
            state: State::Until(Instant::now() + LEASE),
        });
        Ok(())
    }

    /// Gives a promise back: whoever had it has sent no write.
    pub(super) fn release(&self, place: &Place, token: &str, timestamp: Timestamp) {
        let mut table = self.table();
        if table.entries.len() >= ENTRIES_MAX && !table.entries.contains_key(place) {
            return;
        }
        let entry = table.entry(place);
        // A request for it that is still under way comes too late.
        entry.newest = entry.newest.max(timestamp);
        let is_own = |held: &Held| {
            (&*held.token, held.timestamp) == (token, timestamp) && held.state != State::Writing
        };
        if entry.held.as_ref().is_some_and(is_own) {
            entry.held = None;
        }
    }

    /// The newest time beyond `visible` whose write may be on another server, unknown here.
    pub(super) fn in_doubt(&self, place: &Place, visible: Timestamp) -> Option<Timestamp> {
        let mut table = self.table();
        let entry = table.entries.get_mut(place)?;
        entry.settle();
        let (timestamp, _) = entry.in_doubt?;
        (timestamp > visible).then_some(timestamp)
    }

    /// Begins the write that was promised.
    pub(super) fn begin(self: &Arc<Self>, place: &Place, token: &str) -> Begun {
        let mut table = self.table();
        let entry = table.entry(place);
        let held = entry.held.as_mut().filter(|held| held.token == token);
        let Some(held) = held.filter(|held| held.state != State::Writing) else {
            let carried_out = entry.carried_out.as_ref();
            let own = carried_out.filter(|(by, _)| by == token);
            return own.map_or(Begun::Lost, |(_, at)| Begun::CarriedOut(*at));
        };
        held.state = State::Writing;
        Begun::Writing(Writing {
            promises: self.clone(),
            place: place.clone(),
            timestamp: held.timestamp,
            outcome: Outcome::InDoubt,
        })
    }

    fn end(&self, place: &Place, timestamp: Timestamp, outcome: Outcome) {
        let mut table = self.table();
        let entry = table.entry(place);
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
    fn entry(&mut self, place: &Place) -> &mut Entry {
        let now = Instant::now();
        let entry = self.entries.entry(place.clone()).or_insert_with(|| Entry {
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

    /// Forgets what does not matter any more.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now < self.swept + SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        self.entries.retain(|_, entry| {
            entry.settle();
            let is_young = now < entry.touched + KEPT;
            entry.held.is_some() || entry.in_doubt.is_some() || is_young
        });
    }
}

impl Entry {
    /// Ends what time has ended.
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
        let until = from + DOUBT;
        if until > Instant::now() {
            self.in_doubt = Some((before.max(timestamp), until));
        }
    }
}

/// The fate of a write that names a promise.
pub(super) enum Begun {
    Writing(Writing),
    /// It came before, with this time, and was carried out: its answer was lost.
    CarriedOut(Timestamp),
    /// The promise is not held any more, or never was.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Visible,
    NotWritten,
    /// It failed on its way, or nobody was there to see.
    InDoubt,
}

/// A write under a promise. While it is there nobody else is promised anything, however long the
/// disk takes.
pub(super) struct Writing {
    promises: Arc<Promises>,
    place: Place,
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

    /// From now on the disk decides.
    pub(super) fn goes_to_disk(&mut self) {
        self.outcome = Outcome::InDoubt;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.promises.end(&self.place, self.timestamp, self.outcome);
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

    fn place() -> Place {
        ("d".into(), PolicyIndex(0), ObjectHash([7; 16]))
    }

    fn promises() -> Arc<Promises> {
        Arc::new(Promises::new(at(1), Duration::ZERO))
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_and_newer_each_time() {
        let (promises, place) = (promises(), place());
        let ask = |token: &str, secs| promises.ask(&place, token, at(secs), at(100));
        assert_eq!(ask("a", 100), Ok(()));
        assert_eq!(ask("a", 100), Ok(()), "it is asked twice");
        assert_eq!(ask("b", 101), Err(Withheld::Busy));
        promises.release(&place, "b", at(101));
        assert_eq!(ask("c", 102), Err(Withheld::Busy), "it was not b's to give");
        promises.release(&place, "a", at(100));
        assert_eq!(ask("b", 101), Err(Withheld::Older(at(101))), "given back");
        assert_eq!(ask("b", 102), Ok(()));
        assert_eq!(ask("b", 103), Ok(()), "once more, later");
        promises.release(&place, "b", at(102));
        assert_eq!(ask("c", 104), Err(Withheld::Busy), "a late word");
        assert_eq!(promises.in_doubt(&place, at(0)), None);
        assert_eq!(ask("c", 94), Err(Withheld::Clock));
        assert_eq!(ask("c", 106), Err(Withheld::Clock));
    }

    #[tokio::test(start_paused = true)]
    async fn a_promise_runs_out_and_leaves_doubt() {
        let (promises, place) = (promises(), place());
        let ask = |token: &str, secs| promises.ask(&place, token, at(secs), at(100));
        assert_eq!(ask("a", 100), Ok(()));
        tokio::time::sleep(LEASE).await;
        assert!(matches!(promises.begin(&place, "a"), Begun::Lost));
        assert_eq!(promises.in_doubt(&place, at(99)), Some(at(100)));
        assert_eq!(promises.in_doubt(&place, at(100)), None, "it has come");
        assert_eq!(ask("b", 100), Err(Withheld::Older(at(100))));
        assert_eq!(ask("b", 101), Ok(()));
        let Begun::Writing(mut writing) = promises.begin(&place, "b") else {
            panic!("it was promised");
        };
        assert_eq!(writing.timestamp, at(101));
        let twice = promises.begin(&place, "b");
        assert!(matches!(twice, Begun::Lost), "it comes twice");
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(ask("c", 102), Err(Withheld::Busy), "a slow disk");
        writing.is_visible();
        drop(writing);
        let told = |token| match promises.begin(&place, token) {
            Begun::CarriedOut(at) => Some(at),
            _ => None,
        };
        assert_eq!(told("b"), Some(at(101)), "its answer was lost");
        assert_eq!(told("a"), None, "another's");
        assert_eq!(promises.in_doubt(&place, at(101)), None);
        assert_eq!(promises.in_doubt(&place, at(99)), Some(at(100)));
        assert_eq!(ask("c", 102), Ok(()));
        drop(promises.begin(&place, "c"));
        assert_eq!(promises.in_doubt(&place, at(101)), Some(at(102)));
        tokio::time::sleep(DOUBT).await;
        assert_eq!(promises.in_doubt(&place, at(101)), None, "forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn none_are_given_after_a_start() {
        let promises = Promises::new(at(100), LEASE);
        let place = place();
        let ask = |secs| promises.ask(&place, "a", at(secs), at(secs));
        assert_eq!(ask(100), Err(Withheld::Started));
        assert_eq!(ask(106), Err(Withheld::Started));
        tokio::time::sleep(LEASE).await;
        assert_eq!(ask(105), Err(Withheld::Started), "the one before, ahead");
        assert_eq!(ask(106), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_bounded_and_forgotten() {
        let promises = promises();
        for number in 0..ENTRIES_MAX as u128 {
            let place = ("d".into(), PolicyIndex(0), ObjectHash(number.to_be_bytes()));
            assert_eq!(promises.ask(&place, "a", at(100), at(100)), Ok(()));
        }
        let one_more = ("e".into(), PolicyIndex(0), ObjectHash([7; 16]));
        let ask = |secs| promises.ask(&one_more, "a", at(secs), at(secs));
        assert_eq!(ask(100), Err(Withheld::Busy));
        tokio::time::sleep(LEASE + DOUBT + SECOND).await;
        assert_eq!(ask(170), Ok(()));
        assert_eq!(promises.table().entries.len(), 1);
    }
}
