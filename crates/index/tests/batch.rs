//! Rows merged together leave what rows merged one by one, by their triggers, leave.

#![allow(clippy::unwrap_used)]

mod support;

use std::pin::Pin;
use std::task::{Context, Waker};

use cairn_index::{ContainerDb, ListCursor, ListQuery, ObjectRow};
use cairn_types::Timestamp;
use support::{block_on, index, new_container};

/// A run of updates from a seed: few names, times that meet, two policies, tombstones.
fn updates(mut seed: u64, count: usize) -> Vec<ObjectRow> {
    let mut roll = move |sides: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % sides
    };
    let mut row = || {
        let time = Timestamp::from_secs(100 + roll(20));
        let name = format!("o{}", roll(25));
        let policy = roll(2) as i64;
        if roll(3) == 0 {
            return ObjectRow::tombstone(name, time, policy);
        }
        ObjectRow {
            name,
            data: time,
            ctype: Timestamp::from_secs(100 + roll(20)).max(time),
            meta: Timestamp::from_secs(100 + roll(20)).max(time),
            size: roll(1000) as i64,
            content_type: format!("t/{}", roll(4)),
            etag: format!("{:032x}", roll(1 << 30)),
            deleted: false,
            storage_policy_index: policy,
        }
    };
    (0..count).map(|_| row()).collect()
}

/// State that depends on the rows: counts, hash, listing of each policy.
fn state(db: &ContainerDb) -> impl PartialEq + std::fmt::Debug + use<> {
    let (info, mut stats) =
        block_on(db.read(|broker| Ok((broker.info()?, broker.policy_stats()?)))).unwrap();
    stats.sort_by_key(|policy| policy.storage_policy_index);
    let lists = [0, 1].map(|policy| {
        let query = ListQuery {
            limit: 1000,
            storage_policy_index: policy,
            ..ListQuery::default()
        };
        let page = block_on(db.list_objects(ListCursor::new(query), 1000));
        page.unwrap().entries
    });
    (info.hash, info.object_count, info.bytes_used, stats, lists)
}

/// Rows as servers and as replicators bring them, in one transaction.
fn by_turns(db: &ContainerDb, rows: Vec<ObjectRow>) {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let mut all: Vec<Pin<Box<dyn Future<Output = _> + '_>>> = Vec::new();
    // The rest gathers while this one waits.
    all.push(Box::pin(db.write(None, move |_| {
        wait.recv().unwrap();
        Ok(())
    })));
    for some in rows.chunks(5) {
        let (served, replicated) = some.split_at(2);
        all.push(Box::pin(db.merge_items(None, served.to_vec())));
        let replicated = replicated.to_vec();
        all.push(Box::pin(
            db.write(None, move |broker| broker.merge_items(replicated)),
        ));
    }
    // Asked for the first time, each queues its rows.
    let mut context = Context::from_waker(Waker::noop());
    for one in &mut all {
        assert!(one.as_mut().poll(&mut context).is_pending());
    }
    go.send(()).unwrap();
    all.into_iter().for_each(|one| block_on(one).unwrap());
}

#[test]
fn together_as_one_by_one() {
    for seed in 0..4 {
        let index = index();
        let (together, alone) = (index.container("together"), index.container("alone"));
        for db in [&together, &alone] {
            block_on(db.merge_items(new_container("c"), Vec::new())).unwrap();
        }
        for step in 0..8 {
            let rows = updates(seed * 8 + step, 45);
            for row in &rows {
                let row = row.clone();
                block_on(alone.write(None, move |broker| broker.merge_items(vec![row]))).unwrap();
            }
            match step % 4 {
                0 => block_on(together.merge_items(None, rows)).unwrap(),
                1 => block_on(together.write(None, move |b| b.merge_items(rows))).unwrap(),
                2 => by_turns(&together, rows),
                _ => {
                    let each = rows.into_iter().map(|row| vec![row]);
                    let each = each.map(|row| together.merge_items(None, row));
                    each.for_each(|merged| block_on(merged).unwrap());
                }
            }
            assert_eq!(state(&together), state(&alone), "seed {seed}, step {step}");
        }
    }
}
