//! Mounts from their start to their end or crash.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use super::link::Link;
use super::program::{Locks, Program};
use super::{Bug, World};
use crate::attributes::Defaults;
use crate::commit::Limits;
use crate::intents::BROKEN_AFTER;
use crate::sweep::SweepOptions;
use crate::vfs::{Vfs, VfsOptions};

/// Programs on each mount.
const PROGRAMS: usize = 2;
/// Age at which sweeps remove what nothing refers to: longer than a mount writes without a pin.
const GRACE: Duration = Duration::from_secs(45);
/// The same where the store refuses a few.
const LONG_GRACE: Duration = Duration::from_secs(200);

/// Sizes to which nothing is a multiple.
fn limits() -> Limits {
    Limits {
        whole_bytes: 61,
        segment_bytes: 251,
        hole_bytes: 17,
        small_bytes: 19,
        parts_max: 60,
        extra_parts: 5,
        manifest_parts: 1000,
    }
}

fn options(random: &mut StdRng) -> VfsOptions {
    let flattens = random.random_bool(0.7);
    VfsOptions {
        is_read_only: false,
        defaults: Defaults { uid: 1, gid: 2 },
        fresh: Duration::ZERO,
        limits: limits(),
        cache_bytes: 4096,
        block_bytes: 29,
        unwritten_bytes: 1000,
        flatten_after: flattens.then_some(Duration::from_millis(40)),
        superseded_for: Duration::from_secs(random.random_range(0..2) * 20),
    }
}

pub(super) struct Machine {
    number: usize,
    vfs: Arc<Vfs<Link>>,
    link: Link,
    programs: Vec<JoinHandle<()>>,
    upkeep: JoinHandle<()>,
}

impl Machine {
    /// Starts a mount without programs.
    pub(super) fn bare(world: &Arc<World>) -> Machine {
        let number = world.next_mount();
        world.note(format!("mount {number} starts"));
        let link = Link::new(world, number);
        let mut random = StdRng::seed_from_u64(world.roll(|random| random.random()));
        let vfs = Arc::new(Vfs::new(link.clone(), options(&mut random), None));
        let kept = vfs.clone();
        Machine {
            number,
            vfs,
            link,
            programs: Vec::new(),
            upkeep: tokio::spawn(async move { kept.upkeep().await }),
        }
    }

    pub(super) fn start(world: &Arc<World>, sessions: u32) -> Machine {
        let mut machine = Machine::bare(world);
        let locks = Arc::new(Locks::default());
        for _ in 0..PROGRAMS {
            let seed = world.roll(|random| random.random());
            let program = Program {
                world: world.clone(),
                mount: machine.number,
                vfs: machine.vfs.clone(),
                locks: locks.clone(),
                random: Mutex::new(StdRng::seed_from_u64(seed)),
            };
            let run = async move { program.run(sessions).await };
            machine.programs.push(tokio::spawn(run));
        }
        machine
    }

    /// Stops at once, with everything that was not synced.
    pub(super) fn crash(&self) {
        let world = &self.link.world;
        world.note(format!("mount {} crashes", self.number));
        self.stop();
    }

    fn stop(&self) {
        self.link.cut();
        self.upkeep.abort();
        self.programs.iter().for_each(JoinHandle::abort);
    }

    /// Waits for the programs.
    pub(super) async fn join(&mut self) {
        for program in self.programs.drain(..) {
            if let Err(error) = program.await {
                let text = format!("a program of mount {}: {error}", self.number);
                self.link.world.model.lock().blame(text);
            }
        }
    }

    /// Ends in order: everything is on the store then.
    pub(super) async fn end(&self, world: &World) {
        self.upkeep.abort();
        let failed = self.vfs.commit_all(|_| ()).await;
        if let Err(error) = self.vfs.unpin().await {
            world.model.lock().blame(format!("pins stay: {error}"));
        }
        let mut model = world.model.lock();
        // A file that was removed elsewhere has no place any more.
        match failed == 0 || world.has_names {
            true if failed > 0 => {}
            true => model.all_acknowledged(self.number),
            false => model.blame(format!("{failed} files of mount {} are lost", self.number)),
        }
    }

    /// Sweeps at a moment at which others write.
    pub(super) async fn sweep(self, world: &World) {
        let options = SweepOptions {
            grace: match world.bug {
                Some(Bug::SweepsAtOnce) => Duration::ZERO,
                _ if world.is_fair => GRACE,
                _ => LONG_GRACE,
            },
            ignores_pins: world.bug == Some(Bug::SweepsPinned),
        };
        let swept = self.vfs.committer.sweep(options).await;
        world.note(format!("sweep: {swept:?}"));
        self.end(world).await;
    }

    /// Finishes what crashed mounts have left, and removes what nothing refers to.
    pub(super) async fn clear(self, world: &World) {
        if let Err(error) = self.vfs.resume_renames(BROKEN_AFTER).await {
            let text = format!("renames are not finished: {error}");
            world.model.lock().blame(text);
        }
        let options = SweepOptions {
            grace: Duration::ZERO,
            ignores_pins: false,
        };
        // The first one removes files without names, whose segments are found then.
        let first = self.vfs.committer.sweep(options).await;
        match first.and(self.vfs.committer.sweep(options).await) {
            Ok(swept) if swept.pinned == 0 => {}
            swept => world
                .model
                .lock()
                .blame(format!("the last sweep: {swept:?}")),
        }
        self.end(world).await;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}
