//! Disk engine: passes the kernel's requests to the service-time model and delays their replies
//! until the model says. Content is written and read at once; only the reply is delayed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{ReplyData, ReplyEmpty, ReplyWrite};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::lateness::{Lateness, wait_until};
use crate::model::{Distances, Medium, Model, Op, Request};

/// A reply that waits until it is due.
pub(super) enum Reply {
    Data(ReplyData, Vec<u8>),
    Written(ReplyWrite, u32),
    Flushed(ReplyEmpty),
}

impl Reply {
    fn give(self) {
        match self {
            Reply::Data(reply, bytes) => reply.data(&bytes),
            Reply::Written(reply, bytes) => reply.written(bytes),
            Reply::Flushed(reply) => reply.ok(),
        }
    }
}

/// Counters of a disk since its creation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskCounts {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Time that heads were serving, in this host's time.
    pub busy_ns: u64,
    pub lateness: Lateness,
    pub distances: Distances,
}

impl DiskCounts {
    /// The difference from an earlier reading of the same disk.
    pub fn since(&self, earlier: &DiskCounts) -> DiskCounts {
        let mut distances = self.distances.clone();
        distances.take_away(&earlier.distances);
        DiskCounts {
            reads: self.reads - earlier.reads.min(self.reads),
            writes: self.writes - earlier.writes.min(self.writes),
            flushes: self.flushes - earlier.flushes.min(self.flushes),
            read_bytes: self.read_bytes - earlier.read_bytes.min(self.read_bytes),
            written_bytes: self.written_bytes - earlier.written_bytes.min(self.written_bytes),
            busy_ns: self.busy_ns - earlier.busy_ns.min(self.busy_ns),
            lateness: self.lateness.since(&earlier.lateness),
            distances,
        }
    }

    pub fn add(&mut self, other: &DiskCounts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.busy_ns += other.busy_ns;
        self.lateness.add(&other.lateness);
        self.distances.add(&other.distances);
    }
}

struct Pending {
    asked: u64,
    reply: Reply,
}

struct State {
    model: Model,
    pending: HashMap<u64, Pending>,
    /// Due times and numbers of replies.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    next: u64,
    counts: DiskCounts,
    /// Overhead of a request on this host, which is part of its service time.
    overhead_ns: u64,
    ended: bool,
}

/// Content, model and clock of one disk.
pub(super) struct Engine {
    content: File,
    size: u64,
    origin: Instant,
    state: Mutex<State>,
    changed: Condvar,
    /// Replies at once, without the model: while the disk is created, calibrated and removed.
    is_free: AtomicBool,
}

impl Engine {
    /// Starts the engine and its thread, which ends after [`Engine::end`].
    pub(super) fn start(
        content: File,
        medium: &Medium,
        seed: u64,
    ) -> io::Result<(Arc<Engine>, JoinHandle<()>)> {
        let size = content.metadata()?.len();
        let state = State {
            model: Model::new(medium.clone(), size, seed),
            pending: HashMap::new(),
            due: BinaryHeap::new(),
            next: 0,
            counts: DiskCounts::default(),
            overhead_ns: 0,
            ended: false,
        };
        let engine = Arc::new(Engine {
            content,
            size,
            origin: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_free: AtomicBool::new(true),
        });
        let answering = engine.clone();
        let thread = std::thread::Builder::new()
            .name("emulated-disk".to_owned())
            .spawn(move || answering.answer())?;
        Ok((engine, thread))
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn set_free(&self, is_free: bool) {
        self.is_free.store(is_free, Ordering::SeqCst);
        self.changed.notify_one();
    }

    pub(super) fn set_overhead(&self, overhead: Duration) {
        self.state.lock().overhead_ns = overhead.as_nanos() as u64;
    }

    pub(super) fn counts(&self) -> DiskCounts {
        let state = self.state.lock();
        let mut counts = state.counts.clone();
        counts.busy_ns = state.model.busy_ns();
        counts
    }

    pub(super) fn read(&self, offset: u64, bytes: u32) -> io::Result<Vec<u8>> {
        let end = self.size.min(offset.saturating_add(u64::from(bytes)));
        let mut content = vec![0; end.saturating_sub(offset) as usize];
        self.content.read_exact_at(&mut content, offset)?;
        Ok(content)
    }

    pub(super) fn write(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        if offset.saturating_add(content.len() as u64) > self.size {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.content.write_all_at(content, offset)
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Accepts a request whose content has been transferred already; its reply is sent when due.
    pub(super) fn take(&self, request: Request, reply: Reply) {
        let asked = self.now();
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.pending.insert(id, Pending { asked, reply });
        if self.is_free.load(Ordering::SeqCst) {
            state.due.push(Reverse((asked, id)));
        } else {
            state.count(&request);
            state.model.submit(asked, id, request);
        }
        drop(state);
        self.changed.notify_one();
    }

    pub(super) fn end(&self) {
        self.is_free.store(true, Ordering::SeqCst);
        self.state.lock().ended = true;
        self.changed.notify_one();
    }

    fn answer(&self) {
        let mut state = self.state.lock();
        loop {
            let now = self.now();
            let is_free = self.is_free.load(Ordering::SeqCst);
            let given = state.due_until(now, is_free);
            if !given.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    given.into_iter().for_each(Reply::give);
                });
                continue;
            }
            if state.ended && state.pending.is_empty() {
                return;
            }
            match state.next_event() {
                Some(at) => {
                    let until = self.origin + Duration::from_nanos(at);
                    wait_until(&self.changed, &mut state, until);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

impl State {
    fn count(&mut self, request: &Request) {
        let counts = &mut self.counts;
        match request.op {
            Op::Read => {
                counts.reads += 1;
                counts.read_bytes += request.bytes;
            }
            Op::Write => {
                counts.writes += 1;
                counts.written_bytes += request.bytes;
            }
            Op::Flush => counts.flushes += 1,
        }
        counts.distances.record(request);
    }

    /// Replies due at `now`; all of them if the disk no longer delays.
    fn due_until(&mut self, now: u64, is_free: bool) -> Vec<Reply> {
        for answer in self.model.advance(now) {
            let asked = self.pending.get(&answer.id).map_or(0, |p| p.asked);
            let due = answer.due.saturating_sub(self.overhead_ns).max(asked);
            self.due.push(Reverse((due, answer.id)));
        }
        if is_free {
            let all: Vec<Pending> = self.pending.drain().map(|(_, pending)| pending).collect();
            self.due.clear();
            return all.into_iter().map(|pending| pending.reply).collect();
        }
        let mut given = Vec::new();
        while let Some(Reverse((due, id))) = self.due.peek().copied().filter(|d| d.0.0 <= now) {
            self.due.pop();
            if let Some(pending) = self.pending.remove(&id) {
                self.counts.lateness.record(pending.asked, due, now);
                given.push(pending.reply);
            }
        }
        given
    }

    fn next_event(&self) -> Option<u64> {
        let due = self.due.peek().map(|d| d.0.0);
        let decision = self.model.next_decision();
        [due, decision].into_iter().flatten().min()
    }
}
