//! Negative look-ups, which precede the creation of each file. After many of them in one directory
//! it is listed once, and for a second a name that is not in the listing is assumed not to be
//! another client's implied directory. The object itself is still requested every time: what
//! another host has created is seen at once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::tree::{below, parent_of};
use super::{FRESH_PER_ROW, Vfs};
use crate::error::FsResult;
use crate::store::Store;
use crate::time::Instant;

/// Number of misses within `WINDOW` after which a directory is listed.
const MISSES_MIN: u32 = 8;
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of names kept of a directory: a longer listing costs more than it saves.
const NAMES_MAX: usize = 10_000;
const DIRECTORIES_MAX: usize = 1000;

struct Directory {
    misses: u32,
    since: Instant,
    /// All names, and the end of their validity.
    names: Option<(HashSet<String>, Instant)>,
    /// A listing is in progress, or was given up because there are too many names.
    is_asked: bool,
}

/// Directories with recent misses.
#[derive(Default)]
pub(super) struct Misses(HashMap<String, Directory>);

/// A name's state without requesting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Absent,
    Nothing,
    /// The directory should be listed.
    AskNames,
}

impl Misses {
    fn known(&mut self, path: &str) -> Known {
        let Some(directory) = self.0.get_mut(parent_of(path)) else {
            return Known::Nothing;
        };
        let now = Instant::now();
        let name = &path[below(parent_of(path)).len()..];
        match &directory.names {
            Some((names, until)) if *until > now => match names.contains(name) {
                true => Known::Nothing,
                false => Known::Absent,
            },
            _ if now - directory.since > WINDOW && directory.names.is_none() => Known::Nothing,
            _ if directory.misses >= MISSES_MIN && !directory.is_asked => {
                directory.is_asked = true;
                Known::AskNames
            }
            _ => Known::Nothing,
        }
    }

    /// A name was made elsewhere, and with it perhaps directories above it.
    pub(super) fn forget(&mut self, path: &str) {
        let mut path = path;
        while !path.is_empty() {
            path = parent_of(path);
            self.0.remove(path);
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }

    /// Records a miss.
    pub(super) fn missed(&mut self, path: &str) {
        let now = Instant::now();
        if self.0.len() >= DIRECTORIES_MAX {
            self.0
                .retain(|_, directory| now - directory.since <= WINDOW);
        }
        let directory = self.0.entry(parent_of(path).to_owned());
        let directory = directory.or_insert(Directory {
            misses: 0,
            since: now,
            names: None,
            is_asked: false,
        });
        if now - directory.since > WINDOW {
            (directory.misses, directory.since) = (0, now);
        }
        directory.misses += 1;
    }
}

impl<S: Store> Vfs<S> {
    /// Is it known that there are no objects below a path, by a listing of its directory, which is
    /// requested here if worthwhile?
    pub(super) async fn has_nothing_below(&self, path: &str) -> FsResult<bool> {
        if self.options.fresh.is_zero() {
            return Ok(false);
        }
        let known = self.misses.lock().known(path);
        if known != Known::AskNames {
            return Ok(known == Known::Absent);
        }
        self.ask_names(parent_of(path)).await?;
        Ok(self.misses.lock().known(path) == Known::Absent)
    }

    async fn ask_names(&self, directory: &str) -> FsResult<()> {
        let prefix = below(directory);
        let asked = Instant::now();
        let rows = self.store.list(&prefix, "", false, 0).await;
        let mut misses = self.misses.lock();
        let Some(known) = misses.0.get_mut(directory) else {
            return Ok(());
        };
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                known.is_asked = false;
                return Err(error.into());
            }
        };
        if rows.len() >= NAMES_MAX {
            // Stays marked as requested until the directory is evicted.
            known.names = None;
            return Ok(());
        }
        let until = asked + self.options.fresh + FRESH_PER_ROW * rows.len() as u32;
        let name = |name: &str| {
            let name = name.strip_prefix(&prefix).unwrap_or_default();
            name.strip_suffix('/').unwrap_or(name).to_owned()
        };
        let names = rows.iter().map(|row| name(row.name())).collect();
        known.names = Some((names, until));
        known.is_asked = false;
        Ok(())
    }
}
