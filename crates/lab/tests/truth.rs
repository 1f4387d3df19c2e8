//! Truth: what the lab reports of a store whose latencies are known, a stall of two seconds
//! included. Each is tried a few times: the machine that runs the tests has other work too, and
//! one clean run shows that the lab itself adds nothing.

#![allow(clippy::unwrap_used)]

mod store;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use cairn_lab::latencies::Latencies;
use cairn_lab::plan::{
    Arrivals, Names, Objects, Operation, OperationKind, Pacing, Plan, Settings, Stage, Work,
};
use cairn_lab::record::StageResult;
use cairn_lab::rng::Rng;
use cairn_lab::selector::Selector;
use store::Store;

const TRIES: usize = 6;
/// So many attempts on a calm machine, all with differences, are the lab's fault.
const CALM_TRIES: u32 = 3;
const PERCENTILES: [f64; 6] = [10.0, 50.0, 90.0, 95.0, 99.0, 99.9];

fn plan(store: &Store, workers: u32, pacing: Pacing, total_ops: u64) -> Plan {
    let setting = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut plan = Plan {
        name: "truth".into(),
        seed: 1,
        ..Plan::default()
    };
    plan.access.auth = Settings {
        kind: "swauth".into(),
        config: [
            setting("username", "test:tester"),
            setting("password", "testing"),
            setting("auth_url", &store.auth_url()),
        ]
        .into(),
    };
    plan.access.storage.kind = "swift".into();
    let operation = Operation {
        kind: OperationKind::Head,
        name: "head".into(),
        size_class: Some("any".into()),
        containers: Names {
            prefix: "c".into(),
            ..Names::default()
        },
        objects: Objects::Numbered(Names {
            prefix: "o".into(),
            numbers: Selector::Uniform { low: 1, high: 1 },
            ..Names::default()
        }),
        ..Operation::default()
    };
    let write = Operation {
        kind: OperationKind::Prepare,
        name: "prepare".into(),
        sizes: Some(Selector::Constant(10)),
        ..operation.clone()
    };
    let prepare = Work {
        name: "prepare".into(),
        kind: cairn_lab::plan::WorkKind::Prepare,
        operations: vec![write],
        ..Work::default()
    };
    let main = Work {
        name: "main".into(),
        workers,
        total_ops: Some(total_ops),
        operations: vec![operation],
        pacing,
        ..Work::default()
    };
    let stage = |name: &str, work| Stage {
        name: name.into(),
        works: vec![work],
        ..Stage::default()
    };
    plan.stages = vec![stage("prepare", prepare), stage("main", main)];
    plan
}

fn measured(store: &Store, plan: &Plan) -> (Latencies, Vec<store::Seen>) {
    let folder = tempfile::tempdir().unwrap();
    let (meta, stages) = store::run(plan, &folder.path().join("run"));
    assert_eq!(meta.message, "");
    let seen = store
        .take_seen()
        .into_iter()
        .filter(|seen| seen.method == "HEAD")
        .collect();
    let main: &StageResult = &stages[1];
    assert_eq!(main.works[0].operations.len(), 1, "{:?}", main.message);
    (main.works[0].operations[0].last_byte.clone(), seen)
}

/// The value that this part of the sorted values does not pass, as HdrHistogram counts it.
fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}

/// A percentile that is not what it should be.
#[derive(Debug)]
#[allow(dead_code)] // shown when a test fails
struct Difference {
    percent: f64,
    reported: Duration,
    expected: Duration,
}

impl Difference {
    /// More than a busy machine explains: a lab that leaves out a stall or its queue, or counts
    /// it twice, is further off.
    fn is_gross(&self) -> bool {
        let allowed = self.expected.div_f64(5.0) + Duration::from_millis(20);
        self.reported.abs_diff(self.expected) > allowed
    }
}

/// What differs by more than 1 % and 50 µs.
fn differences(reported: &Latencies, mut expected: Vec<Duration>) -> Vec<Difference> {
    expected.sort();
    let mut wrong = Vec::new();
    for percent in PERCENTILES {
        let expected = percentile(&expected, percent);
        let reported = Duration::from_nanos(reported.percentile(percent));
        let allowed = expected.div_f64(100.0).max(Duration::from_micros(50));
        if reported.abs_diff(expected) > allowed {
            wrong.push(Difference {
                percent,
                reported,
                expected,
            });
        }
    }
    wrong
}

/// Whether the machine let threads run when they were due, while this lived.
struct Calm {
    stop: Arc<AtomicBool>,
    watch: std::thread::JoinHandle<bool>,
}

impl Calm {
    fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let watch = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                late.push(began.elapsed().saturating_sub(Duration::from_millis(1)));
            }
            late.sort();
            percentile(&late, 99.0) < Duration::from_micros(250)
        });
        Self { stop, watch }
    }

    fn was(self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.watch.join().unwrap()
    }
}

/// One at a time: these tests would disturb one another.
static TURN: Mutex<()> = Mutex::new(());

/// One attempt without differences shows that the lab adds none of its own. Those during which the
/// machine was too busy prove little: with only such, nothing may be grossly wrong in all of them.
fn until_clean(mut attempt: impl FnMut() -> Vec<Difference>) {
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (mut calm, mut all) = (0, Vec::new());
    for _ in 0..TRIES {
        let watch = Calm::watch();
        let wrong = attempt();
        let was_calm = watch.was();
        if wrong.is_empty() {
            return;
        }
        calm += u32::from(was_calm);
        all.push((was_calm, wrong));
        assert!(calm < CALM_TRIES, "{all:#?}");
    }
    let is_plausible =
        |(_, wrong): &(bool, Vec<Difference>)| !wrong.iter().any(Difference::is_gross);
    assert!(calm == 0 && all.iter().any(is_plausible), "{all:#?}");
    eprintln!("the machine is too busy to measure latencies to 1 %: {all:#?}");
}

/// Long enough that the loopback's own time, and that of a debug build, is within 1 %.
fn injected(number: u64) -> Duration {
    let mut rng = Rng::fork(42, number);
    let ms = match rng.below(1000) {
        0..900 => 40.0 + 40.0 * rng.unit(),
        900..985 => 100.0 + 100.0 * rng.unit(),
        _ => 400.0 + 200.0 * rng.unit(),
    };
    Duration::from_secs_f64(ms / 1000.0)
}

#[test]
fn closed_loop_reports_the_injected_distribution() {
    until_clean(|| {
        let store = Store::start(Box::new(|number, _| injected(number)));
        let plan = plan(&store, 16, Pacing::Closed { think: None }, 2000);
        let (reported, seen) = measured(&store, &plan);
        assert_eq!((reported.count(), seen.len()), (2000, 2000));
        // Request 0 is the write that prepares.
        differences(&reported, (1..=2000).map(injected).collect())
    });
}

const STALL: Duration = Duration::from_secs(2);
const SERVICE: Duration = Duration::from_millis(50);

/// From `after` the first main request on, nothing is answered for two seconds; what came
/// meanwhile takes its usual time after that.
fn stalling(after: Duration) -> Store {
    let first: Arc<OnceLock<Instant>> = Arc::default();
    Store::start(Box::new(move |number, came| {
        if number == 0 {
            return Duration::ZERO;
        }
        let from = *first.get_or_init(|| came) + after;
        let to = from + STALL;
        // What is under way when the stall begins is held up as well.
        if came + SERVICE > from && came < to {
            to + SERVICE - came
        } else {
            SERVICE
        }
    }))
}

#[test]
fn closed_loop_shows_a_stall_once_per_worker() {
    until_clean(|| {
        let workers = 8;
        let store = stalling(Duration::from_millis(500));
        let plan = plan(&store, workers, Pacing::Closed { think: None }, 800);
        let (reported, seen) = measured(&store, &plan);
        let held = reported
            .counts()
            .into_iter()
            .filter(|(ns, _)| *ns > 1_900_000_000);
        let held: u64 = held.map(|(_, count)| count).sum();
        assert_eq!(
            held,
            u64::from(workers),
            "one request of each worker met the stall"
        );
        differences(&reported, seen.into_iter().map(|seen| seen.took).collect())
    });
}

/// Every request that was due while the store stood still waits; how long follows from arithmetic:
/// equal gaps, `workers` at a time, each taking [`SERVICE`] but for the stall.
fn expected_open(count: u32, gap: Duration, workers: usize, stall_at: Duration) -> Vec<Duration> {
    let mut free = vec![Duration::ZERO; workers];
    (0..count)
        .map(|number| {
            let due = gap * number;
            let worker = (0..workers).min_by_key(|&worker| free[worker]).unwrap();
            let start = due.max(free[worker]);
            let to = stall_at + STALL;
            let held = start + SERVICE > stall_at && start < to;
            free[worker] = if held { to + SERVICE } else { start + SERVICE };
            free[worker] - due
        })
        .collect()
}

#[test]
fn open_loop_shows_the_whole_queue_behind_a_stall() {
    until_clean(|| {
        let (count, workers, stall_at) = (1000, 16, Duration::from_millis(1505));
        let store = stalling(stall_at);
        let pacing = Pacing::Open {
            rate: 100.0,
            arrivals: Arrivals::Constant,
        };
        let plan = plan(&store, workers, pacing, u64::from(count));
        let (reported, _) = measured(&store, &plan);
        let gap = Duration::from_millis(10);
        let expected = expected_open(count, gap, workers as usize, stall_at);
        let waited = expected
            .iter()
            .filter(|latency| **latency > 2 * SERVICE)
            .count();
        assert!(waited > 200, "the arithmetic itself: {waited}");
        differences(&reported, expected)
    });
}
