//! One life of a storage node: from its start to its crash. Work that its device's threads would
//! do waits here for its turn; when the node dies, what waits is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_disk::machine::{Job, Machine};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::time::sleep;

use crate::disk::{Durable, Image};
use crate::shared::Shared;

pub(crate) struct Life {
    pub(crate) node: usize,
    pub(crate) alive: Arc<AtomicBool>,
    /// The device's folder.
    pub(crate) device: PathBuf,
    shared: Arc<Shared>,
    waiting: Mutex<(u64, BTreeMap<u64, Job>)>,
    durable: Mutex<Durable>,
    /// What was left when the power failed.
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
            waiting: Mutex::default(),
            left: Mutex::default(),
        }))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Power fails now. What the disk then holds is decided here and now.
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

    /// The process ends without a word.
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

    /// Drops all work that waits, and tells what the crash left.
    pub(crate) fn bury(&self) -> Option<Image> {
        let waiting = std::mem::take(&mut self.waiting.lock().1);
        drop(waiting);
        self.left.lock().take()
    }

    /// Runs a job after a while, unless the node has died by then.
    pub(crate) fn queue(self: &Arc<Self>, job: Job) {
        if !self.is_alive() {
            return;
        }
        let number = {
            let mut waiting = self.waiting.lock();
            waiting.0 += 1;
            let number = waiting.0;
            waiting.1.insert(number, job);
            number
        };
        let is_slow = self.shared.disks.lock()[self.node].slow;
        let most = match is_slow {
            true => 3_000_000,
            false if self.shared.manner.is_crowded => 60_000,
            false if self.shared.manner.is_rotting => 10_000,
            false => 400,
        };
        let after = self.shared.disk_dice.micros(most);
        let life = self.clone();
        tokio::spawn(async move {
            sleep(after.max(Duration::from_micros(1))).await;
            let job = life.waiting.lock().1.remove(&number);
            if let Some(job) = job.filter(|_| life.is_alive()) {
                // Whoever waits for a job that panicked sees its channel closed.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(job));
            }
        });
    }

    /// Does this sync fail, or the power with it?
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

    /// A commit of a database is to be durable.
    pub(crate) fn commit(&self, synced: &File) -> io::Result<()> {
        let begun = self.begin_sync();
        let fails = begun.is_ok() && {
            let left = &mut self.shared.disks.lock()[self.node].fail_commits;
            let fails = *left > 0;
            *left -= u64::from(fails);
            fails
        };
        let mut durable = self.durable.lock();
        match begun {
            Ok(()) if !fails => durable.commit(synced),
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

    /// The page cache lets go of a file.
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

/// A life as the device's machine.
#[derive(Clone, Debug)]
pub(crate) struct OfLife(pub(crate) Arc<Life>);

impl Machine for OfLife {
    fn run(&self, job: Job) {
        self.0.queue(job);
    }

    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.0.begin_sync()?;
        let now = self.0.shared.now(self.0.node);
        self.0.durable.lock().sync(file, now)
    }

    fn write(&self, _bytes: u64) -> io::Result<()> {
        let faults = self.0.shared.disks.lock()[self.0.node];
        match faults.full {
            true => Err(Errno::NOSPC.into()),
            false => Ok(()),
        }
    }

    fn now(&self) -> i64 {
        self.0.shared.now(self.0.node).secs() as i64
    }
}
