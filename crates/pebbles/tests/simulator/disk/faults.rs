//! Rot, and sectors that the disk does not give.

use super::{Bad, SECTOR, SimDisk};

impl SimDisk {
    /// Rots some bytes of a volume's head: its copy makes up for that.
    pub(crate) fn rot_head(&self) {
        let mut inner = self.0.lock();
        let named = inner.names.iter();
        let volumes = named.filter(|(name, _)| name.starts_with("volume"));
        let volumes: Vec<usize> = volumes.map(|(_, file)| *file).collect();
        if volumes.is_empty() {
            return;
        }
        let file = volumes[inner.below(volumes.len() as u64) as usize];
        let (from, flip) = (inner.below(64) as usize, 1 + inner.below(255) as u8);
        let to = from + 1 + inner.below(20) as usize;
        let file = &mut inner.files[file];
        for bytes in [&mut file.now, &mut file.durable] {
            let bytes = bytes.get_mut(from..to).unwrap_or_default();
            bytes.iter_mut().for_each(|byte| *byte ^= flip);
        }
    }

    /// Rots some bytes of a batch somewhere.
    pub(crate) fn rot(&self) {
        let mut inner = self.0.lock();
        let Some((file, offset, len)) = inner.any_batch() else {
            return;
        };
        let at = (offset + inner.below(len)) as usize;
        let many = 1 + inner.below(600) as usize;
        let end = (at + many).min((offset + len) as usize);
        let hit = inner.hashes_at(file, offset, len);
        inner.hit.extend(hit);
        for byte in at..end {
            let flip = 1 + inner.below(255) as u8;
            for bytes in [true, false] {
                let file = &mut inner.files[file];
                let bytes = if bytes {
                    &mut file.now
                } else {
                    &mut file.durable
                };
                if let Some(byte) = bytes.get_mut(byte) {
                    *byte ^= flip;
                }
            }
        }
    }

    /// Lets the disk give some sectors of a batch no more: until a second, or for good. That is damage,
    /// as rot is.
    pub(crate) fn lose_sectors(&self, until: Option<u64>) {
        let mut inner = self.0.lock();
        let Some((file, offset, len)) = inner.any_batch() else {
            return;
        };
        let is_it =
            |of: &(usize, u64, u64)| of.0 == file && of.1 < offset + len && offset < of.1 + of.2;
        if until.is_some() && inner.was_bad.iter().any(is_it) {
            return;
        }
        inner.was_bad.push((file, offset, len));
        let at = (offset + inner.below(len)) / SECTOR as u64 * SECTOR as u64;
        let len = (SECTOR as u64 * (1 + inner.below(12))).min(offset + len - at);
        if until.is_none() {
            let hit = inner.hashes_at(file, at, len);
            inner.hit.extend(hit);
        }
        inner.bad.push(Bad {
            file,
            offset: at,
            len,
            until,
        });
    }

    /// Gives sectors again whose time has come.
    pub(crate) fn give_sectors(&self, now: u64) {
        let mut inner = self.0.lock();
        inner
            .bad
            .retain(|bad| bad.until.is_none_or(|until| now < until));
    }

    /// Gives all of them again.
    pub(crate) fn give_all_sectors(&self) {
        self.0.lock().bad.clear();
    }

    pub(crate) fn has_bad_sectors(&self) -> bool {
        !self.0.lock().bad.is_empty()
    }

    /// Whether some are bad that will be given again.
    pub(crate) fn has_passing_errors(&self) -> bool {
        self.0.lock().bad.iter().any(|bad| bad.until.is_some())
    }
}
