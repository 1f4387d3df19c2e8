//! Ranges in JSON as other servers write them, and values that only resemble them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::*;

const TIMES: [&str; 4] = ["timestamp", "meta_timestamp", "state_timestamp", "epoch"];

fn any_field() -> impl Strategy<Value = (&'static str, Value)> {
    let names = vec![
        "name",
        "lower",
        "upper",
        "object_count",
        "bytes_used",
        "deleted",
        "state",
        "reported",
        "tombstones",
        "timestamp",
        "meta_timestamp",
        "state_timestamp",
        "epoch",
    ];
    let values = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        2 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        4 => (-20..=80i64).prop_map(Value::from),
        1 => "[-+0-9._a-z/ ]{0,20}|.{0,9}".prop_map(Value::from),
        1 => Just(json!([])),
    ];
    (select(names), values)
}

/// A range as another server would send it, in each form that a field may have.
fn range() -> impl Strategy<Value = ShardRange> {
    let time = || (0..9_999_999_999u64).prop_map(|second| Timestamp::from_secs(second).normal());
    let bounds = ("[a-z\u{e9}]{0,3}", "[a-z\u{e9}]{0,3}");
    let times = (time(), time(), time(), proptest::option::of(time()));
    let counts = (0..=COUNT_MAX, 0..=COUNT_MAX, -1..i64::MAX);
    let flags = (0..=1i64, 0..=1i64, select(State::ALL.to_vec()));
    (".[^/]{0,9}", bounds, times, counts, flags).prop_map(|(name, bounds, times, counts, flags)| {
        let (lower, upper) = match bounds {
            (a, b) if b.is_empty() || a <= b => (a, b),
            (a, b) => (b, a),
        };
        ShardRange {
            name: format!("a{}/c", name.replace('/', "_")),
            timestamp: times.0,
            lower,
            upper,
            object_count: counts.0,
            bytes_used: counts.1,
            meta_timestamp: times.1,
            deleted: flags.0,
            state: flags.2 as i64,
            state_timestamp: times.2,
            epoch: times.3,
            reported: flags.1,
            tombstones: counts.2,
        }
    })
}

proptest! {
    // Fields and forms are many.
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_range_is_read_as_it_was_written(range in range(), spoken: bool) {
        let mut written = serde_json::to_value(&range).unwrap();
        if spoken {
            // Names of states, numbers as text, flags as truth: other forms of the same.
            written["state"] = json!(range.state_text().to_uppercase());
            written["object_count"] = json!(range.object_count.to_string());
            written["deleted"] = json!(range.is_deleted());
        }
        prop_assert_eq!(ShardRange::from_json(&written), Ok(range));
    }

    #[test]
    fn a_range_without_one_of_its_fields_is_refused(range in range(), (field, _) in any_field()) {
        let mut written = serde_json::to_value(&range).unwrap();
        written.as_object_mut().unwrap().remove(field);
        let read = ShardRange::from_json(&written);
        match field {
            "reported" => prop_assert_eq!(read, Ok(ShardRange { reported: 0, ..range })),
            "tombstones" => prop_assert_eq!(read, Ok(ShardRange { tombstones: -1, ..range })),
            _ => prop_assert_eq!(read.map_err(|bad| bad.field), Err(field)),
        }
    }

    #[test]
    fn any_value_is_a_range_or_refused(range in range(), changed in vec(any_field(), 1..3), other in any_field()) {
        prop_assert!(ShardRange::from_json(&other.1).is_err());
        let mut written = serde_json::to_value(&range).unwrap();
        for (field, value) in changed {
            written[field] = value;
        }
        if let Ok(read) = ShardRange::from_json(&written) {
            prop_assert!(read.lower() <= read.upper() && read.state().is_some());
            for count in [read.object_count, read.bytes_used] {
                prop_assert!((0..=COUNT_MAX).contains(&count));
            }
            prop_assert!(matches!((read.deleted, read.reported), (0 | 1, 0 | 1)));
            let (account, container) = read.place();
            prop_assert!(!account.is_empty() && !container.is_empty() && !container.contains('/'));
            let again = serde_json::to_value(&read).unwrap();
            for time in TIMES.iter().filter_map(|field| again[*field].as_str()) {
                // Compared as text.
                prop_assert_eq!(&Timestamp::parse(time).unwrap().normal(), time);
            }
            prop_assert_eq!(ShardRange::from_json(&again), Ok(read));
        }
    }
}
