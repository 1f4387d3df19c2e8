//! Accuracy tests over sockets and in real time: the lab's report about a store that records its
//! own times, including a stall of two seconds.
//!
//! The test machine has other work too, so only properties that hold on any machine are asserted:
//! reported times are never less than what the store took for the same requests, and not more than
//! the time available. That percentiles are accurate to 1 % is tested in virtual time in
//! `src/drive/truth.rs`.

#![allow(clippy::unwrap_used)]

mod store;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cairn_lab::latencies::Latencies;
use cairn_lab::plan::{
    Arrivals, Names, Objects, Operation, OperationKind, Pacing, Plan, Settings, Stage, Work,
};
use cairn_lab::record::StageResult;
use cairn_lab::rng::Rng;
use cairn_lab::selector::Selector;
use store::Store;

const PERCENTILES: [f64; 6] = [10.0, 50.0, 90.0, 95.0, 99.0, 99.9];
const STALL: Duration = Duration::from_secs(2);
const SERVICE: Duration = Duration::from_millis(10);

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

struct Measured {
    reported: Latencies,
    /// Times taken by the store, shortest first.
    took: Vec<Duration>,
    /// The counted time.
    seconds: f64,
    notes: Vec<String>,
}

fn measured(store: &Store, plan: &Plan) -> Measured {
    let folder = tempfile::tempdir().unwrap();
    let (meta, stages) = store::run(plan, &folder.path().join("run"));
    assert_eq!(meta.message, "");
    let seen = store.take_seen().into_iter();
    let mut took: Vec<Duration> = seen
        .filter(|seen| seen.method == "HEAD")
        .map(|seen| seen.took)
        .collect();
    took.sort();
    let main: &StageResult = &stages[1];
    let [operation] = &main.works[0].operations[..] else {
        panic!("{:?}", main.message);
    };
    assert_eq!(operation.last_byte.count(), took.len() as u64);
    Measured {
        reported: operation.last_byte.clone(),
        took,
        seconds: main.works[0].seconds,
        notes: meta.notes,
    }
}

impl Measured {
    /// A request cannot have been shorter for the client than for the server, however busy the
    /// machine; so neither can any percentile. (Three digits are kept.)
    fn holds_all_the_store_took(&self) {
        for percent in PERCENTILES {
            let rank = (percent / 100.0 * self.took.len() as f64).ceil().max(1.0) as usize;
            let took = self.took[rank - 1];
            let reported = Duration::from_nanos(self.reported.percentile(percent));
            assert!(
                reported >= took.mul_f64(0.998),
                "p{percent}: {reported:?} is reported, the store took {took:?}"
            );
        }
    }

    /// Workers with consecutive requests cannot use more time than was available.
    fn fits_into(&self, workers: u32) {
        let sum = self.reported.mean() / 1e9 * self.took.len() as f64;
        let most = self.seconds * f64::from(workers);
        assert!(sum <= most * 1.002, "{sum} s of requests in {most} s");
    }

    fn longer_than(&self, time: Duration) -> u64 {
        let counts = self.reported.counts().into_iter();
        let longer = counts.filter(|(ns, _)| u128::from(*ns) > time.as_nanos());
        longer.map(|(_, count)| count).sum()
    }
}

/// 8 to 16 ms, and a tail.
fn injected(number: u64) -> Duration {
    let mut rng = Rng::fork(42, number);
    let ms = match rng.below(1000) {
        0..950 => 8.0 + 8.0 * rng.unit(),
        950..995 => 20.0 + 20.0 * rng.unit(),
        _ => 200.0,
    };
    Duration::from_secs_f64(ms / 1000.0)
}

#[test]
fn closed_loop_reports_what_the_store_took() {
    let store = Store::start(Box::new(|number, _| injected(number)));
    let plan = plan(&store, 8, Pacing::Closed { think: None }, 2000);
    let measured = measured(&store, &plan);
    assert_eq!(measured.took.len(), 2000);
    measured.holds_all_the_store_took();
    measured.fits_into(8);
}

/// From `after` the first main request on, there is no response for two seconds; requests that
/// arrive meanwhile take their usual time after that.
fn stalling(after: Duration) -> Store {
    let first: Arc<OnceLock<Instant>> = Arc::default();
    Store::start(Box::new(move |number, came| {
        if number == 0 {
            return Duration::ZERO;
        }
        let from = *first.get_or_init(|| came) + after;
        let to = from + STALL;
        // Requests in progress when the stall begins are delayed as well.
        if came + SERVICE > from && came < to {
            to + SERVICE - came
        } else {
            SERVICE
        }
    }))
}

#[test]
fn closed_loop_shows_a_stall() {
    let workers = 8;
    let store = stalling(Duration::from_millis(500));
    let plan = plan(&store, workers, Pacing::Closed { think: None }, 1600);
    let measured = measured(&store, &plan);
    // 1600 are more than can be done before the stall: each worker meets it.
    let held = measured.longer_than(STALL - 2 * SERVICE);
    assert!(held >= u64::from(workers), "{held}");
    let told = measured.notes.join("\n");
    assert!(told.contains("coordinated omission"), "{told}");
    measured.holds_all_the_store_took();
    measured.fits_into(workers);
}

/// A hundred per second are due during the stall, and cannot be answered before its end.
#[test]
fn open_loop_shows_the_queue_behind_a_stall() {
    let store = stalling(Duration::from_millis(1000));
    let pacing = Pacing::Open {
        rate: 100.0,
        arrivals: Arrivals::Constant,
    };
    let plan = plan(&store, 16, pacing, 800);
    let measured = measured(&store, &plan);
    for waited in [500u64, 1000, 1500] {
        let due = (2000 - waited) / 10;
        let longer = measured.longer_than(Duration::from_millis(waited));
        // One may fall on either side of the boundary.
        assert!(
            longer + 2 >= due,
            "{longer} waited for longer than {waited} ms, {due} were due before"
        );
    }
    assert_eq!(measured.notes, Vec::<String>::new());
    measured.holds_all_the_store_took();
}

/// Four workers get 400 per second from a store that takes 10 ms; 800 are offered.
#[test]
fn open_loop_beyond_saturation_reports_what_was_achieved() {
    let store = Store::start(Box::new(|_, _| SERVICE));
    let pacing = Pacing::Open {
        rate: 800.0,
        arrivals: Arrivals::Constant,
    };
    let mut plan = plan(&store, 4, pacing, 0);
    let work = &mut plan.stages[1].works[0];
    work.total_ops = None;
    work.rampup = Duration::from_millis(500);
    work.runtime = Some(Duration::from_secs(2));
    let folder = tempfile::tempdir().unwrap();
    let (meta, stages) = store::run(&plan, &folder.path().join("run"));
    let work = &stages[1].works[0];
    let open = work.open_loop().unwrap();
    assert!((open.offered - 800.0).abs() < 8.0, "{open:?}");
    assert!(open.achieved <= 408.0 && open.achieved > 50.0, "{open:?}");
    assert!(open.overloaded && open.late > 0.9, "{open:?}");
    assert!(open.delay_max_ns > 500_000_000, "{open:?}");
    assert_eq!(meta.message, "");
    let recorded = cairn_lab::results::read_folder(&folder.path().join("run")).unwrap();
    let run = recorded.view();
    assert!(
        run.notes[0].contains("could not keep up"),
        "{:?}",
        run.notes
    );
    let operation = &run.stages[1].operations[0];
    assert_eq!(operation.rate, Some(open.achieved));
}

/// An offered rate within the store's capacity is achieved.
#[test]
fn open_loop_below_saturation_keeps_up() {
    let store = Store::start(Box::new(|_, _| SERVICE));
    let pacing = Pacing::Open {
        rate: 50.0,
        arrivals: Arrivals::Constant,
    };
    let mut plan = plan(&store, 16, pacing, 0);
    let work = &mut plan.stages[1].works[0];
    work.total_ops = None;
    work.runtime = Some(Duration::from_secs(2));
    let folder = tempfile::tempdir().unwrap();
    let (_, stages) = store::run(&plan, &folder.path().join("run"));
    let open = stages[1].works[0].open_loop().unwrap();
    assert!(!open.overloaded, "{open:?}");
    assert!((open.offered - 50.0).abs() < 1.0, "{open:?}");
}
