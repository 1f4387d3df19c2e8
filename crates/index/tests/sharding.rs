//! Sharding of a container's files and its ranges: by itself, and against OpenStack Swift's own
//! broker, where `CAIRN_SWIFT_PYTHON` names a Python that has it.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use cairn_formats::shard::{ShardRange, State};
use cairn_index::{ContainerDb, Cut, DbState, RangeQuery, RowsQuery};
use cairn_types::Timestamp;
use serde_json::{Value, json};
use support::{Index, block_on, index, index_with, new_container, object};

fn range(name: &str, lower: &str, upper: &str, state: State, count: i64) -> ShardRange {
    let mut range = ShardRange::new(name, Timestamp::from_secs(5), lower, upper);
    range.set_state(state);
    range.set_counts(count, count * 10, Timestamp::from_secs(6));
    range
}

fn filled(index: &Index) -> ContainerDb {
    let db = index.container("c");
    let rows = (0..10).map(|i| object(&format!("o{i}"), 2, 10)).collect();
    block_on(db.merge_items(new_container("c"), rows)).unwrap();
    db
}

fn shard(db: &ContainerDb) {
    let shards = vec![
        range(".shards_a/c-1", "", "o4", State::Active, 5),
        range(".shards_a/c-2", "o4", "", State::Created, 5),
    ];
    block_on(db.write(None, move |broker| {
        broker.merge_shard_ranges(shards)?;
        broker.enable_sharding(Timestamp::from_secs(7))
    }))
    .unwrap();
}

fn state(db: &ContainerDb) -> (DbState, i64, bool) {
    block_on(db.read(|broker| {
        Ok((
            broker.db_state()?,
            broker.info()?.object_count,
            broker.is_empty()?,
        ))
    }))
    .unwrap()
}

/// From one file to two to one, in both ways of writing them.
#[test]
fn a_container_is_sharded() {
    for exclusive in [false, true] {
        let index = index_with(|config| config.exclusive = exclusive);
        let db = filled(&index);
        assert!(
            !block_on(db.begin_sharding()).unwrap(),
            "there is no epoch yet"
        );
        shard(&db);
        assert_eq!(state(&db), (DbState::Unsharded, 10, false));

        assert!(block_on(db.begin_sharding()).unwrap());
        assert!(!block_on(db.begin_sharding()).unwrap(), "it has begun");
        assert_eq!(state(&db), (DbState::Sharding, 10, false));

        // New rows go to the fresh file, and their ROWIDs continue.
        block_on(db.merge_items(None, vec![object("new", 3, 1)])).unwrap();
        let (fresh, source) = block_on(db.read(|broker| {
            let all = RowsQuery {
                limit: 100,
                since_row: -1,
                ..RowsQuery::default()
            };
            let fresh = broker.rows_between(&all)?;
            Ok((
                fresh,
                broker.with_source(|source| source.rows_between(&all))?,
            ))
        }))
        .unwrap();
        assert_eq!((fresh.len(), fresh[0].rowid, source.len()), (1, 11, 10));

        let removed = block_on(db.write(None, |broker| {
            broker.with_source_to_write(|source| source.remove_rows("o4", "o6", 6))
        }));
        // Rows are numbered from 1: that of o6 is 7.
        assert_eq!(removed.unwrap(), 1);
        assert_eq!(state(&db).1, 9);

        assert!(block_on(db.end_sharding()).unwrap());
        assert!(!block_on(db.end_sharding()).unwrap());
        // Ranges that are not active yet are not counted.
        assert_eq!(state(&db), (DbState::Sharded, 5, false));
        let gone = block_on(db.write(None, |broker| {
            let mut ranges = broker.list_shard_ranges(&RangeQuery::default())?;
            for range in &mut ranges {
                range.set_deleted(Timestamp::from_secs(9));
            }
            broker.merge_shard_ranges(ranges)
        }));
        gone.unwrap();
        assert_eq!(state(&db).0, DbState::Collapsed);
    }
}

#[test]
fn rows_come_in_pages_of_names() {
    let index = index();
    let db = filled(&index);
    let mut query = RowsQuery {
        lower: "o1".into(),
        upper: "o6".into(),
        since_row: -1,
        limit: 2,
        ..RowsQuery::default()
    };
    let mut names = Vec::new();
    loop {
        let page = query.clone();
        let rows = block_on(db.read(move |broker| broker.rows_between(&page))).unwrap();
        let Some(last) = rows.last() else { break };
        query.after = Some((last.name.clone(), last.rowid));
        names.extend(rows.into_iter().map(|row| row.name));
    }
    assert_eq!(names, ["o2", "o3", "o4", "o5", "o6"]);
}

/// Another process may begin to shard while we have the database open.
#[test]
fn a_fresh_file_of_another_process_is_seen() {
    let (ours, db) = {
        let index = index();
        let db = filled(&index);
        shard(&db);
        (index, db)
    };
    let theirs = cairn_index::IndexPool::new(cairn_index::IndexConfig::new(ours.dir.path()));
    let other = theirs.container_by_key(db.key().clone());
    assert!(block_on(other.begin_sharding()).unwrap());
    block_on(db.merge_items(None, vec![object("new", 3, 1)])).unwrap();
    assert_eq!(state(&db), (DbState::Sharding, 10, false));
    theirs.close_all();
}

fn swift(file: &Path, steps: Value) -> Option<Vec<Value>> {
    let answers = support::swift::swift("container", file, steps)?;
    Some(answers.as_array().unwrap().clone())
}

fn facts(info: &Value) -> Value {
    json!([
        info["db_state"],
        info["object_count"],
        info["bytes_used"],
        info["empty"]
    ])
}

fn our_facts(db: &ContainerDb) -> Value {
    block_on(db.read(|broker| {
        let info = broker.info()?;
        let empty = broker.is_empty()?;
        Ok(json!([
            info.db_state,
            info.object_count,
            info.bytes_used,
            empty
        ]))
    }))
    .unwrap()
}

/// Each side goes on with what the other has begun, and both see the same.
#[test]
fn swift_takes_over_and_back() {
    for we_begin in [true, false] {
        let index = index();
        let db = filled(&index);
        shard(&db);
        let file = db.key().file(index.pool.devices());
        if we_begin {
            assert!(block_on(db.begin_sharding()).unwrap());
        }
        index.close(db.key());
        let begin = if we_begin {
            json!(["info"])
        } else {
            json!(["begin"])
        };
        let Some(answers) = swift(&file, json!([begin, ["info"]])) else {
            return;
        };
        let theirs = facts(&answers[1]);
        assert_eq!(theirs, json!(["sharding", 10, 100, false]));
        assert_eq!(our_facts(&db), theirs);
        if we_begin {
            index.close(db.key());
            swift(&file, json!([["end"]])).unwrap();
        } else {
            assert!(block_on(db.end_sharding()).unwrap());
        }
        let ours = our_facts(&db);
        index.close(db.key());
        let answers = swift(&file, json!([["info"]])).unwrap();
        assert_eq!(facts(&answers[0]), ours);
        assert_eq!(ours, json!(["sharded", 5, 50, false]));
    }
}

/// The same ranges for the same questions.
#[test]
fn ranges_as_swift_lists_them() {
    let index = index();
    let db = filled(&index);
    shard(&db);
    let more = vec![
        range(".shards_a/c-3", "o4", "o6", State::Cleaved, 1),
        range(".shards_a/c-4", "o4", "o6", State::Found, 1),
        ShardRange {
            deleted: 1,
            ..range(".shards_a/c-5", "", "o9", State::Sharded, 0)
        },
    ];
    block_on(db.write(None, |broker| broker.merge_shard_ranges(more))).unwrap();
    let mut queries = Vec::new();
    for (marker, end_marker) in [("", ""), ("o3", ""), ("", "o4"), ("o4", "o5"), ("o5", "o4")] {
        for includes in [None, Some("o4"), Some("o5"), Some("z")] {
            for states in [vec![], State::LISTING.to_vec(), vec![State::Found]] {
                for flags in 0..16 {
                    queries.push(RangeQuery {
                        marker: marker.into(),
                        end_marker: end_marker.into(),
                        includes: includes.map(str::to_owned),
                        states: states.clone(),
                        reverse: flags & 1 != 0,
                        include_deleted: flags & 2 != 0,
                        include_own: flags & 4 != 0,
                        fill_gaps: flags & 8 != 0,
                    });
                }
            }
        }
    }
    let asked: Vec<Value> = queries
        .iter()
        .map(|q| {
            let states: Vec<i64> = q.states.iter().map(|state| *state as i64).collect();
            json!({"marker": q.marker, "end_marker": q.end_marker, "includes": q.includes,
                   "reverse": q.reverse, "include_deleted": q.include_deleted, "states": states,
                   "include_own": q.include_own, "fill_gaps": q.fill_gaps})
        })
        .collect();
    let ours: Vec<Value> = queries
        .iter()
        .map(|query| {
            let query = query.clone();
            let ranges = block_on(db.read(move |broker| broker.list_shard_ranges(&query)));
            json!(ranges.unwrap())
        })
        .collect();
    let file = db.key().file(index.pool.devices());
    index.close(db.key());
    let Some(answers) = swift(&file, json!([["ranges", asked]])) else {
        return;
    };
    let theirs = answers[0].as_array().unwrap();
    for (query, (ours, theirs)) in queries.iter().zip(ours.iter().zip(theirs)) {
        assert_eq!(ours, theirs, "{query:?}");
    }
}

/// Cut at the same names.
#[test]
fn cuts_as_swift_finds_them() {
    let index = index();
    let db = filled(&index);
    let file = db.key().file(index.pool.devices());
    let cases = [
        (3, 1, -1),
        (3, 2, -1),
        (3, 4, -1),
        (5, 1, -1),
        (5, 5, -1),
        (6, 5, -1),
        (2, 1, 2),
    ];
    let ours: Vec<Value> = cases
        .iter()
        .map(|(size, least, limit)| {
            let cut = Cut {
                rows_per_shard: *size,
                minimum_rows: *least,
                limit: usize::try_from(*limit).ok(),
            };
            let found = block_on(db.read(move |broker| broker.find_shard_ranges(cut, &[])));
            let (found, is_last) = found.unwrap();
            let found: Vec<Value> = found
                .iter()
                .map(|f| {
                    json!({"index": f.index, "lower": f.lower, "upper": f.upper,
                           "object_count": f.object_count})
                })
                .collect();
            json!([found, is_last])
        })
        .collect();
    index.close(db.key());
    let steps: Vec<Value> = cases
        .iter()
        .map(|(s, m, l)| json!(["find", s, m, l]))
        .collect();
    let Some(theirs) = swift(&file, json!(steps)) else {
        return;
    };
    assert_eq!(ours, theirs);
}
