//! Cache model: which reads the storage nodes' memory answers.

use std::collections::HashSet;

use crate::cluster::{Cluster, Role};
use crate::random::Dice;
use crate::workload::{Operation, Workload};

/// Fraction of the memory that caches object content.
const CACHE_PART: f64 = 0.7;
/// Seconds of the host between two times at which the emulator drops all content of objects from the
/// page cache of a cell that reads from its disks.
const FORGET_SECONDS: f64 = 1.0;

/// A thing on a device that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Content of an object, by its number.
    Content(usize),
    /// The list of a partition's changed suffixes, whose last block a write adds to.
    Changes(usize),
}

/// Content of the storage nodes' page caches.
#[derive(Debug)]
pub enum Memory {
    /// These fractions of all reads find it there.
    Holds { content: f64, changes: f64 },
    /// An emulated node without memory: what was touched since the emulator last dropped it.
    Forgets {
        interval: f64,
        round: u64,
        touched: HashSet<(usize, Held)>,
    },
}

impl Memory {
    /// `dilation` is that of an emulated cluster.
    pub fn new(
        cluster: &Cluster,
        workload: &Workload,
        partitions: usize,
        dilation: Option<f64>,
    ) -> Memory {
        let content = hit_part(cluster, workload);
        match dilation {
            Some(dilation) if content <= 0.0 => Memory::Forgets {
                interval: FORGET_SECONDS / dilation,
                round: 0,
                touched: HashSet::new(),
            },
            _ => Memory::Holds {
                content,
                changes: changes_part(content, workload, partitions),
            },
        }
    }

    /// Is this in memory? It is from now on.
    pub fn has(&mut self, now: f64, device: usize, what: Held, dice: &mut Dice) -> bool {
        match self {
            Memory::Holds { content, changes } => {
                let part = match what {
                    Held::Content(_) => *content,
                    Held::Changes(_) => *changes,
                };
                part >= 1.0 || dice.part() < part
            }
            Memory::Forgets {
                interval,
                round,
                touched,
            } => {
                let current = (now / *interval) as u64;
                if current != *round {
                    touched.clear();
                    *round = current;
                }
                !touched.insert((device, what))
            }
        }
    }
}

/// Hit ratio of the lists of changes. Whatever is touched within the time that content stays in an LRU
/// cache is there: by Che's approximation it is `1 - exp(-rate * time)` for both, and lists are
/// touched by writes alone, but are as many as there are partitions.
fn changes_part(content: f64, workload: &Workload, partitions: usize) -> f64 {
    let writes = workload.share(Operation::Write) + workload.share(Operation::Delete);
    let rates = writes * workload.objects / partitions.max(1) as f64;
    1.0 - (1.0 - content).powf(rates)
}

/// Hit ratio of an LRU cache by Che's approximation; for equally popular objects it is the cache's
/// size over the content's.
pub fn hit_part(cluster: &Cluster, workload: &Workload) -> f64 {
    let storage = cluster
        .node
        .iter()
        .filter(|n| n.roles.contains(&Role::Storage));
    let memory: f64 = storage.map(|n| f64::from(n.count) * n.memory.0).sum();
    let cached = memory * CACHE_PART / (workload.mean_size().max(1.0) * cluster.overhead());
    let objects = workload.objects;
    if cached >= objects {
        return 1.0;
    }
    if workload.zipf == 0.0 {
        return cached / objects;
    }
    // Ranks in geometrically growing bands: all objects of a band are treated as equally popular.
    let mut bands: Vec<(f64, f64)> = Vec::new();
    let (mut low, mut weights) = (1.0f64, 0.0);
    while low <= objects {
        let high = (low * 1.1).max(low + 1.0).min(objects + 1.0);
        let (count, weight) = (high - low, ((low + high - 1.0) / 2.0).powf(-workload.zipf));
        weights += count * weight;
        bands.push((count, weight));
        low = high;
    }
    let held = |time: f64| -> f64 {
        let of = |(count, weight): &(f64, f64)| count * (1.0 - (-weight / weights * time).exp());
        bands.iter().map(of).sum()
    };
    let (mut low, mut high) = (0.0, 1.0);
    while held(high) < cached && high < 1e30 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        match held(middle) < cached {
            true => low = middle,
            false => high = middle,
        }
    }
    let hits = |(count, weight): &(f64, f64)| {
        count * weight / weights * (1.0 - (-weight / weights * low).exp())
    };
    bands.iter().map(hits).sum::<f64>().min(1.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::workload::tests::SMALL;

    /// Lists are touched by writes alone; the more often one is, the more it is in memory.
    #[test]
    fn lists_are_in_memory_as_often_as_they_are_used() {
        let mut workload = Workload::parse(SMALL).unwrap();
        workload.objects = 10_000.0;
        assert_eq!(changes_part(1.0, &workload, 256), 1.0);
        assert_eq!(changes_part(0.0, &workload, 256), 0.0);
        // As often as an object: as much.
        let alike = changes_part(0.3, &workload, 2000);
        assert!((alike - 0.3).abs() < 1e-9, "{alike}");
        assert!(changes_part(0.3, &workload, 256) > 0.9);
        assert!(changes_part(0.3, &workload, 1 << 18) < 0.01);
    }
}
