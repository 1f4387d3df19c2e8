//! Content of a file as seen by this mount: a version on the store (the base), overlaid by local
//! writes. A commit merges both into a new version; another writer's version can replace the base
//! without losing local writes.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use crate::extents::{Extents, Source, Span};
use crate::nested::Nested;
use crate::store::{Part, Segment};

/// Memory in use for bytes that are not on the store yet.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    pub(crate) fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes of one write, in memory until no part of them is needed.
#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Bytes,
    budget: Arc<Budget>,
    /// An upload of all its remaining pieces is in progress.
    is_sending: AtomicBool,
}

impl Chunk {
    pub(crate) fn new(bytes: Bytes, budget: &Arc<Budget>) -> Arc<Chunk> {
        budget.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Arc::new(Chunk {
            bytes,
            budget: budget.clone(),
            is_sending: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_sending(&self) -> bool {
        self.is_sending.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sending(&self, is_sending: bool) {
        self.is_sending.store(is_sending, Ordering::Relaxed);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.budget
            .0
            .fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Source of a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum FileSource {
    /// The object under the file's own name, in the loaded version.
    Own {
        offset: u64,
    },
    Segment {
        segment: Arc<Segment>,
        offset: u64,
    },
    Memory {
        chunk: Arc<Chunk>,
        offset: u64,
    },
    /// Zeros, written explicitly or by extending the file.
    Zero,
}

impl FileSource {
    /// Bytes of a source that is in memory.
    pub(crate) fn bytes(&self, length: u64) -> Option<Bytes> {
        match self {
            FileSource::Memory { chunk, offset } => {
                let start = *offset as usize;
                Some(chunk.bytes.slice(start..start + length as usize))
            }
            _ => None,
        }
    }
}

impl Source for FileSource {
    fn at(&self, bytes: u64) -> FileSource {
        match self {
            FileSource::Own { offset } => FileSource::Own {
                offset: offset + bytes,
            },
            FileSource::Segment { segment, offset } => FileSource::Segment {
                segment: segment.clone(),
                offset: offset + bytes,
            },
            FileSource::Memory { chunk, offset } => FileSource::Memory {
                chunk: chunk.clone(),
                offset: offset + bytes,
            },
            FileSource::Zero => FileSource::Zero,
        }
    }

    fn goes_on_as(&self, bytes: u64, next: &FileSource) -> bool {
        match (self, next) {
            (FileSource::Own { offset }, FileSource::Own { offset: next }) => {
                offset + bytes == *next
            }
            (
                FileSource::Segment { segment, offset },
                FileSource::Segment {
                    segment: other,
                    offset: next,
                },
            ) => segment == other && offset + bytes == *next,
            (
                FileSource::Memory { chunk, offset },
                FileSource::Memory {
                    chunk: other,
                    offset: next,
                },
            ) => Arc::ptr_eq(chunk, other) && offset + bytes == *next,
            (FileSource::Zero, FileSource::Zero) => true,
            _ => false,
        }
    }
}

/// Layout of a file version on the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) extents: Extents<FileSource>,
    pub(crate) bytes: u64,
    /// The file's own name is an ordinary object, which the store can copy.
    pub(crate) is_plain: bool,
    /// Parts of its manifest that are nested manifests; their parts are in `extents`.
    pub(crate) nested: Vec<Nested>,
}

impl Layout {
    /// The layout of a file that is one object, of whatever kind.
    pub(crate) fn own(bytes: u64, is_plain: bool) -> Layout {
        let mut extents = Extents::default();
        extents.insert(0, bytes, FileSource::Own { offset: 0 });
        Layout {
            extents,
            bytes,
            is_plain,
            nested: Vec::new(),
        }
    }

    /// The layout of a file with these parts, those of nested manifests expanded.
    pub(crate) fn of_parts(parts: Vec<Part>, nested: Vec<Nested>) -> Layout {
        let (mut extents, mut at) = (Extents::default(), 0);
        for Part {
            segment,
            offset,
            length,
        } in parts
        {
            extents.insert(at, length, FileSource::Segment { segment, offset });
            at += length;
        }
        Layout {
            extents,
            bytes: at,
            is_plain: false,
            nested,
        }
    }

    /// All segments it refers to, nested manifests included.
    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        let nested = self.nested.iter().map(|nested| nested.segment.clone());
        let mut all: Vec<Arc<Segment>> = nested.collect();
        let mut seen = std::collections::HashSet::new();
        for (_, _, source) in self.extents.iter() {
            if let FileSource::Segment { segment, .. } = source
                && seen.insert(segment.clone())
            {
                all.push(segment.clone());
            }
        }
        all
    }
}

/// Local writes that are all in memory, with what is needed to put them over any version.
#[derive(Debug)]
pub(crate) struct Saved {
    /// Size of the version that they were made over.
    pub(crate) base_bytes: u64,
    pub(crate) size: u64,
    /// The size that was set last, which the file has at least.
    pub(crate) resized: u64,
    /// Ranges of `written` that go to the file's end, in order.
    pub(crate) appended: Vec<Range<u64>>,
    pub(crate) written: Extents<FileSource>,
}

/// A file version overlaid by local writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    base: Layout,
    /// End of the usable base: bytes behind it were cut off.
    base_end: u64,
    written: Extents<FileSource>,
    /// Ranges of the base, and gaps, that an upload has copied elsewhere. Invalid for another base.
    copies: Extents<FileSource>,
    /// Ranges of `written` that are appended at the file's end, wherever that is at commit. In
    /// order.
    appended: Vec<Range<u64>>,
    size: u64,
    /// The size that was set last, which the file has at least.
    resized: u64,
    /// The least size to which the file was truncated below its base: a version of another writer is
    /// truncated to it too.
    cut: Option<u64>,
    /// The sizes to which the file was made shorter since its last commit, in order.
    shrunk: Vec<u64>,
    is_dirty: bool,
}

impl Content {
    pub(crate) fn of(base: Layout) -> Content {
        Content {
            base_end: base.bytes,
            size: base.bytes,
            resized: 0,
            base,
            written: Extents::default(),
            copies: Extents::default(),
            appended: Vec::new(),
            cut: None,
            shrunk: Vec::new(),
            is_dirty: false,
        }
    }

    /// Writes that were saved, over another version.
    pub(crate) fn of_saved(saved: Saved, base: Layout) -> Content {
        let mut content = Content {
            written: saved.written,
            appended: saved.appended,
            size: saved.size,
            resized: saved.resized,
            ..Content::of(Layout::own(saved.base_bytes, false))
        };
        content.rebase(base);
        content
    }

    /// The local writes, if they can be saved: none is in a segment already, and the file was not
    /// truncated below its version on the store.
    pub(crate) fn saved(&self) -> Option<Saved> {
        let is_here = |(_, _, source): (u64, u64, &FileSource)| {
            matches!(source, FileSource::Memory { .. } | FileSource::Zero)
        };
        let can_be = self.cut.is_none() && self.written.iter().all(is_here);
        can_be.then(|| Saved {
            base_bytes: self.base.bytes,
            size: self.size,
            resized: self.resized,
            appended: self.appended.clone(),
            written: self.written.clone(),
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn base(&self) -> &Layout {
        &self.base
    }

    /// Is a commit due?
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Makes a commit due although no byte has changed: the file is new.
    pub(crate) fn touch(&mut self) {
        self.is_dirty = true;
    }

    pub(crate) fn write(&mut self, offset: u64, length: u64, source: FileSource) {
        if length == 0 {
            return;
        }
        self.written.insert(offset, length, source);
        self.size = self.size.max(offset + length);
        self.is_dirty = true;
    }

    /// Writes at the end. If another writer has extended the file meanwhile, a commit moves the
    /// bytes behind its data.
    pub(crate) fn append(&mut self, length: u64, source: FileSource) {
        let start = self.size;
        self.write(start, length, source);
        match self.appended.last_mut() {
            Some(last) if last.end == start => last.end = self.size,
            _ if length > 0 => self.appended.push(start..self.size),
            _ => {}
        }
    }

    /// Fixes the position of appended bytes before `end`, which are on the store.
    pub(crate) fn place(&mut self, end: u64) {
        self.appended.retain_mut(|range| {
            range.start = range.start.max(end);
            range.start < range.end
        });
    }

    /// Was the file truncated below its version on the store?
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// The number of times that it was made shorter since its last commit.
    pub(crate) fn shrunk(&self) -> usize {
        self.shrunk.len()
    }

    /// The local writes.
    pub(crate) fn written(&self) -> &Extents<FileSource> {
        &self.written
    }

    /// A version with the writes `stored` was stored, and others have replaced it: it becomes the base.
    /// Those writes are made no more: they would go over the bytes of others, and segments of that
    /// version may go with it at any time.
    pub(crate) fn overtaken(
        &mut self,
        bytes: u64,
        shrunk: usize,
        needed: &HashSet<Arc<Segment>>,
        stored: &Extents<FileSource>,
    ) {
        self.place(bytes);
        let mut over: Vec<Range<u64>> = Vec::new();
        for (offset, length, source) in self.written.iter() {
            match source {
                FileSource::Segment { segment, .. } if needed.contains(segment) => {
                    over.push(offset..offset + length);
                }
                FileSource::Memory { .. } => {
                    let same = pieces(stored, offset..offset + length)
                        .filter(|(at, _, was)| was.goes_on_as(0, &source.at(at - offset)));
                    over.extend(same.map(|(at, length, _)| at..at + length));
                }
                _ => {}
            }
        }
        for range in over {
            self.written.remove(range);
        }
        let later = self.shrunk.get(shrunk..).unwrap_or_default();
        self.cut = later.iter().copied().min().filter(|cut| *cut < bytes);
        self.base = Layout::own(bytes, false);
        self.base_end = self.cut.unwrap_or(bytes);
        if self.resized <= bytes {
            self.resized = 0;
        }
        self.copies = Extents::default();
    }

    /// Takes back a change of size that has failed. Another version may have become the base meanwhile.
    pub(crate) fn restore(&mut self, before: Content, is_rebased: bool) {
        let mut shrunk = std::mem::take(&mut self.shrunk);
        let failed = shrunk.iter_mut().skip(before.shrunk.len());
        failed.for_each(|size| *size = u64::MAX);
        let base = std::mem::take(&mut self.base);
        *self = match (is_rebased, before.is_dirty) {
            (true, false) => Content::of(base),
            (true, true) => {
                let mut content = before;
                content.rebase(base);
                content
            }
            (false, _) => before,
        };
        self.shrunk = shrunk;
    }

    /// Removes all content, including that of other writers' versions.
    pub(crate) fn empty(&mut self) {
        self.resize(0);
        self.cut = Some(0);
        self.shrunk.push(0);
        self.is_dirty = true;
    }

    pub(crate) fn resize(&mut self, size: u64) {
        if size < self.base_end || self.cut.is_some_and(|cut| size < cut) {
            self.cut = Some(size);
        }
        if size < self.size {
            self.shrunk.push(size);
        }
        if size != self.size {
            self.resized = size;
        }
        self.base_end = self.base_end.min(size);
        self.written.truncate(size);
        self.copies.truncate(size);
        self.appended.retain_mut(|range| {
            range.end = range.end.min(size);
            range.start < range.end
        });
        self.is_dirty |= size != self.size;
        self.size = size;
    }

    /// Spans from `offset`, at most `length` bytes, not beyond the end. A gap is zeros.
    pub(crate) fn spans(&self, offset: u64, length: u64) -> Vec<Span<FileSource>> {
        let end = offset.saturating_add(length).min(self.size);
        if offset >= end {
            return Vec::new();
        }
        let mut spans = Vec::new();
        for span in self.written.spans(offset..end) {
            if span.source.is_some() {
                spans.push(span);
                continue;
            }
            for span in self.copies.spans(span.offset..span.end()) {
                match span.source {
                    Some(_) => spans.push(span),
                    None => self.base_spans(span.offset..span.end(), &mut spans),
                }
            }
        }
        spans
    }

    fn base_spans(&self, range: Range<u64>, spans: &mut Vec<Span<FileSource>>) {
        let shown = range.end.min(self.base_end).max(range.start);
        spans.extend(self.base.extents.spans(range.start..shown));
        if shown < range.end {
            spans.push(Span {
                offset: shown,
                length: range.end - shown,
                source: None,
            });
        }
    }

    /// Ranges that are only in memory, in file order.
    pub(crate) fn in_memory(&self) -> Vec<(u64, u64, FileSource)> {
        let is_memory = |source: &FileSource| matches!(source, FileSource::Memory { .. });
        let pieces = self
            .written
            .iter()
            .filter(|(_, _, source)| is_memory(source));
        pieces
            .map(|(o, length, source)| (o, length, source.clone()))
            .collect()
    }

    /// Records that a segment has the bytes of a write: applies to the parts of `chunk` that are
    /// still at their position.
    pub(crate) fn uploaded(
        &mut self,
        offset: u64,
        length: u64,
        from: &FileSource,
        to: &FileSource,
    ) {
        let FileSource::Memory {
            chunk: uploaded,
            offset: first,
        } = from
        else {
            return;
        };
        // Appended bytes may have moved since: equal ones at another position are not these.
        self.written
            .replace(offset..offset + length, |at, source| match source {
                FileSource::Memory { chunk, offset: now }
                    if Arc::ptr_eq(chunk, uploaded) && *now == first + (at - offset) =>
                {
                    Some(to.at(at - offset))
                }
                _ => None,
            });
    }

    /// Records another source of the same bytes. Bytes of the base do not become local writes by
    /// this, which would hide another writer's data in a later base.
    pub(crate) fn moved(&mut self, offset: u64, length: u64, to: FileSource) {
        for span in self.written.spans(offset..offset + length) {
            let to = to.at(span.offset - offset);
            match span.source {
                Some(_) => self.written.insert(span.offset, span.length, to),
                None => self.copies.insert(span.offset, span.length, to),
            }
        }
    }

    /// Records that `segment` has the bytes of the file's own object.
    pub(crate) fn own_moved(&mut self, segment: &Arc<Segment>) {
        let to = |_, source: &FileSource| match source {
            FileSource::Own { offset } => Some(FileSource::Segment {
                segment: segment.clone(),
                offset: *offset,
            }),
            _ => None,
        };
        self.base.extents.replace(0..u64::MAX, to);
        self.written.replace(0..u64::MAX, to);
    }

    /// A commit has stored all local writes.
    pub(crate) fn committed(&mut self, base: Layout) {
        *self = Content::of(base);
    }

    /// Replaces the base by another writer's version; appended bytes move behind it.
    pub(crate) fn rebase(&mut self, base: Layout) {
        match self.cut {
            Some(cut) => self.base_end = cut.min(base.bytes),
            None => {
                self.append_behind(base.bytes);
                self.base_end = base.bytes;
                self.size = base.bytes.max(self.written.end()).max(self.resized);
            }
        }
        self.base = base;
        self.copies = Extents::default();
        self.is_dirty = true;
    }

    /// Moves appended bytes as if they had been written to a file of `bytes` bytes: each part to
    /// the file's end at that point. Bytes written at explicit offsets stay.
    fn append_behind(&mut self, bytes: u64) {
        if self.appended.is_empty() {
            return;
        }
        #[cfg(test)]
        if crate::simulated::has(crate::simulated::Plant::AppendsInPlace) {
            return;
        }
        let (old, ranges) = (
            std::mem::take(&mut self.written),
            std::mem::take(&mut self.appended),
        );
        // The file's end when each part was appended, and the end now.
        let (mut was, mut end, mut from) = (self.base_end, bytes, 0);
        for range in ranges {
            for (offset, length, source) in pieces(&old, from..range.start) {
                self.written.insert(offset, length, source);
                was = was.max(offset + length);
                end = end.max(offset + length);
            }
            // The file had been extended before.
            let start = if range.start > was {
                end.max(range.start)
            } else {
                end
            };
            for (offset, length, source) in pieces(&old, range.clone()) {
                let moved = start + (offset - range.start);
                self.written.insert(moved, length, source);
            }
            (was, from) = (range.end, range.end);
            end = start + (range.end - range.start);
            match self.appended.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => self.appended.push(start..end),
            }
        }
        for (offset, length, source) in pieces(&old, from..u64::MAX) {
            self.written.insert(offset, length, source);
        }
    }
}

/// The parts of a range that have a source.
fn pieces(
    extents: &Extents<FileSource>,
    range: Range<u64>,
) -> impl Iterator<Item = (u64, u64, FileSource)> {
    let spans = extents.spans(range);
    let piece = |span: Span<FileSource>| Some((span.offset, span.length, span.source?));
    spans.into_iter().filter_map(piece)
}

#[cfg(test)]
mod tests;
