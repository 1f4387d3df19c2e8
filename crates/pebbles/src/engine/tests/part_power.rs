//! Rings whose partitions double: objects stay where they are, and are found by the numbers of both part powers.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const POWER: u32 = 8;
const OBJECTS: u64 = 200;

/// A ring whose part power the test says.
struct Ring {
    power: Arc<AtomicU32>,
    setup: Setup,
}

impl Ring {
    fn new(is_coded: bool) -> Self {
        let mut ring = Ring {
            power: Arc::new(AtomicU32::new(POWER)),
            setup: Setup::new(is_coded),
        };
        ring.setup.engine = ring.engine();
        ring
    }

    /// The engine of a new process.
    fn engine(&self) -> PebblesEngine {
        let power = self.power.clone();
        let of_ring: PartPowers = Arc::new(move |_| Some(power.load(Ordering::Acquire)));
        engine(&self.setup.policies).with_part_powers(of_ring)
    }

    fn increase(&self) {
        self.power.fetch_add(1, Ordering::AcqRel);
    }

    fn restart(&mut self, is_crash: bool) {
        if !is_crash {
            self.setup.engine.shutdown();
        }
        // A crash writes no checkpoint.
        if let Some(opened) = self.setup.engine.inner.stores.opened("d", AT.policy) {
            opened.folder.retire();
        }
        self.setup.engine = self.engine();
    }

    /// All objects of all partitions that are listed, each in its own.
    fn listed(&self) -> Vec<ObjectHash> {
        let (engine, disk) = (&self.setup.engine, &self.setup.disk);
        let power = self.power.load(Ordering::Acquire);
        let mut all = Vec::new();
        for partition in engine.partitions(disk, AT.policy).unwrap() {
            let at = PartitionKey::new(AT.policy, partition);
            let objects = engine.objects(disk, at).unwrap();
            assert!(objects.iter().all(|o| o.partition(32 - power) == partition));
            all.extend(objects);
        }
        all.sort_unstable();
        all
    }
}

/// An object's key, of a ring with that part power.
fn key_at(name: &str, power: u32) -> ObjectKey {
    let key = key(name);
    ObjectKey {
        partition: key.hash.partition(32 - power),
        ..key
    }
}

fn name(number: u64) -> String {
    format!("o-{number}")
}

fn delete(engine: &PebblesEngine, disk: &Disk, key: &ObjectKey, seconds: u64) {
    let at = Timestamp::from_secs(seconds);
    let step = engine.delete(disk, key, at, None);
    step.unwrap().finish(disk).unwrap();
}

/// Puts, POSTs and deletes by the numbers of either ring, before the increase and after it, with restarts and
/// crashes between any two.
#[test]
fn objects_are_found_by_the_numbers_of_both() {
    let mut ring = Ring::new(false);
    for number in 0..OBJECTS {
        let key = key_at(&name(number), POWER);
        put(&ring.setup.engine, &ring.setup.disk, &key, 1_000_000, b"1");
    }
    let powers = |ring: &Ring| [POWER, POWER + 1, ring.power.load(Ordering::Acquire)];
    for turn in 0..6u64 {
        match turn {
            2 => ring.increase(),
            other => ring.restart(other % 2 == 1),
        }
        let (engine, disk) = (&ring.setup.engine, &ring.setup.disk);
        for number in 0..OBJECTS {
            let say = powers(&ring)[(number + turn) as usize % 3];
            let key = key_at(&name(number), say);
            let seconds = 1_000_001 + turn;
            match number % 4 {
                0 => put(engine, disk, &key, seconds, b"2"),
                1 if turn == 3 => delete(engine, disk, &key, seconds),
                2 => {
                    let post = engine.write_metadata(disk, &key, post(seconds, None));
                    post.unwrap().finish(disk).unwrap();
                }
                _ => {}
            }
        }
        ring.restart(turn == 4);
        for number in 0..OBJECTS {
            for power in powers(&ring) {
                let key = key_at(&name(number), power);
                let open = ring.setup.open(&key);
                if number % 4 == 1 && turn >= 3 {
                    assert!(matches!(open, Err(DiskError::Deleted { .. })), "{number}");
                    continue;
                }
                let (info, body) = open.unwrap();
                assert_eq!(body.unwrap(), if number % 4 == 0 { "2" } else { "1" });
                let color = info.metadata.get_str("X-Object-Meta-Color");
                let posted = (1_000_001 + turn).to_string();
                assert_eq!(color, (number % 4 == 2).then_some(&*posted));
            }
        }
        // Tombstones are older than the reclaim age.
        let is_listed = |n: &u64| turn < 3 || n % 4 != 1;
        let all = (0..OBJECTS).filter(is_listed);
        let mut all: Vec<_> = all.map(|n| key(&name(n)).hash).collect();
        all.sort_unstable();
        assert_eq!(ring.listed(), all, "turn {turn}");
    }
}

/// A replica that is as old as the ring and one that was made after the increase compare equal.
#[test]
fn suffixes_hash_as_those_of_a_new_device() {
    let (old, new) = (Ring::new(false), Ring::new(false));
    for number in 0..OBJECTS {
        let key = key_at(&name(number), POWER);
        put(&old.setup.engine, &old.setup.disk, &key, 1_000_000, b"1");
    }
    old.increase();
    new.increase();
    for number in 0..OBJECTS {
        let key = key_at(&name(number), POWER + 1);
        put(&new.setup.engine, &new.setup.disk, &key, 1_000_000, b"1");
    }
    let partitions = |ring: &Ring| ring.setup.engine.partitions(&ring.setup.disk, AT.policy);
    let all = partitions(&old).unwrap();
    assert!(all.iter().any(|partition| *partition >= 1 << POWER));
    assert_eq!(all, partitions(&new).unwrap());
    for partition in all {
        let at = PartitionKey::new(AT.policy, partition);
        let hashes = |ring: &Ring| {
            let hashed = ring
                .setup
                .engine
                .suffix_hashes(&ring.setup.disk, at, &[], false);
            hashed.unwrap().hashes
        };
        assert_eq!(hashes(&old), hashes(&new));
        for suffix in hashes(&old).keys() {
            let choice = FragmentChoice::default();
            let offers = |ring: &Ring| {
                let offers = ring
                    .setup
                    .engine
                    .offers(&ring.setup.disk, at, suffix, &choice);
                offers.unwrap()
            };
            assert!(!offers(&old).is_empty());
            assert_eq!(offers(&old), offers(&new));
        }
    }
}

/// Objects handed over by the new numbers are gone by the old ones too, and stay gone when the log is read
/// again.
#[test]
fn what_is_handed_over_by_the_new_number_is_gone_by_the_old() {
    let mut ring = Ring::new(false);
    let keys: Vec<_> = (0..OBJECTS).map(|n| key_at(&name(n), POWER)).collect();
    for key in &keys {
        put(&ring.setup.engine, &ring.setup.disk, key, 1_000_000, b"1");
    }
    ring.increase();
    let (engine, disk) = (&ring.setup.engine, &ring.setup.disk);
    let mut removed = 0;
    for partition in engine.partitions(disk, AT.policy).unwrap() {
        let at = PartitionKey::new(AT.policy, partition);
        assert!(!engine.remove_partition(disk, at).unwrap());
        let contents = engine.contents(disk, at).unwrap();
        removed += engine
            .remove(disk, at, &contents, None, &HashSet::new())
            .unwrap();
        assert!(engine.remove_partition(disk, at).unwrap());
    }
    assert_eq!(removed as u64, OBJECTS);
    for is_crash in [true, false] {
        for key in &keys {
            assert!(matches!(ring.setup.open(key), Err(DiskError::NotExist)));
        }
        assert!(ring.listed().is_empty());
        ring.restart(is_crash);
    }
}

/// Fragments of one object that came before the increase and after it are one object's.
#[test]
fn fragments_of_both_are_together() {
    let mut ring = Ring::new(true);
    let (before, after) = (key_at("o", POWER), key_at("o", POWER + 1));
    put_fragment(&ring.setup.engine, &ring.setup.disk, &before, 1_000_000, 1);
    ring.increase();
    put_fragment(&ring.setup.engine, &ring.setup.disk, &after, 1_000_000, 2);
    let at = Timestamp::from_secs(1_000_000);
    for fragment in [1, 2] {
        let (engine, disk) = (&ring.setup.engine, &ring.setup.disk);
        let step = engine.make_durable(disk, &after, at, fragment);
        step.unwrap().finish(disk).unwrap();
        ring.restart(true);
    }
    for key in [&before, &after] {
        let opened = ring.setup.engine.store(&ring.setup.disk, AT.policy);
        let opened = opened.unwrap();
        let entries = opened.store().index().get(key.partition, key.hash);
        let fragments = entries.iter().filter_map(|entry| entry.fragment());
        assert_eq!(fragments.collect::<Vec<_>>(), [1, 2]);
    }
}

/// Volumes whose checkpoint has the partitions of an older ring, as those of earlier releases.
#[test]
fn a_checkpoint_by_partitions_is_taken() {
    let mut ring = Ring::new(false);
    let by_partition = engine(&ring.setup.policies);
    for number in 0..OBJECTS {
        let key = key_at(&name(number), POWER);
        put(&by_partition, &ring.setup.disk, &key, 1_000_000, b"1");
    }
    by_partition.shutdown();
    ring.increase();
    ring.restart(false);
    assert_eq!(ring.listed().len() as u64, OBJECTS);
    for number in 0..OBJECTS {
        let key = key_at(&name(number), POWER + 1);
        assert_eq!(ring.setup.open(&key).unwrap().1.unwrap(), "1");
    }
}

/// A replicator that lists a partition of the old ring, and removes what it has sent when the new one is there,
/// takes nothing of which the other nodes were asked by another number.
#[test]
fn what_left_its_partition_meanwhile_is_not_removed() {
    let ring = Ring::new(false);
    let (engine, disk) = (&ring.setup.engine, &ring.setup.disk);
    for number in 0..OBJECTS {
        put(engine, disk, &key_at(&name(number), POWER), 1_000_000, b"1");
    }
    let listed: Vec<_> = engine.partitions(disk, AT.policy).unwrap();
    let listed = listed.into_iter().map(|partition| {
        let at = PartitionKey::new(AT.policy, partition);
        (at, engine.contents(disk, at).unwrap())
    });
    let listed: Vec<_> = listed.collect();
    ring.increase();
    let mut removed = 0;
    for (at, contents) in &listed {
        let done = engine.remove(disk, *at, contents, None, &HashSet::new());
        removed += done.unwrap();
    }
    let left = ring.listed();
    assert_eq!(removed + left.len(), OBJECTS as usize);
    let has_left = |number: &u64| {
        let of = |power| key_at(&name(*number), power).partition;
        of(POWER) != of(POWER + 1)
    };
    assert_eq!(left.len(), (0..OBJECTS).filter(has_left).count());
}
