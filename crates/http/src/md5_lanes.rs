//! MD5 of many bodies at once: those of several clients in the lanes of one processor's vectors.
//!
//! A body's MD5 goes byte by byte, half a gigabyte a second, however wide a processor's vectors are; sixteen bodies'
//! side by side take little more time than one. So blocks of all bodies wait in one queue, and a thread takes as
//! many as there are, up to the number of lanes. Where a processor has no such vectors, it takes them in turn.
//!
//! `md5-many` is quick with eight or sixteen blocks of one length, and slower than one body alone with others: it
//! gets nothing else.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::OnceLock;

use md5_many::{Md5Many, Md5State};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tracing::error;

use crate::own_thread;

/// Blocks hashed side by side: the lanes of the widest vectors, and half of them.
const LANES_MAX: usize = 16;
const LANES_FEW: usize = 8;
/// Blocks for which half of the lanes are taken, those that are left empty; fewer go one after another.
const JOBS_MIN: usize = 2;
/// Shortest run of bytes for which lanes are filled.
const RUN_MIN_BYTES: usize = 4 << 10;
/// Maximum bytes of a block that is hashed on the event loop: 64 KiB take 0.1 ms.
const INLINE_MAX_BYTES: usize = 64 << 10;
/// Processors for each thread that hashes: one fills several network cards.
const PROCESSORS_PER_THREAD: usize = 4;

/// The MD5 of a body so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneMd5(Md5State);

/// Bytes to be hashed, which are given back.
trait Block: Any + Send {
    fn bytes(&self) -> &[u8];
}

impl<B: AsRef<[u8]> + Send + 'static> Block for B {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

/// A block that waits.
struct Job {
    state: Md5State,
    block: Box<dyn Block>,
    /// Bytes that are hashed.
    done: usize,
    reply: oneshot::Sender<(Md5State, Box<dyn Block>)>,
}

impl Job {
    fn rest(&self) -> &[u8] {
        &self.block.as_ref().bytes()[self.done..]
    }

    fn answer(self) {
        // Whoever waited may have left.
        let _ = self.reply.send((self.state, self.block));
    }
}

struct Lanes {
    /// At most one block of each upload.
    waiting: Mutex<VecDeque<Job>>,
    more: Condvar,
}

impl LaneMd5 {
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on with a block, which is given back; off the event loop where it is long. `None`: its thread
    /// panicked.
    pub async fn update<B: AsRef<[u8]> + Send + 'static>(mut self, block: B) -> Option<(Self, B)> {
        let is_short = block.as_ref().len() <= INLINE_MAX_BYTES;
        let lanes = match is_short || own_thread::is_taken_over() {
            true => None,
            false => lanes(),
        };
        let Some(lanes) = lanes else {
            self.0.update(block.as_ref());
            return Some((self, block));
        };
        let (reply, answer) = oneshot::channel();
        lanes.submit(Job {
            state: self.0,
            block: Box::new(block),
            done: 0,
            reply,
        });
        let (state, block) = answer.await.ok()?;
        let block: Box<dyn Any> = block;
        Some((LaneMd5(state), *block.downcast().ok()?))
    }

    pub fn finish(self) -> [u8; 16] {
        self.0.finalize()
    }
}

impl Lanes {
    fn submit(&self, job: Job) {
        self.waiting.lock().push_back(job);
        self.more.notify_one();
    }

    /// Waits for blocks, and takes as many as there are lanes beside those in `jobs`.
    fn take(&self, jobs: &mut Vec<Job>) {
        let mut waiting = self.waiting.lock();
        while jobs.is_empty() && waiting.is_empty() {
            self.more.wait(&mut waiting);
        }
        let most = waiting.len().min(LANES_MAX - jobs.len());
        jobs.extend(waiting.drain(..most));
    }

    fn run(&self) {
        let engine = Md5Many::new();
        let mut jobs = Vec::with_capacity(LANES_MAX);
        loop {
            self.take(&mut jobs);
            let step = || step(engine, &mut jobs);
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).is_err() {
                error!("hashing panicked");
                // Those who wait see that their answers do not come.
                jobs.clear();
            }
        }
    }
}

/// Goes on with all of one length, and answers those that are done.
fn step(engine: Md5Many, jobs: &mut Vec<Job>) {
    // Half of the lanes, while those that are more do not fill the others.
    let lanes = match jobs.len() {
        LANES_MAX.. => LANES_MAX,
        _ => LANES_FEW,
    };
    let count = jobs.len().min(lanes);
    let shortest = jobs[..count].iter().map(|job| job.rest().len()).min();
    let run = shortest.unwrap_or(0);
    match count < JOBS_MIN || run < RUN_MIN_BYTES {
        true => {
            let shortest = (0..count).min_by_key(|at| jobs[*at].rest().len());
            if let Some(job) = shortest.map(|at| &mut jobs[at]) {
                let rest = &job.block.as_ref().bytes()[job.done..];
                job.state.update(rest);
                job.done += rest.len();
            }
        }
        false => side_by_side(engine, &mut jobs[..count], (lanes, run)),
    }
    let is_done = |job: &mut Job| job.rest().is_empty();
    jobs.extract_if(.., is_done).for_each(Job::answer);
}

/// Hashes the next bytes of each, a run of one length. Lanes without a block do the first one's again.
fn side_by_side(engine: Md5Many, jobs: &mut [Job], (lanes, run): (usize, usize)) {
    let mut states = [Md5State::new(); LANES_MAX];
    let mut blocks: [&[u8]; LANES_MAX] = [&jobs[0].rest()[..run]; LANES_MAX];
    for (lane, job) in jobs.iter().enumerate() {
        states[lane] = job.state;
        blocks[lane] = &job.rest()[..run];
    }
    engine.update_many(&mut states[..lanes], &blocks[..lanes]);
    for (job, state) in jobs.iter_mut().zip(states) {
        job.state = state;
        job.done += run;
    }
}

/// The lanes of the process, whose threads begin with the first block; `None`: no thread can be started.
fn lanes() -> Option<&'static Lanes> {
    static LANES: OnceLock<Option<&'static Lanes>> = OnceLock::new();
    *LANES.get_or_init(|| {
        let lanes: &'static Lanes = Box::leak(Box::new(Lanes {
            waiting: Mutex::default(),
            more: Condvar::new(),
        }));
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = processors.div_ceil(PROCESSORS_PER_THREAD);
        let started = (0..threads).filter(|number| {
            let thread = std::thread::Builder::new().name(format!("md5-{number}"));
            let started = thread.spawn(|| lanes.run());
            let failed = started.as_ref().err();
            failed.inspect(|error| error!(%error, "no thread to hash uploads"));
            started.is_ok()
        });
        (started.count() > 0).then_some(lanes)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::{Bytes, BytesMut};
    use md5::{Digest, Md5};
    use proptest::prelude::*;

    use super::*;

    fn content(seed: u64, len: usize) -> Vec<u8> {
        let mut dice = cairn_types::SplitMix::new(seed);
        (0..len).map(|_| dice.number() as u8).collect()
    }

    #[tokio::test]
    async fn bodies_beside_each_other_have_the_md5_each_has_alone() {
        let lengths = [
            0, 1, 63, 64, 65, 70_000, 200_001, 262_144, 1_000_000, 65_537,
        ];
        let bodies =
            (0..40).map(|number| content(number, lengths[number as usize % lengths.len()]));
        let hashing = bodies.map(|body| async move {
            let mut md5 = LaneMd5::new();
            for block in body.chunks(100_003) {
                let given = BytesMut::from(block);
                let (next, back) = md5.update(given).await.unwrap();
                assert_eq!(back, block);
                md5 = next;
            }
            let whole: [u8; 16] = Md5::digest(&body).into();
            assert_eq!(md5.finish(), whole, "{} bytes", body.len());
        });
        futures_util::future::join_all(hashing).await;
    }

    #[tokio::test]
    async fn a_client_that_leaves_holds_up_nobody() {
        let long = Bytes::from(content(1, 1 << 20));
        drop(tokio::spawn(LaneMd5::new().update(long.clone())));
        let left = LaneMd5::new().update(long.clone());
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, left)
                .await
                .is_err()
        );
        let (md5, _) = LaneMd5::new().update(long.clone()).await.unwrap();
        let whole: [u8; 16] = Md5::digest(&long).into();
        assert_eq!(md5.finish(), whole);
    }

    proptest! {
        /// Any number of bodies, in any blocks.
        #[test]
        fn lanes_agree_with_another_implementation(
            bodies in prop::collection::vec((any::<u64>(), 0usize..3000), 1..LANES_MAX + 1),
            cuts in prop::collection::vec(1usize..700, 1..20),
        ) {
            let engine = Md5Many::new();
            let bodies: Vec<Vec<u8>> = bodies.iter().map(|(seed, len)| content(*seed, *len)).collect();
            let mut states = vec![Md5State::new(); bodies.len()];
            let mut at = vec![0; bodies.len()];
            for cut in cuts.iter().cycle() {
                let mut blocks = Vec::new();
                for (number, body) in bodies.iter().enumerate() {
                    let end = (at[number] + cut + 13 * number).min(body.len());
                    blocks.push(&body[at[number]..end]);
                    at[number] = end;
                }
                if blocks.iter().all(|block| block.is_empty()) {
                    break;
                }
                engine.update_many(&mut states, &blocks);
            }
            for (state, body) in states.iter().zip(&bodies) {
                let whole: [u8; 16] = Md5::digest(body).into();
                prop_assert_eq!(state.finalize(), whole);
            }
        }
    }
}
