//! Locks with a rank: in debug builds a thread that requests one out of order panics, before it
//! waits. In release builds a [`Ranked`] is a plain mutex.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Position in the order of locks; a thread takes them from the first to the last. What each of
/// them guards is said in `db.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Janitor,
    Devices,
    Databases,
    Connection,
    Log,
    Backed,
    Folder,
    Turn,
    State,
    Queue,
    LastUse,
    NewFolders,
    Waiters,
}

/// A mutex with a rank.
pub(crate) struct Ranked<T> {
    #[cfg(debug_assertions)]
    rank: Rank,
    mutex: Mutex<T>,
}

/// The lock on a [`Ranked`].
pub(crate) struct RankedGuard<'m, T> {
    // Unlocked first.
    guard: MutexGuard<'m, T>,
    _standing: Standing,
}

/// A rank that this thread holds.
pub(crate) struct Standing {
    #[cfg(debug_assertions)]
    rank: Rank,
    /// Belongs to its thread.
    not_sent: PhantomData<*const ()>,
}

impl<T> Ranked<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Ranked {
            #[cfg(debug_assertions)]
            rank,
            mutex: Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        let _standing = self.enter();
        RankedGuard {
            guard: self.mutex.lock(),
            _standing,
        }
    }

    pub(crate) fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let _standing = self.enter();
        let guard = self.mutex.try_lock()?;
        Some(RankedGuard { guard, _standing })
    }

    pub(crate) fn try_lock_for(&self, timeout: Duration) -> Option<RankedGuard<'_, T>> {
        let _standing = self.enter();
        let guard = self.mutex.try_lock_for(timeout)?;
        Some(RankedGuard { guard, _standing })
    }

    #[cfg(debug_assertions)]
    fn enter(&self) -> Standing {
        Standing::enter(self.rank)
    }

    #[cfg(not(debug_assertions))]
    fn enter(&self) -> Standing {
        Standing {
            not_sent: PhantomData,
        }
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> RankedGuard<'_, T> {
    /// Unlocks until `changed` is signalled, for at most `timeout`.
    pub(crate) fn wait_for(&mut self, changed: &Condvar, timeout: Duration) {
        changed.wait_for(&mut self.guard, timeout);
    }

    /// Unlocks while `condition` holds, for at most `timeout`.
    pub(crate) fn wait_while_for(
        &mut self,
        changed: &Condvar,
        condition: impl FnMut(&mut T) -> bool,
        timeout: Duration,
    ) {
        changed.wait_while_for(&mut self.guard, condition, timeout);
    }
}

impl Standing {
    /// Enters a rank that is no mutex.
    ///
    /// # Panics
    /// In debug builds, if this thread holds the same rank or a later one.
    pub(crate) fn enter(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        held::push(rank);
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Standing {
            #[cfg(debug_assertions)]
            rank,
            not_sent: PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Standing {
    fn drop(&mut self) {
        held::remove(self.rank);
    }
}

/// The ranks that each thread holds.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn push(rank: Rank) {
        // Without the storage the thread is ending, and holds nothing.
        let last = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let last = held.iter().copied().max();
            held.push(rank);
            last
        });
        let out_of_order = last.ok().flatten().filter(|last| *last >= rank);
        // A second panic would end the process and hide the first.
        if let Some(last) = out_of_order
            && !std::thread::panicking()
        {
            remove(rank);
            panic!("lock order: {rank:?} was requested by a thread that holds {last:?}");
        }
    }

    pub(super) fn remove(rank: Rank) {
        // Guards may be dropped in any order.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|one| *one == rank) {
                held.remove(at);
            }
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn is_refused<T>(take: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(|| drop(take()))).is_err()
    }

    #[test]
    fn locks_are_taken_in_their_order() {
        let first = Ranked::new(Rank::Databases, 1);
        let second = Ranked::new(Rank::Queue, 2);
        let one = first.lock();
        let two = second.lock();
        assert_eq!((*one, *two), (1, 2));
        // The order of their release is free.
        drop(one);
        assert!(is_refused(|| first.lock()));
        drop(two);
        assert_eq!(*first.lock(), 1);
    }

    #[test]
    fn one_out_of_order_is_refused_and_not_held() {
        let first = Ranked::new(Rank::Connection, ());
        let second = Ranked::new(Rank::Log, ());
        let other = Ranked::new(Rank::Log, ());
        let held = second.lock();
        let moment = Duration::from_millis(1);
        assert!(is_refused(|| first.lock()));
        assert!(is_refused(|| first.try_lock()));
        assert!(is_refused(|| first.try_lock_for(moment)));
        assert!(is_refused(|| other.lock()), "two of the same rank");
        assert!(is_refused(|| Standing::enter(Rank::Janitor)));
        // Another thread holds nothing.
        std::thread::scope(|scope| {
            scope.spawn(|| drop(first.lock()));
        });
        drop(held);
        assert!(!is_refused(|| (first.lock(), second.lock())));
    }

    #[test]
    fn a_lock_that_was_not_got_is_not_held() {
        let first = Ranked::new(Rank::Connection, ());
        let second = Ranked::new(Rank::Queue, ());
        std::thread::scope(|scope| {
            let _taken = second.lock();
            let other = scope.spawn(|| {
                assert!(second.try_lock().is_none());
                drop(first.lock());
            });
            other.join().unwrap();
        });
    }

    #[test]
    fn what_is_no_mutex_has_its_place() {
        let queue = Ranked::new(Rank::Queue, ());
        let table = Ranked::new(Rank::Databases, ());
        let turn = Standing::enter(Rank::Turn);
        drop(queue.lock());
        assert!(is_refused(|| table.lock()));
        drop(turn);
        drop(table.lock());
    }
}
