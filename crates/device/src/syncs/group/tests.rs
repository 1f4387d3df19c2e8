#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::syncs::{FileSystem, Syncs};

/// A writer's set with one thing, synced by a function.
fn own(call: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> SyncSet {
    let fd = tempfile::tempfile().unwrap();
    let syncs = Syncs {
        is_unsafe: true,
        ..Syncs::default()
    };
    let mut set = SyncSet::on(&FileSystem::of(fd.as_fd(), &syncs).unwrap());
    set.add_call(call);
    set
}

fn group() -> Arc<GroupSync> {
    Arc::new(GroupSync::by(Some(tempfile::tempfile().unwrap().into())))
}

/// A writer's sync, as `Syncing` goes about it; `sync_all` stands for the group's.
fn sync_by(
    group: &Arc<GroupSync>,
    set: &SyncSet,
    sync_all: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    let each = || (0..set.len()).try_for_each(|at| set.sync_thing(at));
    let number = match group.enter(set, Instant::now()) {
        Entered::Alone => return each(),
        Entered::Member(number) => number,
    };
    loop {
        match group.attend(number, true) {
            Attendance::Leads(mut leading) => {
                let synced = sync_all();
                leading.has_ended = true;
                group.end(number, synced, None);
            }
            Attendance::Waits => panic!("it returned"),
            Attendance::IsSynced => return Ok(()),
            Attendance::Unknown => return each(),
        }
    }
}

fn lost() -> io::Result<()> {
    Err(Errno::IO.into())
}

/// A description has one set of status flags, however many descriptors it has.
#[test]
fn a_group_has_an_open_file_description_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let fd = std::fs::File::open(folder.path()).unwrap();
    let own = own_description(fd.as_fd()).unwrap();
    rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK).unwrap();
    let flags = rustix::fs::fcntl_getfl(&own).unwrap();
    assert!(!flags.contains(OFlags::NONBLOCK));
}

#[test]
fn a_failed_sync_outside_the_group_is_the_groups_too() {
    let group = group();
    group.state.lock().has_failed = false;
    sync_by(&group, &own(lost), || Ok(())).unwrap();
    group.fail();
    assert!(sync_by(&group, &own(lost), || Ok(())).is_err());
}

#[test]
fn everyone_returns_and_most_share() {
    let group = group();
    let syncs = AtomicUsize::new(0);
    let set = own(|| panic!("one that synced for itself"));
    let sync_all = || {
        syncs.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                for _ in 0..10 {
                    sync_by(&group, &set, sync_all).unwrap();
                }
            });
        }
    });
    assert!(syncs.load(Ordering::Relaxed) < 320, "nobody shared a sync");
}

/// As a lone writer on ext4 without a journal.
#[test]
fn without_a_journal_nobody_syncs_for_themselves() {
    let mut group = GroupSync::by(Some(tempfile::tempfile().unwrap().into()));
    group.is_journaled = false;
    let group = Arc::new(group);
    group.state.lock().avoid_until = Some(Instant::now() + AVOID);
    sync_by(&group, &own(|| panic!("alone")), || Ok(())).unwrap();
}

#[test]
fn after_a_slow_sync_writers_sync_for_themselves_for_a_while() {
    let group = group();
    let began = Instant::now();
    group.state.lock().avoid_until = Some(began + AVOID);
    let set = own(lost);
    assert!(matches!(group.enter(&set, began), Entered::Alone));
    assert!(matches!(
        group.enter(&set, began + AVOID),
        Entered::Member(_)
    ));
}

/// The kernel reports what it could not write to the first sync after that, of whomever.
#[test]
fn after_a_failed_group_nobody_is_told_success_by_another_sync() {
    let group = group();
    let alone = Arc::new(AtomicUsize::new(0));
    let count = alone.clone();
    let good = own(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    // A stranger's error: what this writer wrote is on disk.
    sync_by(&group, &good, lost).unwrap();
    assert_eq!(alone.load(Ordering::Relaxed), 1);
    // One whose pages were lost in that sync, and who syncs only now.
    assert!(sync_by(&group, &own(lost), || Ok(())).is_err());
    // The file system is synced all the same: `own` alone may lack what another wrote back.
    let syncs = AtomicUsize::new(0);
    let sync_all = || {
        syncs.fetch_add(1, Ordering::Relaxed);
        lost()
    };
    sync_by(&group, &good, sync_all).unwrap();
    assert_eq!(alone.load(Ordering::Relaxed), 2);
    assert_eq!(syncs.load(Ordering::Relaxed), 1);
}

#[test]
fn members_that_wait_are_not_told_success_after_a_failure() {
    let group = group();
    let alone = Arc::new(AtomicUsize::new(0));
    let members = 8;
    let begun = AtomicUsize::new(0);
    let count = alone.clone();
    let set = own(move || {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    std::thread::scope(|scope| {
        for _ in 0..members {
            scope.spawn(|| {
                begun.fetch_add(1, Ordering::SeqCst);
                let sync = || {
                    while begun.load(Ordering::SeqCst) < members {
                        std::thread::yield_now();
                    }
                    lost()
                };
                sync_by(&group, &set, sync).unwrap();
            });
        }
    });
    assert_eq!(alone.load(Ordering::SeqCst), members);
}

/// A leader that panics in its sync, and members who wait for it.
#[test]
fn a_leader_that_does_not_come_to_its_end_leaves_nobody_waiting() {
    let group = group();
    let alone = Arc::new(AtomicUsize::new(0));
    let count = alone.clone();
    let set = own(move || {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let Entered::Member(first) = group.enter(&set, Instant::now()) else {
        panic!("alone");
    };
    let Attendance::Leads(leading) = group.attend(first, false) else {
        panic!("nobody runs the group");
    };
    let Entered::Member(second) = group.enter(&set, Instant::now()) else {
        panic!("alone");
    };
    assert_eq!(second, first + 1, "a member of what runs already");
    let waiting = |number| {
        let group = group.clone();
        std::thread::spawn(move || {
            loop {
                match group.attend(number, true) {
                    Attendance::Leads(mut leading) => {
                        assert!(leading.step(&Instant::now));
                    }
                    Attendance::Unknown => return,
                    _ => panic!("told of success by a sync that did not end"),
                }
            }
        })
    };
    let members = [waiting(first), waiting(second)];
    std::thread::sleep(Duration::from_millis(10));
    drop(leading);
    for member in members {
        member.join().unwrap();
    }
}

/// On a simulated machine a group's sync is one of all that its members named.
#[test]
fn a_simulated_group_syncs_what_its_members_named() {
    let group = GroupSync::simulated();
    let synced = Arc::new(AtomicUsize::new(0));
    let set = || {
        let count = synced.clone();
        own(move || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    };
    let enter = || match group.enter(&set(), Instant::now()) {
        Entered::Member(number) => number,
        Entered::Alone => panic!("alone"),
    };
    let numbers = [enter(), enter()];
    let Attendance::Leads(mut leading) = group.attend(numbers[0], false) else {
        panic!("nobody runs the group");
    };
    let late = enter();
    assert!(!leading.step(&Instant::now) && leading.step(&Instant::now));
    assert_eq!(
        synced.load(Ordering::SeqCst),
        2,
        "of those who came in time"
    );
    for number in numbers {
        assert!(matches!(group.attend(number, false), Attendance::IsSynced));
    }
    let next = group.attend(late, false);
    assert!(
        matches!(next, Attendance::Leads(_)),
        "heard another's result"
    );
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
