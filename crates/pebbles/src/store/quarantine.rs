//! Quarantine: an object ends here, and what is left of its bytes is kept in a file.
//!
//! That file is durable before the record which ends the object is written, and before the writers'
//! lock is taken: a power cut in between leaves one too many.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use cairn_types::ObjectHash;

use super::{Change, Expected, Outcome, Store};
use crate::error::PebblesError;
use crate::format::{Class, Kind};
use crate::medium::{Medium, MediumFile};
use crate::object::Entry;
use crate::place::Place;

/// Records that are quarantined together: with one sync, and one batch.
const TOGETHER_MAX: usize = 32;
/// Names that are tried for what is kept of a record.
const NAMES_MAX: u32 = 1000;

/// A record that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) partition: u32,
    pub(crate) hash: ObjectHash,
    pub(crate) place: Place,
}

type Ended = Result<Outcome, PebblesError>;

/// The folder of bodies that are files.
pub(crate) const LARGE: &str = "large";

/// A copy of a record, or a second name of a large body, not yet synced.
struct Aside {
    name: String,
    /// The copy.
    file: Option<Arc<dyn MediumFile>>,
}

/// The name of a large body in its folder.
pub(crate) fn large_name(number: u64) -> String {
    format!("{number:016x}")
}

/// Gives a large body a second name, under which it is kept when no object has it. Durable after
/// [`Medium::sync_dir`].
pub(crate) fn keep_large(medium: &dyn Medium, number: u64) -> io::Result<String> {
    let name = large_name(number);
    let kept = format!("quarantined-{name}");
    medium.link(&format!("{LARGE}/{name}"), &kept)?;
    Ok(kept)
}

impl Store {
    /// Ends an object, or the fragment of it, whose record at `place` is damaged.
    ///
    /// # Errors
    /// `NoSpace` on a full device, `TooLarge` for too long a reason, `Poisoned` if this write
    /// failed or one before.
    pub fn quarantine(
        &self,
        partition: u32,
        hash: ObjectHash,
        place: Place,
        reason: &str,
    ) -> Result<Outcome, PebblesError> {
        let broken = Broken {
            partition,
            hash,
            place,
        };
        let ended = self.quarantine_all(&[broken], reason).pop();
        ended.unwrap_or(Ok(Outcome::Obsolete))
    }

    /// As `quarantine`, of many; gives how each ended, in no order.
    pub(crate) fn quarantine_all(&self, broken: &[Broken], reason: &str) -> Vec<Ended> {
        let mut ended = Vec::with_capacity(broken.len());
        let mut left = broken.to_vec();
        while !left.is_empty() {
            // The first record of an object may end the others with it.
            let mut objects = HashSet::new();
            let (together, later) = left.into_iter().partition::<Vec<_>, _>(|one| {
                objects.len() < TOGETHER_MAX
                    && objects.insert((self.index.group_of(one.partition, one.hash), one.hash))
            });
            self.quarantine_together(&together, reason, &mut ended);
            left = later;
        }
        ended
    }

    /// Ends records of different objects.
    fn quarantine_together(&self, broken: &[Broken], reason: &str, ended: &mut Vec<Ended>) {
        let (mut changes, mut objects) = (Vec::new(), Vec::new());
        let mut asides = Vec::new();
        for one in broken {
            let entries = self.index.get(one.partition, one.hash);
            let Some(entry) = entries.iter().find(|entry| entry.place == one.place) else {
                ended.push(Ok(Outcome::Obsolete));
                continue;
            };
            let content = entries.iter().filter(|entry| entry.is_content());
            // Other fragments are sound.
            let fragment = entry.fragment().filter(|_| content.count() > 1);
            changes.push(Change::Remove {
                kind: Kind::Quarantined,
                partition: one.partition,
                hash: one.hash,
                fragment,
                expected: Expected::At(one.place),
                name: Bytes::new(),
                reason: Bytes::copy_from_slice(reason.as_bytes()),
            });
            let goes = |e: &&Entry| fragment.is_none() || e.place == one.place;
            let copied = self.copy_aside(one.hash, entries.iter().filter(goes));
            let names = copied.iter().map(|aside| aside.name.clone());
            objects.push((one, names.collect::<Vec<_>>()));
            asides.extend(copied);
        }
        if !self.sync_aside(asides) {
            objects.iter_mut().for_each(|(_, names)| names.clear());
        }
        let outcomes = self.commit(Class::Fresh, changes);
        for ((one, names), outcome) in objects.into_iter().zip(outcomes) {
            match &outcome {
                Ok(Outcome::Written) => {
                    let (partition, hash) = (one.partition, one.hash.hex());
                    tracing::warn!(partition, hash, reason, "quarantined a record");
                }
                Ok(Outcome::Obsolete) => self.drop_aside(&names),
                Err(error) if error.is_refusal() => self.drop_aside(&names),
                // It may be on disk all the same, and is then found by the next opening.
                Err(_) => {}
            }
            ended.push(outcome);
        }
    }

    /// Copies records that are about to be quarantined to files of their own; gives their names.
    /// Without room for that they are ended all the same.
    pub(crate) fn keep_aside<'a>(
        &self,
        hash: ObjectHash,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Vec<String> {
        let asides = self.copy_aside(hash, entries);
        let names = asides.iter().map(|aside| aside.name.clone()).collect();
        match self.sync_aside(asides) {
            true => names,
            false => Vec::new(),
        }
    }

    fn copy_aside<'a>(
        &self,
        hash: ObjectHash,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Vec<Aside> {
        let mut asides = Vec::new();
        for entry in entries {
            match self.copy_one_aside(hash, entry) {
                Ok(aside) => asides.extend(aside),
                Err(error) => {
                    let hash = hash.hex();
                    tracing::warn!(hash, %error, "a quarantined record is not kept");
                }
            }
            let Some(number) = entry.external else {
                continue;
            };
            match keep_large(self.volumes.medium(), number) {
                Ok(name) => asides.push(Aside { name, file: None }),
                // That it is gone may be the reason.
                Err(error) => tracing::warn!(number, %error, "quarantined content is not kept"),
            }
        }
        asides
    }

    /// Copies a record; `None`: its volume is gone.
    fn copy_one_aside(&self, hash: ObjectHash, entry: &Entry) -> io::Result<Option<Aside>> {
        let place = entry.place;
        let Some(volume) = self.volumes.get(place.slot) else {
            return Ok(None);
        };
        let len = place.len as usize;
        let bytes = volume.read_past_damage(place.offset, len, |_, _| Ok(()))?;
        let name = format!("quarantined-{}-{}", hash.hex(), entry.timestamp.internal());
        let (name, file) = self.create_new(&name)?;
        if let Err(error) = file.write_at(0, &bytes) {
            self.drop_aside(&[name]);
            return Err(error);
        }
        Ok(Some(Aside {
            name,
            file: Some(file),
        }))
    }

    /// Makes a file of a name that nothing has: this one, or with a number behind it.
    fn create_new(&self, name: &str) -> io::Result<(String, Arc<dyn MediumFile>)> {
        let medium = self.volumes.medium();
        for number in 0..NAMES_MAX {
            let name = match number {
                0 => name.to_owned(),
                number => format!("{name}.{number}"),
            };
            match medium.create_new(&name) {
                Ok(file) => return Ok((name, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Syncs copies; false where they are not kept.
    fn sync_aside(&self, asides: Vec<Aside>) -> bool {
        let medium = self.volumes.medium();
        let files: Vec<_> = asides
            .iter()
            .filter_map(|aside| aside.file.as_ref())
            .collect();
        let synced = match files[..] {
            _ if asides.is_empty() => Ok(()),
            [] => medium.sync_dir(),
            [file] => file.sync().and_then(|()| medium.sync_dir()),
            _ => medium.sync_files(),
        };
        if let Err(error) = &synced {
            tracing::warn!(%error, "quarantined records are not kept");
            let names: Vec<String> = asides.into_iter().map(|aside| aside.name).collect();
            self.drop_aside(&names);
        }
        synced.is_ok()
    }

    /// Removes them where nothing was quarantined.
    pub(crate) fn drop_aside(&self, names: &[String]) {
        for name in names {
            let _ = self.volumes.medium().remove(name);
        }
    }
}
