//! Two-level manifests for files of many small parts: adjacent small parts are one part of the
//! file's manifest, which is an immutable manifest of its own
//! (`.segments/FILE-ID/MOUNT.NUMBER.parts`). It serves as the file's index: a mount reads it, and
//! then the parts directly, at full speed; other clients read through it as through any large
//! object. `commit/nesting.rs` reads and writes them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::{Part, Segment};

/// Maximum number of cached parts of manifests.
const KNOWN_PARTS_MAX: usize = 400_000;

/// A part of a file that is a whole nested manifest.
#[derive(Clone, Debug)]
pub(crate) struct Nested {
    /// Its offset in the file.
    pub(crate) at: u64,
    pub(crate) segment: Arc<Segment>,
    pub(crate) parts: Arc<Vec<Part>>,
}

/// Cache of recently read or written nested manifests, by name. They are immutable.
#[derive(Default)]
pub(crate) struct Known(Mutex<KnownParts>);

#[derive(Default)]
struct KnownParts {
    by_name: HashMap<Arc<str>, Arc<Vec<Part>>>,
    count: usize,
}

impl Known {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Vec<Part>>> {
        self.0.lock().by_name.get(name).cloned()
    }

    pub(crate) fn add(&self, name: Arc<str>, parts: Arc<Vec<Part>>) {
        let mut known = self.0.lock();
        if known.count + parts.len() > KNOWN_PARTS_MAX {
            *known = KnownParts::default();
        }
        known.count += parts.len();
        known.by_name.insert(name, parts);
    }
}

pub(crate) fn bytes_of(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.length).sum()
}

pub(crate) fn is_same(a: &Part, b: &Part) -> bool {
    a.segment == b.segment && a.offset == b.offset && a.length == b.length
}

/// `length` bytes from `offset` of the concatenation of `parts`.
pub(crate) fn cut(parts: &[Part], offset: u64, length: u64) -> Vec<Part> {
    let (mut at, mut cut) = (0, Vec::new());
    for part in parts {
        let (start, end) = (offset.max(at), (offset + length).min(at + part.length));
        if start < end {
            cut.push(Part {
                segment: part.segment.clone(),
                offset: part.offset + (start - at),
                length: end - start,
            });
        }
        at += part.length;
    }
    cut
}

pub(crate) fn whole(segment: &Arc<Segment>) -> Part {
    Part {
        segment: segment.clone(),
        offset: 0,
        length: segment.bytes,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::store::ObjectName;

    pub(crate) fn parts(lengths: &[u64]) -> Vec<Part> {
        let segment = |bytes| {
            let name = ObjectName::new("c", "s");
            Arc::new(Segment { name, bytes })
        };
        let part = |bytes: &u64| whole(&segment(*bytes));
        lengths.iter().map(part).collect()
    }

    proptest::proptest! {
        #[test]
        fn a_cut_is_that_of_the_bytes(lengths in proptest::collection::vec(1u64..9, 1..9), a in 0u64..70, b in 0u64..70) {
            let all = parts(&lengths);
            let (offset, length) = (a.min(b), a.abs_diff(b));
            let total: u64 = lengths.iter().sum();
            let got = bytes_of(&cut(&all, offset, length));
            proptest::prop_assert_eq!(got, (offset + length).min(total).saturating_sub(offset));
        }
    }
}
