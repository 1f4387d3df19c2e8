//! Background work of a store, in steps: volumes made ahead, checkpoints, compaction.

use std::sync::Arc;

use crate::error::PebblesError;
use crate::store::checkpoint::Writer;
use crate::store::compaction::Compaction;
use crate::store::{AHEAD, Store};
use crate::volume::Volume;

/// The background work of one store.
pub struct Upkeep {
    store: Arc<Store>,
    checkpoint: Option<Writer>,
    compaction: Option<Compaction>,
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
        }
    }

    /// One step of whatever is due; `None`: nothing is.
    pub fn step(&mut self) -> Result<Option<Task>, PebblesError> {
        if self.store.is_poisoned() {
            self.checkpoint = None;
            self.compaction = None;
            return Ok(None);
        }
        if self.prepare()? {
            return Ok(Some(Task::Prepare));
        }
        if (self.checkpoint.is_some() || self.is_checkpoint_due()) && self.checkpoint()? {
            return Ok(Some(Task::Checkpoint));
        }
        match self.compact()? {
            true => Ok(Some(Task::Compact)),
            false => Ok(None),
        }
    }

    /// Makes a volume ahead; false where there are enough, or there is no room.
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
        match self.store.volumes.make(true) {
            Ok(volume) => {
                self.store.log().add_prepared(volume);
                Ok(true)
            }
            Err(PebblesError::NoSpace) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A volume made in haste whose zeros are not written; `None` also where few are ready.
    fn take_unwritten(&self) -> Option<Arc<Volume>> {
        let mut log = self.store.log();
        let at = log
            .prepared
            .iter()
            .rposition(|volume| !volume.is_written())?;
        (log.prepared.len() >= AHEAD).then(|| log.prepared.remove(at))
    }

    fn is_checkpoint_due(&self) -> bool {
        let written = *self.store.checkpoints.lock();
        let since = self.store.log().appended.saturating_sub(written.appended);
        // Writing it costs less than was written since.
        since >= self.store.config.checkpoint_bytes.max(2 * written.bytes)
    }

    /// Goes on with a checkpoint, or begins one; false when it has been completed.
    pub fn checkpoint(&mut self) -> Result<bool, PebblesError> {
        let error = |source| PebblesError::of_io("write checkpoint", source);
        let mut writer = match self.checkpoint.take() {
            Some(writer) => writer,
            None => Writer::begin(&self.store).map_err(error)?,
        };
        let is_whole = writer.step().map_err(error)?;
        if !is_whole {
            self.checkpoint = Some(writer);
        }
        Ok(!is_whole)
    }

    /// Goes on with a compaction, or begins one; false where nothing is worth it.
    pub fn compact(&mut self) -> Result<bool, PebblesError> {
        let compaction = match self.compaction.take() {
            Some(compaction) => Some(compaction),
            None => {
                let is_full = self.store.log().prepared.len() < AHEAD;
                Compaction::pick(&self.store, is_full)
            }
        };
        let Some(mut compaction) = compaction else {
            return Ok(false);
        };
        if !compaction.step()? {
            self.compaction = Some(compaction);
        }
        Ok(true)
    }
}
