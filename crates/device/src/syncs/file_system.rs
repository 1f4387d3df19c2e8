//! The file system of a device as its syncs see it, and a sync of a set in steps.

use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::group::{self, Attendance, Entered, GroupSync, Leading};
use super::machine::{self, Machine};
use super::set::SyncSet;

/// How syncs are done.
#[derive(Clone, Debug, Default)]
pub struct Syncs {
    /// A simulated machine's.
    pub machine: Option<Arc<dyn Machine>>,
    /// Not at all: for throw-away test clusters and tests of speed.
    pub is_unsafe: bool,
}

/// A file system: to be held from before the first write on it until after its sync.
pub struct FileSystem {
    /// The syncs that many share. Without it each set is synced by itself.
    group: Option<Arc<GroupSync>>,
    syncs: Syncs,
}

impl FileSystem {
    /// The one that `fd` is on.
    ///
    /// # Errors
    /// That of asking for its device.
    pub fn of(fd: BorrowedFd<'_>, syncs: &Syncs) -> io::Result<Arc<Self>> {
        let group = match &syncs.machine {
            _ if syncs.is_unsafe => None,
            Some(machine) => machine.group(),
            None => Some(GroupSync::of(fd)?),
        };
        let syncs = syncs.clone();
        Ok(Arc::new(FileSystem { group, syncs }))
    }

    /// The syncs that many share.
    pub fn group(&self) -> Option<&Arc<GroupSync>> {
        self.group.as_ref()
    }

    pub(crate) fn is_same(one: &Arc<Self>, other: &Arc<Self>) -> bool {
        match (&one.group, &other.group) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Returns when everything in the set is on disk, as does everything else this thread wrote on the
    /// file system where a group's sync did it.
    ///
    /// # Errors
    /// Nobody knows what of it is on disk.
    pub fn sync(&self, set: &SyncSet) -> io::Result<()> {
        let mut sync = Syncing::new(set.clone());
        loop {
            if let Some(result) = sync.step(self.waits()) {
                return result;
            }
        }
    }

    /// As [`FileSystem::sync`], of what nobody waits for: one by one, where that is enough.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn sync_unawaited(&self, set: &SyncSet) -> io::Result<()> {
        let is_journaled = |group: &Arc<GroupSync>| group.is_journaled();
        if self.group.as_ref().is_none_or(is_journaled) {
            return self.sync_each(set);
        }
        self.sync(set)
    }

    fn sync_each(&self, set: &SyncSet) -> io::Result<()> {
        if self.syncs.is_unsafe {
            return Ok(());
        }
        (0..set.len()).try_for_each(|at| set.sync_thing(at))
    }

    /// Whether a worker here may wait for another. On a machine that runs them by steps one that waited
    /// would keep the other from its end.
    fn waits(&self) -> Patience {
        let machine = self.syncs.machine.as_ref();
        match machine.and_then(|machine| machine.employer()) {
            Some(_) => Patience::Alone,
            None => Patience::Waits,
        }
    }

    pub(crate) fn fsync(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match &self.syncs.machine {
            Some(machine) => machine.sync(fd),
            None => group::fsync(fd),
        }
    }

    pub(crate) fn fdatasync(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match &self.syncs.machine {
            Some(machine) => machine.sync_content(fd),
            None => group::fdatasync(fd),
        }
    }

    /// Syncs all of it, by any descriptor on it.
    pub(crate) fn sync_whole(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match &self.syncs.machine {
            Some(machine) => machine.sync(fd),
            None => {
                let synced = group::sync_all(fd);
                if let (Err(_), Some(group)) = (&synced, &self.group) {
                    group.fail();
                }
                Ok(synced?)
            }
        }
    }

    fn instant(&self) -> Instant {
        machine::instant(self.syncs.machine.as_ref())
    }
}

/// How a sync may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For another's sync, on its thread.
    Waits,
    /// Not at all: it is asked again later.
    Returns,
    /// For nobody, and all in one step: it syncs what is its own by itself.
    Alone,
}

/// A sync of a set on its way.
pub(crate) struct Syncing {
    set: SyncSet,
    stage: Stage,
}

enum Stage {
    Enter,
    /// A member of a group, by its number.
    Attend(u64),
    Lead(Leading),
    /// The things one by one.
    Each(usize),
}

impl Syncing {
    pub(crate) fn new(set: SyncSet) -> Self {
        Syncing {
            set,
            stage: Stage::Enter,
        }
    }

    /// Goes on as far as it may. A panic on the way is a sync that failed: nobody is left waiting for
    /// it.
    pub(crate) fn step(&mut self, patience: Patience) -> Option<io::Result<()>> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Enter);
            let stepped = catch_unwind(AssertUnwindSafe(|| self.go_on(stage, patience)));
            let stepped = stepped.unwrap_or_else(|_| {
                tracing::error!("a sync panicked");
                Err(Ended(Err(io::Error::other("a sync panicked"))))
            });
            match stepped {
                Ok(stage) => self.stage = stage,
                Err(Ended(result)) => return Some(result),
            }
            if patience == Patience::Returns {
                return None;
            }
        }
    }

    fn go_on(&mut self, stage: Stage, patience: Patience) -> Result<Stage, Ended> {
        let file_system = self.set.file_system.clone();
        match stage {
            Stage::Enter if self.set.is_empty() || file_system.syncs.is_unsafe => {
                Err(Ended(Ok(())))
            }
            Stage::Enter => match &file_system.group {
                Some(group) if patience != Patience::Alone => {
                    match group.enter(&self.set, file_system.instant()) {
                        Entered::Alone => Ok(Stage::Each(0)),
                        Entered::Member(number) => Ok(Stage::Attend(number)),
                    }
                }
                _ => Ok(Stage::Each(0)),
            },
            Stage::Attend(number) => {
                let Some(group) = &file_system.group else {
                    return Ok(Stage::Each(0));
                };
                match group.attend(number, patience == Patience::Waits) {
                    Attendance::Leads(leading) => Ok(Stage::Lead(leading)),
                    Attendance::Waits => Ok(Stage::Attend(number)),
                    Attendance::IsSynced => Err(Ended(Ok(()))),
                    // The error may be a stranger's; its own things tell.
                    Attendance::Unknown => Ok(Stage::Each(0)),
                }
            }
            Stage::Lead(mut leading) => {
                let number = leading.number();
                match leading.step(&|| file_system.instant()) {
                    true => Ok(Stage::Attend(number)),
                    false => Ok(Stage::Lead(leading)),
                }
            }
            Stage::Each(at) => {
                self.set.sync_thing(at).map_err(|error| Ended(Err(error)))?;
                match at + 1 < self.set.len() {
                    true => Ok(Stage::Each(at + 1)),
                    false => Err(Ended(Ok(()))),
                }
            }
        }
    }
}

/// The end of a sync, with its result.
struct Ended(io::Result<()>);
