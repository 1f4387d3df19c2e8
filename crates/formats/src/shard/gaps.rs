//! Consistency of a set of shard ranges: the paths through the namespace that they form, its gaps
//! and its overlaps.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::{Bound, Bounded, Namespace, ShardRange, State, sort_ranges, total};

/// Maximum number of paths followed: with many overlaps their number doubles with each.
const PATHS_MAX: usize = 10_000;

/// A sequence of ranges, each beginning at the end of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path<'r> {
    pub ranges: Vec<&'r ShardRange>,
    pub lower: Bound<'r>,
    pub upper: Bound<'r>,
}

/// A part of the namespace that no range covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap<'r> {
    pub before: Path<'r>,
    pub lower: Bound<'r>,
    pub upper: Bound<'r>,
    pub after: Path<'r>,
}

impl<'r> Path<'r> {
    fn nothing(at: Bound<'r>) -> Self {
        Path {
            ranges: Vec::new(),
            lower: at,
            upper: at,
        }
    }

    pub fn object_count(&self) -> i64 {
        total(self.ranges.iter().map(|range| range.object_count))
    }

    /// The distinct creation times of its ranges.
    fn timestamps(&self) -> BTreeSet<&'r str> {
        self.ranges.iter().map(|r| r.timestamp.as_str()).collect()
    }

    /// Lower bound of the first range whose rows have not been cleaved yet, or the path's end.
    fn cleaved_to(&self) -> Bound<'r> {
        let waiting = |range: &&&ShardRange| !range.is_any(&[State::Cleaved, State::Active]);
        match self.ranges.iter().find(waiting) {
            Some(range) => Bound::lower(&range.lower),
            None => self.upper,
        }
    }

    fn includes(&self, other: &Namespace) -> bool {
        self.lower <= other.lower() && self.upper >= other.upper()
    }
}

/// All paths through the ranges; shrinking ones are not part of any.
pub fn find_paths(ranges: &[ShardRange]) -> Vec<Path<'_>> {
    let mut leaving: BTreeMap<Bound<'_>, Vec<&ShardRange>> = BTreeMap::new();
    for range in ranges.iter().filter(|range| !range.is(State::Shrinking)) {
        leaving.entry(range.lower()).or_default().push(range);
    }
    let mut paths: Vec<Path<'_>> = Vec::new();
    for (node, edges) in leaving {
        let mut arriving: Vec<usize> = (0..paths.len())
            .filter(|at| paths[*at].upper == node && !paths[*at].ranges.is_empty())
            .collect();
        if arriving.is_empty() {
            paths.push(Path::nothing(node));
            arriving.push(paths.len() - 1);
        }
        for at in arriving {
            let Some((last, others)) = edges.split_last() else {
                continue;
            };
            for edge in others {
                if paths.len() < PATHS_MAX {
                    let mut branch = paths[at].clone();
                    branch.ranges.push(edge);
                    branch.upper = edge.upper();
                    paths.push(branch);
                }
            }
            paths[at].ranges.push(last);
            paths[at].upper = last.upper();
        }
    }
    paths
}

/// The best path for a namespace. Criteria in this order: covers it, most cleaving done, most
/// objects, fewest creation times, most recently created.
pub fn best_path<'r>(
    mut paths: Vec<Path<'r>>,
    span: &Namespace,
) -> Option<(Path<'r>, Vec<Path<'r>>)> {
    paths.sort_by(|a, b| rank(a, b, span));
    let best = paths.pop()?;
    paths.reverse();
    Some((best, paths))
}

fn rank(a: &Path<'_>, b: &Path<'_>, span: &Namespace) -> Ordering {
    a.includes(span)
        .cmp(&b.includes(span))
        .then_with(|| a.cleaved_to().cmp(&b.cleaved_to()))
        .then_with(|| a.object_count().cmp(&b.object_count()))
        .then_with(|| b.timestamps().len().cmp(&a.timestamps().len()))
        .then_with(|| a.timestamps().last().cmp(&b.timestamps().last()))
}

/// The path that reaches furthest from `start`, and the first path that continues beyond its end.
fn discontinuity<'r>(paths: &[Path<'r>], start: Bound<'r>) -> Option<(Path<'r>, Path<'r>)> {
    let first = paths
        .iter()
        .filter(|path| path.lower == start)
        .max_by_key(|path| path.upper)?;
    let next = paths
        .iter()
        .filter(|path| path.upper > first.upper)
        .min_by(|a, b| a.lower.cmp(&b.lower).then(b.upper.cmp(&a.upper)))?;
    Some((first.clone(), next.clone()))
}

/// Gaps inside `within`, each with the paths that lead to and from it.
pub fn find_gaps<'r>(ranges: &'r [ShardRange], within: &Namespace) -> Vec<Gap<'r>> {
    let mut paths = find_paths(ranges);
    paths.push(Path::nothing(Bound::Min));
    paths.push(Path::nothing(Bound::Max));
    let mut gaps = Vec::new();
    let mut start = Bound::Min;
    while let Some((before, after)) = discontinuity(&paths, start) {
        start = after.lower;
        if before.upper > after.lower {
            continue;
        }
        let (lower, upper) = (before.upper, after.lower);
        if lower.max(within.lower()) < upper.min(within.upper()) {
            gaps.push(Gap {
                before,
                lower,
                upper,
                after,
            });
        }
    }
    gaps
}

/// Sets of overlapping ranges: each range with those after it in the list that overlap it.
/// `excused` says which pairs are allowed to.
pub fn find_overlaps(
    ranges: &[ShardRange],
    excused: impl Fn(&ShardRange, &ShardRange) -> bool,
) -> Vec<Vec<&ShardRange>> {
    let mut found: Vec<Vec<&ShardRange>> = Vec::new();
    for (at, range) in ranges.iter().enumerate() {
        let mut set: Vec<&ShardRange> = ranges[at + 1..]
            .iter()
            .filter(|other| {
                range.name != other.name && range.overlaps(*other) && !excused(range, other)
            })
            .collect();
        if set.is_empty() {
            continue;
        }
        set.push(range);
        let mut sorted: Vec<ShardRange> = set.iter().map(|range| (*range).clone()).collect();
        sort_ranges(&mut sorted);
        set.sort_by_key(|range| sorted.iter().position(|s| s == *range));
        found.push(set);
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_types::Timestamp;

    use super::*;

    fn range(name: &str, lower: &str, upper: &str) -> ShardRange {
        let mut range = ShardRange::new(name, Timestamp::from_secs(1), lower, upper);
        range.set_state(State::Active);
        range
    }

    #[test]
    fn gaps_between_paths() {
        let all = Namespace::default();
        let whole = [range("a/1", "", "m"), range("a/2", "m", "")];
        assert!(find_gaps(&whole, &all).is_empty());
        let holes = [range("a/1", "c", "m"), range("a/2", "p", "")];
        let gaps = find_gaps(&holes, &all);
        let bounds: Vec<_> = gaps.iter().map(|gap| (gap.lower, gap.upper)).collect();
        let expected = [
            (Bound::Min, Bound::At("c")),
            (Bound::At("m"), Bound::At("p")),
        ];
        assert_eq!(bounds, expected);
        let within = Namespace {
            lower: "d".into(),
            upper: "n".into(),
            ..Namespace::default()
        };
        assert_eq!(find_gaps(&holes, &within).len(), 1);
        let overlapping = [range("a/1", "", "p"), range("a/2", "m", "")];
        assert!(find_gaps(&overlapping, &all).is_empty());
        assert_eq!(find_gaps(&[], &all).len(), 1);
    }

    #[test]
    fn paths_and_the_best() {
        let mut ranges = vec![
            range("a/1", "", "m"),
            range("a/2", "m", ""),
            range("a/3", "", "p"),
            range("a/4", "p", ""),
        ];
        ranges[2].object_count = 9;
        let paths = find_paths(&ranges);
        assert_eq!(paths.len(), 2);
        let (best, others) = best_path(paths, &Namespace::default()).unwrap();
        let names: Vec<_> = best
            .ranges
            .iter()
            .map(|range| range.name.as_str())
            .collect();
        assert_eq!(names, ["a/3", "a/4"]);
        assert_eq!(others.len(), 1);
        let overlaps = find_overlaps(&ranges, |_, _| false);
        assert_eq!(overlaps.len(), 2);
        assert!(find_overlaps(&ranges, |_, _| true).is_empty());
    }
}
