//! One life of a storage node: from its start to its crash. The workers of its device's lanes,
//! threads on a real machine, are run here step by step, each after a drawn delay; when the node
//! dies, they are dropped with all started work.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use cairn_device::{Employer, GroupSync, Machine, Next, Worker};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::disk::{Durable, Image};
use crate::shared::Shared;

/// Maximum duration of a worker's step, on slow devices where operations queue up.
const SLOW_STEP_MICROS: u64 = 30_000;

/// Workers by number, and the last number.
type Workers = (u64, BTreeMap<u64, Box<dyn Worker>>);

pub(crate) struct Life {
    pub(crate) node: usize,
    pub(crate) alive: Arc<AtomicBool>,
    /// The device's folder.
    pub(crate) device: PathBuf,
    shared: Arc<Shared>,
    /// The workers between two steps.
    workers: Mutex<Workers>,
    group: Arc<GroupSync>,
    durable: Mutex<Durable>,
    /// Content left when the power failed.
    left: Mutex<Option<Image>>,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.node)
    }
}

fn dead() -> io::Error {
    Errno::IO.into()
}

impl Life {
    pub(crate) fn begin(
        shared: Arc<Shared>,
        node: usize,
        device: PathBuf,
    ) -> io::Result<Arc<Self>> {
        let lost = std::mem::take(&mut shared.lost.lock()[node]);
        Ok(Arc::new(Life {
            node,
            alive: Arc::new(AtomicBool::new(true)),
            durable: Mutex::new(Durable::mount(&device, lost)?),
            device,
            shared,
            workers: Mutex::default(),
            group: GroupSync::simulated(),
            left: Mutex::default(),
        }))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Fails the power; the disk's content is decided now.
    pub(crate) fn power_fails(&self) -> io::Result<()> {
        if self.alive.swap(false, Ordering::Relaxed) {
            let dice = &self.shared.disk_dice;
            let image = self.durable.lock().after_power_cut(&self.device, dice)?;
            self.shared
                .log(|| format!("n{} power fails, {} entries left", self.node, image.count()));
            *self.left.lock() = Some(image);
        }
        Ok(())
    }

    /// Kills the process without a shutdown.
    pub(crate) fn killed(&self) -> io::Result<()> {
        if self.alive.swap(false, Ordering::Relaxed) {
            let image = crate::disk::after_kill(&self.device)?;
            self.shared.lost.lock()[self.node] = self.durable.lock().lost.clone();
            self.shared
                .log(|| format!("n{} killed, {} entries left", self.node, image.count()));
            *self.left.lock() = Some(image);
        }
        Ok(())
    }

    /// Drops all started work, and returns the content left by the crash.
    pub(crate) fn bury(&self) -> Option<Image> {
        let workers = std::mem::take(&mut self.workers.lock().1);
        drop(workers);
        self.left.lock().take()
    }

    /// Runs a worker's steps until it ends or the node dies.
    fn employ(self: &Arc<Self>, worker: Box<dyn Worker>) {
        if !self.is_alive() {
            return;
        }
        let number = {
            let mut workers = self.workers.lock();
            workers.0 += 1;
            let number = workers.0;
            workers.1.insert(number, worker);
            number
        };
        let life = self.clone();
        tokio::spawn(async move {
            let called = Arc::new(IdleWaker(Notify::new()));
            let waker = Waker::from(called.clone());
            loop {
                sleep(life.pause()).await;
                match life.step(number, &waker) {
                    Some(Next::Works) => {}
                    Some(Next::Idle(at_most)) => {
                        let _ = timeout(at_most, called.0.notified()).await;
                    }
                    Some(Next::Ended) | None => return,
                }
            }
        });
    }

    /// Delay between two steps.
    fn pause(&self) -> Duration {
        let is_slow = self.shared.disks.lock()[self.node].slow;
        let most = match is_slow {
            true => 3_000_000,
            false if self.shared.manner.is_crowded => 60_000,
            false if self.shared.manner.is_rotting => 10_000,
            false if self.shared.has_slow_devices() => SLOW_STEP_MICROS,
            false => 400,
        };
        let pause = self.shared.disk_dice.micros(most);
        pause.max(Duration::from_micros(1))
    }

    /// Runs a worker's step; `None` if it is gone.
    fn step(&self, number: u64, waker: &Waker) -> Option<Next> {
        let mut worker = self.workers.lock().1.remove(&number)?;
        if !self.is_alive() {
            return None;
        }
        let next = worker.step(waker);
        if next != Next::Ended {
            self.workers.lock().1.insert(number, worker);
        }
        Some(next)
    }

    /// Decides whether this sync fails, or the power with it.
    fn begin_sync(&self) -> io::Result<()> {
        if !self.is_alive() {
            return Err(dead());
        }
        let faults = &mut self.shared.disks.lock()[self.node];
        if std::mem::take(&mut faults.fail_sync) {
            self.shared.log(|| format!("n{} fsync fails", self.node));
            return Err(dead());
        }
        if let Some(left) = &mut faults.power_fails_at {
            if *left > 0 {
                *left -= 1;
                return Ok(());
            }
            faults.power_fails_at = None;
            self.power_fails()?;
            return Err(dead());
        }
        Ok(())
    }

    /// Syncs a file or directory of the device.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let path = std::fs::read_link(crate::disk::path_of(file))?;
        if crate::disk::is_of_databases(&self.device, &path) {
            return self.sync_database(file);
        }
        self.begin_sync()?;
        let now = self.shared.now(self.node);
        self.durable.lock().sync(file, now)
    }

    /// Syncs a file of a database, or its directory.
    fn sync_database(&self, synced: BorrowedFd<'_>) -> io::Result<()> {
        let begun = self.begin_sync();
        let fails = begun.is_ok() && {
            let left = &mut self.shared.disks.lock()[self.node].fail_commits;
            let fails = *left > 0;
            *left -= u64::from(fails);
            fails
        };
        let mut durable = self.durable.lock();
        match begun {
            Ok(()) if !fails => durable.sync_database(synced),
            failed => {
                if self.is_alive() {
                    let count = durable.lose(synced)?;
                    let node = self.node;
                    self.shared
                        .log(|| format!("n{node} sync of a database fails, {count} pages lost"));
                }
                failed.and(Err(dead()))
            }
        }
    }

    /// Drops a file from the page cache.
    pub(crate) fn read_from_disk(&self, path: &Path) -> io::Result<()> {
        if !self.is_alive() {
            return Err(dead());
        }
        if self.durable.lock().read_from_disk(path)? {
            let node = self.node;
            self.shared
                .log(|| format!("n{node} reads a log from its disk"));
        }
        Ok(())
    }
}

/// Waker of an idle worker.
struct IdleWaker(Notify);

impl Wake for IdleWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// A life as the device's machine.
#[derive(Clone, Debug)]
pub(crate) struct LifeMachine(pub(crate) Arc<Life>);

impl Employer for LifeMachine {
    fn employ(&self, worker: Box<dyn Worker>) {
        self.0.employ(worker);
    }
}

impl Machine for LifeMachine {
    fn employer(&self) -> Option<&dyn Employer> {
        Some(self)
    }

    fn instant(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn now(&self) -> i64 {
        self.0.shared.now(self.0.node).secs() as i64
    }

    fn write(&self, _bytes: u64) -> io::Result<()> {
        let faults = self.0.shared.disks.lock()[self.0.node];
        match faults.full {
            true => Err(Errno::NOSPC.into()),
            false => Ok(()),
        }
    }

    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.0.sync(file)
    }

    fn group(&self) -> Option<Arc<GroupSync>> {
        Some(self.0.group.clone())
    }
}
