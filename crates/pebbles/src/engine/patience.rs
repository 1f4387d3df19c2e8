//! Turns at a device's volumes, which one process has open at a time. Another one that asks for them waits, and
//! leaves a sign by which the first one knows; that lets go of them soon, and stands back until the other has
//! them.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::medium::{Folder, Mark, Wanted};

/// A process that has volumes lets another in after [`Patience::hold`], and when it has ended what it is at.
const WAIT_MAX: Duration = Duration::from_secs(7);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// After a wait in vain nobody waits for so long: the other process means to keep them.
const GIVEN_UP: Duration = Duration::from_secs(60);
/// Volumes are kept at least for so long, if others wait or not: less would be spent on nothing but opening
/// them.
const HOLD_MIN: Duration = Duration::from_millis(100);
/// The same where opening them takes long. Others wait no longer than [`WAIT_MAX`].
const HOLD_MAX: Duration = Duration::from_secs(2);
/// A process that has let go of volumes for another leaves them to it for so long.
const STAND_BACK_MAX: Duration = Duration::from_millis(500);
/// Volumes are kept twice as long for each time that nobody took them, up to this often: a process that waits
/// and is stopped would take much of the time of the one that works.
const SPURNED_MAX: u32 = 8;
/// Requests that went on for too long when others were to be let in are not disturbed again sooner.
const DISTURB_INTERVAL: Duration = Duration::from_secs(1);

/// Signs at a folder of volumes, by which processes know of each other.
pub(crate) trait Signs {
    /// Leaves a sign that somebody waits, which ends when it is dropped. `None`: that cannot be done.
    fn want(&self) -> Option<Wanted>;

    /// Whether others have left one.
    fn is_wanted(&self) -> bool;

    /// The mark of the process that had the lock last.
    fn mark(&self) -> Option<Mark>;
}

impl Signs for Folder {
    fn want(&self) -> Option<Wanted> {
        Folder::want(self)
    }

    fn is_wanted(&self) -> bool {
        Folder::is_wanted(self)
    }

    fn mark(&self) -> Option<Mark> {
        Folder::mark(self)
    }
}

/// The turns of this process at a device's volumes.
#[derive(Default)]
pub(crate) struct Patience(Mutex<State>);

#[derive(Default)]
struct State {
    /// When a wait was in vain.
    given_up: Option<Instant>,
    /// When others were let in, and the mark until then.
    made_way: Option<(Instant, Option<Mark>)>,
    /// Times that nobody came, in a row.
    spurned: u32,
    /// When others could not be let in.
    disturbed: Option<Instant>,
}

impl Patience {
    /// Takes the lock, when those that wait have had their turn: waits until another process no longer has it,
    /// or for [`WAIT_MAX`]. `lock` takes it, and fails with `ResourceBusy` where another process has it; `asks`:
    /// that one is asked to let this one in.
    pub(crate) fn wait(
        &self,
        signs: &impl Signs,
        asks: bool,
        lock: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        self.stand_back(signs);
        let begun = Instant::now();
        let given_up = self.0.lock().given_up;
        let has_given_up = given_up.is_some_and(|at| at.elapsed() < GIVEN_UP);
        let mut sign = None;
        loop {
            match lock() {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    if has_given_up {
                        return Err(error);
                    }
                    if begun.elapsed() >= WAIT_MAX {
                        self.0.lock().given_up = Some(Instant::now());
                        return Err(error);
                    }
                    sign = sign.or_else(|| asks.then(|| signs.want())?);
                }
                ended => {
                    self.0.lock().given_up = None;
                    return ended;
                }
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Leaves volumes that others were let in to, until one of them has them.
    fn stand_back(&self, signs: &impl Signs) {
        let Some((at, mark)) = self.0.lock().made_way.take() else {
            return;
        };
        while signs.is_wanted() && signs.mark() == mark {
            if at.elapsed() >= STAND_BACK_MAX {
                let mut state = self.0.lock();
                state.spurned = (state.spurned + 1).min(SPURNED_MAX);
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.0.lock().spurned = 0;
    }

    /// Notes that the volumes were let go of for others.
    pub(crate) fn made_way(&self, mark: Option<Mark>) {
        let mut state = self.0.lock();
        state.made_way = Some((Instant::now(), mark));
        state.disturbed = None;
    }

    /// Notes that they could not be let go of.
    pub(crate) fn disturbed(&self) {
        self.0.lock().disturbed = Some(Instant::now());
    }

    /// Whether it is others' turn at volumes that were opened so long ago, which took so long.
    pub(crate) fn is_over(&self, since: Duration, opening: Duration) -> bool {
        let state = self.0.lock();
        let disturbed = state
            .disturbed
            .is_some_and(|at| at.elapsed() < DISTURB_INTERVAL);
        !disturbed && since >= hold(opening, state.spurned)
    }
}

/// How long volumes are kept whose opening took so long.
fn hold(opening: Duration, spurned: u32) -> Duration {
    (2 * opening).clamp(HOLD_MIN, HOLD_MAX) * (1 << spurned)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A lock that is free at the fourth attempt, or never.
    #[derive(Default)]
    struct Fake {
        calls: Cell<u32>,
        busy_until: u32,
        signs: Cell<u32>,
        /// The others' signs go at this call, or one of them takes the lock.
        wanted: RefCell<Vec<bool>>,
        mark: Cell<Option<Mark>>,
    }

    impl Fake {
        fn lock(&self) -> io::Result<()> {
            self.calls.set(self.calls.get() + 1);
            match self.calls.get() < self.busy_until {
                true => Err(ErrorKind::ResourceBusy.into()),
                false => Ok(()),
            }
        }
    }

    fn wait(patience: &Patience, door: &Fake) -> io::Result<()> {
        patience.wait(door, true, || door.lock())
    }

    impl Signs for Fake {
        fn want(&self) -> Option<Wanted> {
            self.signs.set(self.signs.get() + 1);
            None
        }

        fn is_wanted(&self) -> bool {
            self.wanted.borrow_mut().pop().unwrap_or(false)
        }

        fn mark(&self) -> Option<Mark> {
            self.mark.get()
        }
    }

    #[test]
    fn what_is_let_go_of_is_waited_for_with_a_sign() {
        let (patience, door) = (
            Patience::default(),
            Fake {
                busy_until: 4,
                ..Fake::default()
            },
        );
        wait(&patience, &door).unwrap();
        assert_eq!(door.calls.get(), 4);
        assert!(door.signs.get() > 0);
        // A migration asks nobody.
        let door = Fake {
            busy_until: 4,
            ..Fake::default()
        };
        patience.wait(&door, false, || door.lock()).unwrap();
        assert_eq!(door.signs.get(), 0);
        let free = Fake::default();
        wait(&patience, &free).unwrap();
        assert_eq!(free.signs.get(), 0);
    }

    #[test]
    fn what_is_kept_is_waited_for_once() {
        let patience = Patience::default();
        let door = Fake {
            busy_until: u32::MAX,
            ..Fake::default()
        };
        wait(&patience, &door).unwrap_err();
        assert!(door.calls.replace(0) > 1);
        wait(&patience, &door).unwrap_err();
        assert_eq!(door.calls.get(), 1);
        // It was let go of in the end: the next process may be a passing one.
        wait(&patience, &Fake::default()).unwrap();
        assert!(patience.0.lock().given_up.is_none());
    }

    #[test]
    fn other_errors_are_not_waited_for() {
        let denied = || Err(ErrorKind::PermissionDenied.into());
        let error = Patience::default().wait(&Fake::default(), true, denied);
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn whoever_made_way_stands_back() {
        let (patience, opening) = (Patience::default(), Duration::ZERO);
        let wanted = |times| Fake {
            wanted: RefCell::new(vec![true; times]),
            ..Fake::default()
        };
        // The others' signs go.
        let door = wanted(3);
        patience.made_way(None);
        wait(&patience, &door).unwrap();
        assert!(door.wanted.borrow().is_empty());
        // One of them has the lock, and others wait on.
        let door = wanted(usize::from(u16::MAX));
        patience.made_way(None);
        door.mark.set(Some([7; 32]));
        let begun = Instant::now();
        wait(&patience, &door).unwrap();
        assert!(begun.elapsed() < STAND_BACK_MAX);
        assert!(patience.is_over(HOLD_MIN, opening));
        // Nobody comes, though somebody waits.
        for times in 1..=2 {
            patience.made_way(None);
            wait(&patience, &wanted(usize::from(u16::MAX))).unwrap();
            assert!(!patience.is_over(HOLD_MIN * ((1 << times) - 1), opening));
            assert!(patience.is_over(HOLD_MIN * (1 << times), opening));
        }
        patience.made_way(None);
        wait(&patience, &wanted(0)).unwrap();
        assert!(patience.is_over(HOLD_MIN, opening));
    }

    #[test]
    fn the_longer_opening_takes_the_longer_volumes_are_kept() {
        let (patience, seconds) = (Patience::default(), Duration::from_secs);
        assert!(patience.is_over(HOLD_MIN, Duration::ZERO));
        assert!(!patience.is_over(seconds(1), seconds(1)));
        assert!(patience.is_over(seconds(2), seconds(1)));
        assert!(patience.is_over(HOLD_MAX, seconds(9)));
    }

    #[test]
    fn what_goes_on_for_too_long_is_left_alone_for_a_while() {
        let (patience, long) = (Patience::default(), 2 * HOLD_MAX);
        patience.disturbed();
        assert!(!patience.is_over(long, Duration::ZERO));
        // It ended, and others were let in.
        patience.made_way(None);
        assert!(patience.is_over(long, Duration::ZERO));
        let before = |age| Instant::now().checked_sub(age);
        patience.0.lock().disturbed = before(DISTURB_INTERVAL - Duration::from_millis(100));
        assert!(!patience.is_over(long, Duration::ZERO));
        patience.0.lock().disturbed = before(DISTURB_INTERVAL);
        assert!(patience.is_over(long, Duration::ZERO));
    }

    #[test]
    fn however_often_nobody_comes_there_is_a_longest_time() {
        let patience = Patience::default();
        for _ in 0..2 {
            patience.0.lock().spurned = SPURNED_MAX;
            patience.made_way(None);
            let door = Fake {
                wanted: RefCell::new(vec![true; usize::from(u16::MAX)]),
                ..Fake::default()
            };
            wait(&patience, &door).unwrap();
            assert_eq!(patience.0.lock().spurned, SPURNED_MAX);
        }
        assert!(patience.is_over(HOLD_MIN * (1 << SPURNED_MAX), Duration::ZERO));
    }
}
