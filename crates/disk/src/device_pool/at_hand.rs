//! Durable operations that are begun by those who ask for them.

use std::time::Instant;

use cairn_device::{Class, Kind};
use futures_channel::oneshot;

use super::steps::{self, Step};
use super::{Device, Disk, Run};
use crate::error::DiskError;

impl Device {
    /// As [`Device::commit`], but where `look` finds what `work` needs to know, the first step is taken by the
    /// caller: an engine with a thread of its own for writes needs none of the lane's to hand one over, which
    /// costs as much as the write. Neither may wait for a disk then.
    pub fn commit_at_hand<T, K, F>(&self, look: impl FnOnce(&Disk) -> Option<K>, work: F) -> Run<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk, Option<K>) -> Result<Step<T>, DiskError> + Send + 'static,
    {
        let commits = &self.lanes.commits;
        let may_be = self.class == Class::Client && self.state.config.machine.is_none();
        let disk = match may_be && !commits.is_closed() {
            true => self.state.writable_disk().ok(),
            false => None,
        };
        let found = disk.and_then(|disk| look(&disk).map(|known| (disk, known)));
        let Some((disk, known)) = found else {
            return self.commit(|disk| work(disk, None));
        };
        let begun = Instant::now();
        let (sender, receiver) = oneshot::channel();
        let share = self.lanes.share.clone();
        let ended = move || share.client_done(Kind::Commit, begun, Instant::now());
        if let Some(rest) = steps::Run::begun(work(&disk, Some(known)), &disk, sender, ended) {
            commits.push_rest(Box::new(rest));
        }
        Run {
            refused: None,
            receiver,
            device: self.state.clone(),
        }
    }
}
