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
//!
//! A write error is reported by `syncfs` once to each open file description, and not at all to one
//! opened after another was told of it; the pages that were not written count as clean from then
//! on. So there is one descriptor for each file system, opened before anybody wrote who syncs by
//! it: writers hold its [`GroupSync`] from before their first write. And when it has reported an
//! error nobody knows whose pages were meant: they may be those of a writer who comes to sync only
//! later. From then on, until nobody holds this `GroupSync` any more, everyone also syncs the files
//! they wrote themselves, by the descriptors they wrote them with, which report the errors of each.
//!
//! ext4 without a journal needs `syncfs` every time: there an fsync does not write an inode that
//! changed with its link, or that the kernel's own write-back has put into its buffer since.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
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

/// The syncs of one file system: to be held from before the first write until after its sync.
pub struct GroupSync {
    /// What `syncfs` is called with.
    fd: OwnedFd,
    /// Syncs of files and their directories alone make them durable.
    is_journaled: bool,
    state: Mutex<State>,
    /// Where the members of even and of odd groups wait: the end of one wakes its own members,
    /// and one of the next to run it.
    waiting: [Condvar; 2],
    /// A group's sync reports an error.
    #[cfg(test)]
    pub(crate) fails: std::sync::atomic::AtomicBool,
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
    /// A group's sync failed: nobody's success follows from another's any more.
    has_failed: bool,
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
    /// The one for the file system that `fd` is on, shared by all devices on it. It keeps the file
    /// system from being unmounted.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Arc<GroupSync>> {
        static ALL: OnceLock<Mutex<HashMap<Device, Weak<GroupSync>>>> = OnceLock::new();
        let file_system = device_of(fd)?;
        let mut all = ALL
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = all.get(&file_system).and_then(Weak::upgrade) {
            return Ok(held);
        }
        all.retain(|_, group| group.strong_count() > 0);
        let mut group = GroupSync::by(rustix::io::fcntl_dupfd_cloexec(fd, 0)?);
        group.is_journaled = !lacks_journal(file_system);
        let group = Arc::new(group);
        all.insert(file_system, Arc::downgrade(&group));
        Ok(group)
    }

    fn by(fd: OwnedFd) -> Self {
        let state = State {
            has_failed: !reports_errors(),
            ..State::default()
        };
        GroupSync {
            fd,
            is_journaled: true,
            state: Mutex::new(state),
            waiting: Default::default(),
            #[cfg(test)]
            fails: Default::default(),
        }
    }

    /// Returns when everything this thread wrote is on disk: by a group's `syncfs`, by `own`, or
    /// by both. `own` syncs what the caller knows it wrote, by descriptors opened before it did. `weight`:
    /// how many things `own` would sync one by one.
    pub fn sync(&self, weight: usize, own: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.sync_by(weight, own, || {
            #[cfg(test)]
            if self.fails.load(std::sync::atomic::Ordering::Acquire) {
                return Err(Errno::IO);
            }
            sync_all(self.fd.as_fd())
        })
    }

    /// As [`GroupSync::sync`], of what nobody waits for: `own` alone, where that is enough.
    ///
    /// # Errors
    /// As `own`'s, or the group's.
    pub fn sync_unawaited(
        &self,
        weight: usize,
        own: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        match self.is_journaled {
            true => own(),
            false => self.sync(weight, own),
        }
    }

    /// Has the next writer begin a group, as one with company does.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) {
        self.lock().alone = ALONE_MAX;
    }

    fn sync_by(
        &self,
        weight: usize,
        own: impl FnOnce() -> io::Result<()>,
        sync_all: impl Fn() -> Result<(), Errno>,
    ) -> io::Result<()> {
        let mut state = self.lock();
        let has_company = state.running || state.gathered > 0 || state.alone >= ALONE_MAX;
        let is_alone = !has_company && state.costs.own_is_quicker(weight);
        if self.is_journaled && (state.is_avoided() || is_alone) {
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
            let result = sync_all();
            let took = started.elapsed();
            state = self.lock();
            if members <= ALONE_MAX {
                state.costs.group.add(took);
            }
            state.running = false;
            state.ended = group + 1;
            if let Err(error) = result
                && !std::mem::replace(&mut state.has_failed, true)
            {
                tracing::error!(
                    %error,
                    "a sync of a whole file system failed: what was written there is synced file by \
                     file from now on"
                );
            }
            if took > SLOW {
                state.avoid_until = Some(Instant::now() + AVOID);
            }
            self.waits(group).notify_all();
            self.waits(group + 1).notify_one();
        }
        let is_on_disk = !state.has_failed;
        drop(state);
        match is_on_disk {
            true => Ok(()),
            // The error may be a stranger's; this thread's own files tell.
            false => own(),
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
pub(crate) fn sync_all(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    retry(|| rustix::fs::syncfs(fd))?;
    retry(|| rustix::fs::fsync(fd))
}

/// Whether an ext4 has no journal, by sysfs; where that is not mounted nobody knows, and it has one.
fn lacks_journal((major, minor): Device) -> bool {
    let block = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
    let Some(name) = block.ok().and_then(|path| path.file_name().map(Into::into)) else {
        return false;
    };
    let task = std::path::Path::new("/sys/fs/ext4")
        .join::<OsString>(name)
        .join("journal_task");
    std::fs::read_to_string(task).is_ok_and(|task| task.trim() == "<none>")
}

/// Does `syncfs` report what could not be written? Linux does since 5.8.
fn reports_errors() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        release.is_ok_and(|release| is_from_5_8(&release))
    })
}

fn is_from_5_8(release: &str) -> bool {
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.trim().parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 8)
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

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn everyone_returns_and_most_share() {
        let group = group();
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
                        group.sync(1, count).unwrap();
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

    fn group() -> GroupSync {
        GroupSync::by(tempfile::tempfile().unwrap().into())
    }

    /// As a lone writer on ext4 without a journal.
    #[test]
    fn without_a_journal_nobody_syncs_for_themselves() {
        let mut group = group();
        group.is_journaled = false;
        group.lock().avoid_until = Some(Instant::now() + AVOID);
        let own = || panic!("alone");
        group.sync_by(1, own, || Ok(())).unwrap();
    }

    fn no_sync() -> Result<(), Errno> {
        panic!("a group's sync")
    }

    #[test]
    fn alone_a_writer_syncs_for_itself_and_hears_of_failure() {
        let group = group();
        let failing = || Err(io::Error::from(Errno::IO));
        assert!(group.sync_by(1, failing, no_sync).is_err());
        let mut state = group.lock();
        state.alone = ALONE_MAX;
        drop(state);
        group.sync(1, failing).unwrap();
    }

    /// The kernel reports what it could not write to the first sync after that, of whomever.
    #[test]
    fn after_a_failed_group_nobody_is_told_success_by_another_sync() {
        let group = group();
        let own = AtomicUsize::new(0);
        let good = || {
            own.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let bad = || Err(io::Error::from(Errno::IO));
        group.lock().alone = ALONE_MAX;
        // A stranger's error: what this writer wrote is on disk.
        group.sync_by(1, good, || Err(Errno::IO)).unwrap();
        assert_eq!(own.load(Ordering::Relaxed), 1);
        // One whose pages were lost in that sync, and who syncs only now.
        assert!(group.sync_by(1, bad, || Ok(())).is_err());
        // The file system is synced all the same: `own` alone may lack what another wrote back.
        let syncs = AtomicUsize::new(0);
        let sync_all = || {
            syncs.fetch_add(1, Ordering::Relaxed);
            Err(Errno::IO)
        };
        group.lock().alone = ALONE_MAX;
        group.sync_by(1, good, sync_all).unwrap();
        assert_eq!(own.load(Ordering::Relaxed), 2);
        assert_eq!(syncs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn members_that_wait_are_not_told_success_after_a_failure() {
        let group = group();
        let own = AtomicUsize::new(0);
        let members = 8;
        let begun = AtomicUsize::new(0);
        group.lock().alone = ALONE_MAX;
        std::thread::scope(|scope| {
            for _ in 0..members {
                scope.spawn(|| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let good = || {
                        own.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    };
                    let sync = || {
                        while begun.load(Ordering::SeqCst) < members {
                            std::thread::yield_now();
                        }
                        Err(Errno::IO)
                    };
                    group.sync_by(1, good, sync).unwrap();
                });
            }
        });
        assert_eq!(own.load(Ordering::SeqCst), members);
    }

    #[test]
    fn one_descriptor_while_anybody_holds_it() {
        // No other test holds this file system's.
        let file = std::fs::File::open("/proc").unwrap();
        let first = GroupSync::of(file.as_fd()).unwrap();
        let again = std::fs::File::open("/proc/self").unwrap();
        let second = GroupSync::of(again.as_fd()).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let held = Arc::downgrade(&first);
        drop((first, second));
        assert!(held.upgrade().is_none(), "nobody can unmount this");
    }

    #[test]
    fn kernels_that_keep_errors_to_themselves() {
        for new in ["5.8.0", "5.10.0-28-amd64", "6.1", "10.0.1"] {
            assert!(is_from_5_8(new), "{new}");
        }
        for old in ["4.19.0-6-amd64", "5.7.19", "5", "", "what"] {
            assert!(!is_from_5_8(old), "{old}");
        }
    }
}
