//! Gathering: the choice of replicas to move, which are those of removed devices, those placed too
//! close together, and those on devices that hold more than their share.

use crate::builder::NO_DEVICE;
use crate::builder::rebalance::Rebalance;

impl Rebalance<'_, '_> {
    /// Removes one replica from its device.
    fn gather(&mut self, part: usize, replica: usize, id: u32, why: &str) {
        let load = &mut self.loads[id as usize];
        load.wanted += 1.0;
        load.parts -= 1;
        self.gathered.push(part, replica);
        self.table[replica][part] = NO_DEVICE;
        self.set_moved(part);
        self.log_gathered(part, replica, id, why);
    }

    fn log_gathered(&mut self, part: usize, replica: usize, id: u32, why: &str) {
        self.log_device(id, |name| {
            format!("Gathered {part}/{replica} from dev {name} [{why}]")
        });
    }

    /// Gathers all replicas of removed devices, which have most likely failed.
    pub(super) fn gather_from_removed_devices(&mut self) {
        let is_leaving: Vec<bool> = self
            .builder
            .devs
            .iter()
            .map(|dev| dev.as_ref().is_some_and(|dev| dev.removing))
            .collect();
        if !is_leaving.contains(&true) {
            return;
        }
        for replica in 0..self.table.len() {
            for part in 0..self.table[replica].len() {
                let id = self.table[replica][part];
                if is_leaving.get(id as usize) == Some(&true) {
                    self.table[replica][part] = NO_DEVICE;
                    self.set_moved(part);
                    self.gathered.push(part, replica);
                    self.log_gathered(part, replica, id, "dev removed");
                }
            }
        }
    }

    /// Gathers replicas in tiers that hold more replicas of a partition than the plan allows.
    pub(super) fn gather_for_dispersion(&mut self) {
        for part in 0..self.builder.parts() as usize {
            if !self.can_move(part) {
                continue;
            }
            self.count_homes(part);
            let mut crowded: Vec<(usize, u32)> = self
                .homes(part)
                .filter(|(_, id)| {
                    let mut tiers = self.tree.of_device[*id as usize].into_iter();
                    tiers.any(|tier| self.counts.of(tier) > self.plan[tier].max)
                })
                .collect();
            self.most_overweight_first(&mut crowded);
            for (replica, id) in crowded {
                let tiers = self.tree.of_device[id as usize];
                // Two replicas on one device are not redundant: one of them always moves.
                if !self.can_move(part) && self.counts.of(tiers[3]) <= 1.0 {
                    continue;
                }
                self.counts.remove(tiers);
                self.gather(part, replica, id, "dispersion");
            }
        }
    }

    /// Sorts by the wanted number of replicas, ascending; ties keep replica order.
    fn most_overweight_first(&self, replicas: &mut [(usize, u32)]) {
        let wish = |id: u32| self.loads[id as usize].wanted;
        replicas.sort_by(|(_, a), (_, b)| wish(*a).total_cmp(&wish(*b)));
    }

    fn overweight_homes(&self, part: usize) -> Vec<(usize, u32)> {
        let mut homes: Vec<_> = self
            .homes(part)
            .filter(|(_, id)| self.loads[*id as usize].wanted < 0.0)
            .collect();
        self.most_overweight_first(&mut homes);
        homes
    }

    /// Gathers from overweight devices. The first pass takes only replicas that another failure
    /// domain can receive; the second takes any from devices that are still too heavy, because
    /// moving some replicas back and forth can unlock others.
    pub(super) fn gather_for_balance(&mut self, disperse_first: bool) {
        // Starts at a different partition each time, so that repeated rebalances do not favour some
        // partitions.
        let parts = self.builder.parts();
        let start =
            self.builder.last_part_gather_start + parts / 4 + self.random.below(parts / 2 + 1);
        let start = start % parts;
        self.builder.last_part_gather_start = start;
        self.log(|| format!("Gather start is {start}"));
        if disperse_first {
            self.gather_dispersible(start as usize);
        }
        self.gather_forced(start as usize);
    }

    fn gather_dispersible(&mut self, start: usize) {
        let mut wanted_in_tier = vec![0_i64; self.tree.len()];
        for (id, load) in self.loads.iter().enumerate().filter(|(_, l)| l.exists) {
            for tier in self.tree.of_device[id] {
                wanted_in_tier[tier] += load.wanted.max(0.0) as i64;
            }
        }
        let parts = self.builder.parts() as usize;
        for offset in 0..parts {
            let part = (start + offset) % parts;
            if !self.can_move(part) {
                continue;
            }
            let overweight = self.overweight_homes(part);
            if overweight.is_empty() {
                continue;
            }
            self.count_homes(part);
            let sheddable = overweight
                .into_iter()
                .find(|(_, id)| self.can_shed(self.tree.of_device[*id as usize], &wanted_in_tier));
            if let Some((replica, id)) = sheddable {
                for tier in self.tree.of_device[id as usize] {
                    wanted_in_tier[tier] -= 1;
                }
                self.gather(part, replica, id, "weight disperse");
            }
        }
    }

    /// May a replica in these tiers leave according to the plan, and does a sibling want it?
    fn can_shed(&self, tiers: [usize; 4], wanted_in_tier: &[i64]) -> bool {
        let plan = |tier: usize| &self.plan[tier];
        let stuck_by_plan = tiers.into_iter().any(|tier| {
            let here = self.counts.of(tier);
            plan(tier).min <= here && here < plan(tier).max
        });
        if stuck_by_plan {
            return false;
        }
        // The narrowest tier that must keep its replicas; without one, any device in the region may
        // give away.
        let within = tiers
            .into_iter()
            .rev()
            .find(|tier| self.counts.of(*tier) - 1.0 < plan(*tier).min)
            .unwrap_or(tiers[0]);
        let takers = self.tree.tiers[within].children.iter();
        takers
            .filter(|child| !tiers.contains(child))
            .map(|child| wanted_in_tier[*child])
            .sum::<i64>()
            > 0
    }

    fn gather_forced(&mut self, start: usize) {
        let parts = self.builder.parts() as usize;
        for offset in 0..parts {
            let part = (start + offset) % parts;
            if !self.can_move(part) {
                continue;
            }
            if let Some((replica, id)) = self.overweight_homes(part).first().copied() {
                self.gather(part, replica, id, "weight forced");
            }
        }
    }
}
