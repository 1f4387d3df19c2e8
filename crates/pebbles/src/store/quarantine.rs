//! Quarantine: an object ends here, and what is left of its bytes is kept in a file.

use std::io;

use bytes::Bytes;
use cairn_types::ObjectHash;

use super::heads::free_name;
use super::{Change, Expected, Outcome, Store};
use crate::error::PebblesError;
use crate::format::{Class, Kind};
use crate::object::Entry;
use crate::place::Place;

impl Store {
    /// Ends an object, or the fragment of it, whose record at `place` is damaged.
    pub fn quarantine(
        &self,
        partition: u32,
        hash: ObjectHash,
        place: Place,
        reason: &str,
    ) -> Result<Outcome, PebblesError> {
        let entries = self.index.get(partition, hash);
        let Some(entry) = entries.iter().find(|entry| entry.place == place) else {
            return Ok(Outcome::Obsolete);
        };
        let content = entries.iter().filter(|entry| entry.is_content());
        // Other fragments are sound.
        let fragment = entry.fragment().filter(|_| content.count() > 1);
        let change = Change::Remove {
            kind: Kind::Quarantined,
            partition,
            hash,
            fragment,
            expected: Expected::At(place),
            name: Bytes::new(),
            reason: Bytes::copy_from_slice(reason.as_bytes()),
        };
        let goes = |e: &&Entry| fragment.is_none() || e.place == place;
        let kept = self.keep_aside(hash, entries.iter().filter(goes));
        let ended = self.commit(Class::Fresh, vec![change]).pop();
        let outcome = ended.unwrap_or(Ok(Outcome::Obsolete));
        match &outcome {
            Ok(Outcome::Written) => {
                tracing::warn!(partition, hash = hash.hex(), reason, "quarantined a record");
            }
            Ok(Outcome::Obsolete) => self.drop_aside(&kept),
            Err(error) if error.is_refusal() => self.drop_aside(&kept),
            // It may be on disk all the same, and is then found by the next opening.
            Err(_) => {}
        }
        outcome
    }
    /// Copies records that are about to be quarantined to files of their own; gives their names.
    /// Without room for that they are ended all the same.
    pub(crate) fn keep_aside<'a>(
        &self,
        hash: ObjectHash,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Vec<String> {
        let keep = |entry: &Entry| -> io::Result<Option<String>> {
            let place = entry.place;
            let Some(volume) = self.volumes.get(place.slot) else {
                return Ok(None);
            };
            let len = place.len as usize;
            let bytes = volume.read_past_damage(place.offset, len, |_, _| Ok(()))?;
            let medium = self.volumes.medium();
            let name = format!("quarantined-{}-{}", hash.hex(), entry.timestamp.internal());
            let name = free_name(medium, &name)?;
            let file = medium.create(&name, 0)?;
            let written = file.write_at(0, &bytes).and_then(|()| file.sync());
            if let Err(error) = written.and_then(|()| medium.sync_dir()) {
                let _ = medium.remove(&name);
                return Err(error);
            }
            Ok(Some(name))
        };
        let mut names = Vec::new();
        for entry in entries {
            match keep(entry) {
                Ok(name) => names.extend(name),
                Err(error) => {
                    let hash = hash.hex();
                    tracing::warn!(hash, %error, "a quarantined record is not kept");
                }
            }
        }
        names
    }

    /// Removes them where nothing was quarantined.
    pub(crate) fn drop_aside(&self, names: &[String]) {
        for name in names {
            let _ = self.volumes.medium().remove(name);
        }
    }
}
