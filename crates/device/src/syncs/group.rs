//! Many syncs made one: group commit over a whole file system.
//!
//! A durable small write costs several fsyncs, each of which makes the kernel write a few blocks
//! and flush the disk's cache, one after the other. Writers who need a sync at the same time
//! share one `syncfs` instead: whatever they had written when it began is on disk when it ends.
//! While it runs the next group gathers, so groups grow with the load. A writer without company is a
//! group of one: its own fsyncs, of a file, its directories and a log, were not quicker when measured.
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
//! The members of a group and its leader go by turns (`enter`, `attend`, [`Leading::step`]), so that a
//! simulator's workers, of which none may wait for another, share syncs as threads do. A leader that
//! does not come to its end, because it panicked or its machine died, ends its group as a failure:
//! nobody waits for it, and nobody is told of success by it.
//!
//! ext4 without a journal needs `syncfs` every time: there an fsync does not write an inode that
//! changed with its link, or that the kernel's own write-back has put into its buffer since.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use cairn_types::dilation::dilated;
use cairn_types::heuristic::Heuristic;
use cairn_types::plant::Plant;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::set::SyncSet;
use crate::locks::{Condvar, Mutex};

/// A `syncfs` that takes longer has strangers' data to write.
const SLOW_SYNC_MIN: Duration = Duration::from_secs(1);
/// How long everyone then syncs for themselves.
const AVOID: Duration = Duration::from_secs(2);

/// The numbers of the device that a file system is on.
type Device = (u32, u32);

/// The syncs of one file system: to be held from before the first write until after its sync.
pub struct GroupSync {
    /// The descriptor for `syncfs`. Without it, on a simulated machine, a group's sync is one of all that its
    /// members named.
    fd: Option<OwnedFd>,
    /// Syncs of files and their directories alone make them durable.
    is_journaled: bool,
    state: Mutex<State>,
    /// Waited at by the members of even and of odd groups: the end of one wakes its own members,
    /// and one of the next to run it.
    waiting: [Condvar; 2],
    /// A group's sync reports an error: in tests.
    fails: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The group that gathers now; those before it have ended, or the last of them is running.
    gathering: u64,
    /// Everything they named: on a simulated machine.
    named: Option<SyncSet>,
    /// All groups before this one have ended.
    ended: u64,
    running: bool,
    /// A group's sync failed: nobody's success follows from another's any more.
    has_failed: bool,
    avoid_until: Option<Instant>,
}

/// How a writer's things are synced.
pub(crate) enum Entered {
    /// One by one, by the writer itself.
    Alone,
    /// With the group of this number.
    Member(u64),
}

/// How a member's group stands.
pub(crate) enum Attendance {
    /// This member runs its sync.
    Leads(Leading),
    /// It has not ended.
    Waits,
    IsSynced,
    /// Only the member's own things tell.
    Unknown,
}

/// A running group, and its sync. Dropped before its end it has failed.
pub(crate) struct Leading {
    group: Arc<GroupSync>,
    number: u64,
    named: Option<SyncSet>,
    /// Things of it that are synced.
    synced: usize,
    started: Option<Instant>,
    has_ended: bool,
}

/// An open file description of its own on the file system of `fd`. The kernel tells each description
/// of a lost page once: one that is shared tells its first asker alone.
fn own_description(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(fd, ".", flags, Mode::empty()) {
        Ok(own) => Ok(own),
        // No folder, which nobody syncs a device by.
        Err(Errno::NOTDIR) => Ok(rustix::io::fcntl_dupfd_cloexec(fd, 0)?),
        Err(error) => Err(error.into()),
    }
}

impl GroupSync {
    /// The one for the file system that `fd` is on, shared by all devices on it. It keeps the file
    /// system from being unmounted.
    ///
    /// # Errors
    /// That of asking for its device.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Arc<GroupSync>> {
        static ALL: OnceLock<parking_lot::Mutex<HashMap<Device, Weak<GroupSync>>>> =
            OnceLock::new();
        let file_system = device_of(fd)?;
        let mut all = ALL.get_or_init(parking_lot::Mutex::default).lock();
        if let Some(held) = all.get(&file_system).and_then(Weak::upgrade) {
            return Ok(held);
        }
        all.retain(|_, group| group.strong_count() > 0);
        let mut group = GroupSync::by(Some(own_description(fd)?));
        group.is_journaled = !lacks_journal(file_system);
        let group = Arc::new(group);
        all.insert(file_system, Arc::downgrade(&group));
        Ok(group)
    }

    /// The one of a simulated machine's only file system.
    pub fn simulated() -> Arc<GroupSync> {
        Arc::new(GroupSync::by(None))
    }

    fn by(fd: Option<OwnedFd>) -> Self {
        let state = State {
            has_failed: fd.is_some() && !reports_errors(),
            ..State::default()
        };
        GroupSync {
            fd,
            is_journaled: true,
            state: Mutex::new(state),
            waiting: Default::default(),
            fails: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_journaled(&self) -> bool {
        self.is_journaled
    }

    /// Has syncs of groups report an error from now on, or no more: for tests.
    #[doc(hidden)]
    pub fn set_failing(&self, fails: bool) {
        self.fails.store(fails, Ordering::Release);
    }

    /// A writer has come, with all that is to be synced for it.
    pub(crate) fn enter(self: &Arc<Self>, set: &SyncSet, now: Instant) -> Entered {
        let mut state = self.state.lock();
        if self.is_journaled && state.is_avoided(now) {
            return Entered::Alone;
        }
        if Plant::HearsAnother.is_on() && state.running {
            return Entered::Member(state.ended);
        }
        if self.fd.is_none() {
            match &mut state.named {
                Some(named) => named.merge(set.clone()),
                none => *none = Some(set.clone()),
            }
        }
        Entered::Member(state.gathering)
    }

    /// How a member's group stands. `waits`: until it has ended, or is this member's to run.
    pub(crate) fn attend(self: &Arc<Self>, group: u64, waits: bool) -> Attendance {
        let mut state = self.state.lock();
        while !state.has_ended(group) {
            if !state.running {
                return Attendance::Leads(self.lead(&mut state, group));
            }
            if !waits {
                return Attendance::Waits;
            }
            self.waits(group).wait(&mut state);
        }
        match state.has_failed {
            false => Attendance::IsSynced,
            true => Attendance::Unknown,
        }
    }

    fn lead(self: &Arc<Self>, state: &mut State, group: u64) -> Leading {
        debug_assert_eq!(group, state.gathering, "a group is run twice");
        state.running = true;
        state.gathering += 1;
        Leading {
            group: self.clone(),
            number: group,
            named: std::mem::take(&mut state.named),
            synced: 0,
            started: None,
            has_ended: false,
        }
    }

    /// A sync of the whole file system that was not a group's has failed: the kernel has told that once,
    /// and a group's next sync would not hear of it.
    pub(crate) fn fail(&self) {
        self.state.lock().has_failed = true;
    }

    /// A group's sync has ended. `times`: when it began and ended, unless it was given up.
    fn end(&self, group: u64, result: io::Result<()>, times: Option<[Instant; 2]>) {
        let mut state = self.state.lock();
        debug_assert!(state.running && state.ended == group, "another group's end");
        state.running = false;
        state.ended = group + 1;
        if let Some([began, ended]) = times {
            let took = ended.saturating_duration_since(began);
            if took > dilated(SLOW_SYNC_MIN) && !Heuristic::AvoidSlowSync.is_off() {
                state.avoid_until = Some(ended + dilated(AVOID));
            }
        }
        if let Err(error) = result
            && !std::mem::replace(&mut state.has_failed, true)
        {
            tracing::error!(
                %error,
                "a sync of a whole file system failed: what was written there is synced file by \
                 file from now on"
            );
        }
        self.waits(group).notify_all();
        self.waits(group + 1).notify_one();
    }

    fn waits(&self, group: u64) -> &Condvar {
        &self.waiting[(group % 2) as usize]
    }
}

impl Leading {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Syncs the file system, or on a simulated machine one thing that a member named. True: the group
    /// has ended.
    pub(crate) fn step(&mut self, clock: &dyn Fn() -> Instant) -> bool {
        let began = *self.started.get_or_insert_with(clock);
        let synced = match &self.group.fd {
            _ if self.group.fails.load(Ordering::Acquire) => Err(Errno::IO.into()),
            Some(fd) => sync_all(fd.as_fd()).map_err(io::Error::from),
            None => match &self.named {
                Some(named) if self.synced < named.len() => {
                    let synced = named.sync_thing(self.synced);
                    self.synced += 1;
                    if synced.is_ok() && self.synced < named.len() {
                        return false;
                    }
                    synced
                }
                _ => Ok(()),
            },
        };
        self.has_ended = true;
        let times = Some([began, clock()]);
        self.group.end(self.number, synced, times);
        true
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        if !self.has_ended {
            let given_up = Err(io::Error::other("given up before its end"));
            self.group.end(self.number, given_up, None);
        }
    }
}

impl State {
    fn has_ended(&self, group: u64) -> bool {
        self.ended > group
    }

    fn is_avoided(&mut self, now: Instant) -> bool {
        match self.avoid_until {
            Some(until) if now < until => true,
            Some(_) => {
                self.avoid_until = None;
                false
            }
            None => false,
        }
    }
}

/// Everything on the file system, and the disk's own cache. The second call matters where the
/// file system has no journal: there `syncfs` writes directories and inodes last, after it
/// flushed the cache, and an fsync, of whatever, flushes it once more.
///
/// # Errors
/// That of `syncfs`, or of the `fsync` after it; an interrupted one is begun again.
pub fn sync_all(fd: BorrowedFd<'_>) -> Result<(), Errno> {
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

/// Syncs content and everything that is known of a file, or the names in a directory.
///
/// # Errors
/// That of the sync; an interrupted one is begun again.
pub fn fsync(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(retry(|| rustix::fs::fsync(fd))?)
}

/// Content of a file, and its size.
pub(crate) fn fdatasync(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(retry(|| rustix::fs::fdatasync(fd))?)
}

fn retry(call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
