#![allow(clippy::unwrap_used)]

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Wake, Waker};

use parking_lot::Mutex as Lock;

use super::*;
use crate::share::{Class, Kind};
use crate::syncs::{FileSystem, GroupSync, SyncSet, Syncs};
use crate::worker::Employer;

struct Nothing;

impl Host for Nothing {
    type OpenDevice = ();
    type Error = ();

    fn begin(&self) -> Result<(), ()> {
        Ok(())
    }
}

/// The events, in order.
#[derive(Clone, Default)]
struct Notes(Arc<Lock<Vec<String>>>);

impl Notes {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().push(text.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// Syncs once by `call`, and notes how it ends.
struct Once {
    name: &'static str,
    set: Option<SyncSet>,
    panics: bool,
    notes: Notes,
    /// Dropped when it is told, or gone.
    told: Option<mpsc::Sender<bool>>,
}

impl Once {
    fn end(&mut self, is_well: bool) {
        let how = if is_well { "is well" } else { "has failed" };
        self.notes.note(format!("{} {how}", self.name));
        if let Some(told) = self.told.take() {
            let _ = told.send(is_well);
        }
    }
}

impl Operation<Nothing> for Once {
    fn advance(&mut self, (): &(), _is_alone: bool) -> Advanced {
        assert!(!self.panics, "planted");
        match self.set.take() {
            Some(set) => Advanced::Sync(set),
            None => {
                self.end(true);
                Advanced::Ended(None)
            }
        }
    }

    fn sync_failed(&mut self, (): &(), _error: &io::Error) {
        self.notes.note(format!("{}'s sync failed", self.name));
    }

    fn fail(&mut self, (): &(), _error: &io::Error) {
        self.end(false);
    }

    fn refuse(&mut self, (): &()) {
        self.end(false);
    }
}

/// One that holds something else until it is dropped.
struct Holding<T> {
    once: Once,
    _held: Option<T>,
}

impl<T: Send + 'static> Operation<Nothing> for Holding<T> {
    fn advance(&mut self, opened: &(), is_alone: bool) -> Advanced {
        self.once.advance(opened, is_alone)
    }

    fn sync_failed(&mut self, opened: &(), error: &io::Error) {
        self.once.sync_failed(opened, error);
    }

    fn fail(&mut self, opened: &(), error: &io::Error) {
        self.once.fail(opened, error);
    }

    fn refuse(&mut self, opened: &()) {
        self.once.refuse(opened);
    }
}

fn config(machine: Option<Arc<dyn Machine>>) -> LaneConfig {
    LaneConfig {
        name: "lane".into(),
        threads: 1,
        depth: 8,
        idle_close: Duration::from_secs(5),
        batch_max: 8,
        machine,
        share: Some(Arc::default()),
    }
}

fn file_system(machine: Option<Arc<dyn Machine>>) -> Arc<FileSystem> {
    let syncs = Syncs {
        machine,
        is_unsafe: false,
    };
    FileSystem::of(tempfile::tempfile().unwrap().as_fd(), &syncs).unwrap()
}

fn set(
    file_system: &Arc<FileSystem>,
    call: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> SyncSet {
    let mut set = SyncSet::on(file_system);
    set.add_call(call);
    set
}

/// A machine whose workers the test runs; its syncs are by itself.
#[derive(Default)]
struct Stepped {
    workers: Lock<Vec<Box<dyn Worker>>>,
    group: Option<Arc<GroupSync>>,
}

impl std::fmt::Debug for Stepped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a machine")
    }
}

impl Employer for Stepped {
    fn employ(&self, worker: Box<dyn Worker>) {
        self.workers.lock().push(worker);
    }
}

impl Machine for Stepped {
    fn employer(&self) -> Option<&dyn Employer> {
        Some(self)
    }

    fn group(&self) -> Option<Arc<GroupSync>> {
        self.group.clone()
    }
}

impl Stepped {
    fn step(&self, at: usize) -> Next {
        struct Nobody;
        impl Wake for Nobody {
            fn wake(self: Arc<Self>) {}
        }
        let mut worker = self.workers.lock().remove(at);
        let next = worker.step(&Waker::from(Arc::new(Nobody)));
        self.workers.lock().insert(at, worker);
        next
    }
}

/// Three operations in one batch, one of which has this sync; how each ended, and what was noted.
fn batch_with(
    middle: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    panics: bool,
) -> (Vec<Option<bool>>, Vec<String>) {
    let machine = Arc::new(Stepped::default());
    let own: Arc<dyn Machine> = machine.clone();
    let lane = CommitLane::new(Kind::Commit, Nothing, config(Some(own.clone())));
    let (notes, file_system) = (Notes::default(), file_system(Some(own)));
    let sets = [
        set(&file_system, || Ok(())),
        set(&file_system, middle),
        set(&file_system, || Ok(())),
    ];
    let names = ["one", "two", "three"];
    let mut ends = Vec::new();
    for (name, set) in names.into_iter().zip(sets) {
        let (told, end) = mpsc::channel();
        ends.push(end);
        let operation = Once {
            name,
            set: Some(set),
            panics: panics && name == "two",
            notes: notes.clone(),
            told: Some(told),
        };
        lane.push(Class::Client, Box::new(operation)).unwrap();
    }
    while machine.step(0) == Next::Works {}
    let ended = ends.iter().map(|end| end.try_recv().ok()).collect();
    (ended, notes.all())
}

#[test]
fn all_of_a_batch_hear_of_its_one_sync_after_it() {
    let (ended, notes) = batch_with(|| Ok(()), false);
    assert_eq!(ended, [Some(true); 3]);
    assert_eq!(notes, ["one is well", "two is well", "three is well"]);
}

/// One may try again as soon as it is told.
#[test]
fn all_of_a_batch_fail_before_the_first_is_told() {
    let failures = [
        "one's sync failed",
        "two's sync failed",
        "three's sync failed",
    ];
    let told = ["one has failed", "two has failed", "three has failed"];
    let (ended, notes) = batch_with(|| Err(io::Error::other("planted")), false);
    assert_eq!(ended, [Some(false); 3]);
    assert_eq!(notes, [failures, told].concat());
    // A sync that panics is one that failed: nobody is left waiting.
    let (ended, notes) = batch_with(|| panic!("planted"), false);
    assert_eq!(ended, [Some(false); 3]);
    assert_eq!(notes, [failures, told].concat());
}

#[test]
fn an_operation_that_panics_ends_alone() {
    let (ended, notes) = batch_with(|| Ok(()), true);
    assert_eq!(ended, [Some(true), None, Some(true)]);
    assert_eq!(notes, ["one is well", "three is well"]);
}

/// Looks, when it is dropped, whether its lane's lock is free: closing files may queue work.
struct LooksAtLock<D: Discipline>(Arc<Lane<D>>, Arc<Lock<Vec<bool>>>);

impl<D: Discipline> Drop for LooksAtLock<D> {
    fn drop(&mut self) {
        self.1.lock().push(self.0.inner.try_lock().is_some());
    }
}

#[test]
fn a_refused_job_is_dropped_without_the_lock() {
    let one = |machine| LaneConfig {
        depth: 1,
        ..config(Some(machine))
    };
    let free = Arc::new(Lock::default());
    let jobs = JobLane::new(Kind::Read, one(Arc::new(Stepped::default())));
    jobs.push(Class::Client, Box::new(|| {})).unwrap();
    let looks = LooksAtLock(jobs.clone(), free.clone());
    let job = Box::new(move || drop(looks));
    assert_eq!(jobs.push(Class::Client, job), Err(Refused::Full));
    let commits = CommitLane::new(Kind::Commit, Nothing, one(Arc::new(Stepped::default())));
    let operation = |name, held| {
        Box::new(Holding {
            once: Once {
                name,
                set: None,
                panics: false,
                notes: Notes::default(),
                told: None,
            },
            _held: held,
        })
    };
    commits.push(Class::Client, operation("one", None)).unwrap();
    let looks = LooksAtLock(commits.clone(), free.clone());
    let refused = commits.push(Class::Client, operation("two", Some(looks)));
    assert_eq!(refused, Err(Refused::Full));
    assert_eq!(*free.lock(), [true, true]);
}

#[test]
fn a_panic_of_who_waits_ends_there() {
    Completion::<(), ()>::new(|_| panic!("planted")).complete(Ok(()));
}

/// A batch's machine dies while it leads a group, of which another batch is a member.
#[test]
fn who_waits_for_a_leader_that_is_gone_syncs_for_itself() {
    let group = GroupSync::simulated();
    let machine = Arc::new(Stepped {
        group: Some(group),
        ..Stepped::default()
    });
    let own: Arc<dyn Machine> = machine.clone();
    let file_system = file_system(Some(own.clone()));
    let (notes, synced) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
    let begin = |name| {
        let lane = CommitLane::new(Kind::Commit, Nothing, config(Some(own.clone())));
        let (told, end) = mpsc::channel();
        let count = synced.clone();
        let set = set(&file_system, move || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let operation = Once {
            name,
            set: Some(set),
            panics: false,
            notes: notes.clone(),
            told: Some(told),
        };
        lane.push(Class::Client, Box::new(operation)).unwrap();
        (lane, end)
    };
    let (first, leads) = begin("leads");
    // Takes its batch, opens the device, advances, enters the group, runs it.
    (0..5).for_each(|_| assert_eq!(machine.step(0), Next::Works));
    let (_second, waits) = begin("waits");
    (0..8).for_each(|_| assert_eq!(machine.step(1), Next::Works));
    assert!(waits.try_recv().is_err(), "told before the group has ended");
    assert_eq!(synced.load(Ordering::SeqCst), 0);
    drop(machine.workers.lock().remove(0));
    assert!(leads.recv().is_err(), "told of a sync that did not end");
    assert_eq!(first.workers(), 0);
    while machine.step(0) == Next::Works {}
    assert_eq!(waits.try_recv(), Ok(true));
    assert!(synced.load(Ordering::SeqCst) > 0, "by another's failure");
}

#[test]
fn a_closed_lane_of_a_machine_drops_what_waits() {
    let machine = Arc::new(Stepped::default());
    let lane = JobLane::new(Kind::Read, config(Some(machine.clone())));
    let (told, end) = mpsc::channel::<()>();
    lane.push(Class::Client, Box::new(move || drop(told)))
        .unwrap();
    assert_eq!(lane.waiting(), 1);
    lane.close();
    assert!(matches!(
        end.try_recv(),
        Err(mpsc::TryRecvError::Disconnected)
    ));
    let refused = lane.push(Class::Client, Box::new(|| {}));
    assert_eq!(refused, Err(Refused::Closed));
}
