//! A store: the index, the volumes, and the one committer that appends to them.
//!
//! Writes come as [`Change`]s, in batches. A batch is decided against the index (what is older than
//! what is there is not written), appended to the active volume in one durable write, put into the
//! index and only then answered. A write that fails poisons the store: nothing is written until it
//! was opened anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_disk::owed::{Debt, Ledger, Owed};
use cairn_types::{ObjectHash, Timestamp};
use parking_lot::{Mutex, MutexGuard};

use crate::error::{PebblesError, ReadError};
use crate::format::{FIRST_BATCH, Kind, NewRecord, RecordHeader};
use crate::index::{Grouping, Index};
use crate::medium::Medium;
use crate::object::{Entry, EntryKind, Rules};
use crate::place::Place;
use crate::read_errors::ReadErrors;
use crate::volume::{Aligned, Volume, Volumes};

pub mod checkpoint;
mod commit;
pub mod compaction;
mod heads;
pub(crate) mod quarantine;
mod read;
pub mod recovery;
use quarantine::Broken;
pub use read::Stored;
use recovery::Recovery;

/// Volumes kept for deletions and compaction when a device is full.
pub const RESERVE: usize = 2;
/// Volumes made ahead: the reserve, and one to be used next.
pub const AHEAD: usize = RESERVE + 1;
/// Volumes that the device should have room for beyond those: with less, compaction makes room while there
/// is some, and not when the first upload is refused.
pub const SPARE: usize = 4;

/// Mean of batches from which on volumes are reserved ahead, and their zeros not written.
const LARGE_BATCH_BYTES: u64 = 256 << 10;
/// Batches over which this mean runs.
const BATCHES_OF_LATE: u64 = 16;

/// How a store works.
pub struct Config {
    pub rules: Rules,
    /// How the index has objects together.
    pub grouping: Grouping,
    pub volume_bytes: u64,
    /// Tombstones are kept for so long.
    pub reclaim_age: Duration,
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Random numbers for epochs.
    pub entropy: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Bytes appended from one checkpoint to the next, at least.
    pub checkpoint_bytes: u64,
    /// Bytes of a file system, given all of it, that new volumes leave free.
    pub keep_free: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    /// Volumes of which less than this share counts are compacted.
    pub compact_below: f64,
    /// Called with the number of a file whose content counts no longer, while writes wait.
    pub external_gone: Box<dyn Fn(u64) + Send + Sync>,
    /// Kept from one opening of these volumes to the next.
    pub read_errors: Arc<ReadErrors>,
}

/// A write.
pub enum Change {
    Write(NewRecord),
    /// Ends an object, or a fragment of one, here: it was handed over, or is broken.
    Remove {
        kind: Kind,
        partition: u32,
        hash: ObjectHash,
        fragment: Option<u16>,
        expected: Expected,
        name: Bytes,
        reason: Bytes,
    },
    /// A record moved by compaction; nothing where it counts no longer at its source.
    Copy {
        source: Place,
        record: NewRecord,
    },
    /// A record that ends others, moved by compaction. A rebuild meets it behind all that was written
    /// since: what it would end then, and counts, comes behind it once more, in the same batch.
    MoveRemoval {
        source: Place,
        removal: NewRecord,
        behind: Vec<(Place, NewRecord)>,
    },
}

/// The state that a removal was decided on.
pub enum Expected {
    /// All of these and no others.
    Entries(Vec<Entry>),
    /// A record at this place.
    At(Place),
    /// Anything up to this time.
    UpTo(Timestamp),
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Written,
    /// Something newer was there, or the state was not the expected one.
    Obsolete,
}

/// Told of a write's end; with the debt of its row, where it owes one.
pub type Reply = Box<dyn FnOnce(Result<Outcome, PebblesError>, Option<Debt>) + Send>;

/// The committer's state.
pub(crate) struct Log {
    pub(crate) active: [Option<Arc<Volume>>; 2],
    /// By id: the first is used next.
    pub(crate) prepared: Vec<Arc<Volume>>,
    pub(crate) next_sequence: u64,
    /// Bytes appended since the store was opened.
    pub(crate) appended: u64,
    /// Bytes of a batch of late, as a running mean of those of [`Class::Fresh`].
    pub(crate) batch_bytes: u64,
    /// The highest id of a volume that anything was ever appended to.
    pub(crate) horizon: u64,
    /// Memory of the last batch, for the next.
    pub(crate) batch: Option<Aligned>,
}

impl Log {
    pub(crate) fn note_batch(&mut self, bytes: u64) {
        self.batch_bytes =
            (BATCHES_OF_LATE - 1) * self.batch_bytes / BATCHES_OF_LATE + bytes / BATCHES_OF_LATE;
    }

    /// Whether zeros ahead would cost more than they save: a batch into blocks that are only reserved costs
    /// a change of the file system's metadata, however long it is, and zeros cost a byte for each of its own.
    pub(crate) fn has_large_batches(&self) -> bool {
        self.batch_bytes >= LARGE_BATCH_BYTES
    }

    pub(crate) fn add_prepared(&mut self, volume: Arc<Volume>) {
        let at = self.prepared.partition_point(|v| v.id < volume.id);
        self.prepared.insert(at, volume);
    }
}

pub struct Store {
    pub(crate) config: Config,
    pub(crate) index: Index,
    pub(crate) volumes: Volumes,
    log: Mutex<Log>,
    /// The rows that records owe.
    pub(crate) ledger: Arc<Ledger>,
    is_poisoned: AtomicBool,
    pub(crate) checkpoints: Mutex<checkpoint::Written>,
}

impl Store {
    /// Opens the volumes of a folder, and reads what no checkpoint knows.
    ///
    /// # Errors
    /// `Format` for volumes of another version; `NoSpace` or `Io` if they cannot be read or mended;
    /// `Poisoned` if the end of damaged records cannot be written.
    pub fn open(
        medium: Arc<dyn Medium>,
        config: Config,
    ) -> Result<(Arc<Store>, Recovery), PebblesError> {
        let (store, report) = Self::open_as(medium, config, false)?;
        store.end_damaged(&report)?;
        Ok((store, report))
    }

    /// Opens them to be looked at: it takes no writes, as if one had failed.
    ///
    /// # Errors
    /// `Format` for volumes of another version, `Io` if they cannot be read.
    pub fn open_read_only(
        medium: Arc<dyn Medium>,
        config: Config,
    ) -> Result<(Arc<Store>, Recovery), PebblesError> {
        Self::open_as(medium, config, true)
    }

    fn open_as(
        medium: Arc<dyn Medium>,
        mut config: Config,
        is_read_only: bool,
    ) -> Result<(Arc<Store>, Recovery), PebblesError> {
        let entropy = std::mem::replace(&mut config.entropy, Box::new(|| 0));
        let keep_free = std::mem::replace(&mut config.keep_free, Box::new(|_| 0));
        let volumes = Volumes::new(medium, config.volume_bytes, entropy, keep_free);
        let index = Index::new(config.rules, config.grouping);
        let (log, written, report) = recovery::recover(&volumes, &index, &config, is_read_only)?;
        let store = Arc::new(Store {
            config,
            index,
            volumes,
            log: Mutex::new(log),
            ledger: owing(&report),
            is_poisoned: AtomicBool::new(is_read_only),
            checkpoints: Mutex::new(written),
        });
        Ok((store, report))
    }

    /// Writes down that records found damaged are gone, so that nothing older comes in their place.
    fn end_damaged(&self, report: &Recovery) -> Result<(), PebblesError> {
        let broken = report.damaged.iter().map(|damaged| Broken {
            partition: damaged.partition,
            hash: damaged.hash,
            place: damaged.place,
        });
        let ended = self.quarantine_all(&broken.collect::<Vec<_>>(), "damaged in the log");
        for ended in ended {
            match ended {
                // Until there is room, the log says so at every start.
                Ok(_) | Err(PebblesError::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes rows that are owed and that nobody has, at most so many.
    pub fn take_failed_rows(&self, most: usize) -> Vec<(Owed, Debt)> {
        self.ledger.take_failed(most)
    }

    /// Whether any row is owed.
    pub fn owes_rows(&self) -> bool {
        self.ledger.mark().is_some()
    }

    pub fn rules(&self) -> Rules {
        self.config.rules
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    pub(crate) fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Release);
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    /// The volumes, with those that are appended to.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes.all()
    }

    /// Those that are full: neither appended to nor waiting to be.
    pub fn sealed(&self) -> Vec<Arc<Volume>> {
        let log = self.log();
        let is_sealed = |volume: &Arc<Volume>| {
            let same = |of: &Arc<Volume>| of.slot == volume.slot;
            volume.used() > FIRST_BATCH
                && !log.active.iter().flatten().any(same)
                && !log.prepared.iter().any(same)
        };
        self.volumes.all().into_iter().filter(is_sealed).collect()
    }

    /// The store in numbers.
    pub fn status(&self) -> Status {
        let volumes = self.volumes.all();
        let size = self.index.size();
        let sum = |of: fn(&Arc<Volume>) -> u64| volumes.iter().map(of).sum();
        Status {
            objects: size.objects,
            memory_bytes: size.memory_bytes,
            volumes: volumes.len() as u64,
            prepared: self.log().prepared.len() as u64,
            written_bytes: sum(|volume| volume.written().all),
            live_bytes: sum(|volume| volume.live()),
            read_errors: self.config.read_errors.count(),
            is_poisoned: self.is_poisoned(),
        }
    }
}

/// A ledger with the rows that were owed when the store was last open: nobody has them.
fn owing(report: &Recovery) -> Arc<Ledger> {
    let ledger = Ledger::new();
    if let (Some(first), Some(last)) = (report.owed.first(), report.owed.last()) {
        let (first, end) = (first.number, last.number + 1);
        drop(ledger.owe(first, end, &report.owed));
    }
    ledger
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// With tombstones.
    pub objects: u64,
    pub memory_bytes: u64,
    pub volumes: u64,
    /// Made ahead and not used yet.
    pub prepared: u64,
    pub written_bytes: u64,
    pub live_bytes: u64,
    /// Reads of volumes that the disk did not answer, since the process began.
    pub read_errors: u64,
    pub is_poisoned: bool,
}

/// The entry that a record of the log makes; `None`: it ends others.
pub(crate) fn entry_of(header: &RecordHeader, body: &[u8], place: Place) -> Option<Entry> {
    let mut content_type = None;
    let kind = match (header.kind, header.fragment) {
        (Kind::Data, None) => EntryKind::Data,
        (Kind::Data, Some(index)) => EntryKind::Fragment {
            index,
            is_durable: header.is_durable,
        },
        (Kind::Meta, _) => {
            let ticks = crate::format::number(body);
            content_type = (ticks > 0).then(|| Timestamp::from_ticks(ticks));
            EntryKind::Meta
        }
        (Kind::Tombstone, _) => EntryKind::Tombstone,
        (Kind::Durable, _) => EntryKind::Durable,
        (Kind::Removed | Kind::Quarantined, _) => return None,
    };
    Some(Entry {
        kind,
        timestamp: header.timestamp,
        content_type,
        external: header.is_external.then(|| crate::format::number(body)),
        is_lasting: header.is_lasting,
        place,
    })
}

impl From<PebblesError> for ReadError {
    fn from(error: PebblesError) -> Self {
        ReadError::Io(std::io::Error::other(error))
    }
}
