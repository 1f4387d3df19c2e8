use super::*;

const MS: u64 = 1_000_000;

fn read(offset: u64) -> Request {
    Request {
        op: Op::Read,
        offset,
        bytes: 4096,
    }
}

fn write(offset: u64, bytes: u64) -> Request {
    Request {
        op: Op::Write,
        offset,
        bytes,
    }
}

fn fixed(ms: f64) -> Medium {
    Medium {
        fixed_us: ms * 1e3,
        ..Medium::default()
    }
}

/// Runs a closed loop of `depth` requests; returns the number of replies within `for_ns`.
fn closed_loop(model: &mut Model, depth: u64, for_ns: u64) -> u64 {
    let mut offset = SplitMix::new(7);
    let (mut now, mut answers, mut next) = (0, 0, depth);
    (0..depth).for_each(|id| model.submit(0, id, read(offset.number() % (1 << 30))));
    let mut due: Vec<Answer> = Vec::new();
    while now < for_ns {
        due.extend(model.advance(now));
        due.sort_by_key(|a| std::cmp::Reverse(a.due));
        let decision = model.next_decision().unwrap_or(u64::MAX);
        match due.last().copied() {
            Some(answer) if answer.due <= decision.max(now) => {
                due.pop();
                now = now.max(answer.due);
                answers += 1;
                model.submit(now, next, read(offset.number() % (1 << 30)));
                next += 1;
            }
            _ => now = decision.max(now),
        }
    }
    answers
}

#[test]
fn a_fixed_time_is_a_rate() {
    let mut model = Model::new(fixed(2.0), 1 << 30, 1);
    assert_eq!(closed_loop(&mut model, 8, 1000 * MS), 500);
    let medium = Medium {
        channels: 4,
        ..fixed(2.0)
    };
    let mut model = Model::new(medium, 1 << 30, 1);
    let answers = closed_loop(&mut model, 8, 1000 * MS);
    assert!((1990..=2010).contains(&answers), "{answers}");
}

#[test]
fn dilation_stretches_all_of_it() {
    let medium = Medium {
        settle_us: 1000.0,
        full_seek_us: 8000.0,
        rpm: 7200.0,
        mb_per_s: 100.0,
        ..fixed(0.1)
    };
    let mut plain = Model::new(medium.clone(), 1 << 30, 3);
    let mut slow = Model::new(medium.dilated(10.0), 1 << 30, 3);
    for (id, offset) in [(1, 5 << 20), (2, 900 << 20), (3, 0)] {
        plain.submit(0, id, read(offset));
        slow.submit(0, id, read(offset));
    }
    let (plain, slow) = (plain.advance(100 * MS), slow.advance(1000 * MS));
    assert_eq!(plain.len(), 3);
    for (plain, slow) in plain.iter().zip(slow) {
        assert!(
            slow.due.abs_diff(plain.due * 10) < 100,
            "{plain:?} {slow:?}"
        );
    }
}

#[test]
fn what_follows_needs_no_seek() {
    let medium = Medium {
        settle_us: 5000.0,
        mb_per_s: 4.096,
        ..Medium::default()
    };
    let mut model = Model::new(medium, 1 << 30, 1);
    model.submit(0, 1, read(4096));
    model.submit(0, 2, read(8192));
    let due: Vec<u64> = model.advance(20 * MS).iter().map(|a| a.due).collect();
    assert_eq!(due, [6 * MS, 7 * MS]);
}

#[test]
fn the_nearest_of_those_in_sight_is_next() {
    let medium = Medium {
        queue: 3,
        ..fixed(1.0)
    };
    let mut model = Model::new(medium, 1 << 30, 1);
    for (id, offset) in [(1, 0), (2, 100 << 20), (3, 8 << 20), (4, 4096)] {
        model.submit(0, id, read(offset));
    }
    let order: Vec<u64> = model.advance(10 * MS).iter().map(|a| a.id).collect();
    // 4 is among the oldest once 1 is served.
    assert_eq!(order, [1, 4, 3, 2]);
}

#[test]
fn a_cache_takes_writes_and_a_flush_waits_for_them() {
    let medium = Medium {
        write_cache_mb: 1.0,
        cached_us: 10.0,
        ..fixed(3.0)
    };
    let mut model = Model::new(medium, 1 << 30, 1);
    model.submit(0, 1, write(1 << 20, 4096));
    model.submit(0, 2, write(9 << 20, 4096));
    model.submit(
        0,
        3,
        Request {
            op: Op::Flush,
            offset: 0,
            bytes: 0,
        },
    );
    let answers = model.advance(0);
    let due = |id| answers.iter().find(|a| a.id == id).map(|a| a.due);
    assert_eq!(due(1), Some(10_000));
    assert_eq!(due(3), Some(6 * MS));
    // An idle disk writes back by itself; a flush then has nothing to do.
    model.submit(20 * MS, 4, write(0, 4096));
    model.advance(20 * MS);
    model.submit(
        30 * MS,
        5,
        Request {
            op: Op::Flush,
            offset: 0,
            bytes: 0,
        },
    );
    assert_eq!(
        model.advance(30 * MS),
        [Answer {
            id: 5,
            due: 30 * MS
        }]
    );
}

#[test]
fn a_full_cache_is_as_slow_as_the_disk() {
    let medium = Medium {
        write_cache_mb: 0.004,
        ..fixed(3.0)
    };
    let mut model = Model::new(medium, 1 << 30, 1);
    model.submit(0, 1, write(0, 8192));
    assert_eq!(model.advance(0), [Answer { id: 1, due: 3 * MS }]);
}

#[test]
fn distances_are_of_requests_that_follow_each_other() {
    let mut distances = Distances::default();
    for (offset, bytes) in [(0, 4096), (4096, 512), (1 << 30, 4096), (0, 512)] {
        distances.record(&write(offset, bytes));
    }
    assert_eq!((distances.total(), distances.counts[0]), (4, 2));
    assert_eq!((distances.beyond_125k, distances.beyond_2500k), (2, 0));
}

#[test]
fn what_makes_no_sense_is_told_by_name() {
    let wrong = Medium {
        channels: 0,
        ..fixed(1.0)
    };
    assert!(wrong.check().is_err_and(|w| w.contains("channels = 0")));
    assert!(Medium::default().check().is_err());
    assert!(
        Medium {
            fixed_us: f64::NAN,
            ..fixed(1.0)
        }
        .check()
        .is_err()
    );
    assert!(fixed(1.0).check().is_ok());
}

proptest::proptest! {
    /// Every request gets one reply, never before its arrival, and a channel serves one at a time.
    #[test]
    fn every_request_is_answered_once(
        requests in proptest::collection::vec((0u64..1 << 30, 1u64..1 << 20, 0u8..3, 0u64..MS), 1..60),
        channels in 1u32..5,
        queue in 1u32..9,
        cache in 0u32..3,
    ) {
        let medium = Medium {
            channels,
            queue,
            settle_us: 200.0,
            rpm: 10_000.0,
            mb_per_s: 200.0,
            write_cache_mb: f64::from(cache),
            flush_us: 10.0,
            ..fixed(0.1)
        };
        let mut model = Model::new(medium, 1 << 30, 5);
        let (mut now, mut asked, mut answers) = (0, Vec::new(), Vec::new());
        for (id, (offset, bytes, kind, wait)) in requests.iter().enumerate() {
            now += wait;
            let op = [Op::Read, Op::Write, Op::Flush][usize::from(*kind)];
            model.submit(now, id as u64, Request { op, offset: *offset, bytes: *bytes });
            asked.push(now);
            answers.extend(model.advance(now));
        }
        while let Some(at) = model.next_decision() {
            now = now.max(at);
            answers.extend(model.advance(now));
        }
        answers.sort_by_key(|a| a.id);
        let ids: Vec<u64> = answers.iter().map(|a| a.id).collect();
        proptest::prop_assert_eq!(ids, (0..requests.len() as u64).collect::<Vec<_>>());
        for answer in &answers {
            proptest::prop_assert!(answer.due > asked[answer.id as usize]);
        }
    }
}
