//! A store whose four devices are disks with fault injection, and operations on it: load, power
//! cuts, and the check of everything that was acknowledged.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::disk::{Disk, FileSystem, PREFIX};
use crate::engine::EngineName;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::model::keys::{Key, State, Write, next_version};
use cairn_testkit::model::{check, load};
use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{self, utf8};

const DISKS: usize = 4;
/// Minimum size of XFS is 300 MB.
const SIZE: u64 = 400 << 20;

/// Configuration of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) file_system: FileSystem,
    /// Databases are exclusive to the server, as with `cairn up`.
    pub(super) exclusive: bool,
    /// Container databases are on disks of their own, as in many clusters.
    pub(super) apart: bool,
    /// The first policy is erasure-coded, 2 + 1.
    pub(super) coded: bool,
    /// All four devices are folders of one disk, as with `cairn up`.
    pub(super) shared: bool,
}

/// Whether a file of a device holds objects: one of them, or a volume of many.
pub(super) fn holds_objects(path: &str) -> bool {
    path.contains("/objects/") || path.contains("/pebbles/")
}

/// Fields in drop order: processes before the disks they use.
pub(super) struct Rig {
    pub(super) store: Cairn,
    /// Disks; those of containers are last, if separate.
    pub(super) disks: Vec<Disk>,
    pub(super) random: Random,
    _dir: TempDir,
}

impl Rig {
    pub(super) fn new(
        binary: &std::path::Path,
        shape: Shape,
        seed: u64,
        engine: Option<EngineName>,
        keep: bool,
    ) -> Result<Rig> {
        let mut dir = workspace::scratch(PREFIX)?;
        dir.disable_cleanup(keep);
        let store = Cairn::create(binary, &dir.path().join("data"), None)?;
        if !shape.exclusive {
            for role in ["account", "container"] {
                store.set(role, "DEFAULT", "exclusive_databases", "no")?;
            }
        }
        if shape.coded {
            store.add_policy(true)?;
        }
        EngineName::set(engine, &store)?;
        let mut random = Random::new(seed);
        let mut mount_points = store.devices()?;
        ensure!(
            mount_points.len() == DISKS,
            "{} devices",
            mount_points.len()
        );
        let names: Vec<_> = mount_points
            .iter()
            .filter_map(|m| Some(m.file_name()?.to_owned()))
            .collect();
        if shape.apart {
            let root = dir.path().join("data/containers");
            store.set("container", "DEFAULT", "devices", utf8(&root)?)?;
            // Refused rows are sent again soon.
            store.set("object", "object-updater", "interval", "1")?;
            mount_points.extend(names.iter().map(|name| root.join(name)));
        }
        if shape.shared {
            let parent = mount_points.first().and_then(|first| first.parent());
            mount_points = vec![parent.context("devices without a folder")?.to_owned()];
        }
        let mut disks = Vec::new();
        for (number, mount_point) in mount_points.iter().enumerate() {
            std::fs::create_dir_all(mount_point)?;
            let parts = dir.path().join("disks").join(number.to_string());
            let file_system = shape.file_system;
            // Each device has room for its volumes, made ahead, also where all are on one disk.
            let size = if shape.shared {
                SIZE * DISKS as u64
            } else {
                SIZE
            };
            let disk = Disk::create(&parts, mount_point, file_system, size, random.next_u64())?;
            disks.push(disk);
        }
        if shape.shared {
            // The files of `cairn up` are hidden below the mount point now.
            for name in &names {
                std::fs::create_dir(disks[0].mount_point.join(name))?;
            }
        }
        let mut rig = Rig {
            store,
            disks,
            random,
            _dir: dir,
        };
        rig.store.start(Spread::OneProcess)?;
        Ok(rig)
    }

    pub(super) fn account(&self) -> Result<Account> {
        Account::login(self.store.port())
    }

    /// Creates the containers of these keys.
    pub(super) fn make_containers(&self, keys: &[Vec<Key>]) -> Result<()> {
        let mut account = self.account()?;
        let mut paths: Vec<&str> = keys.iter().flatten().map(|k| &*k.container).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            account.must("PUT", path, "", &[], b"")?;
        }
        Ok(())
    }

    /// Kills the store, and cuts the power of all disks.
    pub(super) fn cut_power(&mut self) {
        self.store.kill();
        for disk in &self.disks {
            disk.medium.power_off();
        }
    }

    /// Restores power: of the unflushed blocks, `kept_of_thousand` per thousand survived.
    /// Everything is started again.
    pub(super) fn start_anew(&mut self, kept_of_thousand: u64) -> Result<()> {
        for disk in &mut self.disks {
            disk.power_on(kept_of_thousand)?;
        }
        self.store.start(Spread::OneProcess)
    }

    /// Restarts the store with changed confs.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.store.stop()?;
        self.store.start(Spread::OneProcess)
    }

    /// Writes everything to the disks, and drops it from memory.
    pub(super) fn read_anew(&mut self) -> Result<()> {
        self.store.stop()?;
        self.start_anew(1000)
    }

    /// Writes everything to the disks, and corrupts one byte of each object file on some of them.
    pub(super) fn rot(&mut self, numbers: &[usize]) -> Result<()> {
        self.store.stop()?;
        for disk in &mut self.disks {
            disk.power_on(1000)?;
        }
        for number in numbers {
            let is_object = |path: &str| path.contains("/objects/") && path.ends_with(".data");
            let disk = &self.disks[*number];
            for file in self.files(*number, is_object) {
                let size = std::fs::metadata(&file)?.len();
                if let Some(at) = disk.place(&file, self.random.below(size.max(1))) {
                    disk.medium.rot(at)?;
                }
            }
        }
        self.store.start(Spread::OneProcess)
    }

    /// The disks with container databases.
    pub(super) fn of_containers(&self) -> &[Disk] {
        &self.disks[self.disks.len() - DISKS..]
    }

    pub(super) fn heal(&self) {
        self.disks.iter().for_each(|disk| disk.medium.heal());
    }

    /// Files below the devices whose path `chosen` selects.
    pub(super) fn files(&self, of: usize, chosen: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.disks[of].mount_point.clone()];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else {
                continue;
            };
            for path in entries.flatten().map(|entry| entry.path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.to_str().is_some_and(&chosen) {
                    found.push(path);
                }
            }
        }
        found
    }

    /// Describes lost or wrong data; empty if everything acknowledged is there.
    pub(super) fn lost(&self, keys: &[Vec<Key>]) -> Result<Vec<String>> {
        let mut lost = check::all(&mut self.account()?, keys)?;
        for words in lost.clone() {
            if let Some((path, _)) = words.split_once(": ") {
                lost.extend(self.traces(path));
            } else if let Some((_, row)) = words.split_once(" lists ")
                && let Some((name, _)) = row.split_once(" as ")
            {
                lost.extend(self.row_traces(name));
            }
        }
        Ok(lost)
    }

    /// Files on the disks that have the row's name among their bytes: databases with their logs, and
    /// updates that wait to be delivered.
    fn row_traces(&self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        let may_have =
            |path: &str| path.contains("/containers/") || path.contains("/async_pending");
        for (number, disk) in self.disks.iter().enumerate() {
            for file in self.files(number, may_have) {
                let content = std::fs::read(&file).unwrap_or_default();
                let times = content
                    .windows(name.len())
                    .filter(|bytes| *bytes == name.as_bytes())
                    .count();
                if times > 0 {
                    let at = file
                        .strip_prefix(&disk.mount_point)
                        .unwrap_or(&file)
                        .display();
                    found.push(format!("  disk {number} has {name} {times} times in {at}"));
                }
            }
        }
        found
    }

    /// Files on the disks whose metadata names the object, including those that a file system check
    /// found in no folder: a file system without a journal may lose entries of a folder that it was
    /// splitting.
    fn traces(&self, object: &str) -> Vec<String> {
        let mut found = Vec::new();
        for number in 0..self.disks.len() {
            for file in self.files(number, |_| true) {
                let mut metadata = [0; 4096];
                let length = rustix::fs::getxattr(&file, "user.swift.metadata", &mut metadata);
                let metadata = String::from_utf8_lossy(&metadata[..length.unwrap_or(0)]);
                let Some((_, after)) = metadata.split_once(object) else {
                    continue;
                };
                let part_of_a_name = |c: char| c.is_ascii_digit() || c == '/';
                if after.starts_with(part_of_a_name) {
                    continue;
                }
                let at = file.strip_prefix(&self.disks[number].mount_point);
                let at = at.unwrap_or(&file).display();
                let size = std::fs::metadata(&file).map_or(0, |status| status.len());
                found.push(format!("  disk {number} has {at}, {size} bytes"));
            }
        }
        found
    }
}

/// Workers' keys, distributed over containers.
pub(super) fn keys(workers: usize, of_each: usize, containers: usize) -> Vec<Vec<Key>> {
    let key = |w: usize, k: usize| {
        let container = format!("/faults-{}", k % containers);
        Key::new(&container, format!("w{w}/k{k:03}"))
    };
    let of_worker = |w| (0..of_each).map(|k| key(w, k)).collect();
    (0..workers).map(of_worker).collect()
}

/// The workers' load.
#[derive(Clone, Copy)]
pub(super) struct Mix<'a> {
    pub(super) sizes: &'a [usize],
    /// GETs per ten requests.
    pub(super) gets: u64,
    pub(super) deletes: u64,
    pub(super) posts: u64,
    /// Pause of a worker after each request.
    pub(super) pace: Duration,
    /// The store may refuse (5xx) what its disks refuse.
    pub(super) may_refuse: bool,
}

/// Small and large objects, written and read.
pub(super) const MIXED: Mix<'_> = Mix {
    sizes: &[0, 100, 4096, 16_384, 65_537, 300_000, 1 << 20],
    gets: 2,
    deletes: 1,
    posts: 1,
    pace: Duration::ZERO,
    may_refuse: true,
};

/// The same, with refusals not allowed.
pub(super) const STRICT: Mix<'_> = Mix {
    may_refuse: false,
    ..MIXED
};

/// Rows, by nearly empty objects.
pub(super) const ROWS: Mix<'_> = Mix {
    sizes: &[100],
    gets: 0,
    deletes: 1,
    posts: 0,
    pace: Duration::ZERO,
    may_refuse: true,
};

/// Runs the load on all keys while `during` runs.
pub(super) fn load(
    account: &Account,
    keys: &mut [Vec<Key>],
    mix: Mix<'_>,
    seed: u64,
    during: impl FnOnce() -> Result<()>,
) -> Result<load::Counts> {
    let stop = AtomicBool::new(false);
    let mut total = load::Counts::tolerant();
    let mut wrong = Vec::new();
    let done = std::thread::scope(|scope| {
        let workers: Vec<_> = keys
            .iter_mut()
            .enumerate()
            .map(|(w, keys)| {
                let (account, stop) = (account.another(), &stop);
                let random = Random::new(seed ^ (w as u64) << 32);
                scope.spawn(move || worker(account, keys, mix, random, stop))
            })
            .collect();
        let done = during();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            match worker.join() {
                Ok(counts) => total.add(counts, &mut wrong),
                Err(_) => wrong.push("a worker panicked".to_owned()),
            }
        }
        done
    });
    total.wrong = wrong;
    done.map(|()| total)
}

fn worker(
    mut account: Account,
    keys: &mut [Key],
    mix: Mix<'_>,
    mut random: Random,
    stop: &AtomicBool,
) -> load::Counts {
    let mut counts = match mix.may_refuse {
        true => load::Counts::tolerant(),
        false => load::Counts::default(),
    };
    while !stop.load(Ordering::Relaxed) {
        let index = random.below(keys.len() as u64) as usize;
        let key = &mut keys[index];
        let is_there = key.settled().is_some_and(|s| s != State::Absent);
        let choice = random.below(10);
        let connected = if choice < mix.gets {
            load::read(&mut account, key, &mut counts)
        } else {
            let (write, size) = if choice < mix.gets + mix.deletes {
                (Write::Delete, 0)
            } else if choice < mix.gets + mix.deletes + mix.posts && is_there {
                let number = next_version();
                (Write::Post { number }, 0)
            } else {
                let version = next_version();
                (Write::Put { version }, *random.pick(mix.sizes))
            };
            load::write(&mut account, key, write, size, &mut counts)
        };
        std::thread::sleep(mix.pace);
        if !connected {
            // A body broke off, or the store is down.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    counts
}
