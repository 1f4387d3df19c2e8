//! Shard ranges of OpenStack Swift: parts of a container's namespace, each with a container of its
//! own that holds the rows, and computations over sets of them.
//!
//! A range holds the names above its lower and up to its upper bound. The empty text is no bound:
//! as a lower one the beginning of all names, as an upper one their end.

mod compact;
mod gaps;
mod name;
mod range;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

pub use compact::{Limits, compactible_sequences, shrink, shrink_sequences};
pub use gaps::{Gap, Path, best_path, find_gaps, find_overlaps, find_paths};
pub use name::{HashName, ShardName};
pub use range::{COUNT_MAX, ShardRange, State, combine, sort_ranges, total};

/// A bound between names; the order of the variants is the order of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound<'a> {
    Min,
    At(&'a str),
    Max,
}

impl<'a> Bound<'a> {
    pub fn lower(text: &'a str) -> Self {
        match text {
            "" => Bound::Min,
            text => Bound::At(text),
        }
    }

    pub fn upper(text: &'a str) -> Self {
        match text {
            "" => Bound::Max,
            text => Bound::At(text),
        }
    }

    /// The bound in its stored form; both ends of the namespace are the empty text.
    pub fn text(self) -> &'a str {
        match self {
            Bound::At(text) => text,
            Bound::Min | Bound::Max => "",
        }
    }
}

/// Values with a lower and an upper bound.
pub trait Bounded {
    /// The shard container's name, `account/container`.
    fn name(&self) -> &str;
    fn lower(&self) -> Bound<'_>;
    fn upper(&self) -> Bound<'_>;

    fn contains(&self, name: &str) -> bool {
        !name.is_empty() && self.lower() < Bound::At(name) && Bound::At(name) <= self.upper()
    }

    fn overlaps(&self, other: &dyn Bounded) -> bool {
        self.lower().max(other.lower()) < self.upper().min(other.upper())
    }

    /// Does this range cover the whole of `other`?
    fn includes(&self, other: &dyn Bounded) -> bool {
        self.lower() <= other.lower() && other.upper() <= self.upper()
    }

    fn is_entire(&self) -> bool {
        self.lower() == Bound::Min && self.upper() == Bound::Max
    }

    /// Account and container of the shard.
    fn place(&self) -> (&str, &str) {
        self.name().split_once('/').unwrap_or((self.name(), ""))
    }

    /// End marker of a listing of this range: just behind its last possible name, or empty.
    fn end_marker(&self) -> String {
        match self.upper() {
            Bound::At(upper) => format!("{upper}\0"),
            _ => String::new(),
        }
    }
}

/// A part of a namespace and the shard that holds it: all that a listing or an update needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    pub name: String,
    pub lower: String,
    pub upper: String,
}

impl Bounded for Namespace {
    fn name(&self) -> &str {
        &self.name
    }

    fn lower(&self) -> Bound<'_> {
        Bound::lower(&self.lower)
    }

    fn upper(&self) -> Bound<'_> {
        Bound::upper(&self.upper)
    }
}

/// Reduces ranges to a list without overlaps or gaps, for a cache: one that begins before the
/// previous one's end is dropped, and each is extended to the start of the next.
pub fn contiguous(namespaces: Vec<Namespace>) -> Vec<Namespace> {
    let mut kept: Vec<Namespace> = Vec::with_capacity(namespaces.len());
    for namespace in namespaces {
        let starts_early = kept
            .last()
            .is_some_and(|last| namespace.lower() < last.upper());
        if !starts_early {
            kept.push(namespace);
        }
    }
    for at in 1..kept.len() {
        kept[at - 1].upper = kept[at].lower.clone();
    }
    if let Some(last) = kept.last_mut() {
        last.upper.clear();
    }
    kept
}

/// The range of [`contiguous`] ranges that contains a name; a name before the first has none.
pub fn find<'n>(contiguous: &'n [Namespace], name: &str) -> Option<&'n Namespace> {
    let behind = contiguous.partition_point(|namespace| namespace.lower() < Bound::At(name));
    contiguous.get(behind.checked_sub(1)?)
}

/// The ranges that a listing between two markers must read; an empty marker is no bound.
pub fn between(namespaces: Vec<Namespace>, marker: &str, end_marker: &str) -> Vec<Namespace> {
    namespaces
        .into_iter()
        .filter(|namespace| {
            (marker.is_empty() || namespace.upper() > Bound::At(marker))
                && (end_marker.is_empty() || namespace.lower() < Bound::At(end_marker))
        })
        .collect()
}

/// Orders ranges by their upper bound.
pub(crate) fn by_upper(a: &dyn Bounded, b: &dyn Bounded) -> Ordering {
    a.upper().cmp(&b.upper())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str, lower: &str, upper: &str) -> Namespace {
        Namespace {
            name: name.into(),
            lower: lower.into(),
            upper: upper.into(),
        }
    }

    #[test]
    fn bounds() {
        let (first, last) = (namespace("a/1", "", "m"), namespace("a/2", "m", ""));
        assert!(first.contains("m") && !first.contains("n") && !first.contains(""));
        assert!(last.contains("n") && !last.contains("m"));
        assert!(!first.overlaps(&last));
        assert!(namespace("a/3", "l", "n").overlaps(&last));
        assert!(namespace("a/3", "", "").includes(&last));
        assert_eq!(first.end_marker(), "m\0");
        assert_eq!(first.place(), ("a", "1"));
    }

    #[test]
    fn what_is_cached_has_no_gaps() {
        let cached = contiguous(vec![
            namespace("a/1", "", "d"),
            namespace("a/2", "c", "e"),
            namespace("a/3", "f", "h"),
        ]);
        let expected = [namespace("a/1", "", "f"), namespace("a/3", "f", "")];
        assert_eq!(cached, expected);
        let found = |name: &str| find(&cached, name).map(|found| found.name.as_str());
        assert_eq!(found("f"), Some("a/1"));
        assert_eq!(found("f0"), Some("a/3"));
        assert_eq!(between(cached.clone(), "f", "").len(), 1);
        assert_eq!(between(cached.clone(), "", "f").len(), 1);
        assert_eq!(between(cached, "e", "g").len(), 2);
    }
}
