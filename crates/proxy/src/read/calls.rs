//! The calls of a read that asks several nodes at once: which of them are overdue, and what their answers decide.

use std::pin::Pin;
use std::time::Duration;

use cairn_peer::{Node, OpenCalls};
use futures_util::stream::FuturesUnordered;

use super::refusals::Refusals;
use super::{Read, Source, Tried};

type Asking<'a> = Pin<Box<dyn Future<Output = (Node, Tried)> + Send + 'a>>;

/// The calls of one read that are in progress.
pub(super) struct Calls<'a> {
    read: &'a Read<'a>,
    pub(super) open: OpenCalls,
    pub(super) asked: FuturesUnordered<Asking<'a>>,
    /// Time after which a call is overdue, where that is not to be learnt.
    delay: Option<Duration>,
}

impl<'a> Calls<'a> {
    pub(super) fn new(read: &'a Read<'a>, delay: Option<Duration>) -> Self {
        Calls {
            read,
            delay,
            open: OpenCalls::new(read.backends.clone(), read.nodes.clone()),
            asked: FuturesUnordered::new(),
        }
    }

    pub(super) fn start(&mut self, node: Node) {
        match self.delay {
            Some(delay) => self.open.sent_within(&node, delay),
            None => self.open.sent(&node),
        }
        let ask = self.read.ask(node.clone(), None);
        self.asked.push(Box::pin(async move { (node, ask.await) }));
    }

    /// Records a response. With a good one the read ends, and the nodes still being asked become
    /// spare ones: if the chosen one breaks off, they are asked again.
    pub(super) fn note(
        &mut self,
        node: Node,
        tried: Tried,
        refusals: &mut Refusals,
    ) -> Option<Source> {
        self.open.ended(&node);
        let source = refusals.note(tried)?;
        self.read.spare_nodes().extend(self.open.nodes());
        Some(source)
    }

    /// Is the outcome settled, and are the remaining calls those of nodes that hang?
    pub(super) fn are_vain(&self, refusals: &Refusals) -> bool {
        refusals.is_settled() && self.open.are_all_hung()
    }
}
