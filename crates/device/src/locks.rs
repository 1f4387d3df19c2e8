//! The locks, condition variables and threads of this crate, in one place: with the feature `shuttle`
//! they are those of a scheduler that tries out their orders (`orders.rs`).

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread;
#[cfg(feature = "shuttle")]
pub(crate) use shuttled::{Condvar, Mutex, MutexGuard};

/// `shuttle`'s locks with the methods of `parking_lot`'s. A panic with one of them held fails the test.
#[cfg(feature = "shuttle")]
#[allow(clippy::unwrap_used)]
mod shuttled {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use shuttle::sync;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    /// Empty only while it waits.
    pub(crate) struct MutexGuard<'m, T>(Option<sync::MutexGuard<'m, T>>);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    pub(crate) struct Waited;

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            let locked = self.0.lock().unwrap();
            MutexGuard(Some(locked))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap_or_else(|| unreachable!("it waits"))
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap_or_else(|| unreachable!("it waits"))
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar::default()
        }

        pub(crate) fn notify_one(&self) -> bool {
            self.0.notify_one();
            true
        }

        pub(crate) fn notify_all(&self) -> usize {
            self.0.notify_all();
            0
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(locked) = guard.0.take() {
                let locked = self.0.wait(locked).unwrap();
                guard.0 = Some(locked);
            }
        }

        /// Waits without an end: time does not pass there.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> Waited {
            self.wait(guard);
            Waited
        }
    }

    impl Waited {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }
}
