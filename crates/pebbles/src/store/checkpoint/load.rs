//! Finding the checkpoint that a start goes on from, and filling the index from it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_disk::owed::Owed;
use cairn_types::ObjectHash;

use super::parse::{self, Changes, Chunk, ParseError};
use super::{Position, Written, file_name};
use crate::index::{Index, Loaded, order_of};
use crate::medium::{Medium, MediumFile};
use crate::object::Entry;
use crate::volume::Volumes;

/// Rows of changes from which on they are put into the index.
const TOGETHER: usize = 1 << 18;

/// A checkpoint that was found whole.
pub(crate) struct Found {
    file: Arc<dyn MediumFile>,
    pub(crate) written: Written,
    /// Those of the whole, and of each of the changes that were added.
    positions: Vec<Position>,
    /// The last one.
    pub(crate) position: Position,
    /// Rows that were owed of what that covers.
    pub(crate) owed: Vec<Owed>,
}

/// The newest checkpoint that is whole. The other one is read only where that one is not.
pub(crate) fn newest(medium: &dyn Medium) -> Option<Found> {
    let files = [0, 1].map(|generation| medium.open(&file_name(generation)).ok());
    let mut files: Vec<_> = files.into_iter().flatten().collect();
    files.sort_by_key(|file| Reverse(parse::generation_of(&**file).unwrap_or(0)));
    files.iter().find_map(|file| match check(file) {
        Ok(found) => Some(found),
        Err(error) => {
            tracing::info!(%error, "a checkpoint is not whole");
            None
        }
    })
}

fn check(file: &Arc<dyn MediumFile>) -> Result<Found, ParseError> {
    let mut positions = Vec::new();
    let (mut volumes, mut owing, mut owed) = (Vec::new(), Vec::new(), Vec::new());
    let walked = parse::walk(&**file, u64::MAX, |chunk| match chunk {
        Chunk::Volumes(some) => volumes.extend(some),
        Chunk::Owed(some) => owing.extend(some),
        Chunk::End { next_sequence } => {
            owed = std::mem::take(&mut owing);
            positions.push(Position {
                next_sequence,
                volumes: std::mem::take(&mut volumes),
            });
        }
        Chunk::Objects(_) | Chunk::Since(_) | Chunk::Changes(_) => {}
    })?;
    Ok(Found {
        file: file.clone(),
        written: Written {
            generation: walked.generation,
            whole_bytes: walked.whole,
            bytes: walked.all,
            appended: 0,
        },
        position: positions.last().cloned().ok_or(ParseError::Short)?,
        positions,
        owed,
    })
}

impl Found {
    /// Fills the index. An error where the file does not give again what it gave when it was looked at: the
    /// log is read from behind all of that.
    pub(crate) fn load(&self, index: &Index, volumes: &Volumes) -> Result<(), ParseError> {
        let mut current = self.positions.iter().map(|of| current_slots(of, volumes));
        let mut of_now = current.next().unwrap_or_default();
        let mut loading: Option<(u32, Loaded)> = None;
        let mut changed = Changed::default();
        let walked = parse::walk(&*self.file, self.written.bytes, |chunk| match chunk {
            Chunk::Objects(rows) => {
                if let Some((other, loaded)) = loading.take_if(|(of, _)| *of != rows.group) {
                    index.load(other, loaded);
                }
                let (_, loaded) = loading.get_or_insert_with(|| (rows.group, Loaded::default()));
                let is_current = |(_, entry): &(_, Entry)| of_now.contains(&entry.place.slot);
                for (hash, entry) in rows.entries().filter(is_current) {
                    match rows.is_simple {
                        true => loaded.single.push((hash, entry)),
                        false => loaded.add_to_list(hash, entry),
                    }
                }
            }
            Chunk::Since(_) => {
                of_now = current.next().unwrap_or_default();
                changed.begin(index);
            }
            Chunk::Changes(changes) => changed.add(changes, &of_now),
            Chunk::Volumes(_) | Chunk::Owed(_) | Chunk::End { .. } => {
                if let Some((group, loaded)) = loading.take() {
                    index.load(group, loaded);
                }
            }
        })?;
        changed.apply(index);
        match walked.all == self.written.bytes {
            true => Ok(()),
            false => Err(ParseError::Short),
        }
    }
}

/// Slots whose volumes are still the ones that entries were in.
fn current_slots(position: &Position, volumes: &Volumes) -> BTreeSet<u16> {
    let epoch = |slot| volumes.get(slot).map(|volume| volume.epoch);
    let known = position.volumes.iter();
    let current = known.filter(|known| epoch(known.slot) == Some(known.epoch));
    current.map(|known| known.slot).collect()
}

/// Changes that are put into the index together, in its order: one by one each would look for its place in
/// memory that no cache has.
#[derive(Default)]
struct Changed {
    rows: Vec<ChangedRow>,
    /// Number of the changes that rows are of.
    of: u32,
}

struct ChangedRow {
    group: u32,
    hash: ObjectHash,
    of: u32,
    /// `None`: there is none, or not any more.
    entry: Option<Entry>,
}

impl Changed {
    /// Begins the next changes.
    fn begin(&mut self, index: &Index) {
        if self.rows.len() >= TOGETHER {
            self.apply(index);
        }
        self.of += 1;
    }

    fn add(&mut self, changes: Changes<'_>, current: &BTreeSet<u16>) {
        let is_current = |entry: &Entry| current.contains(&entry.place.slot);
        let rows = changes.rows().map(|(group, hash, entry)| ChangedRow {
            group,
            hash,
            of: self.of,
            entry: entry.filter(is_current),
        });
        self.rows.extend(rows);
    }

    /// Objects have what the last changes say that they have, and nothing from before.
    fn apply(&mut self, index: &Index) {
        let mut rows = std::mem::take(&mut self.rows);
        // Stable: of an object, those of the last changes come last.
        rows.sort_by_key(|row| (row.group, order_of(row.hash)));
        for rows in rows.chunk_by(|a, b| (a.group, a.hash) == (b.group, b.hash)) {
            let Some(last) = rows.last() else { continue };
            let latest = rows.iter().filter(|row| row.of == last.of);
            let entries: Vec<Entry> = latest.filter_map(|row| row.entry).collect();
            index.update(last.group, last.hash, |of_object| *of_object = entries);
        }
    }
}
