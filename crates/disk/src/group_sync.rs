//! Many syncs made one: group commit over a whole file system.
//!
//! A durable small write costs several fsyncs, each of which makes the kernel write a few blocks
//! and flush the disk's cache, one after the other. Writers who need a sync at the same time
//! share one `syncfs` instead: whatever they had written when it began is on disk when it ends.
//! While it runs the next group gathers, so groups grow with the load. A writer with little
//! company does what is quicker here, as far as both were tried: a lone fsync may take less time
//! than a `syncfs`, but ten of them, of a file, its directories and what else belongs to it, more;
//! unless the first of them writes all that the file system's log has, as XFS's does.
//!
//! `syncfs` also writes what others left dirty on the file system. Where that is much (a disk
//! shared with other programs) groups would wait for strangers: after a slow `syncfs` everyone
//! syncs for themselves for a while.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

/// This many may sync for themselves at once; one more begins a group.
const ALONE_MAX: usize = 2;
/// Every so often a writer with little company does what was slower.
const TRY_OTHER_EVERY: u32 = 64;
/// A `syncfs` that takes longer has strangers' data to write.
const SLOW: Duration = Duration::from_secs(1);
/// How long everyone then syncs for themselves.
const AVOID: Duration = Duration::from_secs(2);

/// The numbers of the device that a file system is on.
type Device = (u32, u32);

/// The syncs of one file system.
#[derive(Default)]
pub struct GroupSync {
    state: Mutex<State>,
    /// Where the members of even and of odd groups wait: the end of one wakes its own members,
    /// and one of the next to run it.
    waiting: [Condvar; 2],
}

#[derive(Default)]
struct State {
    /// The group that gathers now; those before it have ended, or the last of them is running.
    gathering: u64,
    /// Its members so far.
    gathered: usize,
    /// All groups before this one have ended.
    ended: u64,
    running: bool,
    /// How the groups ended that not all members have heard of yet.
    failures: HashMap<u64, Errno>,
    alone: usize,
    costs: Costs,
    avoid_until: Option<Instant>,
}

/// How long syncs took lately for those with little company.
#[derive(Default)]
struct Costs {
    /// By the number of things synced one by one: 1, 2 and 3, 4 to 7, and so on.
    own: [Cost; 8],
    group: Cost,
    asked: u32,
}

/// An average in which the last one counts an eighth.
#[derive(Clone, Copy, Default)]
struct Cost(Option<Duration>);

impl GroupSync {
    /// The one for the file system that `fd` is on, shared by all devices on it.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Arc<GroupSync>> {
        static ALL: OnceLock<Mutex<HashMap<Device, Arc<GroupSync>>>> = OnceLock::new();
        let file_system = device_of(fd)?;
        let mut all = ALL
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(all.entry(file_system).or_default().clone())
    }

    /// Returns when everything this thread wrote is on disk: by a group's `syncfs`, or by `own`,
    /// which syncs what the caller knows it wrote. `fd`: anything on the file system. `weight`:
    /// how many things `own` would sync one by one.
    pub fn sync(
        &self,
        fd: BorrowedFd<'_>,
        weight: usize,
        own: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.lock();
        let has_company = state.running || state.gathered > 0 || state.alone >= ALONE_MAX;
        if state.is_avoided() || (!has_company && state.costs.own_is_quicker(weight)) {
            state.alone += 1;
            drop(state);
            let started = Instant::now();
            let result = own();
            let took = started.elapsed();
            state = self.lock();
            state.alone -= 1;
            state.costs.own_of(weight).add(took);
            return result;
        }
        let group = state.gathering;
        state.gathered += 1;
        while state.ended <= group {
            if state.running {
                state = self
                    .waits(group)
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.running = true;
            state.gathering += 1;
            let members = std::mem::take(&mut state.gathered);
            drop(state);
            let started = Instant::now();
            let result = sync_all(fd);
            let took = started.elapsed();
            state = self.lock();
            if members <= ALONE_MAX {
                state.costs.group.add(took);
            }
            state.running = false;
            state.ended = group + 1;
            if let Err(errno) = result {
                // Few, and each ends the life of its device: they may stay.
                state.failures.insert(group, errno);
            }
            if took > SLOW {
                state.avoid_until = Some(Instant::now() + AVOID);
            }
            self.waits(group).notify_all();
            self.waits(group + 1).notify_one();
        }
        match state.failures.get(&group) {
            Some(errno) => Err((*errno).into()),
            None => Ok(()),
        }
    }

    fn waits(&self, group: u64) -> &Condvar {
        &self.waiting[(group % 2) as usize]
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_avoided(&mut self) -> bool {
        match self.avoid_until {
            Some(until) if Instant::now() < until => true,
            Some(_) => {
                self.avoid_until = None;
                false
            }
            None => false,
        }
    }
}

impl Costs {
    fn own_is_quicker(&mut self, weight: usize) -> bool {
        let quicker = match (self.own_of(weight).0, self.group.0) {
            (None, _) => true,
            (_, None) => false,
            (Some(own), Some(group)) => own <= group,
        };
        self.asked = self.asked.wrapping_add(1);
        // Disks change, and what runs beside us.
        match self.asked.is_multiple_of(TRY_OTHER_EVERY) {
            true => !quicker,
            false => quicker,
        }
    }

    fn own_of(&mut self, weight: usize) -> &mut Cost {
        let bucket = weight.max(1).ilog2() as usize;
        let last = self.own.len() - 1;
        &mut self.own[bucket.min(last)]
    }
}

impl Cost {
    fn add(&mut self, took: Duration) {
        self.0 = Some(match self.0 {
            Some(average) => (average * 7 + took) / 8,
            None => took,
        });
    }
}

/// Everything on the file system, and the disk's own cache. The second call matters where the
/// file system has no journal: there `syncfs` writes directories and inodes last, after it
/// flushed the cache, and an fsync, of whatever, flushes it once more.
fn sync_all(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    retry(|| rustix::fs::syncfs(fd))?;
    retry(|| rustix::fs::fsync(fd))
}

/// Asked without the file's times: the next write of a file that was asked for them gives it new
/// ones, and its sync then has an inode to write, too.
fn device_of(fd: BorrowedFd<'_>) -> io::Result<Device> {
    match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE) {
        Ok(stat) => Ok((stat.stx_dev_major, stat.stx_dev_minor)),
        Err(Errno::NOSYS) => {
            let device = rustix::fs::fstat(fd)?.st_dev;
            Ok((rustix::fs::major(device), rustix::fs::minor(device)))
        }
        Err(error) => Err(error.into()),
    }
}

fn retry(call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn everyone_returns_and_most_share() {
        let file = tempfile::tempfile().unwrap();
        let group = GroupSync::default();
        let own = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let count = || {
                            own.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(1));
                            Ok(())
                        };
                        group.sync(file.as_fd(), 1, count).unwrap();
                    }
                });
            }
        });
        assert!(own.load(Ordering::Relaxed) < 320, "nobody shared a sync");
        assert_eq!(group.lock().alone, 0);
    }

    #[test]
    fn what_was_quicker_is_done_and_the_other_tried_again() {
        let mut costs = Costs::default();
        let ms = Duration::from_millis;
        assert!(costs.own_is_quicker(1), "tried first");
        costs.own_of(1).add(ms(4));
        assert!(!costs.own_is_quicker(1), "tried then");
        costs.group.add(ms(6));
        assert!(costs.own_is_quicker(1));
        assert!(costs.own_is_quicker(9), "not tried with so many");
        costs.own_of(9).add(ms(30));
        assert!(!costs.own_is_quicker(15));
        assert!(costs.own_is_quicker(1));
        let others = (0..TRY_OTHER_EVERY).filter(|_| !costs.own_is_quicker(1));
        assert_eq!(others.count(), 1);
        for _ in 0..20 {
            costs.own_of(1).add(ms(8));
        }
        assert!(!costs.own_is_quicker(1));
    }

    #[test]
    fn alone_a_writer_syncs_for_itself_and_hears_of_failure() {
        let file = tempfile::tempfile().unwrap();
        let group = GroupSync::default();
        let failing = || Err(io::Error::from(Errno::IO));
        assert!(group.sync(file.as_fd(), 1, failing).is_err());
        let mut state = group.lock();
        state.alone = ALONE_MAX;
        drop(state);
        group.sync(file.as_fd(), 1, failing).unwrap();
    }
}
