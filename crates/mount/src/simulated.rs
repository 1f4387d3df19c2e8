//! Time and chance of a simulation: within one, clocks show the runtime's paused time, and all random
//! numbers follow from a seed, so that a run is the same each time. Elsewhere in tests both are as in
//! production. Bugs are planted here too, where only the code itself can have them.

use std::cell::RefCell;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A bug that a simulation has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// Appended bytes stay where the file ended for the writer.
    AppendsInPlace,
    /// Names are not counted any more before they are removed.
    CountsLate,
    /// A name that is removed takes segments along whatever it is by then.
    TakesAlong,
}

struct Simulation {
    random: StdRng,
    plant: Option<Plant>,
    begun: tokio::time::Instant,
    /// Number of readings of the clock: no two are equal.
    readings: u64,
}

thread_local! {
    static SIMULATION: RefCell<Option<Simulation>> = const { RefCell::new(None) };
}

/// Seconds since 1970 at the beginning of each simulation.
const EPOCH: i64 = 1_700_000_000;

/// Begins a simulation on this thread, in a runtime whose time is paused.
pub(crate) fn begin(seed: u64, plant: Option<Plant>) {
    let simulation = Simulation {
        random: StdRng::seed_from_u64(seed),
        plant,
        begun: tokio::time::Instant::now(),
        readings: 0,
    };
    SIMULATION.set(Some(simulation));
}

pub(crate) fn end() {
    SIMULATION.set(None);
}

fn with<T>(read: impl FnOnce(&mut Simulation) -> T) -> Option<T> {
    SIMULATION.with_borrow_mut(|simulation| simulation.as_mut().map(read))
}

pub(crate) fn has(plant: Plant) -> bool {
    with(|simulation| simulation.plant == Some(plant)).unwrap_or(false)
}

/// A random number of a simulation.
pub(crate) fn number() -> Option<u128> {
    with(|simulation| simulation.random.random())
}

/// The time since a simulation has begun.
pub(crate) fn elapsed() -> Option<Duration> {
    with(|simulation| {
        simulation.readings += 1;
        simulation.begun.elapsed() + Duration::from_nanos(simulation.readings)
    })
}

/// The time of day, as seconds since 1970 and nanoseconds.
pub(crate) fn time_of_day() -> Option<(i64, u32)> {
    elapsed().map(|time| (EPOCH + time.as_secs() as i64, time.subsec_nanos()))
}

/// A time that only grows, like that of the standard library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(std::time::Instant);

impl Instant {
    pub(crate) fn now() -> Instant {
        match elapsed() {
            Some(elapsed) => Instant(origin() + elapsed),
            None => Instant(std::time::Instant::now()),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Instant::now() - *self
    }
}

/// The zero of all simulations.
fn origin() -> std::time::Instant {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    *ORIGIN.get_or_init(std::time::Instant::now)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, other: Instant) -> Duration {
        self.0.saturating_duration_since(other.0)
    }
}
