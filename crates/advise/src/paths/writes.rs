//! The steps of writing: replicas or fragments, their names, and the rows of their container.

use super::connections::End;
use super::{BEFORE, KnownDisk, Row, STREAMED_MIN_BYTES, World, shuffle};
use crate::cache::Held;
use crate::cluster::Erasure;
use crate::engine::{Step, Written};
use crate::random::Dice;

/// Seconds that those beyond the quorum of a write have before the client is answered:
/// `post_quorum_timeout`.
pub(super) const POST_QUORUM_SECONDS: f64 = 0.5;

/// Seconds after which an object's server keeps its row for later instead of waiting for the
/// container's: `container_update_timeout`.
pub(super) const CONTAINER_UPDATE_SECONDS: f64 = 1.0;
/// Size of a row that is kept for later.
const KEPT_ROW_BYTES: f64 = 1000.0;

impl World<'_> {
    /// Writes a body, or without one a tombstone.
    pub(super) fn write(
        &mut self,
        proxy: usize,
        (object, rows): (usize, &[usize]),
        body: Option<f64>,
        dice: &mut Dice,
        steps: &mut Vec<Step>,
    ) {
        // The proxy's order decides which server updates which replica of the container.
        let mut rows = rows.to_vec();
        shuffle(&mut rows, dice);
        self.prefer_own(proxy, &mut rows);
        let lists = self.lists(object, &rows, dice);
        let size = body.unwrap_or(0.0);
        let (cost, load) = (self.store(), self.calibration.load);
        let coding = self
            .cluster
            .erasure
            .map_or(0.0, |_| cost.coding_byte * size);
        let (sent, taken) = (load.write_byte * size, cost.write_byte * size + coding);
        self.body(
            size,
            [load.write_op * BEFORE, sent],
            (proxy, cost.write_op * BEFORE, taken),
            dice,
            steps,
        );
        steps.extend(self.link(proxy, 0, size));
        let containers = self.container_rows(dice);
        match self.cluster.erasure.filter(|_| body.is_some()) {
            Some(erasure) => {
                let uploads =
                    self.write_fragments(proxy, (&rows, &lists), size, erasure, &containers, dice);
                steps.push(uploads);
            }
            None => {
                let branches = rows.iter().enumerate().map(|(index, device)| {
                    let row = containers.get(index).copied();
                    let mut inner = self.stored((*device, lists[index]), body, row, dice);
                    let host = self.placement.devices[*device].host;
                    if size > STREAMED_MIN_BYTES && host != proxy {
                        // Each server is asked before it is sent the body.
                        let seconds = 2.0 * self.half_trip(proxy, host);
                        inner.insert(0, Step::Wait { seconds });
                    }
                    self.call(proxy, host, [size, 0.0], inner, dice)
                });
                let branches = branches.collect();
                let quorum = match body {
                    Some(_) => self.cluster.quorum(),
                    None => self.cluster.update_quorum(),
                };
                steps.push(Step::Fork {
                    need: quorum.size(),
                    linger: POST_QUORUM_SECONDS,
                    branches,
                });
            }
        }
        steps.extend(self.processor(proxy, cost.write_op * (1.0 - BEFORE), dice));
        steps.extend(self.load(load.write_op * (1.0 - BEFORE), dice));
    }

    /// Lists of changes that must be read before the write is added to them, by row. From now on content
    /// and list are in memory.
    fn lists(&mut self, object: usize, rows: &[usize], dice: &mut Dice) -> Vec<bool> {
        let (partition, now) = (self.partition(object), self.now);
        let mut is_read = |device: &usize| {
            self.memory.has(now, *device, Held::Content(object), dice);
            !self
                .memory
                .has(now, *device, Held::Changes(partition), dice)
        };
        rows.iter().map(&mut is_read).collect()
    }

    /// The things that a write of an object or of a tombstone waits for.
    fn written(
        &self,
        device: usize,
        written: Written,
        is_read: bool,
        dice: &mut Dice,
    ) -> Vec<Written> {
        let disk = self.placement.devices[device].disk;
        let read = is_read && self.disks[disk].known.is_some();
        let at = self.span * dice.part();
        let list = read.then_some(Written::Unread(at));
        [written].into_iter().chain(list).collect()
    }

    /// A container's number with its devices.
    fn container_rows(&self, dice: &mut Dice) -> Vec<Row> {
        let number = dice.below(self.containers.len());
        let devices = self.containers.get(number).into_iter().flatten();
        devices.map(|device| (number, *device)).collect()
    }

    /// An object server's own steps of writing a replica, or a tombstone, up to the response.
    fn stored(
        &self,
        (device, is_read): (usize, bool),
        body: Option<f64>,
        row: Option<Row>,
        dice: &mut Dice,
    ) -> Vec<Step> {
        let (cost, size) = (self.store(), body.unwrap_or(0.0));
        let mut steps = Vec::new();
        if let Some(known) = self.known(device) {
            let op = cost.write_replica * (1.0 + BEFORE) / 2.0;
            let written = body.map_or(Written::Removal, Written::of_size);
            let writes = self.written(device, written, is_read, dice);
            self.object(device, known, (size, writes), op, dice, &mut steps);
            self.row(device, row, dice, &mut steps);
            return steps;
        }
        self.content(device, size, cost.write_replica * BEFORE, dice, &mut steps);
        self.name(
            device,
            cost.write_replica * (1.0 - BEFORE) / 2.0,
            dice,
            &mut steps,
        );
        self.row(device, row, dice, &mut steps);
        steps
    }

    fn known(&self, device: usize) -> Option<KnownDisk> {
        self.disks[self.placement.devices[device].disk].known
    }

    /// Content and name of an object, or the name of what a removal leaves, on a known disk.
    fn object(
        &self,
        device: usize,
        known: KnownDisk,
        (size, writes): (f64, Vec<Written>),
        op: f64,
        dice: &mut Dice,
        steps: &mut Vec<Step>,
    ) {
        let seconds = op + self.store().write_replica_byte * size;
        steps.extend(self.processor(self.placement.devices[device].host, seconds, dice));
        steps.extend(self.hand_over(dice));
        steps.push(Step::Join {
            gathering: known.objects,
            writes,
        });
    }

    /// Writes and syncs content.
    pub(super) fn content(
        &self,
        device: usize,
        size: f64,
        op: f64,
        dice: &mut Dice,
        steps: &mut Vec<Step>,
    ) {
        let at = self.placement.devices[device];
        let seconds = op + self.store().write_replica_byte * size;
        steps.extend(self.processor(at.host, seconds, dice));
        steps.extend(self.hand_over(dice));
        steps.push(self.sync(at.disk, size));
    }

    /// Links the file and syncs its directory.
    pub(super) fn name(&self, device: usize, seconds: f64, dice: &mut Dice, steps: &mut Vec<Step>) {
        let at = self.placement.devices[device];
        steps.extend(self.processor(at.host, seconds, dice));
        steps.push(self.sync(at.disk, 0.0));
    }

    /// A shared sync of a disk's file system.
    fn sync(&self, disk: usize, bytes: f64) -> Step {
        match self.disks[disk].known {
            Some(known) => Step::Join {
                gathering: known.syncs,
                writes: vec![Written::of_size(bytes)],
            },
            None => Step::Sync {
                group: self.disks[disk].group,
                bytes,
            },
        }
    }

    /// Updates the container's row, on the server of its database; if that is lost or late, writes an
    /// async pending on the device itself.
    fn row(&self, device: usize, row: Option<Row>, dice: &mut Dice, steps: &mut Vec<Step>) {
        let Some((number, container)) = row else {
            return;
        };
        let own = self.placement.devices[device];
        let at = container.map_or(own, |container| self.placement.devices[container]);
        let seconds = self.store().write_replica * (1.0 - BEFORE) / 2.0;
        let mut inner: Vec<Step> = self.processor(at.host, seconds, dice).into_iter().collect();
        let rows = container.and_then(|device| self.rows.get(&(number, device)));
        inner.push(match rows {
            Some(gathering) => Step::Join {
                gathering: *gathering,
                writes: vec![Written::Entry],
            },
            None => self.sync(at.disk, 0.0),
        });
        if container.is_none() {
            return steps.extend(inner);
        }
        let update = self.call(own.host, at.host, [0.0, 0.0], inner, dice);
        if self.known(device).is_none() {
            return steps.extend(update);
        }
        let late = vec![
            Step::Wait {
                seconds: CONTAINER_UPDATE_SECONDS,
            },
            Step::UnlessOver,
            self.sync(own.disk, KEPT_ROW_BYTES),
            self.sync(own.disk, 0.0),
        ];
        steps.push(Step::Fork {
            need: 1,
            linger: 0.0,
            branches: vec![update, late],
        });
    }

    /// Uploads in two phases. Each fragment's server is asked first, by a connection of the upload's
    /// own, and the body is sent when all have answered. When a quorum has stored its fragments, names
    /// that do not count yet included, all are told to commit: that renames the fragment, syncs the
    /// directory again, and updates the container. The proxy answers when a quorum has done so, and
    /// the others have had their time.
    fn write_fragments(
        &self,
        proxy: usize,
        (rows, lists): (&[usize], &[bool]),
        size: f64,
        erasure: Erasure,
        containers: &[Row],
        dice: &mut Dice,
    ) -> Step {
        let cost = self.store();
        let (need, part) = (self.cluster.quorum().size(), size / f64::from(erasure.data));
        let meet = |number, need| Step::Meet {
            number,
            need,
            of: rows.len(),
        };
        let name = cost.write_replica * (1.0 - BEFORE) / 4.0;
        let branches = rows.iter().enumerate().map(|(index, device)| {
            let host = self.placement.devices[*device].host;
            let trip = match host == proxy {
                true => 0.0,
                false => self.half_trip(proxy, host),
            };
            // Connects, asks, and hears that it may send.
            let mut branch = vec![Step::Wait {
                seconds: 4.0 * trip,
            }];
            branch.extend(self.hand_over(dice));
            branch.push(meet(0, rows.len()));
            let mut inner = Vec::new();
            let op = cost.write_replica * BEFORE + cost.fragment;
            match self.known(*device) {
                Some(known) => {
                    let written = Written::of_size(part);
                    let writes = self.written(*device, written, lists[index], dice);
                    self.object(*device, known, (part, writes), op + name, dice, &mut inner);
                }
                None => {
                    self.content(*device, part, op, dice, &mut inner);
                    self.name(*device, name, dice, &mut inner);
                }
            }
            inner.push(Step::Wait { seconds: trip });
            inner.push(meet(1, need));
            inner.push(Step::Wait { seconds: trip });
            match self.known(*device) {
                Some(known) => {
                    inner.extend(self.processor(host, name, dice));
                    inner.extend(self.hand_over(dice));
                    inner.push(Step::Join {
                        gathering: known.objects,
                        writes: vec![Written::Name],
                    });
                }
                None => {
                    inner.extend(self.hand_over(dice));
                    self.name(*device, name, dice, &mut inner);
                }
            }
            self.row(*device, containers.get(index).copied(), dice, &mut inner);
            self.connections.renew((End::Host(proxy), End::Host(host)));
            branch.extend(self.call(proxy, host, [part, 0.0], inner, dice));
            branch
        });
        Step::Fork {
            branches: branches.collect(),
            need,
            linger: POST_QUORUM_SECONDS,
        }
    }
}
