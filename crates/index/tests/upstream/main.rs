//! Against OpenStack Swift's own brokers: they read what we wrote, we read what they wrote, both
//! merge the same updates to the same rows, and list alike.
//!
//! Needs a Python that has Swift: `CAIRN_SWIFT_PYTHON=/path/to/python cargo test -p cairn-index`.
//! Without it these tests say so and pass.
#![allow(clippy::unwrap_used)]

mod listings;
#[path = "../support/mod.rs"]
mod support;

use cairn_index::{AccountDb, ContainerDb, ContainerRow, ListCursor, ListEntry, ObjectRow};
use listings::{list_query, queries};
use serde_json::{Value, json};
use support::swift::swift;
use support::{Index, block_on, index, new_account, new_container};

/// A generator of its own: the same numbers everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.roll(from.len() as u64) as usize]
    }
}

const NAMES: &[&str] = &[
    "a",
    "a/",
    "a/b",
    "a/b/c",
    "a/c",
    "a0",
    "a//b",
    "b/x/1",
    "b/x/2",
    "b/y",
    "c--d",
    "c--e--f",
    "é/ü",
    "é/ü/1",
    "\u{10ffff}z",
    "\0reserved/x",
    "z",
    "photos/",
    "photos/x",
    "photos/x/y",
    "photos/x0",
    "photos0",
];

fn updates(dice: &mut Dice, count: usize) -> Vec<Value> {
    let times = ["", "+5", "+5+5", "+0+a"];
    let types = [
        "text/plain",
        "text/plain;swift_bytes=5",
        "a/b; charset=UTF-8; swift_bytes=7",
        "x/y;q=\"a;b\"",
    ];
    (0..count)
        .map(|_| {
            let deleted = dice.roll(4) == 0;
            let time = format!("{:010}.{:05}", 1000 + dice.roll(6), dice.roll(2));
            let offset = if dice.roll(8) == 0 { "_1" } else { "" };
            let ctype = (dice.roll(5) == 0).then(|| format!("{:010}.00000", 1001 + dice.roll(6)));
            let meta = (dice.roll(5) == 0).then(|| format!("{:010}.00000", 1002 + dice.roll(6)));
            json!({
                "name": dice.pick(NAMES),
                "created_at": format!("{time}{offset}{}", dice.pick(&times)),
                "size": if deleted { 0 } else { dice.roll(100) },
                "content_type": dice.pick(&types),
                "etag": format!("etag{}", dice.roll(100)),
                "deleted": u8::from(deleted),
                "storage_policy_index": u8::from(dice.roll(9) == 0),
                "ctype_timestamp": ctype,
                "meta_timestamp": meta,
            })
        })
        .collect()
}

fn object_row(update: &Value) -> ObjectRow {
    let text = |key: &str| update[key].as_str();
    let (data, ctype, meta) = ObjectRow::times(
        text("created_at").unwrap(),
        text("ctype_timestamp"),
        text("meta_timestamp"),
    )
    .unwrap();
    ObjectRow {
        name: text("name").unwrap().into(),
        data,
        ctype,
        meta,
        size: update["size"].as_i64().unwrap(),
        content_type: text("content_type").unwrap().into(),
        etag: text("etag").unwrap().into(),
        deleted: update["deleted"] == 1,
        storage_policy_index: update["storage_policy_index"].as_i64().unwrap(),
    }
}

/// Rows without their ROWIDs, ordered: batches number them differently. Spaces between a content
/// type's parameters go when two updates meet in one batch: that is up to chance as well.
fn rows_of(rows: &Value) -> Vec<Value> {
    let mut rows: Vec<Value> = rows.as_array().unwrap().clone();
    for row in &mut rows {
        row.as_object_mut().unwrap().remove("ROWID");
        row["content_type"] = row["content_type"]
            .as_str()
            .unwrap()
            .replace("; ", ";")
            .into();
    }
    rows.sort_by_key(|row| {
        (
            row["name"].to_string(),
            row["storage_policy_index"].as_i64(),
        )
    });
    rows
}

fn our_rows(db: &ContainerDb) -> Vec<Value> {
    let rows = block_on(db.read(|broker| broker.items_since(-1, 1_000_000))).unwrap();
    let rows = rows.into_iter().map(|row| {
        json!({
            "name": row.name,
            "created_at": row.created_at,
            "size": row.size,
            "content_type": row.content_type,
            "etag": row.etag,
            "deleted": u8::from(row.deleted),
            "storage_policy_index": row.storage_policy_index,
        })
    });
    rows_of(&Value::Array(rows.collect()))
}

fn assert_same_info(db: &ContainerDb, theirs: &Value) {
    let (ours, empty) =
        block_on(db.read(|broker| Ok((broker.info()?, broker.is_empty()?)))).unwrap();
    let is_deleted = ours.is_deleted();
    let ours = json!({
        "account": ours.account, "container": ours.container, "created_at": ours.created_at,
        "put_timestamp": ours.put_timestamp, "delete_timestamp": ours.delete_timestamp,
        "status": ours.status, "status_changed_at": ours.status_changed_at,
        "object_count": ours.object_count, "bytes_used": ours.bytes_used,
        "reported_put_timestamp": ours.reported_put_timestamp,
        "reported_delete_timestamp": ours.reported_delete_timestamp,
        "reported_object_count": ours.reported_object_count,
        "reported_bytes_used": ours.reported_bytes_used, "hash": ours.hash, "id": ours.id,
        "x_container_sync_point1": ours.x_container_sync_point1,
        "x_container_sync_point2": ours.x_container_sync_point2,
        "storage_policy_index": ours.storage_policy_index, "db_state": ours.db_state,
        "deleted": is_deleted, "empty": empty,
    });
    assert_eq!(&ours, theirs);
}

fn assert_same_account(db: &AccountDb, theirs: &Value) {
    let (ours, empty) =
        block_on(db.read(|broker| Ok((broker.info()?, broker.is_empty()?)))).unwrap();
    let is_deleted = ours.is_deleted();
    let ours = json!({
        "account": ours.account, "created_at": ours.created_at,
        "put_timestamp": ours.put_timestamp, "delete_timestamp": ours.delete_timestamp,
        "status_changed_at": ours.status_changed_at, "container_count": ours.container_count,
        "object_count": ours.object_count, "bytes_used": ours.bytes_used, "hash": ours.hash,
        "id": ours.id, "deleted": is_deleted, "empty": empty,
    });
    assert_eq!(&ours, theirs);
}

/// The database's folder, which is created for Swift to fill.
fn prepare(index: &Index, key: &cairn_index::DbKey) -> std::path::PathBuf {
    std::fs::create_dir_all(key.dir(index.pool.devices())).unwrap();
    key.file(index.pool.devices())
}

#[test]
fn merging_gives_the_same_rows() {
    let mut dice = Dice(11);
    for round in 0..4 {
        let index = index();
        let (ours, theirs) = (index.container("c"), index.container("swift"));
        let batches: Vec<Vec<Value>> = (0..8).map(|_| updates(&mut dice, 12)).collect();
        let mut steps = vec![json!(["initialize", "0000000001.00000", 0])];
        steps.extend(batches.iter().map(|batch| json!(["merge", batch])));
        steps.extend([json!(["info"]), json!(["rows"]), json!(["policies"])]);
        let file = prepare(&index, theirs.key());
        let Some(answers) = swift("container", &file, Value::Array(steps)) else {
            return;
        };
        for batch in &batches {
            let rows = batch.iter().map(object_row).collect();
            block_on(ours.merge_items(new_container("c"), rows)).unwrap();
        }
        assert_eq!(our_rows(&ours), rows_of(&answers[10]), "round {round}");
        let info = block_on(ours.read(|broker| broker.info())).unwrap();
        for (mine, key) in [
            (json!(info.hash), "hash"),
            (json!(info.object_count), "object_count"),
            (json!(info.bytes_used), "bytes_used"),
        ] {
            assert_eq!(mine, answers[9][key], "{key} in round {round}");
        }
        for stats in block_on(ours.read(|broker| broker.policy_stats())).unwrap() {
            let theirs = &answers[11][stats.storage_policy_index.to_string()];
            assert_eq!(theirs["object_count"], stats.object_count);
            assert_eq!(theirs["bytes_used"], stats.bytes_used);
        }
        // And Swift's file, opened by us.
        assert_eq!(our_rows(&theirs), rows_of(&answers[10]));
        for db in [&ours, &theirs] {
            let known = db.read(|broker| Ok(broker.counts_in_batches()));
            assert!(block_on(known).unwrap());
        }
        assert_same_info(&theirs, &answers[9]);
    }
}

#[test]
fn swift_reads_and_goes_on_with_ours() {
    let index = index();
    let db = index.container("c");
    let mut dice = Dice(5);
    let rows = updates(&mut dice, 60).iter().map(object_row).collect();
    block_on(db.merge_items(new_container("c"), rows)).unwrap();
    block_on(db.write(None, |broker| {
        broker.update_metadata(
            [
                ("X-Container-Meta-É", "ü\"", "0000000002.00000"),
                ("X-Container-Read", ".r:*", "0000000002.00000"),
            ],
            true,
        )
    }))
    .unwrap();
    let rows = our_rows(&db);
    index.close(db.key());
    let file = db.key().file(index.pool.devices());
    let more = updates(&mut dice, 20);
    let steps = json!([
        ["info"],
        ["rows"],
        ["get_metadata"],
        ["merge", more],
        ["info"],
        ["rows"]
    ]);
    let Some(answers) = swift("container", &file, steps) else {
        return;
    };
    assert_eq!(rows, rows_of(&answers[1]));
    assert_eq!(
        answers[2],
        json!({
            "X-Container-Meta-É": ["ü\"", "0000000002.00000"], "X-Container-Read": [".r:*", "0000000002.00000"],
        })
    );
    assert_eq!(our_rows(&db), rows_of(&answers[5]));
    assert_same_info(&db, &answers[4]);
    block_on(db.write(None, |broker| broker.delete_db("0000009999.00000"))).unwrap();
    index.close(db.key());
    let Some(answers) = swift("container", &file, json!([["info"], ["get_metadata"]])) else {
        return;
    };
    assert_same_info(&db, &answers[0]);
    assert_eq!(
        answers[1]["X-Container-Read"],
        json!(["", "0000009999.00000"])
    );
}

#[test]
fn pending_updates_are_merged() {
    let index = index();
    let (ours, theirs) = (index.container("c"), index.container("swift"));
    let rows = json!([
        ["a", "0000000002.00000", 5, "text/plain", "e1"],
        [
            "é\u{0}",
            "0000000003.00000",
            7,
            "text/plain",
            "e2",
            0,
            1,
            "0000000004.00000",
            null
        ],
        [
            "a",
            "0000000005.00000",
            0,
            "application/deleted",
            "noetag",
            1,
            0
        ],
        [
            "b",
            "0000000006.00000",
            9,
            "text/html",
            "e3",
            0,
            0,
            null,
            "0000000007.00000"
        ],
    ]);
    let made = prepare(&index, ours.key());
    let steps = json!([["initialize", "0000000001.00000", 0], ["put", rows]]);
    if swift("container", &made, steps).is_none() {
        return;
    }
    let pending = made.with_extension("db.pending");
    assert!(std::fs::metadata(&pending).unwrap().len() > 0);
    let copy = prepare(&index, theirs.key());
    std::fs::copy(&made, &copy).unwrap();
    std::fs::copy(&pending, copy.with_extension("db.pending")).unwrap();
    let answers = swift("container", &copy, json!([["info"], ["rows"]])).unwrap();
    assert_eq!(our_rows(&ours), rows_of(&answers[1]));
    assert_same_info(&ours, &answers[0]);
    assert!(!pending.exists());

    let account = index.account();
    let rows = json!([
        ["c", "0000000002.00000", "0", "3", "30", "0"],
        ["d", "0000000002.00000", "0", 4, 40, 1],
        ["d", "0000000002.00000", "0000000003.00000", "0", "0", 1],
    ]);
    let made = prepare(&index, account.key());
    let steps = json!([["initialize", "0000000001.00000"], ["put", rows]]);
    swift("account", &made, steps).unwrap();
    assert!(
        std::fs::metadata(made.with_extension("db.pending"))
            .unwrap()
            .len()
            > 0
    );
    let copy = prepare(&index, index.container("copy").key());
    std::fs::copy(&made, &copy).unwrap();
    std::fs::copy(
        made.with_extension("db.pending"),
        copy.with_extension("db.pending"),
    )
    .unwrap();
    let answers = swift("account", &copy, json!([["info"]])).unwrap();
    assert_same_account(&account, &answers[0]);
}

#[test]
fn accounts_are_alike() {
    let index = index();
    let (ours, theirs) = (index.account(), index.container("swift"));
    let mut dice = Dice(8);
    let rows: Vec<Value> = (0..80)
        .map(|_| {
            let delete = ["0", "0", "0000001001.00000", "0000001004.00000"];
            json!([
                dice.pick(NAMES),
                format!("{:010}.00000", 1000 + dice.roll(6)),
                dice.pick(&delete),
                dice.roll(3),
                dice.roll(50),
                u8::from(dice.roll(9) == 0),
            ])
        })
        .collect();
    let queries = queries(&mut dice, 300);
    let file = prepare(&index, theirs.key());
    let steps = json!([
        ["initialize", "0000000001.00000"],
        ["put", rows],
        ["info"],
        ["policies"],
        ["list", queries],
    ]);
    let Some(answers) = swift("account", &file, steps) else {
        return;
    };
    let merged = rows.iter().map(|row| ContainerRow {
        name: row[0].as_str().unwrap().into(),
        put_timestamp: row[1].as_str().unwrap().into(),
        delete_timestamp: row[2].as_str().unwrap().into(),
        object_count: row[3].as_i64().unwrap(),
        bytes_used: row[4].as_i64().unwrap(),
        deleted: false,
        storage_policy_index: row[5].as_i64().unwrap(),
    });
    block_on(ours.merge_items(new_account(), merged.collect())).unwrap();
    let info = block_on(ours.read(|broker| broker.info())).unwrap();
    for (mine, key) in [
        (json!(info.hash), "hash"),
        (json!(info.container_count), "container_count"),
        (json!(info.object_count), "object_count"),
        (json!(info.bytes_used), "bytes_used"),
    ] {
        assert_eq!(mine, answers[2][key], "{key}");
    }
    for stats in block_on(ours.read(|broker| broker.policy_stats())).unwrap() {
        let theirs = &answers[3][stats.storage_policy_index.to_string()];
        assert_eq!(theirs["container_count"], stats.container_count);
        assert_eq!(theirs["object_count"], stats.object_count);
        assert_eq!(theirs["bytes_used"], stats.bytes_used);
    }
    for (query, theirs) in queries.iter().zip(answers[4].as_array().unwrap()) {
        let mut plain = list_query(query);
        plain.path = None;
        let page = block_on(ours.list_containers(ListCursor::new(plain), 5000)).unwrap();
        let names: Vec<Value> = page
            .entries
            .into_iter()
            .map(|entry| match entry {
                ListEntry::Row(row) => json!([
                    row.name,
                    row.object_count,
                    row.bytes_used,
                    row.put_timestamp.internal(),
                    row.storage_policy_index,
                    0
                ]),
                ListEntry::Subdir(name) => json!([name, 0, 0, "0", -1, 1]),
            })
            .collect();
        assert_eq!(&Value::Array(names), theirs, "{query}");
    }
    // Both open the other's file.
    index.close(ours.key());
    let file = ours.key().file(index.pool.devices());
    let answers = swift(
        "account",
        &file,
        json!([["info"], ["delete", "0000009999.00000"], ["info"]]),
    );
    assert_same_account(&ours, &answers.unwrap()[2]);
}

#[test]
fn databases_of_before_policies() {
    let index = index();
    let (ours, theirs) = (index.container("c"), index.container("swift"));
    let rows = json!([
        ["a", "0000000002.00000", 5, "text/plain", "e1", 0],
        [
            "b",
            "0000000003.00000",
            0,
            "application/deleted",
            "noetag",
            1
        ],
    ]);
    let file = prepare(&index, ours.key());
    if swift("container", &file, json!([["old", rows]])).is_none() {
        return;
    }
    let copy = prepare(&index, theirs.key());
    std::fs::copy(&file, &copy).unwrap();
    let more = updates(&mut Dice(2), 10);
    let steps = json!([["merge", more], ["info"], ["rows"], ["policies"]]);
    let answers = swift("container", &copy, steps).unwrap();
    block_on(ours.merge_items(None, more.iter().map(object_row).collect())).unwrap();
    assert_eq!(our_rows(&ours), rows_of(&answers[2]));
    assert_same_info(&ours, &answers[1]);
    index.close(ours.key());
    let after = swift(
        "container",
        &file,
        json!([["info"], ["rows"], ["policies"]]),
    )
    .unwrap();
    assert_eq!(after[0], answers[1]);
    assert_eq!(after[2], answers[3]);

    let account = index.account();
    let rows = json!([
        ["c", "0000000002.00000", "0", 3, 30, 0],
        ["d", "0000000002.00000", "0", 1, 1, 0]
    ]);
    let file = prepare(&index, account.key());
    swift("account", &file, json!([["old", rows]])).unwrap();
    let copy = prepare(&index, index.container("copy").key());
    std::fs::copy(&file, &copy).unwrap();
    let put = json!([
        ["put", [["e", "0000000003.00000", "0", 2, 2, 1]]],
        ["info"],
        ["policies"]
    ]);
    let answers = swift("account", &copy, put.clone()).unwrap();
    let row = ContainerRow {
        name: "e".into(),
        put_timestamp: "0000000003.00000".into(),
        delete_timestamp: "0".into(),
        object_count: 2,
        bytes_used: 2,
        deleted: false,
        storage_policy_index: 1,
    };
    block_on(account.merge_items(None, vec![row])).unwrap();
    assert_same_account(&account, &answers[1]);
    index.close(account.key());
    let after = swift("account", &file, json!([["info"], ["policies"]])).unwrap();
    assert_eq!(after[1], answers[2]);
}
