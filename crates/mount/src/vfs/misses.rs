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
/// Maximum number of names kept, of one directory and of all.
const NAMES_MAX: usize = 100_000;
const DIRECTORIES_MAX: usize = 1000;

struct Directory {
    misses: u32,
    since: Instant,
    /// All names, and the end of their validity.
    names: Option<(HashSet<String>, Instant)>,
    /// A listing is in progress.
    is_asked: bool,
    /// There are too many names.
    is_given_up: bool,
    /// Names made elsewhere since the listing in progress was requested, which may lack them.
    made: Vec<String>,
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
            _ if directory.is_given_up => Known::Nothing,
            _ if directory.misses >= MISSES_MIN && !directory.is_asked => {
                directory.is_asked = true;
                Known::AskNames
            }
            _ => Known::Nothing,
        }
    }

    /// A name was made elsewhere, and with it perhaps directories above it.
    pub(super) fn made(&mut self, path: &str) {
        let mut path = path;
        while !path.is_empty() {
            let (directory, whole) = (parent_of(path), path);
            path = directory;
            let Some(known) = self.0.get_mut(directory) else {
                continue;
            };
            let name = &whole[below(directory).len()..];
            if let Some((names, _)) = &mut known.names {
                names.insert(name.to_owned());
            }
            if known.is_asked && known.made.len() < NAMES_MAX {
                known.made.push(name.to_owned());
            }
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
            is_given_up: false,
            made: Vec::new(),
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
        let asked = Instant::now();
        let names = self.all_names(directory).await;
        let mut misses = self.misses.lock();
        let misses = &mut misses.0;
        let held = misses.values().flat_map(|known| &known.names);
        let held: usize = held.map(|(names, _)| names.len()).sum();
        let Some(known) = misses.get_mut(directory) else {
            return Ok(());
        };
        known.is_asked = false;
        let made = std::mem::take(&mut known.made);
        let Some(mut names) = names? else {
            // Until the directory is evicted.
            known.is_given_up = true;
            return Ok(());
        };
        let until = asked + self.options.fresh + FRESH_PER_ROW * names.len() as u32;
        names.extend(made);
        let is_too_much = held + names.len() > NAMES_MAX;
        known.names = Some((names, until));
        if is_too_much {
            let others = misses.iter_mut().filter(|(path, _)| *path != directory);
            others.for_each(|(_, known)| known.names = None);
        }
        Ok(())
    }

    /// The names in a directory; `None` if there are too many.
    async fn all_names(&self, directory: &str) -> FsResult<Option<HashSet<String>>> {
        let prefix = below(directory);
        let (mut names, mut marker) = (HashSet::new(), String::new());
        loop {
            let rows = self.store.list(&prefix, &marker, false, 0).await?;
            let Some(last) = rows.last() else {
                return Ok(Some(names));
            };
            marker = last.name().to_owned();
            for row in rows {
                let name = row.name().strip_prefix(&prefix).unwrap_or_default();
                names.insert(name.strip_suffix('/').unwrap_or(name).to_owned());
            }
            if names.len() >= NAMES_MAX {
                return Ok(None);
            }
        }
    }
}
