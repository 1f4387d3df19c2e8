//! Mounts and the programs on them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use super::super::{APPEND, OWNER, READ, WRITE};
use super::link::Link;
use super::model::{Change, Id};
use super::{World, shown_error};
use crate::attributes::Defaults;
use crate::commit::Limits;
use crate::error::{FsError, FsResult};
use crate::store::Why;
use crate::vfs::{OpenMode, ROOT, Vfs, VfsOptions};

/// Programs on each mount.
const PROGRAMS: usize = 2;
const FILES: [&str; 4] = ["places", "log", "more", "logs"];
/// The kernel opens a stale file once more.
const OPENS_MAX: u32 = 3;
/// Bytes of a file beyond which nothing is written at an offset.
const PLACES_BYTES: u64 = 700;

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
    VfsOptions {
        is_read_only: false,
        defaults: Defaults { uid: 1, gid: 2 },
        fresh: Duration::ZERO,
        limits: limits(),
        cache_bytes: 4096,
        block_bytes: 29,
        unwritten_bytes: 1000,
        flatten_after: random.random_bool(0.7).then_some(Duration::from_millis(40)),
        superseded_for: Duration::from_secs(random.random_range(0..2) * 20),
    }
}

/// A mount from its start to its end or crash.
pub(super) struct Machine {
    pub(super) number: usize,
    pub(super) vfs: Arc<Vfs<Link>>,
    link: Link,
    programs: Vec<JoinHandle<()>>,
}

impl Machine {
    pub(super) fn start(world: &Arc<World>, sessions: u32) -> Machine {
        let number = world.next_mount();
        world.note(format!("mount {number} starts"));
        let link = Link::new(world, number);
        let mut random = StdRng::seed_from_u64(world.roll(|random| random.random()));
        let vfs = Vfs::new(link.clone(), options(&mut random), None);
        let mut machine = Machine {
            number,
            vfs: Arc::new(vfs),
            link,
            programs: Vec::new(),
        };
        let root = Directory::default();
        for _ in 0..PROGRAMS {
            let program = Program {
                world: world.clone(),
                mount: number,
                vfs: machine.vfs.clone(),
                root: root.clone(),
                random: Mutex::new(StdRng::seed_from_u64(random.random())),
            };
            let run = async move { program.run(sessions).await };
            machine.programs.push(tokio::spawn(run));
        }
        machine
    }

    /// Stops at once, with everything that was not synced.
    pub(super) fn crash(self) {
        self.link
            .world
            .note(format!("mount {} crashes", self.number));
        self.link.cut();
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
    pub(super) async fn end(self, world: &World) {
        let failed = self.vfs.commit_all(|_| ()).await;
        let mut model = world.model.lock();
        match failed {
            0 => model.all_acknowledged(self.number),
            _ => model.blame(format!("{failed} files of mount {} are lost", self.number)),
        }
    }
}

/// Lock of a directory, as the kernel has it: names are made and removed one after the other, and looked
/// up in between.
type Directory = Arc<tokio::sync::RwLock<()>>;

/// A program on a mount.
struct Program {
    world: Arc<World>,
    mount: usize,
    vfs: Arc<Vfs<Link>>,
    root: Directory,
    random: Mutex<StdRng>,
}

/// An open file of a program.
struct Open {
    id: Id,
    handle: u64,
    /// The moment before it was opened.
    since: u64,
    appends: bool,
    is_writer: bool,
}

impl Program {
    fn roll(&self, below: u64) -> u64 {
        self.random.lock().random_range(0..below)
    }

    async fn run(&self, sessions: u32) {
        for _ in 0..sessions {
            let pause = Duration::from_millis(self.roll(60));
            tokio::time::sleep(pause).await;
            let file = FILES[self.roll(self.world.files) as usize];
            self.session(file).await;
        }
    }

    /// Is a failure explained by the store's? The others are wrong.
    fn excuse(&self, call: &str, since: u64, error: &FsError) {
        self.world.note(format!("{}: {call}: {error}", self.mount));
        let is_excused = match error {
            // A request may have failed before, for another call.
            FsError::Store(error) if matches!(error.why, Why::Timeout | Why::Unavailable) => {
                self.world.has_failed(self.mount, 0)
            }
            FsError::Store(_) => self.world.has_failed(self.mount, since),
            _ => false,
        };
        if !is_excused {
            let text = format!("mount {}: {call}: {}", self.mount, shown_error(error));
            self.world.model.lock().blame(text);
        }
    }

    /// Opens a file like the kernel: it is looked up first, and made where it is not there.
    async fn try_open(&self, file: &str, mode: OpenMode) -> FsResult<(u64, u64)> {
        let ino = {
            let (_shared, _alone) = match mode.is_writer {
                true => (None, Some(self.root.write().await)),
                false => (Some(self.root.read().await), None),
            };
            match self.vfs.lookup(ROOT, file).await {
                Ok(attr) => attr.ino,
                Err(FsError::NotFound) if mode.is_writer => {
                    let created = self.vfs.create(ROOT, file, OWNER, mode, false).await;
                    return created.map(|(attr, handle)| (attr.ino, handle));
                }
                Err(error) => return Err(error),
            }
        };
        let (handle, _) = self.vfs.open(ino, mode).await?;
        Ok((ino, handle))
    }

    async fn open(&self, file: &str, mode: OpenMode) -> Option<Open> {
        let since = self.world.model.lock().now();
        let mut opened = Err(FsError::Stale);
        for _ in 0..OPENS_MAX {
            opened = self.try_open(file, mode).await;
            if !matches!(opened, Err(FsError::Stale)) {
                break;
            }
        }
        match opened {
            Ok((ino, handle)) => {
                let id = (self.mount, ino);
                self.world.model.lock().named(id, file);
                Some(Open {
                    id,
                    handle,
                    since,
                    appends: mode.is_append,
                    is_writer: mode.is_writer,
                })
            }
            Err(FsError::NotFound) if !mode.is_writer => None,
            Err(error) => {
                self.excuse("open", since, &error);
                None
            }
        }
    }

    async fn session(&self, file: &str) {
        let mode = match self.roll(4) {
            0 => READ,
            _ if file.starts_with("log") => APPEND,
            _ => WRITE,
        };
        let Some(open) = self.open(file, mode).await else {
            return;
        };
        for _ in 0..self.roll(7) {
            match self.roll(8) {
                0 | 1 => self.read(&open).await,
                2 => self.sync(&open).await,
                3 => tokio::time::sleep(Duration::from_millis(self.roll(80))).await,
                _ if open.is_writer => self.write(&open).await,
                _ => self.read(&open).await,
            }
        }
        self.close(&open).await;
    }

    async fn write(&self, open: &Open) {
        let since = self.world.model.lock().now();
        let length = match self.roll(6) {
            0 => self.roll(200) + 1,
            _ => self.roll(30) + 1,
        };
        let offset = self.roll(PLACES_BYTES);
        let bytes = self.world.record(self.mount, length as usize);
        let written = self.vfs.write(open.handle, offset, bytes.clone(), false);
        match written.await {
            Ok(()) => {
                let offset = offset as usize;
                let change = match open.appends {
                    true => Change::Append { bytes },
                    false => Change::Write { offset, bytes },
                };
                self.world.model.lock().accept(open.id, change, false);
            }
            Err(error) => self.excuse("write", since, &error),
        }
    }

    async fn read(&self, open: &Open) {
        let since = self.world.model.lock().now();
        match self.vfs.read(open.handle, 0, 1 << 20).await {
            Ok(pieces) => {
                let content = pieces.concat();
                let mut model = self.world.model.lock();
                model.read(open.id, open.since, since, &content);
            }
            Err(error) => self.excuse("read", since, &error),
        }
    }

    async fn sync(&self, open: &Open) {
        let (since, mark) = {
            let mut model = self.world.model.lock();
            (model.now(), model.mark(open.id))
        };
        match self.vfs.sync(open.handle).await {
            Ok(()) => self.world.model.lock().acknowledged(open.id, mark),
            Err(error) => self.excuse("sync", since, &error),
        }
    }

    async fn close(&self, open: &Open) {
        let (since, mark) = {
            let mut model = self.world.model.lock();
            (model.now(), model.mark(open.id))
        };
        match self.vfs.flush(open.handle).await {
            Ok(()) if open.is_writer => self.world.model.lock().acknowledged(open.id, mark),
            Ok(()) => {}
            Err(error) => self.excuse("close", since, &error),
        }
        if let Err(error) = self.vfs.release(open.handle).await {
            self.excuse("release", since, &error);
        }
    }
}
