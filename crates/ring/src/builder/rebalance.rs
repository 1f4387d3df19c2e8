//! One rebalance: gathers the replicas that must or should move, then assigns each to a new device.
//!
//! A partition moves at most one replica per rebalance and is then fixed for `min_part_hours`; only
//! replicas of removed devices, new replicas and double assignments ignore that.

use crate::bitset::BitSet;
use crate::builder::plan::TierPlan;
use crate::builder::tiers::{ROOT, TierTree};
use crate::builder::{BuilderError, NO_DEVICE, RingBuilder, id_bytes_for};
use crate::python_random::{PythonRandom, Seed};
use crate::read::TABLE_BYTES_MAX;

/// Maximum passes of gathering for balance, repeated while devices still hold too much.
const GATHER_ROUNDS_MAX: usize = 3;

/// Inputs of a rebalance besides the builder.
pub struct RebalanceOptions<'a> {
    /// The same seed gives the same ring. Without one, the seed is derived from the builder and the
    /// clock.
    pub seed: Option<Seed>,
    /// Seconds since 1970.
    pub now: u64,
    /// Receives a line for every step, as printed with `--debug`.
    pub log: Option<&'a mut dyn FnMut(&str)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RebalanceOutcome {
    /// Number of partition replicas that changed their device, including new and dropped ones.
    pub changed_parts: u64,
    pub balance: f64,
    pub removed_devices: usize,
}

impl RingBuilder {
    /// Assigns and reassigns partitions. On error the builder is unchanged.
    ///
    /// # Errors
    /// `TooFewDevices` if fewer devices than replicas have weight; `TableTooLarge`; `Plan` if the
    /// replicas cannot be spread over the tiers; `NoHome` if a replica fits on no device.
    pub fn rebalance(
        &mut self,
        options: RebalanceOptions<'_>,
    ) -> Result<RebalanceOutcome, BuilderError> {
        let weighted = self.devices().filter(|dev| dev.device.weight > 0.0).count();
        if (weighted as f64) < self.replicas {
            return Err(BuilderError::TooFewDevices {
                replicas: self.replicas,
                devices: weighted,
            });
        }
        let width = id_bytes_for(self.devs.len().saturating_sub(1) as u32);
        if self.parts() as f64 * self.replicas * f64::from(width) > TABLE_BYTES_MAX as f64 {
            return Err(BuilderError::TableTooLarge {
                part_power: self.part_power,
                replicas: self.replicas,
            });
        }
        let mut next = self.clone();
        let removed_devices = Rebalance::new(&mut next, options)?.run()?;
        next.devs_changed = false;
        let changed_parts = next.count_moves(self.table.as_deref());
        next.update_dispersion()?;
        let balance = next.balance()?;
        *self = next;
        Ok(RebalanceOutcome {
            changed_parts,
            balance,
            removed_devices,
        })
    }

    /// Updates the hours since each partition's last move to `now`.
    pub(super) fn update_last_part_moves(&mut self, now: u64) {
        let parts = self.parts() as usize;
        self.last_part_moves.resize(parts, 0);
        let hours = now.saturating_sub(self.last_part_moves_epoch) / 3600;
        if hours == 0 {
            return;
        }
        let hours = hours.min(u64::from(u8::MAX)) as u8;
        for age in &mut self.last_part_moves {
            *age = age.saturating_add(hours);
        }
        self.last_part_moves_epoch = now;
    }

    /// Number of replicas that are on another device than in `old`.
    fn count_moves(&self, old: Option<&[Vec<u32>]>) -> u64 {
        let old = old.unwrap_or_default();
        let mut moves = 0;
        for (replica, row) in self.table.iter().flatten().enumerate() {
            let old_row = old.get(replica).map_or(&[][..], Vec::as_slice);
            let same = row.iter().zip(old_row).filter(|(a, b)| a == b).count();
            moves += (row.len() - same) as u64;
        }
        moves
    }
}

/// State of a device during a rebalance. `wanted` is a float as in Swift: a device without weight
/// wants minus the whole (fractional) ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) exists: bool,
    pub(super) has_weight: bool,
    pub(super) parts: i64,
    /// Number of further replicas wanted; negative: to give away.
    pub(super) wanted: f64,
}

/// Gathered replicas by partition, in the order in which partitions were first gathered.
pub(super) struct Gathered {
    slot: Vec<u32>,
    pub(super) entries: Vec<(usize, Vec<usize>)>,
}

const NO_SLOT: u32 = u32::MAX;

impl Gathered {
    fn new(parts: usize) -> Self {
        Gathered {
            slot: vec![NO_SLOT; parts],
            entries: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, part: usize, replica: usize) {
        if self.slot[part] == NO_SLOT {
            self.slot[part] = self.entries.len() as u32;
            self.entries.push((part, Vec::with_capacity(1)));
        }
        self.entries[self.slot[part] as usize].1.push(replica);
    }

    /// Takes all entries, leaving none for the next round.
    fn take(&mut self) -> Vec<(usize, Vec<usize>)> {
        for (part, _) in &self.entries {
            self.slot[*part] = NO_SLOT;
        }
        std::mem::take(&mut self.entries)
    }
}

/// Number of replicas of one partition per tier; reset between partitions by undoing only the
/// changes.
pub(super) struct TierCounts {
    counts: Vec<u32>,
    touched: Vec<usize>,
}

impl TierCounts {
    pub(super) fn new(tiers: usize) -> Self {
        TierCounts {
            counts: vec![0; tiers],
            touched: Vec::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        for tier in self.touched.drain(..) {
            self.counts[tier] = 0;
        }
    }

    pub(super) fn add(&mut self, tiers: [usize; 4]) {
        for tier in tiers {
            self.counts[tier] += 1;
            self.touched.push(tier);
        }
    }

    pub(super) fn remove(&mut self, tiers: [usize; 4]) {
        for tier in tiers {
            self.counts[tier] -= 1;
        }
    }

    pub(super) fn of(&self, tier: usize) -> f64 {
        f64::from(self.counts[tier])
    }
}

/// The state of a rebalance in progress.
pub(super) struct Rebalance<'b, 'l> {
    pub(super) builder: &'b mut RingBuilder,
    pub(super) tree: TierTree,
    pub(super) plan: Vec<TierPlan>,
    pub(super) random: PythonRandom,
    log: Option<&'l mut dyn FnMut(&str)>,
    /// Device states by device id.
    pub(super) loads: Vec<Load>,
    pub(super) table: Vec<Vec<u32>>,
    pub(super) moved: BitSet,
    pub(super) gathered: Gathered,
    pub(super) counts: TierCounts,
}

impl<'b, 'l> Rebalance<'b, 'l> {
    fn new(
        builder: &'b mut RingBuilder,
        options: RebalanceOptions<'l>,
    ) -> Result<Self, BuilderError> {
        let seed = options.seed.unwrap_or_else(|| {
            let id = builder.id.as_deref().unwrap_or_default();
            Seed::Text(format!("{id} {} {}", builder.version, options.now))
        });
        builder.update_last_part_moves(options.now);
        let tree = TierTree::new(&builder.devs);
        let plan = builder.replica_plan(&tree)?;
        let parts = builder.parts() as usize;
        let loads = builder.devs.iter().map(|dev| {
            dev.as_ref().map_or(Load::default(), |dev| Load {
                exists: true,
                has_weight: dev.device.weight > 0.0,
                parts: dev.parts as i64,
                wanted: 0.0,
            })
        });
        Ok(Rebalance {
            loads: loads.collect(),
            random: PythonRandom::new(&seed),
            log: options.log,
            table: Vec::new(),
            moved: BitSet::new(parts),
            gathered: Gathered::new(parts),
            counts: TierCounts::new(tree.len()),
            tree,
            plan,
            builder,
        })
    }

    /// Runs all steps; returns the number of devices removed.
    fn run(mut self) -> Result<usize, BuilderError> {
        self.set_wishes()?;
        self.fit_table_to_replicas();
        self.gather_from_removed_devices();
        self.gather_for_dispersion();
        let removed = self.drop_removed_devices();
        for round in 0..GATHER_ROUNDS_MAX {
            self.gather_for_balance(round == 0);
            let mut homeless = self.gathered.take();
            if homeless.is_empty() {
                break;
            }
            self.random.shuffle(&mut homeless);
            let count: usize = homeless.iter().map(|(_, replicas)| replicas.len()).sum();
            self.log(|| format!("Gathered {count} parts"));
            self.reassign(homeless)?;
            self.log(|| format!("Assigned {count} parts"));
            if !self
                .loads
                .iter()
                .any(|load| load.exists && load.wanted < 0.0)
            {
                break;
            }
        }
        for (dev, load) in self.builder.devs.iter_mut().zip(&self.loads) {
            if let Some(dev) = dev {
                dev.parts = load.parts.max(0) as u64;
            }
        }
        self.builder.table = Some(self.table);
        Ok(removed)
    }

    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log(&line());
        }
    }

    /// Logs a line with the device's name, which is formatted only if there is a receiver.
    pub(super) fn log_device(&mut self, id: u32, line: impl FnOnce(&str) -> String) {
        if let Some(log) = &mut self.log {
            let dev = self.builder.device(id);
            let name = dev.map_or_else(|| format!("IDd{id}"), |dev| dev.device.short_name());
            log(&line(&name));
        }
    }

    /// Sets each device's wanted replicas: whole partitions by the plan's targets; the remainder of
    /// rounding goes to the tiers with the smallest targets first.
    fn set_wishes(&mut self) -> Result<(), BuilderError> {
        let parts = self.builder.parts() as f64;
        let all = (self.builder.replicas * parts) as u64;
        let mut share = vec![0_u64; self.tree.len()];
        share[ROOT] = all;
        for tier in 0..self.tree.len() {
            let children = &self.tree.tiers[tier].children;
            if children.is_empty() {
                continue;
            }
            let mut left = share[tier];
            for child in children {
                let target = (self.plan[*child].target * parts).floor() as u64;
                share[*child] = target.min(left);
                left -= share[*child];
            }
            let mut smallest_first = children.clone();
            smallest_first.sort_by(|a, b| self.plan[*a].target.total_cmp(&self.plan[*b].target));
            for child in smallest_first.iter().cycle() {
                if left == 0 {
                    break;
                }
                share[*child] += 1;
                left -= 1;
            }
        }
        for (id, load) in self.loads.iter_mut().enumerate().filter(|(_, l)| l.exists) {
            let tier = self.tree.of_device[id][3];
            load.wanted = if load.has_weight {
                share[tier] as f64 - load.parts as f64
            } else {
                -parts * self.builder.replicas
            };
        }
        Ok(())
    }

    /// Adapts the table to a changed replica count.
    fn fit_table_to_replicas(&mut self) {
        let parts = self.builder.parts() as usize;
        let whole = self.builder.replicas.trunc() as usize;
        let mut lengths = vec![parts; whole];
        if self.builder.replicas.fract() > 0.0 {
            lengths.push((parts as f64 * self.builder.replicas.fract()) as usize);
        }
        let had_table = self.builder.table.as_ref().is_some_and(|t| !t.is_empty());
        if !had_table {
            self.builder.table_id_bytes =
                id_bytes_for(self.builder.devs.len().saturating_sub(1) as u32);
        }
        self.table = self.builder.table.take().unwrap_or_default();
        for row in self.table.split_off(lengths.len().min(self.table.len())) {
            self.drop_assignments(&row);
        }
        for (replica, length) in lengths.into_iter().enumerate() {
            if replica == self.table.len() {
                self.table.push(Vec::new());
            }
            let old_length = self.table[replica].len();
            if old_length > length {
                let dropped = self.table[replica].split_off(length);
                self.drop_assignments(&dropped);
            }
            self.table[replica].resize(length, NO_DEVICE);
            for part in old_length..length {
                self.gathered.push(part, replica);
            }
        }
    }

    fn drop_assignments(&mut self, ids: &[u32]) {
        for id in ids {
            if let Some(load) = self.loads.get_mut(*id as usize) {
                load.parts -= 1;
            }
        }
    }

    /// Removes the devices marked for removal; their ids become free.
    fn drop_removed_devices(&mut self) -> usize {
        let mut removed = 0;
        for (slot, load) in self.builder.devs.iter_mut().zip(&mut self.loads) {
            if slot.as_ref().is_some_and(|dev| dev.removing) {
                *slot = None;
                *load = Load::default();
                removed += 1;
            }
        }
        while self.builder.devs.last().is_some_and(Option::is_none) {
            self.builder.devs.pop();
        }
        // The id width shrinks only well below the limit, so that it does not alternate near it.
        if self.builder.table_id_bytes > 2 && self.builder.devs.len() < usize::from(u16::MAX) / 2 {
            self.builder.table_id_bytes = 2;
        }
        removed
    }

    pub(super) fn can_move(&self, part: usize) -> bool {
        let age = self.builder.last_part_moves.get(part).copied().unwrap_or(0);
        u32::from(age) >= self.builder.min_part_hours && !self.moved.contains(part as u32)
    }

    pub(super) fn set_moved(&mut self, part: usize) {
        self.reset_age(part);
        self.moved.insert(part as u32);
    }

    pub(super) fn reset_age(&mut self, part: usize) {
        if let Some(age) = self.builder.last_part_moves.get_mut(part) {
            *age = 0;
        }
    }

    /// The partition's assigned (replica, device id) pairs.
    pub(super) fn homes(&self, part: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let rows = self.table.iter().enumerate();
        rows.filter_map(move |(replica, row)| {
            let id = row.get(part).copied()?;
            (id != NO_DEVICE).then_some((replica, id))
        })
    }

    pub(super) fn count_homes(&mut self, part: usize) {
        self.counts.clear();
        for row in &self.table {
            if let Some(id) = row.get(part)
                && *id != NO_DEVICE
            {
                self.counts.add(self.tree.of_device[*id as usize]);
            }
        }
    }
}
