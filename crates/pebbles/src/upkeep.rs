//! Background work of a store, in steps: volumes made ahead, checkpoints, compaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::PebblesError;
use crate::store::checkpoint::Writer;
use crate::store::compaction::{Compaction, Room};
use crate::store::{AHEAD, SPARE, Store};
use crate::volume::Volume;

/// Seconds after which a checkpoint, or the compaction of a volume, is tried again that failed; each
/// further failure doubles them.
const RETRY_SECS: u64 = 10;
const RETRY_DOUBLINGS: u32 = 6;

/// The background work of one store.
pub struct Upkeep {
    store: Arc<Store>,
    checkpoint: Option<Writer>,
    compaction: Option<Compaction>,
    checkpoint_failed: Option<Failed>,
    /// Volumes that could not be compacted, by id.
    failed: BTreeMap<u64, Failed>,
    /// The reason that the last one could not.
    failure: Option<PebblesError>,
    /// There was no room to move records to. Until then none is looked for, unless some was freed.
    full_until: u64,
    /// Whether the device has no room for more volumes than those ahead, as it was when so many bytes had been
    /// appended to the log: an idle store is not asked again, which would open its folder.
    is_short: Option<(u64, bool)>,
}

/// Work that failed, and waits.
#[derive(Clone, Copy)]
struct Failed {
    times: u32,
    /// In seconds.
    until: u64,
}

impl Failed {
    fn again(before: Option<Failed>, now: u64) -> Failed {
        let times = before.map_or(0, |failed| failed.times);
        Failed {
            times: times + 1,
            until: now + (RETRY_SECS << times.min(RETRY_DOUBLINGS)),
        }
    }
}

/// A kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Prepare,
    Checkpoint,
    Compact,
}

impl Upkeep {
    pub fn new(store: Arc<Store>) -> Self {
        Upkeep {
            store,
            checkpoint: None,
            compaction: None,
            checkpoint_failed: None,
            failed: BTreeMap::new(),
            failure: None,
            full_until: 0,
            is_short: None,
        }
    }

    /// The reason that a volume could not be compacted, once.
    pub fn take_failure(&mut self) -> Option<PebblesError> {
        self.failure.take()
    }

    /// Whether anything was written that the last checkpoint does not say.
    pub fn has_written(&self) -> bool {
        let written = *self.store.checkpoints.lock();
        let appended = self.store.log().appended;
        written.generation == 0 || appended > written.appended
    }

    fn now(&self) -> u64 {
        (self.store.config.now)().secs()
    }

    /// One step of whatever is due; `None`: nothing is.
    ///
    /// # Errors
    /// Those of [`Upkeep::prepare`], [`Upkeep::checkpoint`] and [`Upkeep::compact`], if none of the
    /// three went on.
    pub fn step(&mut self) -> Result<Option<Task>, PebblesError> {
        if self.store.is_poisoned() {
            self.checkpoint = None;
            self.compaction = None;
            return Ok(None);
        }
        // A task that fails holds up no other.
        let mut failed = None;
        match self.prepare() {
            Ok(true) => return Ok(Some(Task::Prepare)),
            Ok(false) => {}
            Err(error) => failed = Some(error),
        }
        let now = self.now();
        let is_waiting = self.checkpoint_failed.is_some_and(|f| now < f.until);
        if (self.checkpoint.is_some() || self.is_checkpoint_due()) && !is_waiting {
            match self.checkpoint() {
                Ok(true) => return Ok(Some(Task::Checkpoint)),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        match (self.compact(), failed) {
            (Ok(true), None) => Ok(Some(Task::Compact)),
            (Ok(true), Some(error)) => {
                tracing::warn!(%error, "background work of volumes");
                Ok(Some(Task::Compact))
            }
            (Ok(false), Some(error)) | (Err(error), _) => Err(error),
            (Ok(false), None) => Ok(None),
        }
    }

    /// Makes a volume ahead; false where there are enough, or there is no room.
    ///
    /// # Errors
    /// `Io` if a volume cannot be made, written or removed; `NoSpace` if its zeros have no room.
    pub fn prepare(&mut self) -> Result<bool, PebblesError> {
        if let Some(volume) = self.take_unwritten() {
            // Out of the committer's reach meanwhile.
            if let Err(error) = volume.write_ahead() {
                // Zeros that the kernel may still write have no place below records.
                self.store.volumes.remove(&volume)?;
                return Err(PebblesError::of_io("write volume ahead", error));
            }
            self.store.log().add_prepared(volume);
            return Ok(true);
        }
        if self.store.log().prepared.len() >= AHEAD {
            return Ok(false);
        }
        let is_written = !self.store.log().has_large_batches();
        match self.store.volumes.make(is_written) {
            Ok(volume) => {
                self.store.log().add_prepared(volume);
                Ok(true)
            }
            Err(PebblesError::NoSpace) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A volume whose zeros are not written, as it was made in haste or while batches were large; `None` also
    /// where they are large still, or few volumes are ready.
    fn take_unwritten(&self) -> Option<Arc<Volume>> {
        let mut log = self.store.log();
        if log.has_large_batches() {
            return None;
        }
        let at = log
            .prepared
            .iter()
            .rposition(|volume| !volume.is_written())?;
        (log.prepared.len() >= AHEAD).then(|| log.prepared.remove(at))
    }

    fn is_checkpoint_due(&self) -> bool {
        let written = *self.store.checkpoints.lock();
        let since = self.store.log().appended.saturating_sub(written.appended);
        // Writing all of it costs less than was written since.
        let least = match written.generation > 0 && self.store.index.has_forgotten_changes() {
            true => 2 * written.whole_bytes,
            false => 0,
        };
        since >= self.store.config.checkpoint_bytes.max(least)
    }

    /// Whether a checkpoint costs less than what was written since the last one: changes do, and all of a
    /// small store.
    pub fn is_checkpoint_worth_it(&self) -> bool {
        let written = *self.store.checkpoints.lock();
        let since = self.store.log().appended.saturating_sub(written.appended);
        let are_changes = written.takes_changes() && !self.store.index.has_forgotten_changes();
        are_changes || written.generation == 0 || since >= 2 * written.whole_bytes
    }

    /// Goes on with a checkpoint, or begins one; false when it has been completed.
    ///
    /// # Errors
    /// `NoSpace` or `Io` if it cannot be written or synced. It is discarded, and tried again later.
    pub fn checkpoint(&mut self) -> Result<bool, PebblesError> {
        match self.step_checkpoint() {
            Ok(true) => Ok(true),
            Ok(false) => {
                self.checkpoint_failed = None;
                Ok(false)
            }
            Err(error) => {
                self.checkpoint_failed = Some(Failed::again(self.checkpoint_failed, self.now()));
                Err(PebblesError::of_io("write checkpoint", error))
            }
        }
    }

    fn step_checkpoint(&mut self) -> std::io::Result<bool> {
        let mut writer = match self.checkpoint.take() {
            Some(writer) => writer,
            None => Writer::begin(&self.store)?,
        };
        let is_whole = writer.step()?;
        if !is_whole {
            self.checkpoint = Some(writer);
        }
        Ok(!is_whole)
    }

    fn is_short(&mut self) -> Result<bool, PebblesError> {
        let appended = self.store.log().appended;
        match self.is_short {
            Some((then, is_short)) if then == appended => Ok(is_short),
            _ => {
                let is_short = !self.store.volumes.has_space_for(SPARE)?;
                self.is_short = Some((appended, is_short));
                Ok(is_short)
            }
        }
    }

    /// Goes on with a compaction, or begins one; false where nothing is worth it. A volume that
    /// cannot be compacted now waits, and another one is next.
    ///
    /// # Errors
    /// Those of a step that poisons the store, and `Io` if the free space is not known. Others are
    /// left for [`Upkeep::take_failure`].
    pub fn compact(&mut self) -> Result<bool, PebblesError> {
        let compaction = match self.compaction.take() {
            Some(compaction) => Some(compaction),
            None => {
                let prepared = self.store.log().prepared.len();
                let now = self.now();
                let is_full = prepared == 0 && now < self.full_until;
                let room = if is_full && !self.store.volumes.has_space_for(1)? {
                    Room::Used
                } else if prepared < AHEAD || self.is_short()? {
                    Room::Short
                } else {
                    Room::Enough
                };
                let is_left = |id: u64| self.failed.get(&id).is_some_and(|f| now < f.until);
                Compaction::pick(&self.store, room, is_left)
            }
        };
        let Some(mut compaction) = compaction else {
            return Ok(false);
        };
        let id = compaction.source();
        match compaction.step() {
            Ok(true) => drop(self.failed.remove(&id)),
            Ok(false) => self.compaction = Some(compaction),
            Err(error) if self.store.is_poisoned() => return Err(error),
            Err(error) => {
                tracing::warn!(volume = id, %error, "a volume is not compacted now");
                let failed = Failed::again(self.failed.get(&id).copied(), self.now());
                let ids: Vec<u64> = self.store.volumes().iter().map(|v| v.id).collect();
                self.failed.retain(|id, _| ids.contains(id));
                if matches!(error, PebblesError::NoSpace) {
                    // Records of another volume would have no more room.
                    self.full_until = failed.until;
                }
                self.failed.insert(id, failed);
                self.failure = Some(error);
            }
        }
        Ok(true)
    }
}
