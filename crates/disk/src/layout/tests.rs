//! Tables after upstream's tests of the same choice, and properties of any choice.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn choose(names: &[&str]) -> OnDiskFiles {
    choose_files(names.iter().filter_map(|n| FileEntry::parse(n)))
}

fn name(entry: &Option<FileEntry>) -> Option<&str> {
    entry.as_ref().map(|e| e.name.as_str())
}

#[test]
fn names() {
    let parse = |n: &str| FileEntry::parse(n).map(|e| (e.kind, e.timestamp.internal()));
    let t = || "1402444821.43589".to_owned();
    for (text, kind) in [
        ("1402444821.43589.data", FileKind::Data),
        ("1402444821.43589.ts", FileKind::Tombstone),
        ("1402444821.43589.meta", FileKind::Meta),
        ("1402444821.43589+1a.meta", FileKind::Meta),
        ("1402444821.43589-1a.meta", FileKind::Meta),
        ("1402444821.43589.durable", FileKind::Durable),
        ("1402444821.43589.junk", FileKind::Other),
        (
            "1402444821.43589#2.data",
            FileKind::Fragment {
                index: 2,
                is_durable: false,
            },
        ),
        (
            "1402444821.43589#13#d.data",
            FileKind::Fragment {
                index: 13,
                is_durable: true,
            },
        ),
    ] {
        assert_eq!(parse(text), Some((kind, t())), "{text}");
    }
    for text in [
        "",
        ".",
        ".data",
        "x.data",
        "1402444821.43589",
        "1402444821.43589#x.data",
        "1402444821.43589+1a.data",
        ".1402444821.43589.data.Xy095a",
        "hashes.pkl",
    ] {
        assert_eq!(parse(text), None, "{text:?}");
    }
    let t1: Timestamp = "1402444821.43589".parse().unwrap();
    assert_eq!(meta_name(t1, None), "1402444821.43589.meta");
    assert_eq!(meta_name(t1, Some(t1)), "1402444821.43589+0.meta");
    let delta = FileEntry::parse("1402444821.43589+a.meta").unwrap();
    assert_eq!(delta.content_type_timestamp, Some(t1.plus_ticks(10)));
}

#[test]
fn paths() {
    let hash = ObjectHash::from_hex("06fbf0b514e5199dfc4e00f42eb5ea83").unwrap();
    assert_eq!(
        hash_dir(PolicyIndex(0), 7, hash),
        "objects/7/a83/06fbf0b514e5199dfc4e00f42eb5ea83"
    );
    assert_eq!(partition_dir(PolicyIndex(2), 7), "objects-2/7");
}

/// Names of a directory's files, and which of them are data, metadata, content type and tombstone; those
/// that are obsolete.
type Choice = (
    &'static [&'static str],
    Option<&'static str>,
    Option<&'static str>,
    Option<&'static str>,
    Option<&'static str>,
    &'static [&'static str],
);

/// As OpenStack Swift's diskfile chooses.
const CHOICES: &[Choice] = &[
    (&[], None, None, None, None, &[]),
    (&["9.data"], Some("9.data"), None, None, None, &[]),
    (&["9.ts"], None, None, None, Some("9.ts"), &[]),
    (&["9.ts", "8.ts"], None, None, None, Some("9.ts"), &["8.ts"]),
    (
        &["9.ts", "8.data", "7.meta"],
        None,
        None,
        None,
        Some("9.ts"),
        &["8.data", "7.meta"],
    ),
    (
        &["9.ts", "9.data"],
        None,
        None,
        None,
        Some("9.ts"),
        &["9.data"],
    ),
    (
        &["9.data", "8.ts", "8.data", "7.data"],
        Some("9.data"),
        None,
        None,
        None,
        &["8.ts", "8.data", "7.data"],
    ),
    (
        &["9.meta", "8.data", "7.meta"],
        Some("8.data"),
        Some("9.meta"),
        None,
        None,
        &["7.meta"],
    ),
    (
        &["9.data", "9.meta"],
        Some("9.data"),
        None,
        None,
        None,
        &["9.meta"],
    ),
    (&["9.meta"], None, None, None, None, &[]),
    // The newer metadata has the older content type: both are kept.
    (
        &["9+0.meta", "8+20.meta", "7.data"],
        Some("7.data"),
        Some("9+0.meta"),
        Some("9+0.meta"),
        None,
        &["8+20.meta"],
    ),
    (
        &["9-30d40.meta", "8+0.meta", "7.data"],
        Some("7.data"),
        Some("9-30d40.meta"),
        Some("8+0.meta"),
        None,
        &[],
    ),
    // One time, two content types: the newer is kept.
    (
        &["9+0.meta", "9-1.meta", "7.data"],
        Some("7.data"),
        Some("9+0.meta"),
        Some("9+0.meta"),
        None,
        &["9-1.meta"],
    ),
    (
        &["9.meta", "9+5.meta", "7.data"],
        Some("7.data"),
        Some("9+5.meta"),
        Some("9+5.meta"),
        None,
        &["9.meta"],
    ),
    // Others' files: a stray durable goes with what it was for, fragments stay.
    (
        &["9.data", "8.durable", "9.junk"],
        Some("9.data"),
        None,
        None,
        None,
        &["8.durable", "9.junk"],
    ),
    (
        &["9#1#d.data", "8#2.data", "hello"],
        None,
        None,
        None,
        None,
        &[],
    ),
];

#[test]
fn chosen_as_upstream() {
    for (files, data, meta, content_type, tombstone, obsolete) in CHOICES {
        let chosen = choose(files);
        assert_eq!(name(&chosen.data), *data, "{files:?}");
        assert_eq!(name(&chosen.meta), *meta, "{files:?}");
        assert_eq!(name(&chosen.content_type), *content_type, "{files:?}");
        assert_eq!(name(&chosen.tombstone), *tombstone, "{files:?}");
        let mut names: Vec<_> = chosen.obsolete.iter().map(|e| e.name.as_str()).collect();
        let mut expected = obsolete.to_vec();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{files:?}");
    }
}

#[test]
fn metadata_without_data_waits_for_the_reclaim_age() {
    let chosen = choose(&["9.meta", "8.ts"]);
    assert_eq!(name(&chosen.tombstone), Some("8.ts"));
    assert_eq!(chosen.reclaimable.len(), 1);
    assert!(chosen.obsolete.is_empty());
}

proptest! {
    #[test]
    fn any_names(names in proptest::collection::btree_set(
        "([1-9]|[1-9][+-][0-9a-f]{1,5}|[1-9]_[0-9a-f]{1,3}|[1-9]#[0-9](#d)?|.{0,5})\
         \\.(data|meta|ts|durable|overflow|x)", 0..8)) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let chosen = choose(&names);
        // Data or tombstone, never both; metadata only with data.
        prop_assert!(chosen.data.is_none() || chosen.tombstone.is_none());
        prop_assert!(chosen.meta.is_none() || chosen.data.is_some());
        if let (Some(data), Some(meta)) = (&chosen.data, &chosen.meta) {
            prop_assert!(meta.timestamp > data.timestamp);
        }
        // Nothing chosen is obsolete, and removing what is obsolete changes no choice.
        let kept = [&chosen.data, &chosen.meta, &chosen.content_type, &chosen.tombstone];
        for entry in kept.into_iter().flatten() {
            prop_assert!(!chosen.obsolete.contains(entry));
        }
    }

    #[test]
    fn any_bytes_parse_or_not(name in ".{0,40}") {
        let _ = FileEntry::parse(&name);
    }
}
