use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::plan::{Draw, Names};

fn names(prefix: &str, numbers: Selector) -> Names {
    Names {
        prefix: prefix.into(),
        numbers,
        ..Names::default()
    }
}

fn numbered(kind: OperationKind, ratio: f64, low: u64, high: u64) -> Operation {
    Operation {
        kind,
        ratio,
        containers: names("c", Selector::Uniform { low: 1, high: 4 }),
        objects: Objects::Numbered(names("o", Selector::Uniform { low, high })),
        ..Operation::default()
    }
}

fn drawer(work: &Arc<Work>, worker: u32, workers: u32, pools: &Pools) -> Drawer {
    let sequences = Arc::new(Sequences::new(work.operations.len(), Share::WHOLE));
    Drawer::new(work, worker, workers, pools, &sequences)
}

#[test]
fn the_mix_is_as_asked() {
    let operations = vec![
        numbered(OperationKind::Read, 80.0, 1, 50),
        numbered(OperationKind::Write, 15.0, 51, 100),
        numbered(OperationKind::Delete, 5.0, 51, 100),
    ];
    let work = Arc::new(Work {
        operations,
        ..Work::default()
    });
    let mut drawer = drawer(&work, 0, 1, &Pools::default());
    let (mut rng, mut drawn) = (Rng::new(3), Drawn::default());
    let mut counts = [0u32; 3];
    for _ in 0..100_000 {
        assert!(drawer.draw(&mut rng, &mut drawn));
        counts[drawn.operation] += 1;
    }
    for (count, expected) in counts.into_iter().zip([80_000u32, 15_000, 5_000]) {
        assert!(count.abs_diff(expected) < 600, "{counts:?}");
    }
}

#[test]
fn special_works_do_everything_once() {
    let operation = Operation {
        kind: OperationKind::Prepare,
        containers: names("c", Selector::Range { low: 1, high: 3 }),
        objects: Objects::Numbered(names("o", Selector::Range { low: 5, high: 9 })),
        ..Operation::default()
    };
    let work = Work {
        kind: WorkKind::Prepare,
        operations: vec![operation],
        ..Work::default()
    };
    let work = Arc::new(work);
    let total = Drawer::special_total(&work)[0];
    assert_eq!(total, 15);
    let mut seen = BTreeSet::new();
    let mut drawn = Drawn::default();
    for worker in 0..4 {
        let mut drawer = drawer(&work, worker, 4, &Pools::default());
        let (start, length) = part(total, u64::from(worker), 4);
        for at in start..start + length {
            assert!(drawer.special(0, at, &mut Rng::new(1), &mut drawn));
            assert!(seen.insert(format!("{}/{}", drawn.container, drawn.object)));
        }
    }
    assert_eq!(seen.len(), 15);
    assert_eq!(seen.first().map(String::as_str), Some("c1/o5"));
    assert_eq!(seen.last().map(String::as_str), Some("c3/o9"));
}

#[test]
fn parts_differ_by_one_at_most() {
    let parts: Vec<_> = (0..4).map(|index| part(10, index, 4)).collect();
    assert_eq!(parts, [(0, 3), (3, 3), (6, 2), (8, 2)]);
}

#[test]
fn divided_objects_are_each_workers_own() {
    let operations = vec![numbered(OperationKind::Write, 1.0, 1, 10)];
    let work = Arc::new(Work {
        operations,
        division: Division::Object,
        ..Work::default()
    });
    let mut by_worker: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    let (mut rng, mut drawn) = (Rng::new(3), Drawn::default());
    for worker in 0..2 {
        let mut drawer = drawer(&work, worker, 2, &Pools::default());
        for _ in 0..500 {
            drawer.draw(&mut rng, &mut drawn);
            by_worker.entry(worker).or_default().insert(drawn.number);
        }
    }
    assert_eq!(by_worker[&0], (1..=5).collect());
    assert_eq!(by_worker[&1], (6..=10).collect());
}

#[test]
fn an_empty_pool_leaves_its_operations_out() {
    let pooled = |kind| Operation {
        kind,
        objects: Objects::Pool {
            pool: "p".into(),
            names: names("o", Selector::Range { low: 1, high: 1 }),
            draw: Draw::Random,
        },
        ..Operation::default()
    };
    let pools = Pools::default();
    let (mut rng, mut drawn) = (Rng::new(3), Drawn::default());
    let reads = Work {
        operations: vec![pooled(OperationKind::Read)],
        ..Work::default()
    };
    assert!(!drawer(&Arc::new(reads), 0, 1, &pools).draw(&mut rng, &mut drawn));
    let operations = vec![pooled(OperationKind::Read), pooled(OperationKind::Write)];
    let work = Arc::new(Work {
        operations,
        ..Work::default()
    });
    let mut drawer = drawer(&work, 0, 1, &pools);
    for _ in 0..50 {
        assert!(drawer.draw(&mut rng, &mut drawn));
        drawer.settle(&drawn, true);
    }
    assert!(pools.get("p").take(Draw::Random, &mut rng).is_some());
}

/// Each name once, all of one container; from a pool as many as there are, and none twice.
#[test]
fn a_batch_has_every_object_once() {
    let bulk = |objects| Operation {
        kind: OperationKind::BulkDelete,
        batch: 8,
        containers: names("c", Selector::Uniform { low: 1, high: 4 }),
        objects,
        ..Operation::default()
    };
    let pool = Objects::Pool {
        pool: "p".into(),
        names: names("o", Selector::Sequential { low: 1, high: 99 }),
        draw: Draw::Random,
    };
    let numbered = Objects::Numbered(names("o", Selector::Uniform { low: 1, high: 12 }));
    let work = |objects| {
        Arc::new(Work {
            operations: vec![bulk(objects)],
            ..Work::default()
        })
    };
    let (mut rng, mut drawn) = (Rng::new(1), Drawn::default());
    let work_of_numbers = work(numbered);
    let mut of_numbers = drawer(&work_of_numbers, 0, 1, &Pools::default());
    for _ in 0..50 {
        assert!(of_numbers.draw(&mut rng, &mut drawn));
        let each: BTreeSet<_> = drawn.batch.iter().collect();
        assert_eq!(each.len(), drawn.batch.len(), "{:?}", drawn.batch);
        assert!((2..=8).contains(&drawn.batch.len()), "{:?}", drawn.batch);
        let containers: BTreeSet<_> = drawn.batch.iter().map(|(c, _)| c).collect();
        assert_eq!(containers.len(), 1, "{:?}", drawn.batch);
    }
    let pools = Pools::default();
    for object in 1..=11 {
        let container = 1 + object % 4;
        pools.get("p").add(Member { container, object });
    }
    let work_of_pool = work(pool);
    let mut of_pool = drawer(&work_of_pool, 0, 1, &pools);
    let mut deleted = BTreeSet::new();
    for expected in [8, 3] {
        assert!(of_pool.draw(&mut rng, &mut drawn));
        assert_eq!(drawn.batch.len(), expected);
        deleted.extend(drawn.batch.iter().cloned());
        of_pool.settle(&drawn, true);
    }
    assert_eq!(deleted.len(), 11);
    assert!(
        deleted.contains(&("c4".to_owned(), "o3".to_owned())),
        "{deleted:?}"
    );
    assert!(!of_pool.draw(&mut rng, &mut drawn));
}
