//! One seed: writes, background work, faults and power cuts on a store, and what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_disk::owed::Debt;
use cairn_pebbles::format::{Class, Kind, NewRecord};
use cairn_pebbles::index::Grouping;
use cairn_pebbles::object::{Entry, EntryKind, Rules};
use cairn_pebbles::{
    Change, Config, Expected, Outcome, PebblesError, ReadError, ReadErrors, Recovery, Store, Upkeep,
};
use cairn_types::{ObjectHash, SplitMix, Timestamp};
use parking_lot::Mutex;

use crate::disk::{Fault, SimDisk};
use crate::model::{Key, Model, Write, nowhere};

const RECLAIM_SECS: u64 = 40;

pub(crate) struct World {
    dice: SplitMix,
    disk: SimDisk,
    model: Model,
    pub(super) store: Option<(Arc<Store>, Upkeep)>,
    clock: Arc<AtomicU64>,
    pub(super) keys: Vec<Key>,
    pub(super) grouping: Grouping,
    volume_bytes: u64,
    read_errors: Arc<ReadErrors>,
    has_faults: bool,
    /// Some bodies are longer than what a batch takes together.
    has_large: bool,
    /// Numbers of large bodies, and whose each is; and those that no record names any more.
    numbers: BTreeMap<u64, (Key, Timestamp)>,
    gone: Arc<Mutex<BTreeSet<u64>>>,
    /// Large bodies whose objects were quarantined: they are kept under another name.
    quarantined: BTreeSet<u64>,
    /// The store has compacted since it was opened: a volume may be used anew whose old tombstones
    /// are still leaving the index.
    may_be_leaving: bool,
    /// Rows of acknowledged records that nobody has made durable; and debts that somebody has.
    pub(super) owed: BTreeSet<(Key, Timestamp)>,
    pub(super) debts: Vec<((Key, Timestamp), Debt)>,
    is_verbose: bool,
}

pub(super) type Checked = Result<(), String>;

impl World {
    pub(crate) fn new(seed: u64, is_verbose: bool) -> Self {
        let mut dice = SplitMix::new(seed);
        let volume_bytes = 4096 * (10 + dice.number() % 40);
        let volumes = 8 + dice.number() % 30;
        let is_coded = dice.number().is_multiple_of(4);
        let keys = (0..10).map(|number| {
            let half = |dice: &mut SplitMix| u128::from(dice.number());
            let hash = (half(&mut dice) << 64) | half(&mut dice);
            (number % 3, ObjectHash(hash.to_be_bytes()))
        });
        let keys = keys.collect();
        let grouping = match dice.number() % 2 {
            0 => Grouping::ByHash,
            _ => Grouping::ByPartition,
        };
        World {
            disk: SimDisk::new(dice.number(), volumes * volume_bytes),
            model: Model {
                rules: Rules {
                    unique_fragments: is_coded.then_some(4),
                },
                reclaim_age: Duration::from_secs(RECLAIM_SECS),
                objects: Default::default(),
            },
            store: None,
            clock: Arc::new(AtomicU64::new(1_000_000)),
            keys,
            grouping,
            volume_bytes,
            read_errors: Arc::default(),
            has_faults: dice.number().is_multiple_of(3),
            has_large: dice.number().is_multiple_of(4),
            numbers: BTreeMap::new(),
            gone: Arc::default(),
            quarantined: BTreeSet::new(),
            may_be_leaving: false,
            owed: BTreeSet::new(),
            debts: Vec::new(),
            is_verbose,
            dice,
        }
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.dice.number() % n.max(1)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.clock.load(Ordering::Relaxed))
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.is_verbose {
            println!("{} {}", self.clock.load(Ordering::Relaxed), what());
        }
    }

    fn config(&mut self) -> Config {
        let clock = self.clock.clone();
        let epochs = Mutex::new(SplitMix::new(self.dice.number()));
        Config {
            rules: self.model.rules,
            grouping: self.grouping,
            volume_bytes: self.volume_bytes,
            reclaim_age: self.model.reclaim_age,
            now: Box::new(move || Timestamp::from_secs(clock.load(Ordering::Relaxed))),
            entropy: Box::new(move || epochs.lock().number()),
            // One group a step.
            checkpoint_bytes: 4096,
            compact_below: 0.7,
            external_gone: {
                let gone = self.gone.clone();
                Box::new(move |number| _ = gone.lock().insert(number))
            },
            read_errors: self.read_errors.clone(),
            keep_free: Box::new(|_| 0),
        }
    }

    fn content_of(&self, key: Key, entry: &Entry, part: u64) -> Bytes {
        let large = match self.has_large {
            true => self.volume_bytes / 4,
            false => 0,
        };
        content_of(key, entry, part, large)
    }

    fn pass(&mut self, seconds: u64) {
        let before = self.clock.fetch_add(seconds, Ordering::Relaxed);
        self.disk.give_sectors(before + seconds);
    }

    /// Opens the store, through as many power cuts as come.
    fn reopen(&mut self) -> Checked {
        self.store = None;
        self.debts.clear();
        for attempt in 0.. {
            self.disk.restart();
            if attempt < 3 && self.below(4) == 0 {
                let calls = self.below(8);
                self.disk.cut_power_in(calls);
            }
            let config = self.config();
            match Store::open(Arc::new(self.disk.clone()), config) {
                Ok((store, report)) => {
                    self.say(|| format!("open: {report:?} {:?}", store.status()));
                    self.check_report(&report)?;
                    let upkeep = Upkeep::new(store.clone());
                    self.store = Some((store, upkeep));
                    self.may_be_leaving = false;
                    self.check_owed()?;
                    break;
                }
                Err(error) if self.disk.is_off() => self.say(|| format!("open: {error}")),
                // It is tried again, and in the end the disk gives all that it has.
                Err(error) if self.disk.has_bad_sectors() => {
                    self.say(|| format!("open: {error}"));
                    if attempt > 8 {
                        self.disk.give_all_sectors();
                    }
                    let seconds = 1 + self.below(6);
                    self.pass(seconds);
                }
                Err(error) => return Err(format!("the store does not open: {error}")),
            }
        }
        self.check_all()
    }

    fn check_report(&mut self, report: &Recovery) -> Checked {
        if !self.has_faults && (report.lost > 0 || !report.damaged.is_empty()) {
            return Err(format!("nothing has rotted, and recovery says {report:?}"));
        }
        Ok(())
    }

    /// Runs the seed.
    pub(crate) fn run(&mut self) -> Checked {
        self.reopen()?;
        let steps = 60 + self.below(140);
        for _ in 0..steps {
            let seconds = 1 + self.below(3);
            self.pass(seconds);
            if self.below(9) == 0 {
                let calls = self.below(12);
                self.disk.cut_power_in(calls);
            }
            match self.below(13) {
                0..=5 => self.write()?,
                6 => self.upkeep(0)?,
                7 => self.upkeep(1)?,
                8 | 9 => self.upkeep(2)?,
                10 => self.fault()?,
                11 => self.settle_some(),
                _ => self.check_all()?,
            }
            let is_poisoned = self
                .store
                .as_ref()
                .is_none_or(|(store, _)| store.is_poisoned());
            if self.disk.is_off() || is_poisoned {
                self.say(|| "power cut".to_owned());
                self.reopen()?;
            }
        }
        self.settle()
    }

    /// Ends all faults, lets background work finish, and opens the store by the volumes alone.
    fn settle(&mut self) -> Checked {
        self.reopen()?;
        for _ in 0..60 {
            let task = self.below(3);
            self.upkeep(task)?;
        }
        self.reopen()?;
        self.say(|| "without checkpoints".to_owned());
        self.disk.remove_checkpoints();
        self.reopen()?;
        self.pass(2 * RECLAIM_SECS);
        for _ in 0..60 {
            self.upkeep(2)?;
        }
        self.disk.remove_checkpoints();
        self.reopen()
    }

    /// A step of background work, which fails only for a reason that the disk gave.
    fn upkeep(&mut self, task: u64) -> Checked {
        let Some((store, upkeep)) = &mut self.store else {
            return Ok(());
        };
        let store = store.clone();
        self.may_be_leaving |= task == 2;
        let may_fail = self.disk.is_failing() || self.disk.has_bad_sectors();
        let done = match task {
            0 => upkeep.prepare(),
            1 => upkeep.checkpoint(),
            _ => upkeep.compact(),
        };
        let waits = upkeep.take_failure();
        let hit = self.disk.take_hit();
        self.mark(hit);
        self.say(|| format!("upkeep {task}: {done:?}, {waits:?}"));
        let is_excused = may_fail || self.disk.is_off() || store.is_poisoned();
        match (done, waits) {
            (Err(error), _) if !is_excused && !matches!(error, PebblesError::NoSpace) => {
                Err(format!("upkeep {task}: {error}"))
            }
            (_, Some(error)) if !is_excused && !self.has_faults && !may_wait(&error) => {
                Err(format!("compaction: {error}"))
            }
            _ => Ok(()),
        }
    }

    fn mark(&mut self, hit: BTreeSet<ObjectHash>) {
        for ((_, hash), object) in &mut self.model.objects {
            object.is_hit |= hit.contains(hash);
        }
    }

    fn fault(&mut self) -> Checked {
        match self.below(6) {
            0 | 1 => self.disk.fault(Fault::Fails),
            2 => self.disk.fault(Fault::LostHead),
            // For a shorter time than it takes to be damage.
            3 => {
                let until = self.now().secs() + 1 + self.below(8);
                self.disk.lose_sectors(Some(until));
            }
            _ => {}
        }
        if !self.has_faults {
            return Ok(());
        }
        match self.below(5) {
            4 => self.disk.lose_sectors(None),
            3 => self.disk.rot_head(),
            0 => self.disk.rot(),
            1 => self.disk.fault(Fault::Lost),
            _ => self.disk.fault(Fault::Misdirected),
        }
        let hit = self.disk.take_hit();
        self.say(|| format!("rot hits {hit:?}"));
        self.mark(hit);
        Ok(())
    }

    fn any_time(&mut self) -> Timestamp {
        let back = match self.below(4) {
            0 => self.below(30),
            _ => 0,
        };
        Timestamp::from_secs(self.now().secs() - back)
    }

    fn new_write(&mut self) -> (Key, Change, Option<Entry>) {
        let at = self.below(self.keys.len() as u64) as usize;
        let key = self.keys[at];
        let timestamp = self.any_time();
        let is_coded = self.model.rules.unique_fragments.is_some();
        let kind = match self.below(10) {
            0..=4 => Kind::Data,
            5 | 6 => Kind::Tombstone,
            7 => Kind::Meta,
            8 if is_coded => Kind::Durable,
            _ => return (key, self.removal(key), None),
        };
        let is_data = kind == Kind::Data;
        let fragment = (is_coded && is_data).then(|| self.below(3) as u16);
        let is_durable = fragment.is_some() && self.below(2) == 0;
        let content_type = (kind == Kind::Meta && self.below(2) == 0).then_some(timestamp);
        let external = (is_data && !is_coded && self.below(6) == 0).then(|| {
            let number = 1 + self.numbers.len() as u64;
            self.numbers.insert(number, (key, timestamp));
            number
        });
        let entry = Entry {
            kind: match (kind, fragment) {
                (Kind::Data, None) => EntryKind::Data,
                (Kind::Data, Some(index)) => EntryKind::Fragment { index, is_durable },
                (Kind::Meta, _) => EntryKind::Meta,
                (Kind::Durable, _) => EntryKind::Durable,
                _ => EntryKind::Tombstone,
            },
            timestamp,
            content_type,
            external,
            is_lasting: is_data && timestamp.ticks().is_multiple_of(2),
            place: nowhere(),
        };
        let record = NewRecord {
            kind,
            partition: self.partition_of(key),
            hash: key.1,
            timestamp,
            fragment,
            is_durable,
            is_external: external.is_some(),
            owes_row: !is_coded
                && matches!(kind, Kind::Data | Kind::Tombstone)
                && external.is_none(),
            is_lasting: entry.is_lasting,
            name: name_of(key),
            metadata: self.content_of(key, &entry, 1),
            body: match kind {
                Kind::Data => self.content_of(key, &entry, 2),
                Kind::Durable => Bytes::new(),
                _ => {
                    let ticks = content_type.map_or(0, Timestamp::ticks);
                    Bytes::copy_from_slice(&ticks.to_le_bytes())
                }
            },
        };
        (key, Change::Write(record), Some(entry))
    }

    fn removal(&mut self, key: Key) -> Change {
        let entries = match &self.store {
            Some((store, _)) => store.index().get(key.0, key.1),
            None => Vec::new(),
        };
        Change::Remove {
            kind: Kind::Removed,
            partition: self.partition_of(key),
            hash: key.1,
            fragment: None,
            expected: Expected::Entries(entries),
            name: Bytes::new(),
            reason: Bytes::new(),
        }
    }

    /// A batch of writes.
    fn write(&mut self) -> Checked {
        let mut changes = Vec::new();
        let mut notes = Vec::new();
        for _ in 0..1 + self.below(5) {
            let (key, change, entry) = self.new_write();
            let write = match (&change, entry) {
                (
                    Change::Remove {
                        expected: Expected::Entries(entries),
                        ..
                    },
                    _,
                ) => {
                    let latest = entries.iter().map(|e| e.timestamp).max();
                    latest.map(|latest| Write::Remove(latest, None))
                }
                (_, entry) => entry.map(Write::Add),
            };
            changes.push(change);
            notes.push((key, write));
        }
        let Some((store, _)) = &self.store else {
            return Ok(());
        };
        let before = store.status();
        let ended = store.commit_owing(Class::Fresh, changes);
        for ((key, write), (ended, debt)) in notes.into_iter().zip(ended) {
            if let (Some(debt), Some(Write::Add(entry))) = (debt, &write) {
                self.owed.insert((key, entry.timestamp));
                self.debts.push(((key, entry.timestamp), debt));
            }
            self.say(|| format!("{:02x} {write:?}: {ended:?}", key.1.0[0]));
            let Some(write) = write else {
                continue;
            };
            match ended {
                Ok(Outcome::Written) => {
                    self.forget_rows(key, &write);
                    self.model.note(key, write, true);
                }
                // Something newer was there before the batch.
                Ok(Outcome::Obsolete) => {}
                Err(PebblesError::NoSpace) => {
                    let is_upload = matches!(
                        write,
                        Write::Add(Entry {
                            kind: EntryKind::Data | EntryKind::Fragment { .. } | EntryKind::Meta,
                            ..
                        })
                    );
                    if !is_upload && before.prepared > 0 {
                        return Err(format!("{write:?} had no space, with {before:?}"));
                    }
                }
                Err(_) => self.model.note(key, write, false),
            }
        }
        let hit = self.disk.take_hit();
        self.mark(hit);
        Ok(())
    }

    /// All objects are what they should be, and can be read.
    fn check_all(&mut self) -> Checked {
        let Some((store, _)) = &self.store else {
            return Ok(());
        };
        let store = store.clone();
        if self.disk.is_off() {
            return Ok(());
        }
        self.disk.take_fault();
        let now = self.now();
        for key in self.keys.clone() {
            for entry in store.index().get(key.0, key.1) {
                self.read(&store, key, entry)?;
                if self.disk.is_off() || store.is_poisoned() {
                    return Ok(());
                }
            }
            let entries = store.index().get(key.0, key.1);
            let checked = self.model.check(key, &entries, now);
            checked.map_err(|error| format!("{:02x}: {error}", key.1.0[0]))?;
        }
        for number in &self.quarantined {
            let name = format!("quarantined-{number:016x}");
            if !self.disk.has(&name) {
                return Err(format!("{name} was kept, and is gone"));
            }
        }
        self.check_partitions(&store)
    }

    fn read(&mut self, store: &Arc<Store>, key: Key, entry: Entry) -> Checked {
        let (partition, hash) = (self.partition_of(key), key.1);
        match store.read(partition, hash, entry.place) {
            Ok(stored) => {
                let is_data = entry.is_content();
                let is_right = stored.name == name_of(key)
                    && stored.metadata == self.content_of(key, &entry, 1)
                    && (!is_data || stored.body == self.content_of(key, &entry, 2));
                match is_right {
                    true => self.check_external(key, &entry),
                    false => Err(format!("{entry:?} reads as {:?}", stored.header)),
                }
            }
            Err(ReadError::Damaged(_)) if self.is_hit(key) => {
                let is_failing = self.disk.is_failing();
                let ended = store.quarantine(partition, hash, entry.place, "found damaged");
                self.say(|| format!("quarantine {entry:?}: {ended:?}"));
                if matches!(ended, Ok(Outcome::Written)) && !is_failing {
                    self.quarantined.extend(entry.external);
                }
                Ok(())
            }
            Err(ReadError::Gone) if self.is_hit(key) || self.may_go(&entry) => Ok(()),
            Err(ReadError::Unreadable(_)) if self.is_hit(key) || self.disk.has_passing_errors() => {
                Ok(())
            }
            Err(_) if self.disk.is_off() => Ok(()),
            Err(error) => {
                let hash = hash.hex();
                Err(format!("{hash}: {entry:?} cannot be read: {error}"))
            }
        }
    }

    /// Whether an entry may be on its way out of the index, its record gone with its volume. A store
    /// that has just been opened has none of these.
    fn may_go(&self, entry: &Entry) -> bool {
        let age = self.now().secs().saturating_sub(entry.timestamp.secs());
        self.may_be_leaving && entry.kind != EntryKind::Data && age > RECLAIM_SECS
    }

    /// A large body that an entry names is its own, and is there still.
    fn check_external(&self, key: Key, entry: &Entry) -> Checked {
        let Some(number) = entry.external else {
            return Ok(());
        };
        let is_its = self.numbers.get(&number) == Some(&(key, entry.timestamp));
        match is_its && !self.gone.lock().contains(&number) || self.is_hit(key) {
            true => Ok(()),
            false => Err(format!("{entry:?} names a body that went, or is another's")),
        }
    }

    pub(super) fn is_hit(&self, key: Key) -> bool {
        self.model
            .objects
            .get(&key)
            .is_some_and(|object| object.is_hit)
    }
}

/// Whether a volume is rightly left for later: there is no room, its objects are being written, or the
/// disk may yet give it.
fn may_wait(error: &PebblesError) -> bool {
    use PebblesError::{Busy, Io, NoSpace};
    match error {
        NoSpace | Busy => true,
        Io { source, .. } => source.to_string().contains("cannot be read"),
        _ => false,
    }
}

fn name_of(key: Key) -> Bytes {
    Bytes::from(format!("/a/c/{}", key.1.hex()))
}

/// Bytes that follow from which record it is. `large`: bytes of a body that a batch does not take beside
/// another; 0: none.
fn content_of(key: Key, entry: &Entry, part: u64, large: u64) -> Bytes {
    if part == 2
        && let Some(number) = entry.external
    {
        return Bytes::copy_from_slice(&number.to_le_bytes());
    }
    let fragment = entry.fragment().map_or(0, u64::from);
    let kind = match entry.kind {
        EntryKind::Data | EntryKind::Fragment { .. } => 1,
        EntryKind::Meta => 2,
        EntryKind::Tombstone => 3,
        EntryKind::Durable => 4,
    };
    let seed = entry.timestamp.ticks() * 1000 + fragment * 100 + kind * 10 + part;
    let mut dice = SplitMix::new(seed ^ u64::from(key.1.0[3]) << 50);
    let len = match (part, dice.number() % 8) {
        (1, n) => 10 * n,
        (_, 0) => 0,
        (2, 2) if large > 0 => large + dice.number() % (large / 3),
        (_, 1) => 8000 + dice.number() % 4000,
        (_, _) => dice.number() % 3000,
    };
    (0..len).map(|_| dice.number() as u8).collect()
}
