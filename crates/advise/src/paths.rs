//! Paths: the steps of one operation through a cluster, from the load generator and back.
//!
//! A write goes to all rows of its partition and is answered at the quorum (half of the replicas,
//! rounded up; for fragments one more than decoding needs). Each row's server writes content, syncs
//! it, links it, syncs the directory, and then has the container's row synced. Fragments are written in
//! two phases (`writes.rs`). A read asks one
//! replica, or as many fragments as decoding needs; content that is not in memory is read from the
//! disk. Bodies above [`STREAMED_MIN_BYTES`] are transferred by all parties concurrently.

mod connections;
mod emulated;
mod writes;

use std::collections::{HashMap, HashSet};

use crate::cache::{Held, Memory};
use crate::calibration::{Calibration, FileCost, StoreCost};
use crate::cluster::{Cluster, Processes, Role};
use crate::engine::{Engine, Io, Step, Work};
use crate::error::AdviseError;
use crate::hardware::Medium as Hardware;
use crate::placement::Placement;
use crate::random::{Dice, Spread};
use crate::workload::{Operation, Workload};
use connections::{Connections, End};
use emulated::{add_processor, burst_speed, merge_seconds};

/// Size in bytes above which bodies are streamed.
const STREAMED_MIN_BYTES: f64 = 65_536.0;
/// Quantum of a processor, in seconds.
const QUANTUM_SECONDS: f64 = 1e-3;
/// Most bytes that the kernel reads ahead of a reader.
const READ_AHEAD_BYTES: f64 = 131_072.0;
/// Fraction of an operation's CPU time before it waits for responses.
const BEFORE: f64 = 0.6;

/// Stations of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostStations {
    pub processor: usize,
    /// Stations of the link, inbound and outbound; `None` if it is unlimited.
    pub link: Option<[usize; 2]>,
}

/// Stations of a disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskStations {
    pub channel: usize,
    pub group: usize,
    /// A disk whose hardware is known; the two above then are not used.
    pub known: Option<KnownDisk>,
}

/// A disk of known hardware, and the gathering of its objects.
#[derive(Clone, Copy, Debug)]
pub struct KnownDisk {
    pub disk: usize,
    pub objects: usize,
    journal: usize,
    syncs: usize,
}

/// Name and kind of a station, for results.
#[derive(Clone, Debug, PartialEq)]
pub struct StationName {
    pub station: usize,
    pub kind: &'static str,
    pub of: String,
}

/// A row's container, by its number, and the device of its database; none if that is lost.
type Row = (usize, Option<usize>);

/// A cluster as stations of an engine, with the costs of operations.
#[derive(Debug)]
pub struct World<'a> {
    pub placement: &'a Placement,
    cluster: &'a Cluster,
    calibration: &'a Calibration,
    pub hosts: Vec<HostStations>,
    pub disks: Vec<DiskStations>,
    pub names: Vec<StationName>,
    proxies: Vec<usize>,
    /// Lost devices.
    lost: HashSet<usize>,
    /// Devices of a partition's rows, with handoffs for lost ones.
    targets: HashMap<usize, Vec<usize>>,
    /// Devices of container databases; `None` for a lost one.
    containers: Vec<Vec<Option<usize>>>,
    /// Gatherings of containers' rows, by container and device.
    rows: HashMap<(usize, usize), usize>,
    memory: Memory,
    /// Time at which the next operation begins.
    pub now: f64,
    connections: Connections,
    /// Number of objects.
    objects: usize,
    dilation: Option<f64>,
    /// Fraction of a disk that contains objects.
    span: f64,
    spread: Spread,
}

/// Threads that write objects of a device, each a batch at a time.
const COMMIT_THREADS: usize = 2;

impl KnownDisk {
    fn new(it: &Hardware, bytes: f64, calibration: &Calibration, engine: &mut Engine) -> KnownDisk {
        let disk = engine.add_disk(it, bytes);
        let files = &calibration.files;
        let journal = engine.add_gathering(Work::Journal, disk, 1, files);
        let syncs = engine.add_gathering(Work::FileSystem { journal }, disk, 1, files);
        let objects = engine.add_gathering(Work::Objects { syncs }, disk, COMMIT_THREADS, files);
        KnownDisk {
            disk,
            objects,
            journal,
            syncs,
        }
    }

    fn add_rows(self, files: &FileCost, engine: &mut Engine) -> usize {
        let (syncs, journal) = (self.syncs, self.journal);
        let work = Work::Rows { syncs, journal };
        engine.add_gathering(work, self.disk, 1, files)
    }
}

impl<'a> World<'a> {
    /// Creates the stations of a placed cluster. `dilation` is that of an emulated one: its limits of
    /// processors and its caches are the emulator's.
    ///
    /// # Errors
    /// A medium that the calibration lacks.
    pub fn new(
        cluster: &'a Cluster,
        workload: &Workload,
        calibration: &'a Calibration,
        placement: &'a Placement,
        engine: &mut Engine,
        (lost, dilation): (HashSet<usize>, Option<f64>),
    ) -> Result<World<'a>, AdviseError> {
        let (mut hosts, mut names) = (Vec::new(), Vec::new());
        let mut name = |station, kind, of: &str| {
            names.push(StationName {
                station,
                kind,
                of: of.to_owned(),
            });
        };
        for host in &placement.hosts {
            let node = &cluster.node[host.node];
            let processor = add_processor(node, dilation, engine);
            name(processor, "processors", &host.name);
            let link = (node.nic.0 > 0.0).then(|| [0, 1].map(|_| engine.add_station(1, None)));
            for station in link.into_iter().flatten() {
                name(station, "network", &host.name);
            }
            hosts.push(HostStations { processor, link });
        }
        let mut disks = Vec::new();
        for (number, disk) in placement.disks.iter().enumerate() {
            let medium = calibration.medium(&disk.medium)?;
            let channel = engine.add_station(medium.channels as usize, None);
            name(channel, "disk", &disk_name(placement, disk.host, number));
            let processor = Some(hosts[disk.host].processor);
            let group = engine.add_group(channel, processor, medium.clone());
            let known = medium.hardware.as_ref();
            let known = known.map(|it| KnownDisk::new(it, disk.bytes, calibration, engine));
            if let (Some(known), Some(_)) = (known, dilation) {
                engine.hold_behind_flushes(known.disk);
            }
            disks.push(DiskStations {
                channel,
                group,
                known,
            });
        }
        let proxies = (0..placement.hosts.len()).filter(|h| placement.hosts[*h].is_proxy);
        let mut dice = Dice::new(u64::from(workload.containers));
        let containers = (0..workload.containers.min(10_000)).map(|_| {
            let partition = dice.below(placement.containers.partitions());
            let rows = placement.containers.primaries(partition);
            let alive = |device: usize| (!lost.contains(&device)).then_some(device);
            rows.into_iter().map(alive).collect()
        });
        let containers: Vec<Vec<Option<usize>>> = containers.collect();
        let memory = Memory::new(cluster, workload, placement.objects.partitions(), dilation);
        let files = FileCost {
            merge_seconds: merge_seconds(&calibration.files, &memory, dilation),
            ..calibration.files.clone()
        };
        let mut rows = HashMap::new();
        for (number, devices) in containers.iter().enumerate() {
            for device in devices.iter().flatten() {
                if let Some(known) = disks[placement.devices[*device].disk].known {
                    let gathering = known.add_rows(&files, engine);
                    rows.insert((number, *device), gathering);
                }
            }
        }
        let spread = match calibration.store.spread {
            0.0 => Spread::Fixed,
            deviation => Spread::LogNormal(deviation),
        };
        let stored = workload.stored_bytes() * cluster.overhead();
        let raw: f64 = placement.disks.iter().map(|d| d.bytes).sum();
        Ok(World {
            cluster,
            calibration,
            proxies: proxies.collect(),
            targets: HashMap::new(),
            containers,
            rows,
            memory,
            now: 0.0,
            connections: Connections::new(workload.rate.is_some(), dilation),
            objects: workload.objects.max(1.0) as usize,
            dilation,
            span: (stored / raw.max(1.0)).min(1.0),
            hosts,
            disks,
            names,
            placement,
            lost,
            spread,
        })
    }

    /// Disables the variation of CPU times, for computing means.
    pub fn without_spread(mut self) -> Self {
        self.spread = Spread::Fixed;
        self
    }

    pub fn cores(&self, host: usize) -> f64 {
        f64::from(self.cluster.node[self.placement.hosts[host].node].cores)
    }

    pub fn disk_name(&self, disk: usize) -> String {
        disk_name(self.placement, self.placement.disks[disk].host, disk)
    }

    fn store(&self) -> &'a StoreCost {
        &self.calibration.store
    }

    fn has_load_nodes(&self) -> bool {
        self.cluster
            .node
            .iter()
            .any(|node| node.roles.contains(&Role::Load))
    }

    /// The steps of one operation with this size, by a worker of the load: each has a proxy of its own,
    /// the next one has the next.
    pub fn operation(
        &mut self,
        worker: u64,
        operation: Operation,
        size: f64,
        dice: &mut Dice,
    ) -> Vec<Step> {
        let alive: Vec<usize> = self
            .proxies
            .iter()
            .copied()
            .filter(|h| self.is_up(*h))
            .collect();
        let proxy = match alive.len() {
            0 => self.proxies[dice.below(self.proxies.len())],
            some => alive[(worker % some as u64) as usize],
        };
        let object = dice.below(self.objects);
        let partition = self.partition(object);
        let rows = self.targets(partition);
        let body = match operation {
            Operation::Read | Operation::Write => size,
            Operation::Head | Operation::Delete => 0.0,
        };
        let trip = self.cluster.network.client_rtt_ms / 1000.0;
        let ends = match operation {
            Operation::Read => (End::Host(proxy), End::Worker(worker)),
            _ => (End::Worker(worker), End::Host(proxy)),
        };
        let trips = self.connections.of_client(self.now, ends, trip, body);
        let mut steps = vec![Step::Wait {
            seconds: trip * trips,
        }];
        let what = (object, &rows[..]);
        match operation {
            Operation::Read => self.read(proxy, what, size, dice, &mut steps),
            Operation::Head => self.read(proxy, what, 0.0, dice, &mut steps),
            Operation::Write => self.write(proxy, what, Some(size), dice, &mut steps),
            Operation::Delete => self.write(proxy, what, None, dice, &mut steps),
        }
        steps
    }

    /// The partition of an object: as good as random, and always the same.
    fn partition(&self, object: usize) -> usize {
        Dice::new(object as u64).below(self.placement.objects.partitions())
    }

    fn is_up(&self, host: usize) -> bool {
        let here = |d: &usize| self.placement.devices[*d].host == host;
        let devices = self
            .placement
            .devices
            .iter()
            .filter(|d| d.host == host)
            .count();
        devices == 0 || self.lost.iter().filter(|d| here(d)).count() < devices
    }

    /// Devices of a partition's rows; a lost one is replaced by a handoff.
    fn targets(&mut self, partition: usize) -> Vec<usize> {
        if let Some(known) = self.targets.get(&partition) {
            return known.clone();
        }
        let table = &self.placement.objects;
        let mut rows = table.primaries(partition);
        let gone = rows.iter().filter(|d| self.lost.contains(d)).count();
        if gone > 0 {
            let mut handoffs = table
                .handoffs(partition, gone, |d| self.lost.contains(&d))
                .into_iter();
            for row in &mut rows {
                if self.lost.contains(row)
                    && let Some(handoff) = handoffs.next()
                {
                    *row = handoff;
                }
            }
            rows.retain(|d| !self.lost.contains(d));
        }
        self.targets.insert(partition, rows.clone());
        rows
    }

    fn processor(&self, host: usize, seconds: f64, dice: &mut Dice) -> Option<Step> {
        let node = &self.cluster.node[self.placement.hosts[host].node];
        let speed = burst_speed(node, self.dilation);
        (seconds > 0.0).then(|| Step::Serve {
            station: self.hosts[host].processor,
            seconds: self.spread.draw(seconds / speed, dice),
        })
    }

    /// The load generator's CPU step: on a shared host, or on unlimited hosts of its own.
    fn load(&self, seconds: f64, dice: &mut Dice) -> Option<Step> {
        if self.has_load_nodes() {
            let loads = self
                .placement
                .hosts
                .iter()
                .enumerate()
                .filter(|(_, h)| h.has_load);
            let loads: Vec<usize> = loads.map(|(index, _)| index).collect();
            return self.processor(loads[dice.below(loads.len())], seconds, dice);
        }
        (seconds > 0.0).then_some(Step::Wait { seconds })
    }

    fn hand_over(&self, dice: &mut Dice) -> Option<Step> {
        let mean = self.store().hand_over;
        (mean > 0.0).then(|| Step::Wait {
            seconds: self.spread.draw(mean, dice),
        })
    }

    fn link(&self, host: usize, direction: usize, bytes: f64) -> Option<Step> {
        let rate = self.cluster.node[self.placement.hosts[host].node].nic.0;
        self.hosts[host].link.map(|link| Step::Serve {
            station: link[direction],
            seconds: bytes / rate,
        })
    }

    /// Half of the round-trip time between two hosts, in seconds.
    fn half_trip(&self, one: usize, other: usize) -> f64 {
        let (one, other) = (&self.placement.hosts[one], &self.placement.hosts[other]);
        let network = &self.cluster.network;
        let rtt = match (one.region == other.region, one.zone == other.zone) {
            (true, true) => network.zone_rtt_ms,
            (true, false) => network.region_rtt_ms,
            (false, _) => network.between_regions_rtt_ms,
        };
        rtt / 2000.0
    }

    /// Steps of a call from one server to another, around the steps of the callee.
    fn call(
        &self,
        from: usize,
        to: usize,
        bytes: [f64; 2],
        inner: Vec<Step>,
        dice: &mut Dice,
    ) -> Vec<Step> {
        let cost = self.store();
        let mut steps: Vec<Step> = self.hand_over(dice).into_iter().collect();
        if from == to && self.cluster.processes == Processes::One {
            steps.extend(inner);
            return steps;
        }
        // Each direction's bytes pass the processors of both ends.
        let seconds = |bytes: f64| (cost.call / 2.0 + cost.call_byte * bytes) / 2.0;
        let mut leg = |a: usize, b: usize, bytes: f64, steps: &mut Vec<Step>| {
            steps.extend(self.processor(a, seconds(bytes), dice));
            if a != b {
                steps.extend(self.link(a, 1, bytes));
                let (trip, ends) = (2.0 * self.half_trip(a, b), (End::Host(a), End::Host(b)));
                let more = self.connections.more(self.now, ends, trip, bytes);
                steps.push(Step::Wait {
                    seconds: trip * (0.5 + more),
                });
                steps.extend(self.link(b, 0, bytes));
            }
            steps.extend(self.processor(b, seconds(bytes), dice));
        };
        leg(from, to, bytes[0], &mut steps);
        steps.extend(inner);
        leg(to, from, bytes[1], &mut steps);
        steps
    }

    /// CPU steps of load generator and proxy for a body: concurrent if it is streamed.
    fn body(
        &self,
        size: f64,
        load: [f64; 2],
        (proxy, op, bytes): (usize, f64, f64),
        dice: &mut Dice,
        steps: &mut Vec<Step>,
    ) {
        if size <= STREAMED_MIN_BYTES {
            steps.extend(self.load(load[0] + load[1], dice));
            steps.extend(self.processor(proxy, op + bytes, dice));
            return;
        }
        steps.extend(self.load(load[0], dice));
        steps.extend(self.processor(proxy, op, dice));
        let mut branches: Vec<Vec<Step>> = Vec::new();
        branches.extend(self.load(load[1], dice).map(|step| vec![step]));
        branches.extend(self.processor(proxy, bytes, dice).map(|step| vec![step]));
        steps.push(Step::Fork {
            need: branches.len(),
            linger: 0.0,
            branches,
        });
    }

    fn read(
        &mut self,
        proxy: usize,
        (object, rows): (usize, &[usize]),
        size: f64,
        dice: &mut Dice,
        steps: &mut Vec<Step>,
    ) {
        let (cost, load) = (self.store(), self.calibration.load);
        steps.extend(self.load(load.read_op * BEFORE, dice));
        let at_proxy = 1.0 - cost.storage_part;
        steps.extend(self.processor(proxy, cost.read_op * at_proxy * BEFORE, dice));
        let (need, part, more) = match self.cluster.erasure {
            Some(erasure) => {
                let data = erasure.data as usize;
                (data, size / data as f64, cost.fragment)
            }
            None => (1, size, 0.0),
        };
        // One of the rows, in random order for each read. Handoffs have nothing yet.
        let mut order: Vec<usize> = self.placement.objects.primaries(self.partition(object));
        order.retain(|device| !self.lost.contains(device));
        if order.len() < need {
            order = rows.to_vec();
        }
        shuffle(&mut order, dice);
        if self.cluster.erasure.is_none() {
            self.prefer_own(proxy, &mut order);
        }
        let mut branches = Vec::new();
        for device in order.into_iter().take(need) {
            let at = self.placement.devices[device];
            let op = cost.read_op * cost.storage_part + more;
            let bytes = cost.read_byte * cost.storage_part * part;
            let mut inner: Vec<Step> = Vec::new();
            inner.extend(self.processor(at.host, op + bytes, dice));
            if size > 0.0
                && !self
                    .memory
                    .has(self.now, device, Held::Content(object), dice)
            {
                inner.extend(self.disk_read(at.disk, part, dice));
            }
            branches.push(self.call(proxy, at.host, [0.0, part], inner, dice));
        }
        let need = branches.len();
        steps.push(Step::Fork {
            need,
            linger: 0.0,
            branches,
        });
        steps.extend(self.link(proxy, 1, size));
        let op = cost.read_op * at_proxy * (1.0 - BEFORE);
        let coding = self
            .cluster
            .erasure
            .map_or(0.0, |_| cost.coding_byte * size / 2.0);
        let bytes = cost.read_byte * at_proxy * size + coding;
        let generator = [load.read_op * (1.0 - BEFORE), load.read_byte * size];
        self.body(size, generator, (proxy, op, bytes), dice, steps);
    }

    /// Puts devices of the proxy's own process first.
    fn prefer_own(&self, proxy: usize, order: &mut [usize]) {
        if self.cluster.processes == Processes::One {
            order.sort_by_key(|device| self.placement.devices[*device].host != proxy);
        }
    }

    /// A read of content that is not in memory: as much as the kernel reads ahead, and then the next.
    fn disk_read(&self, disk: usize, bytes: f64, dice: &mut Dice) -> Vec<Step> {
        if let Some(known) = self.disks[disk].known {
            let at = self.span * dice.part();
            let mut steps = Vec::new();
            let mut behind = 0.0;
            while behind < bytes.max(1.0) {
                let bytes = (bytes - behind).clamp(1.0, READ_AHEAD_BYTES);
                steps.push(Step::Io {
                    disk: known.disk,
                    requests: vec![Io::Read { bytes, at, behind }],
                });
                behind += bytes;
            }
            return steps;
        }
        let medium = &self.calibration.medium[&self.placement.disks[disk].medium];
        let distance = dice.part() * self.span;
        let seconds = medium.read_spread.draw(medium.read(bytes, distance), dice);
        let station = self.disks[disk].channel;
        vec![Step::Serve { station, seconds }]
    }

    /// Steps that copy one object of this size between devices, like a replicator.
    pub fn copy(&mut self, source: usize, target: usize, size: f64, dice: &mut Dice) -> Vec<Step> {
        let cost = self.store();
        let (from, to) = (
            self.placement.devices[source],
            self.placement.devices[target],
        );
        let mut steps = self.disk_read(from.disk, size, dice);
        let read = (cost.read_op + cost.read_byte * size) * cost.storage_part;
        steps.extend(self.processor(from.host, read, dice));
        let mut inner = Vec::new();
        self.content(target, size, cost.write_replica * BEFORE, dice, &mut inner);
        self.name(
            target,
            cost.write_replica * (1.0 - BEFORE) / 2.0,
            dice,
            &mut inner,
        );
        steps.extend(self.call(from.host, to.host, [size, 0.0], inner, dice));
        steps
    }
}

fn shuffle(order: &mut [usize], dice: &mut Dice) {
    for last in (1..order.len()).rev() {
        order.swap(last, dice.below(last + 1));
    }
}

fn disk_name(placement: &Placement, host: usize, number: usize) -> String {
    format!("{} {}", placement.hosts[host].name, number + 1)
}

#[cfg(test)]
mod tests;
