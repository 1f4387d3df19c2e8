//! MD5 of large uploads. Chunks of several uploads that wait at the same time are hashed together, each
//! in a lane of the processor's vectors: eight take little longer than one.
//!
//! The vectors' code is of the crate `md5-many`. Before it is used it has to give the digests that
//! `md-5` gives; `md-5` also takes its place where the processor has fewer than eight lanes.

use std::collections::VecDeque;
use std::sync::OnceLock;

use bytes::Bytes;
use cairn_http::own_thread;
use cairn_types::heuristic::Heuristic;
use md5::{Digest, Md5};
use md5_many::{Md5Many, Md5State};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum bytes of a chunk that is hashed on the event loop: 64 KiB take 0.1 ms.
const INLINE_MAX_BYTES: usize = 64 << 10;
/// Minimum number of lanes for which vectors are of use.
const LANES_MIN: usize = 8;
/// Maximum chunks hashed together: two chains of eight lanes fill the processor's pipelines.
const BATCH_MAX: usize = 16;

/// MD5 of one upload so far.
pub(super) enum UploadMd5 {
    Lane(Md5State),
    Alone(Md5),
}

impl UploadMd5 {
    pub(super) fn new() -> UploadMd5 {
        match Lanes::get() {
            Some(_) if Heuristic::Md5Lanes.is_off() => UploadMd5::Alone(Md5::new()),
            Some(_) => UploadMd5::Lane(Md5State::new()),
            None => UploadMd5::Alone(Md5::new()),
        }
    }

    /// Adds a chunk; `None` if hashing panicked.
    pub(super) async fn update(mut self, chunk: Bytes) -> Option<UploadMd5> {
        // In a simulation other threads' chunks must not decide when this one is done.
        if chunk.len() <= INLINE_MAX_BYTES || own_thread::is_taken_over() {
            self.update_here(&chunk);
            return Some(self);
        }
        let (job, done) = Job::new(self, chunk);
        QUEUE.add(job);
        done.await.ok()
    }

    fn update_here(&mut self, chunk: &[u8]) {
        match self {
            UploadMd5::Lane(state) => state.update(chunk),
            UploadMd5::Alone(md5) => md5.update(chunk),
        }
    }

    pub(super) fn finish(self) -> [u8; 16] {
        match self {
            UploadMd5::Lane(state) => state.finalize(),
            UploadMd5::Alone(md5) => md5.finalize().into(),
        }
    }
}

/// A chunk to be hashed.
struct Job {
    md5: UploadMd5,
    chunk: Bytes,
    done: oneshot::Sender<UploadMd5>,
}

impl Job {
    fn new(md5: UploadMd5, chunk: Bytes) -> (Job, oneshot::Receiver<UploadMd5>) {
        let (done, result) = oneshot::channel();
        (Job { md5, chunk, done }, result)
    }
}

/// Chunks that wait; an upload has one at most.
static QUEUE: Queue = Queue(Mutex::new(Waiting {
    jobs: VecDeque::new(),
    workers: 0,
}));

struct Queue(Mutex<Waiting>);

struct Waiting {
    jobs: VecDeque<Job>,
    /// Threads that hash: more than there are processors would not be faster, and each needs memory.
    workers: usize,
}

impl Queue {
    fn add(&'static self, job: Job) {
        let mut waiting = self.0.lock();
        waiting.jobs.push_back(job);
        if waiting.workers < processors() {
            waiting.workers += 1;
            drop(waiting);
            let worker = Worker(self);
            tokio::task::spawn_blocking(|| worker.work());
        }
    }
}

/// A thread that hashes, one of `workers`.
struct Worker(&'static Queue);

impl Worker {
    /// Hashes what waits, until nothing does.
    fn work(self) {
        while let Some(jobs) = self.next() {
            hash(jobs);
        }
        std::mem::forget(self);
    }

    /// What is to be hashed next. With `None` the worker is counted no more: under the lock, so that a
    /// job that is added from then on gets another one.
    fn next(&self) -> Option<Vec<Job>> {
        let mut waiting = self.0.0.lock();
        let count = waiting.jobs.len().min(BATCH_MAX);
        if count == 0 {
            waiting.workers -= 1;
            return None;
        }
        Some(waiting.jobs.drain(..count).collect())
    }
}

impl Drop for Worker {
    /// It panicked, or its runtime has ended: what waits would do so for ever if it was the last.
    fn drop(&mut self) {
        let mut waiting = self.0.0.lock();
        waiting.workers -= 1;
        if waiting.workers == 0 {
            waiting.jobs.clear();
        }
    }
}

/// Hashes chunks, and hands each result to its upload, if that has not been given up meanwhile.
fn hash(jobs: Vec<Job>) {
    let (mut states, mut chunks, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for Job { md5, chunk, done } in jobs {
        match md5 {
            UploadMd5::Lane(state) => {
                states.push(state);
                chunks.push(chunk);
                waiting.push(done);
            }
            alone @ UploadMd5::Alone(_) => {
                let mut md5 = alone;
                md5.update_here(&chunk);
                drop(done.send(md5));
            }
        }
    }
    match (Lanes::get(), &mut *states) {
        (Some(lanes), [_, _, ..]) => {
            let inputs: Vec<&[u8]> = chunks.iter().map(|chunk| &**chunk).collect();
            lanes.0.update_many(&mut states, &inputs);
        }
        (_, states) => {
            let all = states.iter_mut().zip(&chunks);
            all.for_each(|(state, chunk)| state.update(chunk));
        }
    }
    for (state, done) in states.into_iter().zip(waiting) {
        drop(done.send(UploadMd5::Lane(state)));
    }
}

fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The processor's vectors, which have been seen to give right digests.
struct Lanes(Md5Many);

impl Lanes {
    fn get() -> Option<&'static Lanes> {
        static LANES: OnceLock<Option<Lanes>> = OnceLock::new();
        LANES.get_or_init(Lanes::find).as_ref()
    }

    fn find() -> Option<Lanes> {
        let engine = Md5Many::new();
        if engine.lanes() < LANES_MIN {
            return None;
        }
        if !agrees(engine) {
            tracing::error!(
                "MD5 by this processor's vectors is wrong: each upload is hashed by itself"
            );
            return None;
        }
        Some(Lanes(engine))
    }
}

/// Do the vectors give the digests of `md-5`, for each number of messages that are hashed together?
fn agrees(engine: Md5Many) -> bool {
    let text: Vec<u8> = (0..4096_u32).map(|i| (i * 31 + (i >> 5)) as u8).collect();
    (1..=BATCH_MAX).all(|count| {
        let mut states = vec![Md5State::new(); count];
        let message = |i: usize, part: usize| match part {
            0 => &text[i..i + 1024],
            _ => &text[7 * i..3000 - 61 * i],
        };
        for part in 0..2 {
            let inputs: Vec<&[u8]> = (0..count).map(|i| message(i, part)).collect();
            engine.update_many(&mut states, &inputs);
        }
        (0..count).all(|i| {
            let whole = [message(i, 0), message(i, 1)].concat();
            states[i].finalize()[..] == Md5::digest(&whole)[..]
        })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn vectors_agree_with_the_reference() {
        assert!(agrees(Md5Many::new()));
    }

    /// Uploads at once, each in chunks of its own sizes.
    async fn all_at_once(uploads: Vec<Vec<Bytes>>) -> Vec<[u8; 16]> {
        let hashing = uploads.into_iter().map(|chunks| {
            tokio::spawn(async move {
                let mut md5 = UploadMd5::new();
                for chunk in chunks {
                    md5 = md5.update(chunk).await.unwrap();
                }
                md5.finish()
            })
        });
        let hashing: Vec<_> = hashing.collect();
        let mut digests = Vec::new();
        for upload in hashing {
            digests.push(upload.await.unwrap());
        }
        digests
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn digests_are_those_of_the_reference(
            sizes in prop::collection::vec(prop::collection::vec(0_usize..200_000, 1..4), 1..40),
        ) {
            let chunk = |seed: usize, bytes: usize| -> Bytes {
                (0..bytes).map(|i| (i * 7 + (i >> 8) * seed) as u8).collect()
            };
            let uploads: Vec<Vec<Bytes>> = sizes
                .iter()
                .enumerate()
                .map(|(seed, sizes)| sizes.iter().map(|bytes| chunk(seed, *bytes)).collect())
                .collect();
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let digests = runtime.block_on(all_at_once(uploads.clone()));
            for (upload, digest) in uploads.iter().zip(digests) {
                prop_assert_eq!(&Md5::digest(upload.concat())[..], &digest[..]);
            }
        }
    }

    /// An upload that is given up takes nobody's place.
    #[tokio::test(flavor = "multi_thread")]
    async fn uploads_that_are_given_up_hold_nobody_up() {
        let large = Bytes::from(vec![7; 1 << 20]);
        for _ in 0..50 {
            let left = UploadMd5::new().update(large.clone());
            drop(tokio::time::timeout(std::time::Duration::ZERO, left).await);
        }
        let digests = all_at_once(vec![vec![large.clone()]; 20]).await;
        assert!(
            digests
                .iter()
                .all(|digest| digest[..] == Md5::digest(&large)[..])
        );
    }
}
