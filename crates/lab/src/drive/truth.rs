//! Accuracy tests in virtual time: workers, HTTP client, recorders and histograms against an
//! in-memory store that responds at exactly defined times, with a clock that advances only when all
//! tasks wait. Reported values are compared with computed ones, not with another measurement, so
//! the load of the machine has no influence. `tests/truth.rs` does the same over sockets, with
//! looser bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

use super::draw::{Sequences, Share};
use super::pace::{Schedule, tests::BY_RUNTIME};
use super::pool::Pools;
use super::recorder::{Recorder, merge};
use super::worker::{Clock, Shared, Worker};
use crate::latencies::Latencies;
use crate::plan::{Arrivals, Names, Objects, Operation, OperationKind, Pacing, Work};
use crate::record::OperationResult;
use crate::rng::Rng;
use crate::selector::Selector;
use crate::target::Target;

const PERCENTILES: [f64; 11] = [
    1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0,
];
const STALL: Duration = Duration::from_secs(2);

/// Delays after a request at which the head of the response and its rest are sent; from the
/// request's number and its arrival time since the start.
type Script = dyn Fn(u64, Duration) -> (Duration, Duration) + Send + Sync;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Responds to one connection's requests with ten bytes each.
async fn answer(
    mut stream: DuplexStream,
    script: Arc<Script>,
    number: Arc<AtomicU64>,
    began: Instant,
) {
    let mut head = Vec::new();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        head.clear();
        let came = Instant::now();
        let at = number.fetch_add(1, Ordering::Relaxed);
        let (first, last) = script(at, came - began);
        tokio::time::sleep_until(came + first).await;
        let begun = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst");
        if begun.await.is_err() {
            return;
        }
        tokio::time::sleep_until(came + last).await;
        if stream.write_all(b"-last").await.is_err() {
            return;
        }
    }
}

/// The lab's report of `total_ops` reads.
fn measured(workers: u32, total_ops: u64, pacing: Pacing, script: Arc<Script>) -> OperationResult {
    BY_RUNTIME.set(true);
    let operation = Operation {
        kind: OperationKind::Read,
        name: "read".into(),
        ratio: 1.0,
        size_class: Some("any".into()),
        objects: Objects::Numbered(Names {
            prefix: "o".into(),
            numbers: Selector::Uniform { low: 1, high: 9 },
            ..Names::default()
        }),
        ..Operation::default()
    };
    let work = Arc::new(Work {
        name: "main".into(),
        workers,
        total_ops: Some(total_ops),
        operations: vec![operation],
        pacing,
        ..Work::default()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (began, number) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let target = Target::in_memory(Box::new(move || {
            let (client, server) = tokio::io::duplex(4096);
            tokio::spawn(answer(server, script.clone(), number.clone(), began));
            client
        }))
        .unwrap();
        let schedule = match work.pacing {
            Pacing::Open { rate, arrivals } => Some(Schedule::new(rate, arrivals, 0.0, 1)),
            Pacing::Closed { .. } => None,
        };
        // Simulates two threads, whose statistics are merged.
        let recorders = (0..2).map(|_| Mutex::new(Recorder::new(&work.operations)));
        let shared = Arc::new(Shared {
            target,
            share: Share::WHOLE,
            seed: 1,
            driver: "driver1".into(),
            clock: Clock::new(&work, began, 0.0),
            stop: AtomicBool::new(false),
            recorders: recorders.collect(),
            schedule,
            sequences: Arc::new(Sequences::new(1, Share::WHOLE)),
            pools: Arc::new(Pools::default()),
            files: vec![Vec::new()],
            last_end_ns: AtomicU64::new(0),
            work: work.clone(),
        });
        let tasks: Vec<_> = (0..workers)
            .map(|id| tokio::spawn(Worker::new(&shared, id, id as usize % 2).run()))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let mut results = Vec::new();
        for recorder in &shared.recorders {
            let (counted, _) = recorder.lock().take(&work.operations);
            merge(&mut results, counted);
        }
        assert_eq!(results.len(), 1);
        let result = results.remove(0);
        assert_eq!((result.ops, result.failed()), (total_ops, 0));
        result
    })
}

/// Checks that every percentile is within 1 % or 50 µs of the expected one.
fn check(what: &str, reported: &Latencies, mut expected: Vec<Duration>) {
    expected.sort();
    assert_eq!(reported.count(), expected.len() as u64, "{what}");
    for percent in PERCENTILES {
        let rank = (percent / 100.0 * expected.len() as f64).ceil().max(1.0) as usize;
        let expected = expected[rank - 1];
        let reported = Duration::from_nanos(reported.percentile(percent));
        let allowed = expected.div_f64(100.0).max(Duration::from_micros(50));
        assert!(
            reported.abs_diff(expected) <= allowed,
            "{what}, p{percent}: {reported:?} is reported, {expected:?} it was"
        );
    }
}

/// 8 to 16 ms; one in ten longer, one in a hundred much longer, one in five hundred half a second.
fn injected(number: u64) -> (Duration, Duration) {
    let mut rng = Rng::fork(42, number);
    let last = match rng.below(1000) {
        0..900 => 8 + rng.below(9),
        900..990 => 17 + rng.below(24),
        990..998 => 60 + rng.below(60),
        _ => 500,
    };
    (ms(last - 1 - rng.below(7)), ms(last))
}

#[test]
fn the_injected_distribution_is_reported() {
    let count = 20_000;
    let script = Arc::new(|number, _| injected(number));
    let result = measured(16, count, Pacing::Closed { think: None }, script);
    let firsts = (0..count).map(|number| injected(number).0).collect();
    let lasts: Vec<_> = (0..count).map(|number| injected(number).1).collect();
    check("first byte", &result.first_byte, firsts);
    check("last byte", &result.last_byte, lasts);
    assert!(result.service.is_empty());
}

/// No response for [`STALL`] from `from` on; requests that arrive meanwhile, or are in progress,
/// take their time after that.
fn stalling(from: Duration, service: Duration) -> Arc<Script> {
    Arc::new(move |_, came| {
        let to = from + STALL;
        let took = match came + service > from && came < to {
            true => to + service - came,
            false => service,
        };
        (took, took)
    })
}

/// A worker of a closed loop sends nothing while it waits: each meets the stall once.
#[test]
fn a_closed_loop_shows_a_stall_once_per_worker() {
    let (workers, service) = (8, ms(12));
    let script = stalling(ms(600), service);
    let result = measured(workers, 8000, Pacing::Closed { think: None }, script);
    // 600 ms are 50 rounds of 12 ms; the next request waits for the whole stall.
    let mut expected = vec![service; 8000 - 8];
    expected.extend([STALL + service; 8]);
    check("closed", &result.last_byte, expected);
}

/// For each request of an open loop with equal gaps and `workers` at a time: the time from its due
/// time to its end, and from its start to its end.
fn expected_open(
    count: u32,
    gap: Duration,
    workers: usize,
    script: &Script,
) -> (Vec<Duration>, Vec<Duration>) {
    let mut free = vec![Duration::ZERO; workers];
    let one = |number: u32| {
        let due = gap * number;
        let worker = (0..workers).min_by_key(|&worker| free[worker]).unwrap();
        let start = due.max(free[worker]);
        let took = script(u64::from(number), start).1;
        free[worker] = start + took;
        (free[worker] - due, took)
    };
    (0..count).map(one).unzip()
}

/// Every request due during the stall has waited, and so has every request queued behind them.
#[test]
fn an_open_loop_shows_the_whole_queue_behind_a_stall() {
    let (count, workers, gap) = (10_000, 16, ms(4));
    let script = stalling(ms(6_001), ms(12));
    let pacing = Pacing::Open {
        rate: 250.0,
        arrivals: Arrivals::Constant,
    };
    let result = measured(workers, u64::from(count), pacing, script.clone());
    let (responses, services) = expected_open(count, gap, workers as usize, &*script);
    let waited = responses.iter().filter(|time| **time > ms(100)).count();
    assert!(waited > 500, "the arithmetic itself: {waited}");
    check("response", &result.last_byte, responses);
    check("service", &result.service, services);
}

/// A store slower than the offered rate: the queue grows to the end, and is reported.
#[test]
fn an_open_loop_over_what_the_store_can_do() {
    let (count, workers, gap) = (2_000, 4, ms(2));
    let script: Arc<Script> = Arc::new(|_, _| (ms(10), ms(10)));
    let pacing = Pacing::Open {
        rate: 500.0,
        arrivals: Arrivals::Constant,
    };
    let result = measured(workers, u64::from(count), pacing, script.clone());
    let (responses, services) = expected_open(count, gap, workers as usize, &*script);
    check("response", &result.last_byte, responses);
    check("service", &result.service, services);
    // 400/s of the offered 500/s are performed: the last of 2000 is a second late.
    let worst = Duration::from_nanos(result.last_byte.max());
    assert!(worst > ms(990), "{worst:?}");
}

/// The histogram in COSBench's format has every request once, in the right bucket.
#[test]
fn every_request_is_counted_once_where_it_belongs() {
    let count = 3_000;
    let script = Arc::new(|number, _| injected(number));
    let result = measured(8, count, Pacing::Closed { think: None }, script);
    let mut expected = BTreeMap::<u64, u64>::new();
    for number in 0..count {
        *expected
            .entry(injected(number).1.as_millis() as u64)
            .or_default() += 1;
    }
    let mut reported = BTreeMap::<u64, u64>::new();
    for (ns, count) in result.last_byte.counts() {
        *reported.entry(ns / 1_000_000).or_default() += count;
    }
    assert_eq!(reported, expected);
}
