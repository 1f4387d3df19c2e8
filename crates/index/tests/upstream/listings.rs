//! Listings, page by page, beside those of Swift's broker.

use cairn_index::{ContainerDb, ListCursor, ListEntry, ListQuery};
use serde_json::{Value, json};

use crate::support::swift::swift;
use crate::support::{self, block_on, index, new_container};
use crate::{Dice, NAMES};

pub(crate) fn queries(dice: &mut Dice, count: usize) -> Vec<Value> {
    let some = [
        "",
        "",
        "a",
        "a/",
        "b/x",
        "é",
        "c--",
        "photos",
        "photos/",
        "photos/x/",
        "z",
    ];
    (0..count)
        .map(|_| {
            let path =
                (dice.roll(4) == 0).then(|| dice.pick(&["", "a", "photos", "photos/x", "b/"]));
            json!({
                "limit": 1 + dice.roll(12),
                "marker": dice.pick(&some),
                "end_marker": dice.pick(&some),
                "prefix": dice.pick(&["", "", "a", "a/", "photos/", "é/", "b"]),
                "delimiter": dice.pick(&["", "/", "/", "--", "//", "x"]),
                "path": path,
                "reverse": dice.roll(3) == 0,
                "allow_reserved": dice.roll(3) == 0,
            })
        })
        .collect()
}

pub(crate) fn list_query(query: &Value) -> ListQuery {
    let text = |key: &str| query[key].as_str().unwrap_or("").to_owned();
    ListQuery {
        limit: query["limit"].as_u64().unwrap() as usize,
        marker: text("marker"),
        end_marker: text("end_marker"),
        prefix: text("prefix"),
        delimiter: text("delimiter"),
        path: query["path"].as_str().map(str::to_owned),
        reverse: query["reverse"] == true,
        allow_reserved: query["allow_reserved"] == true,
        storage_policy_index: 0,
    }
}

/// Names and sizes of a listing taken page by page.
fn our_listing(db: &ContainerDb, query: &Value, page_rows: usize) -> Vec<Value> {
    let mut listing = Vec::new();
    let mut next = Some(ListCursor::new(list_query(query)));
    while let Some(cursor) = next {
        let page = block_on(db.list_objects(cursor, page_rows)).unwrap();
        listing.extend(page.entries.into_iter().map(|entry| match entry {
            ListEntry::Row(row) => {
                json!([
                    row.name,
                    row.modified.internal(),
                    row.size,
                    row.content_type,
                    row.etag
                ])
            }
            ListEntry::Subdir(name) => json!([name, "0", 0, null, ""]),
        }));
        next = page.next;
    }
    listing
}

#[test]
fn listings_are_alike() {
    let index = index();
    let db = index.container("c");
    let rows = NAMES.iter().enumerate();
    let rows = rows
        .map(|(i, name)| support::object(name, 10 + i as u64, i as i64))
        .collect();
    block_on(db.merge_items(new_container("c"), rows)).unwrap();
    let file = db.key().file(index.pool.devices());
    let queries = queries(&mut Dice(3), 600);
    index.close(db.key());
    let Some(answers) = swift("container", &file, json!([["list", queries]])) else {
        return;
    };
    for (query, theirs) in queries.iter().zip(answers[0].as_array().unwrap()) {
        for page_rows in [1, 3, 1000] {
            let ours = Value::Array(our_listing(&db, query, page_rows));
            assert_eq!(&ours, theirs, "{query}, {page_rows} rows a page");
        }
    }
}
