//! Two processes at the same volumes: each lets the other in that waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cairn_disk::async_pending::{list_suffixes, list_updates};
use cairn_disk::engine::NextUpkeep;

use super::*;

/// Longer than any of these tests: nothing is let go of for want of work.
const IDLE_CLOSE: Duration = Duration::from_secs(100);
/// The time that it takes to be let in, on a busy machine.
const LET_IN_MAX: Duration = Duration::from_secs(5);

fn setup() -> Setup {
    let mut setup = Setup::new(false);
    setup.disk = disk_with(setup.root.path(), |config| config.idle_close = IDLE_CLOSE);
    setup
}

fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LET_IN_MAX, "it does not come");
        thread::sleep(Duration::from_millis(1));
    }
}

fn read(engine: &PebblesEngine, disk: &Disk, name: &str) -> Result<Bytes, DiskError> {
    let mut options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    options.inline_limit = 4096;
    match engine.open(disk, &key(name), &options)?.content {
        Content::Inline(bytes) => Ok(bytes),
        _ => panic!("not in memory"),
    }
}

#[test]
fn a_process_that_waits_is_let_in() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    let other = engine(&setup.policies);
    put(one, disk, &key("o"), 1_000_000, b"0");
    for turn in 1..=3u64 {
        let begun = Instant::now();
        for (at, engine) in [&other, one].into_iter().enumerate() {
            let last = 2 * turn - 2 + at as u64;
            assert_eq!(read(engine, disk, "o").unwrap(), last.to_string());
            let body = (last + 1).to_string();
            put(engine, disk, &key("o"), 1_000_001 + last, body.as_bytes());
        }
        assert!(begun.elapsed() < LET_IN_MAX, "{:?}", begun.elapsed());
    }
}

/// Both have work all the time: neither is kept out for long, no request fails, and nothing is lost.
#[test]
fn two_processes_take_turns_under_load() {
    const WORKERS: u64 = 3;
    let setup = setup();
    let disk = &setup.disk;
    let engines = [setup.engine.clone(), engine(&setup.policies)];
    let is_over = AtomicBool::new(false);
    let written: Vec<AtomicU64> = (0..2 * WORKERS).map(|_| AtomicU64::new(0)).collect();
    let longest = AtomicU64::new(0);
    thread::scope(|scope| {
        for (worker, count) in written.iter().enumerate() {
            let (engine, is_over, longest) = (&engines[worker % 2], &is_over, &longest);
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    let begun = Instant::now();
                    let number = count.load(Ordering::Acquire);
                    let name = format!("{worker}-{number}");
                    put(engine, disk, &key(&name), 1_000_000, name.as_bytes());
                    count.store(number + 1, Ordering::Release);
                    assert_eq!(read(engine, disk, &name).unwrap(), name);
                    longest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::AcqRel);
                }
            });
        }
        thread::sleep(Duration::from_secs(4));
        is_over.store(true, Ordering::Release);
    });
    let longest = longest.into_inner();
    assert!(longest < 4_000, "{longest} ms");
    for engine in &engines {
        for (worker, count) in written.iter().enumerate() {
            let count = count.load(Ordering::Acquire);
            assert!(count > 20, "worker {worker}: {count}");
            for number in 0..count {
                let name = format!("{worker}-{number}");
                assert_eq!(read(engine, disk, &name).unwrap(), name);
            }
        }
    }
}

/// A client may take as long as it likes for an upload.
#[test]
fn an_upload_under_way_keeps_nobody_out() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    let other = engine(&setup.policies);
    let large = vec![7; 3_000_000];
    let bodies = [("small", &b"in memory"[..]), ("large", &large[..])];
    let uploads = bodies.map(|(name, body)| {
        let mut upload = one.create(disk, &key(name), None, true).unwrap();
        upload.write(&[Bytes::copy_from_slice(body)]).unwrap();
        (upload, metadata(1_000_000, body))
    });
    put(&other, disk, &key("o"), 1_000_000, b"other");
    for (upload, metadata) in uploads {
        let step = upload.commit(metadata, Durability::AtOnce).unwrap();
        step.finish(disk).unwrap();
    }
    assert_eq!(read(&other, disk, "small").unwrap(), "in memory");
    assert_eq!(read(&other, disk, "o").unwrap(), "other");
    let mut options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
    options.inline_limit = 4096;
    let open = other.open(disk, &key("large"), &options).unwrap();
    assert_eq!(open.info.size, 3_000_000);
}

/// Work that does not end keeps others out, and holds up nobody of its own process.
#[test]
fn what_is_under_way_is_not_cut_off() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    let other = engine(&setup.policies);
    put(one, disk, &key("o"), 1_000_000, b"first");
    let held = one.store(disk, AT.policy).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| put(&other, disk, &key("p"), 1_000_000, b"other"));
        let begun = Instant::now();
        let (mut longest, mut held_up) = (Duration::ZERO, Duration::ZERO);
        while begun.elapsed() < Duration::from_secs(2) {
            let before = Instant::now();
            assert_eq!(read(one, disk, "o").unwrap(), "first");
            longest = longest.max(before.elapsed());
            held_up += before.elapsed();
            thread::sleep(Duration::from_millis(5));
        }
        assert!(longest < Duration::from_secs(1), "{longest:?}");
        // A quarter of a second, and no sooner than a second later again.
        assert!(held_up < Duration::from_secs(1), "{held_up:?}");
        assert!(!waiting.is_finished());
        drop(held);
        waiting.join().unwrap();
    });
    assert_eq!(read(one, disk, "p").unwrap(), "other");
}

/// Between the look and the write of a put at hand, on a thread that must not block, volumes are handed over to
/// nobody: it waits neither for what drains nor for the other process.
#[test]
fn a_put_at_hand_waits_for_no_hand_over() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    let other = engine(&setup.policies);
    put(one, disk, &key("o"), 1_000_000, b"first");
    thread::scope(|scope| {
        let at_hand = one.at_hand(disk, &key("new"), 5).unwrap().engine;
        let waiting = scope.spawn(|| put(&other, disk, &key("p"), 1_000_000, b"other"));
        // Its turn has come: new operations wait for it.
        let begun = Instant::now();
        while one.inner.stores.opened("d", AT.policy).is_some() {
            assert!(begun.elapsed() < LET_IN_MAX, "nobody is let in");
        }
        let options = OpenOptions::metadata(Timestamp::from_secs(1 << 32));
        let open = at_hand.open(disk, &key("new"), &options);
        assert!(matches!(open, Err(DiskError::NotExist)));
        let (body, metadata) = (Bytes::from_static(b"bytes"), metadata(1_000_000, b"bytes"));
        let step = at_hand.put_small(disk, &key("new"), body, metadata, Durability::AtOnce);
        // Had it waited, the other one would have had its turn.
        assert!(!waiting.is_finished());
        drop(at_hand);
        step.unwrap().finish(disk).unwrap();
        waiting.join().unwrap();
    });
    assert_eq!(read(&other, disk, "new").unwrap(), "bytes");
}

/// Work that ends in time is waited for, and others are let in when it has: they need not wait for the next attempt.
#[test]
fn what_is_about_to_end_is_waited_for() {
    // On a busy machine any of them may take longer.
    let waits = (0..3).map(|_| {
        let setup = setup();
        let (one, disk) = (&setup.engine, &setup.disk);
        let other = engine(&setup.policies);
        put(one, disk, &key("o"), 1_000_000, b"first");
        let held = one.store(disk, AT.policy).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| put(&other, disk, &key("p"), 1_000_000, b"other"));
            wait_until(|| held.is_wanted.load(Ordering::Acquire));
            thread::sleep(Duration::from_millis(50));
            let ended = Instant::now();
            drop(held);
            waiting.join().unwrap();
            ended.elapsed()
        })
    });
    let least = waits.min();
    assert!(least < Some(Duration::from_millis(800)), "{least:?}");
}

/// Opening volumes is not to be all that two processes do.
#[test]
fn volumes_are_kept_for_a_moment() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    put(one, disk, &key("o"), 1_000_000, b"first");
    let folder = crate::medium::Folder::open(&disk.path().join("pebbles"), true).unwrap();
    let _sign = folder.want().unwrap();
    let key = ("d".to_owned(), AT.policy);
    let slot = one.inner.stores.open.lock().get(&key).unwrap().clone();
    let opened = one.store(disk, AT.policy).unwrap();
    while opened.began.elapsed() < Duration::from_millis(90) {
        let is_due = opened.is_due_to_others(&slot);
        // Others may have had the processor for longer.
        assert!(!is_due || opened.began.elapsed() >= Duration::from_millis(100));
    }
    wait_until(|| opened.is_wanted.load(Ordering::Acquire));
}

/// Others can take volumes at rest as they are: they are not closed for that.
#[test]
fn volumes_at_rest_are_not_closed_for_others() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    put(one, disk, &key("o"), 1_000_000, b"first");
    let opened = one.store(disk, AT.policy).unwrap();
    let is_at_rest = || opened.folder.rest();
    wait_until(is_at_rest);
    let weak = Arc::downgrade(&opened);
    drop(opened);
    let folder = crate::medium::Folder::open(&disk.path().join("pebbles"), true).unwrap();
    let _sign = folder.want().unwrap();
    thread::sleep(Duration::from_millis(400));
    assert!(weak.upgrade().is_some(), "its index is gone");
}

/// Upkeep is not begun on what others wait for.
#[test]
fn what_others_wait_for_is_not_maintained() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    put(one, disk, &key("o"), 1_000_000, b"first");
    let opened = one.store(disk, AT.policy).unwrap();
    opened.is_wanted.store(true, Ordering::Release);
    let next = one.maintain(disk).unwrap();
    assert_ne!(next, NextUpkeep::Now);
    opened.is_wanted.store(false, Ordering::Release);
    // There are volumes to be made ahead.
    assert_eq!(one.maintain(disk).unwrap(), NextUpkeep::Now);
}

/// A checkpoint is written for the next process where it saves it some of the log, and not for each turn.
#[test]
fn the_next_process_has_a_checkpoint_where_it_is_worth_it() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    let other = engine(&setup.policies);
    for number in 0..100 {
        put(one, disk, &key(&number.to_string()), 1_000_000, b"first");
    }
    let folder = disk.path().join("pebbles");
    let checkpoints = || [1, 0].map(|of| folder.join(format!("checkpoint-{of}")).exists());
    assert_eq!(read(&other, disk, "7").unwrap(), "first");
    assert_eq!(checkpoints(), [true, false]);
    put(&other, disk, &key("o"), 1_000_000, b"second");
    assert_eq!(read(one, disk, "o").unwrap(), "second");
    assert_eq!(checkpoints(), [true, false]);
}

/// A file of volumes that somebody has in hand still is closed when they are handed over.
#[test]
fn a_file_in_hand_keeps_nobody_out() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    let other = engine(&setup.policies);
    put(one, disk, &key("o"), 1_000_000, b"first");
    let volumes = one.store(disk, AT.policy).unwrap().store().volumes();
    put(&other, disk, &key("p"), 1_000_000, b"other");
    assert!(volumes[0].read(0, 4096).is_err());
    assert_eq!(read(one, disk, "p").unwrap(), "other");
}

/// A process that waits and is stopped costs those that work little, and nothing when it is killed.
#[test]
fn a_sign_that_nobody_follows_is_soon_overlooked() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    put(one, disk, &key("o"), 1_000_000, b"first");
    let folder = crate::medium::Folder::open(&disk.path().join("pebbles"), true).unwrap();
    let sign = folder.want().unwrap();
    let begun = Instant::now();
    let mut openings = BTreeMap::new();
    while begun.elapsed() < Duration::from_secs(5) {
        assert_eq!(read(one, disk, "o").unwrap(), "first");
        let mark = folder.mark().unwrap();
        openings.entry(mark).or_insert_with(Instant::now);
        thread::sleep(Duration::from_millis(1));
    }
    // After 0.1, 0.2, 0.4 seconds and so on, and half a second each.
    assert!((2..=6).contains(&openings.len()), "{}", openings.len());
    drop(sign);
    let before = folder.mark();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(read(one, disk, "o").unwrap(), "first");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(folder.mark(), before);
}

/// The process that wrote a row's record has the row still; that one may be killed.
#[test]
fn rows_that_are_owed_are_kept_by_the_next_process() {
    let setup = setup();
    let (one, disk) = (&setup.engine, &setup.disk);
    let other = engine(&setup.policies);
    let body = Bytes::from_static(b"body");
    let row = metadata(1_000_000, &body);
    let put = one.put_small_owing(disk, &key("owed"), body, row).unwrap();
    let debt = put.finish(disk).unwrap().unwrap();
    let opened = other.store(disk, AT.policy).unwrap();
    assert!(opened.store().owes_rows());
    drop(opened);
    // It passes them on.
    let opened = one.store(disk, AT.policy).unwrap();
    assert!(opened.store().owes_rows());
    while one.maintain(disk).unwrap() == NextUpkeep::Now {}
    assert!(!opened.store().owes_rows());
    let suffixes = list_suffixes(disk, AT.policy).unwrap();
    let updates = list_updates(disk, AT.policy, &suffixes[0]).unwrap();
    assert_eq!(updates[0].read(disk).unwrap().object, "owed");
    debt.settle();
}

/// A process that ends lets go of volumes as its requests do, and another one can open them.
#[test]
fn volumes_are_let_go_of_when_nothing_uses_them() {
    let setup = setup();
    // As a process that is to let nobody in.
    let old = engine_with(&setup.policies, |config| config.takes_turns = false);
    let new = engine(&setup.policies);
    put(&old, &setup.disk, &key("o"), 1_000_000, b"first");
    let is_refused = || matches!(new.store(&setup.disk, AT.policy), Err(DiskError::Io { .. }));
    assert!(is_refused());
    let held = old.store(&setup.disk, AT.policy).unwrap();
    old.let_go();
    assert!(is_refused(), "a request is under way");
    drop(held);
    let checkpoint = setup.disk.path().join("pebbles/checkpoint-1");
    assert!(!checkpoint.exists());
    old.let_go();
    assert!(checkpoint.exists());
    let opened = new.store(&setup.disk, AT.policy).unwrap();
    assert_eq!(opened.store().index().size().objects, 1);
    put(&new, &setup.disk, &key("o"), 1_000_002, b"third");
}

/// At a reload the new process has requests while the old one still ends its own.
#[test]
fn volumes_that_another_process_is_about_to_let_go_of_are_waited_for() {
    let setup = setup();
    let old = engine_with(&setup.policies, |config| config.takes_turns = false);
    let new = engine(&setup.policies);
    put(&old, &setup.disk, &key("o"), 1_000_000, b"first");
    thread::scope(|scope| {
        let opening = scope.spawn(|| new.store(&setup.disk, AT.policy).map(drop));
        thread::sleep(Duration::from_millis(200));
        assert!(!opening.is_finished());
        old.let_go();
        opening.join().unwrap().unwrap();
    });
    put(&new, &setup.disk, &key("o"), 1_000_001, b"second");
}
