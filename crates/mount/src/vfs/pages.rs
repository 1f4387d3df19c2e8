//! Pages of files that the kernel has. A program's write goes past them: the kernel drops those in its range before
//! it sends the write, and may read them again, for a mapping, before the write is applied here. Such a page has
//! the bytes from before. So the kernel is told to drop these pages before the write's call returns, and
//! what it sends of them until then, because a program has changed other bytes of a page, leaves the write's
//! bytes alone.

use std::ops::Range;
use std::sync::Arc;

use super::tree::Node;

/// A file's pages in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// The kernel has read some, and may have them.
    were_read: bool,
    /// Bytes of writes that pages may lack: the write's number, and a range.
    lacking: Vec<(u64, Range<u64>)>,
    last_write: u64,
}

/// The parts of a range that are not in another one.
fn outside(bytes: Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = bytes.start..bytes.end.min(other.start);
    let behind = bytes.start.max(other.end)..bytes.end;
    let parts = [before, behind].into_iter();
    parts.filter(|part| !part.is_empty())
}

impl Pages {
    /// The kernel reads these bytes for its cache: it does not have their pages from before any more.
    pub(super) fn read(&mut self, range: &Range<u64>) {
        self.were_read = true;
        if !self.lacking.is_empty() {
            let lacking = std::mem::take(&mut self.lacking).into_iter();
            self.lacking = lacking
                .flat_map(|(write, bytes)| outside(bytes, range).map(move |rest| (write, rest)))
                .collect();
        }
    }

    /// A program has written these bytes; returns the write's number where pages may lack them.
    fn wrote(&mut self, range: &Range<u64>) -> Option<u64> {
        if !self.were_read || range.is_empty() {
            return None;
        }
        self.last_write += 1;
        self.lacking.push((self.last_write, range.clone()));
        Some(self.last_write)
    }

    /// The parts that may be taken of a page that the kernel sends: all but bytes that it may lack.
    pub(super) fn taken(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut taken = vec![range];
        for (_, lacking) in &self.lacking {
            taken = taken
                .into_iter()
                .flat_map(|bytes| outside(bytes, lacking))
                .collect();
        }
        taken
    }
}

/// A write that is applied, while the kernel may have pages from before it. Dropped when it has
/// none.
pub(crate) struct Overwrite {
    node: Arc<Node>,
    write: u64,
    /// The written bytes.
    pub(crate) range: Range<u64>,
}

impl Overwrite {
    /// A write that was just applied to a node with these pages; `None` where the kernel has none.
    pub(super) fn of(node: &Arc<Node>, pages: &mut Pages, range: Range<u64>) -> Option<Overwrite> {
        let write = pages.wrote(&range)?;
        Some(Overwrite {
            node: node.clone(),
            write,
            range,
        })
    }
}

impl Drop for Overwrite {
    fn drop(&mut self) {
        let mut state = self.node.state.lock();
        state
            .pages
            .lacking
            .retain(|(write, _)| *write != self.write);
    }
}
