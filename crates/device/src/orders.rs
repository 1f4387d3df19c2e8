//! The primitives with locks and condition variables, in many orders of their threads' steps: run by
//! `cargo test -p cairn-device --features shuttle`.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::locks::thread;
use crate::syncs::{Attendance, Entered};
use crate::{
    Advanced, Class, CommitLane, FileSystem, Gate, GroupSync, Host, JobLane, Kind, LaneConfig,
    Operation, SyncSet, Syncs,
};

const ORDERS: usize = 2_000;

#[test]
fn no_reader_is_inside_while_a_commit_runs() {
    let turns = || {
        let gate = Arc::new(Gate::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (gate, inside) = (gate.clone(), inside.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let reading = gate.read();
                        inside.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(reading);
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let committing = gate.commit();
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            thread::yield_now();
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            committing.end();
        }
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    };
    shuttle::check_random(turns, ORDERS);
}

/// A disk whose writes are on it when a sync that began after them has ended.
#[derive(Default)]
struct Disk {
    written: AtomicUsize,
    durable: AtomicUsize,
}

impl Disk {
    /// The number of this write.
    fn write(&self) -> usize {
        self.written.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn sync(&self) {
        let begun = self.written.load(Ordering::SeqCst);
        thread::yield_now();
        self.durable.fetch_max(begun, Ordering::SeqCst);
    }
}

fn file_system() -> Arc<FileSystem> {
    let syncs = Syncs {
        is_unsafe: true,
        ..Syncs::default()
    };
    FileSystem::of(tempfile::tempfile().unwrap().as_fd(), &syncs).unwrap()
}

/// `gives_up`: the second leader does not come to its end.
fn members_of_groups(gives_up: bool) {
    let group = GroupSync::simulated();
    let disk = Arc::new(Disk::default());
    let leaders = Arc::new(AtomicUsize::new(0));
    let file_system = file_system();
    let write = move || {
        let written = disk.write();
        let mut set = SyncSet::on(&file_system);
        let syncs = disk.clone();
        set.add_call(move || {
            syncs.sync();
            Ok(())
        });
        let Entered::Member(number) = group.enter(&set, Instant::now()) else {
            panic!("alone");
        };
        loop {
            match group.attend(number, true) {
                Attendance::Leads(mut leading) => {
                    if !gives_up || leaders.fetch_add(1, Ordering::SeqCst) != 1 {
                        while !leading.step(&Instant::now) {}
                    }
                }
                Attendance::IsSynced => {
                    assert!(disk.durable.load(Ordering::SeqCst) >= written);
                    return;
                }
                Attendance::Unknown => return assert!(gives_up, "nothing has failed"),
                Attendance::Waits => panic!("it did not wait"),
            }
        }
    };
    let writers: Vec<_> = (0..4).map(|_| thread::spawn(write.clone())).collect();
    writers
        .into_iter()
        .for_each(|writer| writer.join().unwrap());
}

#[test]
fn a_member_is_told_when_its_write_is_on_disk() {
    shuttle::check_random(|| members_of_groups(false), ORDERS);
}

#[test]
fn nobody_waits_for_a_leader_that_gave_up() {
    shuttle::check_random(|| members_of_groups(true), ORDERS);
}

fn config(threads: usize) -> LaneConfig {
    LaneConfig {
        name: "lane".into(),
        threads,
        depth: 16,
        idle_close: Duration::from_secs(5),
        batch_max: 2,
        machine: None,
        share: Some(Arc::default()),
    }
}

/// Two threads queue work for clients; all of it is done when the lane is closed. Background work waits by
/// the clock, which stands still here.
#[test]
fn no_job_is_lost() {
    let jobs = || {
        let lane = JobLane::new(Kind::Read, config(2));
        let done = Arc::new(AtomicUsize::new(0));
        let (own, count) = (lane.clone(), done.clone());
        let push = move || {
            let count = count.clone();
            let job = Box::new(move || {
                let _ = count.fetch_add(1, Ordering::SeqCst);
            });
            own.push(Class::Client, job).unwrap();
        };
        let other = push.clone();
        let pushing = thread::spawn(move || {
            other();
            other();
        });
        push();
        push();
        pushing.join().unwrap();
        lane.close();
        assert_eq!(done.load(Ordering::SeqCst), 4);
    };
    shuttle::check_random(jobs, ORDERS);
}

struct Anywhere;

impl Host for Anywhere {
    type OpenDevice = ();
    type Error = Infallible;

    fn begin(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Writes, has it synced, and looks whether it is on disk.
struct Write {
    disk: Arc<Disk>,
    file_system: Arc<FileSystem>,
    written: Option<usize>,
    done: Arc<AtomicUsize>,
}

impl Operation<Anywhere> for Write {
    fn advance(&mut self, (): &(), _is_alone: bool) -> Advanced {
        if let Some(written) = self.written {
            assert!(self.disk.durable.load(Ordering::SeqCst) >= written);
            self.done.fetch_add(1, Ordering::SeqCst);
            return Advanced::Ended(None);
        }
        self.written = Some(self.disk.write());
        let disk = self.disk.clone();
        let mut set = SyncSet::on(&self.file_system);
        set.add_call(move || {
            disk.sync();
            Ok(())
        });
        Advanced::Sync(set)
    }

    fn sync_failed(&mut self, (): &(), _error: &io::Error) {}

    fn fail(&mut self, (): &(), _error: &io::Error) {}

    fn refuse(&mut self, error: &Infallible) {
        match *error {}
    }
}

#[test]
fn each_operation_ends_once_and_on_disk() {
    let writes = || {
        let machine = Arc::new(Threads::default());
        let syncs = Syncs {
            machine: Some(machine),
            is_unsafe: false,
        };
        let file = tempfile::tempfile().unwrap();
        let file_system = FileSystem::of(file.as_fd(), &syncs).unwrap();
        let lane = CommitLane::new(Kind::Commit, Anywhere, config(2));
        let (disk, done) = (Arc::new(Disk::default()), Arc::new(AtomicUsize::new(0)));
        let (own, count) = (lane.clone(), done.clone());
        let push = move || {
            let write = Write {
                disk: disk.clone(),
                file_system: file_system.clone(),
                written: None,
                done: count.clone(),
            };
            own.push(Class::Client, Box::new(write)).unwrap();
        };
        let other = push.clone();
        let pushing = thread::spawn(move || (0..3).for_each(|_| other()));
        (0..3).for_each(|_| push());
        pushing.join().unwrap();
        lane.close();
        assert_eq!(done.load(Ordering::SeqCst), 6);
    };
    shuttle::check_random(writes, ORDERS);
}

/// Threads on a file system that shares syncs.
#[derive(Debug, Default)]
struct Threads(std::sync::OnceLock<Grouped>);

struct Grouped(Arc<GroupSync>);

impl std::fmt::Debug for Grouped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a group")
    }
}

impl crate::Machine for Threads {
    fn group(&self) -> Option<Arc<GroupSync>> {
        let grouped = self.0.get_or_init(|| {
            let group = GroupSync::simulated();
            Grouped(group)
        });
        Some(grouped.0.clone())
    }
}
