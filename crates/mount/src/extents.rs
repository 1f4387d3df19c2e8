//! Extent map: the source of each byte of a file. Sparse, ordered, without overlaps; an insertion
//! replaces what it covers. Pure: moves no bytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// A position in a source of consecutive bytes.
pub(crate) trait Source: Clone {
    /// The position `bytes` further on.
    fn at(&self, bytes: u64) -> Self;

    /// Does `next` equal `self.at(bytes)`?
    fn goes_on_as(&self, bytes: u64, next: &Self) -> bool;
}

#[derive(Clone, Debug, PartialEq)]
struct Piece<S> {
    length: u64,
    source: S,
}

/// A range of a file: from a source, or a gap.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span<S> {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) source: Option<S>,
}

impl<S> Span<S> {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// The map of a file, or of the writes to it.
#[derive(Clone, Debug)]
pub(crate) struct Extents<S> {
    pieces: BTreeMap<u64, Piece<S>>,
}

impl<S> Default for Extents<S> {
    fn default() -> Self {
        Extents {
            pieces: BTreeMap::new(),
        }
    }
}

impl<S: Source> Extents<S> {
    /// Number of extents.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// End of the last extent.
    pub(crate) fn end(&self) -> u64 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(offset, piece)| offset + piece.length)
    }

    /// Splits the extent that contains `at`.
    fn split(&mut self, at: u64) {
        let Some((&offset, piece)) = self.pieces.range_mut(..at).next_back() else {
            return;
        };
        let head = at - offset;
        if piece.length <= head {
            return;
        }
        let tail = Piece {
            length: piece.length - head,
            source: piece.source.at(head),
        };
        piece.length = head;
        self.pieces.insert(at, tail);
    }

    /// Removes the sources of `range`.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let inside: Vec<u64> = self
            .pieces
            .range(range)
            .map(|(offset, _)| *offset)
            .collect();
        for offset in inside {
            self.pieces.remove(&offset);
        }
    }

    pub(crate) fn truncate(&mut self, length: u64) {
        self.remove(length..u64::MAX);
    }

    /// Sets the source of `length` bytes from `offset`.
    pub(crate) fn insert(&mut self, offset: u64, length: u64, source: S) {
        if length == 0 {
            return;
        }
        self.remove(offset..offset + length);
        let mut piece = Piece { length, source };
        let after = offset + length;
        if let Some(next) = self.pieces.get(&after)
            && piece.source.goes_on_as(length, &next.source)
        {
            piece.length += next.length;
            self.pieces.remove(&after);
        }
        if let Some((&before, previous)) = self.pieces.range_mut(..offset).next_back()
            && before + previous.length == offset
            && previous.source.goes_on_as(previous.length, &piece.source)
        {
            previous.length += piece.length;
            return;
        }
        self.pieces.insert(offset, piece);
    }

    /// All spans of `range` in order, gaps included.
    pub(crate) fn spans(&self, range: Range<u64>) -> Vec<Span<S>> {
        let mut spans = Vec::new();
        let mut at = range.start;
        let first = self.pieces.range(..=range.start).next_back();
        let from = first.map_or(range.start, |(offset, _)| *offset);
        for (&offset, piece) in self.pieces.range(from..range.end.max(from)) {
            let (start, end) = (offset.max(at), (offset + piece.length).min(range.end));
            if start >= end {
                continue;
            }
            if start > at {
                spans.push(Span {
                    offset: at,
                    length: start - at,
                    source: None,
                });
            }
            let source = Some(piece.source.at(start - offset));
            spans.push(Span {
                offset: start,
                length: end - start,
                source,
            });
            at = end;
        }
        if at < range.end {
            spans.push(Span {
                offset: at,
                length: range.end - at,
                source: None,
            });
        }
        spans
    }

    /// All extents: offset, length, source.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &S)> {
        self.pieces
            .iter()
            .map(|(offset, piece)| (*offset, piece.length, &piece.source))
    }

    /// Replaces the sources in `range` for which `change` returns another one.
    pub(crate) fn replace(&mut self, range: Range<u64>, change: impl Fn(u64, &S) -> Option<S>) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let inside = self.pieces.range(range);
        let changed: Vec<(u64, u64, S)> = inside
            .filter_map(|(o, piece)| Some((*o, piece.length, change(*o, &piece.source)?)))
            .collect();
        for (offset, length, source) in changed {
            self.insert(offset, length, source);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Byte `i` of source `id` is `(id, from + i)`.
    #[derive(Clone, Debug, PartialEq)]
    struct Log {
        id: u32,
        from: u64,
    }

    impl Source for Log {
        fn at(&self, bytes: u64) -> Log {
            Log {
                from: self.from + bytes,
                ..*self
            }
        }

        fn goes_on_as(&self, bytes: u64, next: &Log) -> bool {
            self.at(bytes) == *next
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64, u32, u64),
        Remove(u64, u64),
        Truncate(u64),
        Replace(u64, u64, u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..100u64, 0..40u64, 0..4u32, 0..50u64)
                .prop_map(|(o, l, i, f)| Step::Insert(o, l, i, f)),
            (0..120u64, 0..40u64).prop_map(|(o, l)| Step::Remove(o, l)),
            (0..120u64).prop_map(Step::Truncate),
            (0..120u64, 0..60u64, 0..4u32).prop_map(|(o, l, i)| Step::Replace(o, l, i)),
        ];
        proptest::collection::vec(step, 0..40)
    }

    type Model = Vec<Option<(u32, u64)>>;

    fn apply(step: &Step, extents: &mut Extents<Log>, model: &mut Model) {
        match *step {
            Step::Insert(offset, length, id, from) => {
                extents.insert(offset, length, Log { id, from });
                for i in 0..length {
                    model[(offset + i) as usize] = Some((id, from + i));
                }
            }
            Step::Remove(offset, length) => {
                extents.remove(offset..offset + length);
                model[offset as usize..(offset + length) as usize].fill(None);
            }
            Step::Truncate(length) => {
                extents.truncate(length);
                model[length as usize..].fill(None);
            }
            Step::Replace(offset, length, id) => {
                let range = offset..offset + length;
                extents.replace(range, |_, s| {
                    (s.id == id).then_some(Log {
                        id: 100 + id,
                        from: s.from,
                    })
                });
                for byte in &mut model[offset as usize..(offset + length) as usize] {
                    *byte = byte.map(|(i, from)| (if i == id { 100 + id } else { i }, from));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_map_is_as_a_plain_array(steps in steps(), from in 0..150u64, length in 0..150u64) {
            let mut extents = Extents::default();
            let mut model: Model = vec![None; 400];
            for step in &steps {
                apply(step, &mut extents, &mut model);
                let mut end = 0;
                let mut last: Option<(u64, u64, Log)> = None;
                for (offset, length, source) in extents.iter() {
                    prop_assert!(length > 0 && offset >= end, "pieces are ordered and apart");
                    end = offset + length;
                    last = Some((offset, length, source.clone()));
                }
                prop_assert_eq!(extents.end(), last.map_or(0, |(o, l, _)| o + l));
            }
            let spans = extents.spans(from..from + length);
            let mut at = from;
            for span in spans {
                prop_assert_eq!(span.offset, at);
                prop_assert!(span.length > 0);
                for i in 0..span.length {
                    let expected = model[(at + i) as usize];
                    let got = span.source.as_ref().map(|s| (s.id, s.from + i));
                    prop_assert_eq!(got, expected);
                }
                at = span.end();
            }
            prop_assert_eq!(at, from + length);
        }
    }

    #[test]
    fn what_goes_on_is_one_piece() {
        let mut extents = Extents::default();
        extents.insert(0, 10, Log { id: 1, from: 0 });
        extents.insert(20, 10, Log { id: 1, from: 20 });
        extents.insert(10, 10, Log { id: 1, from: 10 });
        assert_eq!(extents.len(), 1);
        extents.insert(5, 1, Log { id: 2, from: 0 });
        assert_eq!(extents.len(), 3);
        extents.insert(5, 1, Log { id: 1, from: 5 });
        assert_eq!(extents.len(), 1);
    }
}
