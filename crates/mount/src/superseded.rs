//! Segments of superseded versions: they stay on the store for a while after a commit has replaced the
//! version that referred to them, for a client that is in the middle of a GET of it. A GET of a static large
//! object reads its segments one after the other, and breaks off where one is gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::store::Segment;
use crate::time::Instant;

/// Segments that are kept, and their bytes; beyond it the oldest ones go early.
const SEGMENTS_MAX: usize = 10_000;
const SEGMENTS_MAX_BYTES: u64 = 4 << 30;

/// Segments in the order in which they were superseded. A mount that is killed leaves them to
/// `cairn mount sweep`.
pub(crate) struct Superseded {
    kept_for: Duration,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// When they were superseded, the oldest first.
    segments: VecDeque<(Instant, Arc<Segment>)>,
    bytes: u64,
}

impl Queue {
    fn has_due(&self, kept_for: Duration) -> bool {
        let first = self.segments.front();
        first.is_some_and(|(since, _)| since.elapsed() >= kept_for)
            || self.segments.len() > SEGMENTS_MAX
            || self.bytes > SEGMENTS_MAX_BYTES
    }

    fn pop(&mut self) -> Option<Arc<Segment>> {
        let (_, segment) = self.segments.pop_front()?;
        self.bytes -= segment.bytes;
        Some(segment)
    }
}

impl Superseded {
    pub(crate) fn new(kept_for: Duration) -> Superseded {
        Superseded {
            kept_for,
            queue: Mutex::default(),
        }
    }

    /// Keeps more segments; those whose time is over, to be removed.
    pub(crate) fn add(&self, segments: Vec<Arc<Segment>>) -> Vec<Arc<Segment>> {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        queue.bytes += segments.iter().map(|segment| segment.bytes).sum::<u64>();
        let segments = segments.into_iter().map(|segment| (now, segment));
        queue.segments.extend(segments);
        drop(queue);
        self.take_due()
    }

    /// The segments whose time is over, to be removed.
    pub(crate) fn take_due(&self) -> Vec<Arc<Segment>> {
        let mut queue = self.queue.lock();
        let mut due = Vec::new();
        while queue.has_due(self.kept_for) {
            due.extend(queue.pop());
        }
        due
    }

    /// All segments, to be removed: the mount ends, or the store has no room left.
    pub(crate) fn take_all(&self) -> Vec<Arc<Segment>> {
        let mut queue = self.queue.lock();
        std::iter::from_fn(|| queue.pop()).collect()
    }
}
