//! Merges that calls share. A merge of a file of many small parts writes indexes of nearly all of it,
//! and who writes the file waits meanwhile: with a merge for each of many writers most of what is sent
//! would be indexes. So a close of such a file waits, while other handles write it, and one merge has
//! what all of them have written. A call returns when a merge that began after it is stored, or has
//! failed.
//!
//! An `fsync` does not wait for writers: the kernel holds the file's lock meanwhile, so that nobody could
//! write, nor call `fsync`. Those that do arrive at once share a merge all the same.

use std::sync::Arc;
use std::time::Duration;

use super::Vfs;
use super::tree::{Node, State};
use crate::error::FsResult;
use crate::store::Store;
use crate::time::Instant;

/// Cost of a merge for each part of the file, until one was measured.
const COST_OF_PART: Duration = Duration::from_micros(50);
/// Maximum wait for other writers, as a multiple of what the merge costs.
const WAIT_COSTS: u32 = 4;
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Part of the cost after which a file that nobody has written is quiet.
const QUIET_COSTS: u32 = 2;
const QUIET_MIN: Duration = Duration::from_millis(20);
const QUIET_MAX: Duration = Duration::from_millis(250);

/// A call that waits for a merge.
pub(super) struct Waiting {
    node: Arc<Node>,
    /// Number of the first merge that begins after it came.
    number: u64,
    is_counted: bool,
    leads: bool,
}

impl Waiting {
    pub(super) fn new(node: &Arc<Node>) -> Waiting {
        let number = node.state.lock().merges.next();
        Waiting {
            node: node.clone(),
            number,
            is_counted: false,
            leads: false,
        }
    }

    /// The merge begins: calls from now on wait for the next one. Returns the result of a merge that has
    /// begun since the call, if there was one. The caller holds the node's `mutation`.
    pub(super) fn end(mut self) -> Option<FsResult<()>> {
        self.let_go();
        self.node.state.lock().merges.result(self.number)
    }

    fn let_go(&mut self) {
        let mut state = self.node.state.lock();
        if std::mem::take(&mut self.is_counted) {
            state.merges.waiting -= 1;
        }
        if std::mem::take(&mut self.leads) {
            state.merges.is_gathering = false;
            state.merges.gathered.send_modify(|count| *count += 1);
        }
    }
}

impl Drop for Waiting {
    /// A call that was given up does not keep the others.
    fn drop(&mut self) {
        self.let_go();
    }
}

/// About the number of parts of the next version: those of its base, and of the local writes.
fn parts(state: &State) -> usize {
    state.content.base().extents.len() + state.content.written().len()
}

impl<S: Store> Vfs<S> {
    /// Waits for other writers of the file, if a merge with what they write costs less than two.
    pub(super) async fn gather(&self, node: &Arc<Node>) -> Waiting {
        let (waiting, gathered) = {
            let mut waiting = Waiting::new(node);
            let mut state = node.state.lock();
            let is_counted = self.is_costly(&state) && state.writers > 1;
            let leads = is_counted && !state.merges.is_gathering;
            state.merges.waiting += u32::from(is_counted);
            state.merges.is_gathering |= leads;
            (waiting.is_counted, waiting.leads) = (is_counted, leads);
            let follows = is_counted && !leads;
            (waiting, follows.then(|| state.merges.gathered.subscribe()))
        };
        match gathered {
            Some(mut gathered) => {
                let _ = gathered.changed().await;
            }
            None if waiting.leads => self.wait_for_writers(node, waiting.number).await,
            None => {}
        }
        waiting
    }

    /// Does a merge of the file better wait for its turn? What one takes.
    pub(super) fn needs_turn(&self, node: &Node, has_lost: bool) -> Option<Duration> {
        let state = node.state.lock();
        let needs = self.is_costly(&state) && (has_lost || state.merges.is_contended);
        needs.then_some(state.merges.took)
    }

    /// Does a merge write indexes?
    fn is_costly(&self, state: &State) -> bool {
        let limits = &self.options.limits;
        let parts = parts(state) as u64;
        state.is_dirty() && !state.is_unlinked && parts > limits.flat_parts(state.content.size())
    }

    /// Waits until all who have the file open to write wait for a merge, or nobody has written for a
    /// while, or it has taken much longer than a merge.
    async fn wait_for_writers(&self, node: &Arc<Node>, number: u64) {
        // Writers wait for a merge that is under way.
        drop(node.mutation.lock().await);
        let (cost, mut changes) = {
            let state = node.state.lock();
            if state.merges.has(number) {
                return;
            }
            let parts = COST_OF_PART * parts(&state) as u32;
            (state.merges.took.max(parts), state.merges.changes)
        };
        let quiet = (cost / QUIET_COSTS).clamp(QUIET_MIN, QUIET_MAX);
        let (start, most) = (Instant::now(), (cost * WAIT_COSTS).min(WAIT_MAX));
        while start.elapsed() < most {
            {
                let state = node.state.lock();
                if state.merges.waiting >= state.writers {
                    return;
                }
            }
            tokio::time::sleep(quiet).await;
            let now = node.state.lock().merges.changes;
            if std::mem::replace(&mut changes, now) == now {
                return;
            }
        }
    }
}
