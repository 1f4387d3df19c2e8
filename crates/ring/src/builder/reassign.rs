//! Reassignment of gathered replicas: from the root down, each goes to the child tier with the most
//! room among those that may still take one according to the plan.

use crate::builder::BuilderError;
use crate::builder::rebalance::Rebalance;
use crate::builder::tiers::ROOT;

/// Sort key of devices: wanted replicas, then random.
type SortKey = (f64, u64, u32);

impl Rebalance<'_, '_> {
    pub(super) fn reassign(
        &mut self,
        homeless: Vec<(usize, Vec<usize>)>,
    ) -> Result<(), BuilderError> {
        let children = self.shuffled_children();
        // Room counts only what devices want, not what others want to give away: otherwise a zone
        // with a failing device would seem full.
        let mut room = vec![0_i64; self.tree.len()];
        for (id, load) in self.loads.iter().enumerate().filter(|(_, l)| l.exists) {
            for tier in self.tree.of_device[id] {
                room[tier] += load.wanted.max(0.0) as i64;
            }
        }
        for (part, replicas) in homeless {
            self.reset_age(part);
            self.count_homes(part);
            for replica in replicas {
                let id = self
                    .find_home(&children, &room)
                    .ok_or(BuilderError::NoHome { part, replica })?;
                let tiers = self.tree.of_device[id as usize];
                let load = &mut self.loads[id as usize];
                load.wanted -= 1.0;
                load.parts += 1;
                for tier in tiers {
                    room[tier] -= 1;
                }
                self.counts.add(tiers);
                self.table[replica][part] = id;
                self.log_device(id, |name| {
                    format!("Placed {part}/{replica} onto dev {name}")
                });
            }
        }
        Ok(())
    }

    /// Children of each tier, ordered by the largest want among their devices. Of equal room the
    /// first gets a replica, so this order fills new rings evenly.
    fn shuffled_children(&mut self) -> Vec<Vec<usize>> {
        let mut keys: Vec<SortKey> = vec![(f64::NEG_INFINITY, 0, 0); self.tree.len()];
        for id in 0..self.loads.len() {
            let load = self.loads[id];
            if !load.exists {
                continue;
            }
            let key = (load.wanted, self.random.below(0x1_0000), id as u32);
            if load.has_weight {
                for tier in self.tree.of_device[id] {
                    if compare(&keys[tier], &key).is_lt() {
                        keys[tier] = key;
                    }
                }
            }
        }
        let sorted = self.tree.tiers.iter().map(|tier| {
            let mut children = tier.children.clone();
            children.sort_by(|a, b| compare(&keys[*a], &keys[*b]));
            children
        });
        sorted.collect()
    }

    fn find_home(&self, children: &[Vec<usize>], room: &[i64]) -> Option<u32> {
        let mut tier = ROOT;
        while self.tree.tiers[tier].depth < 4 {
            let mut roomiest: Option<usize> = None;
            for child in &children[tier] {
                let may_take = self.counts.of(*child) < self.plan[*child].max;
                if may_take && roomiest.is_none_or(|best| room[*child] > room[best]) {
                    roomiest = Some(*child);
                }
            }
            tier = roomiest?;
        }
        self.tree.tiers[tier].key.3
    }
}

fn compare(a: &SortKey, b: &SortKey) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)))
}
