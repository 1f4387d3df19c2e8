//! Relinking one device's objects of one policy, partition by partition.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cairn_disk::engine::{Collision, Move, Relinking};
use cairn_disk::{Devices, Disk, DiskError, Engine, PartitionKey};
use cairn_types::PolicyIndex;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tracing::{error, info, warn};

use super::progress::{Recon, State, now};
use super::{Step, datadir};

/// Parameters for each device, for one policy.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) step: Step,
    pub(super) policy: PolicyIndex,
    pub(super) policy_name: String,
    pub(super) part_power: u32,
    pub(super) next_part_power: u32,
    /// Partitions; empty for all.
    pub(super) partitions: Vec<u32>,
    pub(super) files_per_second: f64,
    pub(super) collision: Collision,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) recon: Arc<Recon>,
}

/// Counts of work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) hash_dirs: usize,
    pub(super) files: usize,
    pub(super) linked: usize,
    pub(super) removed: usize,
    pub(super) errors: usize,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Totals) {
        self.hash_dirs += other.hash_dirs;
        self.files += other.files;
        self.linked += other.linked;
        self.removed += other.removed;
        self.errors += other.errors;
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "hash_dirs": self.hash_dirs, "files": self.files, "linked": self.linked,
            "removed": self.removed, "errors": self.errors,
        })
    }
}

impl Task {
    pub(super) fn run(&self, devices: &Devices, name: &str) -> Totals {
        let mut totals = Totals::default();
        let disk = devices.get(name).and_then(|device| device.disk());
        let done = match disk {
            Ok(disk) => self.run_on(&disk, &mut totals),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = done {
            let error = format!("{error:#}");
            error!(
                device = name,
                policy = self.policy_name,
                error,
                "not relinked"
            );
            totals.errors += 1;
        }
        totals
    }

    fn run_on(&self, disk: &Disk, totals: &mut Totals) -> Result<()> {
        let relinking = self.engine.relinking();
        let relinking = relinking.context("the policy's engine has no names to relink")?;
        let root = disk.path().to_owned();
        let _lock = self.lock(&root)?;
        let began = now();
        let mut state = State::read(&root, self).context("the state file")?;
        let partitions = self.engine.partitions(disk, self.policy)?;
        let mut pace = Pace::new(self.files_per_second);
        for partition in state.partitions(partitions, self) {
            let before = totals.errors;
            if let Err(error) = self.partition(disk, relinking, partition, &mut pace, totals) {
                totals.errors += 1;
                error!(device = disk.name(), partition, %error, "a partition is not relinked");
            }
            if totals.errors == before {
                state.finish(partition).context("the state file")?;
            }
            let (done, all) = state.counts();
            info!(
                "Device: {} Policy: {} Partitions: {done}/{all}",
                disk.name(),
                self.policy_name
            );
            self.recon
                .record(self, disk.name(), &state, began, totals, false);
        }
        self.recon
            .record(self, disk.name(), &state, began, totals, true);
        Ok(())
    }

    /// Locks the device, after another run has ended.
    fn lock(&self, root: &Path) -> Result<File> {
        let path = root.join(format!(".relink.{}.lock", datadir(self.policy)));
        let options = &mut File::options();
        let options = options.create(true).truncate(false).write(true);
        let file = options
            .open(&path)
            .with_context(|| path.display().to_string())?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Objects of a partition that belong to another one.
    fn moves(&self, disk: &Disk, partition: u32) -> Result<Vec<Move>, DiskError> {
        let at = PartitionKey::new(self.policy, partition);
        let hashes = self.engine.objects(disk, at)?.into_iter();
        let to_power = |hash| Move::to_power(self.policy, hash, partition, self.next_part_power);
        Ok(hashes.filter_map(to_power).collect())
    }

    fn partition(
        &self,
        disk: &Disk,
        relinking: &dyn Relinking,
        partition: u32,
        pace: &mut Pace,
        totals: &mut Totals,
    ) -> Result<(), DiskError> {
        let mut linked_into = BTreeSet::new();
        let mut superfluous = Vec::new();
        for objects in self.moves(disk, partition)?.chunks(pace.at_once()) {
            pace.step(objects.len());
            let linked = relinking.link(disk, objects, self.collision)?;
            for (object, done) in objects.iter().zip(linked) {
                totals.hash_dirs += 1;
                totals.files += done.files;
                totals.linked += done.linked;
                totals.errors += done.errors;
                if done.linked > 0 {
                    linked_into.insert(object.to);
                }
                if self.step == Step::Cleanup && !done.superfluous.is_empty() {
                    superfluous.push((*object, done.superfluous));
                }
            }
        }
        if !superfluous.is_empty() {
            relinking.sync_links(disk)?;
        }
        match relinking.unlink(disk, &superfluous) {
            Ok(removed) => totals.removed += removed,
            Err(error) => {
                totals.errors += 1;
                warn!(device = disk.name(), %error, "old names stay");
            }
        }
        // The upper half needs no clean-up: it is hashed while relinking.
        let cleanup = self.step == Step::Cleanup;
        for to in linked_into {
            if cleanup || u64::from(to) >= 1 << self.part_power {
                let at = PartitionKey::new(self.policy, to);
                self.engine.suffix_hashes(disk, at, &[], false)?;
            }
        }
        if cleanup {
            let at = PartitionKey::new(self.policy, partition);
            let hashed = self.engine.suffix_hashes(disk, at, &[], false)?;
            if hashed.hashes.is_empty() {
                relinking.remove_empty(disk, at)?;
            }
        }
        Ok(())
    }
}

/// Maximum objects linked in one job.
const OBJECTS_PER_JOB_MAX: usize = 64;

/// Maximum interval between two objects, in seconds.
const GAP_MAX_SECS: f64 = 86_400.0;

/// Rate limiter of objects.
struct Pace {
    gap: Duration,
    next: Instant,
}

impl Pace {
    fn new(per_second: f64) -> Pace {
        let gap = match per_second > 0.0 {
            true => Duration::from_secs_f64((1.0 / per_second).min(GAP_MAX_SECS)),
            false => Duration::ZERO,
        };
        Pace {
            gap,
            next: Instant::now(),
        }
    }

    /// Maximum objects per job: no more than a second's.
    fn at_once(&self) -> usize {
        match self.gap.is_zero() {
            true => OBJECTS_PER_JOB_MAX,
            false => (1.0 / self.gap.as_secs_f64()).clamp(1.0, OBJECTS_PER_JOB_MAX as f64) as usize,
        }
    }

    /// Waits until `objects` may be processed.
    fn step(&mut self, objects: usize) {
        if self.gap.is_zero() {
            return;
        }
        thread::sleep(self.next.saturating_duration_since(Instant::now()));
        self.next = Instant::now() + self.gap.mul_f64(objects as f64);
    }
}
