//! Choice of a hash directory's valid files in an erasure-coded policy.
//!
//! ```text
//! <timestamp>#<index>.data      a fragment archive on disk, not known to be durable
//! <timestamp>#<index>#d.data    the same, once a quorum had theirs: durable
//! <timestamp>.durable           made all fragments of its time durable, in Swift before 2.11
//! ```
//!
//! A directory may hold fragments of several indices, and several timestamps of each: non-durable
//! ones may still become durable, and until then the older durable ones are the object. One durable
//! fragment makes all of its timestamp durable.

use cairn_types::Timestamp;

use super::{FileEntry, FileKind, OnDiskFiles, SortedFiles};

/// Choice of a fragment to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FragmentChoice {
    /// Exactly this index; `None` for the highest.
    pub index: Option<u32>,
    /// Preferences, in order, before `index`. If present, even if empty, a fragment need not be
    /// durable.
    pub preferences: Option<Vec<FragmentPreference>>,
}

/// Preference for fragments of this timestamp, except for the indices in `exclude`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentPreference {
    pub timestamp: Timestamp,
    pub exclude: Vec<u32>,
}

impl FragmentChoice {
    /// The durable fragment of this index.
    pub fn of_index(index: Option<u32>) -> Self {
        FragmentChoice {
            index,
            preferences: None,
        }
    }

    /// The same, durable or not.
    pub fn even_not_durable(index: Option<u32>) -> Self {
        FragmentChoice {
            index,
            preferences: Some(Vec::new()),
        }
    }
}

/// The fragments of one timestamp, in the order of their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentSet {
    pub timestamp: Timestamp,
    pub entries: Vec<FileEntry>,
}

impl FragmentSet {
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter_map(FileEntry::fragment_index)
    }
}

/// All fragments from the newest to the durable ones, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragments {
    pub sets: Vec<FragmentSet>,
    /// Timestamp of the durable version here; also `None` if no fragment was chosen.
    pub durable: Option<Timestamp>,
    /// Timestamp of the deletion, unless a later version is durable.
    pub deleted: Option<Timestamp>,
}

impl Fragments {
    pub fn has(&self, timestamp: Timestamp, index: u32) -> bool {
        let mut sets = self.sets.iter();
        let set = sets.find(|set| set.timestamp == timestamp);
        set.is_some_and(|set| set.indices().any(|i| i == index))
    }
}

impl FileEntry {
    /// Index of a fragment archive.
    pub fn fragment_index(&self) -> Option<u32> {
        match self.kind {
            FileKind::Fragment { index, .. } => Some(index),
            _ => None,
        }
    }

    pub fn is_durable(&self) -> bool {
        !matches!(
            self.kind,
            FileKind::Fragment {
                is_durable: false,
                ..
            }
        )
    }
}

/// Chooses the valid files as Swift does for a policy of `unique` different fragments. Unparsable
/// names and fragments outside the policy are not ours: neither chosen nor obsolete.
pub fn choose_fragments(
    entries: impl IntoIterator<Item = FileEntry>,
    unique: u32,
    choice: &FragmentChoice,
) -> OnDiskFiles {
    let entries = entries.into_iter().filter(|entry| match entry.kind {
        FileKind::Data => false,
        FileKind::Fragment { index, .. } => index < unique,
        _ => true,
    });
    let mut chosen = OnDiskFiles::default();
    let mut files = SortedFiles::new(entries, &mut chosen.obsolete);
    let marker = files.others.iter().find(|e| e.kind == FileKind::Durable);
    let (sets, durable) = fragment_sets(&files.data, marker.map(|e| e.timestamp));
    let durable_set = sets.iter().position(|set| Some(set.timestamp) == durable);
    let (chosen_set, index) = choose(&sets, durable_set, choice);
    chosen.data = chosen_set.and_then(|at| {
        let mut entries = sets[at].entries.iter();
        match index {
            Some(index) => entries.find(|e| e.fragment_index() == Some(index)),
            None => entries.next_back(),
        }
        .cloned()
    });
    if let Some(data) = &chosen.data {
        chosen.fragments.durable = durable_set.map(|at| sets[at].timestamp);
        if chosen_set != durable_set {
            // Older metadata belongs to the durable fragments: it stays, but is not valid here.
            files.metas.retain(|e| e.timestamp > data.timestamp);
        }
    }
    if let Some(durable) = durable {
        files.split_off_before(durable, &mut chosen.obsolete);
    }
    if durable_set.is_none() {
        let (markers, others) = std::mem::take(&mut files.others)
            .into_iter()
            .partition(|e| e.kind == FileKind::Durable);
        chosen.obsolete.extend::<Vec<_>>(markers);
        files.others = others;
        chosen.reclaimable.extend(files.metas.iter().cloned());
    }
    for (at, set) in sets.iter().enumerate() {
        if Some(at) != durable_set && Some(at) != chosen_set {
            chosen.reclaimable.extend(set.entries.iter().cloned());
        }
    }
    // A marker without fragments makes older ones obsolete, which would otherwise be reclaimable.
    let obsolete = &chosen.obsolete;
    chosen
        .reclaimable
        .retain(|entry| !obsolete.iter().any(|gone| gone.name == entry.name));
    chosen.fragments.sets = sets;
    chosen.fragments.deleted = files.tombstones.first().map(|e| e.timestamp);
    chosen.fill(files);
    chosen
}

/// Groups fragments by timestamp, up to the durable ones; also returns the last durable timestamp.
/// `marker` is the timestamp of the newest `.durable`.
fn fragment_sets(
    data: &[FileEntry],
    marker: Option<Timestamp>,
) -> (Vec<FragmentSet>, Option<Timestamp>) {
    let mut durable = marker;
    let mut sets = Vec::new();
    for entries in data.chunk_by(|a, b| a.timestamp == b.timestamp) {
        let timestamp = entries[0].timestamp;
        let mut entries = entries.to_vec();
        entries.sort_by_key(FileEntry::fragment_index);
        if entries.iter().any(FileEntry::is_durable) && durable.is_none_or(|d| d < timestamp) {
            durable = Some(timestamp);
        }
        let is_durable = durable == Some(timestamp);
        for entry in entries.iter_mut().filter(|_| is_durable) {
            if let FileKind::Fragment { is_durable, .. } = &mut entry.kind {
                *is_durable = true;
            }
        }
        sets.push(FragmentSet { timestamp, entries });
        if is_durable {
            break;
        }
    }
    (sets, durable)
}

/// Chooses the set, and the index within it.
fn choose(
    sets: &[FragmentSet],
    durable_set: Option<usize>,
    choice: &FragmentChoice,
) -> (Option<usize>, Option<u32>) {
    let Some(preferences) = &choice.preferences else {
        return (durable_set, choice.index);
    };
    let mut candidates: Vec<usize> = (0..sets.len()).collect();
    for preference in preferences {
        let mut at = candidates.iter().copied();
        let Some(at) = at.find(|at| sets[*at].timestamp == preference.timestamp) else {
            continue;
        };
        let acceptable = sets[at]
            .indices()
            .filter(|i| !preference.exclude.contains(i));
        if let Some(index) = acceptable.max() {
            return (Some(at), Some(index));
        }
        candidates.retain(|candidate| *candidate != at);
    }
    (candidates.first().copied(), choice.index)
}

/// Name of a fragment archive.
pub fn fragment_name(timestamp: Timestamp, index: u32, is_durable: bool) -> String {
    let mark = if is_durable { "#d" } else { "" };
    format!("{}#{index}{mark}.data", timestamp.internal())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], choice: &FragmentChoice) -> OnDiskFiles {
        choose_fragments(names.iter().filter_map(|n| FileEntry::parse(n)), 6, choice)
    }

    fn names(entries: &[FileEntry]) -> Vec<&str> {
        entries.iter().map(|e| e.name.as_str()).collect()
    }

    #[test]
    fn a_fragment_that_is_not_durable_waits() {
        let listing = ["8#2.data", "7#1#d.data", "7#0.data", "6#1#d.data", "7.meta"];
        let files = chosen(&listing, &FragmentChoice::default());
        assert_eq!(files.data.unwrap().name, "7#1#d.data");
        assert_eq!(names(&files.obsolete), ["6#1#d.data"]);
        assert_eq!(names(&files.reclaimable), ["8#2.data"]);
        assert_eq!(files.fragments.sets.len(), 2);
        assert!(files.fragments.has(Timestamp::from_secs(7), 0));
        let files = chosen(&listing, &FragmentChoice::even_not_durable(None));
        assert_eq!(files.data.unwrap().name, "8#2.data");
        assert_eq!(files.fragments.durable, Some(Timestamp::from_secs(7)));
        assert!(files.meta.is_none() && files.reclaimable.is_empty());
        assert_eq!(
            fragment_name(Timestamp::from_secs(7), 3, true),
            "0000000007.00000#3#d.data"
        );
    }

    #[test]
    fn a_fragment_that_is_not_durable_hides_no_tombstone() {
        let choice = FragmentChoice::even_not_durable(None);
        let files = chosen(&["8#2.data", "7.ts", "6#1#d.data"], &choice);
        assert_eq!(files.data.unwrap().name, "8#2.data");
        assert_eq!(files.fragments.deleted, Some(Timestamp::from_secs(7)));
        let files = chosen(&["9#2.data", "8#2#d.data", "7.ts"], &choice);
        assert_eq!(files.fragments.deleted, None);
    }

    #[test]
    fn preferences_go_before_the_newest() {
        let listing = ["8#2.data", "8#4.data", "7#1#d.data", "7#0.data"];
        let prefer = |timestamp, exclude: &[u32]| FragmentPreference {
            timestamp: Timestamp::from_secs(timestamp),
            exclude: exclude.to_vec(),
        };
        for (preferences, expected) in [
            (vec![], "8#4.data"),
            (vec![prefer(8, &[4])], "8#2.data"),
            (vec![prefer(7, &[])], "7#1#d.data"),
            (vec![prefer(7, &[1]), prefer(8, &[])], "7#0.data"),
            (vec![prefer(8, &[2, 4])], "7#1#d.data"),
            (vec![prefer(9, &[])], "8#4.data"),
        ] {
            let choice = FragmentChoice {
                index: None,
                preferences: Some(preferences),
            };
            let files = chosen(&listing, &choice);
            assert_eq!(files.data.unwrap().name, expected, "{choice:?}");
        }
    }
}
