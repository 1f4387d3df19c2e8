//! Writing and reading a plan gives the same plan.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::super::{Format, limits, to_toml};
use super::plan;
use crate::plan::{
    Access, Arrivals, Content, Division, Draw, Knee, Names, Objects, Operation, OperationKind,
    Pacing, Plan, RangeRead, Settings, Stage, Steady, Think, Trigger, Work, WorkKind,
};
use crate::selector::{Bar, Selector};

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 ._\"'\\\\#é${}=-]{0,12}"
}

fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0u64..100_000).prop_map(Duration::from_secs),
        (0u64..1_000_000_000_000).prop_map(Duration::from_nanos)
    ]
}

fn selector(high: u64) -> impl Strategy<Value = Selector> {
    let pair = (0..high, 0..high).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let bars = vec((pair.clone(), 1u64..1000), 1..4).prop_map(|bars| {
        let bar = |((low, high), weight)| Bar { low, high, weight };
        Selector::Histogram(bars.into_iter().map(bar).collect())
    });
    prop_oneof![
        (0..high).prop_map(Selector::Constant),
        pair.clone()
            .prop_map(|(low, high)| Selector::Uniform { low, high }),
        pair.clone()
            .prop_map(|(low, high)| Selector::Range { low, high }),
        pair.clone()
            .prop_map(|(low, high)| Selector::Sequential { low, high }),
        (pair, 0.01f64..5.0).prop_map(|((low, high), exponent)| Selector::Zipf {
            low,
            high,
            exponent
        }),
        bars,
    ]
}

fn sizes() -> impl Strategy<Value = Selector> {
    let units = vec![1000u64, 1_000_000, 1 << 10, 1 << 20];
    let times = (proptest::sample::select(units), selector(1000)).prop_map(|(unit, of)| match of {
        // Written as the product.
        Selector::Constant(number) => Selector::Constant(number * unit),
        of => Selector::Times {
            unit,
            of: Box::new(of),
        },
    });
    prop_oneof![selector(limits::OBJECT_BYTES), times]
}

fn names() -> impl Strategy<Value = Names> {
    (text(), text(), 0u8..9, selector(limits::NUMBER)).prop_map(
        |(prefix, suffix, digits, numbers)| Names {
            prefix,
            suffix,
            digits,
            numbers,
        },
    )
}

fn texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-zA-Z .-]{1,8}", text(), 0..3)
}

fn settings() -> impl Strategy<Value = Settings> {
    ("[a-z0-9]{0,5}", btree_map("type|[a-z_]{5,9}", text(), 0..3))
        .prop_map(|(kind, config)| Settings { kind, config })
}

fn access() -> impl Strategy<Value = Access> {
    (settings(), settings()).prop_map(|(auth, storage)| Access { auth, storage })
}

/// An empty one counts as none.
fn own_access() -> impl Strategy<Value = Option<Access>> {
    option::of(access()).prop_map(|own| own.filter(|access| *access != Access::default()))
}

fn operation(special: Option<OperationKind>) -> impl Strategy<Value = Operation> {
    let kinds = vec![
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::FileWrite,
        OperationKind::Update,
        OperationKind::Delete,
        OperationKind::Head,
        OperationKind::List,
        OperationKind::Copy,
        OperationKind::Post,
        OperationKind::BulkDelete,
        OperationKind::Versions,
    ];
    let objects = prop_oneof![
        names().prop_map(Objects::Numbered),
        ("[a-z]{1,5}", names(), any::<bool>()).prop_map(|(pool, names, oldest)| Objects::Pool {
            pool,
            names,
            draw: if oldest { Draw::Oldest } else { Draw::Random },
        }),
    ];
    let shape = (
        proptest::sample::select(kinds),
        0.001f64..1000.0,
        "[a-z]{1,6}",
        option::of("[a-z]{1,6}"),
    );
    let range = (
        selector(limits::OBJECT_BYTES),
        1u64..10_000,
        0..limits::OBJECT_BYTES,
    );
    let rest = (
        sizes(),
        any::<[bool; 3]>(),
        option::of(range),
        option::of(1..limits::OBJECT_BYTES),
        texts(),
    );
    (shape, names(), objects, rest).prop_map(move |(shape, containers, objects, rest)| {
        let (kind, ratio, name, size_class) = shape;
        let (sizes, [zero, hashcheck, chunked], range, part, headers) = rest;
        let kind = special.unwrap_or(kind);
        let writes = matches!(
            kind,
            OperationKind::Write | OperationKind::Update | OperationKind::Prepare
        );
        let of_containers = matches!(kind, OperationKind::Init | OperationKind::Dispose);
        let (low, high) = containers.numbers.bounds();
        let once = Names {
            numbers: Selector::Range { low, high },
            ..containers.clone()
        };
        Operation {
            kind,
            ratio,
            name,
            size_class,
            containers: if of_containers { once } else { containers },
            objects: if of_containers {
                Objects::default()
            } else {
                objects
            },
            sizes: writes.then_some(sizes),
            content: if zero { Content::Zero } else { Content::Random },
            hashcheck,
            range: range.filter(|_| kind == OperationKind::Read).map(
                |(length, align, object_bytes)| RangeRead {
                    length,
                    align,
                    object_bytes,
                },
            ),
            part_bytes: part.filter(|_| writes),
            chunked,
            files: (kind == OperationKind::FileWrite).then(|| "/a folder".to_owned()),
            headers,
            copy_container_suffix: match (kind, zero) {
                (OperationKind::Copy, true) => "-c".to_owned(),
                _ => String::new(),
            },
            copy_suffix: match (kind, zero && chunked) {
                (OperationKind::Copy, false) => "-copy 2".to_owned(),
                _ => String::new(),
            },
            batch: match kind {
                OperationKind::BulkDelete => 1 + (ratio as u32),
                _ => 0,
            },
            versioned: hashcheck
                && matches!(
                    kind,
                    OperationKind::Init | OperationKind::Cleanup | OperationKind::Delete
                ),
        }
    })
}

fn pacing() -> impl Strategy<Value = Pacing> {
    let think = prop_oneof![
        time().prop_map(Think::Constant),
        (time(), time()).prop_map(|(a, b)| Think::Uniform {
            low: a.min(b),
            high: a.max(b)
        }),
        time().prop_map(|mean| Think::Exponential { mean }),
    ];
    prop_oneof![
        option::of(think).prop_map(|think| Pacing::Closed { think }),
        (0.01f64..1e6, any::<bool>()).prop_map(|(rate, even)| Pacing::Open {
            rate,
            arrivals: if even {
                Arrivals::Constant
            } else {
                Arrivals::Poisson
            },
        }),
    ]
}

fn main_work() -> impl Strategy<Value = Work> {
    let division = prop_oneof![
        Just(Division::None),
        Just(Division::Container),
        Just(Division::Object)
    ];
    let times = (
        time(),
        time().prop_filter("a time", |t| !t.is_zero()),
        time(),
    );
    let totals = (
        option::of(1..limits::TOTAL_OPS),
        option::of(1..limits::TOTAL_BYTES),
    );
    let search = (
        option::of((time(), 0.0f64..1.0)),
        option::of((1.1f64..9.0, 1u32..9999, 0.0f64..1.0, option::of(time()))),
    );
    let shape = (
        text(),
        1u32..100_000,
        0u32..=1_000_000,
        division,
        option::of(text()),
    );
    (
        shape,
        times,
        totals,
        search,
        pacing(),
        own_access(),
        vec(operation(None), 1..4),
    )
        .prop_map(
            |(shape, times, totals, search, pacing, access, mut operations)| {
                let (name, workers, afr, division, driver) = shape;
                for (operation, number) in operations.iter_mut().zip(0..) {
                    operation.name.push_str(&format!("{number}"));
                }
                Work {
                    name,
                    kind: WorkKind::Main,
                    workers,
                    rampup: times.0,
                    runtime: Some(times.1),
                    rampdown: times.2,
                    total_ops: totals.0,
                    total_bytes: totals.1,
                    afr,
                    division,
                    interval: Duration::from_millis(1500),
                    driver,
                    operations,
                    pacing,
                    steady: search
                        .0
                        .map(|(window, tolerance)| Steady { window, tolerance }),
                    knee: search.1.map(|(factor, most, min_gain, p99_limit)| {
                        let by_rate = matches!(pacing, Pacing::Open { .. }) && most % 2 == 0;
                        Knee {
                            factor,
                            max_workers: if by_rate { 1 } else { most },
                            min_gain,
                            p99_limit,
                            max_rate: by_rate.then(|| f64::from(most)),
                        }
                    }),
                    access,
                }
            },
        )
}

fn special_work() -> impl Strategy<Value = Work> {
    let kinds = [
        (WorkKind::Init, OperationKind::Init),
        (WorkKind::Prepare, OperationKind::Prepare),
        (WorkKind::Cleanup, OperationKind::Cleanup),
        (WorkKind::Dispose, OperationKind::Dispose),
    ];
    proptest::sample::select(kinds.to_vec()).prop_flat_map(|(kind, of)| {
        vec(operation(Some(of)), 1..3).prop_map(move |mut operations| {
            for (operation, number) in operations.iter_mut().zip(0..) {
                operation.name.push_str(&format!("{number}"));
            }
            Work {
                kind,
                operations,
                name: "special".into(),
                ..Work::default()
            }
        })
    })
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let work = prop_oneof![3 => main_work(), 1 => special_work()];
    let trigger = ("[a-z.]{1,8}", vec("[a-z0-9]{1,4}", 0..3))
        .prop_map(|(command, arguments)| Trigger { command, arguments });
    let stage = (vec(work, 1..3), time(), option::of(trigger), texts());
    let stages = vec(stage, 1..3).prop_map(|stages| {
        let stage = |(at, (works, close_delay, trigger, swept)): (usize, _)| Stage {
            name: format!("stage {at}"),
            works,
            close_delay,
            trigger,
            swept,
        };
        stages
            .into_iter()
            .enumerate()
            .map(stage)
            .collect::<Vec<_>>()
    });
    (text(), text(), any::<u64>(), access(), stages).prop_map(
        |(name, description, seed, access, stages)| Plan {
            name,
            description,
            format: Format::Ssbench.as_str().to_owned(),
            seed,
            access,
            stages,
        },
    )
}

proptest! {
    #[test]
    fn a_written_plan_is_the_plan(wanted in any_plan()) {
        let written = to_toml(&wanted);
        prop_assert_eq!(plan(&written), wanted, "{}", written);
    }
}
