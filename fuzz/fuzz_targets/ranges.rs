//! The headers that select parts of an object: Range, If-Match and its kin.
#![no_main]

use cairn_formats::conditional::{Conditions, parse_date};
use cairn_formats::range::{Selection, select};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &str, Option<&str>)| {
    let (length, header, other) = input;
    let ranges = match select(Some(header), length) {
        Selection::Whole | Selection::Unsatisfiable => Vec::new(),
        Selection::One(range) => vec![range],
        Selection::Several(ranges) => ranges,
    };
    for range in ranges {
        assert!(range.start < range.end && range.end <= length, "{range:?} of {length}");
    }
    let conditions = Conditions {
        if_match: Some(header),
        if_none_match: other,
        if_modified_since: Some(header),
        if_unmodified_since: other,
    };
    let _ = conditions.check(Some("d41d8cd98f00b204e9800998ecf8427e"), Some(length));
    let _ = conditions.check_missing();
    let _ = parse_date(header);
});
