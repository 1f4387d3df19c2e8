//! Coordinated omission: a worker of a closed loop that waits for a slow response sends nothing
//! meanwhile, so a stall is seen once per worker, while users with a steady rate of requests would
//! meet it thousands of times. The percentiles of the loop then say little about what users would
//! see.

use crate::latencies::Latencies;
use crate::plan::WorkKind;
use crate::plot::Unit;
use crate::record::WorkResult;

/// A request is a stall if it is this many times slower than the median,
const STALL_FACTOR: f64 = 50.0;
/// and takes at least this long.
const STALL_MIN_NS: f64 = 100e6;
/// Factor by which the corrected p99 must be longer to be noted.
const NOTE_FACTOR: f64 = 2.0;
const PERCENT: f64 = 99.0;
/// Bisection steps of the search for a percentile: far below a nanosecond per hour.
const HALVINGS: u32 = 50;

/// A note that a closed loop's percentiles omit a stall, with the corrected ones. `None` without a
/// stall, and for open loops, which count from the due time.
pub fn words(work: &WorkResult) -> Option<String> {
    if work.rate.is_some() || work.kind != WorkKind::Main {
        return None;
    }
    let mut latencies = Latencies::new();
    let mut requests = 0;
    for operation in &work.operations {
        latencies.merge(&operation.last_byte);
        requests += operation.ops + operation.failed();
    }
    let (median, longest) = (latencies.percentile(50.0) as f64, latencies.max() as f64);
    if median <= 0.0 || longest < STALL_MIN_NS || longest < STALL_FACTOR * median {
        return None;
    }
    // Interval of a worker's requests without a stall, including its pause between requests.
    let cycle = work.seconds * 1e9 * f64::from(work.workers) / requests.max(1) as f64;
    let interval = median + (cycle - latencies.mean()).max(0.0);
    let seen = latencies.percentile(PERCENT) as f64;
    let steady = at_steady_rate(&latencies, interval);
    if steady < NOTE_FACTOR * seen {
        return None;
    }
    let time = |ns: f64| Unit::Time.words(ns / 1e3);
    Some(format!(
        "a closed loop asks nothing while it waits (coordinated omission), and requests took up to \
         {}, {:.0} times the median. For users who ask at a steady rate p{PERCENT} would be about \
         {}, not {}; a work with a rate (an open loop) measures that",
        time(longest),
        longest / median,
        time(steady),
        time(seen)
    ))
}

/// The percentile with the omitted requests added: those due every `interval` during a request,
/// each with its remaining wait, as in HdrHistogram's correction.
fn at_steady_rate(latencies: &Latencies, interval: f64) -> f64 {
    let counts = latencies.counts();
    let longer_than = |limit: f64| -> f64 {
        let of = |(ns, count): &(u64, u64)| {
            let (ns, count) = (*ns as f64, *count as f64);
            let missed = ((ns - limit.max(interval)) / interval).floor().max(0.0);
            if ns > limit {
                count * (1.0 + missed)
            } else {
                0.0
            }
        };
        counts.iter().map(of).sum()
    };
    let wanted = longer_than(0.0) * (1.0 - PERCENT / 100.0);
    let (mut low, mut high) = (0.0, latencies.max() as f64);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if longer_than(middle) > wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::OperationResult;

    /// A work whose requests take 1 ms, except for `stalls` requests of two seconds.
    fn work(workers: u32, requests: u64, stalls: u64) -> WorkResult {
        let mut operation = OperationResult {
            ops: requests + stalls,
            ..OperationResult::default()
        };
        (0..requests).for_each(|_| operation.last_byte.record(1_000_000));
        (0..stalls).for_each(|_| operation.last_byte.record(2_000_000_000));
        WorkResult {
            workers,
            seconds: (requests as f64 * 0.001 + stalls as f64 * 2.0) / f64::from(workers),
            operations: vec![operation],
            ..WorkResult::default()
        }
    }

    #[test]
    fn a_stall_is_told_with_what_it_hides() {
        // 8 s of 8 workers, a quarter of it a stall: a quarter of all users would have waited.
        let words = words(&work(8, 48_000, 8)).unwrap();
        assert!(words.contains("coordinated omission"), "{words}");
        assert!(words.contains("2000 times the median"), "{words}");
        // The last percent of 64,000 steady requests is 640: those due in the first 80 ms.
        assert!(words.contains("about 1.92 s, not 1 ms"), "{words}");
    }

    #[test]
    fn no_stall_or_an_open_loop_has_no_note() {
        assert_eq!(words(&work(8, 48_000, 0)), None);
        let mut open = work(8, 48_000, 8);
        open.rate = Some(100.0);
        assert_eq!(words(&open), None);
    }

    #[test]
    fn a_pause_between_requests_is_part_of_the_rate() {
        // Ten requests per second of each worker: a stall hides 20 of each, not 2000.
        let mut paced = work(8, 2000, 8);
        paced.seconds = 2000.0 * 0.1 / 8.0 + 2.0;
        let words = words(&paced).unwrap();
        assert!(words.contains("about 1."), "{words}");
        let missing = at_steady_rate(&paced.operations[0].last_byte, 1e8);
        assert!((1.7e9..2.0e9).contains(&missing), "{missing}");
    }
}
