//! The content of a file as this mount sees it: the version on the store, and over it what was
//! written here since. A commit merges both into a new version; a version that somebody else wrote
//! can be put below without losing what was written here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use crate::extents::{Extents, Source, Span};
use crate::store::Segment;

/// How much memory holds bytes that are not on the store yet.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    pub(crate) fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The bytes of one write, in memory until no part of them is needed.
#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Bytes,
    budget: Arc<Budget>,
    /// An upload of all pieces of it that are left is under way.
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

/// From where bytes of a file come.
#[derive(Clone, Debug)]
pub(crate) enum FileSource {
    /// The object under the file's own name, at the version that was loaded.
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
    /// Zeros that were written as such, or for which a file was made longer.
    Zero,
}

impl FileSource {
    /// Bytes in memory.
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

/// A version of a file on the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) extents: Extents<FileSource>,
    pub(crate) bytes: u64,
    /// Bytes under the file's own name are those of one ordinary object, which the store can copy.
    pub(crate) is_plain: bool,
}

impl Layout {
    /// A file that is one object, of whatever kind.
    pub(crate) fn own(bytes: u64, is_plain: bool) -> Layout {
        let mut extents = Extents::default();
        extents.insert(0, bytes, FileSource::Own { offset: 0 });
        Layout {
            extents,
            bytes,
            is_plain,
        }
    }

    /// The segments it refers to.
    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        let mut all: Vec<Arc<Segment>> = Vec::new();
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

/// A version of a file and what was written over it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    base: Layout,
    /// Bytes of the base behind that were cut off.
    base_end: u64,
    written: Extents<FileSource>,
    size: u64,
    /// The file was made shorter than its base: a longer version of somebody else is too.
    is_cut: bool,
    is_dirty: bool,
}

impl Content {
    pub(crate) fn of(base: Layout) -> Content {
        Content {
            base_end: base.bytes,
            size: base.bytes,
            base,
            written: Extents::default(),
            is_cut: false,
            is_dirty: false,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn base(&self) -> &Layout {
        &self.base
    }

    /// Whether a commit is due.
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// A commit is due though no byte has changed: a file that is new.
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

    /// Nothing of the file is left, whatever anybody else has written.
    pub(crate) fn empty(&mut self) {
        self.resize(0);
        self.is_cut = true;
        self.is_dirty = true;
    }

    pub(crate) fn resize(&mut self, size: u64) {
        self.is_cut |= size < self.base_end;
        self.base_end = self.base_end.min(size);
        self.written.truncate(size);
        self.is_dirty |= size != self.size;
        self.size = size;
    }

    /// Bytes from `offset`, at most `length`, never behind the end. A gap is zeros.
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
            let shown = span.end().min(self.base_end).max(span.offset);
            spans.extend(self.base.extents.spans(span.offset..shown));
            if shown < span.end() {
                spans.push(Span {
                    offset: shown,
                    length: span.end() - shown,
                    source: None,
                });
            }
        }
        spans
    }

    /// Bytes that are in memory alone, in the order of the file.
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

    /// Bytes of a write are in a segment now: those of `chunk` that still are where they were.
    pub(crate) fn uploaded(
        &mut self,
        offset: u64,
        length: u64,
        from: &FileSource,
        to: &FileSource,
    ) {
        let FileSource::Memory {
            chunk: uploaded, ..
        } = from
        else {
            return;
        };
        self.written
            .replace(offset..offset + length, |at, source| match source {
                FileSource::Memory { chunk, .. } if Arc::ptr_eq(chunk, uploaded) => {
                    Some(to.at(at - offset))
                }
                _ => None,
            });
    }

    /// The same bytes are to be had elsewhere.
    pub(crate) fn moved(&mut self, offset: u64, length: u64, to: FileSource) {
        self.written.insert(offset, length, to);
    }

    /// Bytes of the own object are in `segment` now.
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

    /// A commit has put everything that was written on the store.
    pub(crate) fn committed(&mut self, base: Layout) {
        *self = Content::of(base);
    }

    /// Somebody else has written another version: it goes below what was written here.
    pub(crate) fn rebase(&mut self, base: Layout) {
        let was_as_base = self.size == self.base.bytes;
        if !self.is_cut {
            self.base_end = base.bytes;
            self.size = match was_as_base {
                true => base.bytes.max(self.written.end()),
                false => base.bytes.max(self.size),
            };
        } else {
            self.base_end = self.base_end.min(base.bytes);
        }
        self.base = base;
        self.is_dirty = true;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::ObjectName;

    fn memory(budget: &Arc<Budget>, text: &'static str) -> FileSource {
        FileSource::Memory {
            chunk: Chunk::new(Bytes::from_static(text.as_bytes()), budget),
            offset: 0,
        }
    }

    fn shown(content: &Content) -> String {
        let mut text = String::new();
        for span in content.spans(0, u64::MAX) {
            match &span.source {
                Some(FileSource::Own { offset }) => {
                    for i in 0..span.length {
                        text.push(char::from(b'A' + (offset + i) as u8));
                    }
                }
                Some(source @ FileSource::Memory { .. }) => {
                    let bytes = source.bytes(span.length).unwrap();
                    text.push_str(std::str::from_utf8(&bytes).unwrap());
                }
                Some(FileSource::Segment { offset, .. }) => {
                    text.push_str(&format!("<{offset}+{}>", span.length))
                }
                Some(FileSource::Zero) | None => text.push_str(&"0".repeat(span.length as usize)),
            }
        }
        text
    }

    #[test]
    fn what_was_cut_off_does_not_come_back() {
        let budget = Arc::default();
        let mut content = Content::of(Layout::own(8, true));
        content.write(2, 2, memory(&budget, "xy"));
        assert_eq!(shown(&content), "ABxyEFGH");
        content.resize(3);
        content.resize(6);
        assert_eq!(shown(&content), "ABx000");
        content.write(7, 1, memory(&budget, "z"));
        assert_eq!(shown(&content), "ABx0000z");
    }

    #[test]
    fn a_foreign_version_goes_below() {
        let budget = Arc::default();
        let mut content = Content::of(Layout::own(4, true));
        content.write(1, 1, memory(&budget, "x"));
        content.rebase(Layout::own(6, true));
        assert_eq!(shown(&content), "AxCDEF");
        content.resize(2);
        content.rebase(Layout::own(6, true));
        assert_eq!(shown(&content), "Ax");
        let mut made = Content::default();
        made.write(0, 1, memory(&budget, "y"));
        made.rebase(Layout::own(3, true));
        assert_eq!(shown(&made), "yBC");
        let mut emptied = Content::default();
        emptied.empty();
        emptied.write(0, 1, memory(&budget, "y"));
        emptied.rebase(Layout::own(3, true));
        assert_eq!(shown(&emptied), "y");
    }

    #[test]
    fn memory_is_given_back_when_no_byte_is_needed() {
        let budget = Arc::default();
        let mut content = Content::default();
        let first = memory(&budget, "abcd");
        content.write(0, 4, first.clone());
        content.write(1, 1, memory(&budget, "z"));
        assert_eq!(budget.used(), 5);
        let segment = Arc::new(Segment {
            name: ObjectName::new("c", "s"),
            bytes: 4,
        });
        let to = FileSource::Segment {
            segment,
            offset: 10,
        };
        content.uploaded(0, 4, &first, &to);
        drop(first);
        assert_eq!(shown(&content), "<10+1>z<12+2>");
        assert_eq!(budget.used(), 1);
        content.resize(0);
        assert_eq!(budget.used(), 0);
    }
}
