//! Fault injection while clients work: kinds and times are drawn from the seed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cairn_daemons::DaemonKind;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::disk::Image;
use crate::shared::{DiskFaults, MACHINES, NODES, NetworkFaults};

/// Passes while faults are injected, weighted towards those that remove data which other nodes have.
const PASSES: [DaemonKind; 12] = [
    DaemonKind::ObjectReplicator,
    DaemonKind::ObjectReplicator,
    DaemonKind::ObjectReplicator,
    DaemonKind::ObjectReplicator,
    DaemonKind::ObjectUpdater,
    DaemonKind::ObjectUpdater,
    DaemonKind::ObjectUpdater,
    DaemonKind::ObjectAuditor,
    DaemonKind::ContainerReplicator,
    DaemonKind::AccountReplicator,
    DaemonKind::ContainerUpdater,
    DaemonKind::ObjectExpirer,
];

/// Injects faults until dropped.
pub(crate) struct FaultInjector {
    cluster: Arc<Cluster>,
    /// Dead nodes, and when they restart.
    down: Vec<(usize, Instant)>,
    /// Nodes whose power fails at a given time: their disks take no more writes.
    doomed: Vec<(usize, Instant)>,
    /// The node whose disk may rot and be replaced: acknowledged writes exist on another one, too.
    victim: usize,
    may_rot: bool,
    may_be_replaced: bool,
    /// Machines that still have the initial rings, if rings change.
    old_rings: Vec<usize>,
}

impl FaultInjector {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let dice = &cluster.shared.fault_dice;
        let old_rings = match cluster.rings.may_change() {
            true => (0..MACHINES).collect(),
            false => Vec::new(),
        };
        let (victim, may_rot, may_be_replaced) = (dice.index(NODES), dice.coin(), dice.coin());
        let may_rot = may_rot || cluster.shared.manner.is_rotting;
        // A majority that has lost its copy reports that there is none.
        let is_conditional = cluster.shared.manner.is_conditional;
        let (may_rot, may_be_replaced) = (
            may_rot && !is_conditional,
            may_be_replaced && !is_conditional,
        );
        FaultInjector {
            down: Vec::new(),
            doomed: Vec::new(),
            victim,
            may_rot,
            may_be_replaced,
            old_rings,
            cluster,
        }
    }

    pub(crate) async fn strike(&mut self) -> Result<()> {
        loop {
            let pause = self.cluster.shared.fault_dice.micros(1_600_000);
            sleep(pause).await;
            self.restart_nodes()?;
            self.one()?;
        }
    }

    fn seconds(&self, most: u64) -> Duration {
        self.cluster.shared.fault_dice.micros(most * 1_000_000)
    }

    /// Removes dead nodes, and restarts those that are due.
    fn restart_nodes(&mut self) -> Result<()> {
        let now = Instant::now();
        for node in 0..NODES {
            let Some(running) = self.cluster.node(node) else {
                continue;
            };
            let is_doomed = self.doomed.iter().any(|(n, at)| *n == node && *at <= now);
            if is_doomed {
                running.life.power_fails()?;
            }
            if running.life.is_alive() {
                continue;
            }
            drop(running);
            self.doomed.retain(|(n, _)| *n != node);
            self.cluster.bury(node, |left| left)?;
            let manner = self.cluster.shared.manner;
            let is_soon = manner.is_crowded || manner.is_conditional;
            let at = now + self.seconds(if is_soon { 1 } else { 8 });
            self.down.push((node, at));
        }
        let (due, later): (Vec<_>, Vec<_>) = self.down.drain(..).partition(|(_, at)| *at <= now);
        self.down = later;
        for (node, _) in due {
            self.cluster.shared.disks.lock()[node] = DiskFaults::default();
            self.cluster.start_node(node)?;
        }
        Ok(())
    }

    fn one(&mut self) -> Result<()> {
        let cluster = self.cluster.clone();
        let shared = &cluster.shared;
        let dice = &shared.fault_dice;
        if !self.old_rings.is_empty() && dice.below(10) == 0 {
            let machine = self.old_rings.swap_remove(dice.index(self.old_rings.len()));
            return change_rings(&cluster, machine);
        }
        if shared.manner.is_crowded && dice.below(3) == 0 {
            return self.each_dies(&[0, 1, 2, 3], true);
        }
        if shared.manner.has_failing_syncs && dice.coin() {
            return self.failing_syncs();
        }
        if shared.manner.is_rotting && dice.below(3) == 0 {
            self.rot();
            return Ok(());
        }
        let node = dice.index(NODES);
        let what = dice.below(100);
        // These faults kill nodes.
        if shared.keeps_nodes() && ((25..43).contains(&what) || (51..53).contains(&what)) {
            return Ok(());
        }
        match what {
            0..12 => self.weather(),
            12..20 => self.cut(),
            20..25 => *shared.cut.lock() = Default::default(),
            25..31 => {
                let at = dice.below(40);
                shared.log(|| format!("n{node}: power will fail at sync {at}"));
                shared.disks.lock()[node].power_fails_at = Some(at);
            }
            31..35 => self.each_dies(&[node], true)?,
            35..39 => self.each_dies(&[node], false)?,
            39..43 => self.each_dies(&[0, 1, 2, 3], true)?,
            43..47 => {
                let full = !shared.disks.lock()[node].full;
                shared.log(|| format!("n{node}: disk full: {full}"));
                shared.disks.lock()[node].full = full;
            }
            47..51 => {
                let slow = !shared.disks.lock()[node].slow;
                shared.log(|| format!("n{node}: disk slow: {slow}"));
                shared.disks.lock()[node].slow = slow;
            }
            51..53 => {
                shared.disks.lock()[node].fail_sync = true;
                self.doomed.push((node, Instant::now() + self.seconds(6)));
            }
            53..57 if self.may_rot => self.rot(),
            57..60 if self.may_be_replaced => self.replace()?,
            60..100 => {
                let mut pass = PASSES[dice.index(PASSES.len())];
                if pass == DaemonKind::ObjectReplicator && shared.has_fragments && dice.coin() {
                    pass = DaemonKind::ObjectReconstructor;
                }
                if shared.manner.is_expiring && dice.coin() {
                    pass = DaemonKind::ObjectExpirer;
                }
                if let Some(running) = cluster.node(node) {
                    shared.log(|| format!("n{node}: {pass:?}"));
                    tokio::spawn(async move { running.pass(pass).await });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Fails syncs on all nodes, as other nodes would still have what one of them loses.
    fn failing_syncs(&self) -> Result<()> {
        let shared = &self.cluster.shared;
        let dice = &shared.fault_dice;
        match dice.below(10) {
            0..4 => {
                let count = 1 + dice.below(3);
                shared.log(|| format!("syncs of databases will fail, {count} on each node"));
                let mut disks = shared.disks.lock();
                disks.iter_mut().for_each(|disk| disk.fail_commits = count);
            }
            4..8 => {
                let nodes = (0..NODES).filter_map(|node| self.cluster.node(node));
                for running in nodes {
                    tokio::spawn(async move { running.pass(DaemonKind::ObjectUpdater).await });
                }
            }
            8 => return self.each_dies(&[dice.index(NODES)], false),
            _ => return self.each_dies(&[0, 1, 2, 3], true),
        }
        Ok(())
    }

    fn weather(&self) {
        let dice = &self.cluster.shared.fault_dice;
        // Longer than the lease of promises.
        let delays: &[u64] = match self.cluster.shared.manner.is_conditional {
            true => &[300, 20_000, 2_000_000, 7_000_000],
            false => &[300, 20_000, 2_000_000],
        };
        let faults = match dice.below(4) {
            0 => NetworkFaults::default(),
            _ => NetworkFaults {
                drop: dice.below(150),
                duplicate: dice.below(150),
                break_off: dice.below(100),
                delay: delays[dice.index(delays.len())],
            },
        };
        self.cluster.shared.log(|| format!("network: {faults:?}"));
        *self.cluster.shared.network.lock() = faults;
    }

    /// Partitions the machines into two sets, in one direction or both.
    fn cut(&self) {
        let shared = &self.cluster.shared;
        let dice = &shared.fault_dice;
        let sides: Vec<bool> = (0..MACHINES).map(|_| dice.below(3) == 0).collect();
        let both = dice.coin();
        let mut cut = [[false; MACHINES]; MACHINES];
        for from in 0..MACHINES {
            for to in 0..MACHINES {
                cut[from][to] = sides[from] != sides[to] && (both || sides[from]);
            }
        }
        shared.log(|| format!("cut: {sides:?}, both ways: {both}"));
        *shared.cut.lock() = cut;
    }

    fn each_dies(&self, nodes: &[usize], of_power: bool) -> Result<()> {
        for node in nodes {
            if let Some(running) = self.cluster.node(*node) {
                match of_power {
                    true => running.life.power_fails()?,
                    false => running.life.killed()?,
                }
            }
        }
        Ok(())
    }

    /// Flips a byte of some object's content.
    fn rot(&self) {
        let shared = &self.cluster.shared;
        let mut files = Vec::new();
        for policy in ["objects", "objects-1"] {
            data_files(&self.cluster.device(self.victim).join(policy), &mut files);
        }
        files.sort();
        if files.is_empty() {
            return;
        }
        let path = &files[shared.fault_dice.index(files.len())];
        let Ok(mut bytes) = fs::read(path) else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        let place = shared.fault_dice.index(bytes.len());
        bytes[place] ^= 0x20;
        let name_of = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        let name = name_of(path);
        shared.log(|| format!("n{}: rot in {name}", self.victim));
        let hash = path.parent().map(name_of).unwrap_or_default();
        shared.rotten.lock().insert((self.victim, hash, name));
        let _ = rot_content(path, &bytes);
    }

    /// Replaces the disk by an empty one.
    fn replace(&mut self) -> Result<()> {
        self.may_be_replaced = false;
        let node = self.victim;
        let Some(running) = self.cluster.node(node) else {
            return Ok(());
        };
        self.cluster
            .shared
            .log(|| format!("n{node}: disk replaced"));
        *self.cluster.shared.replaced.lock() = Some(self.cluster.shared.now(node));
        running.life.killed()?;
        drop(running);
        self.cluster.bury(node, |_| Image::empty())?;
        let at = Instant::now() + self.seconds(3);
        self.down.push((node, at));
        Ok(())
    }

    /// Ends all faults, and gives all machines the same rings.
    pub(crate) fn end(&mut self) -> Result<()> {
        for machine in self.old_rings.drain(..) {
            change_rings(&self.cluster, machine)?;
        }
        let shared = &self.cluster.shared;
        shared.log(|| "all faults end".into());
        *shared.network.lock() = NetworkFaults::default();
        *shared.cut.lock() = Default::default();
        let poisoned: Vec<usize> = self.doomed.drain(..).map(|(node, _)| node).collect();
        for node in poisoned {
            if let Some(running) = self.cluster.node(node) {
                running.life.power_fails()?;
            }
        }
        *shared.disks.lock() = Default::default();
        for node in 0..NODES {
            let is_dead = |n: Arc<crate::cluster::Node>| !n.life.is_alive();
            if self.cluster.node(node).is_some_and(is_dead) {
                self.cluster.bury(node, |left| left)?;
            }
            if self.cluster.node(node).is_none() {
                self.cluster.start_node(node)?;
            }
        }
        self.down.clear();
        Ok(())
    }
}

fn change_rings(cluster: &Cluster, machine: usize) -> Result<()> {
    cluster.shared.log(|| format!("m{machine} gets new rings"));
    cluster.rings.change(machine)
}

/// Changes a file's content as rot does: its times stay.
fn rot_content(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let modified = fs::metadata(path)?.modified()?;
    // A file that cannot be written does not rot.
    let file = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.set_modified(modified)
}

fn data_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            data_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "data") {
            found.push(path);
        }
    }
}
