//! Nested manifests of a version: reading them, and writing them for many small parts. A commit
//! keeps those that it has not changed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};

use super::{Committer, Limits, Target};
use crate::content::Layout;
use crate::nested::{Nested, bytes_of, cut, is_same, whole};
use crate::store::{
    Expect, Headers, Part, Result, Segment, Store, StoreError, Why, file_id, zeros_folder,
};

const SUFFIX: &str = ".parts";
/// Maximum concurrent requests for manifests of one file.
const CONCURRENT_REQUESTS_MAX: usize = 8;

/// Is a segment a nested manifest?
pub(crate) fn is_index(segment: &Segment) -> bool {
    segment.name.name.ends_with(SUFFIX)
}

/// Minimum number of parts of a group with long holes: a file of few bytes and many holes keeps its
/// single manifest.
const GROUP_WITH_HOLES_MIN: usize = 16;

/// A long hole, which flattening leaves as it is.
pub(crate) fn is_long_hole(part: &Part, limits: &Limits) -> bool {
    part.length >= limits.small_bytes && part.segment.name.name.starts_with(&zeros_folder())
}

/// Groups of the parts of `range`, which begin at `at` in the file. A part that is not small stays as it
/// is; groups end at multiples of a segment's size from the file's beginning, so that groups after a
/// change stay the same. With `joins_holes` a long hole is in the group of its neighbours.
fn groups_in(
    parts: &[Part],
    range: Range<usize>,
    mut at: u64,
    limits: &Limits,
    joins_holes: bool,
) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    // State of the last group: whether it accepts more parts, and where it must end.
    let (mut is_open, mut until) = (false, 0_u64);
    for i in range {
        let part = &parts[i];
        let end = at + part.length;
        let fits = |until: u64| match part.length < limits.small_bytes {
            true => at < until,
            false => joins_holes && end <= until && is_long_hole(part, limits),
        };
        match groups.last_mut() {
            Some(last) if is_open && fits(until) && last.len() < limits.manifest_parts => {
                last.end = i + 1;
            }
            _ => {
                groups.push(i..i + 1);
                until = (at + 1).next_multiple_of(limits.segment_bytes);
                is_open = fits(until);
            }
        }
        at = end;
    }
    groups
}

/// Groups of parts that become one part of the file's manifest each. If there were more of them than a
/// manifest can have parts, groups are as large as a manifest.
///
/// Long holes are in groups of many parts: hosts that write one file at different speeds leave such holes
/// to each other, and between them would be indexes of a few parts each.
fn groups(parts: &[Part], limits: &Limits) -> Vec<Range<usize>> {
    let (mut groups, mut at) = (Vec::new(), 0);
    for group in groups_in(parts, 0..parts.len(), 0, limits, true) {
        let start = at;
        at += bytes_of(&parts[group.clone()]);
        match group.len() < GROUP_WITH_HOLES_MIN {
            true => groups.extend(groups_in(parts, group, start, limits, false)),
            false => groups.push(group),
        }
    }
    if groups.len() <= limits.manifest_parts {
        return groups;
    }
    let starts = (0..parts.len()).step_by(limits.manifest_parts);
    let full = |start: usize| start..(start + limits.manifest_parts).min(parts.len());
    starts.map(full).collect()
}

impl<S: Store> Committer<S> {
    /// Is a part a nested manifest of this mount's kind, used as a whole?
    pub(crate) fn is_nested(&self, part: &Part) -> bool {
        let name = &part.segment.name;
        let is_here = &*name.container == self.store.container();
        is_here && file_id(&name.name).is_some() && is_index(&part.segment)
    }

    /// The parts of a nested manifest; `None` if it has some that are not objects.
    pub(crate) async fn nested_parts(&self, segment: &Segment) -> Result<Option<Arc<Vec<Part>>>> {
        let name = &segment.name.name;
        if let Some(parts) = self.known.get(name) {
            return Ok(Some(parts));
        }
        let parts = match self.store.parts(name).await {
            Ok(parts) => parts,
            // It was removed together with its version.
            Err(error) if error.why == Why::NotFound => {
                return Err(StoreError::new(Why::Changed, error.message));
            }
            Err(error) => return Err(error),
        };
        let parts = parts.filter(|parts| bytes_of(parts) == segment.bytes);
        let parts = parts.map(Arc::new);
        if let Some(parts) = &parts {
            self.known.add(name.clone(), parts.clone());
        }
        Ok(parts)
    }

    /// The layout of a version, from its manifest and nested ones.
    pub(crate) async fn layout_of(&self, parts: Vec<Part>) -> Result<Layout> {
        let read = |part: Part| async move {
            let nested = match self.is_nested(&part) {
                true => self.nested_parts(&part.segment).await?,
                false => None,
            };
            Ok::<_, StoreError>((part, nested))
        };
        let read = futures_util::stream::iter(parts.into_iter().map(read));
        let all: Vec<_> = read.buffered(CONCURRENT_REQUESTS_MAX).try_collect().await?;
        let (mut leaves, mut nested, mut at) = (Vec::new(), Vec::new(), 0);
        for (part, inner) in all {
            let length = part.length;
            match inner {
                None => leaves.push(part),
                Some(parts) if part.offset == 0 && length == part.segment.bytes => {
                    leaves.extend_from_slice(&parts);
                    nested.push(Nested {
                        at,
                        segment: part.segment,
                        parts,
                    });
                }
                Some(parts) => leaves.extend(cut(&parts, part.offset, length)),
            }
            at += length;
        }
        Ok(Layout::of_parts(leaves, nested))
    }

    /// Combines adjacent small parts into nested manifests; returns the parts of the file's
    /// manifest, and which of them are nested.
    pub(crate) async fn nest(
        &self,
        target: &Target<'_>,
        base: &Layout,
        parts: &[Part],
        made: &mut Vec<Arc<Segment>>,
    ) -> Result<(Vec<Part>, Vec<Nested>)> {
        let before: HashMap<u64, &Nested> = base.nested.iter().map(|n| (n.at, n)).collect();
        let mut at = 0;
        let groups = groups(parts, &self.limits).into_iter().map(|range| {
            let (start, group) = (at, &parts[range]);
            at += bytes_of(group);
            (start, group)
        });
        let before = &before;
        let put = |(start, group): (u64, &[Part])| {
            let group = group.to_vec();
            async move {
                if let [single] = &group[..] {
                    return Ok((start, single.clone(), None, false));
                }
                let pairs = |old: &Nested| old.parts.iter().zip(&group).all(|(a, b)| is_same(a, b));
                let is_it = |old: &&&Nested| old.parts.len() == group.len() && pairs(old);
                if let Some(old) = before.get(&start).filter(is_it) {
                    let part = whole(&old.segment);
                    return Ok((start, part, Some(old.parts.clone()), false));
                }
                let name = format!("{}{SUFFIX}", self.segment_name(target.file_id));
                let headers = Headers::new("application/octet-stream");
                let put = self
                    .store
                    .put_manifest(&name, &headers, &group, Expect::Anything);
                put.await?;
                let segment = self.segment(&name, bytes_of(&group));
                let group = Arc::new(group);
                self.known.add(segment.name.name.clone(), group.clone());
                Ok::<_, StoreError>((start, whole(&segment), Some(group), true))
            }
        };
        let groups: Vec<_> = groups.collect();
        let mut puts = futures_util::stream::iter(groups.into_iter().map(put))
            .buffered(CONCURRENT_REQUESTS_MAX);
        let (mut outer, mut nested, mut result) = (Vec::new(), Vec::new(), Ok(()));
        while let Some(put) = puts.next().await {
            match put {
                Ok((at, part, inner, is_new)) => {
                    if is_new {
                        made.push(part.segment.clone());
                    }
                    nested.extend(inner.map(|parts| Nested {
                        at,
                        segment: part.segment.clone(),
                        parts,
                    }));
                    outer.push(part);
                }
                // The other uploads are awaited, so that their objects are known.
                Err(error) => result = Err(error),
            }
        }
        result?;
        match outer.len() > self.limits.manifest_parts {
            true => {
                let message = "the file has too many parts";
                Err(StoreError::new(Why::TooLarge, message))
            }
            false => Ok((outer, nested)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nested::tests::parts;
    use crate::store::ObjectName;

    fn limits() -> Limits {
        Limits {
            small_bytes: 10,
            segment_bytes: 100,
            manifest_parts: 4,
            ..Limits::default()
        }
    }

    #[test]
    fn small_neighbours_are_grouped() {
        let of = |lengths: &[u64]| groups(&parts(lengths), &limits());
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[50, 50, 50]), [0..1, 1..2, 2..3]);
        assert_eq!(of(&[5, 5, 50, 5, 5]), [0..2, 2..3, 3..5]);
        // The maximum number of one manifest.
        assert_eq!(of(&[5; 10]), [0..4, 4..8, 8..10]);
    }

    /// Parts of these lengths; holes where the length is negative.
    fn with_holes(lengths: &[i64]) -> Vec<Part> {
        let magnitudes: Vec<u64> = lengths.iter().map(|length| length.unsigned_abs()).collect();
        let mut parts = parts(&magnitudes);
        for (part, length) in parts.iter_mut().zip(lengths) {
            if *length < 0 {
                let name = ObjectName::new("c", &format!("{}100", zeros_folder()));
                part.segment = Arc::new(Segment { name, bytes: 100 });
            }
        }
        parts
    }

    #[test]
    fn groups_of_many_parts_have_long_holes_in_them() {
        let limits = Limits {
            manifest_parts: 200,
            segment_bytes: 1000,
            ..limits()
        };
        let of = |lengths: &[i64]| groups(&with_holes(lengths), &limits);
        let many = [5, 5, -20].repeat(20);
        let whole = 0..60;
        assert_eq!(of(&many), [whole]);
        // The same bytes, which are no holes.
        let data: Vec<i64> = many.iter().map(|length| length.abs()).collect();
        assert_eq!(of(&data).len(), 40);
        // With few parts the holes are between the groups.
        assert_eq!(of(&[5, 5, -20, 5, 5, -20]), [0..2, 2..3, 3..5, 5..6]);
        // One that goes beyond a segment's size ends the group.
        let beyond = [[5; 20].as_slice(), &[-1000], &[5; 20]].concat();
        assert_eq!(of(&beyond), [0..20, 20..21, 21..41]);
        // Groups behind a change stay.
        let ends = |lengths: &[i64]| {
            let groups = groups(&with_holes(lengths), &limits).into_iter();
            let end = |range: Range<usize>| bytes_of(&with_holes(lengths)[..range.end]);
            groups.map(end).collect::<Vec<_>>()
        };
        let rest = [5, 5, -20].repeat(60);
        let after = [[2, 3, 5, -20].as_slice(), &rest[3..]].concat();
        assert_eq!(ends(&rest), ends(&after));
    }

    #[test]
    fn groups_behind_a_change_stay() {
        let limits = Limits {
            manifest_parts: 100,
            ..limits()
        };
        let ends = |lengths: &[u64]| {
            let parts = parts(lengths);
            let end = |range: Range<usize>| bytes_of(&parts[..range.end]);
            groups(&parts, &limits)
                .into_iter()
                .map(end)
                .collect::<Vec<_>>()
        };
        let before = [[9; 11].as_slice(), &[1], &[9; 3]].concat();
        let after = [[9, 4, 5].as_slice(), &[9; 9], &[1], &[9; 3]].concat();
        assert_eq!(ends(&before), [100, 127]);
        assert_eq!(ends(&after), [100, 127]);
    }
}
