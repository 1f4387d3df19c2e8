//! The engine compared with closed formulas. Each test fails if the corresponding part of the
//! engine is broken.

use super::*;
use crate::random::Spread;

/// Simulates Poisson arrivals of tasks made by `steps`; returns the mean response time, and the
/// mean number of jobs at the first station.
fn open(
    engine: &mut Engine,
    rate: f64,
    operations: u64,
    mut steps: impl FnMut(&mut Dice) -> Vec<Step>,
) -> (f64, f64) {
    let mut dice = Dice::new(11);
    let mut began = std::collections::HashMap::new();
    let (mut sum, mut ended) = (0.0, 0u64);
    engine.set_alarm(0.0, 0);
    while ended < operations {
        match engine.advance() {
            Some(Happened::Alarm { token }) => {
                began.insert(token, engine.now());
                let task = steps(&mut dice);
                engine.start(task, token);
                engine.set_alarm(dice.exponential(1.0 / rate), token + 1);
            }
            Some(Happened::Ended { token }) => {
                sum += engine.now() - began.remove(&token).unwrap_or_default();
                ended += 1;
            }
            None => break,
        }
    }
    let counts = engine.counts(0);
    (
        sum / ended as f64,
        counts.job_seconds / engine.seconds_counted(),
    )
}

fn near(found: f64, expected: f64, part: f64) {
    let off = (found / expected - 1.0).abs();
    assert!(off < part, "{found} is not {expected} within {part}");
}

fn served(station: usize) -> impl FnMut(&mut Dice) -> Vec<Step> {
    move |dice| {
        let seconds = dice.exponential(1.0);
        vec![Step::Serve { station, seconds }]
    }
}

/// M/M/1: R = S / (1 - rho); and Little's law at the station.
#[test]
fn one_server() {
    for rho in [0.3, 0.7, 0.9] {
        let mut engine = Engine::new(1);
        let station = engine.add_station(1, None);
        let (response, jobs) = open(&mut engine, rho, 400_000, served(station));
        near(response, 1.0 / (1.0 - rho), 0.05);
        near(jobs, rho * response, 0.02);
        near(engine.utilisation(station), rho, 0.01);
    }
}

/// M/M/k, by Erlang's formula C.
#[test]
fn many_servers() {
    for (servers, rho) in [(2usize, 0.8), (8, 0.9)] {
        let mut engine = Engine::new(1);
        let station = engine.add_station(servers, None);
        let (k, rate) = (servers as f64, rho * servers as f64);
        let (response, _) = open(&mut engine, rate, 400_000, served(station));
        let mut terms = vec![1.0];
        for i in 1..=servers {
            terms.push(terms[i - 1] * rate / i as f64);
        }
        let last = terms[servers] / (1.0 - rho);
        let waits = last / (terms[..servers].iter().sum::<f64>() + last);
        near(response, 1.0 + waits / (k * (1.0 - rho)), 0.04);
    }
}

/// Processors with a short quantum are shared: M/G/1-PS has M/M/1's mean for any distribution.
#[test]
fn turns() {
    let mut engine = Engine::new(1);
    let station = engine.add_station(1, Some(0.05));
    let spread = Spread::LogNormal(3.0);
    let (response, _) = open(&mut engine, 0.7, 200_000, |dice| {
        let seconds = spread.draw(1.0, dice);
        vec![Step::Serve { station, seconds }]
    });
    near(response, 1.0 / 0.3, 0.08);
}

/// A fork over n branches of exponential times continues at the k-th: sum of 1 / (n - i), i below
/// k.
#[test]
fn order_statistics() {
    for (n, k) in [(3usize, 2usize), (6, 5), (3, 3), (5, 1)] {
        let mut engine = Engine::new(1);
        engine.add_station(1, None);
        let (response, _) = open(&mut engine, 1.0, 60_000, |dice| {
            let mut branch = || {
                vec![Step::Wait {
                    seconds: dice.exponential(1.0),
                }]
            };
            let branches = (0..n).map(|_| branch()).collect();
            vec![Step::Fork {
                need: k,
                linger: 0.0,
                branches,
            }]
        });
        let expected: f64 = (0..k).map(|i| 1.0 / (n - i) as f64).sum();
        near(response, expected, 0.02);
    }
}

/// Stragglers of a fork still occupy their server, and do not count for a later fork.
#[test]
fn stragglers() {
    let mut engine = Engine::new(1);
    let station = engine.add_station(1, None);
    let slow = vec![Step::Serve {
        station,
        seconds: 5.0,
    }];
    let quick = vec![Step::Wait { seconds: 1.0 }];
    let first = Step::Fork {
        need: 1,
        linger: 0.0,
        branches: vec![slow, quick],
    };
    let second = Step::Fork {
        need: 1,
        linger: 0.0,
        branches: vec![vec![Step::Wait { seconds: 9.0 }]],
    };
    engine.start(vec![first, second], 7);
    assert_eq!(engine.advance(), Some(Happened::Ended { token: 7 }));
    assert_eq!(engine.now(), 10.0);
    assert_eq!(engine.advance(), None);
    assert_eq!(engine.counts(station).busy_seconds, 5.0);
    assert_eq!(engine.under_way(), 0);
}

/// A fork whose quorum has ended waits for the others, but no longer than they get.
#[test]
fn others_have_their_time() {
    for (linger, slowest, expected) in [(0.0, 5.0, 2.0), (0.5, 5.0, 2.5), (0.5, 2.3, 2.3)] {
        let mut engine = Engine::new(1);
        let branches = [1.0, 2.0, slowest].map(|seconds| vec![Step::Wait { seconds }]);
        let fork = Step::Fork {
            need: 2,
            linger,
            branches: branches.into(),
        };
        engine.start(vec![fork, Step::Wait { seconds: 10.0 }], 7);
        assert_eq!(engine.advance(), Some(Happened::Ended { token: 7 }));
        assert!((engine.now() - expected - 10.0).abs() < 1e-9, "{linger}");
        assert_eq!(engine.advance(), None);
        assert_eq!(engine.under_way(), 0);
    }
}

/// Branches wait at a meeting until enough have come; who comes later does not wait.
#[test]
fn branches_meet() {
    for (need, expected) in [(1, 11.0), (2, 12.0), (3, 15.0)] {
        let mut engine = Engine::new(1);
        let meet = Step::Meet {
            number: 0,
            need,
            of: 3,
        };
        let branches = [1.0, 2.0, 5.0].map(|seconds| {
            let after = Step::Wait { seconds: 10.0 };
            vec![Step::Wait { seconds }, meet.clone(), after]
        });
        let fork = Step::Fork {
            need: 1,
            linger: 0.0,
            branches: branches.into(),
        };
        engine.start(vec![fork.clone()], 7);
        assert_eq!(engine.advance(), Some(Happened::Ended { token: 7 }));
        assert!((engine.now() - expected).abs() < 1e-9, "{need}");
        assert_eq!(engine.advance(), None);
        assert!((engine.now() - 15.0).abs() < 1e-9);
        assert!(engine.meetings.is_empty() && engine.under_way() == 0);
    }
}

fn medium(base: f64, member: f64) -> Medium {
    Medium {
        sync_base: base,
        sync_member: member,
        sync_byte: 0.0,
        sync_spread: Spread::Fixed,
        sync_cpu: 0.0,
        ..crate::calibration::tests::example().medium["disk"].clone()
    }
}

/// A branch that looks ends if its fork has gone on, and goes on itself if not.
#[test]
fn what_is_late_happens_only_without_an_answer() {
    for (answer, expected) in [(1.0, [1.0, 3.0]), (9.0, [7.0, 9.0])] {
        let mut engine = Engine::new(1);
        let late = vec![
            Step::Wait { seconds: 3.0 },
            Step::UnlessOver,
            Step::Wait { seconds: 4.0 },
        ];
        let fork = Step::Fork {
            need: 1,
            linger: 0.0,
            branches: vec![vec![Step::Wait { seconds: answer }], late],
        };
        engine.start(vec![fork], 7);
        assert_eq!(engine.advance(), Some(Happened::Ended { token: 7 }));
        let ended = engine.now();
        assert_eq!(engine.advance(), None);
        assert_eq!([ended, engine.now()], expected);
        assert_eq!(engine.under_way(), 0);
    }
}

/// Half a second of each two: a job that needs 1.2 seconds ends in the third period, and what
/// periods without a job have left is not kept for it.
#[test]
fn a_quota_is_used_up_and_not_saved() {
    for (begins, expected) in [(0.0, 4.2), (20.0, 24.2), (21.9, 26.1), (20.5, 24.2)] {
        let mut engine = Engine::new(1);
        let quota = Quota {
            seconds: 0.5,
            period: 2.0,
        };
        let station = engine.add_limited_station(2, 0.01, quota);
        let serve = Step::Serve {
            station,
            seconds: 1.2,
        };
        engine.start(vec![Step::Wait { seconds: begins }, serve], 7);
        assert_eq!(engine.advance(), Some(Happened::Ended { token: 7 }));
        let off = engine.now() - expected;
        assert!(off.abs() < 1e-6, "{begins}: {}", engine.now());
    }
}

/// A station with a quota has the throughput of the quota, and is used up then.
#[test]
fn a_quota_bounds_the_throughput() {
    let mut engine = Engine::new(1);
    let quota = Quota {
        seconds: 0.5,
        period: 2.0,
    };
    let station = engine.add_limited_station(2, 0.03, quota);
    let steps = || {
        let seconds = 0.1;
        vec![Step::Serve { station, seconds }]
    };
    (0..8).for_each(|token| engine.start(steps(), token));
    for _ in 0..2000 {
        if let Some(Happened::Ended { token }) = engine.advance() {
            engine.start(steps(), token);
        }
    }
    near(2000.0 / engine.now(), 2.5, 0.01);
    near(engine.utilisation(station), 1.0, 0.01);
}

/// Group commit: N workers that only sync share each one; throughput is N / S(N), and a worker
/// waits for the previous group only if there is work in between.
#[test]
fn groups_gather() {
    for workers in [1u64, 4, 16] {
        let mut engine = Engine::new(1);
        let disk = engine.add_station(1, None);
        let group = engine.add_group(disk, None, medium(1.0, 0.1));
        let steps = || vec![Step::Sync { group, bytes: 0.0 }];
        (0..workers).for_each(|token| engine.start(steps(), token));
        for _ in 0..10_000 {
            if let Some(Happened::Ended { token }) = engine.advance() {
                engine.start(steps(), token);
            }
        }
        // The first worker to return begins a group of its own; the others gather meanwhile.
        let rate = 10_000.0 / engine.now();
        let others = (workers - 1) as f64;
        let expected = match workers {
            1 => 1.0,
            _ => workers as f64 / (2.0 + 0.1 * (others - 1.0)),
        };
        near(rate, expected, 0.01);
        assert!(engine.group_counts().members >= 10_000);
    }
}

/// A closed loop's throughput is bounded by N / R0 and 1 / Dmax, and approaches both.
#[test]
fn saturation_law() {
    for (workers, expected) in [(1u64, 1.0 / 1.5), (64, 1.0)] {
        let mut engine = Engine::new(1);
        let (slow, quick) = (engine.add_station(1, None), engine.add_station(1, None));
        let mut dice = Dice::new(5);
        let mut steps = || {
            let mut at = |station, mean| Step::Serve {
                station,
                seconds: dice.exponential(mean),
            };
            vec![at(slow, 1.0), at(quick, 0.5)]
        };
        (0..workers).for_each(|token| engine.start(steps(), token));
        for _ in 0..100_000 {
            if let Some(Happened::Ended { token }) = engine.advance() {
                engine.start(steps(), token);
            }
        }
        near(100_000.0 / engine.now(), expected, 0.02);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut engine = Engine::new(seed);
        let disk = engine.add_station(1, None);
        let mut medium = medium(1.0, 0.1);
        medium.sync_spread = Spread::Exponential;
        let group = engine.add_group(disk, None, medium);
        open(&mut engine, 2.0, 1000, |_| {
            vec![Step::Sync { group, bytes: 0.0 }]
        })
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

fn ssd() -> crate::hardware::Medium {
    crate::hardware::Medium {
        fixed_us: 200.0,
        channels: 4,
        ..crate::hardware::Medium::default()
    }
}

/// A read of a known disk takes its time; more of them than channels wait.
#[test]
fn a_known_disk_serves_by_its_channels() {
    let mut engine = Engine::new(1);
    let disk = engine.add_disk(&ssd(), 4e9);
    let read = Io::Read {
        bytes: 4096.0,
        at: 0.1,
        behind: 0.0,
    };
    let requests = vec![read; 8];
    engine.start(vec![Step::Io { disk, requests }], 7);
    assert_eq!(engine.advance(), Some(Happened::Ended { token: 7 }));
    assert!((engine.now() - 400e-6).abs() < 1e-9, "{}", engine.now());
    assert_eq!(engine.disk_use().reads, 8.0);
}

/// A disk that takes nothing while it flushes has a read wait for the flush's end, beside free channels.
#[test]
fn requests_wait_behind_a_flush() {
    let answered = |waits: bool| {
        let mut engine = Engine::new(1);
        let medium = crate::hardware::Medium {
            flush_us: 500.0,
            ..ssd()
        };
        let disk = engine.add_disk(&medium, 4e9);
        if waits {
            engine.hold_behind_flushes(disk);
        }
        let flush = Step::Io {
            disk,
            requests: vec![Io::Flush],
        };
        let requests = vec![Io::Read {
            bytes: 4096.0,
            at: 0.1,
            behind: 0.0,
        }];
        engine.start(vec![flush.clone(), flush], 1);
        engine.start(vec![Step::Io { disk, requests }], 2);
        let mut ends = Vec::new();
        while let Some(Happened::Ended { token }) = engine.advance() {
            ends.push((token, (engine.now() * 1e6).round()));
        }
        ends
    };
    assert_eq!(answered(false), [(2, 200.0), (1, 1000.0)]);
    assert_eq!(answered(true), [(2, 700.0), (1, 1000.0)]);
}

/// Whoever comes while a journal commits shares the next commit with all others who wait.
#[test]
fn commits_are_shared_by_those_who_wait() {
    let mut engine = Engine::new(1);
    let files = crate::calibration::FileCost::default();
    let disk = engine.add_disk(&ssd(), 4e9);
    let journal = engine.add_gathering(Work::Journal, disk, 1, &files);
    for token in 0..5 {
        let writes = vec![Written::Blocks(4096.0)];
        let gathering = journal;
        engine.start(vec![Step::Join { gathering, writes }], token);
    }
    let mut ends = Vec::new();
    while engine.advance().is_some() {
        ends.push((engine.now() * 1e6).round());
    }
    // Two writes one after the other, and flushes that take no time: the first alone, then the others.
    assert_eq!(ends, [400.0, 800.0, 800.0, 800.0, 800.0]);
    assert_eq!(engine.disk_use().flushes, 4.0);
}

/// A removal writes home what two files are, and a new name what one is.
#[test]
fn removals_change_two_files() {
    let requests = |written: Written| {
        let mut engine = Engine::new(1);
        let files = crate::calibration::FileCost {
            directories: 0.0,
            bitmaps: 0.0,
            home_tables: 0.0,
            home_member: 2.0,
            second_commit: 0.0,
            ..crate::calibration::FileCost::default()
        };
        let disk = engine.add_disk(&ssd(), 4e9);
        let journal = engine.add_gathering(Work::Journal, disk, 1, &files);
        let syncs = engine.add_gathering(Work::FileSystem { journal }, disk, 1, &files);
        let objects = engine.add_gathering(Work::Objects { syncs }, disk, 1, &files);
        let join = Step::Join {
            gathering: objects,
            writes: vec![written],
        };
        engine.start(vec![join], 1);
        while engine.advance().is_some() {}
        let used = engine.disk_use();
        (used.writes, used.written_bytes)
    };
    let (name, removal) = (requests(Written::Name), requests(Written::Removal));
    // The journal's blocks and its commit's, and then two blocks, or four.
    assert_eq!((name.0, removal.0), (4.0, 6.0));
    assert!(removal.1 > name.1 + 20_000.0, "{name:?} {removal:?}");
}

/// The blocks of lists that are not in memory are read one after the other, by the batch that adds to
/// them, before its names are synced.
#[test]
fn a_batch_reads_lists_one_after_the_other() {
    let took = |unread: usize| {
        let mut engine = Engine::new(1);
        let files = crate::calibration::FileCost::default();
        let disk = engine.add_disk(&ssd(), 4e9);
        let journal = engine.add_gathering(Work::Journal, disk, 1, &files);
        let syncs = engine.add_gathering(Work::FileSystem { journal }, disk, 1, &files);
        let objects = engine.add_gathering(Work::Objects { syncs }, disk, 1, &files);
        let mut writes = vec![Written::Content(4096.0)];
        writes.extend(vec![Written::Unread(0.1); unread]);
        let gathering = objects;
        engine.start(vec![Step::Join { gathering, writes }], 1);
        while engine.advance().is_some() {}
        assert_eq!(engine.disk_use().reads, unread as f64);
        engine.now() * 1e6
    };
    let more = took(3) - took(0);
    assert!((more - 600.0).abs() < 1.0, "{more}");
}

/// Rows are logged that follow others at once, and all after them until the log is merged; else each
/// is a transaction, which has more flushes.
#[test]
fn rows_are_logged_in_quick_succession() {
    let flushes = |times: &[f64], merge_seconds: f64| {
        let mut engine = Engine::new(1);
        let disk = engine.add_disk(&ssd(), 4e9);
        let files = crate::calibration::FileCost {
            second_commit: 0.0,
            second_commit_busy: 0.0,
            last_commit_busy: 0.0,
            merge_seconds,
            ..crate::calibration::FileCost::default()
        };
        let journal = engine.add_gathering(Work::Journal, disk, 1, &files);
        let syncs = engine.add_gathering(Work::FileSystem { journal }, disk, 1, &files);
        let work = Work::Rows { syncs, journal };
        let gathering = engine.add_gathering(work, disk, 1, &files);
        let mut before = 0.0;
        let mut each = Vec::new();
        for (token, at) in times.iter().enumerate() {
            let writes = vec![Written::Entry];
            let seconds = at - engine.now();
            let join = Step::Join { gathering, writes };
            engine.start(vec![Step::Wait { seconds }, join], token as u64);
            while engine.advance().is_some() {}
            each.push(engine.disk_use().flushes - before);
            before = engine.disk_use().flushes;
        }
        each
    };
    let (logged, alone) = (2.0, 8.0);
    // From a log that is merged at once: the third row follows the second.
    let each = flushes(&[1.0, 2.0, 2.05, 3.0], 0.9);
    assert_eq!(each, [alone, alone, logged, alone]);
    assert_eq!(
        flushes(&[1.0, 2.0, 2.05, 3.0, 4.0], 1.5)[1..],
        [alone, logged, logged, alone]
    );
}
