//! Leases: somebody uses an open database. It is neither closed nor forgotten while there is one.
//!
//! They are taken under the lock of the pool's table of open databases, under which it is also decided
//! to close one: a database without a lease has none when it leaves the table.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Db;

/// The use of a database, until it is dropped.
pub(crate) struct Lease {
    // Let go of first: when nobody is counted any more, nobody holds the database open.
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
    /// To be called with the pool's table locked, or with another lease.
    pub(crate) fn of(db: &Arc<Db>) -> Self {
        Lease {
            count: Counted::new(&db.leases),
            db: Arc::clone(db),
        }
    }

    /// Whether nobody else uses it.
    pub(crate) fn is_the_only(&self) -> bool {
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
    /// Whether somebody uses it.
    pub(crate) fn is_leased(&self) -> bool {
        self.leases.load(Ordering::Acquire) > 0
    }
}
