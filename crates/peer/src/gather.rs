//! The gather: the conversations with all servers of one write, carried on by the task of the write, whose
//! answers are collected as they come. It decides when a quorum agrees, and bounds the wait for the
//! others. Every write goes through it, whatever its conversations look like: whole messages
//! (`fan_out.rs`), of which each replica's goes to the next node until one responds, streamed uploads
//! (`put.rs`), and uploads in two phases (`two_phase.rs`), which are told here to commit.
//!
//! It does not choose the answer to the client (`quorum.rs` does). A conversation goes on after the
//! gather has ended: a server that is slow stores its replica all the same.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use cairn_types::Quorum;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::backends::Backends;
use crate::node::Node;
use crate::quorum;

/// One replica's response; a replica that did not respond counts as 503 without a node.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub node: Option<Node>,
}

impl Answer {
    /// The entry for a node that did not respond.
    pub fn none() -> Self {
        Answer {
            status: 503,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            node: None,
        }
    }
}

/// Timeouts of a gather.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Maximum wait for one node's response.
    pub node: Duration,
    /// Maximum further wait for the others once a quorum has responded.
    pub post_quorum: Duration,
}

/// Maximum bytes of request bodies that stragglers may hold after their requests were answered.
/// Beyond that, requests are answered no faster than by their slowest replica, so that a slow disk
/// does not fill the memory.
pub(crate) const LEFT_BEHIND_MAX_BYTES: usize = 16 << 20;

/// Accounts for a request body held by stragglers: counted from the client's response until the
/// last conversation that shares it has ended.
struct LeftBehind {
    backends: Arc<Backends>,
    bytes: usize,
    counted: AtomicUsize,
}

impl LeftBehind {
    /// Accounting for a body of `bytes` bytes, which is not counted yet.
    fn new(backends: Arc<Backends>, bytes: usize) -> Arc<Self> {
        Arc::new(LeftBehind {
            backends,
            bytes,
            counted: AtomicUsize::new(0),
        })
    }

    /// Counts the body from now on. Returns false if the limit is exceeded, so that the stragglers
    /// must be awaited.
    fn try_count(&self) -> bool {
        let (bytes, all) = (self.bytes, &self.backends.left_behind);
        if all.fetch_add(bytes, Ordering::Relaxed) + bytes > LEFT_BEHIND_MAX_BYTES {
            all.fetch_sub(bytes, Ordering::Relaxed);
            return bytes == 0;
        }
        self.counted.store(bytes, Ordering::Relaxed);
        true
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        let counted = *self.counted.get_mut();
        self.backends
            .left_behind
            .fetch_sub(counted, Ordering::Relaxed);
    }
}

/// The property on which the servers must agree.
enum Agreement {
    /// A class of statuses: 2xx, 3xx or 4xx.
    Class,
    /// This function's verdict on an answer.
    That(Box<dyn Fn(&Answer) -> bool + Send + Sync>),
}

/// A conversation: its number, and the answer it ended with.
type Conversation = Pin<Box<dyn Future<Output = (usize, Option<Answer>)> + Send>>;

/// The conversations that have not ended. They are carried on by whoever waits for their answers, and in a
/// task of their own when nobody does any more.
#[derive(Default)]
struct Open(FuturesUnordered<Conversation>);

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        // Without a runtime the process is ending.
        if let Ok(runtime) = Handle::try_current() {
            let left = std::mem::take(&mut self.0);
            runtime.spawn(left.for_each(|_| std::future::ready(())));
        }
    }
}

/// A server's end of a write in two phases.
pub struct Commit {
    /// Number of servers that are ready to commit.
    prepared: Arc<AtomicUsize>,
    word: oneshot::Receiver<()>,
}

impl Commit {
    /// Reports that the server has written everything but its commit, and waits for the word.
    /// Returns false if the write was given up: the server is to discard what it wrote.
    pub async fn is_told(self) -> bool {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        self.word.await.is_ok()
    }
}

/// The answers of the servers of one write.
pub struct Gather {
    quorum: Quorum,
    timeouts: Timeouts,
    agreement: Agreement,
    /// The server that has the object may be the slowest.
    awaits_the_one: bool,
    left: Arc<LeftBehind>,
    /// Number of conversations that were started.
    started: usize,
    open: Open,
    prepared: Arc<AtomicUsize>,
    /// One for each upload in two phases. A shared channel would wake the conversations in a
    /// non-deterministic order.
    words: Vec<oneshot::Sender<()>>,
    /// With the numbers of their conversations, in the order of arrival.
    answers: Vec<(usize, Answer)>,
}

impl Gather {
    /// A gather of the answers that `quorum` is a part of. It agrees on a class of statuses.
    pub fn new(backends: &Arc<Backends>, quorum: Quorum, timeouts: Timeouts) -> Self {
        Gather {
            quorum,
            timeouts,
            agreement: Agreement::Class,
            awaits_the_one: false,
            left: LeftBehind::new(backends.clone(), 0),
            started: 0,
            open: Open::default(),
            prepared: Arc::default(),
            words: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// The conversations, which are started after this, share a body of `bytes` bytes until the last
    /// of them has ended.
    #[must_use]
    pub fn holding(mut self, bytes: usize) -> Self {
        self.left = LeftBehind::new(self.left.backends.clone(), bytes);
        self
    }

    /// Servers agree if `is_good` holds for the answers of a quorum.
    #[must_use]
    pub fn agreed_by(mut self, is_good: impl Fn(&Answer) -> bool + Send + Sync + 'static) -> Self {
        self.agreement = Agreement::That(Box::new(is_good));
        self
    }

    /// For POST and DELETE: a replica that missed an object responds 404, and the one that has the
    /// object may be the slowest. After a quorum of 404 the others are waited for as long as for
    /// any node.
    #[must_use]
    pub fn awaiting_the_one(mut self, awaits: bool) -> Self {
        self.awaits_the_one = awaits;
        self
    }

    /// Starts the conversation with a server. One that ends without an answer had none.
    pub fn start<F>(&mut self, conversation: F)
    where
        F: Future<Output = Option<Answer>> + Send + 'static,
    {
        let (number, left) = (self.started, self.left.clone());
        self.started += 1;
        let conversation = AssertUnwindSafe(conversation).catch_unwind();
        self.open.0.push(Box::pin(async move {
            let answer = conversation.await;
            drop(left);
            (number, answer.unwrap_or_default())
        }));
    }

    /// Starts a conversation of two phases with a server.
    pub fn start_two_phase<F>(&mut self, conversation: impl FnOnce(Commit) -> F)
    where
        F: Future<Output = Option<Answer>> + Send + 'static,
    {
        let prepared = self.prepared.clone();
        let (told, word) = oneshot::channel();
        self.words.push(told);
        self.start(conversation(Commit { prepared, word }));
    }

    /// Waits until a quorum is prepared, and tells all to commit. If too few are, nobody is told,
    /// and the answers of the others are returned, missing ones as 503.
    ///
    /// # Errors
    /// The answers, if too few servers are prepared.
    pub async fn commit(&mut self) -> Result<(), Vec<Answer>> {
        // Those that are prepared stay open until they are told.
        while !self.quorum.is_reached_by(self.prepared()) && self.open.0.len() > self.prepared() {
            if !self.take().await {
                break;
            }
        }
        let prepared = self.prepared();
        if !self.quorum.is_reached_by(prepared) {
            self.words.clear();
            let answers = std::mem::take(&mut self.answers);
            let mut answers: Vec<Answer> = answers.into_iter().map(|(_, answer)| answer).collect();
            answers.resize_with(self.quorum.servers() - prepared, Answer::none);
            return Err(answers);
        }
        for word in self.words.drain(..) {
            let _ = word.send(());
        }
        Ok(())
    }

    /// The answers in the order of arrival, once a quorum agrees and the others have had their
    /// time; as many as the quorum has servers, missing ones as 503.
    pub async fn answers(mut self) -> Vec<Answer> {
        self.decide().await;
        let answers = self.answers.into_iter();
        let mut answers: Vec<Answer> = answers.map(|(_, answer)| answer).collect();
        answers.resize_with(answers.len().max(self.quorum.servers()), Answer::none);
        answers
    }

    /// Like [`answers`](Self::answers), in the order in which the conversations were started.
    pub async fn answers_in_order(mut self) -> Vec<Option<Answer>> {
        self.decide().await;
        let mut answers: Vec<Option<Answer>> = Vec::new();
        answers.resize_with(self.started, || None);
        for (number, answer) in self.answers {
            answers[number] = Some(answer);
        }
        answers
    }

    /// Waits for the quorum, or all, then for the stragglers. These have `post_quorum`; then they
    /// are left to themselves, unless what is left behind holds [`LEFT_BEHIND_MAX_BYTES`] already:
    /// then they are awaited for up to `node` more.
    async fn decide(&mut self) {
        // Without a commit before, there will be none.
        self.words.clear();
        let mut is_agreed = false;
        while !is_agreed && self.take().await {
            is_agreed = self.is_agreed();
        }
        if is_agreed {
            assert!(
                self.quorum.is_reached_by(self.answers.len()),
                "a write is decided by fewer servers than its quorum"
            );
        }
        let wait = match self.awaits_the_one && self.have_quorum_of(404) {
            true => self.timeouts.node,
            false => self.timeouts.post_quorum,
        };
        let in_time = tokio::time::timeout(wait, self.take_all()).await;
        if in_time.is_err() && !self.left.try_count() {
            let _ = tokio::time::timeout(self.timeouts.node, self.take_all()).await;
        }
    }

    /// Carries the conversations on until one has ended or is prepared. Returns false if none is open.
    async fn take(&mut self) -> bool {
        let before = self.prepared();
        let ended = poll_fn(|context| {
            let ended = self.open.0.poll_next_unpin(context);
            match ended.is_pending() && self.prepared() > before {
                true => Poll::Ready(None),
                false => ended.map(Some),
            }
        });
        match ended.await {
            Some(Some((number, answer))) => {
                self.answers.extend(answer.map(|answer| (number, answer)));
                true
            }
            Some(None) => false,
            None => true,
        }
    }

    /// Number of servers that are ready to commit.
    fn prepared(&self) -> usize {
        self.prepared.load(Ordering::Relaxed)
    }

    async fn take_all(&mut self) {
        while self.take().await {}
    }

    fn is_agreed(&self) -> bool {
        match &self.agreement {
            Agreement::Class => quorum::have_quorum(&self.statuses(), self.quorum),
            Agreement::That(is_good) => {
                let good = self.answers.iter().filter(|(_, answer)| is_good(answer));
                self.quorum.is_reached_by(good.count())
            }
        }
    }

    fn have_quorum_of(&self, status: u16) -> bool {
        quorum::have_quorum_of(&self.statuses(), status, self.quorum)
    }

    fn statuses(&self) -> Vec<u16> {
        let answers = self.answers.iter();
        answers.map(|(_, answer)| answer.status).collect()
    }
}

#[cfg(test)]
mod tests;
