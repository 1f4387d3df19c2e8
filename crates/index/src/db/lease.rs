//! Leases: reference counts on an open database, which is not closed while leased.
//!
//! A lease is taken under the lock of the pool's table of open databases, as is the decision to
//! close one: a database leaves the table only without leases.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Db;

/// A reference to a database in use, counted until dropped.
pub(crate) struct Lease {
    // Dropped first: when the count reaches zero, no lease keeps the database open.
    db: Arc<Db>,
    count: Counted,
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(leases: &Arc<AtomicUsize>) -> Self {
        leases.fetch_add(1, Ordering::AcqRel);
        Counted(leases.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a lease that nobody counted");
    }
}

impl Lease {
    /// Takes a lease; the caller has the pool's table locked, or another lease.
    pub(crate) fn of(db: &Arc<Db>) -> Self {
        Lease {
            count: Counted::new(&db.leases),
            db: Arc::clone(db),
        }
    }

    /// Whether this is the only lease.
    pub(crate) fn is_sole(&self) -> bool {
        self.count.0.load(Ordering::Acquire) == 1
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        Lease::of(&self.db)
    }
}

impl Deref for Lease {
    type Target = Db;

    fn deref(&self) -> &Db {
        &self.db
    }
}

impl Db {
    /// Whether any lease exists.
    pub(crate) fn is_leased(&self) -> bool {
        self.leases.load(Ordering::Acquire) > 0
    }
}
