//! Flattening: replaces a nested manifest of small parts by one segment, so that other clients read
//! the file as fast as any large object. The file's bytes do not change.
//!
//! Mounts that wrote a file divide the work without communicating: each nested manifest belongs to
//! the mount with the highest hash of both names. Every mount swaps its results into the current
//! manifest, like a commit; concurrent results of others are kept.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use futures_util::StreamExt;

use crate::cache::{Reader, Version};
use crate::commit::{Committer, Limits, is_long_hole};
use crate::content::{FileSource, Layout};
use crate::extents::Span;
use crate::history;
use crate::nested::{Nested, bytes_of, whole};
use crate::store::{
    Expect, Form, ObjectName, Part, Result, Segment, Stat, Store, StoreError, Why, asks_for_a_look,
    file_id,
};

/// Nested manifests flattened concurrently: each needs a segment's size of memory.
const CONCURRENT_MAX: usize = 2;
/// Maximum number of swaps lost to commits and to other flattening mounts.
const SWAPS_MAX: u32 = 50;

/// The nested manifests that a mount flattens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Its own share, among the mounts that recently wrote the file.
    Own,
    All,
}

/// A version that differs from the one before only in its parts.
pub(crate) struct Flattened {
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) layout: Layout,
}

#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) flattened: Option<Flattened>,
    /// Number of nested manifests left to other mounts.
    pub(crate) left: usize,
}

/// The parts that replace a nested manifest: a segment for each run of small parts between long holes,
/// and what was no such run.
struct Flat {
    parts: Vec<Part>,
    /// The segments created here.
    made: Vec<Arc<Segment>>,
}

/// Ranges of parts between long holes; each hole is a range of its own.
fn runs(parts: &[Part], limits: &Limits) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut is_open = false;
    for (i, part) in parts.iter().enumerate() {
        let is_hole = is_long_hole(part, limits);
        match runs.last_mut() {
            Some(last) if is_open && !is_hole => last.end = i + 1,
            _ => runs.push(i..i + 1),
        }
        is_open = !is_hole;
    }
    runs
}

/// State of flattening between swaps.
#[derive(Default)]
struct Work {
    /// The replacements of nested manifests, by these manifests' names.
    flat: HashMap<Arc<str>, Flat>,
    /// Segments created here, and those of versions that were replaced here. What another mount has
    /// replaced is its business: under the name there may be another file now, and the one before may
    /// have another name.
    replaced: HashSet<Arc<Segment>>,
    /// Segments of versions whose replacement is in doubt.
    doubtful: HashSet<Arc<Segment>>,
}

impl Work {
    /// Finds out from a version that is there whether replacements in doubt have taken place. Nobody else
    /// knows the segments that were created here.
    fn settle(&mut self, layout: &Layout) {
        let segments = layout.segments();
        let mut made = self.flat.values().flat_map(|flat| &flat.made);
        if made.any(|made| segments.contains(made)) {
            self.replaced.extend(self.doubtful.drain());
        }
    }

    /// Segments that nothing refers to while the name has this version.
    fn unused(self, layout: &Layout) -> Vec<Arc<Segment>> {
        // A version with segments of here may be under another name: they stay for the sweep.
        if !self.doubtful.is_empty() {
            return Vec::new();
        }
        let needed: HashSet<Arc<Segment>> = layout.segments().into_iter().collect();
        let unused = self.replaced.into_iter();
        let mut unused: Vec<Arc<Segment>> = unused.filter(|s| !needed.contains(s)).collect();
        unused.sort_by(|one, two| one.name.name.cmp(&two.name.name));
        unused
    }
}

/// A hash that all mounts compute alike: FNV-1a, and a final mixing step.
fn hash(mount: &str, name: &str) -> u64 {
    let bytes = mount.bytes().chain([0]).chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

/// The mount responsible for a nested manifest; `None` if no mount is known.
pub(crate) fn owner<'a>(mounts: &[&'a str], name: &str) -> Option<&'a str> {
    let mounts = mounts.iter().copied();
    mounts.max_by_key(|mount| (hash(mount, name), *mount))
}

impl<S: Store> Committer<S> {
    /// Does a layout need flattening?
    pub(crate) fn is_fragmented(&self, layout: &Layout) -> bool {
        let mut nested = layout.nested.iter();
        nested.any(|nested| self.is_small(nested))
    }

    /// Has a nested manifest a run of small parts, and is it about as long as a segment?
    fn is_small(&self, nested: &Nested) -> bool {
        // A group's last part may exceed a segment's size.
        let bytes_max = self.limits.segment_bytes + self.limits.small_bytes;
        let is_run = |run: Range<usize>| self.is_small_run(&nested.parts[run]);
        let mut runs = runs(&nested.parts, &self.limits).into_iter();
        nested.segment.bytes < bytes_max && runs.any(is_run)
    }

    fn is_small_run(&self, run: &[Part]) -> bool {
        run.len() > 1 && bytes_of(run) / (run.len() as u64) < self.limits.small_bytes
    }

    /// Flattens `share` of the file `name`.
    pub(crate) async fn flatten(&self, name: &str, share: Share) -> Result<Outcome> {
        let mut work = Work::default();
        let flattened = self.flatten_in(name, share, &mut work).await;
        let (outcome, layout) = match flattened {
            Ok((outcome, layout)) => (Ok(outcome), layout),
            Err(error) => (Err(error), None),
        };
        // Nothing is removed before the version without it is known to be on the store.
        let unused = layout.map(|layout| work.unused(&layout));
        let unused = unused.unwrap_or_default();
        self.remove(self.superseded.add(unused)).await;
        outcome
    }

    /// The outcome, and the current version if known.
    async fn flatten_in(
        &self,
        name: &str,
        share: Share,
        work: &mut Work,
    ) -> Result<(Outcome, Option<Layout>)> {
        let mut flattened: Option<Flattened> = None;
        for _ in 0..SWAPS_MAX {
            let stat = self.store.head_newest(name).await?;
            if stat.form != Form::Manifest {
                return Ok((Outcome::default(), None));
            }
            let parts = match self.store.manifest(name, &stat.etag).await {
                Ok(Some(parts)) => parts,
                Ok(None) => return Ok((Outcome::default(), None)),
                Err(error) if error.why == Why::Changed => continue,
                Err(error) => return Err(error),
            };
            let layout = match self.layout_of(parts.clone()).await {
                Ok(layout) => layout,
                Err(error) if error.why == Why::Changed => continue,
                Err(error) => return Err(error),
            };
            work.settle(&layout);
            let (mine, others) = self.shares(&stat, &layout, parts.len(), share);
            match self.make_flat(&layout, &mine, work).await {
                Ok(()) => {}
                // A segment was removed with its version.
                Err(error) if error.why == Why::NotFound => continue,
                Err(error) => return Err(error),
            }
            // Others that were made for a version before may not fit into this one.
            let chosen = mine.iter().filter_map(|i| layout.nested.get(*i));
            let chosen: HashSet<&str> = chosen.map(|nested| &*nested.segment.name.name).collect();
            let flat = |part: &Part| {
                let name = &part.segment.name.name;
                work.flat.get(name).filter(|_| chosen.contains(&**name))
            };
            let replaced = |part: &Part| match flat(part) {
                Some(flat) if part.length == bytes_of(&flat.parts) => flat.parts.clone(),
                _ => vec![part.clone()],
            };
            let swapped: Vec<Part> = parts.iter().flat_map(replaced).collect();
            if mine.is_empty() {
                let left = others;
                return Ok((Outcome { flattened, left }, Some(layout)));
            }
            let expect = Expect::Version(&stat.etag);
            let put = self
                .store
                .put_manifest(name, &stat.headers, &swapped, expect);
            match put.await {
                Ok(after) => {
                    work.replaced.extend(layout.segments());
                    let layout = self.layout_of(swapped).await?;
                    flattened = Some(Flattened {
                        before: stat.etag,
                        after,
                        layout: layout.clone(),
                    });
                    let left = others;
                    return Ok((Outcome { flattened, left }, Some(layout)));
                }
                Err(error) if asks_for_a_look(&error) => {
                    if error.is_in_doubt {
                        work.doubtful.extend(layout.segments());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let message = format!("{name}: others keep changing it");
        Err(StoreError::new(Why::Changed, message))
    }

    /// The nested manifests for this mount to flatten, and the number of others'. `parts` is the number of
    /// parts of the file's manifest: those that long holes would make too many of stay nested.
    fn shares(
        &self,
        stat: &Stat,
        layout: &Layout,
        parts: usize,
        share: Share,
    ) -> (Vec<usize>, usize) {
        let mounts = history::mounts(&stat.headers);
        let (mut mine, mut others) = (Vec::new(), 0);
        let mut room = self.limits.manifest_parts.saturating_sub(parts);
        for (i, nested) in layout.nested.iter().enumerate() {
            if !self.is_small(nested) {
                continue;
            }
            let more = self.flat_count(nested).saturating_sub(1);
            let Some(rest) = room.checked_sub(more) else {
                continue;
            };
            room = rest;
            let owner = owner(&mounts, &nested.segment.name.name);
            match share == Share::All || owner.is_none_or(|owner| owner == self.mount_id) {
                true => mine.push(i),
                false => others += 1,
            }
        }
        (mine, others)
    }

    /// Number of parts that replace a nested manifest.
    fn flat_count(&self, nested: &Nested) -> usize {
        let count = |run: Range<usize>| match self.is_small_run(&nested.parts[run.clone()]) {
            true => 1,
            false => run.len(),
        };
        runs(&nested.parts, &self.limits)
            .into_iter()
            .map(count)
            .sum()
    }

    /// Creates segments for nested manifests in `mine` that have none yet.
    async fn make_flat(&self, layout: &Layout, mine: &[usize], work: &mut Work) -> Result<()> {
        let todo = mine.iter().filter_map(|i| layout.nested.get(*i));
        let todo = todo.filter(|nested| !work.flat.contains_key(&nested.segment.name.name));
        let make = |(segment, parts): (Arc<Segment>, Arc<Vec<Part>>)| async move {
            let mut flat = Flat {
                parts: Vec::new(),
                made: Vec::new(),
            };
            let result = self.flat_parts(&segment, &parts, &mut flat).await;
            (segment.name.name.clone(), flat, result)
        };
        let todo: Vec<_> = todo.map(|n| (n.segment.clone(), n.parts.clone())).collect();
        let mut made =
            futures_util::stream::iter(todo.into_iter().map(make)).buffer_unordered(CONCURRENT_MAX);
        while let Some((name, flat, result)) = made.next().await {
            work.replaced.extend(flat.made.iter().cloned());
            result?;
            work.flat.insert(name, flat);
        }
        Ok(())
    }

    async fn flat_parts(&self, nested: &Segment, parts: &[Part], flat: &mut Flat) -> Result<()> {
        for run in runs(parts, &self.limits) {
            let run = &parts[run];
            if self.is_small_run(run) {
                self.check_end()?;
                let segment = self.flat_segment(nested, run).await?;
                flat.parts.push(whole(&segment));
                flat.made.push(segment);
            } else {
                flat.parts.extend_from_slice(run);
            }
        }
        Ok(())
    }

    /// One segment with the bytes of parts of a nested manifest.
    async fn flat_segment(&self, nested: &Segment, parts: &[Part]) -> Result<Arc<Segment>> {
        let id = file_id(&nested.name.name);
        let id = id.ok_or_else(|| StoreError::new(Why::Refused, "a nested manifest of no file"))?;
        let mut at = 0;
        let spans = parts.iter().map(|part| {
            let offset = at;
            at += part.length;
            let (segment, from) = (part.segment.clone(), part.offset);
            Span {
                offset,
                length: part.length,
                source: Some(FileSource::Segment {
                    segment,
                    offset: from,
                }),
            }
        });
        let spans: Vec<Span<FileSource>> = spans.collect();
        // No part is of the file's own object.
        let own = Arc::new(Version {
            name: ObjectName::new(self.store.container(), ""),
            etag: None,
            bytes: 0,
        });
        self.cache.prefetch_spans(&own, &spans);
        let body = self.cache.gather(Reader::Program, &own, &spans).await?;
        self.upload(id, body).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mount_has_its_share_and_one_that_leaves_changes_no_other() {
        let mounts = ["a1", "b2", "c3", "d4"];
        let names: Vec<String> = (0..400)
            .map(|i| format!(".segments/x/a.{i:08}.parts"))
            .collect();
        let of = |mounts: &[&'static str]| -> Vec<&str> {
            names
                .iter()
                .map(|name| owner(mounts, name).unwrap_or(""))
                .collect()
        };
        let all = of(&mounts);
        for mount in mounts {
            let share = all.iter().filter(|owner| **owner == mount).count();
            assert!((60..140).contains(&share), "{mount} has {share} of 400");
        }
        let without: Vec<&str> = of(&mounts[..3]);
        for (before, after) in all.iter().zip(without) {
            assert!(*before == "d4" || *before == after);
        }
        assert_eq!(owner(&[], "n"), None);
    }
}
