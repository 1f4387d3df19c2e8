//! The locks and condition variables of this crate, in one place.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
