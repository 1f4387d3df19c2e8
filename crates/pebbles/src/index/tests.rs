#![allow(clippy::unwrap_used)]

use cairn_types::SplitMix;

use super::*;

const RULES: Rules = Rules {
    unique_fragments: None,
};

fn any_hash(dice: &mut SplitMix) -> ObjectHash {
    let number = (u128::from(dice.number()) << 64) | u128::from(dice.number());
    ObjectHash(number.to_be_bytes())
}

fn data(ticks: u64, offset: u64) -> Entry {
    Entry {
        kind: EntryKind::Data,
        timestamp: Timestamp::from_ticks(ticks),
        content_type: None,
        external: None,
        is_lasting: ticks.is_multiple_of(2),
        place: Place {
            slot: 1,
            offset,
            len: 4416,
        },
    }
}

#[test]
fn objects_are_in_the_order_of_suffixes() {
    let index = Index::new(RULES, Grouping::ByPartition);
    let mut dice = SplitMix::new(1);
    let mut hashes: Vec<_> = (0..5000).map(|_| any_hash(&mut dice)).collect();
    for (number, hash) in hashes.iter().enumerate() {
        let mut entry = data(number as u64, 4096);
        if number % 7 == 0 {
            entry.timestamp = entry.timestamp.with_offset(1);
        }
        index.update(3, *hash, |entries| RULES.apply(entries, entry));
    }
    hashes.sort_by_key(|hash| (hash.suffix(), *hash));
    let part = Part::new(3, None);
    let found: Vec<_> = index
        .objects(part)
        .into_iter()
        .map(|(hash, _)| hash)
        .collect();
    assert_eq!(found, hashes);
    assert_eq!(index.size().objects, 5000);
    let suffix = hashes[2000].suffix();
    let number = u16::from_str_radix(&suffix, 16).unwrap();
    assert_eq!(suffix_of(hashes[2000]), number);
    let of_it: Vec<_> = hashes
        .iter()
        .filter(|h| h.suffix() == suffix)
        .copied()
        .collect();
    let found = index.suffix_objects(part, number);
    assert_eq!(
        found.iter().map(|(hash, _)| *hash).collect::<Vec<_>>(),
        of_it
    );
    index.suffix_objects(part, 0xfff);
    for hash in hashes {
        index.update(3, hash, |entries| entries.clear());
    }
    assert!(index.partitions(None).is_empty() && index.size().objects == 0);
}

#[test]
fn entries_come_back_as_they_were() {
    let index = Index::new(RULES, Grouping::ByPartition);
    let hash = ObjectHash([9; 16]);
    let mut entry = data(77, 128_000);
    entry.external = Some(7);
    index.update(1, hash, |entries| entries.push(entry));
    assert_eq!(index.get(1, hash), [entry]);
    entry.kind = EntryKind::Tombstone;
    entry.external = None;
    index.update(1, hash, |entries| *entries = vec![entry]);
    assert_eq!(index.get(1, hash), [entry]);
    assert_eq!(index.get(2, hash), []);
}

/// Every object is in its partition alone, and in the order of suffixes there, by any part power.
#[test]
fn partitions_follow_from_hashes() {
    let index = Index::new(RULES, Grouping::ByHash);
    let mut dice = SplitMix::new(3);
    let mut hashes: Vec<_> = (0..3000).map(|_| any_hash(&mut dice)).collect();
    hashes.extend([ObjectHash([0; 16]), ObjectHash([0xff; 16])]);
    for (number, hash) in hashes.iter().enumerate() {
        let mut entry = data(number as u64, 4096);
        entry.external = (number % 7 == 0).then_some(1);
        index.update(number as u32, *hash, |entries| RULES.apply(entries, entry));
    }
    for power in [
        0,
        1,
        5,
        GROUP_BITS - 1,
        GROUP_BITS,
        GROUP_BITS + 1,
        20,
        31,
        32,
    ] {
        let of_hash = |hash: &ObjectHash| hash.partition(32 - power);
        let mut expected: BTreeMap<u32, Vec<ObjectHash>> = BTreeMap::new();
        for hash in &hashes {
            expected.entry(of_hash(hash)).or_default().push(*hash);
        }
        let listed = index.partitions(Some(power));
        assert_eq!(listed, expected.keys().copied().collect::<Vec<_>>());
        for (partition, mut expected) in expected {
            let part = Part::new(partition, Some(power));
            expected.sort_by_key(|hash| (hash.suffix(), *hash));
            let hashes_of = |objects: Vec<(ObjectHash, Vec<Entry>)>| -> Vec<_> {
                objects.into_iter().map(|(hash, _)| hash).collect()
            };
            assert_eq!(hashes_of(index.objects(part)), expected, "{part:?}");
            let suffix = suffix_of(expected[0]);
            expected.retain(|hash| suffix_of(*hash) == suffix);
            assert_eq!(hashes_of(index.suffix_objects(part, suffix)), expected);
            assert!(!index.is_empty(part));
        }
        // Nothing is in these, though their groups have something.
        let first = of_hash(&hashes[0]);
        let beside = (power > GROUP_BITS).then_some(first ^ 1);
        if let Some(partition) = beside.filter(|of| !listed.contains(of)) {
            let part = Part::new(partition, Some(power));
            assert!(index.objects(part).is_empty() && index.is_empty(part));
        }
        // No ring of that part power has these.
        for partition in [1_u64 << power, u64::from(u32::MAX)] {
            let Some(partition) = u32::try_from(partition).ok().filter(|_| power < 32) else {
                continue;
            };
            let part = Part::new(partition, Some(power));
            assert!(index.objects(part).is_empty() && index.is_empty(part));
        }
    }
    let (first, anywhere) = (hashes[0], [0, 77, u32::MAX]);
    let found = anywhere.map(|partition| index.get(partition, first));
    assert!(found.iter().all(|entries| *entries == found[0]) && !found[0].is_empty());
}

/// A partition of which nothing is left is not listed: a replicator would take it for one to be handed over.
#[test]
fn nothing_is_loaded_of_a_group_whose_volumes_are_used_anew() {
    for grouping in [Grouping::ByHash, Grouping::ByPartition] {
        let index = Index::new(RULES, grouping);
        index.load(3, Loaded::default());
        let mut gone = Loaded::default();
        gone.lists.push((ObjectHash([0; 16]), Vec::new()));
        index.load(4, gone);
        assert!(index.partitions(Some(5)).is_empty() && index.groups().is_empty());
    }
}

/// Changes are known, each object once, until there are too many; from the next taking on they are again.
#[test]
fn changed_objects_are_known_until_they_are_too_many() {
    let index = Index::new(RULES, Grouping::ByPartition);
    let mut dice = SplitMix::new(5);
    let change = |group, hash| index.update(group, hash, |e| RULES.apply(e, data(1, 4096)));
    let hashes: Vec<_> = (0..3).map(|_| any_hash(&mut dice)).collect();
    for _ in 0..CHANGED_MAX {
        hashes.iter().for_each(|hash| _ = change(7, *hash));
    }
    let mut expected: Vec<_> = hashes.iter().map(|hash| (7, *hash)).collect();
    expected.sort_unstable();
    assert!(!index.has_forgotten_changes());
    assert_eq!(index.take_changed(), Some(expected));
    assert_eq!(index.take_changed(), Some(Vec::new()));
    (0..CHANGED_MAX).for_each(|_| _ = change(7, any_hash(&mut dice)));
    assert!(!index.has_forgotten_changes());
    change(7, any_hash(&mut dice));
    assert!(index.has_forgotten_changes());
    assert_eq!(index.take_changed(), None);
    change(7, hashes[0]);
    assert_eq!(index.take_changed(), Some(vec![(7, hashes[0])]));
}

/// A million objects of one record each, put in at random, cost at most 60 bytes each.
#[test]
fn memory_of_an_object() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    };
    const OBJECTS: u64 = 1_000_000;
    let mut dice = SplitMix::new(2);
    // Other tests of the process take memory, too: one of three has little of theirs. All are kept, so that none has
    // what another gave back.
    let mut kept = Vec::new();
    let each = (0..3).map(|_| {
        let index = Index::new(RULES, Grouping::ByHash);
        let before = resident();
        for number in 0..OBJECTS {
            let hash = any_hash(&mut dice);
            index.update(number as u32 % 256, hash, |e| {
                RULES.apply(e, data(number, 4096))
            });
            // As checkpoints do.
            if number % 10_000 == 0 {
                index.take_changed();
            }
        }
        let each = resident().saturating_sub(before) / OBJECTS;
        let estimated = index.size().memory_bytes / OBJECTS;
        println!("{each} bytes an object, estimated {estimated}");
        kept.push(index);
        each
    });
    let least = each.min();
    assert!(least.is_some_and(|each| each <= 60), "{least:?} bytes");
}
